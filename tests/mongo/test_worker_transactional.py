"""``transactional=True`` on MongoDB: a handler's rows and its message's settlement happen together, or not at all."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pymongo
import pytest

from harel import AsyncWorker, Event, Message, NotSupported, Reject, RetryPolicy, Worker
from harel.engine.aio_transport import AsyncMongoTransport
from harel.engine.transport import MongoTransport
from harel.testing import ManualClock
from tests.servers.mongo import StandIn

PATIENCE_S = 120.0


class Ledger:
    """A queue, its database's other rows, and either worker on them.

    Parameters
    ----------
    server : StandIn
    is_async : bool
    """

    def __init__(self, server: StandIn, is_async: bool) -> None:
        self.server = server
        self.is_async = is_async
        self.db_name = f"t{uuid4().hex[:12]}"
        self.clock = ManualClock()
        self.client: Any = pymongo.MongoClient(server.url)
        self.queue = MongoTransport(self.client, db_name=self.db_name, clock=self.clock)

    @property
    def rows(self) -> list[Any]:
        return [row["row"] for row in self.client[self.db_name].effects.find({})]

    def step(self, act: Callable[[Event, Any], None], **options: Any) -> bool:
        """Have a worker handle a message: ``act`` and then a row, both in the transaction."""
        retry = RetryPolicy(backoff=3.0, jitter=0.0)
        if not self.is_async:

            def handle(event: Event, context: Any) -> None:
                self.client[self.db_name].effects.insert_one({"row": event.kind}, session=context.connection)
                context.publish("audit", event)
                act(event, context)

            return Worker(self.queue, handle, transactional=True, retry=retry, **options).step()

        async def step() -> bool:
            async def awaiting(event: Event, context: Any) -> None:
                effects = context.connection.client[self.db_name].effects
                await effects.insert_one({"row": event.kind}, session=context.connection)
                await context.publish("audit", event)
                act(event, context)

            async with AsyncMongoTransport.from_url(
                self.server.url, db_name=self.db_name, clock=self.clock
            ) as transport:
                return await AsyncWorker(transport, awaiting, transactional=True, retry=retry, **options).step()

        return asyncio.run(step())

    def states(self) -> dict[str, str]:
        return {group.group_id: group.state for group in self.queue.groups()}

    def close(self) -> None:
        self.queue.close()
        self.client.close()


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def ledger(request: pytest.FixtureRequest, stand_in: StandIn) -> Iterator[Ledger]:
    ledger = Ledger(stand_in, request.param)
    yield ledger
    ledger.close()


def nothing(event: Event, context: Any) -> None:
    """Do no more than the row."""


def fail(event: Event, context: Any) -> None:
    raise RuntimeError("no luck")


def test_rows_publishes_and_the_settlement_are_committed_together(ledger: Ledger) -> None:
    ledger.queue.publish("a", Event("placed"))
    assert ledger.step(nothing)
    assert ledger.rows == ["placed"]
    assert ledger.states() == {"audit": "ready"}
    assert ledger.queue.stats().messages == 1


def test_of_a_handler_that_fails_nothing_remains_but_the_attempt(ledger: Ledger) -> None:
    ledger.queue.publish("a", Event("placed"))
    assert ledger.step(fail)
    assert (ledger.rows, ledger.states()) == ([], {"a": "parked"})
    ledger.clock.advance(4.0)
    assert ledger.step(nothing)
    assert (ledger.rows, ledger.states()) == (["placed"], {"audit": "ready"})


def test_a_rejected_message_has_its_rows_undone(ledger: Ledger) -> None:
    def reject(event: Event, context: Any) -> None:
        raise Reject("never")

    ledger.queue.publish("a", Event("placed"))
    assert ledger.step(reject)
    assert (ledger.rows, ledger.states()) == ([], {})
    assert [letter.reason for letter in ledger.queue.dead_letters()] == ["never"]


def test_a_lost_lease_undoes_all(ledger: Ledger) -> None:
    def be_late(event: Event, context: Any) -> None:
        ledger.clock.advance(31.0)
        taken.append(ledger.queue.claim("other", 1_000.0))

    taken: list[Any] = []
    ledger.queue.publish("a", Event("placed"))
    assert ledger.step(be_late, visibility=30.0)
    assert (ledger.rows, ledger.states()) == ([], {"a": "leased"})
    assert taken[0].attempt == 2
    assert ledger.queue.ack(taken[0]) is True


def test_renewals_do_not_wait_for_the_transaction(ledger: Ledger) -> None:
    def extend(event: Event, context: Any) -> None:
        (lease,) = ledger.client[ledger.db_name].transport_locks.find({"_id": "a"})
        assert ledger.queue.extend(context.lease, 1_000.0) is True
        (later,) = ledger.client[ledger.db_name].transport_locks.find({"_id": "a"})
        assert later["available_at"] > lease["available_at"] + 900.0

    ledger.queue.publish("a", Event("placed"))
    assert ledger.step(extend, visibility=30.0)
    assert ledger.rows == ["placed"]


def test_two_handlers_that_write_the_same_row_are_both_done_in_the_end(ledger: Ledger) -> None:
    """The second conflicts, which is a failure like any: it is tried again."""

    def count_up(event: Event, context: Any) -> None:
        if not meddled:
            meddled.append(True)
            ledger.client[ledger.db_name].effects.insert_one({"_id": "total", "row": "other"})
            raise_conflict(context)

    def raise_conflict(context: Any) -> None:
        if ledger.is_async:
            raise pymongo.errors.OperationFailure("conflict", 112, {"errorLabels": ["TransientTransactionError"]})
        effects = context.connection.client[ledger.db_name].effects
        effects.insert_one({"_id": "total", "row": "mine"}, session=context.connection)

    meddled: list[bool] = []
    ledger.queue.publish("a", Event("placed"))
    assert ledger.step(count_up)
    assert (ledger.rows, ledger.states()) == (["other"], {"a": "parked"})
    ledger.clock.advance(4.0)
    assert ledger.step(count_up)
    assert sorted(ledger.rows) == ["other", "placed"]


def test_on_a_server_alone_there_is_no_such_worker(alone: StandIn) -> None:
    with MongoTransport.from_url(alone.url, db_name=f"t{uuid4().hex[:12]}") as queue:
        assert queue.capabilities.bind is False
        with pytest.raises(NotSupported, match=r"capabilities\.bind is False"):
            Worker(queue, lambda event: None, transactional=True)


def test_a_sync_worker_runs_through_a_backlog_in_transactions(stand_in: StandIn) -> None:
    db_name = f"t{uuid4().hex[:12]}"
    with MongoTransport.from_url(stand_in.url, db_name=db_name, poll_interval=0.01) as queue:
        client: Any = queue._client
        queue.publish_many([Message(f"g{n % 4}", Event("k", {"n": n // 4})) for n in range(20)])
        failed: set[str] = set()
        lock = threading.Lock()

        def handle(event: Event, context: Any) -> None:
            row = {"group": context.lease.group_id, "n": event.payload["n"]}
            client[db_name].effects.insert_one(row, session=context.connection)
            context.publish("done", event)
            with lock:
                first = row["n"] == 2 and row["group"] not in failed
                failed.add(row["group"]) if first else None
            if first:
                raise RuntimeError("once")

        def stop_when_done(event: Event, context: Any) -> None:
            done.append(event.payload["n"])
            if len(done) == 20:
                worker.stop()

        def route(event: Event, context: Any) -> None:
            (stop_when_done if context.lease.group_id == "done" else handle)(event, context)

        done: list[int] = []
        worker = Worker(queue, route, transactional=True, concurrency=4, retry=RetryPolicy(backoff=0.0))
        worker.run()
        rows = client[db_name].effects.find({}).to_list()
        assert queue.stats().messages == 0
    assert len(rows) == 20
    assert sorted(done) == sorted(list(range(5)) * 4)
    per_group = {row["group"]: [one["n"] for one in rows if one["group"] == row["group"]] for row in rows}
    assert per_group == {f"g{n}": list(range(5)) for n in range(4)}


TRANSFERS = 60
PROGRAM = """
import os, sys
import pymongo
from harel import RetryPolicy, Worker
from harel.engine.transport import MongoTransport

