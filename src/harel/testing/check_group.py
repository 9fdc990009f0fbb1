"""What a history says of one group, and on what terms it is judged."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from operator import attrgetter
from typing import TypeAlias

from harel.testing.history_record import Operation

__all__ = ["FINAL", "NEVER", "Finding", "Group", "Overlaps", "Restarts", "Terms", "by_call", "by_return"]

Finding: TypeAlias = tuple[int, str, str, tuple[Operation, ...]]
"""The promise, the group, what is wrong, and the operations that show it; the last of these is what offends."""

FINAL = ("ack", "reject")
"""What settles a message for good."""

NEVER = Operation(process="", number=0, kind="ack", called=math.inf)

by_call = attrgetter("called", "process", "number")
by_return = attrgetter("latest")


class Restarts:
    """When the server was down, and so may have forgotten what is soft state in it.

    Parameters
    ----------
    windows : iterable of (float, float)
        From when to when; they may overlap.
    """

    def __init__(self, windows: Iterable[tuple[float, float]]) -> None:
        self.windows: list[tuple[float, float]] = []
        for start, end in sorted(windows):
            if self.windows and start <= self.windows[-1][1]:
                start, last = self.windows.pop()
                end = max(end, last)
            self.windows.append((start, end))
        self._ends = [end for _, end in self.windows]

    def after(self, called: float) -> float:
        """Return from when on something soft that was called then may be forgotten."""
        place = bisect_left(self._ends, called)
        return self.windows[place][0] if place < len(self.windows) else math.inf

    def between(self, called: float, until: float) -> bool:
        """Say whether something soft that was called then may be forgotten by the other moment."""
        return self.after(called) <= until


class Overlaps:
    """Says whether any of many times reaches into another one.

    Parameters
    ----------
    times : iterable of (float, float)
        From when to when each is, in the order of their beginnings.
    """

    def __init__(self, times: Iterable[tuple[float, float]]) -> None:
        each = list(times)
        self._starts = [start for start, _ in each]
        self._ends = list(accumulate((end for _, end in each), max))

    def between(self, start: float, end: float) -> bool:
        """Say whether one begins by ``end`` that is not over before ``start``."""
        place = bisect_right(self._starts, end)
        return place > 0 and self._ends[place - 1] >= start


@dataclass(frozen=True)
class Terms:
    """What :func:`harel.testing.history.check` was told, and what holds for the whole history."""

    fair: bool
    late_settle: bool
    finds_all: bool
    fresh_first: bool
    slack_s: float
    overlook_s: float
    restarts: Restarts
    began: float
    lost_from: float
    """When the first claim was called that never returned: from then on there may be leases that nobody knows of."""

    def at(self, moment: float) -> str:
        """Say when something was, in seconds since the history began."""
        return f"{moment - self.began:.3f} s"


@dataclass(slots=True)
class Group:
    """One group's operations, each list by when they were called. Those without an effect are only in the last list."""

    group_id: str
    publishes: list[Operation] = field(default_factory=list)
    """Redrives among them: each is a new message."""
    claims: list[Operation] = field(default_factory=list)
    purges: list[Operation] = field(default_factory=list)
    holds: list[Operation] = field(default_factory=list)
    releases: list[Operation] = field(default_factory=list)
    """Those that said that nothing was held included: nothing was."""
    by_token: dict[str, list[Operation]] = field(default_factory=lambda: defaultdict(list))
    """What was done with each lease."""
    settles: dict[str, list[Operation]] = field(default_factory=lambda: defaultdict(list))
    """What may have settled each event for good."""
    copies: dict[str, list[Operation]] = field(default_factory=lambda: defaultdict(list))
    """The publishes and redrives of each event."""
    denied: list[Operation] = field(default_factory=list)

    def add(self, operation: Operation) -> None:
        """Add the next operation."""
        if operation.kind == "release" and not operation.refused:
            self.releases.append(operation)
        elif not operation.may_have_happened:
            if not operation.refused and operation.kind != "claim":
                self.denied.append(operation)
        elif operation.kind in ("publish", "redrive"):
            self.publishes.append(operation)
            self.copies[operation.event_id].append(operation)
        elif operation.kind in ("purge", "hold", "claim"):
            {"purge": self.purges, "hold": self.holds, "claim": self.claims}[operation.kind].append(operation)
        else:
            self.by_token[operation.token].append(operation)
            if operation.kind in FINAL:
                self.settles[operation.event_id].append(operation)

    def settled_from(self) -> Callable[..., float]:
        """Return what says the earliest moment at which a published message can have been settled."""
        purges = sorted(self.purges, key=by_return)
        latest = [purge.latest for purge in purges]
        earliest = list(accumulate((purge.called for purge in reversed(purges)), min))[::-1]

        def settled_from(publish: Operation, by_purge_only: bool = False) -> float:
            place = bisect_right(latest, publish.called)
            purged = max(publish.called, earliest[place]) if place < len(purges) else math.inf
            settles = () if by_purge_only else self.settles.get(publish.event_id, ())
            return min(purged, settles[0].called) if settles else purged

        return settled_from

    def unsettled(self, by: float = math.inf) -> Iterator[Operation]:
        """Yield the publishes that returned before a moment and that nothing can have settled."""
        settled_from = self.settled_from()
        times: dict[str, int] = defaultdict(int)
        for publish in self.publishes:
            if publish.happened and publish.latest < by:
                times[publish.event_id] += 1
                settled = {settle.seq for settle in self.settles.get(publish.event_id, ())}
                if len(settled) < times[publish.event_id] and settled_from(publish, by_purge_only=True) == math.inf:
                    yield publish
