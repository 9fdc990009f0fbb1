"""The example on a real server, its worker killed in the middle of transfers."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import psycopg
import pytest

from harel import Event, connect
from tests.servers.postgres import postgres_url

EXAMPLE = Path(__file__).parents[2] / "examples" / "transfers_postgres.py"
DEADLINE_S = 60.0
KILLS = 4

Bank = psycopg.Connection[tuple[object, ...]]


@pytest.fixture
def url() -> Iterator[str]:
    """A database of its own."""
    name = f"bank_{uuid4().hex[:12]}"
    with psycopg.connect(postgres_url(), autocommit=True) as server:
        server.execute(f'CREATE DATABASE "{name}"')
        yield urlunsplit(urlsplit(postgres_url())._replace(path=f"/{name}"))
        server.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@pytest.fixture
def bank(url: str) -> Iterator[Bank]:
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


def run(command: str, url: str) -> str:
    done = subprocess.run(
        [sys.executable, EXAMPLE, command, url], stdout=subprocess.PIPE, text=True, timeout=DEADLINE_S, check=True
    )
    return done.stdout


@contextmanager
def working(url: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, EXAMPLE, "work", url], stderr=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def number(bank: Bank, query: str) -> int:
    row = bank.execute(query).fetchone()
    assert row is not None
    assert isinstance(row[0], int)
    return row[0]


WAITING = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%accounts%FOR UPDATE%'
"""


def test_each_transfer_is_made_once_though_workers_are_killed_in_the_middle(url: str, bank: Bank) -> None:
    run("publish", url)
    begun = 0
    for n in range(KILLS):
        with psycopg.connect(url) as auditor:
            # Who holds an account stops each transfer to or from it after it has written its row, before it commits.
            auditor.execute("SELECT 1 FROM accounts ORDER BY name OFFSET %s LIMIT 1 FOR UPDATE", (n % 4,))
            with working(url) as worker:
                wait_until(lambda: number(bank, WAITING) > 0)
                begun += number(bank, WAITING)
                worker.kill()
                assert worker.wait(DEADLINE_S) == -signal.SIGKILL
        wait_until(lambda: number(bank, WAITING) == 0)
        assert number(bank, "SELECT count(*) FROM transfers") < 100, "it was killed before the end"
    assert begun >= KILLS

    with connect(url) as queue, working(url) as worker:
        wait_until(lambda: queue.stats().messages == 0)
        worker.terminate()
        assert worker.wait(DEADLINE_S) == 0
        assert queue.stats().dead_letters == 0
    assert number(bank, "SELECT count(*) FROM transfers") == 100
    assert number(bank, "SELECT count(DISTINCT id) FROM transfers") == 100
    assert number(bank, "SELECT sum(balance)::bigint FROM accounts") == 4_000
    wrong = """
        SELECT count(*) FROM accounts WHERE balance <> 1000
            + (SELECT coalesce(sum(amount), 0) FROM transfers WHERE payee = name)
            - (SELECT coalesce(sum(amount), 0) FROM transfers WHERE payer = name)
    """
    assert number(bank, wrong) == 0
    assert run("show", url).endswith("sum    4000 after 100 transfers\n")


def test_a_transfer_that_makes_no_sense_is_a_dead_letter_and_changes_nothing(url: str, bank: Bank) -> None:
    run("publish", url)
    with connect(url) as queue:
        queue.publish("anna", Event("transfer", {"id": "odd", "payer": "anna", "payee": "bela", "amount": "much"}))
        with working(url) as worker:
            wait_until(lambda: queue.stats().messages == 0)
            worker.terminate()
            assert worker.wait(DEADLINE_S) == 0
        (letter,) = queue.dead_letters()
    assert "amount: Expected `int`, got `str`" in letter.reason
    assert number(bank, "SELECT count(*) FROM transfers") == 100
    assert number(bank, "SELECT sum(balance)::bigint FROM accounts") == 4_000