url, db_name = sys.argv[1:]
queue = MongoTransport.from_url(url, db_name=db_name, poll_interval=0.02)
accounts = queue._client[db_name].accounts

def transfer(event, context):
    for name, sign in (("from", -1), ("to", 1)):
        accounts.update_one(
            {"_id": event.payload[name]},
            {"$inc": {"balance": sign * event.payload["amount"]}},
            session=context.connection,
        )
    accounts.insert_one({"_id": "transfer " + event.id}, session=context.connection)

print("ready", flush=True)
Worker(
    queue, transfer, transactional=True, visibility=1.5, concurrency=2,
    retry=RetryPolicy(max_attempts=1_000, backoff=0.02, max_backoff=0.2),
).run()
"""


@pytest.mark.timeout(300)
def test_transfers_add_up_though_workers_are_killed(tmp_path: Path) -> None:
    """Each is done once: every account's balance and the money there is say so."""
    with StandIn(transaction_s=2.0) as server:
        db_name = "transfers"
        with MongoTransport.from_url(server.url, db_name=db_name) as queue:
            accounts: Any = queue._client[db_name].accounts
            accounts.insert_many([{"_id": f"account {n}", "balance": 100} for n in range(6)])
            wanted = {f"account {n}": 100 for n in range(6)}
            for n in range(TRANSFERS):
                source, target, amount = f"account {n % 6}", f"account {(n * 5 + 1) % 6}", n % 7 + 1
                queue.publish(source, Event("transfer", {"from": source, "to": target, "amount": amount}))
                wanted[source] -= amount
                wanted[target] += amount
            _kill_workers_until_drained(server, db_name, queue)
            found = accounts.find({"_id": {"$in": list(wanted)}}).to_list()
            assert {account["_id"]: account["balance"] for account in found} == wanted
            assert len(accounts.find({}).to_list()) == 6 + TRANSFERS
            assert queue.dead_letters() == []


