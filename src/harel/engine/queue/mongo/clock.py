"""The server's clock as a client knows it: never ahead of the truth, and behind by no more than it says.

An answer says what the clock showed at some moment between question and answer. Counted on from the *answer*, the
time comes out late by a round trip at most; counted on from the *question*, early. What must not happen too soon (a
lease taken over) goes by the first, and what must last long enough (a lease of one's own) by the second.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from harel.engine.queue.mongo.requests import ServerHello

__all__ = ["EXACT_S", "REFRESH_S", "SOON_S", "Moment", "ServerClock", "steady"]

REFRESH_S = 30.0
"""After so many seconds the server is asked again."""
SOON_S = 1.0
"""After so many, if its last answer took long: leases would be longer by as much until then."""
EXACT_S = 0.05
"""An answer that took no longer is exact enough."""

_STEP_S = 0.001
"""What the server says is cut down to a multiple of this."""
_DRIFT = 0.000_2
"""Two clocks drift apart by this share of the time, at most."""


def steady() -> float:
    """Return seconds that go on while the machine sleeps, where the system has such a clock."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class Moment(NamedTuple):
    """What time it is, epoch seconds of the server's clock: not before ``now``, and not after ``latest``."""

    now: float
    latest: float


class ServerClock:
    """Estimates the server's clock.

    Parameters
    ----------
    count : callable
        The client's steady clock, in seconds.
    """

    def __init__(self, count: Callable[[], float] = steady) -> None:
        self._count = count
        self._hello: ServerHello | None = None
        self._learned_at_s = 0.0
        self._last = 0.0

    def learn(self, hello: ServerHello) -> None:
        """Go by this answer, unless the one before is still the more exact and does not contradict it."""
        known, self._learned_at_s = self._hello, self._count()
        if known is not None:
            before, after = self._estimate(known), self._estimate(hello)
            agree = before.now <= after.latest and after.now <= before.latest
            if agree and before.latest - before.now < after.latest - after.now:
                return
        self._hello = hello

    def forget(self) -> None:
        """Ask again before the time is next needed: the server may be another one now."""
        self._hello = None

    def moment(self) -> Moment | None:
        """Say what time it is, or ``None`` when the server has to be asked."""
        hello = self._hello
        if hello is None:
            return None
        now, latest = self._estimate(hello)
        is_exact = hello.answered_at_s - hello.asked_at_s <= EXACT_S
        if self._count() - self._learned_at_s > (REFRESH_S if is_exact else SOON_S):
            return None
        # What time it was, it is still, unless the server's clock was put back: then what is later than it can be goes.
        self._last = max(now, self._last) if self._last <= latest else now
        return Moment(self._last, latest)

    def _estimate(self, hello: ServerHello) -> Moment:
        count = self._count()
        drift = _DRIFT * (count - hello.asked_at_s)
        return Moment(
            hello.time_s + (count - hello.answered_at_s) - drift,
            hello.time_s + (count - hello.asked_at_s) + _STEP_S + drift,
        )
