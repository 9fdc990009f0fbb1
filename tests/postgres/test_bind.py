"""Publishing and settling inside a transaction of the caller's: all of it happens, or nothing."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import psycopg
import psycopg_pool
import pytest

from harel import InvalidArgument, LeaseLost, Message, NotSupported, TransportUnavailable
from harel.engine.aio_transport import AsyncPostgresTransport
from harel.engine.transport import PostgresTransport
from tests.postgres.stage import Doing, Stage, event
from tests.postgres.test_waiting import ASLEEP, FOR_EVER_S, Spy

MAKE = "CREATE TABLE {schema}.notes (note text)"
NOTE = "INSERT INTO {schema}.notes VALUES ('done')"


class Side:
    """Both twins, as async code has them.

    Parameters
    ----------
    stage : Stage
    is_async : bool
    """

    def __init__(self, stage: Stage, is_async: bool) -> None:
        self.stage = stage
        self.is_async = is_async
        self.connection_class: Any = psycopg.AsyncConnection if is_async else psycopg.Connection
        self.caller = f"caller of {stage.schema}"
        self._opened: list[Any] = []

    async def open(self, target: Any = None, **options: Any) -> Any:
        transport = AsyncPostgresTransport if self.is_async else PostgresTransport
        queue = transport(target or self.stage.url, schema=self.stage.schema, **options)
        self._opened.append(queue)
        return queue

    async def connect(self, **options: Any) -> Any:
        connection = await done(self.connection_class.connect(self.stage.url, application_name=self.caller, **options))
        self._opened.append(connection)
        return connection

    async def open_pool(self, **options: Any) -> Any:
        pool_class = psycopg_pool.AsyncConnectionPool if self.is_async else psycopg_pool.ConnectionPool
        pool = pool_class(self.stage.url, open=False, kwargs={"application_name": self.caller}, **options)
        await done(pool.open())
        self._opened.append(pool)
        return pool

    async def run(self, connection: Any, statement: str) -> Any:
        return await done(connection.execute(statement.replace("{schema}", f'"{self.stage.schema}"')))

    def notes(self) -> int:
        ((count,),) = self.stage.ask("SELECT count(*) FROM {schema}.notes")
        return int(count)

    async def close(self) -> None:
        for opened in reversed(self._opened):
            await done(opened.close())


async def done(result: Any) -> Any:
    return await result if inspect.isawaitable(result) else result


@asynccontextmanager
async def block(manager: Any) -> AsyncIterator[Any]:
    """Enter either kind of context manager."""
    if hasattr(manager, "__aenter__"):
        async with manager as entered:
            yield entered
    else:
        with manager as entered:
            yield entered


@asynccontextmanager
async def in_autocommit(side: Side, queue: Any) -> AsyncIterator[Any]:
    """A connection of the caller's that commits by itself, and a transaction on it."""
    connection = await side.connect(autocommit=True)
    async with block(connection.transaction()):
        yield connection


@asynccontextmanager
async def by_itself(side: Side, queue: Any) -> AsyncIterator[Any]:
    """A connection of the caller's whose first statement begins a transaction."""
    connection = await side.connect()
    async with block(connection):
        yield connection


@asynccontextmanager
async def the_queues(side: Side, queue: Any) -> AsyncIterator[Any]:
    """One that the transport opens."""
    async with block(queue.transaction()) as connection:
        yield connection


async def within(transaction: AbstractAsyncContextManager[Any], action: Callable[[Any], Awaitable[None]]) -> None:
    """Do something inside a transaction, with its connection."""
    async with transaction as connection:
        await action(connection)


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def side(request: pytest.FixtureRequest, stage: Stage) -> Iterator[Side]:
    stage.open().close()
    stage.do(MAKE)
    yield Side(stage, request.param)
    # A test that failed left its transaction open, which would keep the schema from being dropped.
    stage.ask("SELECT pg_terminate_backend(pid, 10000) FROM {sessions}")


class Undo(Exception):
    """What a caller raises to have a transaction rolled back."""


