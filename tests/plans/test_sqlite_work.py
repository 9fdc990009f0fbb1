"""What an operation sends to SQLite, and how much SQLite does for it: promise 10, without a clock."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from harel import Event, Message
from harel.engine.queue.contract import Lease
from harel.engine.transport import SqliteTransport
from harel.testing import ManualClock
from tests.plans.rounds import (
    DEEP,
    FEW,
    MANY,
    SHALLOW,
    Counting,
    a_round,
    a_round_among,
    a_round_on_a_backlog,
    claims_at,
    fresh,
    leased,
    parked_and_held,
)

T = TypeVar("T")

ENOUGH_MORE = 1.25
"""How much more work is still the same work: an index has a level more, a page splits."""


class Bench(Counting):
    """A queue whose statements and steps are counted."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock(tick=0.0)
        self.queue: SqliteTransport = SqliteTransport(folder / "queue.db", clock=self.clock, synchronous="OFF")
        self.queue.publish("warm-up", Event("k"))
        self.ack_next()
        self.queue.stats()

    def close(self) -> None:
        self.queue.close()

    @property
    def connections(self) -> tuple[sqlite3.Connection, ...]:
        writer, reader = self.queue._file._writer.connection, self.queue._file._reader.connection
        assert writer is not None
        assert reader is not None
        return writer, reader

    def statements(self, call: Callable[[], object]) -> list[str]:
        """Return the statements that a call sends."""
        sent: list[str] = []
        with self._watched(lambda connection, on: connection.set_trace_callback(sent.append if on else None)):
            call()
        return sent

    def counted(self, call: Callable[[], T]) -> tuple[T, int]:
        """Make a call, and count the instructions that SQLite's virtual machine runs for it."""
        steps = 0

        def step() -> int:
            nonlocal steps
            steps += 1
            return 0

        with self._watched(lambda connection, on: connection.set_progress_handler(step if on else None, 1)):
            answer = call()
        return answer, steps

    @contextmanager
    def _watched(self, watch: Callable[[sqlite3.Connection, bool], None]) -> Iterator[None]:
        for connection in self.connections:
            watch(connection, True)
        try:
            yield
        finally:
            for connection in self.connections:
                watch(connection, False)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with closing(Bench(tmp_path)) as bench:
        yield bench


def _leases(bench: Bench, count: int) -> list[Lease]:
    return [bench.claim() for _ in range(count)]


def _dead(bench: Bench) -> int:
    lease = bench.claim()
    assert bench.queue.reject(lease, "why")
    return lease.seq


WRITES: dict[str, tuple[int, Callable[[Bench], Callable[[], object]]]] = {
    "publish": (2, lambda bench: lambda: bench.queue.publish("g", Event("k"))),
    "publish_many": (2, lambda bench: lambda: bench.queue.publish_many(Message(f"g{n}", Event("k")) for n in range(9))),
    "claim": (1, lambda bench: lambda: bench.claim()),
    "claim_many": (1, lambda bench: lambda: bench.queue.claim_many("w", 30.0, 9)),
    "claim of nothing": (1, lambda bench: lambda: bench.queue.claim("w", 30.0, 4)),
    "ack": (4, lambda bench: partial(bench.queue.ack, bench.claim())),
    "ack_many of three": (10, lambda bench: partial(bench.queue.ack_many, _leases(bench, 3))),
    "nack": (1, lambda bench: partial(bench.queue.nack, bench.claim())),
    "extend": (1, lambda bench: partial(bench.queue.extend, bench.claim(), 5.0)),
    "extend_many of three": (1, lambda bench: partial(bench.queue.extend_many, _leases(bench, 3), 5.0)),
    "reject": (4, lambda bench: partial(bench.queue.reject, bench.claim(), "why")),
    "hold": (1, lambda bench: partial(bench.queue.hold, "filler3")),
    "release": (2, lambda bench: partial(bench.queue.release, "filler3")),
    "purge": (4, lambda bench: partial(bench.queue.purge, "filler3")),
    "redrive": (3, lambda bench: partial(bench.queue.redrive, _dead(bench))),
}
"""How many statements each takes, and how to prepare one of it."""

READS: dict[str, Callable[[Bench], object]] = {
    "wait": lambda bench: bench.queue.wait(0.0),
    "stats": lambda bench: bench.queue.stats(),
    "groups": lambda bench: bench.queue.groups(),
    "peek": lambda bench: bench.queue.peek("filler3"),
    "dead_letters": lambda bench: bench.queue.dead_letters(),
}


@pytest.mark.parametrize("name", WRITES)
def test_an_operation_is_one_transaction_of_so_many_statements(bench: Bench, name: str) -> None:
    """Promise 10: one round trip. The write lock is taken first, so that nothing is read that another changes."""
    count, prepare = WRITES[name]
    bench.fill(20)
    sent = bench.statements(prepare(bench))
    assert sent[0] == "BEGIN IMMEDIATE"
    assert sent[-1] == "COMMIT"
    inside = sent[1:-1]
    assert len(inside) == count, inside
    assert not [statement for statement in inside if statement.startswith(("BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT"))]


