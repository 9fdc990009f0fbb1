"""``transactional=True``: what a handler writes and its message's settlement happen together, or not at all."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harel import (
    AsyncWorker,
    Event,
    LeaseLost,
    NotSupported,
    Observer,
    Reject,
    RetryPolicy,
    Transport,
    TransportUnavailable,
    Worker,
    connect,
)
from harel.engine.queue.contract import Capabilities
from harel.engine.transport import InMemoryTransport
from harel.engine.worker.policy import Done, Verdict
from harel.testing import Blocking, ManualClock
from tests.backends import BACKENDS, Backend
from tests.worker.driving import DEADLINE_S, FakeTiming, Running, Watched, messages, settled


class Bound:
    """What is done in a transaction of :class:`Transacting`."""

    def __init__(self, queue: Transacting, connection: list[str]) -> None:
        self._queue = queue
        self._connection = connection

    async def ack(self, lease: Any) -> None:
        if not (await Watched.ack_many(self._queue, [lease]))[0]:
            raise LeaseLost("it is another's")

    async def publish(self, group_id: str, event: Event, priority: int = 0) -> None:
        self._connection.append(f"published {group_id}")


class Transacting(Watched):
    """A queue in memory with transactions as a database has them, as far as a worker can tell."""

    max_transactions = 2

    def __init__(self, clock: ManualClock | None = None) -> None:
        super().__init__(clock)
        self.rows: list[str] = []
        self.active = self.most = self.rolled_back = 0
        self.unavailable = ""

    @property
    def capabilities(self) -> Capabilities:
        return msgspec.structs.replace(super().capabilities, bind=True)

    def bind(self, connection: Any) -> Any:
        return Bound(self, connection)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[list[str]]:
        if self.unavailable == "begin":
            raise TransportUnavailable("db:5432 does not answer.")
        written: list[str] = []
        self.active += 1
        self.most = max(self.most, self.active)
        try:
            yield written
        except BaseException:
            self.rolled_back += 1
            raise
        finally:
            self.active -= 1
        self.rows += written
        if self.unavailable == "commit":
            raise TransportUnavailable("db:5432 did not answer.")


async def write(event: Event, context: Any) -> None:
    context.connection.append(event.kind)
    await context.publish("audit", event)


async def test_a_handlers_writes_and_publishes_are_committed_with_the_settlement() -> None:
    async with Transacting() as queue:
        await queue.publish("a", Event("placed"))
        assert await AsyncWorker(queue, write, transactional=True).step()
        assert queue.rows == ["placed", "published audit"]
        assert queue.named("ack") == [["a"]]
        assert (await queue.stats()).messages == 0


async def test_a_handler_that_fails_has_all_rolled_back_and_its_message_retried() -> None:
    async def handle(event: Event, context: Any) -> None:
        context.connection.append("half")
        raise RuntimeError("no luck")

    async with Transacting() as queue:
        await queue.publish("a", Event("placed"))
        policy = RetryPolicy(backoff=3.0, jitter=0.0)
        assert await AsyncWorker(queue, handle, transactional=True, retry=policy).step()
        assert (queue.rows, queue.rolled_back) == ([], 1)
        assert queue.named("nack") == [("a", 3.0)]


async def test_a_rejected_message_has_its_writes_rolled_back() -> None:
    async def handle(event: Event, context: Any) -> None:
        context.connection.append("half")
        raise Reject("never")

    async with Transacting() as queue:
        await queue.publish("a", Event("placed"))
        assert await AsyncWorker(queue, handle, transactional=True).step()
        assert queue.rows == []
        assert queue.named("reject") == [("a", "never")]


async def test_a_lost_lease_rolls_back_and_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    others: list[Any] = []

    async def handle(event: Event, context: Any) -> None:
        context.connection.append("too late")
        clock.advance(31.0)
        others.append(await queue.claim("other", 1_000.0))

    async with Transacting(clock) as queue:
        await queue.publish("a", Event("placed"))
        with caplog.at_level(logging.WARNING, "harel.worker"):
            assert await AsyncWorker(queue, handle, transactional=True).step()
        assert (queue.rows, queue.rolled_back) == ([], 1)
        assert [record.getMessage() for record in caplog.records] == [
            "The lease of group 'a', seq 1, attempt 1 was lost; what its handler did is not settled."
        ]
        assert queue.named("nack") == queue.named("reject") == []
        assert await queue.ack(others[0])


async def test_a_lost_lease_cancels_a_handler_in_its_transaction() -> None:
    clock = ManualClock()
    timing = FakeTiming(clock)

    async def handle(event: Event, context: Any) -> None:
        context.connection.append("too late")
        await asyncio.Event().wait()

    async with Transacting(clock) as queue:
        await queue.publish("a", Event("placed"))
        running = Running(AsyncWorker(queue, handle, transactional=True, concurrency=1), timing)
        await settled()
        clock.advance(31.0)
        assert await queue.claim("other", 1_000.0) is not None
        await timing.advance(10.0)
        assert (queue.rows, queue.rolled_back) == ([], 1)
        await running.stopped()


class SlowToCommit(Transacting):
    """Its transactions commit when a test lets them."""

    def __init__(self) -> None:
        super().__init__()
        self.committing = asyncio.Event()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[list[str]]:
        async with super().transaction() as connection:
            yield connection
            await self.committing.wait()


async def test_a_renewal_that_crosses_the_commit_is_no_loss(caplog: pytest.LogCaptureFixture) -> None:
    """The settlement waits in the transaction, and the renewal finds the lease settled: it is ours all the same."""
    timing = FakeTiming()
    go = asyncio.Event()

    async def handle(event: Event, context: Any) -> None:
        await go.wait()

    async with SlowToCommit() as queue:
        await queue.publish("a", Event("placed"))
        queue.slow["extend"] = asyncio.Event()
        running = Running(AsyncWorker(queue, handle, transactional=True, visibility=30.0), timing)
        await timing.advance(10.0)
        assert queue.named("extend") == [["a"]]
        go.set()
        await settled()
        with caplog.at_level(logging.WARNING, "harel.worker"):
            queue.slow["extend"].set()
            await settled()
            queue.committing.set()
            await running.stopped()
        assert caplog.records == []
        assert queue.rolled_back == 0


async def test_a_commit_that_is_under_way_when_the_worker_ends_is_left_to_end() -> None:
    timing = FakeTiming()
    verdicts: list[Verdict] = []

    class Noting(Observer):
        def settled(self, lease: Any, verdict: Verdict, handled_s: float, error: BaseException | None) -> None:
            verdicts.append(verdict)

    async with SlowToCommit() as queue:
        await queue.publish("a", Event("placed"))
        worker = AsyncWorker(queue, write, transactional=True, drain_timeout=5.0, observers=[Noting()])
        running = Running(worker, timing)
        await settled()
        worker.stop()
        await timing.advance(6.0)
        queue.committing.set()
        await timing.advance(1.0)
        await asyncio.wait_for(running.task, DEADLINE_S)
        assert (queue.rows, queue.rolled_back) == (["placed", "published audit"], 0)
        assert verdicts == [Done()]
        assert queue.named("nack") == []


async def test_no_more_run_at_once_than_there_can_be_transactions() -> None:
    timing = FakeTiming()
    go = asyncio.Event()

    async def handle(event: Event, context: Any) -> None:
        await go.wait()

    async with Transacting() as queue:
        await queue.publish_many(messages(groups=6, each=1))
        running = Running(AsyncWorker(queue, handle, transactional=True, concurrency=16), timing)
        await settled()
        assert (queue.active, (await queue.stats()).leased) == (2, 2)
        go.set()
        await timing.advance(1.0)
        assert (queue.most, (await queue.stats()).messages) == (2, 0)
        await running.stopped()


@pytest.mark.parametrize("where", ["begin", "commit"])
async def test_a_transaction_that_the_server_fails_is_a_failure_like_any(where: str) -> None:
    async with Transacting() as queue:
        await queue.publish("a", Event("placed"))
        queue.unavailable = where
        policy = RetryPolicy(backoff=3.0, jitter=0.0)
        assert await AsyncWorker(queue, write, transactional=True, retry=policy).step()
        assert queue.named("nack") == [("a", 3.0)]
        if where == "commit":
            assert await queue.groups() == [], "it did happen, and the nack found nothing to give back"
        else:
            assert queue.rows == []


async def test_one_transaction_at_a_time_needs_no_renewals() -> None:
    """It keeps everybody else from claiming, so a renewal could only wait for its end."""
    timing = FakeTiming()
    go = asyncio.Event()

    class One(Transacting):
        max_transactions = 1

        async def extend(self, lease: Any, visibility: float) -> bool:
            raise AssertionError("on a real database this would wait for its own transaction")

    async def handle(event: Event, context: Any) -> None:
        assert await context.extend()
        await go.wait()

    async with One() as queue:
        await queue.publish_many(messages(groups=2, each=1))
        running = Running(AsyncWorker(queue, handle, transactional=True, visibility=30.0), timing)
        await timing.advance(200.0)
        assert queue.named("extend") == []
        assert queue.active == 1
        go.set()
        await running.stopped()


async def test_the_last_attempt_before_a_hold_leaves_none_behind() -> None:
    policy = RetryPolicy(max_attempts=1, on_exhausted="hold")
    async with Transacting() as queue:
        await queue.publish("a", Event("placed"))
        await queue.publish("a", Event("paid"))
        assert await AsyncWorker(queue, write, transactional=True, retry=policy).step()
        assert queue.rows == ["placed", "published audit"]
        assert (await queue.groups())[0].state == "ready"


def test_a_backend_without_transactions_refuses() -> None:
    with pytest.raises(NotSupported, match=r"capabilities\.bind is False"):
        Worker(InMemoryTransport(), lambda event: None, transactional=True)


SQL_BACKENDS = [backend for backend in BACKENDS if backend.name.split("-")[0] in ("sqlite", "postgres")]


@pytest.fixture(params=SQL_BACKENDS, ids=lambda backend: backend.name)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    backend: Backend = request.param
    with backend.subject(tmp_path) as subject:
        queue = subject.open()
        if not queue.capabilities.bind:
            pytest.skip("capabilities.bind is False")
        yield queue


def written(queue: Transport, statement: str) -> list[Any]:
    """Run a statement in a transaction of the transport's, and return its rows."""
    if not isinstance(queue, Blocking):
        with queue.transaction() as connection:
            return (
                list(connection.execute(statement).fetchall())
                if "SELECT" in statement
                else [connection.execute(statement)]
            )

    async def run() -> list[Any]:
        async with queue.inner.transaction() as connection:
            cursor = await connection.execute(statement)
            return list(await cursor.fetchall()) if "SELECT" in statement else []

    return list(queue.runner.run(run()))


