"""Short histories under faults; ``make torture PARTS=histories`` plays long ones.

Which process is harmed when is chosen by a seed, but not what it is doing at that moment, so nothing is said here of
how much was harmed: whatever it was, no promise may be broken.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from torture.histories import History
from torture.nemesis import Nemesis

RAGE_S = 3.0

pytestmark = pytest.mark.timeout(600)  # on a machine that has much else to do


@pytest.mark.parametrize("backend", ["sqlite", "redis", "postgres", "mongo"])
def test_no_promise_is_broken_whatever_happens(backend: str, tmp_path: Path) -> None:
    assert History(backend, tmp_path, seed=1, rage_s=RAGE_S).play() == []


def _swallow_a_message(file: Path) -> None:
    several = "SELECT max(seq) AS seq FROM transport_messages GROUP BY group_id HAVING count(*) > 1"
    _change(file, f"DELETE FROM transport_messages WHERE seq = (SELECT max(seq) FROM ({several}))")


def _break_leases(file: Path) -> None:
    _change(file, "UPDATE transport_groups SET lock_expiry = 0 WHERE locked_by IS NOT NULL")


def _change(file: Path, statement: str) -> None:
    with closing(sqlite3.connect(file, isolation_level=None, timeout=30.0)) as connection:
        connection.execute(statement)


@pytest.mark.parametrize(
    ("harm", "promise"), [(_swallow_a_message, "Promise 3"), (_break_leases, "Promise 1")], ids=["lost", "exclusive"]
)
def test_harm_that_harel_cannot_answer_is_found(
    harm: Callable[[Path], None], promise: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def choices(nemesis: Nemesis) -> Iterator[tuple[str, Any]]:
        yield "something that no promise allows for", lambda: harm(tmp_path / "disk" / "queue.db")

    monkeypatch.setattr(Nemesis, "_choices", choices)
    found = History("sqlite", tmp_path, seed=1, rage_s=RAGE_S).play()
    assert [fault for fault in found if fault.startswith(promise)]