@pytest.mark.parametrize("name", READS)
def test_a_look_is_one_statement_and_no_transaction(bench: Bench, name: str) -> None:
    bench.fill(20)
    assert len(bench.statements(lambda: READS[name](bench))) == 1


def test_what_need_not_be_durable_costs_one_setting_more_and_no_sync(tmp_path: Path) -> None:
    """Only publish and settle wait for the disk, and the setting changes only when it has to."""
    bench = Bench(tmp_path)
    bench.close()
    bench.queue = SqliteTransport(tmp_path / "queue.db", synchronous="FULL")
    bench.fill(5)
    bench.queue.stats()
    lease = bench.statements(lambda: bench.claim())
    assert lease[0] == "PRAGMA synchronous = NORMAL"
    assert bench.statements(lambda: bench.claim())[0] == "BEGIN IMMEDIATE"
    assert bench.statements(lambda: bench.queue.publish("g", Event("k")))[0] == "PRAGMA synchronous = FULL"
    bench.close()


def served(bench: Counting, groups: int) -> None:
    """Groups that were served and wait again."""
    bench.fill(groups)
    bench.fill(groups)
    for _ in range(0, groups, 1_000):
        bench.queue.ack_many(bench.queue.claim_many("w", 30.0, 1_000))


def dead(bench: Bench, groups: int) -> None:
    """Dead letters, as many."""
    bench.fill(groups)
    bench.connections[0].execute(
        "INSERT INTO transport_dead_letters SELECT seq + 1000000, group_id, event, 1, 0, 'why', 0.0 "
        "FROM transport_messages"
    )


Measure = Callable[[Bench, int], dict[str, int]]


def _does_not_grow(folder: Path, less: int, more: int, measure: Measure) -> None:
    """Measure on two queues, and compare each figure."""
    before, after = (_measured(folder, size, measure) for size in (less, more))
    grown = {name: (before[name], after[name]) for name in after if after[name] > ENOUGH_MORE * before[name]}
    assert not grown, grown


def _measured(folder: Path, size: int, measure: Measure) -> dict[str, int]:
    own = folder / str(size)
    own.mkdir()
    with closing(Bench(own)) as bench:
        return measure(bench, size)


@pytest.mark.parametrize("crowd", [fresh, served, parked_and_held, leased], ids=lambda crowd: crowd.__name__)
def test_the_work_does_not_grow_with_the_groups(crowd: Callable[[Counting, int], None], tmp_path: Path) -> None:
    """Promise 10, with 100 groups and with 20,000."""
    _does_not_grow(tmp_path, FEW, MANY, a_round_among(crowd))


@pytest.mark.parametrize("crowd", [fresh, served, parked_and_held, leased], ids=lambda crowd: crowd.__name__)
def test_renewing_many_leases_does_not_grow_with_the_groups(
    crowd: Callable[[Counting, int], None], tmp_path: Path
) -> None:
    """Promise 10, for five leases beside 100 groups and beside 20,000."""

    def measure(bench: Bench, groups: int) -> dict[str, int]:
        crowd(bench, groups)
        leases = _leases(bench, 5)
        return {"extend_many": bench.steps(lambda: bench.queue.extend_many(leases, 5.0))}

    _does_not_grow(tmp_path, FEW, MANY, measure)


def test_the_work_does_not_grow_with_the_dead_letters(tmp_path: Path) -> None:
    """Promise 10, with 100 dead letters and with 20,000."""

    def measure(bench: Bench, letters: int) -> dict[str, int]:
        dead(bench, letters)
        page = bench.steps(lambda: bench.queue.dead_letters(limit=1))
        return {"a page of dead letters": page, **a_round(bench, "filler7")}

    _does_not_grow(tmp_path, FEW, MANY, measure)


def test_the_work_does_not_grow_with_the_backlog(tmp_path: Path) -> None:
    """Promise 10, with 10 messages in every group that is touched and with 10,000."""
    _does_not_grow(tmp_path, SHALLOW, DEEP, a_round_on_a_backlog)


@pytest.mark.parametrize("floor", [1, 2, 3, 4])
def test_a_floor_does_not_pass_over_what_lies_below(floor: int, tmp_path: Path) -> None:
    """Promises 8 and 10: one group at the floor behind 100 lower ones, and behind 20,000."""
    _does_not_grow(tmp_path, FEW, MANY, claims_at(floor))


def test_a_drained_group_leaves_nothing_behind(bench: Bench) -> None:
    """Promise 10: after 500 groups have come and gone the tables are as empty as before."""
    bench.fill(500)
    for _ in range(500):
        bench.ack_next()
    for table in ("transport_groups", "transport_messages", "transport_dead_letters"):
        assert bench.connections[0].execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)


def test_the_count_of_steps_finds_a_scan(tmp_path: Path) -> None:
    """What is measured grows where the work does."""

    def measure(bench: Bench, groups: int) -> dict[str, int]:
        bench.fill(groups)
        return {"stats": bench.steps(bench.queue.stats)}

    with pytest.raises(AssertionError, match="stats"):
        _does_not_grow(tmp_path, FEW, MANY, measure)
