"""Connections that break, servers that restart, and what a caller hands in."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import psycopg_pool
import pytest
from psycopg.types.string import StrDumper

from harel import (
    AsyncTransport,
    ConfigError,
    Message,
    SchemaMismatch,
    Transport,
    TransportUnavailable,
    connect,
    connect_async,
)
from harel.engine.aio_transport import AsyncPostgresTransport
from harel.engine.queue.postgres.schema import advisory_key, schema_ddl
from harel.engine.transport import PostgresTransport
from tests.postgres.stage import PATIENCE_S, Doing, Stage, event
from tests.servers.postgres import PostgresServer

ODD_NAMES = ("café", 'say "{}, NULL"', r"back\slash", "plain")
"""What means something in the text of an array, or is another byte in another encoding."""
NOBODY_THERE = "postgresql://joe:s3cret@127.0.0.1:1/orders"


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A server that this test may stop."""
    server = PostgresServer()
    yield server
    server.remove()


class TestABrokenConnection:
    def test_one_that_was_killed_while_idle_never_reaches_a_caller(self, stage: Stage) -> None:
        queue = stage.open(max_size=4)
        queue.publish("g", event("m1"))
        for pid, _ in stage.sessions():
            stage.ask("SELECT pg_terminate_backend($1, 10000)", pid)
        lease = queue.claim("w", 60.0)
        assert lease is not None
        assert queue.ack(lease) is True

    def test_one_that_is_killed_in_an_operation_is_named_and_replaced(self, stage: Stage) -> None:
        queue, first = stage.open(), stage.actor()
        first.begin()
        first.queue.publish("g", event("m1"))
        publishing = Doing(lambda: queue.publish("g", event("m2")))
        stage.until(WAITING)
        stage.ask(f"SELECT pg_terminate_backend(pid, 10000) FROM ({WAITING}) AS waiting")
        with pytest.raises(TransportUnavailable, match=r"PostgreSQL at .*, port 5432") as raised:
            publishing.result()
        assert isinstance(raised.value.__cause__, psycopg.errors.AdminShutdown)
        first.commit()
        queue.publish("g", event("m3"))
        assert [message.event.kind for message in queue.peek("g")] == ["m1", "m3"]

    def test_a_task_hears_of_one_too(self, stage: Stage) -> None:
        async def scenario() -> None:
            queue = AsyncPostgresTransport(stage.url, schema=stage.schema)
            async with queue:
                await queue.publish("g", event("m1"))
                for pid, _ in stage.sessions():
                    stage.ask("SELECT pg_terminate_backend($1, 10000)", pid)
                lease = await queue.claim("w", 60.0)
                assert lease is not None
                assert await queue.ack(lease) is True

        asyncio.run(scenario())

    def test_a_server_that_crashes_in_an_operation_strands_nothing_promise_4(self, server: PostgresServer) -> None:
        with closing(Stage(server.url, "public")) as stage:
            queue = stage.open(max_size=3, connect_timeout=30.0)
            queue.publish("g", event("m1"))
            first = stage.actor()
            first.begin()
            first.queue.publish("h", event("lost"))
            publishing = Doing(lambda: queue.publish("h", event("h1")))
            stage.until(WAITING)
            server.stop("immediate")
            with pytest.raises(TransportUnavailable):
                publishing.result()
            server.start()
            assert [queue.claim("w", 60.0) is not None, queue.claim("w", 60.0)] == [True, None]
            queue.publish("h", event("h2"))
            assert [message.event.kind for message in queue.peek("h")] == ["h2"]

    def test_a_server_that_is_away_is_unavailable_within_the_timeout_and_then_back(
        self, server: PostgresServer
    ) -> None:
        queue = PostgresTransport(server.url, connect_timeout=2.0)
        queue._server.connect_timeout_s = 0.2
        server.stop()
        with pytest.raises(TransportUnavailable, match=f"PostgreSQL at {server.folder}, port 5432"):
            queue.publish("g", event("m1"))
        server.start()
        until_it_is_back(queue)
        queue.close()


