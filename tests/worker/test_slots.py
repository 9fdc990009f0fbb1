"""The places in which handlers run: isolation from one message to the next, and fairness to the event loop."""

from __future__ import annotations

import asyncio
import contextvars
import functools
from typing import Any

import pytest

from harel import AsyncWorker, Event, RetryPolicy
from harel.engine.worker.slots import Fresh
from tests.worker.driving import DEADLINE_S, FakeTiming, Running, Watched, messages, settled

VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("VARIABLE", default="unset")


@pytest.mark.parametrize("suspends", [True, False])
async def test_context_variables_do_not_leak_from_one_message_to_the_next(suspends: bool) -> None:
    found: list[str] = []

    async def handle(event: Event) -> None:
        found.append(VARIABLE.get())
        VARIABLE.set("of another message")
        if suspends:
            await asyncio.sleep(0)
            assert VARIABLE.get() == "of another message"
        if len(found) == 5:
            worker.stop()

    async with Watched() as queue:
        await queue.publish_many(messages(groups=1, each=5))
        worker = AsyncWorker(queue, handle, concurrency=1)
        await worker.run()
        assert found == ["unset"] * 5


async def test_a_cancellation_of_its_own_task_ends_a_handler_and_no_other() -> None:
    handled: list[str] = []
    cancelled: list[int] = []

    async def handle(event: Event, context: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        cancelled.append(task.cancelling())
        if context.lease.group_id in ("g0", "g1"):
            task.cancel()
            if context.lease.group_id == "g0":
                await asyncio.sleep(0)
                raise AssertionError("it was cancelled")
        handled.append(context.lease.group_id)

    timing = FakeTiming()
    async with Watched() as queue:
        await queue.publish_many(messages(groups=4, each=1))
        running = Running(AsyncWorker(queue, handle, concurrency=1, retry=RetryPolicy(max_attempts=1)), timing)
        await timing.advance(10.0)
        await running.stopped()
        assert sorted(handled) == ["g1", "g2", "g3"]
        assert cancelled == [0, 0, 0, 0], "of a cancellation nothing is left to the next message"


async def test_a_handler_that_awaits_what_was_cancelled_has_failed() -> None:
    async def handle(event: Event) -> None:
        gone = asyncio.get_running_loop().create_future()
        gone.cancel()
        await gone

    async with Watched() as queue:
        await queue.publish_many(messages(groups=1, each=1))
        assert await AsyncWorker(queue, handle, retry=RetryPolicy(backoff=5.0, jitter=0.0)).step()
        assert queue.named("nack") == [("g0", 5.0)]


async def test_timeouts_and_groups_of_tasks_work_in_a_handler() -> None:
    done: list[str] = []

    async def handle(event: Event, context: Any) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await asyncio.Event().wait()
        with pytest.raises(ExceptionGroup):
            await fail_together()
        done.append(context.lease.group_id)
        if len(done) == 3:
            worker.stop()

    async def fail_together() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.Event().wait())
            group.create_task(fail())

    async def fail() -> None:
        raise ValueError("no")

    async with Watched() as queue:
        await queue.publish_many(messages(groups=3, each=1))
        worker = AsyncWorker(queue, handle, concurrency=2)
        await asyncio.wait_for(worker.run(), DEADLINE_S)
        assert sorted(done) == ["g0", "g1", "g2"]


async def test_handlers_that_suspend_all_run_at_once() -> None:
    together = asyncio.Barrier(50)

    async def handle(event: Event) -> None:
        async with asyncio.timeout(DEADLINE_S):
            await together.wait()
        worker.stop()

    async with Watched() as queue:
        await queue.publish_many(messages(groups=50, each=1))
        worker = AsyncWorker(queue, handle, concurrency=50)
        await worker.run()
        assert (await queue.stats()).messages == 0


async def test_handlers_that_suspend_begin_all_in_a_few_turns_of_the_loop() -> None:
    begun = 0
    go = asyncio.Event()

    async def handle(event: Event) -> None:
        nonlocal begun
        begun += 1
        await go.wait()

    async with Watched() as queue:
        await queue.publish_many(messages(groups=50, each=1))
        worker = AsyncWorker(queue, handle, concurrency=50)
        running = asyncio.create_task(worker.run())
        for _ in range(12):
            await asyncio.sleep(0)
        assert begun == 50
        worker.stop()
        go.set()
        await running


async def test_handlers_that_never_suspend_let_the_loop_come_in_between() -> None:
    """Each takes as long as a turn may last, by the worker's own time, so after each the loop has its turn."""
    timing = FakeTiming()
    turns: list[str] = []

    async def handle(event: Event, context: Any) -> None:
        turns.append("handler")
        timing.jump(0.006)

    async def others() -> None:
        while True:
            turns.append("others")
            await asyncio.sleep(0)

    async with Watched() as queue:
        await queue.publish_many(messages(groups=8, each=1))
        running = Running(AsyncWorker(queue, handle, concurrency=8), timing)
        busy = asyncio.create_task(others())
        await settled()
        busy.cancel()
        await running.stopped()
        assert turns.count("handler") == 8
        assert "handler handler handler handler" not in " ".join(turns), "two slots take turns, and others come between"


async def test_what_a_function_returns_may_be_any_awaitable() -> None:
    async def double(number: int) -> int:
        await asyncio.sleep(0)
        return 2 * number

    def as_future(number: int) -> Any:
        return asyncio.ensure_future(double(number))

    assert await Fresh(double, 4) == 8
    assert await Fresh(as_future, 4) == 8
    with pytest.raises(ZeroDivisionError):
        await Fresh(lambda: 1 // 0)


async def test_a_partial_and_an_object_are_handlers_too() -> None:
    seen: list[str] = []

    async def handle(name: str, event: Event) -> None:
        seen.append(name)

    class Handler:
        async def __call__(self, event: Event, context: Any) -> None:
            seen.append("object")

    async with Watched() as queue:
        await queue.publish_many(messages(groups=1, each=2))
        assert await AsyncWorker(queue, functools.partial(handle, "partial")).step()
        assert await AsyncWorker(queue, Handler()).step()
        assert seen == ["partial", "object"]


async def test_system_exit_in_a_handler_ends_the_program_and_gives_the_message_back() -> None:
    async def handle(event: Event) -> None:
        raise SystemExit(3)

    queue = Watched()
    await queue.publish_many(messages(groups=1, each=1))

    def program() -> None:
        asyncio.run(AsyncWorker(queue, handle).run())

    with pytest.raises(SystemExit):
        await asyncio.to_thread(program)
    assert await queue.claim("other", 30.0) is not None
