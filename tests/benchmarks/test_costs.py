"""What a message costs, as counts that no machine's speed changes: bytes, statements, steps, log, calls of functions.

Each bound is some tenths above what was counted when it was set, so that a cost that comes back is seen, and a driver
or an interpreter that does a little more is not. What an operation sends and reads as the queue grows is bounded where
its backend is tested.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis

from benchmarks.meters import METERS, PostgresMeter
from harel import AsyncWorker, Event, Lease, Message, Transport
from harel.engine.aio_transport import AsyncInMemoryTransport, AsyncPostgresTransport
from harel.engine.transport import InMemoryTransport, PostgresTransport, RedisTransport, SqliteTransport
from tests.servers.postgres import PostgresServer
from tests.servers.redis import server as redis_server

pytestmark = pytest.mark.timeout(600)  # it starts servers, on a machine that may be busy

BATCH = 100
"""Messages at once, each of a group of its own: two to each group, so that none drains at the first."""
TURNS = 3
TURNS_OF_ONE = 20
"""After some of which a driver has prepared its statements."""

Cost = Callable[[Callable[[], Any]], int]


def messages() -> list[Message]:
    events = (Event("order.shipped", {"order": 1_000 + n, "carrier": "a small message"}) for n in range(BATCH))
    return [Message(f"order-{n:07}", event) for n, event in enumerate(events)]


def in_batches(queue: Transport, cost: Cost) -> dict[str, float]:
    """Return what each operation costs a message in batches: the least of some turns, since caches and pages fill."""
    turns = [_turn_of_many(queue, cost) for _ in range(TURNS)]
    return {name: min(turn[name] for turn in turns) / BATCH for name in turns[0]}


def _turn_of_many(queue: Transport, cost: Cost) -> dict[str, int]:
    first: list[Lease] = []
    last: list[Lease] = []
    found = {
        "publish to new groups": cost(lambda: queue.publish_many(messages())),
        "publish": cost(lambda: queue.publish_many(messages())),
        "claim": cost(lambda: first.extend(queue.claim_many("w", 30.0, BATCH))),
        "ack": cost(lambda: queue.ack_many(first)),
    }
    last += queue.claim_many("w", 30.0, BATCH)
    found["ack of a group's last"] = cost(lambda: queue.ack_many(last))
    assert len(first) == len(last) == BATCH
    assert queue.stats().messages == 0
    return found


def one_by_one(queue: Transport, cost: Cost) -> dict[str, float]:
    """Return what each operation costs, to a group that has others: the least of many turns."""
    message, *_ = messages()
    queue.publish(message.group_id, message.event)
    turns = [_turn_of_one(queue, message, cost) for _ in range(TURNS_OF_ONE)]
    assert queue.purge(message.group_id) == 1
    return {name: min(turn[name] for turn in turns) for name in turns[0]}


def _turn_of_one(queue: Transport, message: Message, cost: Cost) -> dict[str, int]:
    leases: list[Lease | None] = []
    found = {
        "publish": cost(lambda: queue.publish(message.group_id, message.event)),
        "claim": cost(lambda: leases.append(queue.claim("w", 30.0))),
    }
    (lease,) = leases
    assert lease is not None
    return found | {"ack": cost(lambda: queue.ack(lease))}


def assert_within(found: Mapping[str, float], most: Mapping[str, float]) -> None:
    assert set(found) == set(most)
    dearer = {name: (cost, most[name]) for name, cost in found.items() if cost > most[name]}
    assert not dearer, found


# PostgreSQL


class Postgres:
    """A queue on a server of its own, whose log nobody else writes."""

    def __init__(self, server: PostgresServer, meter: PostgresMeter) -> None:
        self.queue = PostgresTransport.from_dsn(server.url, min_size=1, max_size=1)
        self._meter = meter
        self._side = psycopg.connect(server.url, autocommit=True)

    def bytes_of(self, do: Callable[[], Any]) -> int:
        """Count them; the client library writes replies down only when the next request is sent."""
        return self._bytes_up_to_the_next(do) - self._bytes_up_to_the_next(lambda: None)

    def _bytes_up_to_the_next(self, do: Callable[[], Any]) -> int:
        self.queue.stats()
        before = self._meter.count_bytes()
        do()
        self.queue.stats()
        return self._meter.count_bytes() - before

    def log_of(self, do: Callable[[], Any]) -> int:
        before = self._place()
        do()
        return self._place() - before

    def _place(self) -> int:
        ((place,),) = self._side.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchall()
        return int(place)

    def close(self) -> None:
        self.queue.close()
        self._side.close()


@pytest.fixture(scope="module")
def pg_server() -> Iterator[PostgresServer]:
    quiet = ("autovacuum=off", "wal_level=minimal", "max_wal_senders=0", "full_page_writes=off", "fsync=off")
    server = PostgresServer(*quiet, "max_connections=20", "shared_buffers=32MB")
    yield server
    server.remove()


@pytest.fixture
def pg(pg_server: PostgresServer) -> Iterator[Postgres]:
    with METERS["postgres"]() as meter:
        assert isinstance(meter, PostgresMeter)
        with closing(Postgres(pg_server, meter)) as postgres:
            yield postgres


def test_bytes_between_postgres_and_its_client(pg: Postgres) -> None:
    """An event is about 130 bytes of these, where it is published and where it is claimed."""
    most = {"publish to new groups": 220, "publish": 220, "claim": 340, "ack": 145, "ack of a group's last": 145}
    assert_within(in_batches(pg.queue, pg.bytes_of), most)
    assert_within(one_by_one(pg.queue, pg.bytes_of), {"publish": 375, "claim": 790, "ack": 220})


def test_log_that_postgres_writes(pg: Postgres) -> None:
    """What is in the log has to reach the disk: rows, and an entry in each index that a change touches.

    An index more is some seventy bytes, and has to be seen.
    """
    most = {"publish to new groups": 890, "publish": 410, "claim": 480, "ack": 520, "ack of a group's last": 320}
    assert_within(in_batches(pg.queue, pg.log_of), most)
    assert_within(one_by_one(pg.queue, pg.log_of), {"publish": 440, "claim": 440, "ack": 440})


# Redis


def test_bytes_between_redis_and_its_client() -> None:
    """A script's name and the keys that it declares are sent with every call, and shared by those of a batch."""
    server = redis_server()
    try:
        with (
            redis.Redis.from_url(server.connection_url) as client,
            RedisTransport.from_url(server.connection_url) as queue,
        ):
            batches = in_batches(queue, lambda do: _bytes_for(client, do))
            ones = one_by_one(queue, lambda do: _bytes_for(client, do))
    finally:
        server.terminate()
    most = {"publish to new groups": 215, "publish": 215, "claim": 220, "ack": 95, "ack of a group's last": 95}
    assert_within(batches, most)
    assert_within(ones, {"publish": 580, "claim": 660, "ack": 430})


