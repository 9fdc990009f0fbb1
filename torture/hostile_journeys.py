"""From publish to ack, by way of everything else: what was given comes back exactly, and two names are two groups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from harel import Event, HarelError, Message, Transport
from harel.engine.queue.contract import Lease
from torture.hostile_bench import Bench, Unkept, said
from torture.hostile_values import exactly

__all__ = ["journey"]

VISIBILITY_S = 600.0
PAGE = 7
MANY = 100_000


class Traveller(NamedTuple):
    """A group and what is published to it."""

    group_id: str
    parts: Mapping[str, Any]
    """Of the events, as :class:`harel.Event` takes them."""
    worker_id: str = "w"
    reason: str = "a reason"


def journey(bench: Bench, travellers: Sequence[Traveller]) -> None:
    """Send groups through all that a queue does, beside one another; the queue is empty before and after.

    Raises
    ------
    Unkept
        Something was not as it was given, or was not let through.
    """
    try:
        _travel(bench, travellers)
    except HarelError as error:
        raise Unkept(f"what the contract allows was refused: {said(error)}") from error
    except Unkept:
        raise
    except Exception as error:
        raise Unkept(f"an error that is none of harel's: {said(error)}") from error


def _travel(bench: Bench, travellers: Sequence[Traveller]) -> None:
    queue, can = bench.queue, bench.can
    events = {each.group_id: Event(**each.parts) for each in travellers}
    second = {group_id: Event("second", {"of": group_id}) for group_id in events}
    first_of_each = iter(events.items())
    for group_id, event in islice(first_of_each, 3):
        queue.publish(group_id, event)
    queue.publish_many([Message(group_id, event) for group_id, event in first_of_each])
    queue.publish_many([Message(group_id, event) for group_id, event in second.items()])
    names = list(events)
    if can.groups:
        _must(_paged(queue) == sorted(names), "paging through groups() did not show each group once, in order")
    if can.peek:
        for group_id in names:
            shown = [stored.event for stored in queue.peek(group_id, 5)]
            _must_be([events[group_id], second[group_id]], shown, f"peek({group_id!r})")
    if can.hold:
        _held_and_released(queue, names)
    _handled(bench, travellers, events)
    if can.dead_letters:
        _redriven(queue, travellers, events, second)
    elif can.purge:
        raise Unkept("a backend with purge and without dead letters is not provided for")
    _drained(queue, {} if can.dead_letters else second)


def _held_and_released(queue: Transport, names: Sequence[str]) -> None:
    for group_id in names:
        _must(queue.hold(group_id) is True, f"hold({group_id!r}) found no such group")
    _must(queue.claim("w", VISIBILITY_S) is None, "a claim found a group although all are held")
    for group_id in names:
        _must(queue.release(group_id) is True, f"release({group_id!r}) found no such hold")


def _handled(bench: Bench, travellers: Sequence[Traveller], events: Mapping[str, Event]) -> None:
    """Claim the first message of each, extend, give back, claim again, and reject it for a reason."""
    queue = bench.queue
    known = {each.group_id: each for each in travellers}
    worker_id = travellers[0].worker_id
    leases = _claimed(queue, worker_id, events)
    _must(queue.extend_many(list(leases.values()), VISIBILITY_S) == [True] * len(leases), "extend_many lost a lease")
    for lease in leases.values():
        _must(queue.nack(lease) is True, f"nack lost the lease of {lease.group_id!r}")
    _must(not any(queue.ack_many(list(leases.values()))), "a lease that was given back could be acked")
    for lease in _claimed(queue, worker_id, events).values():
        if bench.can.groups and lease.group_id == travellers[0].group_id:
            (info,) = [each for each in queue.groups(limit=MANY) if each.group_id == lease.group_id]
            _must(info.holder == worker_id, f"groups() names {info.holder!r} and not {worker_id!r} as the holder")
        _must(queue.extend(lease, VISIBILITY_S) is True, f"extend lost the lease of {lease.group_id!r}")
        _must(queue.reject(lease, known[lease.group_id].reason) is True, f"reject lost the lease of {lease.group_id!r}")


def _claimed(queue: Transport, worker_id: str, events: Mapping[str, Event]) -> dict[str, Lease]:
    leases = {}
    for _ in range(2 + len(events)):
        some = queue.claim_many(worker_id, VISIBILITY_S, MANY)
        if not some:
            break
        for lease in some:
            _must(lease.group_id not in leases, f"the group {lease.group_id!r} was leased twice")
            leases[lease.group_id] = lease
    _must(sorted(leases) == sorted(events), "the groups that were claimed are not those that were published")
    for group_id, lease in leases.items():
        _must_be([events[group_id]], [lease.event], f"the claim of {group_id!r}")
        _must(lease.worker_id == worker_id, f"the lease is {lease.worker_id!r}'s and not {worker_id!r}'s")
    return leases


def _redriven(
    queue: Transport, travellers: Sequence[Traveller], events: Mapping[str, Event], second: Mapping[str, Event]
) -> None:
    """See each dead letter, redrive it, see it at its group's tail, and purge the group."""
    letters = {letter.group_id: letter for letter in _letters(queue)}
    _must(sorted(letters) == sorted(events), "the dead letters are not of the groups that were rejected")
    for each in travellers:
        group_id, letter = each.group_id, letters[each.group_id]
        of_group = [each.seq for each in queue.dead_letters(group_id=group_id)]
        _must(of_group == [letter.seq], f"dead_letters(group_id={group_id!r}) is not that one")
        _must_be([events[group_id]], [letter.event], f"the dead letter of {group_id!r}")
        _must(letter.reason == _kept(each.reason), f"the reason {each.reason!r} came back as {letter.reason!r}")
        _must(queue.redrive(letter.seq) is True, f"redrive found no dead letter of {group_id!r}")
        _must(queue.dead_letters(group_id=group_id) == [], f"the dead letter of {group_id!r} stayed")
        shown = [stored.event for stored in queue.peek(group_id, 5)]
        _must_be([second[group_id], events[group_id]], shown, f"{group_id!r} after a redrive")
    halves = [each.group_id for each in travellers]
    for group_id in halves[1::2]:
        _must(queue.purge(group_id) == 2, f"purge({group_id!r}) did not delete its two messages")
    kept = set(halves[::2])
    for expected in (second, events):
        leases = _claimed(queue, "w", {group_id: expected[group_id] for group_id in kept})
        _must(queue.ack_many(list(leases.values())) == [True] * len(kept), "ack_many lost a lease")