@pytest.mark.parametrize("fails", [False, True])
def test_on_a_real_database(database: Transport, fails: bool, tmp_path: Path) -> None:
    """The rows of a handler that failed are not there, those of one that did not are, and its publish too."""
    table = f"effects_{tmp_path.name.replace('-', '_')}"[:60]
    table = "".join(character if character.isalnum() else "_" for character in table)
    written(database, f"CREATE TABLE {table} (kind TEXT)")
    insert = f"INSERT INTO {table} VALUES ('placed')"
    database.publish("a", Event("placed"))
    try:
        if isinstance(database, Blocking):

            async def awaiting(event: Event, context: Any) -> None:
                await context.connection.execute(insert)
                await context.publish("b", Event("confirmed"))
                if fails:
                    raise RuntimeError("no luck")

            assert database.runner.run(AsyncWorker(database.inner, awaiting, transactional=True).step())
        else:

            def handle(event: Event, context: Any) -> None:
                context.connection.execute(insert)
                context.publish("b", Event("confirmed"))
                if fails:
                    raise RuntimeError("no luck")

            assert Worker(database, handle, transactional=True).step()
        rows = written(database, f"SELECT kind FROM {table}")
        assert len(rows) == (0 if fails else 1)
        groups = {group.group_id: group.state for group in database.groups()}
        assert groups == ({"a": "parked"} if fails else {"b": "ready"})
    finally:
        written(database, f"DROP TABLE {table}")


