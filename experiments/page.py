"""Writes docs/results.md from the runs that are kept, and a report on each study: python -m experiments.page

The page says nothing that is not in experiments/results; what has not been run yet is listed with its command.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from benchmarks.page import Rows, table
from experiments.run import RESULTS, is_kept, planned
from oelm import variants
from oelm.analysis.compare import Comparison, compare_all
from oelm.analysis.results import Result, read_result
from oelm.errors import UserError
from oelm.probes import probe
from oelm.probes.figure import draw
from oelm.probes.options import Probe
from oelm.reporting.ablation import ablation
from oelm.reporting.curves import by_layer
from oelm.reporting.report import report
from oelm.runfolder import RunFolder, read_json, runs_below
from oelm.runs.matrix import Arm, read_matrix
from oelm.runs.standing import refuse_other_runs

MATRICES = Path(__file__).parent
DOCS = MATRICES.parent / "docs"
PAGE, REPORTS = DOCS / "results.md", DOCS / "results"

OPENING = """# Results

Every figure here is made by `python -m experiments.page` from the run folders in `experiments/results`, which hold all
but the weights. Gaps are in perplexity, paired by seed, with intervals of 95 %, which are not corrected for being
several; `docs/method.md` says what each number means, and LOG.md what led nowhere. **Nothing here is of the size of the
original study yet** (medium-512, on a GPU): what is, is small, and what is missing is listed at the end.
"""

# The matrices of the study, in the order in which they are told.
STUDIES = {
    "ablation-rope": "The ablation that the study should have been, with RoPE",
    "ablation-learned": "The same with learned positions, the study's own setting",
    "search": "Leads for a variant that freezes Q and K and loses nothing: one seed, one rate, no claims",
    "vectors": "What vectors alone can repair: four layers of 128 channels on 13,260 of TinyStories' stories",
    "tinystories": "The study in small, on real text: two layers of 64 channels on 13,260 of TinyStories' stories",
    "search-small": "Leads on a CPU: two layers of 64 channels on the same text, one seed, one rate, no claims",
    "nano": "The study in small: two layers of 64 channels on the built-in storybook",
}
HEADLINES = ("tinystories", "vectors")  # what README.md has tables of
# What the claims need and no matrix has yet, for its variants are to come out of the search.
TO_COME = (
    "The finalists of the search, their corrections over zero, a matched Gaussian and the identity, and their fair "
    "baselines, each at its own best rate: 15,000 steps, 5 seeds that the search never used, `wiki` and `reviews`, "
    "scored once on the test split: no matrix yet, for the finalists are to come out of the search",
    "Does it last: oelm_v3 and its fair baseline after 5,000, 15,000 and 45,000 steps: no matrix yet",
)
PLATEAU = 2.0  # perplexity on the storybook, which curves rest above before they fall
PROBED = ("baseline", "baseline_shift", "oelm_v2", "oelm_v3")
PROBE_STEPS = 1000
PROBES_COMMAND = (
    f"oelm probe --variants {' '.join(PROBED)} --max-steps {PROBE_STEPS} --device cpu --out experiments/results/probes"
)


@dataclass(frozen=True)
class Study:
    """A matrix, and what is kept of its runs."""

    name: str

    @property
    def title(self) -> str:
        return STUDIES[self.name]

    @property
    def command(self) -> str:
        return f"python -m experiments.run experiments/{self.name}.yaml"

    @cached_property
    def arms(self) -> list[Arm]:
        return read_matrix(MATRICES / f"{self.name}.yaml", RESULTS, None)

    @cached_property
    def planned(self) -> list[Path]:
        return [path for arm in self.arms for path in planned(arm)]

    @cached_property
    def kept(self) -> list[RunFolder]:
        """The runs that are kept; others than the matrix has are refused."""
        kept = runs_below(RESULTS / self.name)
        if strangers := [str(run.path) for run in kept if run.path not in self.planned]:
            raise UserError(f"{strangers[0]} is no run of experiments/{self.name}.yaml; remove it")
        for arm in self.arms:
            refuse_other_runs(arm)
        return kept

    @property
    def missing(self) -> list[Path]:
        return [path for path in self.planned if not is_kept(path)]

    @cached_property
    def comparisons(self) -> list[Comparison]:
        """None as long as no run that counts is finished."""
        counted = any(not run.config().trial and run.status()["state"] == "finished" for run in self.kept)
        return compare_all(self.kept) if counted else []


def studies() -> list[Study]:
    return [Study(name) for name in STUDIES]


def render() -> str:
    pieces, missing = [OPENING.strip()], []
    for study in studies():
        if study.comparisons:
            pieces += section(study)
        if study.missing:
            share = f"{len(study.missing)} of {len(study.planned)} runs"
            missing.append(f"{study.title}, {share}: `{study.command}`")
    if probed().path.exists():
        pieces += probes()
    else:
        missing.append(f"What small models of each variant learn: `{PROBES_COMMAND}`")
    pieces += ["## Not run yet", "\n".join(f"- {each}" for each in (*missing, *TO_COME))]
    return "\n\n".join(pieces) + "\n"


def section(study: Study) -> list[str]:
    pieces = [f"## {study.title}"]
    for comparison in study.comparisons:
        (answers,) = ablation(comparison)
        pieces += [
            str(comparison.task) + ".",
            plain(*comparison.quality),
            plain(*comparison.cost),
            "\n".join(f"- {note.removeprefix('note: ')}" for note in comparison.notes),
            "### Taken apart",
            plain(answers.headings, answers.rows),
            answers.note,
            *attention(comparison),
        ]
    if study.name == "nano":  # the storybook, whose curves fall late and all at once
        pieces += plateau(study)
    whole = f"[The whole report]({REPORTS.name}/{study.name}.md) has the curves."
    return [*pieces, f"By `{study.command}`, {ran_on(study.comparisons)}. {whole}"]


def attention(comparison: Comparison) -> list[str]:
    """What the heads look at, layer by layer."""
    columns = {
        "attention entropy": ("attention_entropy", ".2f"),
        "best previous-token head": ("previous_token", ".0%"),
        "best induction head": ("induction", ".0%"),
    }
    rows = [
        (
            row.title,
            *(
                " / ".join(format(layer, form) for layer in by_layer(row.results, key)) or "–"
                for key, form in columns.values()
            ),
        )
        for row in comparison.rows
    ]
    return [
        "### What the heads look at",
        plain(("variant", *columns), rows),
        "Layer by layer, as means over the seeds: the entropy of attention, in nats; and of the layer's best head the "
        "share of its attention that goes to the token before, or to what followed an earlier copy of the present one.",
    ]


def headline(study: str) -> str:
    """A table in README.md: quality and what of Q and K is trained, of each variant of a study."""
    (comparison,) = Study(study).comparisons
    shown = ("variant", "PPL", "gap", "against")
    headings, rows = comparison.quality
    columns = [headings.index(heading) for heading in shown]
    shares = [row.query_key_share for row in comparison.rows]
    table_rows = [
        (cells[columns[0]], share, *(cells[i] for i in columns[1:])) for cells, share in zip(rows, shares, strict=True)
    ]
    return plain((shown[0], "of Q/K trained", *shown[1:]), table_rows)


def plateau(study: Study) -> list[str]:
    """When each variant leaves the plateau, at each rate and seed."""
    rates, seeds = study.arms[0].rates, study.arms[0].seeds
    headings = ["variant", *(f"{rate:g}" for rate in rates), *(f"seed {seed}" for seed in seeds)]
    rows = []
    for arm in study.arms:
        folders = planned(arm)
        if any(map(is_kept, folders)):
            rows.append([variants.title(arm.config.model_type), *map(leaves_plateau, folders)])
    return [
        "### When the curves fall",
        f"They rest on a plateau above a perplexity of {PLATEAU:g} before they fall. The step of the first validation "
        "below it: at each rate of the grid, and at the best one for the seeds that count.",
        plain(headings, rows),
    ]


def leaves_plateau(path: Path) -> str:
    if not is_kept(path):
        return "–"
    if RunFolder(path).status().get("diverged"):
        return "diverged"
    result: Result = read_result(RunFolder(path))
    return next((f"{score['step']:,}" for score in result.scores if score["ppl"] < PLATEAU), "never")


def plain(headings: Sequence[str], rows: Rows) -> str:
    return table([str(heading) for heading in headings], [[str(cell) for cell in row] for row in rows])


def ran_on(comparisons: Sequence[Comparison]) -> str:
    """The devices, the versions of PyTorch, the days and the commits of the runs."""
    results = [result for comparison in comparisons for row in comparison.rows for result in row.results]
    sessions = [session for result in results for session in result.manifest["sessions"]]
    devices = sorted({session["device"] for session in sessions})
    torch = sorted({session["versions"]["torch"] for session in sessions})
    days = sorted({session["started"][:10] for session in sessions})
    code = sorted({git["commit"][:7] for session in sessions if (git := session["git"])})
    when = " to ".join(dict.fromkeys([days[0], days[-1]]))
    return f"on {', '.join(devices)} with torch {', '.join(torch)}, {when}, at {' and '.join(code)}"


def probed() -> Probe:
    """The probes that the page shows: what PROBES_COMMAND asks for."""
    return Probe(variants=PROBED, max_steps=PROBE_STEPS, device="cpu", out=str(RESULTS / "probes"))


def probes() -> list[str]:
    options = probed()
    content = read_json(options.path, {"models": dict, "entries": [probe.ENTRY]}, "run it again")
    if content["models"] != options.shape():
        raise UserError(f"{options.path} is about other models; move it away and run: {PROBES_COMMAND}")
    machine = content["machine"]
    return [
        "## What small models learn",
        "The share of the answers that are right, on tasks that need attention; every variant at the best of the rates "
        f"{', '.join(f'{rate:g}' for rate in options.learning_rates)}.",
        plain(*probe.table(probe.scores(content, options))),
        "\n".join(f"- {note}" for note in probe.notes(content, options)),
        f"![answers right by task and variant]({REPORTS.name}/probes.png)",
        f"`{shlex.split(PROBES_COMMAND)[-1]}/probes.json`, by `{PROBES_COMMAND}`, on {machine['processor']} with torch "
        f"{machine['versions']['torch']}, {machine['date']}.",
    ]


def write() -> None:
    page = render()
    for study in studies():
        if study.comparisons:
            report(study.kept, REPORTS / f"{study.name}.md")
    if (options := probed()).path.exists():
        draw(probe.scores(read_json(options.path, {}, "run it again"), options), REPORTS / "probes.png")
    PAGE.write_text(page)
    print(PAGE)


def main() -> None:
    try:
        write()
    except UserError as error:
        print(f"experiments.page: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