def _drained(queue: Transport, left: Mapping[str, Event]) -> None:
    while lease := queue.claim("w", VISIBILITY_S):
        _must(lease.group_id in left, f"{lease.group_id!r} was not emptied")
        _must_be([left[lease.group_id]], [lease.event], f"the last of {lease.group_id!r}")
        _must(queue.ack(lease) is True, f"ack lost the lease of {lease.group_id!r}")
        left = {group_id: event for group_id, event in left.items() if group_id != lease.group_id}
    _must(not left, f"the groups {sorted(left)!r} were never delivered to their end")
    if queue.capabilities.stats:
        stats = queue.stats()
        _must((stats.messages, stats.groups, stats.dead_letters) == (0, 0, 0), f"a drained queue shows {stats}")


def _paged(queue: Transport) -> list[str]:
    names: list[str] = []
    while page := queue.groups(limit=PAGE, after=names[-1] if names else None):
        names += [info.group_id for info in page]
        if len(names) > MANY:
            break
    return names


def _letters(queue: Transport) -> Iterator[Any]:
    after = None
    while page := queue.dead_letters(limit=PAGE, after=after):
        yield from page
        after = page[-1].seq


def _kept(reason: str) -> str:
    """Return what the contract keeps of a reason: what no database holds is replaced."""
    return reason[:65_536].replace("\0", "\ufffd").encode(errors="replace").decode()


def _must_be(given: Sequence[Event], came: Sequence[Event], where: str) -> None:
    _must(len(given) == len(came), f"{where} has {len(came)} messages and not {len(given)}")
    for one, other in zip(given, came, strict=True):
        for name in ("kind", "payload", "id", "headers"):
            if not exactly(getattr(one, name), getattr(other, name)):
                raise Unkept(f"{where}: {name} was {_short(getattr(one, name))} and is {_short(getattr(other, name))}")


def _must(held: bool, sentence: str) -> None:
    if not held:
        raise Unkept(sentence)


def _short(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 300 else f"{text[:300]}…"