@pytest.mark.parametrize("transaction", [in_autocommit, by_itself, the_queues])
class TestTogether:
    """What is done through it happens with the caller's own rows, or not at all."""

    async def test_a_publish(self, side: Side, transaction: Any) -> None:
        queue = await side.open()

        async def change_ones_mind(connection: Any) -> None:
            await side.run(connection, NOTE)
            await done(queue.bind(connection).publish("g", event("never")))
            raise Undo

        with pytest.raises(Undo):
            await within(transaction(side, queue), change_ones_mind)
        assert (side.notes(), side.stage.groups()) == (0, [])
        async with transaction(side, queue) as connection:
            bound = queue.bind(connection)
            await done(bound.publish("g", event("m1"), 3))
            await done(bound.publish_many([Message("g", event("m2")), Message("h", event("h1"))]))
            await side.run(connection, NOTE)
            assert (side.notes(), side.stage.groups()) == (0, [])
        assert (side.notes(), side.stage.groups()) == (1, ["g", "h"])
        assert [message.event.kind for message in await done(queue.peek("g"))] == ["m1", "m2"]
        await side.close()

    @pytest.mark.parametrize(("settle", "extra"), [("ack", ()), ("nack", (0.0,)), ("reject", ("why",))])
    async def test_a_settling(self, side: Side, transaction: Any, settle: str, extra: tuple[Any, ...]) -> None:
        queue = await side.open()
        await done(queue.publish("g", event("m1")))
        lease = await done(queue.claim("w", 60.0))

        async def handle(connection: Any) -> None:
            await side.run(connection, NOTE)
            await done(getattr(queue.bind(connection), settle)(lease, *extra))

        async def change_ones_mind(connection: Any) -> None:
            await handle(connection)
            raise Undo

        with pytest.raises(Undo):
            await within(transaction(side, queue), change_ones_mind)
        assert side.notes() == 0
        assert await done(queue.extend(lease, 60.0)) is True
        await within(transaction(side, queue), handle)
        assert side.notes() == 1
        assert await done(queue.ack(lease)) is False
        assert len(await done(queue.dead_letters())) == (settle == "reject")
        assert side.stage.groups() == (["g"] if settle == "nack" else [])
        await side.close()

    @pytest.mark.parametrize(("settle", "extra"), [("ack", ()), ("nack", (0.0,)), ("reject", ("why",))])
    async def test_a_lost_lease_raises_and_nothing_commits_promise_5(
        self, side: Side, transaction: Any, settle: str, extra: tuple[Any, ...]
    ) -> None:
        queue = await side.open()
        await done(queue.publish("g", event("m1")))
        lease = await done(queue.claim("w", 60.0))
        assert await done(queue.nack(lease)) is True

        async def handle(connection: Any) -> None:
            await side.run(connection, NOTE)
            await done(getattr(queue.bind(connection), settle)(lease, *extra))

        with pytest.raises(LeaseLost, match="group 'g'"):
            await within(transaction(side, queue), handle)
        assert side.notes() == 0
        assert (await done(queue.claim("w", 60.0))).attempt == 2
        await side.close()

    async def test_a_commit_is_not_softened(self, side: Side, transaction: Any) -> None:
        queue = await side.open()
        await done(queue.publish("g", event("m1")))
        lease = await done(queue.claim("w", 60.0))
        async with transaction(side, queue) as connection:
            await done(queue.bind(connection).nack(lease))
            setting = await side.run(connection, "SHOW synchronous_commit")
            assert (await done(setting.fetchone()))[0] == "on"
        await side.close()

    async def test_one_that_is_open_for_long_keeps_nobody_waiting_and_strands_nothing_promise_4(
        self, side: Side, transaction: Any
    ) -> None:
        queue = await side.open(statement_timeout=20.0)
        await done(queue.publish_many([Message("g", event("m1")), *(Message("h", event(f"h{n}")) for n in (1, 2))]))
        async with transaction(side, queue) as connection:
            bound = queue.bind(connection)
            await done(bound.publish("g", event("late")))
            first = await done(queue.claim("w", 60.0))
            other = await done(queue.claim("w", 60.0))
            assert (first.group_id, other.group_id) == ("g", "h")
            assert await done(queue.ack(first)) is True
            await done(bound.ack(other))
            await done(queue.publish_many([Message("g", event("m2")), Message("h", event("h3"))]))
            second = await done(queue.claim("w", 60.0))
            assert second.event.kind == "m2"
            assert await done(queue.ack(second)) is True
            assert await done(queue.claim("w", 60.0)) is None
        found = []
        while (lease := await done(queue.claim("w", 60.0))) is not None:
            found.append(lease.event.kind)
            assert await done(queue.ack(lease)) is True
        assert sorted(found) == ["h2", "h3", "late"]
        assert side.stage.groups() == []
        await side.close()

    async def test_who_waits_is_woken_when_it_commits(self, side: Side, transaction: Any) -> None:
        queue = await side.open()
        waiter = side.stage.open(poll_interval=FOR_EVER_S)
        with Spy(side.stage) as spy:
            waiting = Doing(lambda: waiter.wait(FOR_EVER_S))
            await asyncio.to_thread(side.stage.until, ASLEEP)
            async with transaction(side, queue) as connection:
                await done(queue.bind(connection).publish("g", event("m1")))
                assert spy.heard() == 0
            assert await asyncio.to_thread(waiting.result) is True
            assert spy.heard() == 1
        await side.close()

    async def test_a_connection_that_is_killed_in_it_takes_all_of_it_along(self, side: Side, transaction: Any) -> None:
        queue = await side.open()
        await done(queue.publish("g", event("m1")))
        lease = await done(queue.claim("w", 60.0))

        async def handle(connection: Any) -> None:
            await side.run(connection, NOTE)
            bound = queue.bind(connection)
            await done(bound.ack(lease))
            side.stage.ask("SELECT pg_terminate_backend($1, 10000)", connection.info.backend_pid)
            await done(bound.publish("h", event("h1")))

        with pytest.raises(TransportUnavailable):
            await within(transaction(side, queue), handle)
        assert (side.notes(), side.stage.groups()) == (0, ["g"])
        assert await done(queue.extend(lease, 60.0)) is True
        async with transaction(side, queue) as connection:
            await done(queue.bind(connection).ack(lease))
        assert side.stage.groups() == []
        await side.close()


