"""Hold and release: kept from every claim, whatever happens meanwhile, and never two leases. Promises 1 and 4."""

from __future__ import annotations

import pytest

from harel.testing.conformance.kit import (
    WAYS,
    assert_counts,
    assert_empty,
    assert_lasts,
    assert_nothing_claimable,
    drain,
    each_way,
    info_of,
    kinds_in,
    open_queue,
    put,
    put_batch,
    said,
    snapshot,
    take,
    take_from,
)
from harel.testing.subject import Subject


def test_a_held_group_is_not_claimable_until_it_is_released(subject: Subject) -> None:
    queue = open_queue(subject, "hold")
    put(queue, "g", "m1", "m2")
    assert queue.hold("g") is True
    assert_nothing_claimable(queue)
    subject.clock.advance(10 * 365 * 86_400.0)
    assert_nothing_claimable(queue)
    assert queue.release("g") is True
    assert drain(queue) == ["g m1", "g m2"]


def test_a_held_group_does_not_keep_others_back(subject: Subject) -> None:
    queue = open_queue(subject, "hold")
    put_batch(queue, "a m", "held m", "b m")
    assert queue.hold("held")
    assert sorted(drain(queue)) == ["a m", "b m"]


def test_there_is_no_group_to_hold_or_release(subject: Subject) -> None:
    queue = open_queue(subject, "hold")
    put(queue, "other", "m")
    before = snapshot(queue)
    assert queue.hold("g") is False
    assert queue.release("g") is False
    assert snapshot(queue) == before
    put(queue, "g", "m")  # the hold that was refused does not wait for it
    assert sorted(drain(queue)) == ["g m", "other m"]


@pytest.mark.parametrize("state", ["ready", "leased", "parked"])
def test_releasing_what_is_not_held_changes_nothing(subject: Subject, state: str) -> None:
    queue = open_queue(subject, "hold")
    put(queue, "g", "m1", "m2")
    if state != "ready":
        lease = take(queue)
        assert state == "leased" or queue.nack(lease, 60.0)
    before = snapshot(queue)
    assert queue.release("g") is False
    assert snapshot(queue) == before


def test_holding_twice_is_holding_once(subject: Subject) -> None:
    queue = open_queue(subject, "hold")
    put(queue, "g", "m")
    assert queue.hold("g") is True
    before = snapshot(queue)
    assert queue.hold("g") is True
    assert snapshot(queue) == before
    assert queue.release("g") is True
    assert queue.release("g") is False
    assert drain(queue) == ["g m"]


def test_holding_a_group_in_flight_twice_is_holding_it_once(subject: Subject) -> None:
    queue = open_queue(subject, "hold", "groups")
    put(queue, "g", "m")
    take(queue)
    assert queue.hold("g") is True
    assert queue.hold("g") is True
    assert queue.release("g") is True
    assert queue.release("g") is False
    assert info_of(queue, "g").state == "leased"
    subject.clock.advance(31.0)
    assert drain(queue) == ["g m"]


def test_a_released_group_goes_to_the_back_promise_7(subject: Subject) -> None:
    queue = open_queue(subject, "hold", "fair")
    put_batch(queue, "held m", "a m", "b m")
    assert queue.hold("held")
    assert queue.nack(take_from(queue, "a"))
    assert queue.nack(take_from(queue, "b"))
    assert queue.release("held")
    assert [take(queue).group_id for _ in range(3)] == ["a", "b", "held"]


def test_a_group_whose_lease_ran_out_under_a_hold_goes_to_the_back_promise_7(subject: Subject) -> None:
    queue = open_queue(subject, "hold", "fair")
    put_batch(queue, "held m", "a m")
    take_from(queue, "held", visibility=10.0)
    assert queue.hold("held")
    subject.clock.advance(20.0)
    assert queue.nack(take_from(queue, "a"))
    assert queue.release("held")
    assert [take(queue).group_id for _ in range(2)] == ["a", "held"]


def test_a_parked_group_that_is_held_and_released_is_claimable(subject: Subject) -> None:
    queue = open_queue(subject, "hold")
    put(queue, "g", "m1")
    assert queue.nack(take(queue), 600.0)
    assert queue.hold("g")
    subject.clock.advance(700.0)
    assert_nothing_claimable(queue)
    assert queue.release("g")
    assert take(queue).attempt == 2


def test_a_park_that_has_not_ended_ends_with_the_release(subject: Subject) -> None:
    queue = open_queue(subject, "hold")
    put(queue, "g", "m1")
    assert queue.nack(take(queue), 600.0)
    assert queue.hold("g")
    assert queue.release("g")
    assert take(queue).attempt == 2


def test_a_lease_goes_on_under_a_hold(subject: Subject) -> None:
    queue = open_queue(subject, "hold")
    put(queue, "g", "m1", "m2")
    lease = take(queue, visibility=30.0)
    assert queue.hold("g")
    subject.clock.advance(20.0)
    before = subject.clock.now
    assert queue.extend(lease, 30.0) is True
    assert_lasts(queue, lease, 30.0, before - 0.001, subject.clock.now + 0.001)
    subject.clock.advance(20.0)
    assert_nothing_claimable(queue)
    assert queue.ack(lease) is True
    assert queue.ack(lease) is False
    assert_nothing_claimable(queue)
    assert queue.release("g")
    assert drain(queue) == ["g m2"]