def _kill_workers_until_drained(server: StandIn, db_name: str, queue: MongoTransport) -> None:
    """Start a worker; now and then kill it, and start another."""
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-c", PROGRAM, server.url, db_name]
    pause = threading.Event()
    workers: list[subprocess.Popen[str]] = []
    kills = 0

    def start() -> None:
        worker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
        workers.append(worker)

    def end(worker: subprocess.Popen[str]) -> None:
        workers.remove(worker)
        worker.send_signal(signal.SIGKILL)
        worker.wait(PATIENCE_S)
        assert worker.stdout is not None
        worker.stdout.close()

    try:
        start()
        left = queue.stats().messages
        while left:
            pause.wait(0.02)
            assert [worker.poll() for worker in workers] == [None], "a worker ended by itself"
            now = queue.stats().messages
            if kills < 3 and now <= TRANSFERS - 12 * (kills + 1):
                kills += 1
                end(workers[0])
                start()
            left = now
    finally:
        for worker in workers:
            end(worker)


async def test_a_worker_on_a_transport_that_is_not_open_yet_ends_where_there_are_no_transactions() -> None:
    """Until it is open, what its server can do is not known; nobody's message pays for that."""
    with StandIn(set_name="") as alone:
        client: Any = pymongo.AsyncMongoClient(alone.url)
        queue = AsyncMongoTransport(client)
        worker = AsyncWorker(queue, _never_called, transactional=True)
        async with AsyncMongoTransport(pymongo.AsyncMongoClient(alone.url), close_client=True) as other:
            await other.publish("g", Event("k", id="m"))
            with pytest.raises(NotSupported):
                await worker.run()
            assert await other.dead_letters() == []
            lease = await other.claim("w", 30.0)
            assert lease is not None
            assert lease.event.id == "m"
        await queue.close()
        await client.close()


async def _never_called(event: Event, context: Any) -> None:
    raise AssertionError("a handler was called without its transaction")
