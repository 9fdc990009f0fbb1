"""What the benchmarks load queues with: large backlogs, floods, the limits that harel is held against."""

from __future__ import annotations

import subprocess
import sys
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import psycopg
import pytest

import harel
from benchmarks.crews import WORKERS, Load
from benchmarks.drains import LARGEST_S, Backlog, Drained, Draining, drain_backlogs, even, skewed
from benchmarks.flood import Flood, flood, flood_queues
from benchmarks.folders import ROOT, Folders
from benchmarks.limits import BATCHES, Pgbench, Replay, pgbench_script, seconds_of
from benchmarks.report_beside import backlogs, flooded
from benchmarks.runtimes import in_rounds
from tests.servers.postgres import postgres_url
from tests.servers.redis import server as redis_server

pytestmark = pytest.mark.timeout(600)  # it starts processes, on a machine that may be busy

DRAINING = Draining(rounds=2, messages=60, groups=(3, 200), few=20, paused=30, handler_ms=1.0)


@pytest.mark.parametrize("shape", [even, skewed])
@pytest.mark.parametrize("groups", [1, 10, 1_000, 50_000])
def test_a_backlog_has_so_many_messages_and_no_empty_group(shape: Any, groups: int) -> None:
    sizes = shape(groups, 100_000)
    assert len(sizes) == groups
    assert sum(sizes) == 100_000
    assert min(sizes) >= 1
    assert sizes == shape(groups, 100_000)


def test_even_is_even_and_skewed_is_as_uneven_as_the_flights() -> None:
    assert set(even(7, 100)) == {14, 15}
    sizes = skewed(2_048, 6_091)
    assert max(sizes) > 4 * 6_091 / 2_048
    assert sorted(sizes, reverse=True) != sizes


def test_rounds_go_over_all_groups_that_have_any_left() -> None:
    assert list(in_rounds([2, 0, 3])) == [(0, 0), (2, 0), (0, 1), (2, 1), (2, 2)]


def test_handlers_that_take_time_have_no_more_than_the_largest_group_allows() -> None:
    draining = Draining(3, 100_000, (10, 1_000, 50_000), 10_000, 40_000, 5.0)
    sizes = {backlog: draining.sizes(backlog) for backlog in draining.backlogs("postgres")}
    for backlog, found in sizes.items():
        assert len(found) == backlog.groups
        assert max(found) * backlog.handler_ms / 1_000 <= 1.1 * LARGEST_S
    assert sum(sizes[Backlog(10, False, 1)]) == 10_000
    assert max(sizes[Backlog(1_000, True, 1)]) > 2 * max(sizes[Backlog(1_000, False, 1)])
    assert {sum(sizes[Backlog(groups, True, WORKERS)]) for groups in (1_000, 50_000)} == {100_000}
    assert {backlog.workers for backlog in sizes} == {1, 2, WORKERS}
    assert {backlog.workers for backlog in draining.backlogs("memory")} == {1}


def test_backlogs_are_drained_and_written_down(tmp_path: Path) -> None:
    drained = Drained(DRAINING)
    drain_backlogs("memory", drained, Folders(tmp_path, tmp_path, tmp_path), lambda _: None)
    expected = list(DRAINING.backlogs("memory"))
    assert {backlog for _, backlog in drained.rates} == set(expected)
    assert all(len(rates) == 2 for rates in drained.rates.values())
    page = "\n".join(backlogs(drained))
    assert "200 groups, skewed, no-op" in page
    assert "3 groups, handlers of 1 ms" in page


def test_a_flood_lets_old_groups_wait_with_fresh_first_and_all_in_turn_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that ticks at each look, so that waits are numbers of steps."""
    how = {"old": 20, "batch": 10, "calm": 6, "steps": 30, "arriving": 12}

    def longest(*, fresh_first: bool) -> tuple[float, float]:
        monkeypatch.setattr("benchmarks.flood.time", SimpleNamespace(perf_counter=count().__next__))
        answer = flood("memory://", fresh_first=fresh_first, **how)
        began, _ = answer["flood"]
        assert len(answer["new"]) == 30 * 12
        return max(wait for at, wait in answer["points"] if at < began), max(wait for _, wait in answer["points"])

    before, in_flood = longest(fresh_first=True)
    assert in_flood > 2 * 30 * 12 / 10 > 5 * before
    before, in_turn = longest(fresh_first=False)
    assert before < in_turn < in_flood / 2


def test_floods_are_written_down(tmp_path: Path) -> None:
    size = Flood(old=5, batch=4, calm=3, steps=6, arriving=6, rounds=2)
    found = flood_queues("sqlite", size, Folders(tmp_path, tmp_path, tmp_path), lambda _: None)
    assert [each.fresh_first for each in found] == [True, False]
    assert all(len(each.old_s) == len(each.new_s) == len(each.before_s) == 2 for each in found)
    assert "sqlite, fresh_first=False" in "\n".join(flooded(found, size))


def test_pgbench_drains_by_the_same_functions(tmp_path: Path) -> None:
    """Its script is made of harel's own calls; what it has to change in them is that a colon is a variable of its."""
    assert "harel_claim_many('" in pgbench_script(50)
    url, names = postgres_url(), []
    load = Load((WORKERS + 1) * max(BATCHES), 4)  # whatever the others hold, a whole batch is left to claim
    left = []

    def ask(query: str, place: str = url) -> Any:
        with psycopg.connect(place, autocommit=True) as connection:
            answered = connection.execute(query.encode())
            row = answered.fetchone() if answered.description else None
        left.append(row)
        return row[0] if row else None

    def fill(load: Load) -> str:
        names.append(f"bench_{uuid4().hex[:12]}")
        ask(f'CREATE DATABASE "{names[-1]}"')
        place = urlunsplit(urlsplit(url)._replace(path=f"/{names[-1]}"))
        with harel.connect(place) as queue:
            queue.publish_many(harel.Message(f"g{n % load.groups}", harel.Event("k")) for n in range(load.messages))
        return place

    try:
        server: Any = SimpleNamespace(folder=tmp_path, ask=ask)
        assert Pgbench(server, fill).drain(load) > 0
        counts = [row[0] for row in left if row]
        assert len(counts) == len(BATCHES)
        assert all(count < load.messages / 2 for count in counts)
    finally:
        for name in names:
            ask(f'DROP DATABASE "{name}" WITH (FORCE)')


def test_what_pgbench_says_is_read() -> None:
    said = "number of transactions actually processed: 400/400\ntps = 200.5 (without initial connection time)\n"
    assert seconds_of(said) == pytest.approx(400 / 200.5)
    with pytest.raises(RuntimeError, match="nothing that could be read"):
        seconds_of("something else")


def test_requests_that_are_sent_again_drain_the_same_backlog() -> None:
    server = redis_server()
    numbers = count(1)

    def fill(load: Load) -> str:
        place = f"{server.connection_url}/{next(numbers)}"
        with harel.connect(place) as queue:
            queue.publish_many(harel.Message(f"g{n % load.groups}", harel.Event("k")) for n in range(load.messages))
        return place

    try:
        assert Replay(fill).drain(Load(300, 3)) > 0
    finally:
        server.terminate()


def test_a_worker_of_a_peer_needs_nothing_of_ours() -> None:
    """What runs in a peer's environment imports nothing but what comes with Python."""
    code = "import sys, benchmarks.handler, benchmarks.worker; print(sorted(m for m in sys.modules if '.' not in m))"
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert not {"harel", "psycopg", "redis", "hiredis", "msgspec"} & set(eval(done.stdout))
