"""Writes docs/performance.md and its plot from the result files: python -m benchmarks.page

The page says nothing that is not in benchmarks/results; what has not been measured yet is listed with its command.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.results import RESULTS
from oelm.bench.bench import HEADINGS, cells

DOCS = Path(__file__).parent.parent / "docs"
PAGE, PLOT = DOCS / "performance.md", DOCS / "step-time.png"
Rows = Sequence[Sequence[str]]

OPENING = """# Performance

Every figure here is made from a result file by `python -m benchmarks.page`; each section names the file and the command
that measured it. Times are medians of interleaved rounds in one process, forwards in one round and backwards in the
next. The floor is computed by `oelm.model.cost.floor` from the model's shape and from the two rates of the device that
were measured in the same process: the products at the rate of an 8192³ bf16 product, and then, without any overlap, the
bytes that no cache can hold (AdamW's, and the logits'). What was tried and did not help is in LOG.md.
"""


def table(headings: Sequence[str], rows: Rows) -> str:
    lines = [headings, ["---", *["---:"] * (len(headings) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def source(name: str, command: str, result: dict[str, Any]) -> str:
    machine = result["machine"]
    device = f"one {machine['gpu']}" if machine["gpu"] else machine["processor"]
    torch = machine["versions"]["torch"]
    return f"`benchmarks/results/{name}`, by `{command}`, on {device} with torch {torch}, {machine['date']}."


def read(name: str) -> dict[str, Any] | None:
    path = RESULTS / name
    return json.loads(path.read_text()) if path.exists() else None


def main_section() -> str:
    parts = ["## A training step", "medium-512 in bf16 on the tokens of a real text."]
    for size in ("8x512", "64x512"):
        name = f"performance/main-{size}.json"
        if result := read(name):
            command = "python -m benchmarks.performance DATA --nanogpt CHECKOUT --parts main"
            headings = [heading or size.replace("x", " × ") for heading in HEADINGS]
            parts += [table(headings, cells(result)), against_peers(result), source(name, command, result)]
    return "\n\n".join(parts)


def against_peers(result: dict[str, Any]) -> str:
    """In words, what the table says of the peers and of freezing."""
    first, *others = result["contenders"]
    ratios = [
        f"{e['ms'] / first['ms']:.2f} × as long as ours in {e['name']}" for e in others if "oelm" not in e["name"]
    ]
    losses = result.get("same_loss", {})
    words = ""
    if ratios:
        words = f"A step takes {' and '.join(ratios)}. They launch their kernels one by one, so where a step is short "
        words += f"their time is the host's as well (here: {result['machine']['processor']}). "
    if losses:
        words += f"The same weights on the same batch gave, in fp32, the losses {same(losses)}. "
    return words + "“Of the saving” is what a variant saves, as a share of what its floor says it could."


def same(losses: dict[str, float]) -> str:
    return ", ".join(f"{loss:.6f} ({name})" for name, loss in losses.items())


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
    opening = f"{result['steps']:,} steps at 8 × 512, with {result['timing_stats']['num_validations']} validations."
    return "\n\n".join(["## GPT-01 from end to end", opening, table(("part", "time", "share"), rows)])


def ablation_section(result: dict[str, Any]) -> str:
    sizes = list(result["steps"])
    whole = {size: result["steps"][size]["everything"]["ms"] for size in sizes}
    rows = [
        (
            name,
            *(
                f"{result['steps'][s][name]['ms']:.3f} ms ({result['steps'][s][name]['ms'] / whole[s]:.2f} ×)"
                for s in sizes
            ),
        )
        for name in result["steps"][sizes[0]]
    ]
    opening = "The baseline's step without one technique at a time, PyTorch's own means in its place."
    return "\n\n".join(
        ["## What each technique brings", opening, table(("", *(s.replace("x", " × ") for s in sizes)), rows)]
    )


def cpu_section(result: dict[str, Any]) -> str:
    headings = [heading or "16 × 128" for heading in HEADINGS]
    opening = "The nano model with learned positions, in fp32, both eager and on one thread."
    return "\n\n".join(["## On a CPU", opening, table(headings, cells(result))])


CPU_COMMAND = (
    "OMP_NUM_THREADS=1 oelm bench --preset nano --positions learned --batch_size 16 --nanogpt CHECKOUT --device cpu "
    "--rounds 15 --out benchmarks/results/cpu.json"
)

SECTIONS: dict[str, tuple[str, Callable[[dict[str, Any]], str]]] = {
    "first_step.json": ("python -m benchmarks.first_step DATA", first_step_section),
    "end_to_end.json": ("python -m benchmarks.end_to_end DATA", end_to_end_section),
    "ablation.json": ("python -m benchmarks.ablation DATA", ablation_section),
    "cpu.json": (CPU_COMMAND, cpu_section),
}

SWEEPS = {
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
    for path in (RESULTS / "performance").glob(f"{part}-*.json"):
        found[int(path.stem.removeprefix(f"{part}-").split("x")[0])] = json.loads(path.read_text())
    return dict(sorted(found.items()))


def sweep_section(part: str, points: dict[int, dict[str, Any]]) -> str:
    title, opening = SWEEPS[part]
    names = [entry["name"] for entry in next(iter(points.values()))["contenders"]]
    rows = []
    for value, result in points.items():
        by_name = {entry["name"]: entry["ms"] for entry in result["contenders"]}
        first = result["contenders"][0]
        times = [f"{by_name[name]:.2f} ({by_name[name] / first['ms']:.3f} ×)" for name in names]
        rows.append((f"{value:,}", *times, f"{first['floor_ms']:.2f}"))
    pieces = [f"## {title}", opening, table((title, *(f"{name}, ms" for name in names), "floor, ms"), rows)]
    if part == "batches":
        pieces.append(f"![step time against batch size]({PLOT.name})")
    command = f"python -m benchmarks.performance DATA --nanogpt CHECKOUT --parts {part}"
    return "\n\n".join([*pieces, source(f"performance/{part}-*.json", command, next(iter(points.values())))])


def render() -> str:
    pieces, missing = [OPENING.strip(), main_section()], []
    for size in ("8x512", "64x512"):
        if read(f"performance/main-{size}.json") is None:
            missing.append(
                f"a step at {size.replace('x', ' × ')}: `python -m benchmarks.performance DATA --parts main`"
            )
    for name, (command, section) in SECTIONS.items():
        if result := read(name):
            pieces += [section(result), source(name, command, result)]
        else:
            missing.append(f"`{name}`: `{command}`")
    for part in SWEEPS:
        if points := sweep(part):
            pieces.append(sweep_section(part, points))
        else:
            missing.append(f"{SWEEPS[part][0].lower()}: `python -m benchmarks.performance DATA --parts {part}`")
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
    floors = [result["contenders"][0]["floor_ms"] for result in points.values()]
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
