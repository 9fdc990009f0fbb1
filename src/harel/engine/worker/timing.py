"""A worker's own time: what it waits with. A test puts another in its place, and moves it by hand."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

__all__ = ["Bell", "Timer", "Timing"]


class Timer(Protocol):
    """A call that is still to come."""

    def cancel(self) -> None:
        """Have it not come."""
        ...


class Timing:
    """The time of the machine, which never goes back, and the event loop's timers."""

    now: Callable[[], float] = staticmethod(time.monotonic)
    """Returns the time in seconds; where it begins means nothing."""

    def later(self, seconds: float, call: Callable[[], object]) -> Timer:
        """Make a call on the running loop, ``seconds`` from now."""
        return asyncio.get_running_loop().call_later(seconds, call)


class Bell:
    """What one task waits for and others ring. A ring that nobody waited for is kept, once.

    Parameters
    ----------
    timing : Timing
    """

    __slots__ = ("_rung", "_timing", "_waiter")

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._rung = False
        self._waiter: asyncio.Future[bool] | None = None

    def ring(self) -> None:
        """Wake who waits."""
        if self._waiter is None:
            self._rung = True
        else:
            self._end(True)

    async def wait(self, at_most_s: float | None = None) -> bool:
        """Wait for a ring, or as many seconds.

        Returns
        -------
        bool
            Whether it rang.
        """
        if self._rung:
            self._rung = False
            return True
        self._waiter = asyncio.get_running_loop().create_future()
        timer = None if at_most_s is None else self._timing.later(at_most_s, lambda: self._end(False))
        try:
            return await self._waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()

    def _end(self, rang: bool) -> None:
        if self._waiter is None:
            return
        if not self._waiter.done():
            self._waiter.set_result(rang)
        elif rang:
            self._rung = True
