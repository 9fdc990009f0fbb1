"""A publish never changes the lease, park, hold, place in line or priority of a group that exists. Promise 9."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from harel.engine.queue.contract import HIGHEST_PRIORITY, Lease, Transport
from harel.testing.conformance.kit import (
    assert_nothing_claimable,
    info_of,
    open_queue,
    put,
    put_batch,
    take,
    take_from,
)
from harel.testing.subject import Subject

State = Callable[[Transport], object]


def _held_in_flight(queue: Transport) -> Lease:
    lease = take(queue)
    assert queue.hold("g")
    return lease


def _drained_while_held(queue: Transport) -> None:
    assert queue.ack(_held_in_flight(queue))


def _released_in_flight(queue: Transport) -> None:
    _held_in_flight(queue)
    assert queue.release("g")


STATES: dict[str, tuple[str, State]] = {
    "never served": ("groups", lambda _queue: None),
    "served": ("groups", lambda queue: queue.nack(take(queue))),
    "leased": ("groups", lambda queue: take(queue)),
    "extended": ("groups", lambda queue: queue.extend(take(queue), 600.0)),
    "run out": ("groups", lambda queue: take(queue, visibility=1.0)),
    "parked": ("groups", lambda queue: queue.nack(take(queue), 600.0)),
    "back from a park": ("groups", lambda queue: queue.nack(take(queue), 1.0)),
    "held": ("hold", lambda queue: queue.hold("g")),
    "held in flight": ("hold", _held_in_flight),
    "drained while held": ("hold", _drained_while_held),
    "released in flight": ("hold", _released_in_flight),
    "released": ("hold", lambda queue: (queue.hold("g"), queue.release("g"))),
}
"""How a group comes into each state, with the capability that it needs; a lease or park of a second is over."""


@pytest.mark.parametrize("state", STATES)
def test_a_publish_changes_only_how_many_messages_wait_promise_9(subject: Subject, state: str) -> None:
    capability, bring_about = STATES[state]
    queue = open_queue(subject, "groups", capability)
    priority = HIGHEST_PRIORITY if queue.capabilities.priority else 0
    put(queue, "g", "m1")
    bring_about(queue)
    subject.clock.advance(2.0)
    before = info_of(queue, "g")
    put(queue, "g", "m2", priority=priority)
    put_batch(queue, "g m3", "g m4", priority=priority)
    assert info_of(queue, "g") == msgspec.structs.replace(before, messages=before.messages + 3)


@pytest.mark.parametrize("state", ["leased", "extended", "parked", "held", "held in flight", "drained while held"])
def test_a_publish_does_not_make_a_group_claimable_promise_9(subject: Subject, state: str) -> None:
    capability, bring_about = STATES[state]
    queue = open_queue(subject, *([capability] if capability == "hold" else []))
    put(queue, "g", "m1")
    bring_about(queue)
    put(queue, "g", "m2")
    put_batch(queue, "g m3")
    assert_nothing_claimable(queue)


def test_a_publish_does_not_end_a_lease_promise_9(subject: Subject) -> None:
    queue = open_queue(subject)
    put(queue, "g", "m1")
    lease = take(queue)
    put(queue, "g", "m2")
    assert queue.extend(lease, 60.0)
    put(queue, "g", "m3")
    assert queue.ack(lease)
    assert take(queue).event.kind == "m2"


def test_a_publish_does_not_lengthen_a_lease_or_a_park_promise_9(subject: Subject) -> None:
    queue = open_queue(subject)
    put(queue, "g", "m1")
    take(queue, visibility=10.0)
    subject.clock.advance(9.0)
    put(queue, "g", "m2")
    subject.clock.advance(1.5)
    assert queue.nack(take(queue), 10.0)
    subject.clock.advance(9.0)
    put(queue, "g", "m3")
    subject.clock.advance(1.5)
    assert take(queue).attempt == 3


def test_a_publish_does_not_move_a_waiting_group_promise_9(subject: Subject) -> None:
    queue = open_queue(subject, "fair")
    put_batch(queue, "a m1", "b m1", "c m1")
    put(queue, "a", "m2")
    put(queue, "c", "m2")
    for group_id in "abc":  # as they arrived
        assert queue.nack(take_from(queue, group_id))
    put(queue, "a", "m3")
    put_batch(queue, "c m3", "c m4")
    for group_id in "abc":  # as they were settled
        take_from(queue, group_id)
