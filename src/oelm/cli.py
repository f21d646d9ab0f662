"""The command line: one function per verb, no logic."""

from __future__ import annotations

import functools
import inspect
import io
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro
from tyro.conf import OmitArgPrefixes, Positional

from oelm import __version__
from oelm.analysis.stats import CRITERION
from oelm.arguments import OUTPUTS, Experiments, InfoFlags, Places, RunExperiments, RunFlags, Runs, parsed, run_config
from oelm.bench.options import Bench
from oelm.endings import explain, heeding_sigterm
from oelm.errors import RunFailedError, UserError, known
from oelm.output import UntilGone
from oelm.probes.options import Probe
from oelm.sampling import Sampling


def prepare(
    name: Annotated[str, Positional, tyro.conf.arg(metavar="NAME")],
    source: Annotated[tuple[str, ...] | None, tyro.conf.arg(metavar="PATH [PATH ...]")] = None,
    data_dir: str = "data",
    val_fraction: float | None = None,
    test_fraction: float | None = None,
    max_tokens: int | None = None,
    vocab_size: int | None = None,
    text_field: str = "text",
    overwrite: bool = False,
) -> None:
    """Turn text into tokens: data/NAME with train.bin, val.bin, test.bin and meta.json.

    NAME is storybook (built in), tinystories, openwebtext or wikitext103 (from the Hugging Face hub); or any name you
    like, with --source for your own text. Which split a document goes to depends on its content alone.

    Args:
        name: The corpus.
        source: Files or folders of your own: .txt (documents separated by lines with <|endoftext|>), .jsonl or
            .parquet, plain or compressed as .xz, .gz or .zst.
        data_dir: Where prepared corpora are kept.
        val_fraction: Share of the documents held out for validation. None: 0.02 (hub corpora 0.01, openwebtext 0.001).
        test_fraction: Share of the documents held out for the final test. None: as val_fraction's default.
        max_tokens: Stop before the document that would exceed this many tokens in all.
        vocab_size: Learn a vocabulary of so many tokens from the first documents, for small models, most of whose
            weights and work GPT-2's would be. None: GPT-2's 50,257 (storybook: 1,024 of its own).
        text_field: The field of .jsonl or the column of .parquet that holds the text.
        overwrite: Replace a corpus of this name that was prepared otherwise.
    """
    from oelm.api import prepare as run

    if source == ():
        raise UserError("--source names no file or folder")
    folder = run(
        name,
        source or (),
        data_dir=data_dir,
        val_fraction=val_fraction,
        test_fraction=test_fraction,
        max_tokens=max_tokens,
        vocab_size=vocab_size,
        text_field=text_field,
        overwrite=overwrite,
    )
    from oelm.info import corpus_line

    print(corpus_line(folder))


def train(arguments: list[str]) -> None:
    _, config = run_config(RunFlags, arguments, "oelm train")
    from oelm import terminal
    from oelm.training.loop import fit

    fit(config, terminal.observer(), command=["oelm", "train", *arguments])


def info(arguments: list[str]) -> None:
    flags, config = run_config(InfoFlags, arguments, "oelm info")
    from oelm.info import show

    show(config, as_json=flags.json)


def run(arguments: list[str]) -> None:
    """Runs experiments; in the background, what is wrong with them is said before."""
    flags = parsed(RunExperiments, arguments, "oelm run")
    from oelm.runs import run as experiments
    from oelm.runs.devices import Slots

    outputs = Path(flags.out_dir)
    where = experiments.places(flags.gpus, flags.gpus_per_run, flags.slots, outputs)
    experiments.check_numbers(flags.retries, flags.wait)
    on_cpu = isinstance(where, Slots)
    arms = experiments.planned(flags.experiments, flags.set, flags.seeds, outputs, Path(flags.data_dir), on_cpu)
    if flags.detach:
        experiments.detach([each for each in arguments if each not in ("--detach", "--no-detach")], outputs)
    else:
        experiments.work(arms, where, outputs, flags.retries, flags.wait)


def stop(
    experiments: Experiments,
    out_dir: str = OUTPUTS,
    seconds: float = 120.0,
) -> None:
    """Stop experiments, matrices or single runs: what runs saves and ends, what waits is not started.

    Args:
        experiments: Names below the outputs, run folders, or all.
        out_dir: Where the run folders are.
        seconds: How long to wait for the runs to end.
    """
    from oelm.runs.stop import stop as run

    run(experiments, Path(out_dir), seconds)


def sample(runs: Runs, sampling: OmitArgPrefixes[Sampling]) -> None:
    """Generate text from one run, or from several side by side.

    Args:
        runs: Run folders, or folders with run folders below them.
    """
    from oelm import terminal
    from oelm.runfolder import find_runs
    from oelm.sampling import sample as run

    folders = find_runs(runs)
    texts = [run(folder, sampling) for folder in folders]
    terminal.side_by_side([str(folder.path) for folder in folders], texts)


