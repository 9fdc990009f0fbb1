"""Who has waited longest goes first. Promise 7."""

from __future__ import annotations

import pytest

from harel.testing.conformance.kit import (
    VISIBILITY_S,
    WAYS,
    groups_in_turn,
    open_queue,
    put,
    put_batch,
    put_groups,
    take,
    take_from,
)
from harel.testing.subject import Subject

NAMES = ["zebra", "yak", "Xerus", "9", "10", "émeu", "cat", "ant", " ", "\U0001f418"]
"""In the order of their arrival, which is that of no alphabet."""


def test_groups_never_served_come_by_arrival_promise_7(subject: Subject) -> None:
    queue = open_queue(subject, "fair")
    for name in NAMES:
        put(queue, name, "m")
    assert [take(queue).group_id for _ in NAMES] == NAMES


@pytest.mark.parametrize("fresh_first", [True, False])
def test_groups_of_one_batch_come_by_arrival_promise_7(subject: Subject, fresh_first: bool) -> None:
    queue = open_queue(subject, "fair", fresh_first=fresh_first)
    put_groups(queue, *NAMES, *reversed(NAMES))
    assert [take(queue).group_id for _ in NAMES] == NAMES


def test_groups_that_arrive_at_the_same_instant_come_by_arrival_promise_7(subject: Subject) -> None:
    queue = open_queue(subject, "fair")
    subject.clock.tick = 0.0
    for name in NAMES:
        put(queue, name, "m")
    assert [take(queue).group_id for _ in NAMES] == NAMES


def test_a_later_arrival_never_overtakes_promise_7(subject: Subject) -> None:
    queue = open_queue(subject, "fair")
    put(queue, "m", "m")
    for name in ("a", "z", "b"):
        subject.clock.advance(3_600.0)
        put(queue, name, "m")
    assert [take(queue).group_id for _ in range(4)] == ["m", "a", "z", "b"]


def test_groups_never_served_go_before_those_that_were_promise_7(subject: Subject) -> None:
    queue = open_queue(subject, "fair")
    put(queue, "served", "m1", "m2")
    assert queue.ack(take(queue))
    subject.clock.advance(3_600.0)
    put(queue, "fresh 1", "m")
    put(queue, "fresh 2", "m")
    assert [take(queue).group_id for _ in range(3)] == ["fresh 1", "fresh 2", "served"]


def test_groups_never_served_wait_their_turn_when_fresh_first_is_off(subject: Subject) -> None:
    queue = open_queue(subject, "fair", fresh_first=False)
    put(queue, "served 1", "m1", "m2")
    put(queue, "served 2", "m1", "m2")
    assert queue.ack(take_from(queue, "served 1"))
    put(queue, "fresh", "m")
    assert queue.ack(take_from(queue, "served 2"))
    assert [take(queue).group_id for _ in range(3)] == ["served 1", "fresh", "served 2"]


@pytest.mark.parametrize("way", ["ack", "ack_many", "nack", "reject"])
def test_a_served_group_goes_to_the_back_promise_7(subject: Subject, way: str) -> None:
    queue = open_queue(subject, "fair")
    for group_id in "abc":
        put(queue, group_id, *(f"m{n}" for n in range(9)))
    served = []
    for _ in range(9):
        lease = take(queue)
        served.append(lease.group_id)
        assert WAYS[way](queue, lease) is True
    assert served == ["a", "b", "c"] * 3


def test_of_the_served_the_one_settled_first_goes_first_promise_7(subject: Subject) -> None:
    queue = open_queue(subject, "fair")
    put_batch(queue, "a m1", "b m1", "c m1", "d m1", "a m2", "b m2", "c m2", "d m2")
    leases = {lease.group_id: lease for lease in queue.claim_many("w", VISIBILITY_S, 4)}
    for group_id in "cadb":
        assert queue.ack(leases[group_id])
    assert [take(queue).group_id for _ in range(4)] == ["c", "a", "d", "b"]


def test_a_parked_group_is_in_line_from_when_its_delay_ended_promise_7(subject: Subject) -> None:
    queue = open_queue(subject, "fair")
    put_groups(queue, "parked", "early", "late")
    parked, early, late = queue.claim_many("w", 100.0, 3)
    assert queue.nack(parked, 10.0)
    subject.clock.advance(5.0)
    assert queue.nack(early)
    subject.clock.advance(10.0)
    assert queue.nack(late)
    assert [take(queue).group_id for _ in range(3)] == ["early", "parked", "late"]


def test_a_group_whose_lease_ran_out_is_in_line_from_then_promise_7(subject: Subject) -> None:
    queue = open_queue(subject, "fair")
    put_groups(queue, "dropped", "early", "late")
    take_from(queue, "dropped", visibility=10.0)
    early, late = queue.claim_many("w", 100.0, 2)
    subject.clock.advance(5.0)
    assert queue.nack(early)
    subject.clock.advance(10.0)
    assert queue.nack(late)
    assert [take(queue).group_id for _ in range(3)] == ["early", "dropped", "late"]


def test_a_lease_that_is_settled_late_puts_its_group_to_the_back_promise_7(subject: Subject) -> None:
    queue = open_queue(subject, "fair")
    put_batch(queue, "late m1", "late m2", "other m1")
    late = take_from(queue, "late", visibility=10.0)
    subject.clock.advance(20.0)
    assert queue.nack(take_from(queue, "other"))
    assert queue.ack(late)
    assert [take(queue).group_id for _ in range(2)] == ["other", "late"]


def test_failing_groups_do_not_keep_a_healthy_one_from_its_turn_promise_7(subject: Subject) -> None:
    queue = open_queue(subject, "fair")
    put_groups(queue, *(f"failing {n}" for n in range(5)), "healthy", *(f"failing {n}" for n in range(5, 10)))
    for _ in range(6):
        served = groups_in_turn(queue, 11)
        assert len(set(served)) == 11
        assert served.index("healthy") == 5


def test_a_busy_group_gets_no_more_turns_than_a_quiet_one_promise_7(subject: Subject) -> None:
    queue = open_queue(subject, "fair")
    put_batch(queue, *(f"busy m{n}" for n in range(50)), "quiet m", "silent m")
    assert groups_in_turn(queue, 30) == ["busy", "quiet", "silent"] * 10
