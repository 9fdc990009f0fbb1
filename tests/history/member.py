"""One process of a history: it publishes to a queue or works on it, records what it does, and may kill itself.

Run as a program with a :class:`Part` in JSON as its argument.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from harel import Event, Message, connect, connect_async
from harel.engine.queue.contract import Lease
from harel.engine.queue.op import arun, run
from harel.engine.transport.libsql import LibsqlFile
from harel.engine.transport.sqlite_file import DatabaseFile, SqliteFile
from harel.testing.history import Recorder, Recording

VISIBILITY_S = 1.0
PATIENCE_S = 3 * VISIBILITY_S + 5.0
"""After so long without a message there is none: SQS leaves what was being rejected alone for five seconds."""

GROUPS = 40
STRANDS = 2
"""Threads or tasks that share one worker's transport."""


FILES: dict[str, type[DatabaseFile]] = {"sqlite": SqliteFile, "libsql": LibsqlFile}


class Part(msgspec.Struct, frozen=True):
    """What one process is to do."""

    name: str
    role: Literal["publish", "work"]
    flavour: Literal["sync", "async"]
    url: str
    """Of the queue."""
    folder: str
    begin: int = 0
    end: int = 0
    """A publisher's events: from this number up to, not including, that one."""
    dies_at: tuple[str, int] | None = None
    """``("request", n)``: before its nth request is sent, or in a file its nth statement run, which may be inside a
    transaction; ``("answer", n)``: before it records its nth answer."""

    @property
    def record(self) -> Path:
        return Path(self.folder) / "record"

    @property
    def file(self) -> type[DatabaseFile] | None:
        """Whose statements are counted, where the queue is in a file."""
        return FILES.get(self.url.partition(":")[0])

    @property
    def published(self) -> Path:
        """Is there once all is published."""
        return Path(self.folder) / "published"


class Fate:
    """Counts a process's steps of one kind, and kills it at the one that is its last."""

    def __init__(self, dies_at: tuple[str, int] | None) -> None:
        self._kind, self._left = dies_at or ("", 0)

    def step(self, kind: str) -> None:
        if kind == self._kind:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


class Mortal:
    """A transport that may die between what a method did and its answer."""

    def __init__(self, transport: Any, fate: Fate) -> None:
        self._transport = transport
        self._fate = fate

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._transport, name)
        if not callable(method):
            return method

        async def answer_later(*args: Any) -> Any:
            reply = await method(*args)
            self._fate.step("answer")
            return reply

        def answer(*args: Any) -> Any:
            reply = method(*args)
            self._fate.step("answer")
            return reply

        return answer_later if inspect.iscoroutinefunction(method) else answer


Steps: TypeAlias = Generator[Callable[[], Any], Any, None]
"""Yields calls to make, for either flavour to make them."""


def publish(part: Part, transport: Recording, strand: int) -> Steps:
    """Publish its events, some in batches; a group's number comes from the event's."""
    if strand:
        return
    chance = random.Random(part.name)
    events = list(range(part.begin, part.end))
    while events:
        batch = [events.pop(0) for _ in range(min(chance.choice((1, 1, 5)), len(events)))]
        messages = [Message(f"g{number % GROUPS}", Event("k", id=f"{part.name[0]}{number}")) for number in batch]
        if len(messages) == 1:
            yield partial(transport.publish, *messages[0])
        else:
            yield partial(transport.publish_many, messages)


def work(part: Part, transport: Recording, strand: int) -> Steps:
    """Claim and settle until all is published and settled, or nothing can be claimed for long.

    Now and then it comes back to a lease that it settled long ago, which must change nothing.
    """
    chance = random.Random(f"{part.name}/{strand}")
    sleep = time.sleep if part.flavour == "sync" else asyncio.sleep
    past: list[Lease] = []
    patience = time.monotonic() + PATIENCE_S
    while part.dies_at is not None or time.monotonic() < patience or not part.published.exists():
        leases = yield partial(transport.claim_many, part.name, VISIBILITY_S, chance.choice((1, 1, 3)))
        if len(leases) > 1:
            yield partial(transport.extend_many, leases, VISIBILITY_S)
        for lease in leases:
            yield from _handle(transport, lease, chance, sleep)
            past.append(lease)
            if chance.random() < 0.1:
                yield from _settle(transport, chance.choice(past), chance.choice(("ack", "nack", "reject", "extend")))
            patience = time.monotonic() + PATIENCE_S
        if not leases:
            if part.dies_at is None and part.published.exists() and (yield from _is_empty(transport)):
                return
            yield partial(transport.wait, 0.05)


def _is_empty(transport: Recording) -> Generator[Callable[[], Any], Any, bool]:
    """Say whether the queue is known to be empty; where it cannot be asked, patience has to tell."""
    if not transport.capabilities.stats:
        return False
    stats = yield transport.stats
    return bool(stats.messages == 0)


def _handle(transport: Recording, lease: Lease, chance: random.Random, sleep: Callable[[float], Any]) -> Steps:
    fortune = chance.random()
    if fortune < 0.005:
        yield partial(sleep, 1.2 * VISIBILITY_S)  # so that it settles a lease that it has lost
    elif fortune < 0.1:
        yield partial(transport.extend, lease, VISIBILITY_S)
    yield from _settle(transport, lease, chance.choice(("ack",) * 16 + ("nack", "reject")))


def _settle(transport: Recording, lease: Lease, method: str) -> Steps:
    more: dict[str, tuple[Any, ...]] = {"reject": ("why",), "extend": (VISIBILITY_S,)}
    yield partial(getattr(transport, method), lease, *more.get(method, ()))


def main(part: Part) -> None:
    """Do the part."""
    fate = Fate(part.dies_at)
    recorder = Recorder(part.record, f"{part.name}/{os.getpid()}")
    strand_of = publish if part.role == "publish" else work
    if part.file is not None:
        _count_statements(part.file, fate)
    if part.flavour == "sync":
        with connect(part.url) as transport, ThreadPoolExecutor(STRANDS) as threads:
            recording = Recording(_mortal(part, transport, fate), recorder)
            list(threads.map(lambda strand: run(strand_of(part, recording, strand), _call), range(STRANDS)))
    else:
        asyncio.run(_main_async(part, strand_of, fate, recorder))
    recorder.close()


async def _main_async(part: Part, strand_of: Callable[..., Steps], fate: Fate, recorder: Recorder) -> None:
    async with await connect_async(part.url) as transport:
        recording = Recording(_mortal(part, transport, fate), recorder)
        await asyncio.gather(*(arun(strand_of(part, recording, strand), _call) for strand in range(STRANDS)))


def _mortal(part: Part, transport: Any, fate: Fate) -> Mortal:
    if part.file is None:
        send = transport._send

        def send_mortally(request: Any) -> Any:
            fate.step("request")
            return send(request)

        transport._send = send_mortally
    return Mortal(transport, fate)


def _count_statements(file: type[DatabaseFile], fate: Fate) -> None:
    execute = file._execute

    def execute_mortally(self: DatabaseFile, *args: Any) -> list[Any]:
        fate.step("request")
        return execute(self, *args)

    file._execute = execute_mortally  # type: ignore[method-assign, assignment]


def _call(request: Callable[[], Any]) -> Any:
    return request()


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=Part))
