"""What SQLite does for each operation: promise 10, whatever the statistics say."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from harel.engine.queue.contract import Lease
from harel.engine.queue.op import Op
from harel.engine.queue.sqlite.ops import Read, SqliteOps, Write, schema_ddl
from tests.plans.sqlite_operations import (
    HARMLESS_SCANS,
    PREFIX,
    STATISTICS,
    assert_cheap,
    assert_walks_the_index_of,
    operations,
    plan,
)

OPS = SqliteOps("sqlite:///plans", PREFIX, fresh_first=True, poll_interval_s=0.05, create_schema=True)
LEASES = [
    Lease(group_id=f"g{n}", raw="{}", seq=n, token=f"w:{n}", attempt=1, expires_at=0.0, queue=OPS.queue)
    for n in range(50)
]
OPERATIONS: dict[str, Callable[[], Op[Any]]] = {
    **operations(OPS),
    "ack of many": lambda: OPS.ack(LEASES),
    "extend of many": lambda: OPS.extend(LEASES, 30.0),
}


def _statements(operation: Callable[[], Op[Any]]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return what an operation sends first, with its values; every one but ``wait`` sends nothing else."""
    request = next(operation())
    if isinstance(request, Read):
        return [(request.statement, request.values)]
    assert isinstance(request, Write)
    return [(statement, values if isinstance(values, Mapping) else values[0]) for statement, values in request.steps]


@pytest.fixture(scope="module", params=STATISTICS, ids=lambda make: make.__name__)
def database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A queue of 20,000 groups."""
    path = tmp_path_factory.mktemp("plans") / "queue.db"
    request.param(path, schema_ddl(PREFIX)).close()
    return path


@pytest.fixture
def connection(database: Path) -> Iterator[sqlite3.Connection]:
    """A connection that has just read the statistics, as a new process's has."""
    connection = sqlite3.connect(database, isolation_level=None)
    yield connection
    connection.close()


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_statement_uses_an_index_and_sorts_nothing(connection: sqlite3.Connection, name: str) -> None:
    """Promise 10."""
    for statement, values in _statements(OPERATIONS[name]):
        assert_cheap(connection, statement, values)


def test_renewing_many_leases_looks_each_of_their_groups_up(connection: sqlite3.Connection) -> None:
    ((statement, values),) = _statements(OPERATIONS["extend of many"])
    groups = [step for step in plan(connection, statement, values) if "transport_groups" in step]
    assert groups == ["SEARCH transport_groups USING INDEX sqlite_autoindex_transport_groups_1 (group_id=?)"]


@pytest.mark.parametrize("floor", range(5))
def test_a_claim_walks_the_index_of_its_floor(connection: sqlite3.Connection, floor: int) -> None:
    """Promise 8: a floor is served by its own index, so that what lies below it is not passed over."""
    ((statement, values),) = _statements(OPERATIONS[f"claim from {floor}"])
    assert_walks_the_index_of(floor, connection, statement, values)


def test_the_rule_for_plans_finds_a_scan_and_a_sort(connection: sqlite3.Connection) -> None:
    scan, *_ = plan(connection, "SELECT * FROM transport_groups WHERE attempts = 7", {})
    assert scan.startswith("SCAN")
    assert not HARMLESS_SCANS.fullmatch(scan)
    assert any("TEMP B-TREE" in step for step in plan(connection, "SELECT 1 FROM transport_groups ORDER BY since", {}))