@each_way
def test_what_settles_or_extends_a_lease_leaves_its_group_held(subject: Subject, way: str) -> None:
    queue = open_queue(subject, "hold")
    put(queue, "g", "m1", "m2")
    lease = take(queue, visibility=30.0)
    assert queue.hold("g")
    assert WAYS[way](queue, lease) is True
    assert_counts(queue, held=1)
    assert_nothing_claimable(queue)
    subject.clock.advance(3_600.0)
    assert_nothing_claimable(queue)
    assert queue.release("g") is True
    again = take(queue)
    settled = way in ("ack", "ack_many", "reject")
    assert (said(again), again.attempt) == (("g m2", 1) if settled else ("g m1", 2))


@pytest.mark.parametrize("extended", [False, True], ids=["as claimed", "extended under the hold"])
def test_releasing_a_group_in_flight_gives_no_second_lease_promise_1(subject: Subject, extended: bool) -> None:
    queue = open_queue(subject, "hold")
    put(queue, "g", "m1", "m2")
    lease = take(queue, visibility=30.0)
    assert queue.hold("g")
    if extended:
        assert queue.extend(lease, 50.0)
    assert queue.release("g") is True
    assert_nothing_claimable(queue)
    subject.clock.advance(49.0 if extended else 29.0)
    assert_nothing_claimable(queue)
    assert queue.ack(lease) is True
    assert drain(queue) == ["g m2"]


def test_a_lease_that_outlives_a_hold_runs_out_as_ever_promise_6(subject: Subject) -> None:
    queue = open_queue(subject, "hold")
    put(queue, "g", "m1")
    lease = take(queue, visibility=30.0)
    assert queue.hold("g")
    assert queue.release("g")
    subject.clock.advance(31.0)
    assert take(queue).attempt == 2
    assert queue.ack(lease) is False


def test_a_lease_that_runs_out_under_a_hold_stays_its_holders_until_another_claims_promise_6(subject: Subject) -> None:
    queue = open_queue(subject, "hold")
    put(queue, "g", "m1", "m2")
    lease = take(queue, visibility=30.0)
    assert queue.hold("g")
    subject.clock.advance(60.0)
    assert_nothing_claimable(queue)
    assert queue.ack(lease) is True
    assert queue.release("g")
    assert drain(queue) == ["g m2"]


def test_a_lease_that_ran_out_under_a_hold_is_fenced_after_the_next_claim_promise_5(subject: Subject) -> None:
    queue = open_queue(subject, "hold")
    put(queue, "g", "m1", "m2")
    old = take(queue, visibility=30.0)
    assert queue.hold("g")
    subject.clock.advance(60.0)
    assert queue.release("g")
    current = take(queue)
    assert current.attempt == 2
    assert queue.ack(old) is False
    assert queue.ack(current) is True


def test_a_group_that_drains_under_a_hold_stays_held(subject: Subject) -> None:
    queue = open_queue(subject, "hold")
    put(queue, "g", "m1")
    lease = take(queue)
    assert queue.hold("g")
    assert queue.ack(lease)
    assert_counts(queue, groups=1, held=1, messages=0)
    put(queue, "g", "m2")
    assert_nothing_claimable(queue)
    assert queue.release("g") is True
    assert drain(queue) == ["g m2"]
    assert_empty(queue)


def test_releasing_a_group_that_is_empty_drops_it_promise_10(subject: Subject) -> None:
    queue = open_queue(subject, "hold")
    put(queue, "g", "m1")
    lease = take(queue)
    assert queue.hold("g")
    assert queue.ack(lease)
    assert queue.release("g") is True
    assert queue.release("g") is False
    assert_empty(queue)
    assert_nothing_claimable(queue)
    put(queue, "g", "m2")
    assert drain(queue) == ["g m2"]


def test_a_held_group_is_shown_with_who_still_has_it(subject: Subject) -> None:
    queue = open_queue(subject, "hold", "groups")
    put(queue, "g", "m1", "m2")
    lease = take(queue, "worker-1")
    before = subject.clock.now
    assert queue.hold("g")
    since = info_of(queue, "g").since
    assert before <= since <= subject.clock.now
    info = info_of(queue, "g")
    assert (info.state, info.until, info.holder, info.attempts) == ("held", None, "worker-1", 1)
    assert queue.ack(lease)
    info = info_of(queue, "g")
    assert (info.state, info.until, info.holder, info.attempts) == ("held", None, None, 0)


@each_way
def test_a_group_is_held_since_it_was_held_whatever_became_of_its_lease(subject: Subject, way: str) -> None:
    queue = open_queue(subject, "hold", "groups")
    put(queue, "g", "m1", "m2")
    lease = take(queue)
    assert queue.hold("g")
    since = info_of(queue, "g").since
    subject.clock.advance(10.0)
    assert WAYS[way](queue, lease) is True
    assert (info_of(queue, "g").state, info_of(queue, "g").since) == ("held", since)


def test_hold_and_release_keep_messages_and_attempts(subject: Subject) -> None:
    queue = open_queue(subject, "hold", "peek")
    put(queue, "g", "m1", "m2")
    assert queue.nack(take(queue))
    assert queue.hold("g")
    assert kinds_in(queue, "g") == ["m1", "m2"]
    assert queue.release("g")
    lease = take(queue)
    assert (said(lease), lease.attempt) == ("g m1", 2)
