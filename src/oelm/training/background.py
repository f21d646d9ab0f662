"""Files written behind the loop's back: it hands over a snapshot and trains on while the disk works."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

Tensors = dict[str, Tensor]


class Background:
    """One thread that writes snapshots in the order in which they were handed over, at most one waiting."""

    def __init__(self, device: torch.device) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="oelm-writer")
        self._pending: Future[None] | None = None
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def write(self, tensors: Mapping[str, Mapping[str, Tensor]], job: Callable[[dict[str, Tensors]], object]) -> None:
        """Calls job with the tensors as they are now, on the CPU; not before the job before it has ended.

        Where that one failed, this is raised, but not before this one has been done: as much as possible is saved.
        """
        before = self._pending
        error = before.exception() if before is not None else None
        snapshot = {kind: {name: t.detach().clone() for name, t in some.items()} for kind, some in tensors.items()}
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream())
        self._pending = self._pool.submit(self._run, snapshot, job)
        if error is not None:
            self.wait()
            raise error

    def check(self) -> None:
        """Raises what went wrong, if something has by now."""
        if self._pending is not None and self._pending.done():
            self.wait()

    def wait(self) -> None:
        """Returns when everything is written; raises what went wrong."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        """Ends the thread after its work; what went wrong with it is for `wait` to say."""
        self._pool.shutdown()

    def _run(self, snapshot: dict[str, Tensors], job: Callable[[dict[str, Tensors]], object]) -> None:
        if self._stream is not None:
            with torch.cuda.stream(self._stream):  # beside the training, not in its queue
                snapshot = {kind: {name: t.cpu() for name, t in some.items()} for kind, some in snapshot.items()}
        job(snapshot)