def compare(runs: Runs, criterion: float = CRITERION, baseline: str = "baseline", all: bool = False) -> None:
    """Compare finished runs with the baseline among them; refuses runs that were not given the same task.

    Args:
        runs: Run folders, or folders with run folders below them.
        criterion: Largest perplexity that counts as a success, as a multiple of the baseline's.
        baseline: The variant that the others are held against, by name or spec.
        all: Compare everything that is finished there (no RUN: in outputs), each task by itself.
    """
    from oelm import terminal
    from oelm.analysis.compare import Measure, compare_all
    from oelm.analysis.compare import compare as run
    from oelm.runfolder import find_runs

    measure = Measure(criterion, baseline)
    if all:
        terminal.show(*compare_all(find_runs(runs or (OUTPUTS,)), measure))
    else:
        terminal.show(run(find_runs(runs), measure))


def report(
    runs: Annotated[tuple[str, ...], Positional, tyro.conf.arg(metavar="[RUN [RUN ...]]")] = (OUTPUTS,),
    out: str | None = None,
    criterion: float = CRITERION,
    baseline: str = "baseline",
    lang: str = "en",
) -> None:
    """Write down what runs say, for people: one HTML page, a PDF, and Markdown with its figures.

    Finished runs are judged, each task by itself; the others are listed with the reason.

    Args:
        runs: Run folders, or folders with run folders below them.
        out: Folder for report.html, report.pdf and report.md; or one file ending in .html, .pdf or .md.
            None: report, in the runs' common folder.
        criterion: Largest perplexity that counts as a success, as a multiple of the baseline's.
        baseline: The variant that the others are held against, by name or spec.
        lang: en (English) or zh (Chinese).
    """
    from oelm.analysis.compare import Measure
    from oelm.reporting.report import report as run
    from oelm.runfolder import find_runs

    written = run(find_runs(runs), out, Measure(criterion, baseline), lang)
    print(written)
    for note in written.notes:
        print(f"oelm: {note}", file=sys.stderr)


def list_experiments(out_dir: str = OUTPUTS) -> None:
    """List the study's seven experiments, and whatever else was run, with their state and results.

    PPL is the mean over the finished runs; the gap is to the baseline with the same seed and settings. The study's own
    PPL is the best one it saw on the way, of one run, and on a corpus that may not be yours.

    Args:
        out_dir: Where the run folders are.
    """
    from oelm import terminal
    from oelm.runs import listing

    terminal.show_table(listing.HEADINGS, listing.rows(Path(out_dir)))


def status(folders: Places = (), json: bool = False) -> None:
    """Say how runs stand: state, step, loss, validation perplexity, gap to the baseline at the same step, time left.

    Args:
        folders: Folders with run folders below them.
        json: Print JSON with everything that is known instead of a table.
    """
    from oelm.runs import status as run

    run.show(run.existing(folders, OUTPUTS), as_json=json)


def watch(folders: Places = ()) -> None:
    """Watch runs live, refreshed every two seconds; without a terminal, a table whenever something has changed.

    Keys: arrows or j and k select a run, Enter or l opens its log, s sorts by something else, q leaves. Without a
    terminal it ends when nothing is running or waiting any more.

    Args:
        folders: Folders with run folders below them.
    """
    from oelm.runs.status import existing
    from oelm.runs.watch import watch as run

    run(existing(folders, OUTPUTS))


def log(
    run: Annotated[str, Positional, tyro.conf.arg(metavar="RUN")],
    follow: Annotated[bool, tyro.conf.arg(aliases=["-f"])] = False,
    lines: Annotated[int, tyro.conf.arg(aliases=["-n"])] = 20,
) -> None:
    """Show the end of a run's log, and the traceback of one that failed.

    Args:
        run: A run folder; or a name, such as GPT-04, of which there are runs in outputs.
        follow: Go on showing what is written, until Ctrl-C; the run may be yet to begin.
        lines: How many lines of what was written before.
    """
    from oelm.runs import log as logs

    logs.show(logs.find(run, OUTPUTS, follow), lines, follow)


def audit(runs: Runs) -> None:
    """Prove that frozen matrices stayed frozen: compare their bytes when frozen, in every checkpoint and at the end.

    Args:
        runs: Run folders, or folders with run folders below them.
    """
    from oelm import terminal
    from oelm.runfolder import find_runs
    from oelm.training.audit import findings, frozen_now

    changed = [
        str(folder.path)
        for folder in find_runs(runs)
        if not terminal.show_audit(str(folder.path), findings(folder), frozen_now(folder))
    ]
    if changed:
        raise RunFailedError(f"NOT frozen: {', '.join(changed)}")


