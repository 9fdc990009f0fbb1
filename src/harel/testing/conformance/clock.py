"""Everything goes by one clock. Promise 11."""

from __future__ import annotations

import time

import pytest

from harel.testing.conformance.kit import (
    assert_lasts,
    assert_nothing_claimable,
    drain,
    info_of,
    only_dead_letter,
    open_queue,
    put,
    put_groups,
    take,
)
from harel.testing.subject import Subject

HOURS = 3_600.0


@pytest.mark.parametrize("hours", [-100_000.0, -1.0, 1.0, 100_000.0])
def test_leases_go_by_the_queues_clock_and_not_by_the_machines_promise_11(subject: Subject, hours: float) -> None:
    queue = open_queue(subject)
    subject.clock.advance(time.time() - subject.clock.now + hours * HOURS)
    put(queue, "g", "m1", "m2")
    before = subject.clock.now
    lease = take(queue, visibility=60.0)
    assert_lasts(queue, lease, 60.0, before, subject.clock.now)
    subject.clock.advance(59.0)
    assert_nothing_claimable(queue)
    subject.clock.advance(1.5)
    again = take(queue, visibility=60.0)
    assert again.attempt == 2
    assert queue.nack(again, 60.0)
    subject.clock.advance(59.0)
    assert_nothing_claimable(queue)
    subject.clock.advance(1.5)
    assert drain(queue) == ["g m1", "g m2"]


def test_every_time_that_is_shown_is_the_queues_promise_11(subject: Subject) -> None:
    queue = open_queue(subject, "stats", "groups", "dead_letters", "fair")
    start = subject.clock.now
    put_groups(queue, "dead", "leased", "parked", "ready")
    assert queue.reject(take(queue), "a reason")
    take(queue, visibility=1_000.0)
    assert queue.nack(take(queue), 1_000.0)
    end = subject.clock.now
    assert start <= only_dead_letter(queue).rejected_at <= end
    for state in ("leased", "parked", "ready"):
        assert start <= info_of(queue, state).since <= end
    for state in ("leased", "parked"):
        until = info_of(queue, state).until
        assert until is not None
        assert start <= until - 1_000.0 <= end
    subject.clock.advance(5 * HOURS)
    assert queue.stats().oldest_ready_s == pytest.approx(5 * HOURS, abs=1.0)


def test_a_jump_of_hours_ends_what_ended_meanwhile_and_nothing_else_promise_11(subject: Subject) -> None:
    queue = open_queue(subject)
    put_groups(queue, "a", "b", "c", "d")
    short, parked_short, _, parked_long = (take(queue, visibility=hours * HOURS) for hours in (1, 1, 9, 9))
    assert queue.nack(parked_short, 2 * HOURS)
    assert queue.nack(parked_long, 9 * HOURS)
    subject.clock.advance(5 * HOURS)
    back = {lease.group_id for lease in queue.claim_many("w", 60.0, 10)}
    assert back == {short.group_id, parked_short.group_id}


def test_a_clock_that_stands_still_gives_no_second_lease_and_keeps_nothing_back_promises_1_and_4(
    subject: Subject,
) -> None:
    queue = open_queue(subject)
    subject.clock.tick = 0.0
    put(queue, "g", "m1", "m2")
    lease = take(queue, visibility=0.001)
    assert_nothing_claimable(queue)
    assert queue.nack(lease)
    lease = take(queue)
    assert lease.attempt == 2
    assert_nothing_claimable(queue)
    assert queue.ack(lease)
    assert drain(queue) == ["g m2"]


def test_a_clock_that_goes_back_gives_no_second_lease_promise_1(subject: Subject) -> None:
    queue = open_queue(subject)
    put(queue, "g", "m1", "m2")
    lease = take(queue, visibility=60.0)
    subject.clock.advance(-5 * HOURS)
    assert_nothing_claimable(queue)
    subject.clock.advance(30.0)
    assert_nothing_claimable(queue)
    assert queue.extend(lease, 60.0) is True
    assert lease.expires_at < subject.clock.now + 61.0
    subject.clock.advance(61.0)
    assert take(queue).attempt == 2
    assert queue.ack(lease) is False


def test_a_clock_that_goes_back_strands_nothing_promise_4(subject: Subject) -> None:
    queue = open_queue(subject)
    put(queue, "g", "m1", "m2", "m3")
    assert queue.ack(take(queue))
    subject.clock.advance(-5 * HOURS)
    put(queue, "new", "m1")
    assert take(queue).group_id == "new"
    subject.clock.advance(5 * HOURS + 1.0)
    came = drain(queue)
    assert [message for message in came if message.startswith("g ")] == ["g m2", "g m3"]
