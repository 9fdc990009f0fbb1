"""The SQLite file itself: opening it, sharing it, and what goes wrong with files."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from harel import (
    ConfigError,
    Event,
    HarelError,
    InvalidArgument,
    Message,
    SchemaMismatch,
    Transport,
    TransportUnavailable,
)
from harel.engine.queue.contract import Lease
from harel.engine.queue.sqlite.ops import schema_ddl
from tests.sqlite.drivers import Driver

EVENT = Event("noted", {"n": 1})


@contextmanager
def writing(driver: Driver, path: Path) -> Iterator[Any]:
    """Another program's open transaction on the file."""
    with closing(driver.connect(path)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield connection


def test_opening_waits_for_nobodys_transaction(tmp_path: Path, driver: Driver) -> None:
    path = tmp_path / "queue.db"
    driver.transport(path).close()
    with writing(driver, path), driver.transport(path, busy_timeout=0.0) as queue:
        assert queue.stats().groups == 0


def test_many_processes_open_an_empty_file_at_once(tmp_path: Path, driver: Driver) -> None:
    program = (
        "import sys, harel; sys.stdin.readline(); q = harel.connect(sys.argv[1]); "
        "q.publish('g', harel.Event('opened')); print('ok')"
    )
    url = driver.url(tmp_path)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program, url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(8)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    answers = [process.communicate(timeout=60) for process in processes]
    assert answers == [("ok\n", "")] * 8
    with driver.transport(tmp_path / "queue.db") as queue:
        assert queue.stats().messages == 8


def test_sixteen_processes_at_work_on_one_file_never_see_it_locked(tmp_path: Path, driver: Driver) -> None:
    program = """
import sys, harel
with harel.connect(sys.argv[1]) as queue:
    for n in range(40):
        queue.publish(f"g{n % 7}", harel.Event("n", {"n": n}))
        for lease in queue.claim_many(sys.argv[2], 30.0, 3):
            assert queue.ack(lease)
"""
    url = driver.url(tmp_path)
    processes = [
        subprocess.Popen([sys.executable, "-c", program, url, str(n)], stderr=subprocess.PIPE, text=True)
        for n in range(16)
    ]
    assert [process.communicate(timeout=100)[1] for process in processes] == [""] * 16
    assert [process.returncode for process in processes] == [0] * 16


def test_threads_may_share_a_transport(tmp_path: Path, driver: Driver) -> None:
    acked: list[int] = []

    def work(queue: Transport, name: str) -> None:
        while leases := queue.claim_many(name, 30.0, 3):
            for lease in leases:
                assert queue.ack(lease)
                acked.append(lease.seq)

    with driver.transport(tmp_path / "queue.db") as queue:
        queue.publish_many([Message(f"g{n % 40}", EVENT, 0) for n in range(200)])
        threads = [threading.Thread(target=work, args=(queue, str(n))) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        while lease := queue.claim("last", 30.0):
            queue.ack(lease)
            acked.append(lease.seq)
        assert sorted(acked) == list(range(1, 201))


def test_a_forked_child_opens_connections_of_its_own(tmp_path: Path, driver: Driver) -> None:
    with driver.transport(tmp_path / "queue.db") as queue:
        queue.publish("a", EVENT)
        parents = {queue._file._writer.connection, queue._file._reader.connection}
        child = os.fork()
        if child == 0:
            status = 1
            try:
                lease = queue.claim("child", 30.0)
                own = {queue._file._writer.connection, queue._file._reader.connection}
                if lease is not None and queue.ack(lease) and not own & (parents - {None}):
                    status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert queue.stats().messages == 0
        queue.publish("b", EVENT)
        assert queue.claim("parent", 30.0) is not None


def test_a_fork_while_another_thread_is_inside_an_operation_does_not_block_the_child(
    tmp_path: Path, driver: Driver
) -> None:
    with driver.transport(tmp_path / "queue.db") as queue:
        queue._file._writer.lock.acquire()
        child = os.fork()
        if child == 0:
            try:
                queue.publish("a", EVENT)
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        queue._file._writer.lock.release()
        assert queue.stats().messages == 1


def test_a_file_that_stays_locked_is_unavailable_and_nothing_changed(tmp_path: Path, driver: Driver) -> None:
    path = tmp_path / "queue.db"
    with driver.transport(path, busy_timeout=0.05) as queue:
        queue.publish("a", EVENT)
        with (
            writing(driver, path),
            pytest.raises(TransportUnavailable, match=r"kept .*queue.db locked for 0.05 s") as raised,
        ):
            queue.publish("a", EVENT)
        assert isinstance(raised.value.__cause__, driver.error)
        assert queue.stats().messages == 1


def test_a_full_disk_is_unavailable_and_the_queue_goes_on_when_there_is_room(tmp_path: Path, driver: Driver) -> None:
    with driver.transport(tmp_path / "queue.db") as queue:
        queue.publish("a", EVENT)
        connection = queue._file._writer.connection
        assert connection is not None
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(TransportUnavailable, match="full"):
            queue.publish_many([Message("a", Event("big", {"text": "x" * 10_000}), 0)] * 10)
        assert queue.stats().messages == 1
        lease = queue.claim("w", 30.0)
        assert lease is not None
        connection.execute("PRAGMA max_page_count = 1000000")
        queue.publish("a", EVENT)
        assert queue.ack(lease)
        assert queue.stats().messages == 1


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("missing/queue.db", "The folder of the SQLite file .*missing/queue.db does not exist"),
        ("text.db", "text.db is not a SQLite database"),
        ("folder", "folder cannot be used just now"),
    ],
)
def test_a_path_that_is_no_database_is_an_error_that_names_it(
    path: str, says: str, tmp_path: Path, driver: Driver
) -> None:
    (tmp_path / "text.db").write_text("This is a text, and not a database. " * 100)
    (tmp_path / "folder").mkdir()
    with pytest.raises(HarelError, match=says):
        driver.transport(tmp_path / path)


