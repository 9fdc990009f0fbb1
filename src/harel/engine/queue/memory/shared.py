"""One in-memory queue shared between threads and event loops: its lock, and who waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from harel.engine.queue.memory.state import MemoryQueue

__all__ = ["SharedMemoryQueue"]


class SharedMemoryQueue(MemoryQueue):
    """A :class:`MemoryQueue` with a lock and sleepers.

    Hand one to several transports, sync or async, and they serve the same queue.

    Parameters
    ----------
    clock : callable
        Returns epoch seconds.
    fresh_first : bool
        Whether groups that were never served go before those that were.
    """

    def __init__(self, clock: Callable[[], float], fresh_first: bool = True) -> None:
        super().__init__(clock, fresh_first)
        self._lock = threading.Lock()
        self._sleepers: set[Callable[[], object]] = set()

    def call(self, request: Callable[[], Any]) -> Any:
        """Carry out one request, and wake the sleepers if it may have made something claimable."""
        with self._lock:
            before = self.version
            reply = request()
            if self.version != before:
                self._wake()
            return reply

    def sleeper(self, wake: Callable[[], object], seen: int) -> bool:
        """Have ``wake`` called at the next change, unless there was one since ``seen``.

        Returns
        -------
        bool
            Whether to sleep.
        """
        with self._lock:
            if self.version != seen:
                return False
            self._sleepers.add(wake)
            return True

    def awake(self, wake: Callable[[], object]) -> None:
        """Forget a sleeper."""
        with self._lock:
            self._sleepers.discard(wake)

    def wake_all(self) -> None:
        """End every sleep now."""
        with self._lock:
            self._wake()

    def _wake(self) -> None:
        for wake in self._sleepers:
            wake()
