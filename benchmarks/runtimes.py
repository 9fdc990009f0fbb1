"""The worker runtimes that are measured: how each is filled, set to work, and published to.

This runs in a peer's environment too, so that at the top it is plain standard library.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from typing import Any

from benchmarks.contenders import FILE, KIND

__all__ = ["RUNTIMES", "VISIBILITY_S", "Handle", "Message", "Runtime", "group_name", "in_rounds", "until"]

Message = tuple[int, int]
"""A group's number, and the message's number in it."""
Handle = Callable[[int, int], Awaitable[object] | None]
"""Takes a group's number and the message's number in it; it is called where a handler begins.

What it returns, if anything, is what the handler does then: it is awaited before the handler ends.
"""

VISIBILITY_S = 30.0
"""The default of all of them."""
AT_ONCE = 1_000
"""Messages that one call publishes, where it can be many."""
SENDERS = 10
"""Who publish side by side, where a call publishes one."""


def group_name(group: int) -> str:
    return f"order-{group:07}"


def in_rounds(sizes: Sequence[int]) -> Iterator[Message]:
    """Yield a message of every group that has any left, then the next of each: group ``i`` has ``sizes[i]``."""
    number, left = 0, [group for group, size in enumerate(sizes) if size]
    while left:
        yield from ((group, number) for group in left)
        number += 1
        left = [group for group in left if sizes[group] > number]


class Runtime:
    """A worker's runtime on a place of its own."""

    pauses = True
    """Whether its handlers can await something."""
    up_at: float | None = None
    """When its worker was up and about to work, by ``time.perf_counter``, where starting one takes long."""

    async def open(self, place: str) -> None:
        raise NotImplementedError

    async def prepare(self, groups: int) -> None:
        """Do once what the groups need before anything can be published to them."""

    async def publish(self, group: int, number: int) -> None:
        raise NotImplementedError

    async def publish_many(self, messages: Sequence[Message]) -> None:
        """Publish in this order, as quickly as the runtime can: unless it knows better, one by one, side by side.

        Of one group the next is published when the one before has been.
        """
        for distinct in _distinct(messages):
            left = iter(distinct)

            async def send(left: Iterator[Message] = left) -> None:
                for group, number in left:
                    await self.publish(group, number)

            await asyncio.gather(*(send() for _ in range(SENDERS)))

    async def backlog(self, groups: int = 0, each: int = 0, sizes: Sequence[int] | None = None) -> None:
        """Publish to so many groups so many messages each, or to each group its size: in rounds."""
        messages = list(in_rounds([each] * groups if sizes is None else sizes))
        for start in range(0, len(messages), AT_ONCE):
            await self.publish_many(messages[start : start + AT_ONCE])

    async def work(self, handle: Handle, enough: asyncio.Event, concurrency: int) -> None:
        """Handle messages until there are enough."""
        raise NotImplementedError

    async def waiting(self) -> int | None:
        """Return how many messages are left, if it can be asked."""
        return None

    async def close(self) -> None:
        raise NotImplementedError


class Harel(Runtime):
    """harel as it lies here: ``connect_async`` and ``AsyncWorker``.

    Parameters
    ----------
    url : callable
        From a place to the URL of the queue there.
    """

    def __init__(self, url: Callable[[str], str]) -> None:
        self._url = url
        self._harel: Any = importlib.import_module("harel")
        self._queue: Any = None

    async def open(self, place: str) -> None:
        self._queue = await self._harel.connect_async(self._url(place))

    async def publish(self, group: int, number: int) -> None:
        await self._queue.publish(group_name(group), self._event(group, number))

    async def publish_many(self, messages: Sequence[Message]) -> None:
        await self._queue.publish_many(
            [self._harel.Message(group_name(group), self._event(group, number), 0) for group, number in messages]
        )

    async def work(self, handle: Handle, enough: asyncio.Event, concurrency: int) -> None:
        async def handler(event: Any) -> None:
            rest = handle(event.payload["group"], event.payload["number"])
            if rest is not None:
                await rest

        worker = self._harel.AsyncWorker(self._queue, handler, concurrency=concurrency, visibility=VISIBILITY_S)
        await until(worker.run(), enough, worker.stop)

    async def waiting(self) -> int | None:
        return int((await self._queue.stats()).messages)

    async def close(self) -> None:
        await self._queue.close()

    def _event(self, group: int, number: int) -> Any:
        return self._harel.Event(kind=KIND, payload=_payload(group, number))


