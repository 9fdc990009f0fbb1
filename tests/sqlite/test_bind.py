"""Publishing and settling inside a transaction of the caller's: all of it happens, or nothing."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from harel import Event, HarelError, InvalidArgument, LeaseLost, Message, TransportUnavailable
from harel.engine.aio_transport.sqlite_connection import AsyncConnection
from harel.engine.transport import SqliteTransport
from harel.engine.transport.sqlite_file import Pauses
from tests.sqlite.drivers import Driver
from tests.sqlite.stage import Stage

EVENT = Event("noted", {"n": 1})


@pytest.fixture(params=["sync", "async"])
def stage(request: pytest.FixtureRequest, driver: Driver, tmp_path: Path) -> Stage:
    return Stage(driver, request.param == "async", tmp_path)


@pytest.fixture
def async_stage(driver: Driver, tmp_path: Path) -> Stage:
    return Stage(driver, True, tmp_path)


@pytest.fixture
def sync_stage(driver: Driver, tmp_path: Path) -> Stage:
    return Stage(driver, False, tmp_path)


@asynccontextmanager
async def own_transaction(stage: Stage, queue: Any) -> AsyncIterator[Any]:
    """The caller opens a connection and a transaction itself."""
    connection = await stage.connect()
    await stage.execute(connection, "BEGIN IMMEDIATE")
    try:
        yield connection
    except BaseException:
        await stage.execute(connection, "ROLLBACK")
        raise
    await stage.execute(connection, "COMMIT")


@asynccontextmanager
async def queues_transaction(stage: Stage, queue: Any) -> AsyncIterator[Any]:
    """The queue opens it."""
    async with queue.transaction() as connection:
        yield connection


Open = Callable[[Stage, Any], Any]
each_way = pytest.mark.parametrize("within", [own_transaction, queues_transaction], ids=lambda within: within.__name__)


async def groups(queue: Any) -> list[str]:
    return [group.group_id for group in await queue.groups()]


@each_way
async def test_a_publish_and_a_row_of_the_callers_commit_together(stage: Stage, within: Open) -> None:
    async with stage.opened:
        queue = await stage.open()
        async with within(stage, queue) as connection:
            bound = queue.bind(connection)
            await stage.execute(connection, "INSERT INTO orders VALUES (?)", "order-1")
            await bound.publish("a", EVENT, 3)
            await bound.publish_many([Message("b", EVENT, 0), Message("b", EVENT, 0)])
            assert await groups(queue) == [], "nobody else sees it yet"
        assert await groups(queue) == ["a", "b"]
        assert (await queue.stats()).messages == 3
        lease = await queue.claim("w", 30.0, 3)
        assert (lease.group_id, lease.event) == ("a", EVENT)
        assert await stage.orders() == ["order-1"]


@each_way
async def test_an_exception_undoes_both(stage: Stage, within: Open) -> None:
    async with stage.opened:
        queue = await stage.open()

        async def fails() -> None:
            async with within(stage, queue) as connection:
                await stage.execute(connection, "INSERT INTO orders VALUES (?)", "order-1")
                await queue.bind(connection).publish("a", EVENT)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fails()
        assert await groups(queue) == []
        assert await stage.orders() == []
        await queue.publish("b", EVENT)
        assert await groups(queue) == ["b"]


@each_way
async def test_an_ack_and_what_handling_wrote_commit_together(stage: Stage, within: Open) -> None:
    async with stage.opened:
        queue = await stage.open()
        await queue.publish_many([Message("a", EVENT, 0), Message("a", EVENT, 0)])
        lease = await queue.claim("w", 30.0)
        async with within(stage, queue) as connection:
            await stage.execute(connection, "INSERT INTO orders VALUES (?)", "order-1")
            await queue.bind(connection).ack(lease)
        assert await stage.orders() == ["order-1"]
        assert (await queue.stats()).messages == 1
        assert await queue.ack(lease) is False


@each_way
async def test_a_lost_lease_raises_so_that_nothing_is_committed(stage: Stage, within: Open) -> None:
    async with stage.opened:
        queue = await stage.open()
        await queue.publish("a", EVENT)
        lost = await queue.claim("slow", 10.0)
        stage.clock.advance(11.0)
        current = await queue.claim("quick", 30.0)

        async def settles_too_late() -> None:
            async with within(stage, queue) as connection:
                await stage.execute(connection, "INSERT INTO orders VALUES (?)", "order-1")
                await queue.bind(connection).ack(lost)

        with pytest.raises(LeaseLost, match="'a'"):
            await settles_too_late()
        assert await stage.orders() == []
        assert await queue.ack(current) is True


@pytest.mark.parametrize("settle", ["ack", "nack", "reject"])
async def test_every_way_to_settle_is_undone_with_the_transaction(stage: Stage, settle: str) -> None:
    async with stage.opened:
        queue = await stage.open()
        await queue.publish("a", EVENT)
        lease = await queue.claim("w", 30.0)
        for undo in (True, False):
            try:
                async with queue.transaction() as connection:
                    await getattr(queue.bind(connection), settle)(lease, *({"reject": ["why"]}.get(settle, [])))
                    if undo:
                        raise ZeroDivisionError
            except ZeroDivisionError:
                (group,) = await queue.groups()
                assert group.state == "leased"
        assert [group.state for group in await queue.groups()] == (["ready"] if settle == "nack" else [])
        assert len(await queue.dead_letters()) == (1 if settle == "reject" else 0)
        with pytest.raises(LeaseLost):
            async with queue.transaction() as connection:
                await getattr(queue.bind(connection), settle)(lease, *({"reject": ["why"]}.get(settle, [])))


async def test_a_connection_to_another_file_is_refused(stage: Stage) -> None:
    async with stage.opened:
        queue = await stage.open()
        connection = await stage.connect(stage.folder / "other.db")
        await stage.execute(connection, "CREATE TABLE t (a)")
        await stage.execute(connection, "BEGIN IMMEDIATE")
        with pytest.raises(InvalidArgument, match=r"is to .*other.db, and the queue is in .*queue.db"):
            await queue.bind(connection).publish("a", EVENT)
        memory = await stage.connect(Path(":memory:"))
        await stage.execute(memory, "BEGIN")
        with pytest.raises(InvalidArgument, match="a database in memory"):
            await queue.bind(memory).publish("a", EVENT)
        assert await groups(queue) == []


async def test_the_same_file_by_another_name_is_the_same_file(stage: Stage) -> None:
    async with stage.opened:
        queue = await stage.open()
        (stage.folder / "link.db").symlink_to(stage.path)
        connection = await stage.connect(stage.folder / "link.db")
        await stage.execute(connection, "BEGIN IMMEDIATE")
        await queue.bind(connection).publish("a", EVENT)
        await stage.execute(connection, "COMMIT")
        assert await groups(queue) == ["a"]


async def test_a_connection_in_no_transaction_is_refused(stage: Stage) -> None:
    async with stage.opened:
        queue = await stage.open()
        connection = await stage.connect()
        with pytest.raises(InvalidArgument, match="execute BEGIN IMMEDIATE on it first"):
            queue.bind(connection)
        await stage.execute(connection, "BEGIN IMMEDIATE")
        bound = queue.bind(connection)
        await stage.execute(connection, "COMMIT")
        with pytest.raises(InvalidArgument, match="in no transaction"):
            await bound.publish("a", EVENT)
        assert await groups(queue) == []


async def test_what_is_no_connection_of_the_driver_is_refused(stage: Stage) -> None:
    async with stage.opened:
        queue = await stage.open()
        with pytest.raises(InvalidArgument, match="not str"):
            queue.bind("queue.db")
        with pytest.raises(InvalidArgument, match="not object"):
            queue.bind(object())


async def test_a_closed_connection_is_refused(stage: Stage) -> None:
    async with stage.opened:
        queue = await stage.open()
        connection = await stage.connect()
        closed = connection.close()
        if closed is not None:
            await closed
        with pytest.raises(InvalidArgument, match="cannot be used"):
            await queue.bind(connection).publish("a", EVENT)


async def test_a_closed_transport_binds_nothing(stage: Stage) -> None:
    async with stage.opened:
        queue = await stage.open()
        connection = await stage.connect()
        await stage.execute(connection, "BEGIN IMMEDIATE")
        bound = queue.bind(connection)
        await queue.close()
        with pytest.raises(InvalidArgument, match="closed"):
            queue.bind(connection)
        with pytest.raises(InvalidArgument, match="closed"):
            await bound.publish("a", EVENT)
        with pytest.raises(InvalidArgument, match="closed"):
            async with queue.transaction():
                pass


async def test_an_operation_that_fails_leaves_no_half_of_itself_in_the_transaction(stage: Stage) -> None:
    """Promise 4: a caller who goes on after an error and commits strands nothing."""
    async with stage.opened:
        queue = await stage.open()
        other = await stage.connect()
        await stage.execute(
            other, "CREATE TRIGGER stop BEFORE INSERT ON transport_groups BEGIN SELECT RAISE(ABORT, 'stop'); END"
        )
        async with queue.transaction() as connection:
            await stage.execute(connection, "INSERT INTO orders VALUES (?)", "order-1")
            with pytest.raises(HarelError, match="stop"):
                await queue.bind(connection).publish("a", EVENT)
        assert await stage.orders() == ["order-1"]
        assert (await queue.stats()).messages == 0


async def test_a_transaction_that_was_ended_inside_its_block_is_an_error(stage: Stage) -> None:
    async with stage.opened:
        queue = await stage.open()
        with pytest.raises(InvalidArgument, match="ended inside its block"):
            async with queue.transaction() as connection:
                await stage.execute(connection, "COMMIT")
        await queue.publish("a", EVENT)
        assert await groups(queue) == ["a"]


@pytest.mark.parametrize("write", ["claim", "publish", "transaction"])
async def test_who_writes_around_its_own_transaction_is_told_at_once(stage: Stage, write: str) -> None:
    """It would wait for its own end."""
    async with stage.opened:
        queue = await stage.open()
        another = await stage.open()
        calls: dict[str, Callable[[Any], Awaitable[Any]]] = {
            "claim": lambda queue: queue.claim("w", 30.0),
            "publish": lambda queue: queue.publish("a", EVENT),
            "transaction": _entered,
        }
        async with queue.transaction() as connection:
            for one in (queue, another):
                with pytest.raises(InvalidArgument, match=r"is inside transaction\(\)"):
                    await calls[write](one)
            await queue.bind(connection).publish("b", EVENT)
            assert await groups(queue) == []
        assert await groups(queue) == ["b"]
        assert await queue.claim("w", 30.0) is not None


async def _entered(queue: Any) -> None:
    async with queue.transaction():
        pass


async def test_who_writes_around_a_transaction_of_its_own_making_is_told_in_the_end(stage: Stage) -> None:
    async with stage.opened:
        queue = await stage.open(busy_timeout=0.05)
        connection = await stage.connect()
        await stage.execute(connection, "BEGIN IMMEDIATE")
        with pytest.raises(TransportUnavailable, match="Another connection kept"):
            await queue.claim("w", 30.0)
        with pytest.raises(TransportUnavailable, match="Another connection kept"):
            await _entered(queue)
        await stage.execute(connection, "ROLLBACK")
        await queue.publish("a", EVENT)


async def test_a_transaction_that_began_without_the_lock_takes_it_with_its_first_operation(stage: Stage) -> None:
    async with stage.opened:
        queue = await stage.open()
        connection = await stage.connect()
        await stage.execute(connection, "BEGIN")
        await queue.publish("a", EVENT)
        bound = queue.bind(connection)
        await bound.publish("b", EVENT)
        other = await stage.connect()
        with pytest.raises(stage.driver.error, match="locked"):
            await stage.execute(other, "BEGIN IMMEDIATE")
        await stage.execute(connection, "COMMIT")
        assert await groups(queue) == ["a", "b"]


async def test_a_transaction_that_began_without_the_lock_waits_for_it_before_it_looks(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look before the wait would be out of date after it, and such a transaction could never write."""
    async with stage.opened:
        queue = await stage.open()
        await queue.publish("a", EVENT)
        lease = await queue.claim("w", 30.0)
        connection = await stage.connect()
        await stage.execute(connection, "BEGIN")
        other = stage.driver.connect(stage.path)
        stage.opened.callback(other.close)
        other.execute("BEGIN IMMEDIATE")
        other.execute("INSERT INTO orders VALUES ('meanwhile')")
        pause = Pauses.next

        def commit_and_pause(pauses: Pauses) -> float:
            if other.in_transaction:
                other.execute("COMMIT")
            return pause(pauses)

        monkeypatch.setattr(Pauses, "next", commit_and_pause)
        await queue.bind(connection).ack(lease)
        await stage.execute(connection, "COMMIT")
        assert await groups(queue) == []
        assert await stage.orders() == ["meanwhile"]


