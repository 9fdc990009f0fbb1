"""What is sent: one script an operation, by its hash, over the keys that it declares. Promise 10."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import redis
from redis.crc import key_slot

from harel import Event, Lease, Message, SchemaMismatch, Transport
from harel.testing import ManualClock
from tests.redis.conftest import Twin
from tests.redis.watching import Watch, watching
from tests.servers.redis import keys_of

EVENT = Event("noted", {"n": 1})

CALLS: dict[str, Callable[[Transport, Lease], object]] = {
    "publish": lambda queue, lease: queue.publish("new", EVENT),
    "publish to a group that exists": lambda queue, lease: queue.publish(lease.group_id, EVENT),
    "publish_many": lambda queue, lease: queue.publish_many([Message("new", EVENT, 2), Message("g", EVENT)]),
    "claim": lambda queue, lease: queue.claim("w", 30.0),
    "claim with a floor": lambda queue, lease: queue.claim("w", 30.0, 3),
    "claim_many": lambda queue, lease: queue.claim_many("w", 30.0, 50),
    "ack": lambda queue, lease: queue.ack(lease),
    "ack_many": lambda queue, lease: queue.ack_many([lease, lease]),
    "nack": lambda queue, lease: queue.nack(lease),
    "nack with a delay": lambda queue, lease: queue.nack(lease, 60.0),
    "extend": lambda queue, lease: queue.extend(lease, 60.0),
    "reject": lambda queue, lease: queue.reject(lease, "a reason"),
    "stats": lambda queue, lease: queue.stats(),
    "groups": lambda queue, lease: queue.groups(),
    "peek": lambda queue, lease: queue.peek("g"),
    "hold": lambda queue, lease: queue.hold("g"),
    "release": lambda queue, lease: queue.release("held"),
    "purge": lambda queue, lease: queue.purge("g"),
    "dead_letters": lambda queue, lease: queue.dead_letters(),
    "dead_letters of a group": lambda queue, lease: queue.dead_letters(group_id="dead"),
    "redrive": lambda queue, lease: queue.redrive(1),
    "wait for what is there": lambda queue, lease: queue.wait(30.0),
}

each_call = pytest.mark.parametrize("name", CALLS)


@pytest.fixture
def lease(queue: Transport) -> Lease:
    """A queue with a bit of everything, and a lease on its group g of two messages."""
    queue.publish_many([Message("dead", EVENT), Message("parked", EVENT), Message("held", EVENT, 3)])
    for _ in range(3):
        claimed = queue.claim("w", 60.0)
        assert claimed is not None
        if claimed.group_id == "dead":
            queue.reject(claimed, "a reason")
        else:
            queue.nack(claimed, 60.0)
    assert queue.hold("held")
    queue.publish_many([Message("g", EVENT, 1), Message("g", EVENT), Message("other", EVENT)])
    claimed = queue.claim("w", 60.0)
    assert claimed is not None
    assert claimed.group_id == "g"
    return claimed


@pytest.fixture
def watch(twin: Twin) -> Iterator[Watch]:
    with watching(twin.url) as watch:
        yield watch


@each_call
def test_an_operation_is_one_round_trip_promise_10(
    twin: Twin, queue: Transport, lease: Lease, watch: Watch, name: str
) -> None:
    twin.load_scripts()
    command = watch.one(lambda: CALLS[name](queue, lease))
    assert command.words[0] == "EVALSHA"
    assert command.inner


@each_call
def test_a_script_declares_each_key_that_it_touches(
    twin: Twin, queue: Transport, lease: Lease, watch: Watch, name: str
) -> None:
    twin.load_scripts()
    command = watch.one(lambda: CALLS[name](queue, lease))
    touched = {word for words in command.inner for word in words if word.startswith("{")}
    assert touched <= set(command.keys)


@each_call
def test_an_operation_happens_once_when_the_server_forgot_its_script(
    queue: Transport, lease: Lease, onlooker: redis.Redis, watch: Watch, name: str
) -> None:
    onlooker.script_flush()
    first = watch.during(lambda: CALLS[name](queue, lease))
    assert [command.words[0] for command in first] == ["EVALSHA", "EVAL"]
    assert first[0].inner == []
    assert first[1].inner != []


def test_a_publish_after_a_flush_of_the_scripts_is_one_message(queue: Transport, onlooker: redis.Redis) -> None:
    onlooker.script_flush()
    queue.publish("g", EVENT)
    onlooker.script_flush()
    queue.publish("g", EVENT)
    assert [message.seq for message in queue.peek("g")] == [1, 2]


def test_all_keys_lie_in_the_slot_of_the_prefix(
    queue: Transport, lease: Lease, onlooker: redis.Redis, twin: Twin
) -> None:
    queue.publish_many(Message(f"}}{{{n}}}:{{", EVENT, n) for n in range(5))
    assert queue.reject(lease, "a reason")
    assert queue.claim("w", 30.0) is not None
    keys = keys_of(onlooker, twin.prefix)
    assert len(keys) == 12
    assert {key_slot(key) for key in keys} == {key_slot(twin.prefix.encode())}


def test_a_drained_queue_leaves_its_counters_and_nothing_else_promise_10(twin: Twin, onlooker: redis.Redis) -> None:
    clock = ManualClock()
    queue = twin.open(clock=clock)
    for priority in range(5):
        queue.publish_many(Message(f"g{n}", EVENT, priority) for n in range(4))
        leases = queue.claim_many("w", 60.0, 10)
        assert queue.nack(leases[0], 60.0)
        assert queue.extend(leases[1], 600.0)
        assert queue.hold("g2")
        assert queue.reject(leases[3], "a reason")
        assert queue.redrive(leases[3].seq)
        assert queue.ack(leases[2])
        assert queue.release("g2")
        assert queue.purge("g3") == 1
        clock.advance(700.0)
        assert all(queue.ack_many(queue.claim_many("w", 60.0, 10)))
    assert keys_of(onlooker, twin.prefix) == [f"{{{twin.prefix}}}:meta".encode()]
    assert onlooker.hgetall(f"{{{twin.prefix}}}:meta") == {b"schema": b"1", b"seq": b"25", b"arrivals": b"25"}


def test_a_layout_newer_than_this_harel_is_refused(queue: Transport, twin: Twin, onlooker: redis.Redis) -> None:
    onlooker.hset(f"{{{twin.prefix}}}:meta", "schema", 2)
    with pytest.raises(SchemaMismatch, match=r"version 2 .* version 1"):
        twin.open().stats()