def _bytes_for(client: redis.Redis, do: Callable[[], Any]) -> int:
    """Return what a call adds to what asking takes by itself."""
    first, second = _bytes(client), _bytes(client)
    do()
    return _bytes(client) - second - (second - first)


def _bytes(client: redis.Redis) -> int:
    stats: Any = client.info("stats")
    return int(stats["total_net_input_bytes"]) + int(stats["total_net_output_bytes"])


# SQLite


@pytest.fixture
def file(tmp_path: Path) -> Iterator[tuple[SqliteTransport, sqlite3.Connection]]:
    """A queue, and the connection that it writes with."""
    with SqliteTransport(tmp_path / "queue.db", synchronous="OFF") as queue:
        queue.publish("warm-up", Event("k"))
        assert queue.purge("warm-up") == 1
        writer = queue._file._writer.connection
        assert writer is not None
        yield queue, writer


def test_statements_of_sqlite(file: tuple[SqliteTransport, sqlite3.Connection]) -> None:
    """BEGIN and COMMIT among them: a batch is published by four and claimed by three; each ack takes three."""
    queue, writer = file

    def statements_of(do: Callable[[], Any]) -> int:
        sent: list[str] = []
        writer.set_trace_callback(sent.append)
        do()
        writer.set_trace_callback(None)
        return len(sent)

    most = {"publish to new groups": 0.04, "publish": 0.04, "claim": 0.03, "ack": 3.03, "ack of a group's last": 3.03}
    assert_within(in_batches(queue, statements_of), most)
    assert_within(one_by_one(queue, statements_of), {"publish": 4, "claim": 3, "ack": 6})


