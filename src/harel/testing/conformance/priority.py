"""Priorities and floors. Promise 8."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harel.engine.queue.contract import HIGHEST_PRIORITY, Transport
from harel.testing.conformance.kit import (
    MANY,
    VISIBILITY_S,
    assert_nothing_claimable,
    info_of,
    open_queue,
    put,
    put_batch,
    put_groups,
    take,
)
from harel.testing.subject import Subject

PRIORITIES = range(HIGHEST_PRIORITY + 1)


@pytest.mark.parametrize("floor", PRIORITIES)
def test_a_floor_lets_through_what_is_at_or_above_it_promise_8(subject: Subject, floor: int) -> None:
    queue = open_queue(subject, "priority")
    for priority in PRIORITIES:
        put(queue, f"p{priority}", "m", priority=priority)
    came = set()
    while (lease := queue.claim("w", VISIBILITY_S, floor)) is not None:
        came.add(lease.group_id)
    assert came == {f"p{priority}" for priority in PRIORITIES if priority >= floor}


@pytest.mark.parametrize("floor", PRIORITIES[1:])
def test_a_floor_finds_its_group_behind_a_backlog_of_lower_ones_promise_8(subject: Subject, floor: int) -> None:
    queue = open_queue(subject, "priority")
    put_groups(queue, *(f"low {n}" for n in range(2_000)), priority=floor - 1)
    assert_nothing_claimable(queue, floor)
    put(queue, "high", "m", priority=floor)
    assert take(queue, floor=floor).group_id == "high"
    assert_nothing_claimable(queue, floor)


def test_without_a_floor_priority_changes_nothing_promise_8(subject: Subject) -> None:
    queue = open_queue(subject, "priority", "fair")
    for name, priority in (("a", 0), ("b", 4), ("c", 1), ("d", 3), ("e", 0)):
        put(queue, name, "m1", "m2", priority=priority)
    served = []
    for _ in range(10):
        lease = take(queue)
        served.append(lease.group_id)
        assert queue.ack(lease)
    assert served == [*"abcde", *"abcde"]


def test_above_a_floor_the_longest_waiting_goes_first_promises_7_and_8(subject: Subject) -> None:
    queue = open_queue(subject, "priority", "fair")
    for name, priority in (("a", 2), ("b", 1), ("c", 4), ("d", 3), ("e", 2)):
        put(queue, name, "m", priority=priority)
    assert [take(queue, floor=2).group_id for _ in range(4)] == ["a", "c", "d", "e"]
    assert_nothing_claimable(queue, 2)


@pytest.mark.parametrize(("first", "then"), [(0, 4), (4, 0), (2, 3)])
def test_the_first_publish_fixes_a_groups_priority_promise_8(subject: Subject, first: int, then: int) -> None:
    queue = open_queue(subject, "priority")
    put(queue, "g", "m1", priority=first)
    put(queue, "g", "m2", priority=then)
    put_batch(queue, "g m3", priority=then)
    for _ in range(3):
        if first < HIGHEST_PRIORITY:
            assert_nothing_claimable(queue, first + 1)
        assert queue.ack(take(queue, floor=first))


@pytest.mark.parametrize("state", ["given back", "run out", "parked and back", "extended and run out"])
def test_a_served_group_keeps_its_priority_promise_8(subject: Subject, state: str) -> None:
    queue = open_queue(subject, "priority")
    put(queue, "low", "m")
    put(queue, "g", "m1", "m2", priority=3)
    lease = take(queue, floor=3, visibility=10.0)
    if state == "extended and run out":
        assert queue.extend(lease, 20.0)
    elif state != "run out":
        assert queue.nack(lease, 5.0 if state == "parked and back" else 0.0)
    subject.clock.advance(21.0)
    lease = take(queue, floor=3)
    assert (lease.group_id, lease.attempt) == ("g", 2)
    assert_nothing_claimable(queue, 1)


DRAINS: dict[str, tuple[str, Callable[[Transport], object]]] = {
    "ack": ("priority", lambda queue: queue.ack(take(queue))),
    "ack_many": ("priority", lambda queue: queue.ack_many([take(queue)])),
    "reject": ("priority", lambda queue: queue.reject(take(queue), "a reason")),
    "purge": ("purge", lambda queue: queue.purge("g")),
    "hold, purge and release": ("hold", lambda queue: (queue.hold("g"), queue.purge("g"), queue.release("g"))),
}


@pytest.mark.parametrize("drain", DRAINS)
def test_a_drained_group_forgets_its_priority_promise_8(subject: Subject, drain: str) -> None:
    capability, empty = DRAINS[drain]
    queue = open_queue(subject, "priority", capability, "purge")
    put(queue, "g", "m", priority=4)
    empty(queue)
    put(queue, "g", "m", priority=1)
    assert_nothing_claimable(queue, 2)
    assert take(queue, floor=1).group_id == "g"


def test_groups_that_cannot_be_claimed_are_not_found_by_a_floor_either(subject: Subject) -> None:
    queue = open_queue(subject, "priority", "hold")
    for name in ("leased", "parked", "held", "last"):
        put(queue, name, "m", priority=4)
    leases = {lease.group_id: lease for lease in queue.claim_many("w", VISIBILITY_S, 3, 4)}
    assert queue.nack(leases["parked"], 60.0)
    assert queue.hold("last")
    assert queue.nack(leases["held"])
    assert queue.hold("held")
    put(queue, "low", "m", priority=3)
    assert_nothing_claimable(queue, 4)
    assert take(queue, floor=3).group_id == "low"


def test_each_priority_can_be_seen(subject: Subject) -> None:
    queue = open_queue(subject, "priority", "groups")
    for priority in PRIORITIES:
        put(queue, f"p{priority}", "m", priority=priority)
    assert [info.priority for info in queue.groups(limit=MANY)] == list(PRIORITIES)
    assert info_of(queue, "p3").priority == 3