@pytest.mark.parametrize("path", ["", ":memory:", "file:queue.db?mode=memory"])
def test_a_path_that_is_no_file_is_refused(path: str, driver: Driver) -> None:
    with pytest.raises(ConfigError, match="memory://"):
        driver.transport(path)


@pytest.mark.parametrize("prefix", ["", "1st", "a-b", 'x"; DROP TABLE t; --', "a" * 41, "café", "a b"])
def test_a_prefix_that_is_no_identifier_is_refused(prefix: str, tmp_path: Path, driver: Driver) -> None:
    with pytest.raises(ConfigError, match="prefix is 1 to 40 ASCII letters"):
        driver.transport(tmp_path / "queue.db", prefix=prefix)


def test_an_unknown_durability_is_refused(tmp_path: Path, driver: Driver) -> None:
    with pytest.raises(ConfigError, match="synchronous must be one of OFF, NORMAL, FULL, EXTRA"):
        driver.transport(tmp_path / "queue.db", synchronous="full")


def test_prefixes_keep_queues_in_one_file_apart(tmp_path: Path, driver: Driver) -> None:
    path = tmp_path / "queue.db"
    with driver.transport(path, prefix="one") as one, driver.transport(path, prefix="two") as two:
        one.publish("a", EVENT)
        assert two.claim("w", 30.0) is None
        lease = one.claim("w", 30.0)
        assert lease is not None
        with pytest.raises(InvalidArgument, match="settle it where it was claimed"):
            two.ack(lease)


def test_a_missing_schema_is_an_error_where_it_may_not_be_made(tmp_path: Path, driver: Driver) -> None:
    path = tmp_path / "queue.db"
    with pytest.raises(SchemaMismatch, match="harel schema sqlite"):
        driver.transport(path, create_schema=False)
    with closing(driver.connect(path)) as connection:
        connection.executescript(schema_ddl("transport"))
    with driver.transport(path, create_schema=False) as queue:
        queue.publish("a", EVENT)
        assert queue.claim("w", 30.0) is not None


