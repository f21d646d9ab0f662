"""Overviews: what a folder says of its run, from the ends of its files; what makes no sense is named, and no more."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.folders import make_runs
from oelm.config import RunConfig
from oelm.runfolder import DEAD_AFTER_SECONDS, RunFolder, line_at, write_json
from oelm.runs.overview import Overview, Reader, overviews
from oelm.runs.waiting import Notice, Waiting
from oelm.training.loop import fit
from tests.conftest import flags_of, oelm

Tiny = Callable[..., RunConfig]


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    """A baseline and a variant, each with two seeds."""
    return make_runs(tmp_path / "outputs", ("baseline", "oelm_v2"), 2, 200)


def of(path: Path) -> Overview:
    (found,) = overviews(path)
    return found


def set_status(path: Path, **changes: Any) -> None:
    status = json.loads((path / "status.json").read_text())
    write_json(path / "status.json", {**status, **changes})


def keep_lines(path: Path, count: int) -> None:
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:count]))


def test_a_finished_run_says_what_its_files_say(tiny: Tiny) -> None:
    folder = fit(tiny(model_type="oelm_v2"))
    final, metrics = folder.final_eval(), folder.last_metrics()
    assert final is not None
    assert metrics is not None
    run = of(folder.path)
    assert (run.state, run.step, run.max_steps, run.model_type, run.seed) == ("finished", 20, 20, "oelm_v2", 0)
    assert (run.loss, run.val_loss, run.val_step) == (metrics["loss"], final["loss"], 20)
    assert run.best_loss == min(score["loss"] for score in folder.scores() if not score["final"])
    assert (run.device, run.gap, run.seconds_left, run.message) == ("cpu", None, None, "")


def test_the_best_is_known_where_the_lines_do_not_say_it(runs: list[Path]) -> None:
    folder = RunFolder(runs[0])
    best = min(score["loss"] for score in folder.scores() if not score["final"])
    lines = [{name: value for name, value in score.items() if name != "best_loss"} for score in folder.scores()]
    folder.evals.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert of(runs[0]).best_loss == best


def test_the_gap_is_to_the_baseline_of_the_same_seed_at_the_same_step(runs: list[Path]) -> None:
    by_path = {run.path: run for run in overviews(runs[0].parents[1])}
    baseline, variant = RunFolder(runs[1]), RunFolder(runs[3])
    finals = [folder.scores()[-1]["loss"] for folder in (variant, baseline)]
    assert by_path[str(runs[3])].gap == pytest.approx(finals[0] - finals[1])
    assert by_path[str(runs[1])].gap is None
    keep_lines(variant.evals, 2)  # as it was after 1,000 steps
    set_status(variant.path, state="interrupted")
    on_the_way = [folder.scores()[1]["loss"] for folder in (variant, baseline)]
    (found,) = (run for run in overviews(runs[0].parents[1]) if run.path == str(runs[3]))
    assert found.val_step == 1000
    assert found.gap == pytest.approx(on_the_way[0] - on_the_way[1])


def test_of_several_baselines_the_best_counts_and_without_one_there_is_no_gap(tmp_path: Path) -> None:
    (variant,) = make_runs(tmp_path, ("oelm_v2",), 1, 200)
    assert of(variant).gap is None
    baselines = [make_runs(tmp_path / name, ("baseline",), 1, 200)[0] for name in ("a", "b")]
    score = RunFolder(baselines[1]).scores()[-1]
    better = {**score, "loss": score["loss"] - 0.5}
    with (baselines[1] / "evals.jsonl").open("a") as file:
        file.write(json.dumps(better) + "\n")
    (found,) = (run for run in overviews(tmp_path) if run.path == str(variant))
    assert found.gap == pytest.approx(RunFolder(variant).scores()[-1]["loss"] - better["loss"])
    for baseline in baselines:
        shutil.rmtree(baseline)
    assert of(variant).gap is None


def test_a_run_with_other_settings_is_no_baseline(tmp_path: Path) -> None:
    make_runs(tmp_path / "short", ("baseline",), 1, 100)
    make_runs(tmp_path / "long", ("oelm_v2",), 1, 200)
    assert [run.gap for run in overviews(tmp_path)] == [None, None]


def test_a_line_is_found_by_its_step_in_a_file_of_any_length(tmp_path: Path) -> None:
    path = tmp_path / "evals.jsonl"
    assert line_at(path, 1) is None
    for count in (0, 1, 2, 1000):
        path.write_text("".join(json.dumps({"step": 3 * i, "padding": "x" * (i % 400)}) + "\n" for i in range(count)))
        with path.open("a") as file:
            file.write('{"step": 3')
        for i in range(0, count, 7):
            assert (line_at(path, 3 * i) or {}).get("step") == 3 * i
            assert line_at(path, 3 * i + 1) is None
        assert line_at(path, 3 * count) is None


def damage_torn_manifest(path: Path) -> None:
    (path / "manifest.json").write_text((path / "manifest.json").read_text()[:100])


def damage_newer_format(path: Path) -> None:
    manifest = json.loads((path / "manifest.json").read_text())
    write_json(path / "manifest.json", {**manifest, "format": 99})


def damage_foreign_manifest(path: Path) -> None:
    (path / "manifest.json").write_text('{"name": "My extension", "manifest_version": 3}')


def damage_unknown_field(path: Path) -> None:
    with (path / "config.yaml").open("a") as file:
        file.write("\nwidth: 3\n")


def damage_line(path: Path) -> None:
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5000, "loss": "low"}\n')


def damage_status(path: Path) -> None:
    set_status(path, state="sleeping")


def damage_another_s_config(path: Path) -> None:
    shutil.copy(path.parents[1] / "baseline" / "seed-1" / "config.yaml", path)


def damage_binary(path: Path) -> None:
    (path / "config.yaml").write_bytes(b"\x00\xff" * 50)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (damage_torn_manifest, "manifest.json is damaged"),
        (damage_newer_format, "has format 99; this version reads 2"),
        (damage_foreign_manifest, "manifest.json is damaged: format is missing"),
        (damage_unknown_field, "unknown field 'width'"),
        (damage_line, "metrics.jsonl, last line is damaged: loss should be of type float"),
        (damage_status, "unknown state 'sleeping'"),
        (damage_another_s_config, "are not of one run"),
        (damage_binary, "is not readable YAML"),
        (lambda path: (path / "config.yaml").unlink(), "it has no config.yaml"),
        (lambda path: (path / "status.json").write_text("[]"), "status.json is damaged"),
    ],
)
def test_what_makes_no_sense_is_unreadable_with_the_reason_and_stops_nothing_else(
    damage: Callable[[Path], object], reason: str, runs: list[Path]
) -> None:
    damage(runs[0])
    found = overviews(runs[0].parents[1])
    assert [run.state for run in found] == ["unreadable", "finished", "finished", "finished"]
    assert reason in found[0].message
    assert "\n" not in found[0].message
    assert [run.gap is None for run in found] == [True, True, True, False]  # seed 0 has lost its baseline


def test_status_names_what_is_unreadable_below_the_table(runs: list[Path]) -> None:
    damage_torn_manifest(runs[0])
    set_status(runs[1], state="failed", message="out of memory")
    result = oelm("status", str(runs[0].parents[1]))
    assert result.returncode == 0
    headings, *rows, empty, unreadable, failed, counts = result.stdout.splitlines()
    assert headings.split() == "run state step loss val PPL best gap tokens/s left device".split()
    assert [row.split()[:2] for row in rows[:2]] == [["baseline/seed-0", "unreadable"], ["baseline/seed-1", "failed"]]
    assert empty == ""
    assert re.match(r"baseline/seed-0: .*/manifest\.json is damaged", unreadable)
    assert failed == "baseline/seed-1: out of memory"
    assert counts == "4 runs: 1 failed, 1 unreadable, 2 finished"


def test_status_of_nothing(tmp_path: Path) -> None:
    assert oelm("status", cwd=tmp_path).stdout == "no runs yet in outputs\n"
    assert oelm("status", "nowhere", cwd=tmp_path).stderr == "oelm: nowhere: no such folder\n"


def test_a_torn_last_line_is_no_damage(runs: list[Path]) -> None:
    before = of(runs[0])
    for name in ("metrics.jsonl", "evals.jsonl"):
        with (runs[0] / name).open("a") as file:
            file.write('{"step": 99')
    assert of(runs[0]) == before


def test_a_message_cannot_move_the_cursor(runs: list[Path]) -> None:
    set_status(runs[0], state="failed", message="one\ntwo \x1b[2J three")
    assert of(runs[0]).message == "one two [2J three"


def test_a_killed_run_is_dead_at_once_and_never_running(tiny: Tiny) -> None:
    config = tiny(max_steps=100_000, log_interval=1)
    process = subprocess.Popen([sys.executable, "-m", "oelm", "train", *flags_of(config)], stdout=subprocess.DEVNULL)
    while not RunFolder(config.run_folder).metrics.exists():
        assert process.poll() is None
        time.sleep(0.01)
    run = of(config.run_folder)
    assert (run.state, run.pid) == ("running", process.pid)
    assert run.seconds_left is not None
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert of(config.run_folder).state == "dead"
    assert of(config.run_folder).seconds_left is None


def test_a_run_elsewhere_is_dead_when_its_heart_has_stopped(runs: list[Path]) -> None:
    set_status(runs[0], state="running", host="elsewhere", heartbeat=time.time() - DEAD_AFTER_SECONDS + 10)
    assert of(runs[0]).state == "running"
    set_status(runs[0], heartbeat=time.time() - DEAD_AFTER_SECONDS - 1)
    assert of(runs[0]).state == "dead"


def test_a_run_that_lays_out_its_folder_is_starting(runs: list[Path]) -> None:
    (runs[0] / "status.json").unlink()
    assert of(runs[0]).state == "starting"
    long_ago = time.time() - DEAD_AFTER_SECONDS - 1
    os.utime(runs[0] / "manifest.json", (long_ago, long_ago))
    assert of(runs[0]).state == "dead"


def test_what_queues_have_yet_to_start_is_waiting(runs: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = runs[0].parents[1]
    monkeypatch.chdir(outputs.parent)
    set_status(runs[1], state="failed", message="out of memory")
    notice = Notice(outputs)
    why = "waiting for a free GPU"
    expected = ["outputs/baseline/seed-1", "outputs/baseline/seed-2", str(runs[0])]
    notice.write([Waiting(run, "baseline", 2, 10, why) for run in expected])
    states = {run.path: (run.state, run.message) for run in overviews(Path("outputs"))}
    assert states["outputs/baseline/seed-0"][0] == "finished"
    assert states["outputs/baseline/seed-1"] == ("waiting", why)
    assert states["outputs/baseline/seed-2"] == ("waiting", why)
    assert len(overviews(Path("outputs/oelm_v2"))) == 2
    assert len(overviews(Path("outputs/baseline"))) == 3
    notice.remove()
    assert {run.state for run in overviews(Path("outputs"))} == {"finished", "failed"}


def test_a_reader_sees_what_has_changed_and_reads_nothing_else(
    runs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, outputs = Reader(), runs[0].parents[1]
    before = reader.overviews(outputs)
    reads: list[Path] = []
    original = RunFolder.identified

    def identified(self: RunFolder) -> tuple[RunConfig, dict[str, Any]]:
        reads.append(self.path)
        return original(self)

    monkeypatch.setattr(RunFolder, "identified", identified)
    assert reader.overviews(outputs) == before
    assert reads == []
    keep_lines(runs[2] / "metrics.jsonl", 10)
    after = reader.overviews(outputs)
    assert after[2].loss != before[2].loss
    damage_unknown_field(runs[0])
    assert reader.overviews(outputs)[0].state == "unreadable"


def test_status_as_json_has_every_field_and_is_json(runs: list[Path]) -> None:
    with (runs[0] / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5000, "loss": NaN, "step_time": 1.0, "tokens_per_second": Infinity}\n')
    result = oelm("status", str(runs[0].parents[1]), "--json")

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    content = json.loads(result.stdout, parse_constant=refuse)
    assert len(content) == 4
    assert content[0].keys() == {*Overview.__dataclass_fields__, "val_ppl", "best_ppl"}
    assert (content[0]["state"], content[0]["loss"]) == ("unreadable", None)
    assert content[1]["host"] == socket.gethostname()


def test_status_does_not_wait_for_pytorch(runs: list[Path]) -> None:
    program = (
        "import atexit, sys\n"
        "atexit.register(lambda: print(*sys.modules))\n"
        "from oelm.cli import main\n"
        f"main(['status', {str(runs[0].parents[1])!r}])"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    *table, modules = said.splitlines()
    assert table[-1] == "4 runs: 4 finished"
    assert not {"torch", "scipy", "matplotlib", "pynvml", "tensorboard", "pyarrow"} & set(modules.split())
