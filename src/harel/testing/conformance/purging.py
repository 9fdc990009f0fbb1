"""Purge: the messages go, but for one that a live lease holds."""

from __future__ import annotations

import pytest

from harel.testing.conformance.kit import (
    WAYS,
    assert_counts,
    assert_nothing_claimable,
    drain,
    each_way,
    open_queue,
    put,
    put_batch,
    snapshot,
    take,
    take_from,
)
from harel.testing.subject import Subject


def test_purge_deletes_what_waits_and_says_how_many(subject: Subject) -> None:
    queue = open_queue(subject, "purge")
    put_batch(queue, "g m1", "other m1", "g m2", "other m2", "g m3")
    assert queue.purge("g") == 3
    assert queue.purge("g") == 0
    assert drain(queue) == ["other m1", "other m2"]
    assert_counts(queue, groups=0)


def test_purging_a_group_that_is_not_there_deletes_nothing(subject: Subject) -> None:
    queue = open_queue(subject, "purge")
    put(queue, "other", "m")
    before = snapshot(queue)
    assert queue.purge("g") == 0
    assert snapshot(queue) == before


def test_purge_leaves_the_message_in_flight_to_its_holder(subject: Subject) -> None:
    queue = open_queue(subject, "purge")
    put(queue, "g", "m1", "m2", "m3")
    lease = take(queue)
    assert queue.purge("g") == 2
    assert queue.purge("g") == 0
    assert_counts(queue, messages=1)
    assert_nothing_claimable(queue)
    put(queue, "g", "m4")
    assert queue.extend(lease, 60.0) is True
    assert queue.ack(lease) is True
    assert drain(queue) == ["g m4"]


def test_a_message_in_flight_that_survived_a_purge_comes_again_promise_3(subject: Subject) -> None:
    queue = open_queue(subject, "purge")
    put(queue, "g", "m1", "m2")
    take(queue, visibility=10.0)
    assert queue.purge("g") == 1
    subject.clock.advance(11.0)
    assert take(queue).attempt == 2
    assert_counts(queue, messages=1)


@each_way
def test_purging_after_a_lease_ran_out_deletes_all_and_fences_its_holder_promise_5(subject: Subject, way: str) -> None:
    queue = open_queue(subject, "purge")
    put(queue, "g", "m1", "m2")
    old = take(queue, visibility=10.0)
    subject.clock.advance(11.0)
    assert queue.purge("g") == 2
    assert_counts(queue, groups=0)
    before = snapshot(queue)
    assert WAYS[way](queue, old) is False
    assert snapshot(queue) == before
    put(queue, "g", "m3")
    assert WAYS[way](queue, old) is False
    lease = take(queue)
    assert lease.attempt == 1
    assert queue.nack(lease)
    assert drain(queue) == ["g m3"]


def test_purging_a_parked_group_ends_its_park(subject: Subject) -> None:
    queue = open_queue(subject, "purge")
    put(queue, "g", "m1", "m2")
    assert queue.nack(take(queue), 600.0)
    assert queue.purge("g") == 2
    assert_counts(queue, groups=0)
    put(queue, "g", "m3")
    lease = take(queue)
    assert (lease.event.kind, lease.attempt) == ("m3", 1)


def test_a_held_group_that_is_purged_stays_held(subject: Subject) -> None:
    queue = open_queue(subject, "purge", "hold")
    put(queue, "g", "m1", "m2")
    assert queue.hold("g")
    assert queue.purge("g") == 2
    assert_counts(queue, groups=1, held=1)
    put(queue, "g", "m3")
    assert_nothing_claimable(queue)
    assert queue.release("g") is True
    assert drain(queue) == ["g m3"]


def test_a_held_group_that_is_purged_starts_with_its_first_attempt(subject: Subject) -> None:
    queue = open_queue(subject, "purge", "hold")
    put(queue, "g", "m1")
    assert queue.nack(take(queue))
    assert queue.hold("g")
    assert queue.purge("g") == 1
    put(queue, "g", "m2")
    assert queue.release("g")
    assert take(queue).attempt == 1


@pytest.mark.parametrize("ran_out", [False, True], ids=["live", "run out"])
def test_purging_a_held_group_asks_whether_its_lease_still_runs(subject: Subject, ran_out: bool) -> None:
    queue = open_queue(subject, "purge", "hold")
    put(queue, "g", "m1", "m2")
    lease = take(queue, visibility=10.0)
    assert queue.hold("g")
    if ran_out:
        subject.clock.advance(11.0)
    assert queue.purge("g") == (2 if ran_out else 1)
    assert_counts(queue, held=1)
    assert queue.ack(lease) is not ran_out
    assert queue.release("g") is True
    assert_counts(queue, groups=0)


def test_a_purge_leaves_other_groups_and_the_dead_letters(subject: Subject) -> None:
    queue = open_queue(subject, "purge", "dead_letters", "fair")
    put_batch(queue, "g m1", "g m2", "other m1")
    assert queue.reject(take_from(queue, "g"), "a reason")
    lease = take_from(queue, "other")
    assert queue.purge("g") == 1
    assert [letter.group_id for letter in queue.dead_letters()] == ["g"]
    assert queue.ack(lease) is True