def test_a_schema_of_another_version_is_an_error(tmp_path: Path, driver: Driver) -> None:
    path = tmp_path / "queue.db"
    driver.transport(path).close()
    with closing(driver.connect(path)) as connection:
        connection.execute("UPDATE transport_schema SET version = 2")
    with pytest.raises(SchemaMismatch, match="version 2 of the schema, and this harel works with version 1"):
        driver.transport(path)


def test_the_callers_connection_is_used_and_not_closed(tmp_path: Path, driver: Driver) -> None:
    with closing(driver.connect(tmp_path / "queue.db")) as connection:
        with driver.transport(connection) as queue:
            queue.publish("a", EVENT)
            assert queue.claim("w", 30.0) is not None
        assert connection.execute("SELECT count(*) FROM transport_messages").fetchone() == (1,)


def test_the_callers_open_transaction_is_not_joined_by_accident(tmp_path: Path, driver: Driver) -> None:
    with closing(driver.connect(tmp_path / "queue.db")) as connection:
        queue = driver.transport(connection)
        connection.execute("BEGIN")
        with pytest.raises(InvalidArgument, match="inside a transaction"):
            queue.publish("a", EVENT)
        connection.execute("COMMIT")
        queue.publish("a", EVENT)


def test_a_lease_is_known_on_every_transport_of_its_queue(tmp_path: Path, driver: Driver) -> None:
    with driver.transport(tmp_path / "queue.db") as one, driver.transport(tmp_path / "." / "queue.db") as two:
        one.publish("a", EVENT)
        lease = one.claim("w", 30.0)
        assert lease is not None
        assert two.ack(lease)


def test_publish_and_settle_wait_for_the_disk_and_a_claim_need_not(
    tmp_path: Path, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    levels: list[int] = []
    execute = driver.file._execute

    def watched(file: Any, connection: Any, statement: str, *rest: Any) -> Any:
        if statement == "COMMIT":
            levels.append(connection.execute("PRAGMA synchronous").fetchone()[0])
        return execute(file, connection, statement, *rest)

    def level(call: Callable[[], object]) -> int:
        levels.clear()
        assert call() in (None, True)
        (only,) = levels
        return only

    def claimed() -> Lease:
        lease: Lease | None = queue.claim("w", 30.0)
        assert lease is not None
        return lease

    with driver.transport(tmp_path / "queue.db") as queue:
        monkeypatch.setattr(driver.file, "_execute", watched)
        full, normal = 2, 1
        assert level(lambda: queue.publish("a", EVENT)) == full
        lease = claimed()
        assert levels[-1] == normal
        assert level(lambda: queue.extend(lease, 30.0)) == normal
        assert level(lambda: queue.nack(lease)) == normal
        lease = claimed()
        assert level(lambda: queue.ack(lease)) == full
        queue.publish("a", EVENT)
        lease = claimed()
        assert level(lambda: queue.reject(lease, "no")) == full


def test_an_operation_that_fails_leaves_no_open_transaction(tmp_path: Path, driver: Driver) -> None:
    with driver.transport(tmp_path / "queue.db") as queue:
        connection = queue._file._writer.connection
        assert connection is not None
        connection.execute(
            "CREATE TRIGGER stop BEFORE INSERT ON transport_groups BEGIN SELECT RAISE(ABORT, 'stop'); END"
        )
        with pytest.raises(HarelError, match="stop"):
            queue.publish("a", EVENT)
        assert not connection.in_transaction
        assert queue.stats().messages == 0, "the message went with the group"


def test_an_interrupt_right_behind_the_begin_of_a_transaction_leaves_none_open(
    tmp_path: Path, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute = driver.file._execute

    def interrupted(file: Any, connection: Any, statement: str, *rest: Any) -> Any:
        rows = execute(file, connection, statement, *rest)
        if statement.startswith("BEGIN"):
            raise KeyboardInterrupt
        return rows

    with driver.transport(tmp_path / "queue.db") as queue:
        with monkeypatch.context() as patched:
            patched.setattr(driver.file, "_execute", interrupted)
            with pytest.raises(KeyboardInterrupt):
                queue.publish("g", Event("k", id="a"))
        queue.publish("g", Event("k", id="b"))
        assert [message.event.id for message in queue.peek("g")] == ["b"]