class TestNobodyThere:
    def test_it_is_unavailable_by_host_and_port_and_without_the_password(self) -> None:
        with pytest.raises(TransportUnavailable, match=r"127\.0\.0\.1, port 1\b") as raised:
            connect(NOBODY_THERE)
        assert isinstance(raised.value.__cause__, psycopg.OperationalError)
        assert "s3cret" not in f"{raised.value}{raised.value.__cause__!r}"

    def test_so_it_is_for_tasks(self) -> None:
        async def scenario() -> None:
            with pytest.raises(TransportUnavailable, match=r"127\.0\.0\.1, port 1\b"):
                await connect_async(NOBODY_THERE)

        asyncio.run(scenario())

    def test_from_dsn_tries_as_often_as_it_is_told(
        self, url: str, schema: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tries: list[str] = []
        really = psycopg.connect

        def refuse_twice(conninfo: str, **arguments: Any) -> Any:
            tries.append(conninfo)
            if len(tries) <= 2:
                raise psycopg.OperationalError("the database system is starting up")
            return really(conninfo, **arguments)

        monkeypatch.setattr(psycopg, "connect", refuse_twice)
        with pytest.raises(TransportUnavailable, match="starting up"):
            PostgresTransport.from_dsn(url, attempts=2, retry_delay=0.0, schema=schema)
        PostgresTransport.from_dsn(url, attempts=2, retry_delay=0.0, schema=schema).close()
        assert len(tries) == 3

    def test_a_password_that_cannot_be_read_is_not_shown(self) -> None:
        with pytest.raises(ConfigError) as raised:
            connect("postgresql://joe:s3%zzcret@localhost/orders")
        assert "s3%zzcret" not in f"{raised.value}{raised.value.__cause__!r}"

    def test_a_database_that_is_not_there_is_no_matter_of_trying_again(self, url: str) -> None:
        with pytest.raises(ConfigError, match="no_such_database"):
            PostgresTransport.from_dsn(url.replace("/postgres?", "/no_such_database?"))

    def test_a_repr_shows_where_and_no_password(self, url: str, schema: str) -> None:
        with PostgresTransport(f"{url}&password=s3cret", schema=schema) as queue:
            assert schema in repr(queue)
            assert "s3cret" not in repr(queue)


class TestOptions:
    def test_what_is_libpqs_passes_through_a_url_and_what_is_harels_does_not(self, url: str, schema: str) -> None:
        own = f"schema={schema}&application_name=billing&statement_timeout=7.5&max_size=1"
        with connect(f"{url}&{own}&options=-c%20work_mem%3D5MB") as queue:
            assert isinstance(queue, PostgresTransport)
            for setting, value in [
                ("application_name", "billing"),
                ("statement_timeout", "7500ms"),
                ("work_mem", "5MB"),
            ]:
                assert setting_of(queue, setting) == value

    def test_a_statement_that_takes_too_long_is_given_up(self, stage: Stage) -> None:
        queue, first = stage.open(statement_timeout=0.05), stage.actor()
        first.begin()
        first.queue.publish("g", event("m1"))
        with pytest.raises(TransportUnavailable, match="statement timeout"):
            queue.publish("g", event("m2"))
        first.rollback()
        assert queue.peek("g") == []

    @pytest.mark.parametrize(
        "options",
        [
            {"min_size": 3, "max_size": 2},
            {"max_size": 0},
            {"max_transactions": 0},
            {"poll_interval": 0.0},
            {"connect_timeout": float("nan")},
            {"schema": 'x"; DROP'},
            {"pgbouncer": True, "statement_timeout": 1.0},
        ],
    )
    def test_those_that_make_no_sense_are_refused(self, url: str, options: dict[str, Any]) -> None:
        with pytest.raises(ConfigError):
            PostgresTransport(url, **options)

    def test_behind_pgbouncer_nothing_is_prepared_and_nobody_listens(self, stage: Stage) -> None:
        queue = stage.open(pgbouncer=True, max_size=1, poll_interval=0.01)
        waiting = Doing(lambda: queue.wait(30.0))
        queue.publish("g", event("m1"))
        assert waiting.result() is True
        assert queue.claim("w", 60.0) is not None
        pool = queue._links._pool
        assert pool is not None
        with pool.connection() as connection:
            assert connection.execute("SELECT count(*) FROM pg_prepared_statements").fetchone() == (0,)
            assert connection.info.get_parameters().get("options") is None

    def test_after_a_fork_a_process_makes_its_own_connections(self, stage: Stage) -> None:
        queue = stage.open()
        with queue.transaction() as connection:
            queue.bind(connection).publish("g", event("m1"))
        child = os.fork()
        if not child:
            ok = False
            try:
                queue.publish("g", event("m2"))
                with queue.transaction() as connection:
                    queue.bind(connection).publish("g", event("m3"))
                ok = True
            finally:
                os._exit(0 if ok else 1)
        assert os.waitpid(child, 0)[1] == 0
        with queue.transaction() as connection:
            queue.bind(connection).publish("g", event("m4"))
        assert [message.event.kind for message in queue.peek("g")] == ["m1", "m2", "m3", "m4"]


class TestTheCallersOwn:
    @pytest.mark.parametrize("autocommit", [False, True])
    def test_a_connection_is_used_and_left_open(self, stage: Stage, autocommit: bool) -> None:
        other = stage.open()
        with psycopg.connect(stage.url, autocommit=autocommit, row_factory=psycopg.rows.dict_row) as connection:
            queue = PostgresTransport(connection, schema=stage.schema)
            queue.publish("g", event("m1"))
            assert len(other.peek("g")) == 1
            assert queue.wait(0.0) is True
            queue.close()
            assert not connection.closed

    @pytest.mark.parametrize("encoding", ["UTF8", "LATIN1"])
    def test_batches_go_through_whatever_it_makes_of_text(self, stage: Stage, encoding: str) -> None:
        stage.open()
        with psycopg.connect(stage.url, autocommit=True, client_encoding=encoding) as connection:
            connection.adapters.register_dumper(str, StrDumper)
            queue = PostgresTransport(connection, schema=stage.schema)
            queue.publish_many([Message(group, event(f"kind of {group}")) for group in ODD_NAMES])
            leases = queue.claim_many("w", 60.0, 10)
            assert [(lease.group_id, lease.event.kind) for lease in leases] == [(g, f"kind of {g}") for g in ODD_NAMES]
            assert queue.ack_many(leases) == [True] * len(ODD_NAMES)

    @pytest.mark.parametrize("encoding", ["UTF8", "LATIN1"])
    def test_batches_of_a_task_go_through_too(self, stage: Stage, encoding: str) -> None:
        async def scenario() -> None:
            opened = await psycopg.AsyncConnection.connect(stage.url, autocommit=True, client_encoding=encoding)
            async with opened as connection:
                connection.adapters.register_dumper(str, StrDumper)
                queue = AsyncPostgresTransport(connection, schema=stage.schema)
                await queue.publish_many([Message(group, event(f"kind of {group}")) for group in ODD_NAMES])
                leases = await queue.claim_many("w", 60.0, 10)
                assert [(lease.group_id, lease.event.kind) for lease in leases] == [
                    (group, f"kind of {group}") for group in ODD_NAMES
                ]
                assert await queue.ack_many(leases) == [True] * len(ODD_NAMES)

        stage.open()
        asyncio.run(scenario())

    def test_inside_its_transaction_an_operation_takes_part_in_it(self, stage: Stage) -> None:
        other, actor = stage.open(), stage.actor()
        actor.begin()
        actor.queue.publish("g", event("m1"))
        assert other.peek("g") == []
        actor.rollback()
        assert other.peek("g") == []

    def test_a_claim_does_not_soften_the_callers_commit(self, stage: Stage) -> None:
        stage.open().publish("g", event("m1"))
        actor = stage.actor()
        actor.begin()
        assert actor.queue.claim("w", 60.0) is not None
        assert actor.connection.execute("SHOW synchronous_commit").fetchone() == ("on",)

    def test_a_claim_of_its_own_does_not_wait_for_the_disk(self, stage: Stage) -> None:
        stage.open()
        with psycopg.connect(stage.url) as connection:
            infinity = "'-Infinity', '-Infinity'"
            connection.execute(f"SELECT \"{stage.schema}\".harel_claim('w', 60, {infinity}, true, NULL)")
            assert connection.execute("SHOW synchronous_commit").fetchone() == ("off",)

    def test_a_pool_is_used_and_left_open(self, stage: Stage) -> None:
        with psycopg_pool.ConnectionPool(stage.url, min_size=1, open=True) as pool:
            queue = PostgresTransport(pool, schema=stage.schema, poll_interval=60.0)
            waiting = Doing(lambda: queue.wait(300.0))
            stage.until(LISTENING)
            queue.publish("g", event("m1"))
            assert waiting.result() is True
            queue.close()
            assert not pool.closed

    def test_so_it_is_for_tasks(self, stage: Stage) -> None:
        stage.open()

        async def use(queue: AsyncTransport) -> None:
            await queue.publish("g", event("m1"))
            lease = await queue.claim("w", 60.0)
            assert lease is not None
            assert await queue.ack(lease) is True
            await queue.close()

        async def scenario() -> None:
            async with await psycopg.AsyncConnection.connect(stage.url) as connection:
                await use(AsyncPostgresTransport(connection, schema=stage.schema))
                assert not connection.closed
            async with psycopg_pool.AsyncConnectionPool(stage.url, min_size=1, open=False) as pool:
                await use(AsyncPostgresTransport(pool, schema=stage.schema))
                assert not pool.closed

        asyncio.run(scenario())

    def test_anything_else_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="not int"):
            PostgresTransport(5)