async def test_a_transaction_that_has_read_what_changed_since_is_told_to_begin_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    tells_apart = stage.driver.scheme == "sqlite"  # libSQL's driver says the same of a lock that may yet be had
    if tells_apart:
        monkeypatch.delattr(Pauses, "next")  # it does not wait for what cannot be
    async with stage.opened:
        queue = await stage.open(busy_timeout=60.0 if tells_apart else 0.05)
        connection = await stage.connect()
        await stage.execute(connection, "BEGIN")
        await stage.execute(connection, "SELECT * FROM orders")
        await queue.publish("a", EVENT)
        with pytest.raises(TransportUnavailable, match="begin it with BEGIN IMMEDIATE"):
            await queue.bind(connection).publish("b", EVENT)
        await stage.execute(connection, "ROLLBACK")
        assert await groups(queue) == ["a"]


async def test_a_callers_connection_is_used_in_place_of_one_of_the_queues_own(sync_stage: Stage) -> None:
    stage = sync_stage
    async with stage.opened:
        connection = await stage.connect(Path(":memory:"))
        queue = await stage.open(connection)
        async with queue.transaction() as given:
            assert given is connection
            await queue.bind(connection).publish("a", EVENT)
            with pytest.raises(InvalidArgument, match="inside transaction"):
                await queue.publish("b", EVENT)
        assert await groups(queue) == ["a"]
        await stage.execute(connection, "BEGIN")
        with pytest.raises(InvalidArgument, match="handed in is inside a transaction"):
            await _entered(queue)
        await queue.bind(connection).publish("b", EVENT)
        await stage.execute(connection, "ROLLBACK")
        assert await groups(queue) == ["a"]


