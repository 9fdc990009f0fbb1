"""The server's clock, its restarts, and its refusals."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from harel import Event, Message, Transport, TransportUnavailable
from tests.redis.conftest import Twin
from tests.servers.redis import server

EVENT = Event("noted", {"n": 1})


@pytest.mark.parametrize("hours", [-26.0, 26.0])
def test_a_worker_whose_clock_is_hours_off_changes_nothing_promise_11(
    twin: Twin, queue: Transport, onlooker: redis.Redis, monkeypatch: pytest.MonkeyPatch, hours: float
) -> None:
    queue.publish_many([Message("a", EVENT), Message("b", EVENT)])
    held = queue.claim("w", 600.0)
    assert held is not None
    honest = time.time
    monkeypatch.setattr(time, "time", lambda: honest() + hours * 3_600.0)
    skewed = twin.open()
    skewed.publish("c", EVENT)
    lease = skewed.claim("skewed", 600.0)
    assert lease is not None
    assert lease.group_id == "b"
    seconds, microseconds = onlooker.time()
    assert 0.0 <= seconds + microseconds / 1e6 + 600.0 - lease.expires_at < 120.0
    assert skewed.nack(lease, 600.0)
    third = skewed.claim("skewed", 600.0)
    assert third is not None
    assert third.group_id == "c"
    assert skewed.claim("skewed", 600.0) is None
    assert queue.claim("w", 600.0) is None
    assert skewed.extend(held, 600.0)
    states = {info.group_id: info.state for info in skewed.groups()}
    assert states == {"a": "leased", "b": "parked", "c": "leased"}
    assert all(0.0 <= seconds - info.since < 120.0 or abs(seconds - info.since) < 2.0 for info in skewed.groups())
    assert queue.ack(held)


def test_a_lease_is_measured_by_the_servers_clock_and_by_its_microseconds_promise_11(
    queue: Transport, onlooker: redis.Redis
) -> None:
    queue.publish("g", EVENT)
    before = _seconds(onlooker)
    lease = queue.claim("w", 600.0)
    assert lease is not None
    assert before <= lease.expires_at - 600.0 <= _seconds(onlooker)


def _seconds(onlooker: redis.Redis) -> float:
    seconds, microseconds = onlooker.time()
    return float(seconds + microseconds / 1e6)


def test_what_an_aof_server_answered_is_there_after_it_was_killed_promise_3(twin: Twin, tmp_path: Path) -> None:
    durable = server({"appendonly": "yes", "appendfsync": "always"}, tmp_path / "data")
    queue = twin.open(durable.connection_url)
    queue.publish_many(Message(name, EVENT) for name in "aabbcc")
    first, second = queue.claim_many("w", 600.0, 2)
    assert queue.ack(first)
    before = queue.groups()
    port = durable.port
    durable.terminate()
    with pytest.raises(TransportUnavailable, match=str(port)):
        queue.publish("a", EVENT)
    durable._desired_port = port
    durable.start()
    assert queue.groups() == before
    assert [message.seq for message in queue.peek("a")] == [2]
    assert queue.ack(second)
    queue.publish("a", EVENT)
    assert [message.seq for message in queue.peek("a")] == [2, 7]
    durable.terminate()


@pytest.fixture
def own(twin: Twin) -> Iterator[redis.Redis]:
    """The client of a server whose settings the test may change."""
    mine = server()
    twin.url = mine.connection_url
    with redis.Redis.from_url(mine.connection_url) as client:
        yield client
    mine.terminate()


def test_a_server_without_memory_refuses_a_publish_and_lets_the_queue_be_drained(twin: Twin, own: redis.Redis) -> None:
    queue = twin.open()
    queue.publish_many([Message("g", EVENT)] * 4)
    lease = queue.claim("w", 600.0)
    assert lease is not None
    own.config_set("maxmemory", 1)
    with pytest.raises(TransportUnavailable, match="memory"):
        queue.publish("g", EVENT)
    with pytest.raises(TransportUnavailable, match="memory"):
        queue.publish("new", EVENT)
    assert (queue.stats().messages, queue.stats().groups) == (4, 1)
    assert queue.extend(lease, 600.0)
    assert queue.ack(lease)
    lease = queue.claim("w", 600.0)
    assert lease is not None
    assert queue.nack(lease)
    lease = queue.claim("w", 600.0)
    assert lease is not None
    assert queue.reject(lease, "a reason")
    assert all(queue.ack_many(queue.claim_many("w", 600.0, 10)))
    own.config_set("maxmemory", 0)
    queue.publish("g", EVENT)
    assert [message.seq for message in queue.peek("g")] == [4, 5]


def test_a_replica_is_not_written_to(twin: Twin, own: redis.Redis) -> None:
    queue = twin.open()
    queue.publish("g", EVENT)
    own.replicaof("127.0.0.1", 1)
    own.config_set("replica-serve-stale-data", "yes")
    with pytest.raises(TransportUnavailable, match="replica"):
        queue.publish("g", EVENT)
    own.replicaof("NO", "ONE")
    queue.publish("g", EVENT)
    assert queue.stats().messages == 2


def test_a_script_that_runs_too_long_is_not_our_error_and_passes(twin: Twin, own: redis.Redis) -> None:
    queue = twin.open()
    queue.publish("g", EVENT)
    own.config_set("busy-reply-threshold", 1)
    with redis.Redis.from_url(twin.url, socket_timeout=60.0) as client:
        connection = client.connection_pool.get_connection()
        connection.send_command("EVAL", "while true do end", 0)
        while True:
            try:
                own.ping()
            except redis.ResponseError:
                break
        with pytest.raises(TransportUnavailable, match="BUSY"):
            queue.publish("g", EVENT)
        own.script_kill()
        with pytest.raises(redis.ResponseError):
            connection.read_response()
        client.connection_pool.release(connection)
    queue.publish("g", EVENT)
    assert queue.stats().messages == 2
