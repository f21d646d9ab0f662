"""Places are free, held, or somebody else's; and a hold lasts as long as the process that has it."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from oelm.errors import UserError
from oelm.runs import devices
from oelm.runs.devices import Gpus, Place, Slots
from oelm.runs.run import places
from tests.runs.nvml import Gpu, Machine


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    there = Machine([Gpu(f"GPU-{uuid.uuid4()}") for _ in range(3)])
    monkeypatch.setattr(devices, "_nvml", lambda: there)
    return there


def taken(where: Gpus) -> Place:
    place = where.take()
    assert place is not None
    return place


def test_each_run_gets_a_gpu_of_its_own(machine: Machine) -> None:
    one, other = Gpus((0, 1, 2)), Gpus((0, 1, 2))  # two queues
    held = [taken(one), taken(other), taken(one)]
    assert [place.name for place in held] == ["GPU 0", "GPU 1", "GPU 2"]
    assert [place.environment["CUDA_VISIBLE_DEVICES"] for place in held] == [gpu.uuid for gpu in machine.gpus]
    assert one.take() is None
    assert one.occupied_by() == "GPU 0: another run of OELM; GPU 1: another run of OELM; GPU 2: another run of OELM"
    held[1].let_go()
    assert taken(one).name == "GPU 1"


def test_a_hold_lasts_as_long_as_the_process_that_has_it(machine: Machine) -> None:
    place = taken(Gpus((0,)))
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=place.locks)
    place.let_go()
    assert Gpus((0,)).take() is None
    process.communicate(b"\n")
    taken(Gpus((0,))).let_go()


def test_a_gpu_that_somebody_uses_is_left_alone_and_it_is_said_who(machine: Machine) -> None:
    machine.gpus[0].pids, machine.gpus[0].used = [os.getpid()], 40 * 2**30
    machine.gpus[1].used = 3 * 2**30
    machine.gpus[2].lost = True
    where = Gpus((0, 1, 2))
    assert where.take() is None
    first, second, third = where.occupied_by().split("; ")
    assert first.startswith("GPU 0: ")
    assert f"(pid {os.getpid()}, " in first
    assert first.endswith("40.0 GiB")
    assert second == "GPU 1: 3.0 GiB used by an unseen process"
    assert third == "GPU 2: does not answer (GPU is lost)"
    machine.gpus[0].pids = []
    machine.gpus[0].used = 0
    taken(where).let_go()


def test_a_run_may_need_several_gpus_and_holds_none_until_it_has_all(machine: Machine) -> None:
    machine.gpus[0].pids = [2**22 + 1]  # gone already, but NVML may be late
    pair = taken(Gpus((0, 1, 2), per_run=2))
    assert (pair.name, pair.processes, len(pair.locks)) == ("GPUs 1, 2", 2, 2)
    pair.let_go()
    machine.gpus[2].lost = True
    assert Gpus((0, 1, 2), per_run=2).take() is None
    taken(Gpus((1,))).let_go()


def test_slots_share_the_cores_whichever_queue_has_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    one, other = Slots(2, tmp_path), Slots(2, tmp_path)
    first, second = one.take(), other.take()
    assert first is not None
    assert second is not None
    assert one.take() is None
    assert first.environment == {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // 2))}
    elsewhere = Slots(1, tmp_path / "other").take()
    assert elsewhere is not None
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=first.locks)
    for place in (first, elsewhere):
        place.let_go()
    assert other.take() is None  # the process of its run holds it, whatever becomes of its queue
    process.communicate(b"\n")
    again = other.take()
    assert again is not None
    assert again.name == "slot 0"
    for place in (second, again):
        place.let_go()


def test_what_is_asked_for_must_be_there(machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert places(None, 1, None, tmp_path) == Gpus((0, 1, 2))
    assert places("2,0", 2, None, tmp_path) == Gpus((2, 0), 2)
    assert places(None, 1, 4, tmp_path) == Slots(4, tmp_path)
    for gpus, per_run, slots, message in (
        ("3", 1, None, "this machine has the GPUs 0 to 2"),
        ("0,x", 1, None, "must be numbers of GPUs"),
        ("1,1", 1, None, "must be numbers of GPUs"),
        ("0", 2, None, "--gpus-per-run 2 must lie between 1 and the 1 GPU"),
        ("0", 1, 1, "--slots is for the CPU"),
        (None, 1, 0, "--slots 0 must lie between"),
    ):
        with pytest.raises(UserError, match=message):
            places(gpus, per_run, slots, tmp_path)
    for words, found in (("1,2", (1, 2)), (machine.gpus[2].uuid, (2,))):  # what a scheduler has assigned
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", words)
        assert places(None, 1, None, tmp_path) == Gpus(found)
        assert places("0", 1, None, tmp_path) == Gpus((0,))
    for words in ("", "3", "GPU-elsewhere"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", words)
        with pytest.raises(UserError, match="names no GPU that is there"):
            places(None, 1, None, tmp_path)
    monkeypatch.setattr(devices, "_nvml", lambda: None)
    assert places(None, 1, None, tmp_path) == Slots(1, tmp_path)
    with pytest.raises(UserError, match="NVML finds no GPU"):
        places("0", 1, None, tmp_path)
