"""Where claims begin their walk: old snapshots make no claim slow, and hints hide no group for long."""

from __future__ import annotations

import math

import psycopg
import pytest

from harel import Message
from harel.engine.queue.postgres.ops import PostgresOps
from harel.engine.queue.postgres.walk import ENTRIES_WORTH_A_HINT, Walk
from harel.engine.queue.schedule import FRESH
from harel.engine.transport import PostgresTransport
from tests.postgres.stage import Stage, event

START = (-math.inf, -math.inf)
NOW = 1_700_000_000.0


class Seconds:
    """A clock that only the test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_walk_that_read_few_dead_entries_gives_no_hint() -> None:
    walk = Walk(Seconds())
    walk.ended(walk.begin(), NOW - 5.0, ENTRIES_WORTH_A_HINT - 1, NOW)
    assert walk.begin() == START


def test_one_that_read_many_gives_one_for_a_while_in_proportion() -> None:
    seconds = Seconds()
    walk = Walk(seconds)
    walk.ended(walk.begin(), NOW - 5.0, 100_000, NOW)
    fresh, served = walk.begin()
    assert NOW - FRESH - 1.0 < fresh < NOW - FRESH
    assert NOW - 6.0 < served < NOW - 5.0
    seconds.now = 0.99
    assert walk.begin() != START
    seconds.now = 1.01
    assert walk.begin() == START


def test_the_hint_moves_along_with_the_walks_and_the_while_does_not() -> None:
    seconds = Seconds()
    walk = Walk(seconds)
    walk.ended(walk.begin(), NOW - 5.0, 100_000, NOW)
    seconds.now = 0.9
    walk.ended(walk.begin(), NOW - 4.0, 0, NOW)
    assert NOW - 5.0 < walk.begin()[1] < NOW - 4.0
    seconds.now = 1.01
    assert walk.begin() == START


def test_among_the_never_served_only_their_hint_moves() -> None:
    walk = Walk(Seconds())
    walk.ended(walk.begin(), NOW - FRESH - 5.0, 100_000, NOW)
    fresh, served = walk.begin()
    assert NOW - FRESH - 6.0 < fresh < NOW - FRESH - 5.0
    assert served == -math.inf


@pytest.fixture
def queue(stage: Stage) -> PostgresTransport:
    return stage.open(max_size=1)


def bloat(stage: Stage, queue: PostgresTransport, claims: int) -> psycopg.Connection:
    """Claim and nack under an old snapshot, so that what was claimed stays in the index as dead entries."""
    snapshot = psycopg.connect(stage.url)
    snapshot.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    snapshot.execute("SELECT count(*) FROM pg_class")
    queue.publish_many([Message(f"g{number}", event("m")) for number in range(20)])
    for _ in range(claims // 20):
        for lease in queue.claim_many("w", 60.0, 20):
            queue.nack(lease)
    return snapshot


def entries_read(stage: Stage) -> int:
    """Count the entries of the claims' index that were read so far, by all sessions."""
    ((entries,),) = stage.ask(
        "SELECT idx_tup_read FROM pg_stat_user_indexes "
        "WHERE schemaname = $1 AND indexrelname = 'transport_groups_claimable'",
        stage.schema,
    )
    return int(entries)


def walk_of(queue: PostgresTransport) -> Walk:
    assert isinstance(queue._ops, PostgresOps)
    return queue._ops._walks[0]


def set_walk(queue: PostgresTransport, seconds: Seconds) -> None:
    assert isinstance(queue._ops, PostgresOps)
    queue._ops._walks[0] = Walk(seconds)


def test_under_an_old_snapshot_claims_do_not_read_the_dead_again_and_again(
    stage: Stage, queue: PostgresTransport
) -> None:
    with bloat(stage, queue, 1_000):
        set_walk(queue, Seconds())
        flushed(queue)
        before = entries_read(stage)
        leases = [queue.claim("w", 60.0) for _ in range(10)]
        flushed(queue)
        assert all(leases)
        assert 1_000 <= entries_read(stage) - before < 5_000 < 10 * 1_000
        assert walk_of(queue).begin() != START


def test_a_group_below_the_hint_is_found_when_nothing_is_above(stage: Stage, queue: PostgresTransport) -> None:
    with bloat(stage, queue, 1_000):
        set_walk(queue, Seconds())
        assert queue.claim("w", 60.0) is not None
        assert walk_of(queue).begin() != START
        stage.do("UPDATE {schema}.transport_groups SET lock_expiry = 5.0 WHERE group_id = 'g7'")
        others = queue.claim_many("w", 60.0, 100)
        assert "g7" not in {lease.group_id for lease in others}
        found = queue.claim("w", 60.0)
        assert found is not None
        assert found.group_id == "g7"


def test_and_at_the_next_walk_from_the_start(stage: Stage, queue: PostgresTransport) -> None:
    seconds = Seconds()
    with bloat(stage, queue, 1_000):
        set_walk(queue, seconds)
        assert queue.claim("w", 60.0) is not None
        stage.do("UPDATE {schema}.transport_groups SET lock_expiry = 5.0 WHERE group_id = 'g7'")
        seconds.now = 60.0
        found = queue.claim("w", 60.0)
        assert found is not None
        assert found.group_id == "g7"


def test_a_new_group_goes_before_the_served_ones_in_spite_of_a_hint_promise_7(
    stage: Stage, queue: PostgresTransport
) -> None:
    with bloat(stage, queue, 1_000):
        set_walk(queue, Seconds())
        assert queue.claim("w", 60.0) is not None
        queue.publish("new", event("m"))
        found = queue.claim("w", 60.0)
        assert found is not None
        assert found.group_id == "new"


def test_so_it_is_in_a_batch_which_goes_on_among_the_served_ones(stage: Stage, queue: PostgresTransport) -> None:
    with bloat(stage, queue, 1_000):
        set_walk(queue, Seconds())
        assert queue.claim("w", 60.0) is not None
        queue.publish_many([Message("new 1", event("m")), Message("new 2", event("m"))])
        found = [lease.group_id for lease in queue.claim_many("w", 60.0, 5)]
        assert found[:2] == ["new 1", "new 2"]
        assert len(set(found)) == 5


def flushed(queue: PostgresTransport) -> None:
    """Have the one session of a transport report its counts."""
    pool = queue._links._pool
    assert pool is not None
    with pool.connection() as connection:
        connection.execute("SELECT pg_stat_force_next_flush()")
