"""Where claims begin their walk along the index.

A queue's index fills with dead entries at the end where claims look, and while an old snapshot is held open anywhere in
the database nothing clears them away: each claim would read all of them again. So when a walk from the start has read
many, the next ones begin where the last one ended, for a while that is in proportion to how long that walk was. What
comes to lie below that place meanwhile (a late commit, a clock put back, a claim that was rolled back) waits for the
next walk from the start, or for one that finds nothing above: the function then walks from the start by itself.

As long as no walk reads many dead entries, every walk begins at the start, and the order is exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from harel.engine.queue.schedule import FRESH

__all__ = ["ENTRIES_WORTH_A_HINT", "Walk"]

ENTRIES_WORTH_A_HINT = 256
"""A walk from the start that read this many dead entries makes the next ones begin at a hint."""

_SECONDS_AN_ENTRY = 10e-6
"""For how long, for each dead entry. Reading one takes about a fiftieth of that, so that walks from the start
take a fiftieth of a worker's time at most."""

_OVERLAP_S = 0.02
"""A hint is this much below the last number, since transactions commit somewhat out of order."""


class Walk:
    """The hints of one transport for one floor: one for the groups that were never served, one for the others.

    Parameters
    ----------
    monotonic : callable
        Returns seconds of a clock that only goes forward.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._hints = (-math.inf, -math.inf)
        self._until = -math.inf

    def begin(self) -> tuple[float, float]:
        """Say where to begin: among the groups that were never served, and among those that were."""
        return self._hints if self._monotonic() < self._until else (-math.inf, -math.inf)

    def ended(self, began: tuple[float, float], last: float, dead: int, now: float) -> None:
        """Learn from a walk that found something.

        Parameters
        ----------
        began : tuple of float
            What ``begin`` said.
        last : float
            The number of the last group that was found.
        dead : int
            How many entries of the index were read for nothing.
        now : float
            The queue's clock, epoch seconds.
        """
        fresh, served = began
        if fresh == served == -math.inf:
            self._until = self._monotonic() + dead * _SECONDS_AN_ENTRY if dead >= ENTRIES_WORTH_A_HINT else -math.inf
        if last < 0.0:
            self._hints = (last - _OVERLAP_S, served)
        else:
            # Past all that was never served: what comes there from now on is numbered from now on.
            self._hints = (now - FRESH - _OVERLAP_S, last - _OVERLAP_S)
