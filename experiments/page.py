"""Writes docs/results.md from the runs that are kept, and a report on each study: python -m experiments.page

The page says nothing that is not in experiments/results; what has not been run yet is listed with its command.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from benchmarks.page import Rows, table
from experiments.run import RESULTS
from oelm import variants
from oelm.analysis.compare import Comparison, compare_all
from oelm.analysis.results import Result, read_results
from oelm.probes import probe
from oelm.probes.figure import draw
from oelm.probes.options import Probe
from oelm.reporting.ablation import ablation
from oelm.reporting.report import report
from oelm.runfolder import RunFolder, find_runs, read_json

DOCS = Path(__file__).parent.parent / "docs"
PAGE, REPORTS = DOCS / "results.md", DOCS / "results"

OPENING = """# Results

Every figure here is made by `python -m experiments.page` from the run folders in `experiments/results`, which hold all
but the weights. Gaps are in perplexity, paired by seed, with intervals of 95 %; `docs/method.md` says what each number
means, and LOG.md what led nowhere.
"""

# Until a model looks names up in earlier sentences, its perplexity on the storybook stays above this.
LOOKS_BACK = 2.0

# The matrices of the study, in the order in which they are told.
STUDIES = {
    "ablation-rope": "The ablation that the study should have been, with RoPE",
    "ablation-learned": "The same with learned positions, the study's own setting",
    "search": "Leads for a variant that freezes Q and K and loses nothing: one seed, one rate, no claims",
    "nano": "The study in small: two layers of 64 channels on the built-in storybook",
}
PROBES = Probe(variants=("baseline", "oelm_v2", "oelm_v3"), max_steps=1000, device="cpu", out=str(RESULTS / "probes"))
PROBES_COMMAND = (
    "oelm probe --variants baseline oelm_v2 oelm_v3 --max-steps 1000 --device cpu --out experiments/results/probes"
)


def render() -> str:
    pieces, missing = [OPENING.strip()], []
    for name, title in STUDIES.items():
        command = f"python -m experiments.run experiments/{name}.yaml"
        if folders := kept(name):
            pieces += study(name, title, command, compare_all(folders))
            if name == "nano":
                pieces += looking_back(read_results(folders)[0])
        else:
            missing.append(f"{title}: `{command}`")
    if PROBES.path.exists():
        pieces += probes()
    else:
        missing.append(f"what small models of each variant learn: `{PROBES_COMMAND}`")
    if missing:
        pieces += ["## Not run yet", "\n".join(f"- {each}" for each in missing)]
    return "\n\n".join(pieces) + "\n"


def kept(name: str) -> list[RunFolder]:
    return find_runs([RESULTS / name]) if (RESULTS / name).exists() else []


def study(name: str, title: str, command: str, comparisons: Sequence[Comparison]) -> list[str]:
    pieces = [f"## {title}"]
    for comparison in comparisons:
        pieces += [
            str(comparison.task) + ".",
            plain(*comparison.quality),
            plain(*comparison.cost),
            "\n".join(f"- {note.removeprefix('note: ')}" for note in comparison.notes),
            *taken_apart(comparison),
        ]
    pieces.append(
        f"By `{command}`, {ran_on(comparisons)}. [The whole report]({REPORTS.name}/{name}.md) has the curves."
    )
    return pieces


def taken_apart(comparison: Comparison) -> list[str]:
    (answers,) = ablation(comparison)
    return ["### Taken apart", plain(answers.headings, answers.rows), answers.note]


def looking_back(results: Sequence[Result]) -> list[str]:
    """When each variant begins to use what came before the sentence, at each rate and seed."""
    arms: dict[str, list[Result]] = {}
    for result in sorted(results, key=lambda result: (result.config.trial, result.config.seed, result.config.max_lr)):
        arms.setdefault(result.variant, []).append(result)
    rows = []
    for variant, arm in arms.items():
        trials, counted = ([r for r in arm if r.config.trial is trial] for trial in (True, False))
        steps = [", ".join(map(onset, group)) for group in (trials, counted)]
        rows.append((variants.title(variant), *steps))
    rates = ", ".join(f"{rate:g}" for rate in sorted({r.config.max_lr for r in results if r.config.trial}))
    return [
        "### When they begin to look back",
        f"The step of the first validation below a perplexity of {LOOKS_BACK:g}: until a model looks names up in "
        "earlier sentences, it stays above.",
        plain(("variant", f"at the rates {rates}", "the seeds that count, at the best rate"), rows),
    ]


def onset(result: Result) -> str:
    return next((f"{score['step']:,}" for score in result.scores if score["ppl"] < LOOKS_BACK), "never")


def plain(headings: Sequence[str], rows: Rows) -> str:
    return table([str(heading) for heading in headings], [[str(cell) for cell in row] for row in rows])


def ran_on(comparisons: Sequence[Comparison]) -> str:
    """The devices, the versions of PyTorch and the days of the runs."""
    results = [result for comparison in comparisons for row in comparison.rows for result in row.results]
    sessions = [session for result in results for session in result.manifest["sessions"]]
    devices = sorted({session["device"] for session in sessions})
    torch = sorted({session["versions"]["torch"] for session in sessions})
    days = sorted({session["started"][:10] for session in sessions})
    return f"on {', '.join(devices)} with torch {', '.join(torch)}, {' to '.join(dict.fromkeys([days[0], days[-1]]))}"


def probes() -> list[str]:
    content = read_json(PROBES.path, {}, "run it again")
    machine = content["machine"]
    return [
        "## What small models learn",
        "The share of the answers that are right, on tasks that need attention; every variant at its best rate.",
        plain(*probe.table(probe.scores(content, PROBES))),
        f"![answers right by task and variant]({REPORTS.name}/probes.png)",
        f"`{shlex.split(PROBES_COMMAND)[-1]}/probes.json`, by `{PROBES_COMMAND}`, on {machine['processor']} with torch "
        f"{machine['versions']['torch']}, {machine['date']}.",
    ]


def main() -> None:
    PAGE.write_text(render())
    for name in STUDIES:
        if folders := kept(name):
            report(folders, REPORTS / f"{name}.md")
    if PROBES.path.exists():
        draw(probe.scores(read_json(PROBES.path, {}, "run it again"), PROBES), REPORTS / "probes.png")
    print(PAGE)


if __name__ == "__main__":
    main()
