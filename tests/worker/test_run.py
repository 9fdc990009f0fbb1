"""A worker that runs: concurrency, batches, stopping, losing a lease, trouble with the server."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from harel import AsyncWorker, Event, Lease, Message, Transport, TransportUnavailable, Worker, connect
from harel.engine.aio_transport import AsyncInMemoryTransport
from harel.engine.transport import InMemoryTransport
from harel.engine.worker.loop import Loop
from harel.testing import ManualClock
from tests.worker.driving import Driver


class Counted(AsyncInMemoryTransport):
    """Records what the worker asks of it."""

    def __init__(self) -> None:
        super().__init__(clock=ManualClock())
        self.claims: list[tuple[int, int]] = []
        self.acks: list[int] = []

    async def claim_many(self, worker_id: str, visibility: float, limit: int, min_priority: int = 0) -> list[Lease]:
        leases = await super().claim_many(worker_id, visibility, limit, min_priority)
        self.claims.append((limit, len(leases)))
        return leases

    async def ack_many(self, leases: Iterable[Lease]) -> list[bool]:
        given = list(leases)
        self.acks.append(len(given))
        return await super().ack_many(given)


def messages(groups: int, each: int) -> list[Message]:
    return [Message(f"g{group}", Event("counted", {"n": n}), 0) for n in range(each) for group in range(groups)]


def test_every_group_in_order_and_one_at_a_time(queue: Transport) -> None:
    seen: dict[str, list[int]] = defaultdict(list)
    busy: set[str] = set()
    lock = threading.Lock()

    def handle(event: Event, context: Any) -> None:
        group = context.lease.group_id
        with lock:
            assert group not in busy
            busy.add(group)
            seen[group].append(event.payload["n"])
            busy.discard(group)
            if sum(map(len, seen.values())) == 150:
                driver.worker.stop()

    queue.publish_many(messages(groups=30, each=5))
    driver = Driver(queue, handle, concurrency=8)
    driver.run()
    assert dict(seen) == {f"g{group}": list(range(5)) for group in range(30)}
    assert queue.stats().messages == 0


async def test_nothing_is_claimed_that_cannot_start_and_acks_go_together() -> None:
    running = most = handled = 0

    async def handle(event: Event) -> None:
        nonlocal running, most, handled
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        handled += 1
        if handled == 100:
            worker.stop()

    async with Counted() as queue:
        await queue.publish_many(messages(groups=20, each=5))
        worker = AsyncWorker(queue, handle, concurrency=8)
        await worker.run()
        assert most == 8
        assert all(limit <= 8 for limit, _ in queue.claims)
        assert sum(queue.acks) == 100
        assert len(queue.acks) < 50, "acks of a turn are settled together"


async def test_a_new_message_is_taken_while_another_handler_runs() -> None:
    first, second = asyncio.Event(), asyncio.Event()

    async def handle(event: Event) -> None:
        if event.kind == "first":
            first.set()
            await second.wait()
        else:
            second.set()
            worker.stop()

    async with AsyncInMemoryTransport() as queue:
        await queue.publish("a", Event("first"))
        worker = AsyncWorker(queue, handle, concurrency=2)
        running = asyncio.create_task(worker.run())
        await first.wait()
        await queue.publish("b", Event("second"))
        await asyncio.wait_for(running, 30)
        assert (await queue.stats()).messages == 0


async def test_a_stop_finishes_what_is_held_and_claims_nothing_more() -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def handle(event: Event) -> None:
        begun.set()
        await go.wait()

    async with Counted() as queue:
        await queue.publish_many(messages(groups=1, each=2))
        worker = AsyncWorker(queue, handle)
        running = asyncio.create_task(worker.run())
        await begun.wait()
        worker.stop()
        claims = len(queue.claims)
        go.set()
        await running
        assert len(queue.claims) == claims
        assert [message.event.payload for message in await queue.peek("g0")] == [{"n": 1}]
        assert (await queue.groups())[0].state == "ready"


async def test_a_worker_stopped_before_it_runs_does_not_begin() -> None:
    async with Counted() as queue:
        worker = AsyncWorker(queue, _never_called)
        worker.stop()
        await worker.run()
        assert queue.claims == []


async def test_cancelling_gives_back_what_was_held_for_others_to_claim_at_once() -> None:
    begun = asyncio.Event()

    async def handle(event: Event) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with Counted() as queue:
        await queue.publish_many(messages(groups=1, each=1))
        running = asyncio.create_task(AsyncWorker(queue, handle).run())
        await begun.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        lease = await queue.claim("other", 30.0)
        assert lease is not None
        assert lease.attempt == 2


async def test_a_lost_lease_cancels_its_handler_and_drops_the_result(caplog: pytest.LogCaptureFixture) -> None:
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def handle(event: Event) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    clock = ManualClock()
    async with AsyncInMemoryTransport(clock=clock) as queue:
        await queue.publish_many(messages(groups=1, each=1))
        worker = AsyncWorker(queue, handle, visibility=30.0)
        running, loop = _started(worker)
        await begun.wait()
        clock.advance(31.0)
        other = await queue.claim("other", 30.0)
        assert other is not None
        with caplog.at_level(logging.WARNING, "harel.worker"):
            await loop.renew()
            await cancelled.wait()
        assert [record.getMessage() for record in caplog.records] == [
            f"The lease of group 'g0', seq {other.seq}, attempt 1 was lost; what its handler did is not settled."
        ]
        worker.stop()
        await running
        assert await queue.ack(other), "the new holder was not disturbed"


async def test_a_renewal_keeps_a_long_handlers_lease() -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def handle(event: Event) -> None:
        begun.set()
        await go.wait()
        worker.stop()

    clock = ManualClock()
    async with AsyncInMemoryTransport(clock=clock) as queue:
        await queue.publish_many(messages(groups=1, each=1))
        worker = AsyncWorker(queue, handle, visibility=30.0)
        running, loop = _started(worker)
        await begun.wait()
        for _ in range(9):
            clock.advance(10.0)
            await loop.renew()
            assert await queue.claim("other", 30.0) is None
        go.set()
        await running
        assert (await queue.stats()).messages == 0


def test_a_sync_handler_whose_lease_is_lost_sees_it_and_its_result_is_dropped() -> None:
    clock = ManualClock()
    seen: list[bool] = []
    queue = InMemoryTransport(clock=clock)

    def handle(event: Event, context: Any) -> None:
        clock.advance(31.0)
        assert queue.claim("other", 1000.0) is not None
        asyncio.run_coroutine_threadsafe(loops[0].renew(), event_loops[0]).result(30)
        seen.append(context.lost)
        worker.stop()

    queue.publish("a", Event("long"))
    worker = Worker(queue, handle, visibility=30.0)
    loops: list[Loop] = []
    event_loops: list[asyncio.AbstractEventLoop] = []
    make = worker._make_loop

    def remember(*arguments: Any) -> Loop:
        loops.append(make(*arguments))
        event_loops.append(asyncio.get_running_loop())
        return loops[0]

    worker._make_loop = remember  # type: ignore[assignment, method-assign]
    worker.run()
    assert seen == [True]
    assert queue.stats().leased == 1, "the other holder has it"


async def test_an_unreachable_server_is_tried_again_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    class Flaky(AsyncInMemoryTransport):
        failures = 3

        async def claim_many(self, *arguments: Any) -> list[Lease]:
            if self.failures:
                self.failures -= 1
                raise TransportUnavailable("db:5432 does not answer.")
            return await super().claim_many(*arguments)

    async def handle(event: Event) -> None:
        worker.stop()

    async with Flaky() as queue:
        await queue.publish("a", Event("late"))
        worker = AsyncWorker(queue, handle)
        with caplog.at_level(logging.WARNING, "harel.worker"):
            await worker.run()
        assert [record.getMessage() for record in caplog.records] == [
            "The queue cannot be reached; trying again until it can: db:5432 does not answer.",
            "The queue can be reached again.",
        ]
        assert (await queue.stats()).messages == 0


async def test_a_settlement_that_failed_is_made_when_the_server_is_back() -> None:
    class Flaky(AsyncInMemoryTransport):
        failures = 2

        async def ack_many(self, leases: Iterable[Lease]) -> list[bool]:
            if self.failures:
                self.failures -= 1
                raise TransportUnavailable("db:5432 does not answer.")
            return await super().ack_many(leases)

    handled = 0

    async def handle(event: Event) -> None:
        nonlocal handled
        handled += 1
        worker.stop()

    async with Flaky() as queue:
        await queue.publish("a", Event("once"))
        worker = AsyncWorker(queue, handle)
        await worker.run()
        assert handled == 1
        assert (await queue.stats()).messages == 0


async def test_what_was_settled_before_the_server_went_away_is_not_settled_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Flaky(Counted):
        failures = 2

        async def nack(self, lease: Lease, delay: float = 0.0) -> bool:
            if self.failures:
                self.failures -= 1
                raise TransportUnavailable("db:5432 does not answer.")
            return await super().nack(lease, delay)

    together = asyncio.Barrier(2)

    async def handle(event: Event) -> None:
        await together.wait()
        worker.stop()
        if event.kind == "bad":
            raise RuntimeError("again")

    async with Flaky() as queue:
        await queue.publish("a", Event("good"))
        await queue.publish("b", Event("bad"))
        worker = AsyncWorker(queue, handle)
        with caplog.at_level(logging.WARNING, "harel.worker"):
            await worker.run()
        assert queue.acks == [1]
        assert not [record for record in caplog.records if "was lost" in record.getMessage()]
        assert [(group.group_id, group.state) for group in await queue.groups()] == [("b", "parked")]


PROGRAM = """
import sys, threading, harel

go = threading.Event()

def handle(event):
    print("handling", event.payload["n"], flush=True)
    sys.stdin.readline()

with harel.connect(sys.argv[1]) as queue:
    harel.Worker(queue, handle, concurrency=1).run()
print("finished", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_a_worker_after_what_it_holds(number: int, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/queue.db"
    with connect(url) as queue:
        queue.publish_many(messages(groups=1, each=2))
        with subprocess.Popen(
            [sys.executable, "-c", PROGRAM, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stdout.readline() == "handling 0\n"
            os.kill(process.pid, number)
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline() == "finished\n"
            assert process.wait(30) == 0
        assert [message.event.payload["n"] for message in queue.peek("g0")] == [1]
        assert queue.groups()[0].state == "ready"


def _started(worker: AsyncWorker) -> tuple[asyncio.Task[None], Loop]:
    loop = worker._start_loop(worker._transport, worker._begin)
    return asyncio.create_task(loop.run()), loop


async def _never_called(event: Event) -> None:
    raise AssertionError("nothing was to be handled")
