"""One in-memory queue between threads and event loops."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

import pytest

from harel import Event, InvalidArgument
from harel.engine.aio_transport import AsyncInMemoryTransport
from harel.engine.queue.memory.shared import SharedMemoryQueue
from harel.engine.transport import InMemoryTransport

EVENT = Event("noted")
LONG_S = 60.0


class Watched(SharedMemoryQueue):
    """Says when somebody sleeps."""

    def __init__(self) -> None:
        super().__init__(time.time)
        self.asleep = threading.Event()

    def sleeper(self, *arguments: object) -> bool:
        sleeps = super().sleeper(*arguments)  # type: ignore[arg-type]
        self.asleep.set()
        return sleeps


@pytest.mark.parametrize("how", ["publish", "nack", "ack", "release", "redrive"])
def test_a_waiting_thread_is_woken_by_whatever_makes_a_group_claimable(how: str) -> None:
    shared = Watched()
    queue = InMemoryTransport(shared)
    queue.publish("a", EVENT)
    queue.publish("a", EVENT)
    lease = queue.claim("w", LONG_S)
    assert lease is not None
    if how == "release":
        queue.hold("a")
        queue.ack(lease)
    if how == "redrive":
        queue.purge("a")
        queue.reject(lease, "no")
    actions: dict[str, Callable[[], object]] = {
        "publish": lambda: queue.publish("b", EVENT),
        "nack": lambda: queue.nack(lease),
        "ack": lambda: queue.ack(lease),
        "release": lambda: queue.release("a"),
        "redrive": lambda: queue.redrive(lease.seq),
    }
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(queue.wait(LONG_S)))
    thread.start()
    assert shared.asleep.wait(30)
    actions[how]()
    thread.join(30)
    assert answers == [True]
    assert not shared._sleepers, "nobody is left on the list"


def test_a_task_is_woken_by_a_thread() -> None:
    shared = Watched()

    async def waiting() -> bool:
        async with AsyncInMemoryTransport(shared) as queue:
            return await queue.wait(LONG_S)

    def publishing() -> None:
        assert shared.asleep.wait(30)
        InMemoryTransport(shared).publish("a", EVENT)

    thread = threading.Thread(target=publishing)
    thread.start()
    assert asyncio.run(waiting())
    thread.join(30)
    assert not shared._sleepers


def test_a_change_between_the_look_and_the_sleep_is_not_missed() -> None:
    shared = Watched()
    queue = InMemoryTransport(shared)
    waiting = queue._ops.wait(LONG_S)
    look = next(waiting)
    seen = queue._send(look)
    queue.publish("a", EVENT)
    sleep = waiting.send(seen)
    assert not shared.sleeper(lambda: None, sleep.seen)


def test_the_twins_serve_one_queue_and_know_each_others_leases() -> None:
    shared = SharedMemoryQueue(time.time)
    queue = InMemoryTransport(shared)
    queue.publish("a", EVENT)
    lease = queue.claim("w", LONG_S)
    assert lease is not None
    assert asyncio.run(AsyncInMemoryTransport(shared).ack(lease))
    with pytest.raises(InvalidArgument, match="settle it where it was claimed"):
        InMemoryTransport().ack(lease)


def test_threads_that_share_a_queue_handle_each_message_once() -> None:
    queue = InMemoryTransport()
    for n in range(2000):
        queue.publish(f"g{n % 50}", Event("n", {"n": n}))
    handled: list[int] = []

    def work(name: str) -> None:
        while lease := queue.claim(name, LONG_S):
            handled.append(lease.event.payload["n"])
            assert queue.ack(lease)

    threads = [threading.Thread(target=work, args=(str(n),)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    work("last")
    assert sorted(handled) == list(range(2000))
    for group in range(50):
        of_group = [n for n in handled if n % 50 == group]
        assert of_group == sorted(of_group)