def bench(measurement: OmitArgPrefixes[Bench]) -> None:
    """Measure training steps: ours, and nanoGPT's and Hugging Face Trainer's beside them, in interleaved rounds.

    First it proves that all compute the same loss on one batch. The result file says what it was measured on.
    """
    from oelm import terminal
    from oelm.bench import bench as benchmark

    result = benchmark.bench(measurement, say=print)
    terminal.show_table(benchmark.HEADINGS, benchmark.cells(result))
    print(f"kept in {measurement.path}")


def probe(probing: OmitArgPrefixes[Probe]) -> None:
    """Train small models of some variants on synthetic tasks, and say which of them learn what.

    recall: the value that a key had before; induction: what came next the last time; hops: two steps along a chain that
    was told out of order; memory: facts that nothing in the text tells. Each variant is judged at its best learning
    rate, chosen on other exercises. A blind guess, the dotted lines of the figure, is any possible answer at random;
    what stands in the sequence narrows it down, so a little more can be had without looking anything up.
    """
    from oelm import terminal
    from oelm.probes import probe as probes
    from oelm.probes.figure import draw

    content = probes.probe(probing, say=lambda line: print(line, flush=True))
    found = probes.scores(content, probing)
    terminal.show_table(*probes.table(found))
    for note in probes.notes(content, probing):
        print(f"note: {note}")
    print(f"kept in {probing.path}; {draw(found, probing.path.with_suffix('.png'))}")


def demo(data_dir: str = "data", out_dir: str = "outputs/demo") -> None:
    """Train four small variants on the built-in corpus and compare them: a few minutes on two cores.

    Args:
        data_dir: Where prepared corpora are kept.
        out_dir: Where the run folders, the plot and the report go.
    """
    from oelm.demo import demo as run

    run(data_dir, out_dir)


def _by_signature(verb: Callable[..., None], name: str = "") -> Callable[[list[str]], None]:
    # One line for what is said of each argument, whose breaks tyro would keep.
    verb.__doc__ = inspect.cleandoc(verb.__doc__ or "").replace("\n" + 8 * " ", " ")

    @functools.wraps(verb)
    def call(*values: Any, **named: Any) -> Callable[[], None]:
        return functools.partial(verb, *values, **named)

    return lambda arguments: parsed(call, arguments, f"oelm {name or verb.__name__}")()


VERBS: dict[str, tuple[Callable[[list[str]], None], str]] = {
    "demo": (_by_signature(demo), "train four small variants and compare them, from nothing, in minutes"),
    "prepare": (_by_signature(prepare), "turn text into tokens: built-in, from the hub, or your own"),
    "info": (info, "say what a run would be: parameters, FLOPs, memory, what freezing saves"),
    "train": (train, "train one run, or go on with it"),
    "run": (run, "run experiments unattended: the study's, or a matrix of your own"),
    "stop": (_by_signature(stop), "stop what runs and what waits"),
    "list": (_by_signature(list_experiments, "list"), "list the experiments with their state and results"),
    "compare": (_by_signature(compare), "set finished runs beside their baseline"),
    "report": (_by_signature(report), "write it all down: an HTML page, a PDF, and Markdown"),
    "sample": (_by_signature(sample), "generate text from runs, side by side"),
    "status": (_by_signature(status), "say how runs stand"),
    "watch": (_by_signature(watch), "watch runs live"),
    "log": (_by_signature(log), "show what a run has said, and follow it"),
    "audit": (_by_signature(audit), "prove that frozen matrices stayed frozen"),
    "probe": (_by_signature(probe), "train small models on tasks that need attention, and compare variants"),
    "bench": (_by_signature(bench), "measure training steps beside nanoGPT's and Hugging Face's"),
}

HELP = """usage: oelm VERB [OPTIONS]

What it costs, and what it saves, to freeze a transformer's Query and Key projections.

{verbs}

  oelm VERB --help   says what a verb takes
  oelm --version     prints the version
  --debug            anywhere: show the traceback of an error"""


def main(argv: Sequence[str] | None = None) -> None:
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that cannot show a sign is no reason to fail
            stream.reconfigure(errors="replace")
    try:
        with heeding_sigterm():
            code = _run(arguments, debug)
    finally:
        UntilGone(sys.stdout).flush()  # what is left unsaid is known by now; Python's own end would say it again
    sys.exit(code)


def _run(arguments: list[str], debug: bool) -> int:
    """Runs a verb; an error becomes one line and an exit code."""
    try:
        code = _dispatch(arguments)
        print(end="", flush=True)  # while a full disk or a reader who has left can still be judged
        return code
    except BaseException as error:
        if debug:
            traceback.print_exc()
        return explain(error)


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(HELP.format(verbs="\n".join(f"  {name:<9} {line}" for name, (_, line) in VERBS.items())))
        return 0 if arguments else 2
    if arguments[0] == "--version":
        print(f"oelm {__version__}")
        return 0
    verb, _ = VERBS[known("verb", arguments[0], VERBS)]
    verb(arguments[1:])
    return 0
