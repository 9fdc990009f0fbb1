"""Who waits is woken for what can be claimed, and not for a message that has to wait itself."""

from __future__ import annotations

import pytest
import redis

from harel import Event, Message
from tests.redis.conftest import Twin

EVENT = Event("noted", {"n": 1})
LONG_S = 600.0


@pytest.mark.parametrize("state", ["ready", "leased", "parked", "held"])
def test_a_message_behind_another_one_wakes_nobody(twin: Twin, onlooker: redis.Redis, state: str) -> None:
    queue = twin.open()
    queue.publish("g", EVENT)
    if state != "ready":
        lease = queue.claim("w", LONG_S)
        assert lease is not None
        if state == "parked":
            assert queue.nack(lease, LONG_S)
        if state == "held":
            assert queue.hold("g")
    channel = f"{{{twin.prefix}}}:meta"
    with onlooker.pubsub(ignore_subscribe_messages=True) as ear:  # type: ignore[no-untyped-call]
        ear.subscribe(channel)
        ear.get_message(timeout=LONG_S)  # the subscription stands
        queue.publish("g", EVENT)
        queue.publish_many([Message("g", EVENT), Message("g", EVENT)])
        onlooker.publish(channel, "the end")
        while (heard := ear.get_message(timeout=LONG_S)) is None:
            pass
    assert heard["data"] == b"the end"
