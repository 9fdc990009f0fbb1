"""What an operation reads beside an old snapshot, which keeps every dead version, is the same however long it goes on.

Counted in blocks and never in seconds (promise 10).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import psycopg
import pytest

from harel import Event, Message, Transport
from harel.engine.queue.contract import Lease
from harel.engine.queue.postgres.schema import DEAD_WORTH_A_LOOK, advisory_key
from harel.engine.transport import PostgresTransport
from tests.postgres.stage import Stage

GROUPS = 8
LARGE = Event("m", {"text": "x" * 900})
"""So that hardly two messages of a group are in one block."""

EARLY, LATE = 40, 240
"""How often each group was claimed and settled when the blocks are counted."""

MORE_AT_MOST = 20
"""Blocks that an operation may read more: deeper indexes, and up to so many dead messages as are not yet worth a look.
What passes over the dead versions of a group reads some hundreds."""


@pytest.fixture
def bench(stage: Stage) -> Iterator[Bench]:
    queue = stage.open(max_size=1)
    stage.do("ALTER TABLE {schema}.transport_groups SET (autovacuum_enabled = off)")
    stage.do("ALTER TABLE {schema}.transport_messages SET (autovacuum_enabled = off)")
    queue.publish_many(Message(f"g{number % GROUPS}", LARGE) for number in range(GROUPS * (LATE + 50)))
    with psycopg.connect(stage.url) as snapshot:
        snapshot.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        snapshot.execute("SELECT 1")
        yield Bench(stage, queue)


class Bench:
    """A queue whose blocks are counted, and the rounds that it has behind it.

    Parameters
    ----------
    stage : Stage
    queue : PostgresTransport
        With a single connection.
    """

    def __init__(self, stage: Stage, queue: PostgresTransport) -> None:
        self.stage = stage
        self.queue = queue
        self._rounds = 0

    def go_on(self, rounds: int) -> None:
        """Claim and settle, until every group has so many rounds behind it."""
        while self._rounds < rounds * GROUPS:
            assert self.queue.ack(self.claim())
            self._rounds += 1

    def claim(self) -> Lease:
        lease = self.queue.claim("w", 600.0)
        assert lease is not None
        return lease

    def leases(self) -> Iterator[Lease]:
        """Lease each group once."""
        return iter([self.claim() for _ in range(GROUPS)])

    def blocks(self, operation: Callable[[], object]) -> int:
        """Carry out an operation in each group, and count the blocks of the least that it takes."""
        return min(self._blocks(operation) for _ in range(GROUPS))

    def _blocks(self, operation: Callable[[], object]) -> int:
        before = self._read()
        operation()
        return self._read() - before

    def _read(self) -> int:
        pool = self.queue._links._pool
        assert pool is not None
        with pool.connection() as connection:
            connection.execute("SELECT pg_stat_force_next_flush()")
        ((blocks,),) = self.stage.ask(
            "SELECT sum(heap_blks_hit + heap_blks_read + idx_blks_hit + idx_blks_read)::bigint "
            "FROM pg_statio_user_tables WHERE schemaname = $1",
            self.stage.schema,
        )
        return int(blocks)


def a_claim(bench: Bench) -> int:
    leases: list[Lease] = []
    blocks = bench.blocks(lambda: leases.append(bench.claim()))
    give_back(bench.queue, leases)
    return blocks


def claims_in_a_batch(bench: Bench) -> int:
    leases: list[Lease] = []
    blocks = bench._blocks(lambda: leases.extend(bench.queue.claim_many("w", 600.0, GROUPS)))
    give_back(bench.queue, leases)
    return blocks // GROUPS


def a_settling(how: str, *extra: Any) -> Callable[[Bench], int]:
    def measure(bench: Bench) -> int:
        leases = bench.leases()
        return bench.blocks(lambda: getattr(bench.queue, how)(next(leases), *extra))

    return measure


def settlings_in_a_batch(how: str, *extra: Any) -> Callable[[Bench], int]:
    def measure(bench: Bench) -> int:
        leases = list(bench.leases())
        blocks = bench._blocks(lambda: getattr(bench.queue, how)(leases, *extra)) // GROUPS
        give_back(bench.queue, leases)
        return blocks

    return measure


def an_extension(bench: Bench) -> int:
    leases = list(bench.leases())
    each = iter(leases)
    blocks = bench.blocks(lambda: bench.queue.extend(next(each), 600.0))
    give_back(bench.queue, leases)
    return blocks


def a_publish(bench: Bench) -> int:
    return bench.blocks(partial(bench.queue.publish, "g3", LARGE))


def a_publish_while_somebody_waits(bench: Bench) -> int:
    with psycopg.connect(bench.stage.url, autocommit=True) as waiter:
        waiter.execute("SELECT pg_advisory_lock_shared(%s)", (advisory_key(bench.stage.schema, "waiters"),))
        return a_publish(bench)


def a_hold_and_a_release(bench: Bench) -> int:
    return bench.blocks(lambda: (bench.queue.hold("g5"), bench.queue.release("g5")))


def a_group_that_comes_and_goes(bench: Bench) -> int:
    names = iter(range(1_000_000))

    def come_and_go() -> None:
        name = f"new {bench._rounds} {next(names)}"
        bench.queue.publish(name, LARGE)
        lease = bench.claim()
        assert lease.group_id == name
        assert bench.queue.ack(lease)

    return bench.blocks(come_and_go)


def give_back(queue: Transport, leases: list[Lease]) -> None:
    for lease in leases:
        queue.nack(lease)


@pytest.mark.parametrize(
    "measure",
    [
        a_claim,
        claims_in_a_batch,
        a_settling("ack"),
        a_settling("nack"),
        a_settling("reject", "why"),
        settlings_in_a_batch("ack_many"),
        settlings_in_a_batch("extend_many", 600.0),
        an_extension,
        a_publish,
        a_publish_while_somebody_waits,
        a_hold_and_a_release,
        a_group_that_comes_and_goes,
    ],
)
def test_an_operation_reads_no_more_after_long_promise_10(bench: Bench, measure: Callable[[Bench], int]) -> None:
    assert EARLY > DEAD_WORTH_A_LOOK
    bench.go_on(EARLY)
    early = measure(bench)
    bench.go_on(LATE)
    assert measure(bench) <= early + MORE_AT_MOST
