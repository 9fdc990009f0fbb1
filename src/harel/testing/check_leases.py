"""What one group's leases and messages show: promises 1, 2, 3 and 5."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from operator import attrgetter

from harel.testing.check_group import FINAL, NEVER, Finding, Group, Terms, by_call, by_return
from harel.testing.history_record import Operation

__all__ = ["lease_rules", "stranded"]


def lease_rules(group: Group, terms: Terms, drained: Operation | None) -> Iterator[Finding]:
    """Yield what breaks promises 1, 2, 3 and 5 in a group."""
    yield from _two_leases(group, terms)
    yield from _out_of_order(group, terms)
    yield from _delivered_after_settled(group, terms)
    yield from _more_than_published(group)
    if drained is not None:
        yield from _lost(group, drained)
    yield from _settled_by_a_lost_token(group, terms)
    yield from _settled_twice(group, terms)


@dataclass(slots=True)
class _Segment:
    """A time in which a lease certainly lived."""

    start: float
    end: float
    claim: Operation
    shown: Operation


def _two_leases(group: Group, terms: Terms) -> Iterator[Finding]:
    """Promise 1: find claims that were granted while another lease lived."""
    steps: list[tuple[float, int, _Segment]] = []
    for claim in group.claims:
        segments = _segments(claim, group.by_token.get(claim.token, ()), terms)
        steps += [(segment.start, 1, segment) for segment in segments]
        # A claim that was called after another returned was granted later, however short its own life.
        steps.append((claim.called, 0, _Segment(claim.latest, claim.latest, claim, claim)))
    steps.sort(key=lambda step: step[:2])
    live: _Segment | None = None
    accused: set[str] = set()
    for _, lives, segment in steps:
        if (
            live is not None
            and live.claim.token != segment.claim.token
            and segment.start < live.end
            and segment.claim.token not in accused
        ):
            accused |= {segment.claim.token, live.claim.token}
            yield 1, group.group_id, _both(live, segment, terms), _shown(live, segment)
        if lives and (live is None or segment.end > live.end):
            live = segment


def _both(live: _Segment, segment: _Segment, terms: Terms) -> str:
    lease, late = live.claim, segment.claim
    if late.called < live.start:
        # Of two claims at the same moment either may have come first.
        first, second = sorted((lease, late), key=by_call)
        return (
            f"by {terms.at(segment.start)} both {first.process} and {second.process} had got it, with seq {first.seq} "
            f"and {second.seq}, and neither lease was over."
        )
    grant = live.shown
    since = f"lease of {terms.at(lease.called)}" + f", extended at {terms.at(grant.called)}," * (grant is not lease)
    return (
        f"at {terms.at(late.called)} {late.process} got it with seq {late.seq}, while {lease.process}'s {since} for "
        f"{grant.visibility:g} s was live and unsettled, with seq {lease.seq}."
    )


def _shown(live: _Segment, segment: _Segment) -> tuple[Operation, ...]:
    each = {id(shown): shown for shown in (live.claim, live.shown, segment.claim)}
    return tuple(sorted(each.values(), key=by_call))


def _segments(claim: Operation, operations: Sequence[Operation], terms: Terms) -> Iterator[_Segment]:
    """Say when a lease certainly lived.

    From the return of its claim, and of each extend, for as long as the visibility reaches from their
    call; but never longer than until its settle was called, than an extend allows that may have come later, or than
    the server certainly remembered it.
    """
    settled = min((o.called for o in operations if o.kind != "extend"), default=math.inf)
    extends = sorted((o for o in operations if o.kind == "extend"), key=by_return)
    latest = [extend.latest for extend in extends]
    ends = [extend.called + extend.visibility for extend in extends]
    shortest = [*list(accumulate(reversed(ends), min))[::-1], math.inf]
    for grant in (claim, *extends):
        later = bisect_left(latest, grant.called)
        end = min(grant.called + grant.visibility, shortest[later]) - terms.slack_s
        end = min(end, settled, terms.restarts.after(grant.called))
        if grant.returned is not None and grant.returned < end:
            yield _Segment(grant.returned, end, claim, grant)


def _out_of_order(group: Group, terms: Terms) -> Iterator[Finding]:
    """Promise 2: find messages that were delivered before one published earlier was settled."""
    delivered: dict[str, Operation] = {}
    for claim in sorted(group.claims, key=by_return):
        delivered.setdefault(claim.event_id, claim)
    ahead = sorted((publish for publish in group.publishes if publish.happened), key=by_return)
    settled_from = group.settled_from()
    worst: tuple[float, int] = (-math.inf, -1)
    place = 0
    checked: set[str] = set()
    accused: set[int] = set()
    culprit: Operation | None
    for batch in _batches(group.publishes):
        while place < len(ahead) and ahead[place].latest < batch[0].called:
            worst = max(worst, (settled_from(ahead[place]), place))
            place += 1
        before = worst[0]
        culprit = ahead[worst[1]] if worst[1] >= 0 else None
        for publish in batch:
            first = None if publish.event_id in checked else delivered.get(publish.event_id)
            checked.add(publish.event_id)
            if first is not None and culprit is not None and before > first.latest and id(culprit) not in accused:
                accused.add(id(culprit))
                yield 2, group.group_id, _overtaken(culprit, first, terms), _order(group, culprit, publish, first)
            if publish.happened and settled_from(publish) > before:
                before, culprit = settled_from(publish), publish


def _batches(publishes: Sequence[Operation]) -> Iterator[list[Operation]]:
    """Yield what was published by one call, in its order."""
    for _, mates in groupby(publishes, key=lambda publish: (publish.process, publish.batch or -publish.number)):
        yield list(mates)


def _overtaken(culprit: Operation, first: Operation, terms: Terms) -> str:
    return (
        f"at {terms.at(first.called)} {first.process} got event {first.event_id}, seq {first.seq}, before "
        f"{culprit.event_id}, which was published earlier, was settled."
    )


def _order(group: Group, culprit: Operation, publish: Operation, first: Operation) -> tuple[Operation, ...]:
    return (culprit, publish, *group.settles.get(culprit.event_id, ())[:1], first)


def _delivered_after_settled(group: Group, terms: Terms) -> Iterator[Finding]:
    """Promise 3: find deliveries of messages that were already settled."""
    settled: dict[int | None, Operation] = {}
    for settles in group.settles.values():
        for settle in settles:
            if settle.happened and settle.latest < settled.get(settle.seq, NEVER).latest:
                settled[settle.seq] = settle
    for claim in group.claims:
        settle = settled.get(claim.seq, NEVER)
        if settle.latest < claim.called:
            text = (
                f"at {terms.at(claim.called)} {claim.process} got seq {claim.seq} again, which {settle.process}'s "
                f"{settle.kind} had settled by {terms.at(settle.latest)}."
            )
            yield 3, group.group_id, text, (settle, claim)


def _more_than_published(group: Group) -> Iterator[Finding]:
    """Promise 3: find events that came to be more messages than there were publishes and redrives of them."""
    redrives: dict[int | None, list[Operation]] = defaultdict(list)
    for operation in group.publishes:
        if operation.kind == "redrive" and operation.happened:
            redrives[operation.seq].append(operation)
    for seq, twice in redrives.items():
        if len(twice) > 1:
            yield 3, group.group_id, f"dead letter {seq} was redriven {len(twice)} times.", tuple(twice)
    first: dict[str, dict[int | None, Operation]] = defaultdict(dict)
    for claim in group.claims:
        first[claim.event_id].setdefault(claim.seq, claim)
    for event_id, messages in first.items():
        published = group.copies.get(event_id, ())
        if published and len(messages) > len(published):
            seqs = ", ".join(map(str, messages))
            text = (
                f"event {event_id} was delivered as {len(messages)} messages, {seqs}, and published {len(published)} "
            )
            text += "times, redrives included."
            yield 3, group.group_id, text, (*published, *messages.values())


def _lost(group: Group, drained: Operation) -> Iterator[Finding]:
    """Promise 3: find publishes that returned, were never settled and are not there any more."""
    left = drained.left.get(group.group_id, 0)
    unsettled = list(group.unsettled(drained.called))
    if len(unsettled) > left and "" not in drained.left:
        gone = f"of {len(unsettled)} published messages that were never settled, {len(unsettled) - left} are gone."
        yield 3, group.group_id, gone, tuple(unsettled)


def _settled_by_a_lost_token(group: Group, terms: Terms) -> Iterator[Finding]:
    """Promise 5: find what succeeded with a token after a later claim had replaced it."""
    claims = sorted(group.claims, key=by_return)
    returns = [claim.latest for claim in claims]
    newest: list[Operation] = list(accumulate(claims, _later_called))
    own = {claim.token: claim for claim in claims}
    for token, operations in group.by_token.items():
        claim = own.get(token)
        for operation in operations if claim is not None else ():
            before = bisect_left(returns, operation.called)
            newer = newest[before - 1] if before and operation.happened else None
            if claim is None or newer is None or newer.called <= claim.latest:
                continue
            if not terms.restarts.between(newer.called, operation.latest):
                text = (
                    f"at {terms.at(operation.called)} {operation.process}'s {operation.kind} of seq {operation.seq} "
                    f"succeeded, though {newer.process} had claimed the group anew at {terms.at(newer.called)}."
                )
                yield 5, group.group_id, text, (claim, newer, operation)


def _later_called(one: Operation, other: Operation) -> Operation:
    return max(one, other, key=attrgetter("called"))


def _settled_twice(group: Group, terms: Terms) -> Iterator[Finding]:
    """Promise 5: find leases and messages that were settled more than once."""
    by_seq: dict[int | None, list[Operation]] = defaultdict(list)
    for operations in group.by_token.values():
        succeeded = [operation for operation in operations if operation.happened]
        settles = _not_forgotten([operation for operation in succeeded if operation.kind != "extend"], terms)
        if len(settles) > 1:
            text = f"{settles[0].process}'s lease was settled {len(settles)} times."
            yield 5, group.group_id, text, tuple(settles)
        for extend in succeeded if settles else ():
            ended = settles[0]
            if extend.kind == "extend" and extend.called > ended.latest and not _forgotten(ended, extend, terms):
                text = f"at {terms.at(extend.called)} {extend.process} extended a lease that was settled."
                yield 5, group.group_id, text, (ended, extend)
        for settle in settles[-1:]:
            if settle.kind in FINAL:
                by_seq[settle.seq].append(settle)
    for seq, settles in by_seq.items():
        if len(settles) > 1:
            text = f"message {seq} was settled {len(settles)} times."
            yield 5, group.group_id, text, tuple(sorted(settles, key=by_call))


def _not_forgotten(settles: Sequence[Operation], terms: Terms) -> list[Operation]:
    """Leave out the nacks that the server may have forgotten before the lease was settled again."""
    last = settles[-1:]
    return [settle for settle in settles[:-1] if not _forgotten(settle, settles[-1], terms)] + list(last)


def _forgotten(settle: Operation, by: Operation, terms: Terms) -> bool:
    return settle.kind == "nack" and terms.restarts.between(settle.called, by.latest)


def stranded(drained: Operation, groups: dict[str, Group]) -> Iterator[Finding]:
    """Promise 4: find what is left though nothing can be claimed any more."""
    for group_id, messages in drained.left.items():
        text = f"{messages} of its messages can no longer be claimed, though no lease, park or hold is left."
        waiting: Iterable[Operation] = groups[group_id].unsettled(drained.called) if group_id in groups else ()
        yield 4, group_id, text, (*waiting, drained)
