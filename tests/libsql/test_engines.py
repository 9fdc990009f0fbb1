"""Two copies of SQLite: they share a file between processes, and never inside one."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import libsql  # type: ignore[import-untyped]
import pytest

from harel import ConfigError, Event, Transport
from harel.engine.aio_transport import AsyncLibsqlTransport, AsyncSqliteTransport
from harel.engine.transport import LibsqlTransport, SqliteTransport

EVENT = Event("noted", {"n": 1})

Make = Callable[..., Any]
each_order = pytest.mark.parametrize(
    ("first", "second"),
    [(SqliteTransport, LibsqlTransport), (LibsqlTransport, SqliteTransport)],
    ids=["sqlite first", "libsql first"],
)


@each_order
def test_a_file_that_is_open_through_one_is_refused_to_the_other(first: Make, second: Make, tmp_path: Path) -> None:
    path, link = tmp_path / "queue.db", tmp_path / "link.db"
    with first(path) as queue:
        queue.publish("a", EVENT)
        link.symlink_to(path)
        for name in (path, link):
            with pytest.raises(ConfigError, match="is open in this process through"):
                second(name)
        with first(link) as again:
            assert again.stats().messages == 1
        with pytest.raises(ConfigError, match="is open in this process"):
            second(path)
        second(tmp_path / "other.db").close()
    with second(path) as queue:
        assert queue.stats().messages == 1


async def test_the_async_ones_are_told_apart_too(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    async with AsyncLibsqlTransport(path) as queue:
        await queue.publish("a", EVENT)
        with pytest.raises(ConfigError, match="through libsql already"):
            await AsyncSqliteTransport(path).open()
    async with AsyncSqliteTransport(path) as other:
        assert (await other.stats()).messages == 1


def test_a_connection_that_is_handed_in_is_known_too(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    with closing(libsql.connect(str(path), isolation_level=None)) as connection:
        queue: Transport = LibsqlTransport(connection)
        with pytest.raises(ConfigError, match="through libsql already"):
            SqliteTransport(path)
        queue.close()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        queue = SqliteTransport(connection)
        with pytest.raises(ConfigError, match="through sqlite3 already"):
            LibsqlTransport(path)
        queue.close()


@each_order
def test_a_transaction_that_outlives_its_transport_keeps_the_file(first: Make, second: Make, tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    queue = first(path)
    with queue.transaction():
        queue.close()
        with pytest.raises(ConfigError, match="is open in this process"):
            second(path)
    second(path).close()


def test_a_file_that_could_not_be_opened_is_not_taken_for_open(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    path.write_text("This is a text, and not a database. " * 100)
    for make in (SqliteTransport, LibsqlTransport, SqliteTransport):
        with pytest.raises(ConfigError, match="is not a SQLite database"):
            make(path)


def test_a_forked_child_may_use_the_other(tmp_path: Path) -> None:
    program = """
import os, sys, harel
queue = harel.connect("sqlite:///" + sys.argv[1])
queue.publish("a", harel.Event("noted"))
child = os.fork()
if child == 0:
    with harel.connect("libsql:///" + sys.argv[1]) as own:
        own.publish("b", harel.Event("noted"))
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print([group.group_id for group in queue.groups()])
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "queue.db")], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("['a', 'b']\n", "")


def test_processes_of_both_work_on_one_file(tmp_path: Path) -> None:
    program = """
import sys, harel
with harel.connect(sys.argv[1]) as queue:
    for n in range(60):
        queue.publish(f"g{n % 7}", harel.Event("n", {"n": n}))
        for lease in queue.claim_many("w", 600.0, 3):
            assert queue.ack(lease)
            print(lease.seq)
"""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program, f"{scheme}:///{tmp_path}/queue.db?synchronous=NORMAL"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for scheme in ("sqlite", "libsql") * 3
    ]
    answers = [process.communicate(timeout=100) for process in processes]
    assert [errors for _, errors in answers] == [""] * 6
    settled = [int(seq) for output, _ in answers for seq in output.split()]
    with LibsqlTransport(tmp_path / "queue.db") as queue:
        while lease := queue.claim("last", 600.0):
            settled.append(lease.seq)
            assert queue.ack(lease)
    assert sorted(settled) == list(range(1, 361))