async def test_closing_inside_a_transaction_leaves_it_to_its_block(stage: Stage) -> None:
    async with stage.opened:
        queue = await stage.open()
        async with queue.transaction() as connection:
            await queue.bind(connection).publish("a", EVENT)
            await queue.close()
        assert await groups(await stage.open()) == ["a"]


def test_writes_of_other_threads_wait_for_a_transaction_in_the_order_in_which_they_came(
    driver: Driver, tmp_path: Path
) -> None:
    path = tmp_path / "queue.db"
    with driver.transport(path, busy_timeout=60.0) as queue, driver.transport(path, busy_timeout=60.0) as another:
        threads: list[threading.Thread] = []
        with queue.transaction() as connection:
            turn = queue._file._place.turn
            for number in range(6):
                writer = (queue, another)[number % 2]
                threads.append(threading.Thread(target=writer.publish, args=(f"g{number}", EVENT)))
                threads[-1].start()
                _until(lambda: len(turn._line) == len(threads))
            queue.bind(connection).publish("first", EVENT)
            assert queue.groups() == []
        for thread in threads:
            thread.join(60)
        leases = queue.claim_many("w", 30.0, 10)
        assert [lease.group_id for lease in leases] == ["first", *(f"g{number}" for number in range(6))]
        assert [lease.seq for lease in leases] == sorted(lease.seq for lease in leases)


