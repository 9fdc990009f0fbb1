"""When a group certainly could have been claimed, and since when it had certainly waited.

Such a time is called a turn. It lies between two *touches*: times in which something that was done to the group may
have kept it from being claimed, because a lease, a park or a hold was there, or only because the group was being
changed at that moment.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from harel.engine.queue.schedule import FRESH
from harel.testing.check_group import NEVER, Group, Overlaps, Terms, by_call, by_return
from harel.testing.check_lives import Lives, hold_ends
from harel.testing.history_record import Operation

__all__ = ["Turn", "Turns"]


@dataclass(slots=True)
class Turn:
    """A time, both ends excluded, in which a group certainly could be claimed."""

    start: float
    end: float
    group_id: str
    priorities: int
    """The set of those that the group may have."""
    number: float
    """What orders the groups was certainly no larger; see :mod:`harel.engine.queue.schedule`."""
    freed_by: Operation | None
    """What it last was through with."""
    lapsed: bool
    """Whether that was a lease that ran out."""
    message: Operation | None
    """The claim, or else the publish, that shows that there was a message."""

    @property
    def lowest(self) -> int:
        """The lowest priority that the group may have."""
        return (self.priorities & -self.priorities).bit_length() - 1


@dataclass(slots=True)
class _Touch:
    start: float
    end: float
    by: Operation
    lapses: bool = False


class Turns:
    """A group's turns, and what its claims show.

    Parameters
    ----------
    group : Group
    terms : Terms
    """

    def __init__(self, group: Group, terms: Terms) -> None:
        self.lives = Lives(group)
        self._group = group
        self._terms = terms
        self._claims = group.claims
        self._called = [claim.called for claim in self._claims]
        self._latest = list(accumulate((claim.latest for claim in self._claims), max))
        self._place = {claim.token: place for place, claim in enumerate(self._claims)}
        self._purged = Overlaps((purge.called, purge.latest) for purge in group.purges)
        self._released = Overlaps((release.called, release.latest) for release in group.releases)
        self._unsettled = min(group.unsettled(), key=by_return, default=None)
        self._before_of: dict[int, Operation] = {}
        """By a claim's place: the claim before it of the same message."""
        newest: dict[int | None, Operation] = {}
        for place, claim in enumerate(self._claims):
            if claim.seq in newest:
                self._before_of[place] = newest[claim.seq]
            newest[claim.seq] = claim

    def turns(self) -> Iterator[Turn]:
        """Yield the turns, in order."""
        touches = sorted(self._touches(), key=lambda touch: touch.start)
        free_from = -math.inf
        freed: _Touch | None = None
        for touch in touches:
            if touch.start > free_from:
                yield from self._between(free_from, touch.start, freed, touch)
            if touch.end >= free_from:
                free_from, freed = touch.end, touch
        if free_from < math.inf:
            yield from self._between(free_from, math.inf, freed, None)

    def _between(self, start: float, end: float, freed: _Touch | None, touch: _Touch | None) -> Iterator[Turn]:
        """Yield the turn between two touches, in pieces where the server was restarted."""
        shown, since, sure = self._witness(start, end, touch)
        if not sure:
            end = min(end, self._terms.lost_from)
        if shown is None or max(start, since) >= end:
            return
        begins = max(start, since)
        is_fresh = start == -math.inf or self.lives.began(shown.event_id) > start
        # Where new groups are put last, it may have come to be no sooner than its message.
        number = begins if not self._terms.fresh_first else begins - FRESH if is_fresh else start
        priorities = self.lives.priorities(shown.event_id)
        for piece_from, piece_to in _pieces(begins, end, self._terms.restarts.windows):
            yield Turn(
                start=piece_from,
                end=piece_to,
                group_id=self._group.group_id,
                priorities=priorities,
                number=number,
                freed_by=None if freed is None or is_fresh else freed.by,
                lapsed=freed is not None and not is_fresh and freed.lapses,
                message=shown,
            )

    def _witness(self, start: float, end: float, touch: _Touch | None) -> tuple[Operation | None, float, bool]:
        """Find what shows that a message was there, since when, and whether no lost claim can have leased it."""
        place = bisect_left(self._called, end)
        no_claim_was_lost = end <= self._terms.lost_from
        if touch is not None and place and self._settles_the_last_lease(touch.by, place):
            sure = no_claim_was_lost or not self._terms.restarts.between(start, touch.by.latest)
            return self._claims[place - 1], -math.inf, sure
        if place < len(self._claims):
            claim = self._claims[place]
            return claim, self._there_since(place), no_claim_was_lost or self._counted_on(place)
        waiting = self._unsettled
        return waiting, -math.inf if waiting is None else waiting.latest, no_claim_was_lost

    def _settles_the_last_lease(self, by: Operation, place: int) -> bool:
        """Say whether this shows that until it happened nobody had taken over from the claim before."""
        last = self._claims[place - 1]
        alone = place < 2 or self._latest[place - 2] < last.called
        return alone and by.token == last.token and by.kind != "claim" and by.happened

    def _there_since(self, place: int) -> float:
        """Say since when the message that a claim found was certainly there."""
        claim = self._claims[place]
        if place in self._before_of:
            return -math.inf
        copies = self._group.copies.get(claim.event_id, ())
        return max((copy.latest for copy in copies), default=math.inf)

    def _counted_on(self, place: int) -> bool:
        """Say whether a claim's attempt shows that no lost claim came between it and the one before."""
        claim = self._claims[place]
        before = self._before_of.get(place)
        expected = 1 if before is None else before.attempt + 1
        since = before or min(self._group.copies.get(claim.event_id, ()), key=by_call, default=NEVER)
        return (
            claim.attempt == expected
            and (before is None or before.attempt > 0)
            and self._is_apart(place)
            and not self._terms.restarts.between(since.called, claim.latest)
        )

    def _is_apart(self, place: int) -> bool:
        """Say whether a claim certainly came before the next and after the others."""
        claim = self._claims[place]
        after = place + 1 == len(self._claims) or self._called[place + 1] > claim.latest
        return after and (place == 0 or self._latest[place - 1] < claim.called)

    def _touches(self) -> Iterator[_Touch]:
        for claim in self._claims:
            yield from self._lease(claim)
        for token, operations in self._group.by_token.items():
            if token not in self._place:
                yield from (_Touch(operation.called, math.inf, operation) for operation in operations)
        for hold, end in hold_ends(self._group):
            yield _Touch(hold.called, end, hold)
        for some in (self._group.purges, self._group.releases, self._group.denied):
            yield from (_Touch(operation.called, operation.latest, operation) for operation in some)

    def _lease(self, claim: Operation) -> Iterator[_Touch]:
        """Yield when a lease may have lived and what was done with it may have mattered."""
        operations = self._group.by_token.get(claim.token, ())
        settles = [o for o in operations if o.happened and o.kind != "extend"]
        over = max(settles, key=lambda settle: settle.latest, default=None)
        settled = math.inf if over is None else over.latest
        for grant in (claim, *(o for o in operations if o.happened and o.kind == "extend")):
            runs_out = grant.latest + grant.visibility
            yield _Touch(grant.called, max(grant.latest, min(runs_out, settled)), grant, runs_out < settled)
            if over is not None and over.kind == "nack":
                forgotten = self._terms.restarts.after(over.called)
                if forgotten < runs_out:
                    yield _Touch(forgotten, runs_out, grant, lapses=True)
        for settle in settles:
            yield _Touch(settle.called, settle.latest + settle.delay, settle)
        for unanswered in operations:
            if unanswered.returned is None:
                yield _Touch(unanswered.called, min(settled, self._taken_over(claim)), unanswered)

    def _taken_over(self, claim: Operation) -> float:
        """Return by when a later claim had certainly made a lease's token worthless."""
        place = bisect_right(self._called, claim.latest)
        return self._claims[place].latest if place < len(self._claims) else math.inf

    def least_number(self, claim: Operation) -> float:
        """Return the smallest number that a group can have had when it was claimed; ``-inf`` if there is no saying."""
        place = self._place[claim.token]
        if not self._is_apart(place):
            return -math.inf
        ahead = FRESH if self._terms.fresh_first else 0.0
        if place == 0:
            first = self._group.publishes[0].called if self._group.publishes else -math.inf
            return min(first, claim.called) - ahead
        last = self._claims[place - 1]
        if not self._is_apart(place - 1) or self._terms.restarts.between(last.called, claim.latest):
            return -math.inf
        if not self._certainly_served(place, last):
            return last.called - ahead
        return self._least_after(last, claim)

    def _certainly_served(self, place: int, last: Operation) -> bool:
        """Say whether the group was certainly there ever since the claim before."""
        claim = self._claims[place]
        if self._purged.between(last.called, claim.latest):
            return False
        if place in self._before_of or claim.attempt > 1:
            return True
        finals = [o.called for o in self._group.by_token.get(last.token, ()) if o.kind in ("ack", "reject")]
        return self._there_since(place) < min(finals, default=math.inf)

    def _least_after(self, last: Operation, claim: Operation) -> float:
        """Return the smallest number that a group can have, once what was done with its last lease is over."""
        operations = self._group.by_token.get(last.token, ())
        grants = [last, *(o for o in operations if o.kind == "extend")]
        sure = max((o.called for o in grants if o.happened and o.latest < claim.called), default=-math.inf)
        # A grant that was over before another certain one was called no longer counts.
        numbers = [o.called + o.visibility for o in grants if o.latest >= sure]
        settles = [o for o in operations if o.kind != "extend"]
        if any(o.happened and o.latest < claim.called for o in settles):
            numbers = []
        parks_end = self._released.between(last.called, claim.latest)
        numbers += [o.called + (0.0 if parks_end else o.delay) for o in settles]
        return min(numbers, default=-math.inf)

    def wrongly_denied(self) -> Iterator[tuple[Operation, Operation]]:
        """Yield what was denied to the holder of a lease that nobody can have taken from it, and the lease's claim."""
        for denied in self._group.denied:
            place = self._place.get(denied.token)
            if place is None or denied.returned is None:
                continue
            claim = self._claims[place]
            if claim.latest < denied.called and self._is_current(place, denied.returned):
                yield denied, claim

    def _is_current(self, place: int, until: float) -> bool:
        """Say whether a lease's token was certainly the current one until then."""
        claim = self._claims[place]
        if place and self._latest[place - 1] >= claim.called:
            return False
        if place + 1 < len(self._claims) and self._called[place + 1] <= until:
            return False
        settles = (o for o in self._group.by_token.get(claim.token, ()) if o.kind != "extend")
        if any(settle.called <= until for settle in settles) or self._purged.between(claim.called, until):
            return False
        return not self._terms.restarts.between(claim.called, until) and self._not_lost(place, until)

    def _not_lost(self, place: int, until: float) -> bool:
        """Say whether no lost claim can have taken over from a claim until then."""
        if self._terms.lost_from > until:
            return True
        following = place + 1
        return self._before_of.get(following) is self._claims[place] and self._counted_on(following)


def _pieces(start: float, end: float, windows: Sequence[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """Yield what is left of a time when the windows are taken out of it."""
    for place in range(bisect_left(windows, start, key=lambda window: window[1]), len(windows)):
        down, up = windows[place]
        if down >= end:
            break
        if start < down:
            yield start, down
        start = max(start, up)
    if start < end:
        yield start, end