class TestTheQueuesOwn:
    """``transaction()``."""

    async def test_one_that_cannot_commit_says_so(self, side: Side) -> None:
        queue = await side.open()

        async def handle(connection: Any) -> None:
            await done(queue.bind(connection).publish("g", event("m1")))
            side.stage.ask("SELECT pg_terminate_backend($1, 10000)", connection.info.backend_pid)

        with pytest.raises(TransportUnavailable):
            await within(block(queue.transaction()), handle)
        assert side.stage.groups() == []
        await side.close()

    async def test_the_callers_own_mistakes_stay_its_own(self, side: Side) -> None:
        queue = await side.open()
        with pytest.raises(psycopg.errors.UndefinedTable):
            async with block(queue.transaction()) as connection:
                await side.run(connection, "SELECT * FROM {schema}.nothing")
        async with block(queue.transaction()) as connection:
            await done(queue.bind(connection).publish("g", event("m1")))
        assert side.stage.groups() == ["g"]
        await side.close()

    async def test_claims_do_not_wait_behind_them_and_one_too_many_does(self, side: Side) -> None:
        queue = await side.open(max_size=1, max_transactions=2)
        assert queue.max_transactions == 2
        await done(queue.publish("g", event("m1")))
        async with block(queue.transaction()), block(queue.transaction()):
            assert await done(queue.claim("w", 60.0)) is not None
            queue._server.connect_timeout_s = 0.01
            with pytest.raises(TransportUnavailable, match="max_transactions"):
                async with block(queue.transaction()):
                    pass
        await side.close()

    async def test_of_a_callers_pool_they_come_out_of_that(self, side: Side) -> None:
        pool = await side.open_pool(min_size=1, max_size=3)
        queue = await side.open(pool)
        assert queue.max_transactions == 2
        async with block(queue.transaction()) as connection:
            assert connection.info.get_parameters()["application_name"] == side.caller
            await done(queue.bind(connection).publish("g", event("m1")))
            assert side.stage.groups() == []
        assert side.stage.groups() == ["g"]
        await done(queue.close())
        assert not pool.closed
        await side.close()

    async def test_a_transport_on_a_single_connection_has_none_but_binds(self, side: Side) -> None:
        single, connection = await side.connect(), await side.connect()
        queue = await side.open(single)
        with pytest.raises(NotSupported, match="single connection"):
            queue.transaction()
        await done(queue.bind(connection).publish("g", event("m1")))
        assert side.stage.groups() == []
        await done(connection.commit())
        assert side.stage.groups() == ["g"]
        await side.close()

    async def test_they_close_with_the_transport(self, side: Side) -> None:
        queue = await side.open()
        async with block(queue.transaction()):
            pass
        await done(queue.close())
        side.stage.until("SELECT 1 WHERE NOT EXISTS (SELECT FROM {sessions})")
        with pytest.raises(InvalidArgument, match="closed"):
            queue.transaction()
        with pytest.raises(InvalidArgument, match="closed"):
            queue.bind(None)
        await side.close()

    def test_a_cancelled_task_leaves_none_open(self, stage: Stage) -> None:
        stage.open()
        stage.do(MAKE)

        async def scenario() -> None:
            async with AsyncPostgresTransport(stage.url, schema=stage.schema, max_transactions=1) as queue:
                inside = asyncio.Event()

                async def handle() -> None:
                    async with queue.transaction() as connection:
                        await queue.bind(connection).publish("g", event("m1"))
                        inside.set()
                        await connection.execute("SELECT pg_sleep(60)")

                handling = asyncio.create_task(handle())
                await inside.wait()
                await asyncio.to_thread(stage.until, SLEEPING)
                handling.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await handling
                await asyncio.to_thread(stage.until, f"SELECT 1 WHERE NOT EXISTS ({SLEEPING})")
                async with queue.transaction() as connection:
                    await queue.bind(connection).publish("h", event("h1"))
            assert stage.groups() == ["h"]

        asyncio.run(scenario())

    def test_a_task_can_bind_before_anything_else_was_done(self, url: str, schema: str) -> None:
        async def scenario() -> None:
            queue = AsyncPostgresTransport(url, schema=schema)
            async with queue.transaction() as connection:
                await queue.bind(connection).publish("g", event("m1"))
            assert len(await queue.peek("g")) == 1
            await queue.close()

        asyncio.run(scenario())


