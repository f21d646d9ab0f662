"""Writes docs/performance.md and its plot from the result files: python -m benchmarks.page

The page says nothing that is not in benchmarks/results; what has not been measured yet is listed with its command.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import performance
from benchmarks.results import RESULTS
from oelm.bench.bench import HEADINGS, cells, floor_ms, ratio
from oelm.bench.options import Bench

DOCS = Path(__file__).parent.parent / "docs"
PAGE, PLOT = DOCS / "performance.md", DOCS / "step-time.png"
Rows = Sequence[Sequence[str]]
SIZES = ("8x512", "64x512")

OPENING = """# Performance

Every figure here is made from a result file by `python -m benchmarks.page`; each section names the file, the command
that measured it and the commit of the code. Times are medians of interleaved rounds in one process, forwards in one
round and backwards in the next; ratios are medians over pairs of such rounds. The floor is computed by
`oelm.model.cost.floor` from the model's shape and from two rates of the device that were measured in the same process:
the products at the rate of a large one (8192³ in bf16 on a GPU, 1024³ in fp32 on a CPU), and then, without any overlap,
the bytes that no cache can hold (AdamW's, and the logits'). What was tried and did not help is in LOG.md.
"""


def table(headings: Sequence[str], rows: Rows) -> str:
    lines = [headings, ["---", *["---:"] * (len(headings) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def source(name: str, command: str, result: dict[str, Any]) -> str:
    machine = result["machine"]
    device = f"one {machine['gpu']}" if machine.get("gpu") else machine["processor"]
    place = f"{device} with torch {machine['versions']['torch']}"
    return f"`benchmarks/results/{name}`, by `{command}`, on {place}, {machine['date']}{commit(machine['git'])}."


def commit(git: dict[str, Any] | None) -> str:
    if git is None:
        return ""
    return f", at commit {git['commit'][:7]}{' with changes' if git['changed'] else ''}"


def read(name: str) -> dict[str, Any] | None:
    path = RESULTS / name
    return json.loads(path.read_text()) if path.exists() else None


def command_of(part: str) -> str:
    return f"python -m benchmarks.performance DATA --nanogpt CHECKOUT --parts {part}"


def main_section() -> str:
    parts = [
        "## A training step",
        "medium-512 in bf16. “Of the saving” is what a variant saves, as a share of what its floor says it could: the "
        "median over the pairs of rounds, and their range.",
    ]
    for size in SIZES:
        for part in ("main", "freezing"):
            name = f"performance/{part}-{size}.json"
            if result := read(name):
                headings = [heading or size.replace("x", " × ") for heading in HEADINGS]
                parts += [table(headings, cells(result)), against_peers(result, size)]
                parts += [source(name, command_of(part), result), outdated(part, size)]
    return "\n\n".join(filter(None, parts))


def outdated(part: str, name: str) -> str:
    """What is to be said of a result that the command would not give today."""
    if name not in to_be_measured(part):
        return ""
    return (
        "**To be measured again**: the command now measures with other options, for reasons that LOG.md gives; until "
        "then, these figures are leads."
    )


def to_be_measured(part: str) -> list[str]:
    """The points of a part that were not measured yet, or with other options than they would be now."""
    points = performance.points(Bench(nanogpt="CHECKOUT", huggingface=True))[part]
    paths = {name: RESULTS / "performance" / f"{part}-{name}.json" for name in points}
    return [name for name, point in points.items() if not performance.is_measured(paths[name], point)]


def against_peers(result: dict[str, Any], size: str) -> str:
    """In words, what the table says of the peers."""
    first, *others = result["contenders"]
    peers = [entry for entry in others if "oelm" not in entry["name"]]
    if not peers:
        return ""
    ratios = [
        f"{ratio(peer, first):.2f} × as long as ours in {peer['name']}{alone(peer, first, size)}" for peer in peers
    ]
    return (
        f"On the tokens of `{result['options']['data_path']}`, a step takes {' and '.join(ratios)}. They launch their "
        "kernels one by one, so where a step is short their time is the host's as well (here: "
        f"{result['machine']['processor']}), and whatever else its process holds may count. Beside the biases of norms "
        "and feed-forward layers they train attention's, which our model has not. The same weights on the same batch "
        f"gave, in fp32, the losses {same(result['same_loss'])}."
    )


def alone(peer: dict[str, Any], first: dict[str, Any], size: str) -> str:
    """How long its step takes in a process of its own."""
    for path in (RESULTS / "performance").glob(f"alone-{size}-*.json"):
        (entry,) = json.loads(path.read_text())["contenders"]
        if entry["name"] == peer["name"]:
            return f" ({entry['ms'] / first['ms']:.2f} × in a process of its own: {entry['ms']:.3f} ms)"
    return " (in a process of its own: not measured yet)"


def same(losses: dict[str, float]) -> str:
    return ", ".join(f"{loss:.6f} ({name})" for name, loss in losses.items())


def deterministic_section(result: dict[str, Any]) -> str:
    times = {name: 1000 * statistics.median(seconds) for name, seconds in result["median_step_seconds"].items()}
    words = ", ".join(f"{name} {ms:.2f} ms" for name, ms in times.items())
    resumed = {
        True: "A run that was resumed from its middle ended with the same bytes.",
        False: "A run that was resumed from its middle did NOT end with the same bytes.",
        None: "That a resumed run ends with the same bytes has not been shown yet.",
    }[result.get("resume_same_bytes")]
    again = "**To be measured again**: the command now measures the graph engine."
    return "\n\n".join(
        [
            "## With `--deterministic`",
            f"{result['shape']}: a step takes {result['cost_ratio']:.2f} × as long ({words}). {resumed}",
            *([] if result["shape"].endswith("graph") else [again]),
        ]
    )


def first_step_section(result: dict[str, Any]) -> str:
    seconds, medians = result["seconds"], result["median_seconds"]
    rows = [
        (kind, f"{medians[kind]:.1f} s", f"{min(seconds[kind]):.1f}–{max(seconds[kind]):.1f}", str(len(seconds[kind])))
        for kind in ("cold", "warm")
    ]
    return "\n\n".join(
        [
            "## The first step",
            "From the start of the command to the loss of step 1, with empty compile caches and with full ones.",
            table(("compile caches", "median", "range", "starts"), rows),
        ]
    )


def end_to_end_section(result: dict[str, Any]) -> str:
    parts = result["timing_stats"]["seconds_by_part"]
    rows = [(name, f"{seconds:.1f} s", f"{seconds / result['wall_seconds']:.1%}") for name, seconds in parts.items()]
    rows.append(("from the command to its end", f"{result['wall_seconds']:.1f} s", ""))
    validations = result["timing_stats"]["num_validations"]
    opening = (
        f"{result['steps']:,} steps of {result['shape']}, with {validations} validations: as many of both as GPT-01 "
        "has, but with recipe fair. The study's own has dropout and fp16, which needs the engine compile, and scores "
        "the whole validation set each time."
    )
    return "\n\n".join(["## As many steps as GPT-01, from end to end", opening, table(("part", "time", "share"), rows)])


def ablation_section(result: dict[str, Any]) -> str:
    steps = result["steps"]

    def cell(size: str, name: str) -> str:
        entry = steps[size][name]
        return f"{entry['ms']:.3f} ms ({ratio(entry, steps[size]['everything']):.2f} ×)"

    rows = [(name, *(cell(size, name) for size in steps)) for name in steps[SIZES[0]]]
    opening = "The baseline's step without one technique at a time, PyTorch's own means in its place."
    headings = ("", *(size.replace("x", " × ") for size in steps))
    return "\n\n".join(["## What each technique brings", opening, table(headings, rows)])


def cpu_section(result: dict[str, Any]) -> str:
    headings = [heading or "16 × 128" for heading in HEADINGS]
    opening = "The nano model with learned positions, in fp32, both eager and on one thread."
    return "\n\n".join(["## On a CPU", opening, table(headings, cells(result))])


CPU_COMMAND = (
    "OMP_NUM_THREADS=1 oelm bench --preset nano --positions learned --batch_size 16 --nanogpt CHECKOUT --device cpu "
    "--rounds 40 --out benchmarks/results/cpu.json"
)

SECTIONS: dict[str, tuple[str, Callable[[dict[str, Any]], str]]] = {
    "first_step.json": ("python -m benchmarks.first_step DATA", first_step_section),
    "end_to_end.json": ("python -m benchmarks.end_to_end DATA", end_to_end_section),
    "ablation.json": ("python -m benchmarks.ablation DATA", ablation_section),
    "deterministic.json": ("python -m benchmarks.deterministic DATA", deterministic_section),
    "cpu.json": (CPU_COMMAND, cpu_section),
}

# With which a result was made, where it may be others than the command has by itself.
FLAGS: dict[str, Callable[[dict[str, Any]], str]] = {
    "first_step.json": lambda result: f" --rounds {len(result['seconds']['cold'])}",
    "deterministic.json": lambda result: (
        f" --steps {result['steps']} --rounds {len(result['median_step_seconds']['plain'])}"
    ),
}

SWEEPS = {
    "corrected": (
        "What a correction costs",
        "Batches of 8 × 512 with RoPE, six layers of several widths: oelm_v3 beside the baseline that has its shift, "
        "oelm_slices beside the one that has its vectors.",
    ),
    "engines": ("The engines", "The same model and batch by each engine."),
    "batches": ("Batch size", "Step time against batch size, at 512 tokens a sequence."),
    "lengths": (
        "Sequence length",
        "16,384 tokens a step in sequences of several lengths: where freezing begins to pay.",
    ),
    "widths": ("Width", "Batches of 8 × 512 in models of several widths, six layers each."),
}


def sweep(part: str) -> dict[int, dict[str, Any]]:
    """The results of a part of benchmarks.performance by the number that varies."""
    found = {}
    for measured in ("main", "batches") if part == "batches" else (part,):  # two of the batches are those of main
        for path in (RESULTS / "performance").glob(f"{measured}-*.json"):
            name = path.stem.removeprefix(f"{measured}-")
            if name not in to_be_measured(measured):
                found[int(name.split("x")[0])] = json.loads(path.read_text())
    return dict(sorted(found.items()))


def sweep_section(part: str, points: dict[int, dict[str, Any]]) -> str:
    title, opening = SWEEPS[part]
    names = [entry["name"] for entry in next(iter(points.values()))["contenders"]]
    rows = []
    for value, result in points.items():
        first, by_name = result["contenders"][0], {entry["name"]: entry for entry in result["contenders"]}
        times = [f"{by_name[name]['ms']:.2f} ({ratio(by_name[name], first):.3f} ×)" for name in names]
        rows.append((f"{value:,}", *times, f"{floor_ms(result, first):.2f}"))
    pieces = [f"## {title}", opening, table((title, *(f"{name}, ms" for name in names), "floor, ms"), rows)]
    if part == "batches":
        pieces.append(f"![step time against batch size]({PLOT.name})")
    sources = {source(f"performance/{part}-*.json", command_of(part), result) for result in points.values()}
    return "\n\n".join([*pieces, *sorted(sources)])


def render() -> str:
    pieces, missing = [OPENING.strip(), main_section()], []
    for part in performance.points(Bench()):
        if absent := to_be_measured(part):
            missing.append(f"{part}, at {', '.join(absent)}: `{command_of(part)}`")
    for name, (command, section) in SECTIONS.items():
        if result := read(name):
            flags = FLAGS[name](result) if name in FLAGS else ""
            pieces += [section(result), source(name, command + flags, result)]
        else:
            missing.append(f"`{name}`: `{command}`")
    for part in SWEEPS:
        if measured := sweep(part):
            pieces.append(sweep_section(part, measured))
    if missing:
        pieces += ["## Not measured yet", "\n".join(f"- {each}" for each in missing)]
    return "\n\n".join(pieces) + "\n"


def draw(points: dict[int, dict[str, Any]]) -> None:
    """Step time against batch size, and the floor below."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    names = [entry["name"] for entry in next(iter(points.values()))["contenders"]]
    for i, name in enumerate(names):
        axes.plot(list(points), [result["contenders"][i]["ms"] for result in points.values()], "o-", label=name)
    floors = [floor_ms(result, result["contenders"][0]) for result in points.values()]
    axes.plot(list(points), floors, "k--", label="floor")
    axes.set(xscale="log", yscale="log", xlabel="sequences of 512 tokens per step", ylabel="ms per step")
    axes.set_xticks(list(points), [str(value) for value in points])
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(PLOT, dpi=120)


def main() -> None:
    PAGE.write_text(render())
    if points := sweep("batches"):
        draw(points)
    print(PAGE)


if __name__ == "__main__":
    main()
