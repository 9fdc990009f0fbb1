"""Who waits is woken; nobody who does not wait costs anything."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Self

import psycopg
import pytest

from harel import Message
from harel.engine.aio_transport import AsyncPostgresTransport
from harel.engine.queue.op import Sleep
from harel.engine.queue.postgres.ops import Call, PostgresOps
from harel.engine.queue.postgres.schema import channel
from tests.postgres.stage import PATIENCE_S, Doing, Stage, event

FOR_EVER_S = 86_400.0
"""Whoever is not woken from a wait with such a poll interval makes its test run into the timeout."""

LISTENERS = "SELECT pid FROM {locks} WHERE mode = 'ShareLock' AND granted"
ASLEEP = """
WITH all_of_them AS (SELECT * FROM {sessions})
SELECT listener.pid
FROM all_of_them AS listener JOIN all_of_them AS looker ON looker.query_start > listener.query_start
WHERE listener.query LIKE 'LISTEN%' AND listener.state = 'idle'
    AND looker.query LIKE '%harel_ready%' AND looker.state = 'idle'
"""
"""Who listens, has looked since, and so is woken or sleeps on."""


@pytest.fixture
def spy(stage: Stage) -> Iterator[Spy]:
    with Spy(stage) as spy:
        yield spy


class Spy:
    """A session that hears every NOTIFY of a stage, and does not count as one who waits.

    Parameters
    ----------
    stage : Stage
    """

    def __init__(self, stage: Stage) -> None:
        self._connection = psycopg.connect(stage.url, autocommit=True, application_name="spy")
        self._own = f"spy_{self._connection.info.backend_pid}"
        self._connection.execute(f'LISTEN "{channel(stage.schema)}"')
        self._connection.execute(f'LISTEN "{self._own}"')

    def heard(self) -> int:
        """Count what was sent up to now, and not counted before: what was sent first comes first."""
        self._connection.execute(f'NOTIFY "{self._own}"')
        for count, notification in enumerate(self._connection.notifies(timeout=PATIENCE_S)):
            if notification.channel == self._own:
                return count
        raise AssertionError("its own notification never came")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()


def test_a_publish_wakes_who_waits(stage: Stage) -> None:
    queue, other = stage.open(poll_interval=FOR_EVER_S), stage.open()
    waiting = Doing(lambda: queue.wait(FOR_EVER_S))
    stage.until(ASLEEP)
    other.publish("g", event("m1"))
    assert waiting.result() is True


@pytest.mark.parametrize("how", ["publish_many", "nack", "release", "redrive"])
def test_so_does_all_else_that_makes_a_group_claimable_at_once(stage: Stage, how: str) -> None:
    queue, other = stage.open(poll_interval=FOR_EVER_S), stage.open()
    other.publish("g", event("m1"))
    lease = other.claim("w", FOR_EVER_S)
    assert lease is not None
    if how == "release":
        assert other.nack(lease) is True
        assert other.hold("g") is True
    elif how == "redrive":
        assert other.reject(lease, "no") is True
    waiting = Doing(lambda: queue.wait(FOR_EVER_S))
    stage.until(ASLEEP)
    if how == "publish_many":
        other.publish_many([Message("g", event("m2")), Message("h", event("h1"))])
    elif how == "nack":
        assert other.nack(lease) is True
    elif how == "release":
        assert other.release("g") is True
    else:
        assert other.redrive(lease.seq) is True
    assert waiting.result() is True


def test_a_publish_wakes_a_task_that_waits(stage: Stage) -> None:
    other = stage.open()

    async def scenario() -> bool:
        async with AsyncPostgresTransport(stage.url, schema=stage.schema, poll_interval=FOR_EVER_S) as queue:
            waiting = asyncio.create_task(queue.wait(FOR_EVER_S))
            await asyncio.to_thread(stage.until, ASLEEP)
            await asyncio.to_thread(other.publish, "g", event("m1"))
            return await waiting

    assert asyncio.run(scenario()) is True


def test_a_publish_that_looked_for_waiters_too_early_is_found_when_it_commits(stage: Stage, spy: Spy) -> None:
    """It found nobody waiting, and so wakes nobody; who began to wait then looks again until it has ended."""
    queue, other = stage.open(poll_interval=FOR_EVER_S), stage.open()
    with other.transaction() as connection:
        other.bind(connection).publish("g", event("m1"))
        waiting = Doing(lambda: queue.wait(FOR_EVER_S))
        stage.until(ASLEEP)
    assert waiting.result() is True
    assert spy.heard() == 0


def test_a_wait_looks_again_soon_only_while_those_write_who_began_before_it(stage: Stage) -> None:
    ops = stage.open(poll_interval=5.0)._ops
    assert isinstance(ops, PostgresOps)
    watch = ops._watch(60.0)
    said: list[str] = []
    replies: list[Any] = ["3/14,3/15", None, 0.01, "3/15", None, 0.02, "", None, 5.0, None]
    request = next(watch)
    for reply in replies:
        said.append(f"{request.seconds} s" if isinstance(request, Sleep) else told(request))
        request = watch.send(reply if isinstance(request, Sleep) else [(reply,)])
    assert said == [
        *("harel_writers(None)", "harel_ready(None)", "0.01 s"),
        *("harel_writers('3/14,3/15')", "harel_ready(None)", "0.02 s"),
        *("harel_writers('3/15')", "harel_ready(None)", "5.0 s"),
        "harel_ready(None)",
    ]


def told(request: Call) -> str:
    function = request.statement.partition("(")[0].rpartition(".")[2]
    return f"{function}({', '.join(map(repr, request.values))})"


def test_a_wait_ends_when_a_park_does_and_not_only_at_the_next_poll(stage: Stage) -> None:
    queue = stage.open(poll_interval=FOR_EVER_S)
    queue.publish("g", event("m1"))
    lease = queue.claim("w", 60.0)
    assert lease is not None
    assert queue.nack(lease, 0.05) is True
    assert queue.wait(FOR_EVER_S) is True


def test_no_notify_is_sent_while_nobody_waits(stage: Stage, spy: Spy) -> None:
    queue = stage.open(poll_interval=0.01)
    queue.publish("g", event("m1"))
    queue.publish_many([Message("g", event("m2")), Message("h", event("h1"))])
    for lease in queue.claim_many("w", 60.0, 2):
        assert queue.nack(lease) is True
    assert spy.heard() == 0
    while (lease_ := queue.claim("w", 60.0)) is not None:
        assert queue.ack(lease_) is True
    assert queue.wait(0.03) is False
    queue.publish("g", event("m3"))
    assert spy.heard() == 0


def test_one_is_sent_while_somebody_does(stage: Stage, spy: Spy) -> None:
    queue, other = stage.open(), stage.open()
    waiting = Doing(lambda: queue.wait(FOR_EVER_S))
    stage.until(ASLEEP)
    other.publish("g", event("m1"))
    assert waiting.result() is True
    assert spy.heard() == 1


def test_none_is_sent_for_a_message_behind_another_that_is_leased(stage: Stage, spy: Spy) -> None:
    queue, other = stage.open(), stage.open()
    other.publish("g", event("m1"))
    assert other.claim("w", 60.0) is not None
    waiting = Doing(lambda: queue.wait(FOR_EVER_S))
    stage.until(ASLEEP)
    other.publish("g", event("m2"))
    assert spy.heard() == 0
    other.publish("h", event("h1"))
    assert waiting.result() is True


def test_a_listener_that_died_is_replaced(stage: Stage) -> None:
    queue, other = stage.open(poll_interval=FOR_EVER_S), stage.open()
    waiting = Doing(lambda: queue.wait(FOR_EVER_S))
    stage.until(ASLEEP)
    ((pid,),) = stage.ask(LISTENERS)
    stage.ask("SELECT pg_terminate_backend($1, 10000)", pid)
    stage.until(f"{LISTENERS} AND pid <> $1", pid)
    other.publish("g", event("m1"))
    assert waiting.result() is True


def test_without_a_listener_a_wait_polls(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    queue, other = stage.open(poll_interval=0.01), stage.open()

    def no_connection() -> None:
        raise psycopg.OperationalError("no more connections")

    monkeypatch.setattr(queue._links, "_connect", no_connection)
    waiting = Doing(lambda: queue.wait(FOR_EVER_S))
    other.publish("g", event("m1"))
    assert waiting.result() is True


def test_many_wait_at_once_and_all_are_woken(stage: Stage) -> None:
    queue, other = stage.open(poll_interval=FOR_EVER_S), stage.open()
    waiting = [Doing(lambda: queue.wait(FOR_EVER_S)) for _ in range(3)]
    stage.until(f"SELECT 1 FROM ({ASLEEP}) AS asleep HAVING count(DISTINCT pid) = 3")
    other.publish("g", event("m1"))
    assert [each.result() for each in waiting] == [True] * 3
    stage.until(f"SELECT 1 WHERE NOT EXISTS ({LISTENERS})")
