"""The example that a person would start from, run as a person would."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "orders_sqlite.py"


def run(folder: Path, *arguments: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, EXAMPLE, *arguments], cwd=folder, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_it_needs_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    said = run(tmp_path)
    assert said[:2] == [
        "4 orders placed, 8 events published.",
        "All is done, with 10 attempts; what the failed ones wrote was undone.",
    ]
    assert said[2:] == [f"order-{n}    shipped  {10 * n:4}  applied: paid, shipped" for n in range(1, 5)]
    assert list(tmp_path.iterdir()) == []


def test_in_a_file_that_stays_each_event_was_applied_once(tmp_path: Path) -> None:
    for orders in (4, 8):
        said = run(tmp_path, "my orders.db")
        assert len(said) == 2 + orders
        with closing(sqlite3.connect(tmp_path / "my orders.db")) as database:
            history = database.execute("SELECT name, event FROM history ORDER BY name, rowid").fetchall()
            assert history == [(f"order-{n}", event) for n in range(1, orders + 1) for event in ("paid", "shipped")]
            assert database.execute("SELECT count(*) FROM transport_messages").fetchone() == (0,)