def test_steps_of_sqlite(file: tuple[SqliteTransport, sqlite3.Connection]) -> None:
    """A step is an instruction of SQLite's virtual machine."""
    queue, writer = file

    def steps_of(do: Callable[[], Any]) -> int:
        steps = 0

        def step() -> int:
            nonlocal steps
            steps += 1
            return 0

        writer.set_progress_handler(step, 1)
        do()
        writer.set_progress_handler(None, 1)
        return steps

    most = {"publish to new groups": 90, "publish": 65, "claim": 180, "ack": 215, "ack of a group's last": 180}
    assert_within(in_batches(queue, steps_of), most)


# Python


@contextmanager
def counting_calls() -> Iterator[Callable[[], int]]:
    """Count the calls of Python functions that this thread makes; a generator or coroutine that goes on is called."""
    calls = 0

    def count(_: Any, event: str, __: Any) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        yield lambda: calls
    finally:
        sys.setprofile(before)


def calls_of(do: Callable[[], Any]) -> int:
    with counting_calls() as calls:
        do()
    return calls()


def test_calls_of_a_queue_in_memory() -> None:
    with InMemoryTransport() as queue:
        most = {"publish to new groups": 22, "publish": 17, "claim": 9, "ack": 9, "ack of a group's last": 10}
        assert_within(in_batches(queue, calls_of), most)
        assert_within(one_by_one(queue, calls_of), {"publish": 28, "claim": 37, "ack": 30})


def test_calls_of_a_queue_in_a_file(tmp_path: Path) -> None:
    with SqliteTransport(tmp_path / "queue.db", synchronous="OFF") as queue:
        most = {"publish to new groups": 15, "publish": 15, "claim": 0.7, "ack": 3.5, "ack of a group's last": 3.5}
        assert_within(in_batches(queue, calls_of), most)
        assert_within(one_by_one(queue, calls_of), {"publish": 55, "claim": 60, "ack": 67})


def test_calls_of_an_async_queue_in_postgres(pg_server: PostgresServer) -> None:
    """Lists are written as text at once; the driver would call more than thirty functions for a published message."""

    async def batches() -> dict[str, float]:
        async with AsyncPostgresTransport(pg_server.url, min_size=1, max_size=1) as queue:
            await queue.stats()
            found = {}
            with counting_calls() as calls:
                await queue.publish_many(messages())
                found["publish"] = calls()
                leases = await queue.claim_many("w", 30.0, BATCH)
                found["claim"] = calls() - found["publish"]
                assert await queue.ack_many(leases) == [True] * BATCH
                found["ack"] = calls() - found["claim"] - found["publish"]
        return {name: count / BATCH for name, count in found.items()}

    assert_within(asyncio.run(batches()), {"publish": 25, "claim": 12, "ack": 8})


@pytest.mark.parametrize(("groups", "most"), [(10, 86), (1_000, 70)])
def test_calls_of_the_worker(groups: int, most: float) -> None:
    """All that a message takes of a worker in memory: claimed in batches, handed on, settled in batches."""
    handled, count = 0, 5_000

    async def work() -> int:
        async with AsyncInMemoryTransport() as queue:
            await queue.publish_many([Message(f"g{n % groups}", Event("k")) for n in range(count)])

            async def handler(_: Event) -> None:
                nonlocal handled
                handled += 1
                if handled == count:
                    worker.stop()

            worker = AsyncWorker(queue, handler, concurrency=100)
            with counting_calls() as calls:
                await worker.run()
            return calls()

    assert asyncio.run(work()) / count <= most
    assert handled == count
