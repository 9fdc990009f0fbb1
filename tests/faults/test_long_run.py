"""What comes and goes leaves nothing: transports, workers, groups; and what is measured over a long run sees a leak.

The long run itself is ``torture/long_run.py``.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis

from harel import Event, connect
from harel.engine.transport import SqliteTransport
from tests.backends import URLS, with_options
from tests.servers.mongo import database_in, mongo_url
from tests.servers.postgres import postgres_url, schema_in
from tests.servers.redis import prefix_in, redis_url
from tests.servers.rqlite import prefix_in as rqlite_prefix_in
from tests.servers.rqlite import rqlite_url
from torture.long_cycles import Cycles, fail_to_open, left_here, unreachable, wait_for
from torture.long_meters import MB, Series, store_of

TIMES = 5


@pytest.fixture(params=URLS)
def backend(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


def _url(backend: str, folder: Path) -> str:
    url = URLS[backend](folder)
    return with_options(url, application_name=schema_in(folder)) if backend == "postgres" else url


# An attempt to connect that pymongo's closing cancels leaves its socket to the collector, which says so. What is left
# open is counted here, and more exactly.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.mark.parametrize("how", ["sync", "looped", "threaded", "worker", "awaiting_worker"])
def test_what_is_opened_used_and_closed_leaves_nothing(backend: str, tmp_path: Path, how: str) -> None:
    """As many files, threads and connections as before, however often it was done."""
    url = _url(backend, tmp_path)
    cycle = getattr(Cycles(url), how)
    if backend == "sqs" and "worker" in how:
        pytest.skip("a worker on the stand-in waits for its poll; what it opens is what the others do")
    cycle()  # what is kept for the whole process is made once
    before = left_here()
    for _ in range(TIMES):
        cycle()
    assert not wait_for(left_here, before)


def test_one_loop_with_many_transports_leaves_no_task_and_nothing_else(backend: str, tmp_path: Path) -> None:
    cycles = Cycles(_url(backend, tmp_path))

    async def over_and_over() -> None:
        await cycles.awaiting(1)
        before = left_here()
        await cycles.awaiting(TIMES)
        assert not wait_for(left_here, before)

    asyncio.run(over_and_over())


def test_what_cannot_be_opened_leaves_nothing(backend: str, tmp_path: Path) -> None:
    """A server that nobody answers at, tried over and over."""
    with unreachable(backend, tmp_path) as url:
        fail_to_open(url)
        before = left_here()
        for _ in range(3):
            fail_to_open(url)
        assert not wait_for(left_here, before)


def _server_connections(backend: str, folder: Path) -> Any:
    """Return what asks a server for the number of connections that it has of this test."""

    def of_postgres() -> dict[str, float]:
        ask = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s"
        with psycopg.connect(postgres_url()) as connection:
            return {"connections": connection.execute(ask, (schema_in(folder),)).fetchall()[0][0]}

    def of_redis() -> dict[str, float]:
        with closing(redis.Redis.from_url(redis_url())) as client:
            return {"connections": len(client.client_list())}

    return of_postgres if backend == "postgres" else of_redis


@pytest.mark.parametrize("how", ["sync", "looped", "worker", "awaiting_worker"])
@pytest.mark.parametrize("named", ["postgres", "redis"])
def test_the_server_has_as_many_connections_as_before(named: str, tmp_path: Path, how: str) -> None:
    cycle = getattr(Cycles(_url(named, tmp_path)), how)
    cycle()
    count = _server_connections(named, tmp_path)
    before = {"connections": 0.0} if named == "postgres" else count()
    for _ in range(TIMES):
        cycle()
    assert not wait_for(count, before)


GROUPS = 300


def _store(backend: str, folder: Path) -> Any:
    places: dict[str, dict[str, Any]] = {
        "sqlite": {"path": folder / "queue.db"},
        "libsql": {"path": folder / "queue.db"},
        "redis": {"url": redis_url(), "prefix": prefix_in(folder)},
        "postgres": {"url": postgres_url(), "schema": schema_in(folder)},
        "mongo": {"url": mongo_url(), "database": database_in(folder)},
        "rqlite": {"base": rqlite_url().replace("rqlite://", "http://"), "prefix": rqlite_prefix_in(folder)},
    }
    return store_of(backend, **places[backend])


@pytest.mark.parametrize("named", [name for name in URLS if name != "sqs"])
def test_groups_that_come_and_go_leave_no_record(named: str, tmp_path: Path) -> None:
    """Every table, collection and key is empty when all is settled, however that came about (promise 10)."""
    with connect(URLS[named](tmp_path)) as transport:
        measure = _store(named, tmp_path)
        for number in range(GROUPS // 10):
            names = [f"{number}.{place}" for place in range(10)]
            transport.publish_many([(name, Event("k"), place % 5) for place, name in enumerate(names)])  # type: ignore[misc]
            transport.hold(names[0])
            transport.release(names[0])
            transport.purge(names[1])
            leases = transport.claim_many("w", 60.0, 10)
            transport.nack(leases.pop())
            transport.reject(leases.pop(), "why")
            (letter,) = transport.dead_letters()
            transport.redrive(letter.seq)
            transport.ack_many(leases + transport.claim_many("w", 60.0, 10))
        assert transport.stats().groups == transport.stats().messages == transport.stats().dead_letters == 0
        found = measure().items()
    records = {name: count for name, count in found if name.endswith(" rows") and "dead rows" not in name}
    assert records
    assert not any(records.values()), records


def test_a_series_that_grows_is_a_fault_and_one_that_varies_is_none() -> None:
    series = Series()
    for moment in range(50):
        series.add("worker", {"rss": 100 * MB + moment * MB, "files": 20 + moment % 3, "threads": 9})
        series.add("server", {"connections": 10 + (moment > 15) * 9, "messages bytes": (moment % 7) * MB})
    grown, more = series.faults()
    assert grown == "worker rss grew from 114.5 MB to 144.5 MB; 132.0 MB is allowed"  # 10 % and 6 MB more
    assert more.startswith("server connections grew from 10 to 19")


def test_the_first_fifth_is_for_warming_up() -> None:
    series = Series()
    for moment in range(50):
        series.add("worker", {"rss": min(moment, 9) * 20 * MB})
    assert series.faults() == []
    assert series.fifths("worker rss") == (90 * MB, 180 * MB, 180 * MB)


class _Leaking(SqliteTransport):
    """Opens a file with every claim, and forgets it."""

    def claim(self, *args: Any, **kwargs: Any) -> Any:
        _leaked.append(os.open(os.devnull, os.O_RDONLY))
        return super().claim(*args, **kwargs)


_leaked: list[int] = []


@pytest.fixture
def leaked() -> Iterator[list[int]]:
    yield _leaked
    while _leaked:
        os.close(_leaked.pop())


def test_a_transport_that_leaks_is_found_out(tmp_path: Path, leaked: list[int], monkeypatch: Any) -> None:
    monkeypatch.setattr("torture.long_cycles.PATIENCE_S", 0.05)
    before = left_here()
    for _ in range(3):
        with _Leaking(tmp_path / "queue.db") as transport:
            transport.claim("w", 1.0)
    assert wait_for(left_here, before) == {"files": (before["files"], before["files"] + 3)}


def test_a_transport_that_is_not_closed_is_found_out_by_the_server(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("torture.long_cycles.PATIENCE_S", 0.05)
    count = _server_connections("postgres", tmp_path)
    forgotten = connect(_url("postgres", tmp_path))
    found = wait_for(count, {"connections": 0.0})
    assert list(found) == ["connections"]
    forgotten.close()
    monkeypatch.undo()
    assert not wait_for(count, {"connections": 0.0})
