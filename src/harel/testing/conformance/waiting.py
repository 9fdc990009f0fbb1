"""Wait: back as soon as something may be claimable, or when the time is up."""

from __future__ import annotations

import pytest

from harel.testing.conformance.kit import drain, open_queue, put, snapshot, take
from harel.testing.subject import Subject

LONG_S = 50.0
"""Longer than any test: a wait that does not end by itself runs into the suite's own time limit."""


@pytest.mark.parametrize("timeout", [0, 0.0, LONG_S])
def test_wait_is_back_at_once_when_something_is_claimable(subject: Subject, timeout: float) -> None:
    queue = open_queue(subject, "watch")
    put(queue, "g", "m")
    before = snapshot(queue)
    assert queue.wait(timeout) is True
    assert snapshot(queue) == before
    assert drain(queue) == ["g m"]


@pytest.mark.parametrize("timeout", [0, 0.0, 0.02])
def test_wait_says_when_the_time_was_up(subject: Subject, timeout: float) -> None:
    assert open_queue(subject).wait(timeout) is False


@pytest.mark.parametrize("state", ["drained", "leased", "parked", "held"])
def test_a_group_that_cannot_be_claimed_is_nothing_to_wait_for(subject: Subject, state: str) -> None:
    queue = open_queue(subject, *(["hold"] if state == "held" else []))
    put(queue, "g", "m")
    lease = take(queue)
    if state == "drained":
        assert queue.ack(lease)
    elif state == "parked":
        assert queue.nack(lease, 600.0)
    elif state == "held":
        assert queue.hold("g")
        assert queue.nack(lease)
    assert queue.wait(0.0) is False
    assert queue.wait(0.02) is False


@pytest.mark.parametrize("state", ["leased", "parked"])
def test_wait_finds_a_group_whose_time_came(subject: Subject, state: str) -> None:
    queue = open_queue(subject, "watch")
    put(queue, "g", "m")
    lease = take(queue, visibility=600.0)
    if state == "parked":
        assert queue.nack(lease, 600.0)
    assert queue.wait(0.0) is False
    subject.clock.advance(601.0)
    assert queue.wait(LONG_S) is True
    assert take(queue).attempt == 2


@pytest.mark.parametrize("state", ["leased", "parked"])
def test_wait_lasts_until_a_groups_time_comes(subject: Subject, state: str) -> None:
    queue = open_queue(subject, "watch")
    put(queue, "g", "m")
    lease = take(queue, visibility=600.0)
    soon = 5 * subject.clock.tick  # the clock ticks when the waiter looks at it
    assert queue.nack(lease, soon) if state == "parked" else queue.extend(lease, soon)
    assert queue.wait(LONG_S) is True
    assert take(queue).attempt == 2


def test_wait_finds_what_was_given_back_released_and_redriven(subject: Subject) -> None:
    queue = open_queue(subject, "watch", "hold", "dead_letters")
    put(queue, "g", "m")
    lease = take(queue)
    assert queue.wait(0.0) is False
    assert queue.nack(lease)
    assert queue.wait(LONG_S) is True
    assert queue.hold("g")
    assert queue.wait(0.0) is False
    assert queue.release("g")
    assert queue.wait(LONG_S) is True
    lease = take(queue)
    assert queue.reject(lease, "a reason")
    assert queue.wait(0.0) is False
    assert queue.redrive(lease.seq)
    assert queue.wait(LONG_S) is True


def test_a_low_priority_is_worth_waiting_for_too(subject: Subject) -> None:
    queue = open_queue(subject, "watch", "priority")
    put(queue, "g", "m", priority=0)
    assert queue.wait(LONG_S) is True
    assert queue.claim("w", 1.0, 4) is None