def _until(condition: Callable[[], object]) -> None:
    asked = threading.Event()
    for _ in range(60_000):
        if condition():
            return
        asked.wait(0.001)
    raise AssertionError("It never came to be.")


async def test_writes_of_other_tasks_wait_for_a_transaction_and_the_loop_goes_on(async_stage: Stage) -> None:
    stage = async_stage
    async with stage.opened:
        queue = await stage.open()
        async with queue.transaction() as connection:
            turn = queue._file._place.turn
            others = [asyncio.create_task(queue.publish(f"g{number}", EVENT)) for number in range(3)]
            await stage.until(lambda: turn._line)
            second = asyncio.create_task(_publishes_inside(queue, "second"))
            await queue.bind(connection).publish("first", EVENT)
            assert await groups(queue) == []
        await asyncio.gather(*others, second)
        leases = await queue.claim_many("w", 30.0, 10)
        assert [lease.group_id for lease in leases] == ["first", "g0", "g1", "g2", "second"]


async def _publishes_inside(queue: Any, group_id: str) -> None:
    async with queue.transaction() as connection:
        await queue.bind(connection).publish(group_id, EVENT)


async def test_who_waits_for_a_transaction_longer_than_the_timeout_is_told_what_it_waited_for(
    async_stage: Stage,
) -> None:
    stage = async_stage
    async with stage.opened:
        queue = await stage.open(busy_timeout=0.05)
        async with queue.transaction() as connection:
            for waiting in (queue.publish("a", EVENT), _entered(queue)):
                with pytest.raises(TransportUnavailable, match=r"A transaction\(\) of this process kept .*queue.db"):
                    await asyncio.create_task(waiting)
            await queue.bind(connection).publish("b", EVENT)
        await queue.publish("c", EVENT)
        assert await groups(queue) == ["b", "c"]


