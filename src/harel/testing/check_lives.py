"""From when to when a group existed, and which priority it may have had meanwhile: promise 8."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable

from harel.testing.check_group import Group, Overlaps, by_return
from harel.testing.history_record import Operation

__all__ = ["ANY_PRIORITY", "Lives", "hold_ends"]

ANY_PRIORITY = 0b11111
"""A set of priorities as bits, the lowest for priority 0: here all of them."""


def hold_ends(group: Group) -> list[tuple[Operation, float]]:
    """Say of each hold by when it was over: when a release returned that was called after the hold had returned."""
    releases = [release for release in group.releases if release.returned is not None]
    called = [release.called for release in releases]
    # The earliest return of each release and those called later.
    over: list[float] = []
    earliest = math.inf
    for release in reversed(releases):
        earliest = min(earliest, release.latest)
        over.append(earliest)
    over = [*reversed(over), math.inf]
    return [(hold, over[bisect_right(called, hold.latest)]) for hold in group.holds]


class Lives:
    """A group's lives: it begins one whenever it is published to while it is not there.

    It is taken for gone when all that had been published was certainly settled, and nothing that could have kept it,
    such as a hold or another publish, was going on meanwhile. Any publish may have begun a life that
    found, as far as one can tell, nothing unsettled; the priority is that publish's.

    Parameters
    ----------
    group : Group
    """

    def __init__(self, group: Group) -> None:
        self._copies = group.copies
        self._publishes = group.publishes
        self._called = [publish.called for publish in self._publishes]
        self._starts = _starts(group)
        """Where in the list each life begins."""
        self._masks = self._possible(group)
        """The priorities that its life may have, up to each publish."""
        self._any = 0
        for mask in self._masks:
            self._any |= mask

    def priorities(self, event_id: str) -> int:
        """Return the set of priorities that the group may have while a message of this event is there."""
        copies = self._copies.get(event_id, ())
        if len(copies) != 1:
            return (self._any if copies else 0) or ANY_PRIORITY
        (publish,) = copies
        last = bisect_right(self._called, publish.latest) - 1
        next_life = bisect_right(self._starts, bisect_right(self._called, publish.called) - 1)
        if next_life < len(self._starts):
            last = min(last, self._starts[next_life] - 1)
        return self._masks[last] or ANY_PRIORITY

    def began(self, event_id: str) -> float:
        """Return the earliest moment at which the life can have begun in which an event was published."""
        copies = self._copies.get(event_id, ())
        if len(copies) != 1:
            return -math.inf
        place = bisect_right(self._called, copies[0].called) - 1
        return self._called[self._starts[bisect_right(self._starts, place) - 1]]

    def _possible(self, group: Group) -> list[int]:
        whole = 0
        for publish in self._publishes:
            whole |= 1 << publish.priority
        may_begin = _may_begin(group)
        starts = set(self._starts)
        masks: list[int] = []
        mask = 0
        for place, publish in enumerate(self._publishes):
            if place in starts:
                mask = 0
            if may_begin(publish):
                # A dead letter keeps the priority that its group had.
                mask |= whole if publish.kind == "redrive" else 1 << publish.priority
            masks.append(mask)
        return masks


def _may_begin(group: Group) -> Callable[[Operation], bool]:
    """Return what says whether a publish, each in its turn, may have found no message."""
    ahead = sorted((publish for publish in group.publishes if publish.happened), key=by_return)
    settled_from = group.settled_from()
    place = 0
    there_until = -math.inf

    def may_begin(publish: Operation) -> bool:
        nonlocal place, there_until
        while place < len(ahead) and ahead[place].latest < publish.called:
            there_until = max(there_until, settled_from(ahead[place]))
            place += 1
        return there_until <= publish.latest

    return may_begin


def _starts(group: Group) -> list[int]:
    """Return which publishes found the group certainly gone, and the first one."""
    starts: list[int] = []
    held = Overlaps((hold.called, end) for hold, end in hold_ends(group))
    last: Operation | None = None
    gone = -math.inf
    published = -math.inf
    for place, publish in enumerate(group.publishes):
        if last is None:
            is_gone = place == 0
        else:
            is_gone = (
                gone < publish.called and published < last.called and not held.between(last.called, publish.called)
            )
        if is_gone:
            starts.append(place)
        settle = _certain_settle(group, publish)
        if settle is None:
            gone = math.inf
        elif settle.latest > gone:
            last, gone = settle, settle.latest
        published = max(published, publish.latest)
    return starts


def _certain_settle(group: Group, publish: Operation) -> Operation | None:
    """Return what settled a message, if that is certain."""
    if len(group.copies[publish.event_id]) != 1:
        return None
    happened = [settle for settle in group.settles.get(publish.event_id, ()) if settle.happened]
    return min(happened, key=by_return) if happened else None
