"""What rqlite's SQLite does for each operation: promise 10, whatever the statistics say; and how little is sent."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from harel.engine.queue.op import Op
from harel.engine.queue.rqlite.cluster import Change
from harel.engine.queue.rqlite.ops import RqliteOps, schema_ddl
from harel.engine.queue.sqlite.ops import Read
from tests.plans.sqlite_operations import PREFIX, STATISTICS, assert_cheap, assert_walks_the_index_of, operations


def _ops(*, clock_given: bool) -> RqliteOps:
    return RqliteOps(
        "rqlite://plans",
        PREFIX,
        clock_given=clock_given,
        fresh_first=True,
        poll_interval_s=0.05,
        keep_s=70.0,
        create_schema=True,
    )


OPERATIONS = operations(_ops(clock_given=False))
BY_A_GIVEN_CLOCK = operations(_ops(clock_given=True))
_TIMES = re.compile(r"\b(date|time|datetime|julianday|unixepoch|strftime|timediff|current_\w+)\b", re.IGNORECASE)


def _statements(operation: Callable[[], Op[Any]]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return what an operation sends first, with its values; every one but ``wait`` sends nothing else."""
    request = next(operation())
    if isinstance(request, Read):
        return [(request.statement, request.values)]
    assert isinstance(request, Change)
    assert request.answer is not None
    return [*request.steps, request.answer]


@pytest.fixture(scope="module", params=STATISTICS, ids=lambda make: make.__name__)
def database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A queue of 20,000 groups, after as many requests."""
    path = tmp_path_factory.mktemp("plans") / "queue.db"
    connection = request.param(path, schema_ddl(PREFIX))
    connection.execute("INSERT INTO transport_requests SELECT seq, 0.0, seq, '[]' FROM transport_messages")
    connection.close()
    return path


@pytest.fixture
def connection(database: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(database, isolation_level=None)
    yield connection
    connection.close()


@pytest.mark.parametrize("made", [OPERATIONS, BY_A_GIVEN_CLOCK], ids=["leader's clock", "clock given"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_every_statement_uses_an_index_and_sorts_nothing(
    connection: sqlite3.Connection, name: str, made: dict[str, Callable[[], Op[Any]]]
) -> None:
    """Promise 10."""
    for statement, values in _statements(made[name]):
        assert_cheap(connection, statement, values)


@pytest.mark.parametrize("floor", range(5))
def test_a_claim_walks_the_index_of_its_floor(connection: sqlite3.Connection, floor: int) -> None:
    """Promise 8."""
    (statement, values), *_ = [
        (statement, values)
        for statement, values in _statements(OPERATIONS[f"claim from {floor}"])
        if "ORDER BY lock_expiry" in statement
    ]
    assert_walks_the_index_of(floor, connection, statement, values)


@pytest.mark.parametrize("name", OPERATIONS)
def test_no_statement_depends_on_what_rqlite_understands_of_it(name: str) -> None:
    """rqlite leaves ``'now'`` to each node where its parser fails, and then answers no rows of RETURNING either."""
    statements = [statement for statement, _ in _statements(OPERATIONS[name])]
    assert not [statement for statement in statements if re.search(r"\bRETURNING\b", statement, re.IGNORECASE)]
    if len(statements) > 1:
        assert [s for s in statements if _TIMES.search(s)] == [
            "UPDATE transport_clock SET told = julianday('now') WHERE id = 1"
        ]
