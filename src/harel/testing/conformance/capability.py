"""What a backend says that it can do, and that it refuses what it says it cannot."""

from __future__ import annotations

import pytest

from harel.engine.queue.contract import Capabilities, Transport
from harel.errors import NotSupported
from harel.testing.conformance.kit import (
    EVERY_CALL,
    WAYS,
    Call,
    assert_nothing_claimable,
    assert_refused,
    drain,
    each_way,
    open_queue,
    put,
    said,
    snapshot,
    take,
)
from harel.testing.subject import Subject

REFUSED: dict[str, tuple[str, Call]] = {
    name: (capability, call) for name, (capability, call) in EVERY_CALL.items() if capability is not None
}


def test_capabilities_are_the_same_for_every_transport_on_a_queue(subject: Subject) -> None:
    queue, other = open_queue(subject), subject.open()
    assert isinstance(queue.capabilities, Capabilities)
    assert queue.capabilities == other.capabilities


def test_capabilities_are_yes_or_no_and_amounts(subject: Subject) -> None:
    can = open_queue(subject).capabilities
    for name in can.__struct_fields__:
        if not name.startswith(("max_", "time_")):
            assert isinstance(getattr(can, name), bool), name
    # What the tests of other areas take for granted.
    assert can.max_event_bytes >= 200_000
    assert can.max_visibility_s >= 3_600.0
    assert 0.0 <= can.time_step_s <= 1.0


def test_a_transport_has_every_method_whatever_it_can(subject: Subject) -> None:
    queue = open_queue(subject)
    names = [name for name in vars(Transport) if not name.startswith("_") and name != "capabilities"]
    assert len(names) > 15
    assert all(callable(getattr(queue, name)) for name in names)


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_backend_cannot_do_it_refuses_at_once(subject: Subject, name: str) -> None:
    capability, call = REFUSED[name]
    queue = open_queue(subject)
    if getattr(queue.capabilities, capability):
        pytest.skip(f"capabilities.{capability} is True")
    put(queue, "g", "m1", "m2")
    lease = take(queue)
    message = assert_refused(subject, queue, NotSupported, lambda: call(queue, lease), queue)
    assert capability in message
    assert queue.ack(lease) is True
    assert drain(queue) == ["g m2"]


@each_way
def test_without_late_settle_a_lease_that_ran_out_is_lost_promise_5(subject: Subject, way: str) -> None:
    queue = open_queue(subject)
    if queue.capabilities.late_settle:
        pytest.skip("capabilities.late_settle is True")
    put(queue, "g", "m1", "m2")
    lease = take(queue, visibility=10.0)
    subject.clock.advance(11.0)
    before, expires_at = snapshot(queue), lease.expires_at
    assert WAYS[way](queue, lease) is False
    assert (snapshot(queue), lease.expires_at) == (before, expires_at)
    again = take(queue)
    assert (said(again), again.attempt) == ("g m1", 2)


def test_a_visibility_and_a_delay_are_rounded_up_to_a_step_of_time(subject: Subject) -> None:
    queue = open_queue(subject)
    step = queue.capabilities.time_step_s
    if not step:
        pytest.skip("capabilities.time_step_s is 0.0")
    put(queue, "g", "m1")
    for ask in (
        lambda: take(queue, visibility=2.25 * step),
        lambda: queue.extend(take(queue), 2.25 * step),
        lambda: queue.nack(take(queue), 2.25 * step),
    ):
        assert ask()
        subject.clock.advance(2.75 * step)
        assert_nothing_claimable(queue)
        subject.clock.advance(0.5 * step)


def test_without_watch_a_wait_only_pauses(subject: Subject) -> None:
    queue = open_queue(subject)
    if queue.capabilities.watch:
        pytest.skip("capabilities.watch is True")
    put(queue, "g", "m1")
    assert queue.wait(0.0) is False
    assert queue.wait(0.02) is False
    assert drain(queue) == ["g m1"]
