"""`oelm watch`: on a terminal a screen that keys move about in, and that is given back; elsewhere tables that end."""

from __future__ import annotations

import json
import os
import pty
import shlex
import signal
import socket
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.folders import make_runs
from oelm.runfolder import write_json
from oelm.runs import screen, table
from oelm.runs.keyboard import Keyboard, keys_in
from oelm.runs.load import Loads
from oelm.runs.overview import Overview, Reader
from oelm.runs.watch import Watcher
from tests.conftest import needs, oelm


@pytest.fixture
def fifty(tmp_path: Path) -> Path:
    """Fifty finished runs, but for one that runs: this process, which is alive."""
    runs = make_runs(
        tmp_path / "outputs" / "GPT-01", ("baseline", "oelm_v2", "oelm_random", "oelm_matched", "normal"), 10, 10
    )
    set_status(runs[12], state="running", step=50, pid=os.getpid(), heartbeat=time.time() + 600)
    (runs[12] / "training.log").write_text("".join(f"line {i} of the log\n" for i in range(100)))
    return tmp_path / "outputs"


def set_status(path: Path, **changes: Any) -> None:
    status = json.loads((path / "status.json").read_text())
    write_json(path / "status.json", {**status, **changes})


def shown(watcher: Watcher, width: int, height: int) -> list[str]:
    lines = watcher.draw(width, height).plain.split("\n")
    assert len(lines) == height
    assert max(map(len, lines)) <= width
    return lines


@pytest.mark.parametrize(("width", "height"), [(80, 24), (160, 50), (40, 10), (200, 70)])
def test_a_screen_of_any_size_is_filled_and_not_overrun(width: int, height: int, fifty: Path) -> None:
    watcher = Watcher([fifty])
    watcher.look()
    lines = shown(watcher, width, height)
    assert "running" in lines[2] or width < 60
    assert "50 runs: 1 running" in lines[-2]
    listed = min(50, height - screen.AROUND)
    assert (f"{50 - listed} below" in lines[-1]) == (listed < 50)
    watcher.press("enter")
    assert "line 99 of the log" in shown(watcher, width, height)[-2]


def test_keys_select_sort_open_a_log_and_leave(fifty: Path) -> None:
    watcher = Watcher([fifty])
    watcher.look()
    for key in ("j", "down", "up"):
        watcher.press(key)
    second = shown(watcher, 120, 20)[3].split()[0]
    assert shown(watcher, 120, 20)[-4].endswith(second)
    watcher.press("s")
    watcher.look()
    assert "sorted by name" in shown(watcher, 120, 20)[0]
    assert shown(watcher, 120, 20)[-4].endswith(second)  # wherever it stands now
    watcher.press("end")
    assert "above" in shown(watcher, 120, 20)[-1]
    assert "below" not in shown(watcher, 120, 20)[-1]
    watcher.press("g")
    watcher.press("l")
    assert "finished: val loss" in shown(watcher, 120, 20)[1]
    watcher.press("escape")
    assert not watcher.left
    watcher.press("q")
    assert watcher.left


def test_a_log_is_scrolled_as_far_as_it_goes(fifty: Path) -> None:
    watcher = Watcher([fifty])
    watcher.look()
    watcher.press("enter")
    watcher.press("k")
    assert "line 98 of" in shown(watcher, 80, 24)[-2]
    watcher.press("home")
    assert "line 0 of" in shown(watcher, 80, 24)[1]
    watcher.press("up")
    assert "line 0 of" in shown(watcher, 80, 24)[1]
    watcher.press("j")
    assert "line 1 of" in shown(watcher, 80, 24)[1]
    watcher.press("end")
    assert "line 99 of" in shown(watcher, 80, 24)[-2]


def test_runs_may_come_and_go(tmp_path: Path) -> None:
    watcher = Watcher([tmp_path / "outputs"])
    for key in ("down", "enter", "s", "up", "end"):
        watcher.press(key)
    watcher.look()
    assert "no runs yet" in "".join(shown(watcher, 80, 24))
    make_runs(tmp_path / "outputs", ("baseline",), 3, 10)
    watcher.look()
    watcher.press("end")
    assert "3 runs" in shown(watcher, 80, 24)[-2]
    (tmp_path / "outputs").rename(tmp_path / "gone")
    watcher.look()
    assert "no runs yet" in "".join(shown(watcher, 80, 24))


def test_keys_are_told_apart() -> None:
    assert keys_in(b"jk\x1b[A\x1bOB\x1b[5~\rq\x1b") == ["j", "k", "up", "down", "page up", "enter", "q", "escape"]
    assert keys_in("é".encode()) == ["\ufffd", "\ufffd"]


