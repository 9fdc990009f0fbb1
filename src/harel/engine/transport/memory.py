"""The in-memory queue for sync code."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from harel.engine.queue.face import Face, SyncFace
from harel.engine.queue.memory.ops import MemoryOps
from harel.engine.queue.memory.shared import SharedMemoryQueue
from harel.engine.queue.op import Sleep

__all__ = ["InMemoryTransport", "MemoryBase"]


class MemoryBase(Face):
    """How both twins are made.

    Parameters
    ----------
    queue : SharedMemoryQueue, optional
        A queue to share with other transports of this process; a new one unless given.
    clock : callable, optional
        Returns epoch seconds; ``None`` is the machine's clock. For a new queue.
    fresh_first : bool
        Whether groups that were never served go before those that were. For a new queue.
    """

    def __init__(
        self,
        queue: SharedMemoryQueue | None = None,
        *,
        clock: Callable[[], float] | None = None,
        fresh_first: bool = True,
    ) -> None:
        self._shared = queue or SharedMemoryQueue(clock or time.time, fresh_first)
        super().__init__(MemoryOps(self._shared))


class InMemoryTransport(MemoryBase, SyncFace):
    """A queue in this process's memory: for tests, and for work that need not outlive the process.

    See :class:`MemoryBase` for the parameters.
    """

    def _send(self, request: Any) -> Any:
        if isinstance(request, Sleep):
            return self._sleep(request)
        return self._shared.call(request)

    def _sleep(self, request: Sleep) -> float:
        began = time.monotonic()
        woken = threading.Event()
        if self._shared.sleeper(woken.set, request.seen):
            try:
                woken.wait(request.seconds)
            finally:
                self._shared.awake(woken.set)
        return time.monotonic() - began

    def _shut(self) -> None:
        self._shared.wake_all()