class TestCancelling:
    def test_a_task_cancelled_in_an_operation_leaves_no_transaction_and_no_lock(
        self, stage: Stage, caplog: pytest.LogCaptureFixture
    ) -> None:
        stage.open()
        first = stage.actor()
        first.begin()
        first.queue.publish("g", event("m1"))

        async def scenario() -> None:
            async with AsyncPostgresTransport(stage.url, schema=stage.schema, max_size=1) as queue:
                publishing = asyncio.create_task(queue.publish("g", event("m2")))
                await asyncio.to_thread(stage.until, WAITING)
                publishing.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await publishing
                first.commit()
                assert [message.event.kind for message in await queue.peek("g")] == ["m1"]

        asyncio.run(scenario())
        stage.until(f"SELECT 1 WHERE NOT EXISTS ({IN_A_TRANSACTION})")
        assert caplog.records == []

    def test_a_task_cancelled_in_a_wait_listens_no_longer(self, stage: Stage) -> None:
        async def scenario() -> None:
            async with AsyncPostgresTransport(stage.url, schema=stage.schema, poll_interval=60.0) as queue:
                waiting = asyncio.create_task(queue.wait(300.0))
                await asyncio.to_thread(stage.until, LISTENING)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
                await asyncio.to_thread(stage.until, f"SELECT 1 WHERE NOT EXISTS ({LISTENING})")
                await queue.publish("g", event("m1"))
                assert await queue.wait(0.0) is True

        asyncio.run(scenario())

    def test_an_interrupted_thread_leaves_no_transaction_and_no_lock(self, stage: Stage) -> None:
        queue, first = stage.open(max_size=1), stage.actor()
        first.begin()
        first.queue.publish("g", event("m1"))

        def interrupt() -> None:
            stage.until(WAITING)
            os.kill(os.getpid(), signal.SIGINT)

        interrupting = Doing(interrupt)
        with pytest.raises(KeyboardInterrupt):
            queue.publish("g", event("m2"))
        interrupting.result()
        first.commit()
        assert [message.event.kind for message in queue.peek("g")] == ["m1"]