def test_a_thread_that_waits_longer_than_the_timeout_is_told_too(driver: Driver, tmp_path: Path) -> None:
    raised: list[BaseException] = []

    def write(queue: Any) -> None:
        try:
            queue.publish("a", EVENT)
        except BaseException as error:
            raised.append(error)

    with driver.transport(tmp_path / "queue.db", busy_timeout=0.05) as queue:
        with queue.transaction():
            thread = threading.Thread(target=write, args=(queue,))
            thread.start()
            thread.join(60)
        (error,) = raised
        assert isinstance(error, TransportUnavailable)
        queue.publish("b", EVENT)
        assert [group.group_id for group in queue.groups()] == ["b"]


async def test_the_loop_goes_on_while_a_transaction_waits_for_another_process(async_stage: Stage) -> None:
    stage = async_stage
    async with stage.opened:
        queue = await stage.open()
        other = stage.driver.connect(stage.path)
        other.execute("BEGIN IMMEDIATE")
        entering = asyncio.create_task(_publishes_inside(queue, "a"))
        for _ in range(20):
            await asyncio.sleep(0.001)
            assert not entering.done()
            assert await groups(queue) == []
        other.execute("COMMIT")
        other.close()
        await entering
        assert await groups(queue) == ["a"]


async def test_a_task_cancelled_while_it_waits_to_begin_holds_nothing(async_stage: Stage) -> None:
    stage = async_stage
    async with stage.opened:
        queue = await stage.open()
        async with queue.transaction():
            turn = queue._file._place.turn
            waiting = asyncio.create_task(_publishes_inside(queue, "a"))
            await stage.until(lambda: turn._line)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await stage.until(lambda: not turn._line)
        await queue.publish("b", EVENT)
        assert await groups(queue) == ["b"]


