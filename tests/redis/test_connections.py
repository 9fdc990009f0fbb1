"""Connections that break, hang or are taken away: no operation twice, no broken connection to the next caller."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Any

import pytest
import redis
import redis.asyncio

from harel import Event, InvalidArgument, TransportUnavailable
from harel.engine.aio_transport import AsyncRedisTransport
from tests.redis.cable import Cable
from tests.redis.conftest import Twin

EVENT = Event("noted", {"n": 1})


def test_a_connection_that_was_killed_while_idle_is_replaced(twin: Twin, onlooker: redis.Redis) -> None:
    queue = twin.open(client_name="victim")
    queue.publish("g", EVENT)
    for _ in range(2):
        kill(onlooker, "victim")
        queue.publish("g", EVENT)
    assert queue.stats().messages == 3


def test_a_connection_that_dies_before_the_reply_leaves_nothing_broken_behind(twin: Twin) -> None:
    twin.load_scripts()
    with Cable(twin.url) as cable:
        queue = twin.open(cable.url)
        for operation in (
            lambda: queue.publish("g", EVENT),
            lambda: queue.claim("w", 30.0),
            lambda: queue.stats(),
        ):
            queue.peek("g")
            cable.cut_at_next_reply()
            with pytest.raises(TransportUnavailable, match=r"127\.0\.0\.1:\d+.*may have happened"):
                operation()
        stats = queue.stats()
        assert (stats.messages, stats.leased) == (1, 1)


def test_a_claim_whose_reply_was_lost_runs_out_with_its_visibility_promises_3_and_6(twin: Twin) -> None:
    twin.load_scripts()
    with Cable(twin.url) as cable:
        queue = twin.open(cable.url)
        queue.publish("g", EVENT)
        cable.cut_at_next_reply()
        with pytest.raises(TransportUnavailable):
            queue.claim("w", 0.05)
        assert queue.wait(30.0) is True
        lease = queue.claim("w", 30.0)
        assert lease is not None
        assert lease.attempt == 2


def test_a_reply_that_does_not_come_in_time_is_an_error_and_does_not_go_to_the_next_caller(twin: Twin) -> None:
    twin.load_scripts()
    with Cable(twin.url) as cable:
        queue = twin.open(cable.url, timeout=2.0)
        queue.publish("g", EVENT)
        cable.hold()
        with pytest.raises(TransportUnavailable, match="may have happened"):
            queue.claim("w", 30.0)
        cable.release()
        assert queue.stats().leased == 1


@pytest.mark.parametrize("listens", [False, True])
def test_a_server_that_cannot_be_reached_is_named(twin: Twin, listens: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        if not listens:
            listener.close()
        with pytest.raises(TransportUnavailable, match=address) as raised:
            twin.open(f"redis://user:secret@{address}/0", timeout=0.2).stats()
    assert "secret" not in str(raised.value)
    assert raised.value.__cause__ is not None


def test_a_closed_transport_closes_its_connections_and_serves_no_more(twin: Twin, onlooker: redis.Redis) -> None:
    queue = twin.open(client_name="leaving")
    queue.publish("g", EVENT)
    assert named(onlooker, "leaving")
    queue.close()
    queue.close()
    with pytest.raises(InvalidArgument, match="closed"):
        queue.publish("g", EVENT)
    while named(onlooker, "leaving"):
        pass


async def test_a_task_cancelled_inside_an_operation_leaves_its_reply_to_nobody(twin: Twin) -> None:
    if not twin.is_async:
        return
    twin.load_scripts()
    with Cable(twin.url) as cable:
        own = await AsyncRedisTransport.from_url(cable.url, prefix=twin.prefix).open()
        client = redis.asyncio.Redis.from_url(cable.url)
        lent = await AsyncRedisTransport(client, prefix=twin.prefix).open()
        direct = await AsyncRedisTransport.from_url(twin.url, prefix=twin.prefix).open()
        for n, queue in enumerate((own, lent), 1):
            await queue.publish("g", EVENT)
            cable.hold()
            claiming = asyncio.create_task(queue.claim("w", 30.0))
            await asyncio.to_thread(cable.asked.wait)
            claiming.cancel()
            with pytest.raises(asyncio.CancelledError):
                await claiming
            while not (await direct.stats()).leased:
                """The server has what was sent, and may not have come to it yet."""
            cable.release()
            assert await queue.release("g") is False
            assert (await queue.stats()).messages == n
        for transport in (own, lent, direct):
            await transport.close()
        await client.aclose()


@pytest.mark.parametrize("protocol", [2, 3])
def test_an_interrupt_between_request_and_reply_leaves_the_reply_to_nobody(
    twin: Twin, monkeypatch: pytest.MonkeyPatch, protocol: int
) -> None:
    client = twin.client(protocol=protocol)
    queue = twin.open_on(client)
    queue.publish("g", EVENT)

    def interrupted(*_: object, **__: object) -> object:
        monkeypatch.undo()
        raise KeyboardInterrupt

    connection: Any = redis.asyncio.Connection if twin.is_async else redis.Connection
    monkeypatch.setattr(connection, "read_response", interrupted)
    with pytest.raises(KeyboardInterrupt):
        queue.claim("w", 30.0)
    assert queue.release("g") is False
    assert queue.stats().leased == 1
    twin.close_client(client)


async def test_a_cancellation_that_the_driver_swallows_is_kept(twin: Twin, monkeypatch: pytest.MonkeyPatch) -> None:
    if not twin.is_async:
        return
    async with AsyncRedisTransport.from_url(twin.url, prefix=twin.prefix) as queue:
        await queue.publish("g", EVENT)
        send: Any = redis.asyncio.Connection.send_packed_command

        async def swallowing(self: Any, *args: Any, **options: Any) -> None:
            monkeypatch.undo()
            await send(self, *args, **options)
            claiming.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0)

        monkeypatch.setattr(redis.asyncio.Connection, "send_packed_command", swallowing)
        claiming = asyncio.create_task(queue.claim("w", 30.0))
        with pytest.raises(asyncio.CancelledError):
            await claiming
        assert await queue.release("g") is False
        assert (await queue.stats()).messages == 1


async def test_a_task_cancelled_while_it_connects_leaves_no_half_made_connection(twin: Twin) -> None:
    if not twin.is_async:
        return
    twin.load_scripts()
    with Cable(twin.url) as cable:
        queue = AsyncRedisTransport.from_url(f"{cable.url}/5", prefix=twin.prefix, client_name="c")
        cable.hold()
        opening = asyncio.create_task(queue.open())
        await asyncio.to_thread(cable.asked.wait)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        cable.release()
        await queue.publish("g", EVENT)
        async with redis.asyncio.Redis.from_url(f"{twin.url}/5") as client:
            assert await client.hget(f"{{{twin.prefix}}}:meta", "seq") == b"1"
        assert await queue.purge("g") == 1
        await queue.close()


async def test_more_tasks_than_connections_take_turns(twin: Twin) -> None:
    if not twin.is_async:
        return
    async with AsyncRedisTransport.from_url(twin.url, prefix=twin.prefix, client_name="many") as queue:
        await asyncio.gather(*(queue.publish(f"g{n}", EVENT) for n in range(500)))
        leases = await asyncio.gather(*(queue.claim("w", 30.0) for _ in range(500)))
        assert len({lease.group_id for lease in leases if lease is not None}) == 500
        async with redis.asyncio.Redis.from_url(twin.url) as client:
            assert len([one for one in await client.client_list() if one["name"] == "many"]) <= 50


def named(onlooker: redis.Redis, name: str) -> list[str]:
    return [one["id"] for one in onlooker.client_list() if one["name"] == name]


def kill(onlooker: redis.Redis, name: str) -> None:
    for identity in named(onlooker, name):
        onlooker.client_kill_filter(_id=identity)