def test_an_arrow_that_comes_in_pieces_is_an_arrow(monkeypatch: pytest.MonkeyPatch) -> None:
    master, slave = pty.openpty()
    with os.fdopen(slave, "r") as file, Keyboard(file) as keyboard:
        os.write(master, b"\x1b")
        pieces = iter([b"[", b"B"])
        original = keyboard._ready

        def ready(seconds: float) -> bool:
            if seconds < 0.1 and (piece := next(pieces, b"")):
                os.write(master, piece)
            return original(seconds)

        monkeypatch.setattr(keyboard, "_ready", ready)
        assert keyboard.pressed(1.0) == ["down"]
        assert keyboard.pressed(0.0) == []
    os.close(master)


def test_the_load_of_a_process_is_told_and_of_others_not() -> None:
    loads = Loads()
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    run = Overview("run", "running", device="cpu", host=socket.gethostname(), pid=busy.pid)
    assert loads.row(run, "run").load == table.NONE  # nothing to compare with yet
    time.sleep(0.3)
    assert int(loads.row(run, "run").load.removesuffix(" %")) > 10
    busy.kill()
    busy.wait()
    assert loads.row(run, "run").load == table.NONE
    for other in (
        Overview("run", "running", device="cpu", host="elsewhere", pid=os.getpid()),
        Overview("run", "finished", device="cpu", host=socket.gethostname(), pid=os.getpid()),
        Overview("run", "running", device="cpu", host=socket.gethostname(), pid=2**62),
        Overview("run", "running", device="GPU-of-nobody", host=socket.gethostname(), pid=1),
    ):
        assert loads.row(other, "run").load == table.NONE


class Nvml:
    """NVIDIA's library with one GPU."""

    class NVMLError(Exception):
        pass

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        if uuid != "GPU-known":
            raise self.NVMLError
        return uuid

    def nvmlDeviceGetIndex(self, handle: str) -> int:  # noqa: N802
        return 3

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:  # noqa: N802
        return type("Rates", (), {"gpu": 97})


def test_the_load_of_a_gpu_is_nvml_s(monkeypatch: pytest.MonkeyPatch) -> None:
    loads = Loads()
    monkeypatch.setattr(loads, "_opened", lambda: Nvml())
    for uuid, wanted in (("GPU-known", ("GPU 3", "97 %")), ("GPU-gone", ("GPU-gone", table.NONE))):
        row = loads.row(Overview("run", "running", device=uuid, host=socket.gethostname(), pid=1), "run")
        assert (row.device, row.load) == wanted


def test_without_a_terminal_it_prints_changes_until_nothing_is_left_to_watch(fifty: Path) -> None:
    program = (
        "from oelm.runs import watch\n"
        "watch.SECONDS_BETWEEN_TABLES = 0.05\n"
        "from oelm.cli import main\n"
        f"main(['watch', {str(fifty)!r}])"
    )
    command = [sys.executable, "-c", program]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    until(process.stdout, "50 runs: 1 running, 49 finished")
    set_status(fifty / "GPT-01" / "oelm_v2" / "seed-2", state="failed", message="out of memory")
    assert "GPT-01/oelm_v2/seed-2: out of memory" in until(process.stdout, "50 runs: 1 failed, 49 finished")
    assert process.wait(timeout=10) == 0


def until(lines: Iterator[str], wanted: str) -> str:
    seen = ""
    for line in lines:
        seen += line
        if wanted in line:
            return seen
    raise AssertionError(seen)


def test_without_runs_or_a_terminal_it_ends(tmp_path: Path) -> None:
    assert oelm("watch", cwd=tmp_path).stdout == "no runs yet in outputs\n"


class Terminal:
    """A terminal with `oelm watch` on it."""

    def __init__(self, place: Path) -> None:
        self.master, self._slave = pty.openpty()
        self.mode = termios.tcgetattr(self._slave)
        self.seen = b""
        termios.tcsetwinsize(self._slave, (24, 80))
        environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "30"}  # whatever somebody exported
        command = [sys.executable, "-m", "oelm", "watch", str(place)]
        files = {"stdin": self._slave, "stdout": self._slave, "stderr": self._slave}
        self.process = subprocess.Popen(command, env=environment, start_new_session=True, **files)  # type: ignore[call-overload]

    def wait_for(self, text: bytes) -> None:
        deadline = time.monotonic() + 20
        while text not in self.seen:
            assert time.monotonic() < deadline, self.seen.decode()
            self.seen += os.read(self.master, 65536)

    def close(self) -> None:
        """Holds it to having given the terminal back."""
        self.wait_for(b"\x1b[?1049l")  # the other screen
        self.wait_for(b"\x1b[?25h")  # the cursor
        assert termios.tcgetattr(self._slave) == self.mode
        os.close(self.master)
        os.close(self._slave)