async def test_a_task_cancelled_just_as_its_transaction_begins_holds_nothing(
    async_stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = async_stage
    reached, go = threading.Event(), threading.Event()
    begin = stage.driver.file._begin

    def held(file: Any, connection: Any, asker: Any) -> None:
        begin(file, connection, asker)
        reached.set()
        assert go.wait(60)

    async with stage.opened:
        queue = await stage.open()
        monkeypatch.setattr(stage.driver.file, "_begin", held)
        entering = asyncio.create_task(_publishes_inside(queue, "a"))
        await stage.until(reached.is_set)
        monkeypatch.undo()
        entering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await entering
        go.set()
        await queue.publish("b", EVENT)
        assert await groups(queue) == ["b"]


async def test_a_task_cancelled_inside_its_transaction_finds_it_undone(async_stage: Stage) -> None:
    stage = async_stage
    inside = asyncio.Event()

    async def work(queue: Any) -> None:
        async with queue.transaction() as connection:
            await queue.bind(connection).publish("a", EVENT)
            inside.set()
            await asyncio.Event().wait()

    async with stage.opened:
        queue = await stage.open()
        working = asyncio.create_task(work(queue))
        await inside.wait()
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working
        await queue.publish("b", EVENT)
        assert await groups(queue) == ["b"]


async def test_a_task_cancelled_while_it_commits_leaves_no_lock(
    async_stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = async_stage
    reached, go = threading.Event(), threading.Event()
    end = stage.driver.file.end

    def held(file: Any, connection: Any, *, commit: bool) -> None:
        reached.set()
        assert go.wait(60)
        end(file, connection, commit=commit)

    async with stage.opened:
        queue = await stage.open()
        monkeypatch.setattr(stage.driver.file, "end", held)
        working = asyncio.create_task(_publishes_inside(queue, "a"))
        await stage.until(reached.is_set)
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working
        go.set()
        await queue.publish("b", EVENT)
        assert await groups(queue) == ["a", "b"]


async def test_a_task_cancelled_while_its_commit_waits_for_a_statement_leaves_no_lock(async_stage: Stage) -> None:
    stage = async_stage
    go, left = threading.Event(), threading.Event()
    statements = []

    async def work(queue: Any) -> None:
        async with queue.transaction() as connection:
            await queue.bind(connection).publish("a", EVENT)
            statements.append(asyncio.create_task(connection.run(lambda: go.wait(60))))
            await asyncio.sleep(0)
            left.set()

    async with stage.opened:
        queue = await stage.open()
        working = asyncio.create_task(work(queue))
        await stage.until(left.is_set)
        await asyncio.sleep(0)
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working
        go.set()
        await queue.publish("b", EVENT)
        assert await groups(queue) == ["a", "b"]
        assert await statements[0] is True


async def test_the_connection_that_an_async_transaction_gives_runs_the_callers_statements(async_stage: Stage) -> None:
    stage = async_stage
    async with stage.opened:
        queue = await stage.open()
        async with queue.transaction() as connection:
            assert isinstance(connection, AsyncConnection)
            assert connection.in_transaction
            inserted = await connection.executemany("INSERT INTO orders VALUES (?)", [(f"o{n}",) for n in range(5)])
            assert await inserted.fetchall() == []
            async with connection.execute("SELECT name FROM orders WHERE name > ? ORDER BY name", ("o0",)) as cursor:
                assert await cursor.fetchone() == ("o1",)
                assert await cursor.fetchmany(2) == [("o2",), ("o3",)]
                assert [row async for row in cursor] == [("o4",)]
                assert await cursor.fetchone() is None
            assert await connection.execute_fetchall("SELECT count(*) FROM orders") == [(5,)]
            assert (await connection.execute("UPDATE orders SET name = name || '!' WHERE name < 'o3'")).rowcount == 3
            with pytest.raises((sqlite3.IntegrityError, ValueError), match="UNIQUE"):
                await connection.execute("INSERT INTO orders VALUES (?)", ("o4",))
        assert await stage.orders() == ["o0!", "o1!", "o2!", "o3", "o4"]
        assert not connection.in_transaction
        with pytest.raises(InvalidArgument, match="has ended"):
            await connection.execute("SELECT 1")
        with pytest.raises(InvalidArgument, match="has ended"):
            queue.bind(connection)


async def test_threads_of_transactions_end_with_them(async_stage: Stage) -> None:
    stage = async_stage
    async with stage.opened:
        queue = await stage.open()
        await queue.stats()
        before = set(threading.enumerate())
        for _ in range(3):
            await _publishes_inside(queue, "a")
        for thread in set(threading.enumerate()) - before:
            thread.join(60)
            assert not thread.is_alive()


@pytest.mark.parametrize("flavour", ["sync", "async"])
def test_a_process_killed_in_the_middle_leaves_neither(driver: Driver, flavour: str, tmp_path: Path) -> None:
    program = """
import asyncio, os, signal, sys, harel

async def work(url):
    async with await harel.connect_async(url) as queue:
        lease = await queue.claim("w", 600.0)
        async with queue.transaction() as connection:
            await connection.execute("INSERT INTO orders VALUES ('order-1')")
            bound = queue.bind(connection)
            await bound.ack(lease)
            await bound.publish("next", harel.Event("noted"))
            os.kill(os.getpid(), signal.SIGKILL)

if sys.argv[2] == "async":
    asyncio.run(work(sys.argv[1]))
with harel.connect(sys.argv[1]) as queue:
    lease = queue.claim("w", 600.0)
    with queue.transaction() as connection:
        connection.execute("INSERT INTO orders VALUES ('order-1')")
        bound = queue.bind(connection)
        bound.ack(lease)
        bound.publish("next", harel.Event("noted"))
        os.kill(os.getpid(), signal.SIGKILL)
"""
    with driver.transport(tmp_path / "queue.db") as queue:
        queue.publish("a", EVENT)
        with queue.transaction() as connection:
            connection.execute("CREATE TABLE orders (name TEXT)")
        done = subprocess.run(
            [sys.executable, "-c", program, driver.url(tmp_path), flavour], capture_output=True, text=True, check=False
        )
        assert done.returncode == -signal.SIGKILL, done.stderr
        (group,) = queue.groups()
        assert (group.group_id, group.state, group.messages) == ("a", "leased", 1)
        with queue.transaction() as connection:
            assert connection.execute("SELECT count(*) FROM orders").fetchone() == (0,)
        assert queue.dead_letters() == []


def test_a_child_forked_inside_a_transaction_does_not_end_it(driver: Driver, tmp_path: Path) -> None:
    with driver.transport(tmp_path / "queue.db") as queue:
        child = 0
        try:
            with queue.transaction() as connection:
                queue.bind(connection).publish("a", EVENT)
                child = os.fork()
        finally:
            if child == 0:
                os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert [group.group_id for group in queue.groups()] == ["a"]
        with queue.transaction() as connection:
            queue.bind(connection).publish("b", EVENT)
            child = os.fork()
            if child == 0:
                try:
                    queue._file.end(connection, commit=True)
                    os._exit(0)
                finally:
                    os._exit(1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            assert [group.group_id for group in queue.groups()] == ["a"], "the child did not commit"
        assert [group.group_id for group in queue.groups()] == ["a", "b"]


def test_a_callers_row_factory_does_not_matter(tmp_path: Path) -> None:
    with SqliteTransport(tmp_path / "queue.db") as queue:
        queue.publish("a", EVENT)
        lease = queue.claim("w", 30.0)
        assert lease is not None
        with queue.transaction() as connection:
            connection.row_factory = lambda cursor, row: {"row": row}
            queue.bind(connection).ack(lease)
        assert queue.groups() == []


def test_a_connection_of_another_thread_is_refused(tmp_path: Path) -> None:
    with SqliteTransport(tmp_path / "queue.db") as queue:
        raised: list[BaseException] = []
        connection = sqlite3.connect(tmp_path / "queue.db", isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")

        def bind() -> None:
            try:
                queue.bind(connection)
            except BaseException as error:
                raised.append(error)

        thread = threading.Thread(target=bind)
        thread.start()
        thread.join(60)
        connection.close()
        (error,) = raised
        assert isinstance(error, InvalidArgument)
        assert "same thread" in str(error)


def test_aiosqlite_is_not_needed(tmp_path: Path) -> None:
    program = """
import asyncio, sys, harel
sys.modules["aiosqlite"] = None

async def main():
    async with await harel.connect_async(sys.argv[1]) as queue:
        async with queue.transaction() as connection:
            await queue.bind(connection).publish("a", harel.Event("noted"))
        try:
            queue.bind("x")
        except harel.InvalidArgument as error:
            print(error)

asyncio.run(main())
"""
    url = f"sqlite:///{tmp_path}/queue.db"
    done = subprocess.run([sys.executable, "-c", program, url], capture_output=True, text=True, check=True)
    assert done.stdout == "bind takes an aiosqlite.Connection, or what transaction() gives, not str.\n"
