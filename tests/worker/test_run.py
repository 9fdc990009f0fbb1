"""A worker that runs, on every backend: order, exclusiveness, a hang in one group, a member killed."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from typing import Any

import pytest

from harel import AsyncWorker, Event, RetryPolicy, Transport
from harel.engine.transport import InMemoryTransport
from harel.testing import Blocking, Subject
from harel.testing.conformance.kit import open_queue
from tests.worker.driving import DEADLINE_S, Driver, Watched, messages, until_set


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
            if sum(map(len, seen.values())) == 60:
                driver.worker.stop()

    queue.publish_many(messages(groups=12, each=5))
    driver = Driver(queue, handle, concurrency=4)
    driver.run()
    assert dict(seen) == {f"g{group}": list(range(5)) for group in range(12)}
    assert queue.claim("other", 30.0) is None, "all is settled"


def test_failures_and_successes_together_are_each_settled_as_they_are(subject: Subject) -> None:
    queue = open_queue(subject, "dead_letters")
    lock = threading.Lock()
    handled: list[str] = []

    def handle(event: Event, context: Any) -> None:
        with lock:
            handled.append(context.lease.group_id)
            if len(handled) == 8:
                driver.worker.stop()
        if context.lease.group_id in ("g1", "g5"):
            raise RuntimeError("no luck")

    queue.publish_many(messages(groups=8, each=1))
    driver = Driver(queue, handle, concurrency=3, retry=RetryPolicy(max_attempts=1))
    driver.run()
    assert sorted(letter.group_id for letter in queue.dead_letters()) == ["g1", "g5"]
    assert queue.claim("other", 30.0) is None


def test_a_hanging_handler_keeps_no_other_group_waiting(queue: Transport) -> None:
    """One slow consumer of two places: all the other groups go through the other one."""
    others = 20
    done: list[str] = []
    go = threading.Event()

    def handle(event: Event, context: Any) -> None:
        if context.lease.group_id == "slow":
            assert go.wait(DEADLINE_S)
            return
        done.append(context.lease.group_id)
        if len(done) == others:
            go.set()
            driver.worker.stop()

    async def awaiting(event: Event, context: Any) -> None:
        if context.lease.group_id == "slow":
            await until_set(go)
            return
        handle(event, context)

    queue.publish("slow", Event("k"))
    for n in range(others):
        queue.publish(f"quick-{n % 4}", Event("k", {"n": n}))
    driver = Driver(queue, handle, concurrency=2)
    if isinstance(queue, Blocking):
        driver.worker = AsyncWorker(queue.inner, awaiting, concurrency=2)
    driver.run()
    assert len(done) == others
    assert queue.claim("other", 30.0) is None, "the slow one is settled as well"


def test_a_message_published_to_an_idle_worker_is_handled(subject: Subject) -> None:
    """It is waiting when the message comes, by whatever way this backend is waited on."""
    queue, publisher = subject.open(), subject.open()
    waits = threading.Event()
    inner: Any = queue.inner if isinstance(queue, Blocking) else queue
    wait = inner.wait

    if isinstance(queue, Blocking):

        async def noted_async(timeout: float) -> bool:
            waits.set()
            return bool(await wait(timeout))

        inner.wait = noted_async
    else:

        def noted(timeout: float) -> bool:
            waits.set()
            return bool(wait(timeout))

        inner.wait = noted

    driver = Driver(queue, lambda event, context: driver.worker.stop())
    if isinstance(publisher, Blocking):

        async def run_and_publish() -> None:
            running = asyncio.create_task(driver.worker.run())
            await until_set(waits)
            await publisher.inner.publish("a", Event("late"))
            await running

        publisher.runner.run(run_and_publish())
    else:
        running = threading.Thread(target=driver.run)
        running.start()
        assert waits.wait(DEADLINE_S)
        publisher.publish("a", Event("late"))
        running.join(DEADLINE_S)
        assert not running.is_alive()
    assert queue.claim("other", 30.0) is None


async def test_nothing_is_claimed_that_cannot_start_and_acks_go_together() -> None:
    running = most = handled = 0

    async def handle(event: Event) -> None:
        nonlocal running, most, handled
        running += 1
        most = max(most, running)
        for _ in range(9):
            await asyncio.sleep(0)
        running -= 1
        handled += 1
        if handled == 100:
            worker.stop()

    async with Watched() as queue:
        await queue.publish_many(messages(groups=20, each=5))
        worker = AsyncWorker(queue, handle, concurrency=8)
        await worker.run()
        assert most == 8
        assert max(limit for limit, _ in queue.named("claim")) == 8
        acks = queue.named("ack")
        assert sum(map(len, acks)) == 100
        assert len(acks) < 50, "what finishes together is settled together"


async def test_a_new_message_is_taken_while_another_handler_runs() -> None:
    first, second = asyncio.Event(), asyncio.Event()

    async def handle(event: Event) -> None:
        if event.kind == "first":
            first.set()
            await second.wait()
        else:
            second.set()
            worker.stop()

    async with Watched() as queue:
        await queue.publish("a", Event("first"))
        worker = AsyncWorker(queue, handle, concurrency=2)
        running = asyncio.create_task(worker.run())
        await first.wait()
        await queue.publish("b", Event("second"))
        await asyncio.wait_for(running, DEADLINE_S)
        assert (await queue.stats()).messages == 0


async def test_a_worker_stopped_before_it_runs_does_not_begin() -> None:
    async def never(event: Event) -> None:
        raise AssertionError("nothing was to be handled")

    async with Watched() as queue:
        await queue.publish("a", Event("k"))
        worker = AsyncWorker(queue, never)
        worker.stop()
        await worker.run()
        assert queue.calls == []


async def test_what_is_wrong_with_the_transport_ends_the_worker_with_its_error() -> None:
    class Broken(Watched):
        async def claim_many(self, *arguments: Any) -> Any:
            raise ZeroDivisionError("a bug")

    async def handle(event: Event) -> None: ...

    async with Broken() as queue:
        with pytest.raises(ZeroDivisionError, match="a bug"):
            await AsyncWorker(queue, handle).run()


def test_workers_come_and_go_while_one_hangs() -> None:
    """There is no membership: a hung worker keeps its own group and nothing else, whoever joins or leaves."""
    queue = InMemoryTransport()
    go, hung = threading.Event(), threading.Event()
    done: list[int] = []

    def hang(event: Event) -> None:
        hung.set()
        assert go.wait(DEADLINE_S)

    def handle(event: Event, context: Any) -> None:
        done.append(event.payload["n"])
        members[-1].worker.stop()

    members: list[Driver] = []
    queue.publish("stuck", Event("k"))
    hanging = Driver(queue, lambda event, context: hang(event), concurrency=1, worker_id="hung")
    thread = threading.Thread(target=hanging.run)
    thread.start()
    assert hung.wait(DEADLINE_S)
    for n in range(5):
        queue.publish("other", Event("k", {"n": n}))
        members.append(Driver(queue, handle, worker_id=f"member-{n}"))
        members[-1].run()
    assert done == list(range(5))
    hanging.worker.stop()
    go.set()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()
    assert queue.stats().messages == 0
