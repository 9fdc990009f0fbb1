"""What a caller may rely on waits for the disk: only a claim, a nack and an extension may be soft. Promise 3."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harel import Lease, Message, Transport
from tests.postgres.stage import Stage, event

LONG_S = 600.0

WAYS: dict[str, Callable[[Transport, list[Lease]], object]] = {
    "publish": lambda queue, _: queue.publish("a", event("m2")),
    "publish to a new group": lambda queue, _: queue.publish("new", event("m1")),
    "publish_many": lambda queue, _: queue.publish_many([Message("a", event("m2")), Message("new", event("m1"))]),
    "ack": lambda queue, leases: queue.ack(leases[0]),
    "ack_many": lambda queue, leases: queue.ack_many(leases),
    "reject": lambda queue, leases: queue.reject(leases[0], "a reason"),
    "redrive": lambda queue, _: queue.redrive(1),
    "hold": lambda queue, _: queue.hold("a"),
    "release": lambda queue, _: queue.release("held"),
    "purge": lambda queue, _: queue.purge("held"),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_commit_waits_for_the_disk(stage: Stage, way: str) -> None:
    queue = stage.open()
    for group_id in ("dead", "held", "a", "b"):
        queue.publish(group_id, event("m1"))
    dead = queue.claim("w", LONG_S)
    assert dead is not None
    assert dead.seq == 1
    assert queue.reject(dead, "a reason")
    assert queue.hold("held")
    leases = queue.claim_many("w", LONG_S, 2)
    actor = stage.actor()
    # In the caller's transaction the setting that an operation leaves is the one that its own commit goes by.
    actor.begin()
    assert WAYS[way](actor.queue, leases) not in (False, 0)
    assert actor.connection.execute("SHOW synchronous_commit").fetchone() == ("on",)
