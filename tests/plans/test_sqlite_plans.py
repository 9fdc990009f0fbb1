"""What SQLite does for each operation: promise 10, whatever the statistics say."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from harel.engine.queue.contract import Lease, Packed
from harel.engine.queue.op import Op
from harel.engine.queue.sqlite.ops import Read, SqliteOps, Write, schema_ddl

NOW = 1_700_000_000.0
GROUPS = 20_000

OPS = SqliteOps("sqlite:///plans", "transport", fresh_first=True, poll_interval_s=0.05, create_schema=True)
LEASE = Lease(group_id="g7", raw="{}", seq=7, token="w:1", attempt=1, expires_at=NOW, queue=OPS.queue)
OPERATIONS: dict[str, Callable[[], Op[Any]]] = {
    "publish": lambda: OPS.publish((Packed("g7", "{}", 0), Packed("new", "{}", 4))),
    **{f"claim from {floor}": partial(OPS.claim, "w", 30.0, 5, floor) for floor in range(5)},
    "ack": lambda: OPS.ack((LEASE, LEASE)),
    "nack": lambda: OPS.nack(LEASE, 1.0),
    "extend": lambda: OPS.extend((LEASE,), 30.0),
    "reject": lambda: OPS.reject(LEASE, "why"),
    "wait": lambda: OPS.wait(1.0),
    "groups": lambda: OPS.groups(None, 100, "g3"),
    "peek": lambda: OPS.peek("g7", 10),
    "hold": lambda: OPS.hold("g7"),
    "release": lambda: OPS.release("g7"),
    "purge": lambda: OPS.purge("g7"),
    "dead_letters": lambda: OPS.dead_letters(None, 100, None),
    "dead_letters of a group": lambda: OPS.dead_letters("g7", 100, 3),
    "redrive": lambda: OPS.redrive(7),
}
"""All but ``stats``, which counts everything by contract."""

HARMLESS_SCANS = re.compile(
    r"SCAN (\S+ VIRTUAL TABLE.*"  # json_each over what the call brings along
    r"|(\d+ )?CONSTANT ROWS?"
    r"|pick|\(subquery-\d+\))"  # the groups that a claim has picked
)


def _statements(operation: Callable[[], Op[Any]]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return what an operation sends first, with its values; every one but ``wait`` sends nothing else."""
    request = next(operation())
    if isinstance(request, Read):
        return [(request.statement, request.values)]
    assert isinstance(request, Write)
    return [(statement, values if isinstance(values, Mapping) else values[0]) for statement, values in request.steps]


def _publish(connection: sqlite3.Connection, names: Iterator[str]) -> None:
    for statement, values in _statements(lambda: OPS.publish([Packed(name, "{}", 0) for name in names])):
        connection.execute(statement, {**values, "now": NOW})


def _made(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.executescript(schema_ddl("transport"))
    return connection


def _fill(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN")
    _publish(connection, (f"g{number}" for number in range(GROUPS)))
    _publish(connection, (f"g{number % 50}" for number in range(GROUPS)))
    connection.execute(
        "INSERT INTO transport_dead_letters SELECT seq + 1000000, group_id, event, 1, 0, 'why', 0.0 "
        "FROM transport_messages LIMIT 20000"
    )
    connection.execute("COMMIT")


def no_statistics(path: Path) -> sqlite3.Connection:
    connection = _made(path)
    _fill(connection)
    return connection


def statistics_of_one_row_each(path: Path) -> sqlite3.Connection:
    connection = _made(path)
    _publish(connection, iter(["only"]))
    connection.execute("INSERT INTO transport_dead_letters VALUES (9999999, 'only', '{}', 1, 0, 'why', 0.0)")
    connection.execute("ANALYZE")
    _fill(connection)
    return connection


def true_statistics(path: Path) -> sqlite3.Connection:
    connection = no_statistics(path)
    connection.execute("ANALYZE")
    return connection


def statistics_of_one_giant_group(path: Path) -> sqlite3.Connection:
    connection = _made(path)
    _publish(connection, iter(["giant"] * GROUPS))
    connection.execute("ANALYZE")
    _fill(connection)
    return connection


@pytest.fixture(
    scope="module",
    params=[no_statistics, statistics_of_one_row_each, true_statistics, statistics_of_one_giant_group],
    ids=lambda make: make.__name__,
)
def database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A queue of 20,000 groups, with statistics that are missing, old, true or odd."""
    path = tmp_path_factory.mktemp("plans") / "queue.db"
    request.param(path).close()
    return path


@pytest.fixture
def connection(database: Path) -> Iterator[sqlite3.Connection]:
    """A connection that has just read the statistics, as a new process's has."""
    connection = sqlite3.connect(database, isolation_level=None)
    yield connection
    connection.close()


def _plan(connection: sqlite3.Connection, statement: str, values: Mapping[str, Any]) -> list[str]:
    rows = connection.execute(f"EXPLAIN QUERY PLAN {statement}", {**values, "now": NOW})
    return [detail for _, _, _, detail in rows]


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_statement_uses_an_index_and_sorts_nothing(connection: sqlite3.Connection, name: str) -> None:
    """Promise 10."""
    for statement, values in _statements(OPERATIONS[name]):
        for step in _plan(connection, statement, values):
            assert not step.startswith("SCAN") or HARMLESS_SCANS.fullmatch(step), (step, statement)
            assert "TEMP B-TREE" not in step, (step, statement)
            assert "AUTOMATIC" not in step, (step, statement)


@pytest.mark.parametrize("floor", range(5))
def test_a_claim_walks_the_index_of_its_floor(connection: sqlite3.Connection, floor: int) -> None:
    """Promise 8: a floor is served by its own index, so that what lies below it is not passed over."""
    ((statement, values),) = _statements(OPERATIONS[f"claim from {floor}"])
    index = "transport_groups_claimable" + (f"_{floor}" if floor else "")
    assert f"SEARCH transport_groups USING INDEX {index} (lock_expiry<?)" in {
        step.replace("COVERING ", "") for step in _plan(connection, statement, values)
    }


def test_the_rule_for_plans_finds_a_scan_and_a_sort(connection: sqlite3.Connection) -> None:
    scan, *_ = _plan(connection, "SELECT * FROM transport_groups WHERE attempts = 7", {})
    assert scan.startswith("SCAN")
    assert not HARMLESS_SCANS.fullmatch(scan)
    assert any("TEMP B-TREE" in step for step in _plan(connection, "SELECT 1 FROM transport_groups ORDER BY since", {}))