class TestOpening:
    def test_processes_that_open_at_once_on_nothing_all_succeed(self, stage: Stage) -> None:
        with psycopg.connect(stage.url, autocommit=True) as holder:
            holder.execute("SELECT pg_advisory_lock(%s)", (advisory_key(stage.schema, "schema"),))
            opening = [Doing(lambda: PostgresTransport(stage.url, schema=stage.schema)) for _ in range(3)]
            stage.until("SELECT 1 FROM {locks} WHERE NOT granted HAVING count(*) = 3")
        for each in opening:
            queue: Transport = each.result()
            queue.publish("g", event("m"))
            queue.close()

    def test_a_schema_that_is_there_is_opened_beside_any_transaction(self, stage: Stage) -> None:
        stage.open()
        with psycopg.connect(stage.url) as other:
            other.execute(
                f'LOCK TABLE "{stage.schema}".transport_groups, "{stage.schema}".transport_messages IN EXCLUSIVE MODE'
            )
            stage.open(statement_timeout=5.0)

    def test_who_lost_the_race_to_make_it_waits_for_no_transaction_on_the_tables(self, stage: Stage) -> None:
        with psycopg.connect(stage.url, autocommit=True) as holder:
            holder.execute("SELECT pg_advisory_lock(%s)", (advisory_key(stage.schema, "schema"),))
            opening = Doing(lambda: PostgresTransport(stage.url, schema=stage.schema))
            stage.until("SELECT 1 FROM {locks} WHERE NOT granted")
            holder.execute(schema_ddl(stage.schema).encode(), prepare=False)
            with psycopg.connect(stage.url) as other:
                other.execute(f'LOCK TABLE "{stage.schema}".transport_groups IN EXCLUSIVE MODE')
                holder.execute("SELECT pg_advisory_unlock_all()")
                opening.result().close()

    def test_a_role_without_rights_to_make_anything_works_on_what_is_there(self, stage: Stage) -> None:
        stage.open()
        role = f"worker_{stage.schema}"
        stage.do(f"CREATE ROLE {role} LOGIN")
        try:
            plain = stage.url.replace("postgres@", f"{role}@")
            with pytest.raises(ConfigError, match="needs USAGE"):
                PostgresTransport(plain, schema=stage.schema)
            stage.do(f"GRANT USAGE ON SCHEMA {{schema}} TO {role}")
            stage.do(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {{schema}} TO {role}")
            stage.do(f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA {{schema}} TO {role}")
            with PostgresTransport(plain, schema=stage.schema) as queue:
                queue.publish("g", event("m1"))
                lease = queue.claim("w", 60.0)
                assert lease is not None
                assert queue.reject(lease, "no") is True
                assert queue.redrive(lease.seq) is True
            with pytest.raises(ConfigError, match="permission denied"):
                PostgresTransport(plain, schema=f"{stage.schema}x")
        finally:
            stage.do(f"DROP OWNED BY {role}")
            stage.do(f"DROP ROLE {role}")

    def test_create_schema_off_makes_nothing_and_says_what_to_do(self, stage: Stage) -> None:
        with pytest.raises(SchemaMismatch, match="harel schema postgres"):
            PostgresTransport(stage.url, schema=stage.schema, create_schema=False)
        assert stage.ask("SELECT 1 FROM pg_namespace WHERE nspname = $1", stage.schema) == []

    def test_what_schema_ddl_prints_is_a_whole_schema(self, stage: Stage) -> None:
        with psycopg.connect(stage.url, autocommit=True) as other:
            other.execute(schema_ddl(stage.schema).encode(), prepare=False)
        queue = stage.open(create_schema=False)
        queue.publish("g", event("m1"))
        assert queue.claim("w", 60.0) is not None

    def test_a_newer_schema_is_an_error_that_says_so(self, stage: Stage) -> None:
        stage.open()
        stage.do("UPDATE {schema}.transport_schema SET version = 99")
        with pytest.raises(SchemaMismatch, match="version 99"):
            stage.open()

    def test_a_function_that_an_older_version_did_not_have_is_added(self, stage: Stage) -> None:
        stage.open()
        stage.do("DROP FUNCTION {schema}.harel_redrive")
        old = stage.open(create_schema=True)
        assert old.redrive(1) is False

    def test_a_schema_that_goes_while_it_is_used_is_said_to_be_missing(self, stage: Stage) -> None:
        queue = stage.open()
        stage.do("DROP SCHEMA {schema} CASCADE")
        with pytest.raises(SchemaMismatch):
            queue.publish("g", event("m1"))

    def test_connections_that_keep_an_old_snapshot_are_refused(self, stage: Stage) -> None:
        stage.open()
        with (
            psycopg.connect(stage.url, options="-c default_transaction_isolation=serializable") as connection,
            pytest.raises(ConfigError, match="READ COMMITTED"),
        ):
            PostgresTransport(connection, schema=stage.schema)

    def test_own_connections_are_read_committed_whatever_the_default(self, stage: Stage) -> None:
        stage.open()
        url = f"{stage.url}&options=-c%20default_transaction_isolation%3Dserializable"
        with PostgresTransport(url, schema=stage.schema) as queue:
            assert setting_of(queue, "transaction_isolation") == "read committed"


class TestRoundTrips:
    def test_each_core_operation_is_one_round_trip_promise_10(self, stage: Stage, tmp_path: Path) -> None:
        queue = stage.open(max_size=1)
        leases = []

        def rehearse() -> list[Any]:
            queue.publish_many([Message(f"g{number}", event("m")) for number in range(8)])
            leases.extend(queue.claim_many("w", 60.0, 6))
            return [
                lambda: queue.publish("g", event("m")),
                lambda: queue.publish_many([Message("a", event("m")), Message("b", event("m"))]),
                lambda: queue.claim("w", 60.0),
                lambda: queue.claim("w", 60.0, 3),  # with a floor
                lambda: queue.claim_many("w", 60.0, 5),
                lambda: queue.ack(leases.pop()),
                lambda: queue.ack_many([leases.pop(), leases.pop()]),
                lambda: queue.nack(leases.pop(), 5.0),
                lambda: queue.extend(leases[0], 5.0),
                lambda: queue.reject(leases.pop(), "no"),
            ]

        for operation in rehearse():
            operation()
        assert [round_trips(queue, operation) for operation in rehearse()] == [1] * 10


def until_it_is_back(queue: PostgresTransport) -> None:
    """Publish as a caller would who tries again."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            queue.publish("g", event("m1"))
        except TransportUnavailable:
            assert time.monotonic() < deadline, "it never came back"
        else:
            return


def setting_of(queue: PostgresTransport, setting: str) -> str:
    pool = queue._links._pool
    assert pool is not None
    with pool.connection() as connection:
        ((value,),) = connection.execute("SELECT current_setting(%s)", (setting,)).fetchall()
    return str(value)


def round_trips(queue: PostgresTransport, operation: Any) -> int:
    """Count by libpq's trace how often an operation's connection waits for the server."""
    pool = queue._links._pool
    assert pool is not None
    with pool.connection() as connection, tempfile.TemporaryFile() as trace:
        pgconn = connection.pgconn
        pgconn.trace(trace.fileno())
        pool.putconn(connection)
        operation()
        assert pool.getconn() is connection
        pgconn.untrace()
        trace.seek(0)
        return sum(line.split(b"\t")[1:2] == [b"B"] and b"ReadyForQuery" in line for line in trace)


WAITING = "SELECT pid FROM {sessions} WHERE wait_event_type = 'Lock'"
LISTENING = "SELECT 1 FROM {locks} WHERE mode = 'ShareLock' AND granted"
IN_A_TRANSACTION = "SELECT 1 FROM {sessions} WHERE xact_start IS NOT NULL"
