"""What the plans of SQLite's dialect are looked at with: the operations, and queues with statistics of all sorts."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from harel.engine.queue.contract import Lease, Operations, Packed
from harel.engine.queue.op import Op

NOW = 1_700_000_000.0
GROUPS = 20_000
PREFIX = "transport"

HARMLESS_SCANS = re.compile(
    r"SCAN (\S+ VIRTUAL TABLE.*"  # json_each over what the call brings along
    r"|(\d+ )?CONSTANT ROWS?"
    r"|pick|\(subquery-\d+\))"  # the groups that a claim has picked
)


def operations(ops: Operations) -> dict[str, Callable[[], Op[Any]]]:
    """Make one of each operation but ``stats``, which counts everything by contract."""
    lease = Lease(group_id="g7", raw="{}", seq=7, token="w:1", attempt=1, expires_at=NOW, queue=ops.queue)
    return {
        "publish": lambda: ops.publish((Packed("g7", "{}", 0), Packed("new", "{}", 4))),
        **{f"claim from {floor}": partial(ops.claim, "w", 30.0, 5, floor) for floor in range(5)},
        "ack": lambda: ops.ack((lease, lease)),
        "nack": lambda: ops.nack(lease, 1.0),
        "extend": lambda: ops.extend((lease,), 30.0),
        "reject": lambda: ops.reject(lease, "why"),
        "wait": lambda: ops.wait(1.0),
        "groups": lambda: ops.groups(None, 100, "g3"),
        "peek": lambda: ops.peek("g7", 10),
        "hold": lambda: ops.hold("g7"),
        "release": lambda: ops.release("g7"),
        "purge": lambda: ops.purge("g7"),
        "dead_letters": lambda: ops.dead_letters(None, 100, None),
        "dead_letters of a group": lambda: ops.dead_letters("g7", 100, 3),
        "redrive": lambda: ops.redrive(7),
    }


def plan(connection: sqlite3.Connection, statement: str, values: Mapping[str, Any]) -> list[str]:
    """Return the steps of a statement's plan."""
    rows = connection.execute(f"EXPLAIN QUERY PLAN {statement}", {**values, "now": NOW})
    return [detail for _, _, _, detail in rows]


def assert_cheap(connection: sqlite3.Connection, statement: str, values: Mapping[str, Any]) -> None:
    """See that a statement uses an index and sorts nothing."""
    for step in plan(connection, statement, values):
        assert not step.startswith("SCAN") or HARMLESS_SCANS.fullmatch(step), (step, statement)
        assert "TEMP B-TREE" not in step, (step, statement)
        assert "AUTOMATIC" not in step, (step, statement)


def assert_walks_the_index_of(
    floor: int, connection: sqlite3.Connection, statement: str, values: Mapping[str, Any]
) -> None:
    """See that a claim finds its groups by the index of its floor."""
    index = f"{PREFIX}_groups_claimable" + (f"_{floor}" if floor else "")
    assert f"SEARCH {PREFIX}_groups USING INDEX {index} (lock_expiry<?)" in {
        step.replace("COVERING ", "") for step in plan(connection, statement, values)
    }


def _publish(connection: sqlite3.Connection, names: Iterator[str]) -> None:
    for name in names:
        connection.execute(f"INSERT INTO {PREFIX}_messages (group_id, event) VALUES (?, '{{}}')", (name,))
        connection.execute(
            f"INSERT INTO {PREFIX}_groups (group_id, lock_expiry, priority, attempts, since) VALUES (?, ?, 0, 0, ?) "
            "ON CONFLICT (group_id) DO NOTHING",
            (name, NOW - 2.0**33, NOW),
        )


def _made(path: Path, ddl: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.executescript(ddl)
    return connection


def _fill(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN")
    _publish(connection, (f"g{number}" for number in range(GROUPS)))
    _publish(connection, (f"g{number % 50}" for number in range(GROUPS)))
    connection.execute(
        f"INSERT INTO {PREFIX}_dead_letters SELECT seq + 1000000, group_id, event, 1, 0, 'why', 0.0 "
        f"FROM {PREFIX}_messages LIMIT 20000"
    )
    connection.execute("COMMIT")


def no_statistics(path: Path, ddl: str) -> sqlite3.Connection:
    connection = _made(path, ddl)
    _fill(connection)
    return connection


def statistics_of_one_row_each(path: Path, ddl: str) -> sqlite3.Connection:
    connection = _made(path, ddl)
    _publish(connection, iter(["only"]))
    connection.execute(f"INSERT INTO {PREFIX}_dead_letters VALUES (9999999, 'only', '{{}}', 1, 0, 'why', 0.0)")
    connection.execute("ANALYZE")
    _fill(connection)
    return connection


def true_statistics(path: Path, ddl: str) -> sqlite3.Connection:
    connection = no_statistics(path, ddl)
    connection.execute("ANALYZE")
    return connection


def statistics_of_one_giant_group(path: Path, ddl: str) -> sqlite3.Connection:
    connection = _made(path, ddl)
    connection.execute("BEGIN")
    _publish(connection, iter(["giant"] * GROUPS))
    connection.execute("COMMIT")
    connection.execute("ANALYZE")
    _fill(connection)
    return connection


STATISTICS = (no_statistics, statistics_of_one_row_each, true_statistics, statistics_of_one_giant_group)
"""Queues of 20,000 groups, whose statistics are missing, old, true or odd."""