def test_a_sync_worker_runs_through_a_backlog_in_transactions(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/queue.db"
    with connect(url) as queue:
        if not queue.capabilities.bind:
            pytest.skip("capabilities.bind is False")
        with queue.transaction() as connection:
            connection.execute("CREATE TABLE effects (group_id TEXT, n INTEGER)")
        queue.publish_many(messages(groups=4, each=5))
        tries: dict[tuple[str, int], int] = {}

        def handle(event: Event, context: Any) -> None:
            message = (context.lease.group_id, event.payload["n"])
            context.connection.execute("INSERT INTO effects VALUES (?, ?)", message)
            tries[message] = tries.get(message, 0) + 1
            if message[1] == 2 and tries[message] == 1:
                raise RuntimeError("once")
            if len(tries) == 20 and message[1] == 4 and sum(tries.values()) == 24:
                worker.stop()

        worker = Worker(queue, handle, transactional=True, retry=RetryPolicy(backoff=0.0))
        worker.run()
    with sqlite3.connect(f"{tmp_path}/queue.db") as file:
        rows = file.execute("SELECT group_id, n FROM effects ORDER BY rowid").fetchall()
    file.close()
    assert len(rows) == 20
    assert {g: [n for group, n in rows if group == g] for g, _ in rows} == {f"g{g}": list(range(5)) for g in range(4)}
