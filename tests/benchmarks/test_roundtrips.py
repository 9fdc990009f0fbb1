"""How many round trips each operation takes, counted at the drivers: promise 10's second half, on every backend."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.meters import METERS, Trips
from benchmarks.report_workers import round_trips
from benchmarks.results import Results
from benchmarks.roundtrips import CORE, EXPECTED, OPERATIONS, Counted, count_on, count_round_trips
from benchmarks.targets import Measured, judge

pytestmark = pytest.mark.timeout(600)  # the servers of all backends start, on a machine that may be busy

ONE_TRIP = (*CORE, "extend")
MONGO = {"publish": 3, "claim": 2, "ack": 5}
"""A message and the lock of its group are documents of their own, changed or read one by one."""
BATCHES = tuple(operation for operation in OPERATIONS if "many" in operation)


@pytest.fixture(scope="module")
def counted() -> dict[str, Counted]:
    return {each.name: each for each in count_round_trips()}


@pytest.fixture(params=EXPECTED)
def trips(request: pytest.FixtureRequest, counted: dict[str, Counted]) -> tuple[str, dict[str, Trips]]:
    found = counted[request.param]
    assert not found.unavailable
    return request.param.partition("-")[0], found.trips


def test_a_core_operation_is_one_round_trip(trips: tuple[str, dict[str, Trips]]) -> None:
    backend, found = trips
    wanted = {"memory": dict.fromkeys(ONE_TRIP, 0), "mongo": MONGO}.get(backend, {})
    assert {name: found[name].trips for name in ONE_TRIP} == {**dict.fromkeys(ONE_TRIP, 1), **wanted}


def test_a_batch_is_one_round_trip_where_one_server_holds_all(trips: tuple[str, dict[str, Trips]]) -> None:
    backend, found = trips
    if backend in ("sqlite", "libsql", "redis", "postgres", "rqlite"):
        assert {found[operation].trips for operation in BATCHES} == {1}


def test_the_twins_take_the_same(counted: dict[str, Counted]) -> None:
    for name in EXPECTED:
        backend = name.partition("-")[0]
        assert counted[f"{backend}-sync"].trips == counted[f"{backend}-async"].trips, backend


def test_a_transaction_carries_its_statements(counted: dict[str, Counted]) -> None:
    """BEGIN, one at least, and COMMIT."""
    for backend in ("sqlite", "libsql"):
        assert all(each.statements >= 3 for each in counted[f"{backend}-sync"].trips.values())


def test_what_cannot_be_opened_is_listed_with_its_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def at(_: Path) -> Any:
        raise ConnectionError("no server answers")

    monkeypatch.setitem(METERS, "memory", lambda: nullcontext(SimpleNamespace()))
    found = count_on(SimpleNamespace(name="memory-sync", subject=at))
    assert found.unavailable == "ConnectionError: no server answers"
    page = round_trips([found])
    assert "memory-sync could not be opened: ConnectionError: no server answers" in page[-1]


def test_backends_that_the_registry_lacks_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = json.dumps([{"name": "memory-sync", "trips": {"ack": [1, 2]}, "unavailable": ""}])
    done = SimpleNamespace(returncode=0, stdout=answer, stderr="")
    monkeypatch.setattr("benchmarks.roundtrips.subprocess.run", lambda *_, **__: done)
    first, *others = count_round_trips()
    assert first.trips == {"ack": Trips(1, 2)}
    assert [each.name for each in others] == [name for name in EXPECTED if name != "memory-sync"]
    assert all("tests/backends.py" in each.unavailable for each in others)


@pytest.mark.parametrize(("taken", "met"), [(1, True), (2, False)])
def test_the_target_is_one_round_trip(taken: int, met: bool) -> None:
    found = Counted("redis-sync", {operation: Trips(taken, taken) for operation in OPERATIONS})
    (verdict,) = judge(Measured([], Results(), counted=[found], rates=False))
    assert verdict.met is met