class Harel090(Runtime):
    """The peer harel 0.9.0, whose worker drives state machines: a group is the execution of one.

    The machine goes from one state to the other and back, and runs the handler where it enters one: the least that
    calls a handler for every message. In its own words the handler is an action.

    Parameters
    ----------
    open_both : callable
        From a place to its store and its transport there.
    """

    MACHINE = """
    event Shipped {}
    machine bench {
      initial Here
      state Here { on enter note }
      state There { on enter note }
      from Here to There on Shipped
      from There to Here on Shipped
    }
    """

    def __init__(self, open_both: Callable[[str], Awaitable[tuple[Any, Any]]]) -> None:
        self._open_both = open_both
        peer: Any = importlib.import_module("harel")
        self._make_event = peer.Event
        self._machine = peer.definition_from_dsl(self.MACHINE, "bench", actions={"note": self._note})
        self._handle: Handle | None = None
        self._to_start = 0

    async def open(self, place: str) -> None:
        distributed: Any = importlib.import_module("harel.engine.aio.distributed")
        self._store, self._transport = await self._open_both(place)
        self._runner = distributed.AsyncDistributedRunner(
            self._store, self._transport, {self._machine.id: self._machine}
        )

    async def prepare(self, groups: int) -> None:
        for group in range(groups):
            await self._runner.create(self._machine.id, execution_id=group_name(group))
        self._to_start = groups
        self._all_started = asyncio.Event()
        await self._work(self._all_started, SENDERS)

    async def publish(self, group: int, number: int) -> None:
        event = self._make_event(kind="Shipped", data=_payload(group, number))
        await self._runner.send(group_name(group), event)

    async def work(self, handle: Handle, enough: asyncio.Event, concurrency: int) -> None:
        self._handle = handle
        await self._work(enough, concurrency)

    async def _work(self, enough: asyncio.Event, concurrency: int) -> None:
        stop = asyncio.Event()
        worker = self._runner.worker(concurrency=concurrency, visibility=VISIBILITY_S)
        await until(worker.run(stop), enough, stop.set)

    async def close(self) -> None:
        await self._store.close()
        await self._transport.close()

    async def _note(self, _: Any, event: Any) -> None:
        if event is None:  # the machine's start
            self._to_start -= 1
            if not self._to_start:
                self._all_started.set()
            return
        assert self._handle is not None
        rest = self._handle(event.data["group"], event.data["number"])
        if rest is not None:
            await rest


async def until(running: Coroutine[Any, Any, None], enough: asyncio.Event, stop: Callable[[], object]) -> None:
    """Let a worker run until there is enough, then stop it; what it raises is raised here."""
    task = asyncio.create_task(running)
    waiter = asyncio.create_task(enough.wait())
    try:
        await asyncio.wait({task, waiter}, return_when=asyncio.FIRST_COMPLETED)
        if not enough.is_set() and not task.cancelled() and task.exception() is None:
            raise RuntimeError("The worker ended by itself before there was enough.")
        stop()
        await task
    finally:
        for each in (task, waiter):
            each.cancel()
            with suppress(BaseException):
                await each


def _distinct(messages: Sequence[Message]) -> Iterator[list[Message]]:
    """Cut where a group comes again."""
    part: list[Message] = []
    groups: set[int] = set()
    for message in messages:
        if message[0] in groups:
            yield part
            part, groups = [], set()
        part.append(message)
        groups.add(message[0])
    if part:
        yield part


def _payload(group: int, number: int) -> dict[str, int]:
    return {"group": group, "number": number}


def _peer(name: str) -> Any:
    return importlib.import_module(f"harel.engine.aio_{name}")


async def _peer_in_memory(_: str) -> tuple[Any, Any]:
    return _peer("store").AsyncDictStore(), _peer("transport").AsyncInMemoryTransport()


async def _peer_in_files(place: str) -> tuple[Any, Any]:
    store = await _peer("store").AsyncSqliteStore.create(f"{place}/executions.db")
    return store, await _peer("transport").AsyncSqliteTransport.create(f"{place}/{FILE}")


async def _peer_on_postgres(place: str) -> tuple[Any, Any]:
    store = await _peer("store").AsyncPostgresStore.from_dsn(place)
    return store, await _peer("transport").AsyncPostgresTransport.from_dsn(place)


async def _peer_on_redis(place: str) -> tuple[Any, Any]:
    return _peer("store").AsyncRedisStore.from_url(place), _peer("transport").AsyncRedisTransport.from_url(place)


def _of_a_peer(module: str, name: str, *arguments: str) -> Callable[[], Runtime]:
    def make() -> Runtime:
        runtime: Runtime = getattr(importlib.import_module(f"benchmarks.peers.{module}"), name)(*arguments)
        return runtime

    return make


RUNTIMES: dict[str, Callable[[], Runtime]] = {
    "harel-memory": lambda: Harel(lambda _: "memory://"),
    "harel-sqlite": lambda: Harel(lambda place: f"sqlite:///{place}/{FILE}"),
    "harel-postgres": lambda: Harel(lambda place: place),
    "harel-redis": lambda: Harel(lambda place: place),
    "peer-memory": lambda: Harel090(_peer_in_memory),
    "peer-sqlite": lambda: Harel090(_peer_in_files),
    "peer-postgres": lambda: Harel090(_peer_on_postgres),
    "peer-redis": lambda: Harel090(_peer_on_redis),
    "procrastinate-postgres": _of_a_peer("procrastinate_worker", "Procrastinate"),
    "dbos-postgres": _of_a_peer("dbos_worker", "Dbos", ""),
    "dbos-sqlite": _of_a_peer("dbos_worker", "Dbos", FILE),
}
"""By the key of their contender: all that are in Python."""
