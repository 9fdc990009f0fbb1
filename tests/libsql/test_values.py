"""What the driver does to values, and that a queue gets them as they are."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import libsql  # type: ignore[import-untyped]
import pytest

from harel import Event, InvalidArgument
from harel.engine.queue.libsql.ops import place_values
from harel.engine.transport import LibsqlTransport
from harel.engine.transport import libsql as module


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[LibsqlTransport]:
    with LibsqlTransport(tmp_path / "queue.db") as queue:
        yield queue


def test_values_go_to_the_places_that_sqlite_gives_their_names(tmp_path: Path) -> None:
    statement = "SELECT :b, :a, :b || :c, :a"
    assert place_values(statement) == ("b", "a", "c")
    with closing(libsql.connect(":memory:")) as connection:
        assert connection.execute(statement, ("b", "a", "c")).fetchall() == [("b", "a", "bc", "a")]


@pytest.mark.parametrize("limit", [2**31, 2**53 + 1, sys.maxsize, 2**80])
def test_a_limit_of_any_size(queue: LibsqlTransport, limit: int) -> None:
    queue.publish("a", Event("noted"))
    assert len(queue.peek("a", limit)) == 1
    assert len(queue.groups(limit=limit)) == 1
    assert queue.dead_letters(limit=limit) == []
    assert len(queue.claim_many("w", 30.0, limit)) == 1


@pytest.mark.parametrize("seq", [2**31 + 1, 2**53 + 1, 2**62 + 1])
def test_a_seq_of_any_size(queue: LibsqlTransport, seq: int) -> None:
    """The driver would round it, and settle a neighbour."""
    writer = queue._file._writer.connection
    for number in (seq - 1, seq):
        writer.execute(
            f"INSERT INTO transport_messages VALUES ({number}, 'a', '{{\"kind\": \"{number}\"}}')"
        ).fetchall()
    queue.publish("b", Event("only the group"))
    writer.execute("UPDATE transport_groups SET group_id = 'a'").fetchall()
    for number in (seq - 1, seq):
        lease = queue.claim("w", 30.0)
        assert lease is not None
        assert lease.seq == number
        assert queue.reject(lease, "why")
    assert [letter.seq for letter in queue.dead_letters()] == [seq - 1, seq]
    assert [letter.seq for letter in queue.dead_letters(after=seq - 1)] == [seq]
    assert queue.redrive(seq)
    assert [letter.seq for letter in queue.dead_letters()] == [seq - 1]


def test_what_is_longer_than_sqlite_takes_is_an_error_and_not_null(
    queue: LibsqlTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise 3: the driver would publish nothing, and say nothing."""
    monkeypatch.setattr(module, "_MOST_BYTES", 1_000)
    queue.publish("a", Event("noted", {"text": "x" * 500}))
    for text in ("x" * 1_000, "ü" * 500):
        with pytest.raises(InvalidArgument, match="takes no value this large"):
            queue.publish("a", Event("noted", {"text": text}))
    assert queue.stats().messages == 1


def test_a_statement_that_fails_is_an_error_also_when_it_has_no_rows(queue: LibsqlTransport) -> None:
    connection = queue._file._writer.connection
    connection.execute("CREATE TABLE one (a PRIMARY KEY)").fetchall()
    for _ in range(2):
        error = None
        try:
            queue._file._execute(connection, "INSERT INTO one VALUES (1)", {}, {})
        except ValueError as raised:
            error = raised
    assert "UNIQUE" in str(error)


def test_the_driver_waits_for_no_lock_itself(queue: LibsqlTransport) -> None:
    """It would hold up the whole process."""
    for link in (queue._file._writer, queue._file._reader):
        connection = link.connection or queue._file._connect(link)
        assert connection.execute("PRAGMA busy_timeout").fetchall() == [(0,)]
