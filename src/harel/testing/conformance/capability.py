"""What a backend says that it can do, and that it refuses what it says it cannot."""

from __future__ import annotations

import pytest

from harel.engine.queue.contract import Capabilities, Transport
from harel.errors import NotSupported
from harel.testing.conformance.kit import EVERY_CALL, Call, assert_refused, drain, open_queue, put, take
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
