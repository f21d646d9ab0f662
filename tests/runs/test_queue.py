"""The queue: every run is done once, whoever is killed; what fails is named and holds up nothing else."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oelm.config import RunConfig
from oelm.runfolder import RunFolder, find_runs
from oelm.runs import attempts, devices, queue, standing
from oelm.runs.devices import Gpus, Places, Slots
from oelm.runs.matrix import Arm, read_matrix
from oelm.runs.queue import Queue
from oelm.runs.standing import Standing
from tests.conftest import needs, oelm
from tests.runs.nvml import Gpu, Machine

Tiny = Callable[..., RunConfig]
SETTINGS = """settings:
  d_model: 16
  seq_len: 16
  num_layers: 1
  batch_size: 4
  val_tokens: 512
  log_interval: 1
  save_interval: 5
"""


@pytest.fixture
def matrix(tmp_path: Path, storybook: Path) -> Callable[..., Path]:
    """A matrix file in tmp_path, over the storybook that lies in tmp_path/data."""
    (tmp_path / "data").symlink_to(storybook.parent)

    def write(head: str, steps: int = 10, **more: Any) -> Path:
        lines = "".join(f"  {name}: {value}\n" for name, value in {"max_steps": steps, **more}.items())
        path = tmp_path / "m.yaml"
        path.write_text(f"{head}\n{SETTINGS}{lines}")
        return path

    return write


@pytest.fixture
def planned(tmp_path: Path, matrix: Callable[..., Path]) -> Callable[..., list[Arm]]:
    def arms(head: str, **more: Any) -> list[Arm]:
        path = matrix(head, device="cpu", **more)
        return read_matrix(path, tmp_path / "outputs", tmp_path / "data")

    return arms


def started(tmp_path: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "oelm", "run", "m.yaml", *arguments],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
    )


def until(true: Callable[[], object], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


def step_of(path: Path) -> int:
    try:
        return int(json.loads((path / "status.json").read_text())["step"])
    except (OSError, ValueError):
        return -1


def starts(path: Path) -> int:
    return (path / "attempts.jsonl").read_text().count('"start"')


def test_an_arm_finds_its_rate_first_and_its_runs_say_so(tmp_path: Path, matrix: Callable[..., Path]) -> None:
    matrix("variants: oelm_v2\nlearning_rates: [1e-4, 1e-2]\ntuning: {steps: 6}")
    result = oelm("run", "m.yaml", "--slots", "2", cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    (run,) = find_runs([tmp_path / "outputs/m/oelm_v2"])
    said = run.manifest()["learning_rate"]
    assert (said["value"], said["grid"], said["budget_steps"]) == (1e-2, [1e-4, 1e-2], 12)
    assert "m/oelm_v2: the best learning rate is 0.01" in result.stdout
    assert re.search(r"m/oelm_v2/seed-0: finished: PPL \d", result.stdout)
    again = oelm("run", "m.yaml", cwd=tmp_path)
    assert again.returncode == 0
    assert "started" not in again.stdout
    assert "3 runs are finished" in again.stdout
    for folder in find_runs([tmp_path / "outputs"]):
        assert starts(folder.path) == 1
    other = oelm("run", "m.yaml", "--set", "max_steps=9", cwd=tmp_path)
    assert other.returncode == 2
    assert "holds another run (max_steps: 10 there, 9 now" in other.stderr


def test_queues_share_the_work_and_may_be_killed(tmp_path: Path, matrix: Callable[..., Path]) -> None:
    """Two queues on one folder; one is killed while its run goes on, the other sees to the rest."""
    matrix("variants: baseline\nseeds: 3", steps=200)
    runs = [tmp_path / f"outputs/m/baseline/seed-{seed}" for seed in range(3)]
    one = started(tmp_path, "--slots", "1")
    until(lambda: step_of(runs[0]) > 0)
    other = started(tmp_path, "--slots", "1")
    one.kill()
    said, _ = other.communicate(timeout=180)
    assert other.returncode == 0, said
    assert "m/baseline/seed-0: started" not in said
    assert "m/baseline/seed-0: finished" in said
    for path in runs:
        assert starts(path) == 1
        assert len(RunFolder(path).manifest()["sessions"]) == 1


def test_what_one_queue_was_told_to_stop_another_goes_on_with(tmp_path: Path, matrix: Callable[..., Path]) -> None:
    matrix("variants: baseline", steps=3000)
    path = tmp_path / "outputs/m/baseline/seed-0"
    other = started(tmp_path, "--slots", "1")
    one = None
    try:
        until(lambda: step_of(path) > 0)
        one = other
        other = started(tmp_path, "--slots", "1")
        until(lambda: len(list((tmp_path / "outputs/.queues").glob("*.json"))) == 2)
        one.send_signal(signal.SIGTERM)
        one.communicate(timeout=60)
        said, _ = other.communicate(timeout=120)
    finally:
        for process in (one, other):
            if process is not None:
                process.kill()
    assert other.returncode == 0, said
    assert "m/baseline/seed-0: finished" in said
    assert starts(path) == 2


def test_a_run_that_has_just_stopped_is_left_to_its_queue_until_that_has_said_why(tmp_path: Path, tiny: Tiny) -> None:
    config = tiny(out_dir=str(tmp_path / "outputs/run"))
    folder = RunFolder(config.run_folder)
    folder.path.mkdir(parents=True)
    status = {"state": "interrupted", "heartbeat": time.time(), "host": "here", "pid": 1, "message": "by SIGTERM"}
    (folder.path / "status.json").write_text(json.dumps(status))
    (folder.path / "manifest.json").write_text("{}")

    def state() -> str:
        return standing.standing(config, tmp_path / "outputs", time.time() + 1, retries=0).state

    attempts.began(folder, "slot 0")
    assert state() == "elsewhere"
    attempts.ended(folder, 143, "stopped by SIGTERM")
    assert state() == "stopped"
    attempts.began(folder, "slot 0")
    attempts.ended(folder, 143, "stopped by SIGTERM", stopping=True)
    lines = (folder.path / attempts.ATTEMPTS).read_text().splitlines(keepends=True)
    (folder.path / attempts.ATTEMPTS).write_text("".join(lines[2:]))
    assert state() == "ready"


def test_queues_share_the_tries(tmp_path: Path) -> None:
    """Those that a queue at work has made before another began count for both; those of a dead one do not."""
    folder = RunFolder(tmp_path)
    attempts.began(folder, "slot 0")
    attempts.ended(folder, 1, "it burns")
    later = time.time() + 1
    assert len(attempts.attempts(folder, later)) == 2
    lines = (tmp_path / attempts.ATTEMPTS).read_text().replace(f'"queue": {os.getpid()}', f'"queue": {2**22 + 1}')
    (tmp_path / attempts.ATTEMPTS).write_text(lines)
    assert attempts.attempts(folder, later) == []
    assert len(attempts.attempts(folder, 0)) == 2


def test_a_run_that_is_killed_is_resumed_and_the_queues_end_stops_it_first(
    tmp_path: Path, matrix: Callable[..., Path]
) -> None:
    matrix("variants: baseline", steps=3000)
    path = tmp_path / "outputs/m/baseline/seed-0"
    queue_process = started(tmp_path, "--slots", "1")
    until(lambda: step_of(path) > 10)
    os.kill(RunFolder(path).status()["pid"], signal.SIGKILL)
    until(lambda: starts(path) == 2)
    until(lambda: RunFolder(path).status()["state"] == "running")
    queue_process.send_signal(signal.SIGINT)
    said, _ = queue_process.communicate(timeout=60)
    assert queue_process.returncode == 130, said
    assert "killed by SIGKILL from outside" in said
    assert "stopping: 1 runs save first" in said
    assert RunFolder(path).status()["state"] == "interrupted"
    assert (path / "checkpoints" / f"step-{step_of(path)}").exists()
    resumed = RunFolder(path).manifest()["sessions"][1]["first_step"]
    assert resumed > 0
    assert resumed % 5 == 0


def test_stop_ends_what_runs_and_what_waits_of_a_detached_queue(tmp_path: Path, matrix: Callable[..., Path]) -> None:
    matrix("variants: baseline\nseeds: 2", steps=100_000)
    detached = oelm("run", "m.yaml", "--slots", "1", "--detach", cwd=tmp_path)
    assert detached.returncode == 0, detached.stderr
    pid, log = re.findall(r"process (\d+); it writes to (\S+)", detached.stdout)[0]
    until(lambda: step_of(tmp_path / "outputs/m/baseline/seed-0") > 0)
    assert os.getsid(int(pid)) == int(pid)  # a session of its own, which no login takes along
    stopped = oelm("stop", "m", cwd=tmp_path)
    assert stopped.returncode == 0, stopped.stderr
    assert re.search(r"m/baseline/seed-0: interrupted at step [\d,]+\n", stopped.stdout)
    assert "1 waiting run will not be started" in stopped.stdout
    until(lambda: "0 runs are finished" in (tmp_path / log).read_text())
    assert not (tmp_path / "outputs/m/baseline/seed-1/manifest.json").exists()
    assert not list((tmp_path / "outputs/.queues").glob("*.json"))
    nothing = oelm("stop", "elsewhere", cwd=tmp_path)
    assert nothing.returncode == 2
    assert "elsewhere is neither an experiment below outputs" in nothing.stderr


def run_with(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the queue start a small program in the place of training; it finds the run's folder in sys.argv[1]."""
    monkeypatch.setattr(queue, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(queue, "command", lambda plan, processes: [sys.executable, "-c", program, str(plan.parent)])


def work(arms: list[Arm], where: Places, tmp_path: Path, **options: Any) -> tuple[dict[str, Standing], list[str]]:
    """How the runs of some arms end, by folder, and what the queue says."""
    said: list[str] = []
    ended = Queue(arms, where, tmp_path / "outputs", say=said.append, **options).run()
    return {str(path.relative_to(tmp_path / "outputs/m")): stands for path, stands in ended.items()}, said


@pytest.mark.parametrize(
    ("program", "tries", "cause"),
    [
        ("import sys; print('Traceback'); print('CudaError: it burns'); sys.exit(1)", 3, "CudaError: it burns"),
        ("import sys; print('oelm: the disk is full'); sys.exit(2)", 1, "the disk is full"),
        ("import os; os.abort()", 3, "killed by SIGABRT from outside"),
        ("import sys; sys.exit(7)", 3, "exit code 7, without a word"),
    ],
)
def test_what_fails_is_tried_as_often_as_it_makes_sense_and_left_with_its_cause(
    program: str,
    tries: int,
    cause: str,
    tmp_path: Path,
    planned: Callable[..., list[Arm]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run_with(program, monkeypatch)
    ended, said = work(planned("variants: baseline\nseeds: 2"), Slots(2, tmp_path), tmp_path, retries=2)
    assert ended == {f"baseline/seed-{seed}": Standing("failed", cause) for seed in (0, 1)}
    for seed in (0, 1):
        assert starts(tmp_path / f"outputs/m/baseline/seed-{seed}") == tries
        assert f"m/baseline/seed-{seed}: failed: {cause}" in said


def test_a_broken_folder_holds_up_nothing_else(tmp_path: Path, planned: Callable[..., list[Arm]]) -> None:
    broken = tmp_path / "outputs/m/baseline/seed-0"
    broken.mkdir(parents=True)
    (broken / "manifest.json").write_text('{"format": 99}')
    (broken / "status.json").write_text("{")
    ended, _ = work(planned("variants: baseline\nseeds: 2", steps=3), Slots(1, tmp_path), tmp_path)
    assert ended["baseline/seed-0"].state == "failed"
    assert "status.json is damaged" in ended["baseline/seed-0"].message
    assert ended["baseline/seed-1"].state == "finished"


def test_without_all_of_its_trials_an_arm_gets_no_rate(
    tmp_path: Path, planned: Callable[..., list[Arm]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_with("import sys; sys.exit(2)", monkeypatch)
    ended, _ = work(planned("variants: baseline\nlearning_rates: [1e-4, 1e-2]"), Slots(2, tmp_path), tmp_path)
    assert ended["baseline"] == Standing("failed", "no learning rate: m/tuning/baseline/lr-0.0001 failed")
    assert not (tmp_path / "outputs/m/baseline/seed-0").exists()


SAY_WHERE = """
import json, os, sys, time
json.dump(os.environ["CUDA_VISIBLE_DEVICES"], open(sys.argv[1] + "/where.json", "w"))
sys.exit(2)
"""


def test_a_gpu_is_waited_for_and_one_that_vanishes_is_not_used_again(
    tmp_path: Path, planned: Callable[..., list[Arm]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_with(SAY_WHERE, monkeypatch)
    machine = Machine([Gpu(f"GPU-{uuid.uuid4()}", lost=True), Gpu(f"GPU-{uuid.uuid4()}", [os.getpid()], 9 * 2**30)])
    monkeypatch.setattr(devices, "_nvml", lambda: machine)
    looks = 0

    def look(gpu: int, real: Callable[[int], tuple[str, str]] = devices.look_at) -> tuple[str, str]:
        nonlocal looks
        looks += 1
        if looks > 24:  # after more than a second somebody else's work ends
            machine.gpus[1].pids, machine.gpus[1].used = [], 0
        return real(gpu)

    monkeypatch.setattr(devices, "look_at", look)
    _, said = work(planned("variants: baseline"), Gpus((0, 1)), tmp_path)
    assert said[0].startswith("waiting for GPU 0: does not answer (GPU is lost); GPU 1: ")
    (start,) = [line for line in said if "started on" in line]
    assert re.search(r"started on GPU 1, after waiting \d+s for GPU 0: does not answer .*9.0 GiB", start)
    where = json.loads((tmp_path / "outputs/m/baseline/seed-0/where.json").read_text())
    assert where == machine.gpus[1].uuid


def test_patience_has_an_end_where_it_was_given_one(
    tmp_path: Path, planned: Callable[..., list[Arm]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_with(SAY_WHERE, monkeypatch)
    monkeypatch.setattr(devices, "_nvml", lambda: Machine([Gpu("GPU-x", used=9 * 2**30)]))
    ended, _ = work(planned("variants: baseline"), Gpus((0,)), tmp_path, patience=0.3)
    assert ended["baseline/seed-0"].state == "stopped"
    assert "no place came free in time: GPU 0: 9.0 GiB used by an unseen process" in ended["baseline/seed-0"].message


def test_several_gpus_are_one_run_by_torchrun() -> None:
    plan = Path("outputs/m/plan.yaml")
    assert queue.command(plan, 1)[1:] == ["-m", "oelm", "train", "--config", str(plan)]
    assert queue.command(plan, 2)[1:5] == ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]


def run_on_a_small_disk(tmp_path: Path, limits: str, flags: str) -> subprocess.CompletedProcess[str]:
    """A queue whose outputs are on a disk of their own."""
    needs("tmpfs")
    (tmp_path / "outputs").mkdir()
    program = (
        f"mount -t tmpfs -o {limits} tmpfs {tmp_path}/outputs && cd {tmp_path} && "
        f"exec {sys.executable} -m oelm run m.yaml --slots 1 {flags}"
    )
    return subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "bash", "-c", program],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def test_a_full_disk_ends_a_run_with_its_cause(tmp_path: Path, matrix: Callable[..., Path]) -> None:
    matrix("variants: baseline")
    result = run_on_a_small_disk(tmp_path, "size=100k", "")
    assert result.returncode == 1, result.stdout + result.stderr
    assert re.search(r"m/baseline/seed-0: failed: no space left on the disk", result.stdout)


def test_what_was_begun_goes_on_with_as_many_threads(tmp_path: Path, tiny: Tiny) -> None:
    from oelm.training.loop import fit

    folder = fit(tiny(max_steps=2, warmup_steps=1))
    manifest = folder.manifest()
    manifest["sessions"][0]["cpu_threads"] = 5
    (folder.path / "manifest.json").write_text(json.dumps(manifest))
    assert queue.same_threads(folder) == {"OMP_NUM_THREADS": "5"}
    assert queue.same_threads(RunFolder(tmp_path / "new")) == {}


def test_stop_marks_of_before_are_no_concern_of_a_later_queue(tmp_path: Path) -> None:
    run = tmp_path / "outputs/m/baseline/seed-0"
    run.mkdir(parents=True)
    (tmp_path / "outputs/m" / standing.STOP).touch()
    assert standing.asked_to_stop(run, tmp_path / "outputs", since=time.time() - 60)
    assert not standing.asked_to_stop(run, tmp_path / "outputs", since=time.time() + 60)
    assert not standing.asked_to_stop(tmp_path / "outputs/other", tmp_path / "outputs", since=0)


def test_an_arm_that_still_looks_for_its_rate_can_be_stopped(tmp_path: Path, matrix: Callable[..., Path]) -> None:
    matrix("variants: [baseline, oelm_v2]\nlearning_rates: [1e-4, 1e-2]\ntuning: {steps: 100000}", steps=20)
    trial = tmp_path / "outputs/m/tuning/baseline/lr-0.0001"
    process = started(tmp_path, "--slots", "1")
    try:
        until(lambda: step_of(trial) > 0)
        stopped = oelm("stop", "m/baseline", cwd=tmp_path)
        assert stopped.returncode == 0, stopped.stderr
        assert "1 waiting run will not be started" in stopped.stdout
        assert RunFolder(trial).status()["state"] == "interrupted"
        until(lambda: step_of(tmp_path / "outputs/m/tuning/oelm_v2/lr-0.0001") > 0)
        assert not (tmp_path / "outputs/m/tuning/baseline/lr-0.01/manifest.json").exists()
    finally:
        oelm("stop", "all", cwd=tmp_path)
        process.communicate(timeout=60)


def test_a_tracker_that_is_not_installed_is_said_before_anything_starts(
    tmp_path: Path, matrix: Callable[..., Path]
) -> None:
    matrix("variants: baseline", track="trackio")
    result = oelm("run", "m.yaml", "--slots", "1", cwd=tmp_path)
    assert result.returncode == 2
    assert "pip install trackio" in result.stderr
    assert not (tmp_path / "outputs/m").exists()


def test_a_detached_queue_that_cannot_live_is_said(tmp_path: Path, matrix: Callable[..., Path]) -> None:
    matrix("variants: baseline")
    result = run_on_a_small_disk(tmp_path, "size=4k,nr_inodes=3", "--detach")
    assert result.returncode != 0, result.stdout
    assert "detached as process" not in result.stdout
    assert "Traceback" not in result.stderr
