"""Leases: fenced, self-healing, renewed, given back, counted. Promises 1, 5 and 6."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harel.engine.queue.contract import Lease, Transport
from harel.testing.conformance.kit import (
    VISIBILITY_S,
    WAYS,
    assert_lasts,
    assert_nothing_claimable,
    drain,
    each_way,
    open_queue,
    put,
    put_groups,
    said,
    snapshot,
    take,
    take_from,
)
from harel.testing.subject import Subject


def _taken_over(subject: Subject, queue: Transport, by: str) -> tuple[Lease, Lease]:
    put(queue, "g", "m1", "m2")
    old = take(queue, "slow", 10.0)
    subject.clock.advance(11.0)
    return old, take(queue, by)


@each_way
@pytest.mark.parametrize("by", ["another", "slow"], ids=["by another worker", "by the same worker"])
def test_a_lease_that_was_taken_over_changes_nothing_promise_5(subject: Subject, way: str, by: str) -> None:
    queue = open_queue(subject)
    old, current = _taken_over(subject, queue, by)
    before, expires_at = snapshot(queue), old.expires_at
    assert WAYS[way](queue, old) is False
    assert snapshot(queue) == before
    assert old.expires_at == expires_at
    assert_nothing_claimable(queue)
    assert queue.extend(current, VISIBILITY_S)
    assert queue.ack(current)
    assert drain(queue) == ["g m2"]


SETTLED: dict[str, Callable[[Transport, Lease], object]] = {
    "acked": lambda queue, lease: queue.ack(lease),
    "given back": lambda queue, lease: queue.nack(lease),
    "parked": lambda queue, lease: queue.nack(lease, 60.0),
    "rejected": lambda queue, lease: queue.reject(lease, "a reason"),
}


@each_way
@pytest.mark.parametrize("settled", SETTLED)
def test_a_lease_that_was_settled_changes_nothing_promise_5(subject: Subject, settled: str, way: str) -> None:
    queue = open_queue(subject)
    put(queue, "g", "m1", "m2")
    lease = take(queue)
    assert SETTLED[settled](queue, lease) is True
    before = snapshot(queue)
    assert WAYS[way](queue, lease) is False
    assert snapshot(queue) == before


@each_way
def test_a_lease_on_a_group_that_drained_and_came_again_changes_nothing_promise_5(subject: Subject, way: str) -> None:
    queue = open_queue(subject)
    put(queue, "g", "m1")
    old = take(queue, "slow", 10.0)
    subject.clock.advance(11.0)
    assert queue.ack(take(queue))
    before = snapshot(queue)
    assert WAYS[way](queue, old) is False
    assert snapshot(queue) == before
    put(queue, "g", "m2")
    before = snapshot(queue)
    assert WAYS[way](queue, old) is False
    assert snapshot(queue) == before
    assert drain(queue) == ["g m2"]


def test_a_lease_keeps_others_out_until_it_runs_out_promises_1_and_6(subject: Subject) -> None:
    queue = open_queue(subject)
    put(queue, "g", "m1", "m2")
    take(queue, "one that dies", 30.0)
    for _ in range(3):
        subject.clock.advance(9.0)
        assert_nothing_claimable(queue)
    subject.clock.advance(3.5)
    again = take(queue, "another")
    assert (said(again), again.attempt) == ("g m1", 2)
    assert_nothing_claimable(queue)


def test_leases_run_out_each_at_its_own_time_promise_6(subject: Subject) -> None:
    queue = open_queue(subject)
    for group_id, visibility in (("long", 40.0), ("short", 10.0), ("middle", 20.0)):
        put(queue, group_id, "m")
        take_from(queue, group_id, visibility=visibility)
    came = []
    for _ in range(5):
        subject.clock.advance(10.5)
        came.append([lease.group_id for lease in queue.claim_many("w", 600.0, 10)])
    assert came == [["short"], ["middle"], [], ["long"], []]


@pytest.mark.parametrize("way", ["ack", "ack_many", "nack", "reject"])
def test_a_holder_that_is_late_settles_when_nobody_claimed_since_promise_6(subject: Subject, way: str) -> None:
    queue = open_queue(subject, "late_settle")
    put(queue, "g", "m1", "m2")
    lease = take(queue, visibility=10.0)
    subject.clock.advance(3_600.0)
    assert WAYS[way](queue, lease) is True
    assert WAYS[way](queue, lease) is False
    again = take(queue)
    assert (said(again), again.attempt) == (("g m1", 2) if way == "nack" else ("g m2", 1))


def test_a_holder_that_is_late_extends_when_nobody_claimed_since_promise_6(subject: Subject) -> None:
    queue = open_queue(subject, "late_settle")
    put(queue, "g", "m1", "m2")
    lease = take(queue, visibility=10.0)
    subject.clock.advance(3_600.0)
    before = subject.clock.now
    assert queue.extend(lease, 20.0) is True
    assert before <= lease.expires_at - 20.0 <= subject.clock.now
    subject.clock.advance(19.0)
    assert_nothing_claimable(queue)
    assert queue.ack(lease)
    assert drain(queue) == ["g m2"]


def test_a_holder_that_is_late_parks_its_group_when_nobody_claimed_since_promise_6(subject: Subject) -> None:
    queue = open_queue(subject, "late_settle")
    put(queue, "g", "m1")
    lease = take(queue, visibility=10.0)
    subject.clock.advance(3_600.0)
    assert queue.nack(lease, 100.0) is True
    subject.clock.advance(99.0)
    assert_nothing_claimable(queue)
    subject.clock.advance(1.5)
    assert take(queue).attempt == 2


@pytest.mark.parametrize("visibility", [5.0, 60.0], ids=["shorter", "longer"])
def test_extend_counts_from_now(subject: Subject, visibility: float) -> None:
    queue = open_queue(subject)
    put(queue, "g", "m")
    lease = take(queue, visibility=30.0)
    subject.clock.advance(10.0)
    before = subject.clock.now
    assert queue.extend(lease, visibility) is True
    assert_lasts(queue, lease, visibility, before, subject.clock.now)
    subject.clock.advance(visibility - 1.0)
    assert_nothing_claimable(queue)
    subject.clock.advance(1.5)
    assert take(queue).attempt == 2


def test_a_lease_that_is_extended_again_and_again_is_never_lost(subject: Subject) -> None:
    queue = open_queue(subject)
    put(queue, "g", "m1", "m2")
    lease = take(queue, visibility=30.0)
    for _ in range(20):
        subject.clock.advance(20.0)
        assert_nothing_claimable(queue)
        assert queue.extend(lease, 30.0)
    assert queue.ack(lease)
    assert drain(queue) == ["g m2"]


def _leases_of(queue: Transport, *group_ids: str, visibility: float = VISIBILITY_S) -> list[Lease]:
    for group_id in group_ids:
        put(queue, group_id, "m1", "m2")
    leases = queue.claim_many("worker", visibility, len(group_ids))
    return sorted(leases, key=lambda lease: group_ids.index(lease.group_id))


def test_extend_many_renews_each_lease_from_now(subject: Subject) -> None:
    queue = open_queue(subject)
    leases = _leases_of(queue, "a", "b", "c", visibility=30.0)
    subject.clock.advance(20.0)
    before = subject.clock.now
    assert queue.extend_many(leases, 60.0) == [True, True, True]
    for lease in leases:
        assert_lasts(queue, lease, 60.0, before - 0.001, subject.clock.now + 0.001)
    subject.clock.advance(58.0)
    assert_nothing_claimable(queue)
    subject.clock.advance(4.0)
    assert {(lease.group_id, lease.attempt) for lease in queue.claim_many("w", VISIBILITY_S, 10)} == {
        ("a", 2),
        ("b", 2),
        ("c", 2),
    }


def test_extend_many_answers_in_the_order_of_the_leases(subject: Subject) -> None:
    queue = open_queue(subject)
    a, b, c, d = _leases_of(queue, "a", "b", "c", "d")
    assert queue.ack(b)
    assert queue.nack(d, 600.0)
    assert queue.extend_many([d, c, b, a], 60.0) == [False, True, False, True]
    assert queue.extend_many((a, b), 60.0) == [True, False]
    assert queue.extend_many(iter([b, c]), 60.0) == [False, True]


def test_a_lost_lease_among_many_is_left_as_it_was_promise_5(subject: Subject) -> None:
    queue = open_queue(subject)
    (lost,) = _leases_of(queue, "a", visibility=10.0)
    subject.clock.advance(12.0)
    current = take_from(queue, "a", "another")
    (other,) = _leases_of(queue, "b")
    expiries = lost.expires_at, current.expires_at
    subject.clock.advance(5.0)
    assert queue.extend_many([lost, other], 600.0) == [False, True]
    assert (lost.expires_at, current.expires_at) == expiries
    assert other.expires_at > current.expires_at
    subject.clock.advance(27.0)
    again = take_from(queue, "a", "a third")
    assert again.attempt == 3
    assert queue.extend_many([current, other], 60.0) == [False, True]
    assert queue.ack(again)


def test_extend_many_of_the_same_lease_twice_renews_it_once_more(subject: Subject) -> None:
    queue = open_queue(subject)
    a, b = _leases_of(queue, "a", "b", visibility=30.0)
    before = subject.clock.now
    assert queue.extend_many([a, b, a], 60.0) == [True, True, True]
    for lease in (a, b):
        assert_lasts(queue, lease, 60.0, before - 0.001, subject.clock.now + 0.001)
    assert queue.ack(a)
    assert queue.extend_many([a, a, b], 60.0) == [False, False, True]


def test_extend_many_leaves_held_groups_held(subject: Subject) -> None:
    queue = open_queue(subject, "hold")
    held, free = _leases_of(queue, "held", "free", visibility=30.0)
    assert queue.hold("held")
    subject.clock.advance(20.0)
    before = subject.clock.now
    assert queue.extend_many([held, free], 60.0) == [True, True]
    assert_lasts(queue, held, 60.0, before - 0.001, subject.clock.now + 0.001)
    assert queue.nack(held)
    assert queue.nack(free)
    assert take_from(queue, "free").attempt == 2
    subject.clock.advance(3_600.0)
    assert take_from(queue, "free").attempt == 3
    assert_nothing_claimable(queue)
    assert queue.release("held")
    assert take_from(queue, "held").attempt == 2


def test_extend_many_renews_more_leases_than_one_request_of_some_backends_holds(subject: Subject) -> None:
    queue = open_queue(subject)
    names = [f"g{number}" for number in range(25)]
    put_groups(queue, *names)
    leases: list[Lease] = []
    while more := queue.claim_many("worker", 30.0, 30):
        leases += more
    assert sorted(lease.group_id for lease in leases) == sorted(names)
    assert queue.ack(leases[11])
    answers = queue.extend_many(leases, 60.0)
    assert answers == [number != 11 for number in range(25)]
    subject.clock.advance(50.0)
    assert_nothing_claimable(queue)


def test_extend_many_of_leases_that_ran_out_renews_those_that_nobody_took_promise_6(subject: Subject) -> None:
    queue = open_queue(subject, "late_settle")
    late, taken = _leases_of(queue, "late", "taken", visibility=10.0)
    assert queue.extend(late, 100.0)
    subject.clock.advance(12.0)
    assert take(queue).group_id == "taken"
    subject.clock.advance(100.0)
    assert queue.extend_many([taken, late], 60.0) == [False, True]


def test_extend_does_not_count_as_an_attempt(subject: Subject) -> None:
    queue = open_queue(subject)
    put(queue, "g", "m")
    lease = take(queue)
    assert queue.extend(lease, 60.0)
    assert lease.attempt == 1
    assert queue.nack(lease)
    assert take(queue).attempt == 2


def test_nack_parks_the_whole_group_promise_2(subject: Subject) -> None:
    queue = open_queue(subject)
    put(queue, "g", "m1", "m2")
    assert queue.nack(take(queue), 60.0) is True
    put(queue, "g", "m3")
    put(queue, "other", "m")
    assert queue.ack(take_from(queue, "other"))
    subject.clock.advance(59.0)
    assert_nothing_claimable(queue)
    subject.clock.advance(1.5)
    assert drain(queue) == ["g m1", "g m2", "g m3"]


def test_nack_without_a_delay_makes_the_group_claimable_at_once(subject: Subject) -> None:
    queue = open_queue(subject)
    put(queue, "g", "m1", "m2")
    for attempt in range(1, 5):
        lease = take(queue)
        assert (said(lease), lease.attempt) == ("g m1", attempt)
        assert queue.nack(lease) is True


def test_attempts_count_claims_whatever_became_of_them(subject: Subject) -> None:
    queue = open_queue(subject)
    put(queue, "g", "m")
    attempts = []
    for turn in range(6):
        lease = take(queue, visibility=10.0)
        attempts.append(lease.attempt)
        if turn % 3 == 0:
            assert queue.nack(lease)
        elif turn % 3 == 1:
            assert queue.nack(lease, 5.0)
        subject.clock.advance(11.0)
    assert attempts == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("way", ["ack", "ack_many", "reject"])
def test_the_next_message_starts_with_its_first_attempt(subject: Subject, way: str) -> None:
    queue = open_queue(subject)
    put(queue, "g", "m1", "m2")
    assert queue.nack(take(queue))
    lease = take(queue)
    assert lease.attempt == 2
    assert WAYS[way](queue, lease) is True
    lease = take(queue)
    assert (said(lease), lease.attempt) == ("g m2", 1)


def test_a_group_that_comes_again_starts_with_its_first_attempt(subject: Subject) -> None:
    queue = open_queue(subject)
    put(queue, "g", "m1")
    assert queue.nack(take(queue))
    assert queue.ack(take(queue))
    put(queue, "g", "m2")
    assert take(queue).attempt == 1


def test_attempts_are_counted_group_by_group(subject: Subject) -> None:
    queue = open_queue(subject, "fair")
    put(queue, "a", "m")
    put(queue, "b", "m")
    assert queue.nack(take_from(queue, "a"))
    assert queue.ack(take_from(queue, "b"))
    put(queue, "c", "m")
    assert {lease.group_id: lease.attempt for lease in queue.claim_many("w", VISIBILITY_S, 10)} == {"a": 2, "c": 1}


def test_settling_one_group_does_not_touch_another(subject: Subject) -> None:
    queue = open_queue(subject)
    put(queue, "a", "m1", "m2")
    put(queue, "b", "m1", "m2")
    one, other = queue.claim_many("w", VISIBILITY_S, 2)
    for way in ("nack", "extend", "ack", "reject"):
        expires_at = other.expires_at
        assert WAYS[way](queue, one) is True
        one = queue.claim("w", VISIBILITY_S) or one
        assert one.group_id != other.group_id
        assert other.expires_at == expires_at
    assert queue.ack(other) is True