class TestWhatBindTakes:
    """A connection of its twin's class, in a transaction that is READ COMMITTED; anything else changes nothing."""

    async def test_one_that_would_commit_each_statement_is_refused(self, side: Side) -> None:
        queue, connection = await side.open(), await side.connect(autocommit=True)
        with pytest.raises(InvalidArgument, match="autocommit"):
            queue.bind(connection)
        async with block(connection.transaction()):
            bound = queue.bind(connection)
        with pytest.raises(InvalidArgument, match="autocommit"):
            await done(bound.publish("g", event("m1")))
        assert side.stage.groups() == []
        await side.close()

    async def test_so_is_one_that_is_closed_or_whose_transaction_failed(self, side: Side) -> None:
        queue, connection = await side.open(), await side.connect()
        with pytest.raises(psycopg.errors.DivisionByZero):
            await side.run(connection, "SELECT 1 / 0")
        with pytest.raises(InvalidArgument, match="roll it back"):
            queue.bind(connection)
        await done(connection.close())
        with pytest.raises(InvalidArgument, match="closed"):
            queue.bind(connection)
        await side.close()

    async def test_so_is_the_other_twins_and_anything_else(self, side: Side) -> None:
        queue, other = await side.open(), Side(side.stage, not side.is_async)
        for wrong in (await other.connect(), object(), side.stage.url):
            with pytest.raises(InvalidArgument, match=f"psycopg.{side.connection_class.__name__}"):
                queue.bind(wrong)
        await other.close()
        await side.close()

    @pytest.mark.parametrize("how", ["the connection's", "the transaction's", "the session's"])
    async def test_so_is_one_that_keeps_an_old_snapshot(self, side: Side, how: str) -> None:
        queue, connection = await side.open(), await side.connect()
        if how == "the connection's":
            await done(connection.set_isolation_level(psycopg.IsolationLevel.SERIALIZABLE))
        elif how == "the transaction's":
            await side.run(connection, "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
        else:
            await side.run(connection, "SET default_transaction_isolation = serializable")
            await done(connection.commit())
        with pytest.raises(InvalidArgument, match="READ COMMITTED, and this one is SERIALIZABLE"):
            await done(queue.bind(connection).publish("g", event("m1")))
        await done(connection.commit())
        assert side.stage.groups() == []
        await side.close()


SLEEPING = "SELECT 1 FROM {sessions} WHERE wait_event = 'PgSleep'"
