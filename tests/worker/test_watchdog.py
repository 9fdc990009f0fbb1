"""A handler that blocks the event loop past its lease is named, with the place where it is."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest

from harel import AsyncWorker, Event
from harel.engine.worker.job import Job
from harel.engine.worker.log import WorkerLog
from harel.engine.worker.watchdog import Watchdog
from tests.worker.driving import DEADLINE_S, Watched, messages


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def handle_in_a_blocking_way(event: Event) -> None:
    blocking.set()
    assert go.wait(DEADLINE_S)


blocking = threading.Event()
go = threading.Event()


@pytest.fixture(autouse=True)
def fresh_events() -> None:
    blocking.clear()
    go.clear()


async def test_a_handler_that_blocks_the_loop_past_its_lease_is_named(caplog: pytest.LogCaptureFixture) -> None:
    async with Watched() as queue:
        await queue.publish_many(messages(groups=1, each=1))
        worker = AsyncWorker(queue, handle_in_a_blocking_way, worker_id="w", visibility=30.0)
        loop = worker._start_loop(queue, worker._hand())
        clock = Clock()
        watchdog = loop._watchdog
        watchdog._clock = clock
        watchdog.start = watchdog.attach  # type: ignore[method-assign]  # the test looks, not a thread

        def look_on() -> None:
            assert blocking.wait(DEADLINE_S)
            for now in (0.0, 10.0, 20.0, 29.9):
                clock.now = now
                watchdog.look()
            before.extend(caplog.records)
            for now in (30.0, 40.0, 50.0):
                clock.now = now
                watchdog.look()
            go.set()
            worker.stop()

        before: list[logging.LogRecord] = []
        onlooker = threading.Thread(target=look_on)
        onlooker.start()
        with caplog.at_level(logging.ERROR, "harel.worker"):
            await loop.run()
        onlooker.join(DEADLINE_S)
        assert before == []
        (record,) = caplog.records
        text = record.getMessage()
        assert text.startswith(
            f"The handler {__name__}.handle_in_a_blocking_way, at group 'g0', seq 1, attempt 1, has blocked the event "
            "loop for 30.0 s, longer than a lease lasts (30 s)"
        )
        assert "assert go.wait(DEADLINE_S)" in text, "the place in the handler"
        fields: Any = record
        assert (fields.group, fields.seq, fields.attempt, fields.worker) == ("g0", 1, 1, "w")


async def test_a_loop_that_answers_is_left_in_peace(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    watchdog = Watchdog(WorkerLog("w"), {}, handler="h", visibility=30.0, clock=clock)
    watchdog.attach()
    watchdog.watch()
    for _ in range(100):
        assert watchdog.look() == 10.0
        clock.now += 10.0
        await asyncio.sleep(0)
    assert caplog.records == []


async def test_while_nothing_runs_it_does_not_even_look() -> None:
    watchdog = Watchdog(WorkerLog("w"), {}, handler="h", visibility=30.0, clock=Clock())
    watchdog.attach()
    assert watchdog.look() is None
    watchdog.watch()
    assert watchdog.look() == 10.0
    watchdog.rest()
    assert watchdog.look() is None


async def test_each_blocking_is_said_once_and_another_one_again(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    jobs: dict[Job, None] = {}
    watchdog = Watchdog(WorkerLog("w"), jobs, handler="h", visibility=30.0, clock=clock)
    watchdog.attach()
    watchdog.watch()
    for times in (1, 2):
        for _ in range(8):
            watchdog.look()
            clock.now += 10.0
        assert len(caplog.records) == times
        await asyncio.sleep(0)
    assert caplog.records[0].getMessage().startswith("Something has blocked the event loop for 30.0 s")


def test_its_thread_ends_with_the_worker() -> None:
    async def handle(event: Event) -> None:
        workers[0].stop()

    async def main() -> None:
        async with Watched() as queue:
            await queue.publish_many(messages(groups=1, each=1))
            workers.append(AsyncWorker(queue, handle))
            await workers[0].run()

    workers: list[AsyncWorker] = []
    asyncio.run(main())
    for thread in threading.enumerate():
        if thread.name == "harel-watchdog":
            thread.join(DEADLINE_S)
            assert not thread.is_alive()