LEAVE: dict[str, tuple[Callable[[Terminal], object], int]] = {
    "q": (lambda terminal: os.write(terminal.master, b"q"), 0),
    "escape": (lambda terminal: os.write(terminal.master, b"\x1b"), 0),
    "ctrl-c": (lambda terminal: terminal.process.send_signal(signal.SIGINT), 0),
    "terminated": (lambda terminal: terminal.process.send_signal(signal.SIGTERM), 143),
}


@pytest.mark.parametrize("how", LEAVE)
def test_the_terminal_is_given_back_as_it_was(how: str, fifty: Path) -> None:
    terminal = Terminal(fifty)
    terminal.wait_for(b"50 runs: 1 running, 49 finished")
    assert termios.tcgetattr(terminal.master) != terminal.mode
    leave, code = LEAVE[how]
    leave(terminal)
    assert terminal.process.wait(timeout=10) == code
    terminal.close()


def test_the_terminal_is_given_back_when_something_of_ours_breaks(fifty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from oelm.runs import watch

    master, slave = pty.openpty()
    mode = termios.tcgetattr(slave)

    def broken(reader: Reader, *outputs: Path) -> list[Overview]:
        raise ZeroDivisionError

    monkeypatch.setattr(Reader, "overviews", broken)
    monkeypatch.setattr(os, "nice", lambda more: 0)
    monkeypatch.setenv("TERM", "xterm")
    with os.fdopen(slave, "r+b", buffering=0, closefd=False) as raw, os.fdopen(slave, "r", closefd=False) as file:
        monkeypatch.setattr(sys, "stdin", file)
        monkeypatch.setattr(sys, "stdout", os.fdopen(os.dup(raw.fileno()), "w"))
        with pytest.raises(ZeroDivisionError):
            watch.watch([fifty])
        sys.stdout.close()
    assert b"\x1b[?1049l" in os.read(master, 65536)
    assert termios.tcgetattr(slave) == mode
    os.close(master)
    os.close(slave)


class Tmux:
    """A tmux of its own, as over ssh."""

    def __init__(self, folder: Path, width: int, height: int) -> None:
        self._command = ["tmux", "-S", str(folder / "socket"), "-f", "/dev/null"]
        shell = "env PS1=ready: bash --norc --noprofile"
        self("new-session", "-d", "-x", str(width), "-y", str(height), shell)

    def __call__(self, *arguments: str) -> str:
        return subprocess.run([*self._command, *arguments], capture_output=True, text=True, check=True).stdout

    def type(self, *keys: str) -> None:
        self("send-keys", *keys)

    def screen(self, wanted: str) -> list[str]:
        """What is seen, once it has some text in it."""
        deadline = time.monotonic() + 20
        while wanted not in (seen := self("capture-pane", "-p")):
            assert time.monotonic() < deadline, seen
            time.sleep(0.05)
        return seen.splitlines()


@pytest.fixture
def tmux(tmp_path: Path) -> Iterator[Tmux]:
    needs("tmux")
    session = Tmux(tmp_path, 80, 24)
    yield session
    session("kill-server")


def test_it_lives_in_tmux_and_follows_its_size(tmux: Tmux, fifty: Path) -> None:
    tmux.type(shlex.join([sys.executable, "-m", "oelm", "watch", str(fifty)]), "Enter")
    lines = tmux.screen(" 32 below")  # which is drawn last
    assert "sorted by state" in lines[0]
    assert lines[1].split() == ["run", "state", "progress", "loss", "val", "PPL", "gap", "left"]
    assert lines[2].split()[1] == "running"
    tmux("resize-window", "-x", "160", "-y", "50")
    lines = tmux.screen(" 6 below")
    assert len(lines) == 50
    assert "tokens/s" in lines[1]
    assert "100/100" in lines[10]
    tmux.type("Enter")
    assert "line 99 of the log" in tmux.screen("q back")[-2]
    tmux.type("q")
    tmux.screen(" 6 below")
    tmux("resize-window", "-x", "50", "-y", "12")
    tmux.screen(" 44 below")
    tmux.type("q")
    tmux.screen("ready:")
