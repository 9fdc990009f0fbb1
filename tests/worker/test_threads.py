"""Threads for blocking calls."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import Any

import pytest

from harel import Event, RetryPolicy, Worker
from harel.engine.transport import InMemoryTransport
from harel.engine.worker.threads import DaemonThreads
from tests.worker.driving import DEADLINE_S, messages

VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("VARIABLE", default="unset")


async def test_calls_run_side_by_side_up_to_the_count_and_the_rest_in_turn() -> None:
    threads = DaemonThreads(3, "harel-test")
    together = threading.Barrier(3)
    most = busy = 0
    lock = threading.Lock()

    def call(number: int) -> int:
        nonlocal most, busy
        with lock:
            busy += 1
            most = max(most, busy)
        if number < 3:
            together.wait(DEADLINE_S)
        with lock:
            busy -= 1
        return number

    answers = await asyncio.gather(*(threads(lambda number=number: call(number)) for number in range(9)))  # type: ignore[misc]
    assert answers == list(range(9))
    assert most <= 3
    threads.stop(DEADLINE_S)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("harel-test")]


async def test_no_thread_is_made_that_is_not_needed() -> None:
    threads = DaemonThreads(8, "harel-few")
    for _ in range(20):
        await threads(lambda: None)
    assert len([thread for thread in threading.enumerate() if thread.name.startswith("harel-few")]) == 1
    threads.stop(DEADLINE_S)


@pytest.mark.parametrize(
    ("error", "expected"), [(ValueError, ValueError), (StopIteration, RuntimeError), (SystemExit, RuntimeError)]
)
async def test_what_a_call_raises_is_raised_where_it_is_awaited(error: type[BaseException], expected: type) -> None:
    def call() -> None:
        raise error("no")

    threads = DaemonThreads(1, "harel-raising")
    with pytest.raises(expected):
        await threads(call)
    assert await threads(lambda: 7) == 7, "and the thread works on"
    threads.stop(DEADLINE_S)


async def test_nobody_need_wait_for_a_call_any_more() -> None:
    go = threading.Event()
    threads = DaemonThreads(1, "harel-left")
    call: Any = asyncio.ensure_future(threads(lambda: go.wait(DEADLINE_S)))
    await asyncio.sleep(0)
    call.cancel()
    go.set()
    assert await threads(lambda: 7) == 7
    threads.stop(DEADLINE_S)


@pytest.mark.parametrize("error", [StopIteration, SystemExit, GeneratorExit])
def test_whatever_a_sync_handler_raises_is_a_failure_of_its_message(error: type[BaseException]) -> None:
    queue = InMemoryTransport()
    calls: list[str] = []

    def handle(event: Event, context: Any) -> None:
        calls.append(context.lease.group_id)
        if len(calls) == 3:
            worker.stop()
        if context.lease.group_id == "g1":
            raise error

    queue.publish_many(messages(groups=3, each=1))
    worker = Worker(queue, handle, concurrency=1, retry=RetryPolicy(max_attempts=1, retry_on=(BaseException,)))
    worker.run()
    assert calls == ["g0", "g1", "g2"]
    assert [letter.group_id for letter in queue.dead_letters()] == ["g1"]


def test_context_variables_do_not_leak_between_messages_of_a_thread() -> None:
    queue = InMemoryTransport()
    found: list[str] = []

    def handle(event: Event) -> None:
        found.append(VARIABLE.get())
        VARIABLE.set("of another message")
        if len(found) == 4:
            worker.stop()

    queue.publish_many(messages(groups=1, each=4))
    worker = Worker(queue, handle, concurrency=1)
    worker.run()
    assert found == ["unset"] * 4


def test_handlers_run_in_as_many_threads_as_there_may_be_at_once() -> None:
    queue = InMemoryTransport()
    together = threading.Barrier(4)

    def handle(event: Event) -> None:
        together.wait(DEADLINE_S)
        worker.stop()

    queue.publish_many(messages(groups=4, each=1))
    worker = Worker(queue, handle, concurrency=4)
    worker.run()
    assert queue.stats().messages == 0
