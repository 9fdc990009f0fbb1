"""Whatever makes something claimable wakes those who sleep, at once and not when they look again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harel import Event, Lease
from harel.engine.queue.memory.shared import SharedMemoryQueue
from harel.engine.transport import InMemoryTransport
from harel.testing import ManualClock

EVENT = Event("noted")
LONG_S = 600.0

WAYS: dict[str, Callable[[InMemoryTransport, Lease], object]] = {
    "a first publish": lambda queue, _: queue.publish("new", EVENT),
    "an ack with messages left": lambda queue, lease: queue.ack(lease),
    "a reject with messages left": lambda queue, lease: queue.reject(lease, "a reason"),
    "a nack": lambda queue, lease: queue.nack(lease),
    "a nack with a delay": lambda queue, lease: queue.nack(lease, 5.0),
    "a release": lambda queue, _: queue.release("held"),
    "a redrive": lambda queue, _: queue.redrive(1),
}


@pytest.mark.parametrize("way", WAYS)
def test_who_sleeps_is_woken_by(way: str) -> None:
    shared = SharedMemoryQueue(ManualClock())
    queue = InMemoryTransport(shared)
    for group_id in ("dead", "held", "g", "g"):
        queue.publish(group_id, EVENT)
    dead, _, lease = queue.claim_many("w", LONG_S, 3)
    assert queue.reject(dead, "a reason")
    assert queue.hold("held")
    woken: list[str] = []
    assert shared.sleeper(lambda: woken.append(way), shared.version)
    WAYS[way](queue, lease)
    assert woken == [way]
