"""One process of a history under faults: it publishes, works, operates or runs harel's worker, and records it.

Run as a program with a :class:`Part` in JSON as its argument. It does not know what is done to it: it is killed and
frozen from outside, its server goes away, its own clock may be hours off. What it cannot do at the moment it leaves,
and goes on.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from harel import AsyncWorker, Event, Message, Reject, RetryLater, RetryPolicy, Worker, connect, connect_async
from harel.engine.queue.contract import Lease
from harel.engine.queue.op import arun, run
from harel.errors import PartlyPublished, TransportUnavailable
from harel.testing.history import Recorder, Recording

Role: TypeAlias = Literal["publish", "work", "runtime", "operate"]

STRANDS = 2
"""Threads or tasks that share one process's transport."""

OLD_GROUPS = 150
"""Groups that are published to over and over; one message in five has a group of its own."""

ENOUGH = 1_500
"""With so many messages waiting a publisher pauses."""

PATIENCE_S = 8.0
"""After so long without a message, at the end, there is none, where the queue cannot be asked: SQS leaves what was
being rejected alone for five seconds."""


class Part(msgspec.Struct, frozen=True):
    """What one process is to do."""

    name: str
    role: Role
    flavour: Literal["sync", "async"]
    url: str
    folder: str
    seed: int
    visibility_s: float
    clock_ahead_s: float = 0.0
    """By how much this process's clock is wrong."""
    pause_s: float = 0.0
    """A publisher's pause after each call."""

    @property
    def record(self) -> Path:
        return Path(self.folder) / "record"

    @property
    def no_more(self) -> Path:
        """Is there once nothing more is to be published."""
        return Path(self.folder) / "no-more"


Steps: TypeAlias = Generator[Callable[[], Any], Any, Any]
"""Yields calls to make, for either flavour to make them."""


class Member:
    """A part being played.

    Parameters
    ----------
    part : Part
    transport : Recording
    strand : int
        Which of the process's threads or tasks.
    """

    def __init__(self, part: Part, transport: Recording, strand: int) -> None:
        self._part = part
        self._transport = transport
        self._can = transport.capabilities
        self._name = f"{part.name}.{strand}"
        self._chance = random.Random(f"{part.seed}/{self._name}")
        self._pause = time.sleep if part.flavour == "sync" else asyncio.sleep

    def play(self) -> Steps:
        """Do what the role says, until there is nothing more to do."""
        yield from {"publish": self._publish, "work": self._work, "operate": self._operate}[self._part.role]()

    def _publish(self) -> Steps:
        number = 0
        while not self._part.no_more.exists():
            messages = []
            for _ in range(self._chance.choice((1, 1, 1, 4, 12))):
                messages.append(Message(self._a_group(number), self._event(number), self._a_priority()))
                number += 1
            if len(messages) == 1:
                yield from self._try(partial(self._transport.publish, *messages[0]))
            else:
                yield from self._try(partial(self._transport.publish_many, messages))
            yield partial(self._pause, self._part.pause_s)
            if number % 50 < len(messages) and (yield from self._waiting()) > ENOUGH:
                yield partial(self._pause, 1.0)

    def _event(self, number: int) -> Event:
        return Event("k", {"number": number}, id=f"{self._name}/{number}")

    def _a_group(self, number: int) -> str:
        if self._chance.random() < 0.2:
            return f"new {self._name}/{number // 3}"
        return f"old {int(OLD_GROUPS * self._chance.random() ** 2)}"

    def _a_priority(self) -> int:
        return self._chance.choice((0, 0, 0, 0, 1, 2, 3, 4)) if self._can.priority else 0

    def _work(self) -> Steps:
        past: list[Lease] = []
        patience = time.monotonic() + PATIENCE_S
        while not self._part.no_more.exists() or self._can.stats or time.monotonic() < patience:
            floor = self._chance.choice((0, 0, 0, 1, 4)) if self._can.priority else 0
            limit = self._chance.choice((1, 1, 3, 10))
            claim = partial(self._transport.claim_many, self._name, self._part.visibility_s, limit, floor)
            leases: list[Lease] = (yield from self._try(claim)) or []
            if leases:
                patience = time.monotonic() + PATIENCE_S
            yield from self._handle(leases, past)
            if not leases:
                if self._part.no_more.exists() and (yield from self._is_empty()):
                    return
                yield from self._try(partial(self._transport.wait, 0.05))

    def _handle(self, leases: list[Lease], past: list[Lease]) -> Steps:
        """Settle leases in one of many ways; now and then come back to one of long ago, which must change nothing."""
        fortune = self._chance.random()
        hurried = self._part.no_more.exists()
        if fortune < 0.02 and not hurried:
            yield partial(self._pause, 1.3 * self._part.visibility_s)  # they run out
        elif fortune < 0.1 and leases:
            yield from self._try(partial(self._transport.extend_many, leases, self._part.visibility_s))
        if fortune > 0.5:
            yield from self._try(partial(self._transport.ack_many, leases))
        else:
            for lease in leases:
                yield from self._settle(lease, self._chance.choice(("ack",) * 20 + ("nack", "nack", "reject")))
        past += leases
        del past[:-200]
        if past and fortune < 0.05:
            yield from self._settle(self._chance.choice(past), self._chance.choice(("ack", "nack", "reject", "extend")))

    def _settle(self, lease: Lease, method: str) -> Steps:
        more: dict[str, tuple[Any, ...]] = {
            "nack": (self._chance.choice((0.0, 0.0, 0.5)),),
            "reject": ("why",),
            "extend": (self._part.visibility_s,),
        }
        yield from self._try(partial(getattr(self._transport, method), lease, *more.get(method, ())))

    def _operate(self) -> Steps:
        while not self._part.no_more.exists():
            group_id = self._a_group(0)
            if self._can.hold:
                yield from self._try(partial(self._transport.hold, group_id))
                yield partial(self._pause, self._chance.random())
                yield from self._try(partial(self._transport.release, group_id))
            if self._can.purge and self._chance.random() < 0.2:
                yield from self._try(partial(self._transport.purge, group_id))
            if self._can.dead_letters:
                yield from self._redrive()
            yield partial(self._pause, 0.2)
        while (yield from self._release_all()) is not True:
            yield partial(self._pause, 0.2)

    def _redrive(self) -> Steps:
        letters = (yield from self._try(partial(self._transport.dead_letters, limit=20))) or []
        for letter in letters[:3]:
            yield from self._try(partial(self._transport.redrive, letter.seq))

    def _release_all(self) -> Steps:
        """Release what an operator who was killed left held; return whether it is done."""
        if not self._can.hold:
            return True
        while (held := (yield from self._try(partial(self._transport.groups, state="held")))) is not None:
            if not held:
                return True
            for group in held:
                yield from self._try(partial(self._transport.release, group.group_id))
        return False

    def _waiting(self) -> Steps:
        stats = (yield from self._try(self._transport.stats)) if self._can.stats else None
        return stats.messages if stats else 0

    def _is_empty(self) -> Steps:
        stats = (yield from self._try(self._transport.stats)) if self._can.stats else None
        return stats is not None and stats.groups == 0

    def _try(self, call: Callable[[], Any]) -> Steps:
        """Make a call; return ``None`` after a pause if the server cannot be reached."""
        try:
            return (yield call)
        except (TransportUnavailable, PartlyPublished):
            yield partial(self._pause, 0.1)
            return None


class Handler:
    """What harel's own worker is given to do: mostly nothing, sometimes long, sometimes it fails."""

    def __init__(self, part: Part) -> None:
        self._part = part
        self._chance = random.Random(f"{part.seed}/{part.name}")

    def pause_s(self) -> float:
        """Return how long to handle this message, or raise what a handler may."""
        fortune = self._chance.random()
        if self._part.no_more.exists() or fortune > 0.06:
            return 0.0
        if fortune < 0.01:
            raise RetryLater(0.3)
        if fortune < 0.02:
            raise Reject("why")
        if fortune < 0.04:
            raise ValueError("this handler fails")
        return 2.5 * self._part.visibility_s

    def sync(self, event: Event) -> None:
        time.sleep(self.pause_s())

    async def awaiting(self, event: Event) -> None:
        await asyncio.sleep(self.pause_s())

    def options(self) -> dict[str, Any]:
        """Return what else the worker is told."""
        return {
            "worker_id": self._part.name,
            "visibility": self._part.visibility_s,
            "concurrency": 8,
            "drain_timeout": 1.0,
            "retry": RetryPolicy(max_attempts=3, backoff=0.1, max_claims=50),
        }


def _recorded(part: Part, transport: Any, true_clock: Callable[[], float]) -> Recording:
    recorder = Recorder(part.record, f"{part.name}-{os.getpid()}", clock=true_clock)
    return Recording(transport, recorder)


def _main_sync(part: Part, true_clock: Callable[[], float]) -> None:
    with _opened(lambda: connect(part.url)) as transport:
        recording = _recorded(part, transport, true_clock)
        if part.role == "runtime":
            handler = Handler(part)
            Worker(recording, handler.sync, **handler.options()).run()
            return
        with ThreadPoolExecutor(STRANDS) as threads:
            plays = [Member(part, recording, strand).play() for strand in range(STRANDS)]
            list(threads.map(lambda play: run(play, _call), plays))


async def _main_async(part: Part, true_clock: Callable[[], float]) -> None:
    while True:
        try:
            transport = await connect_async(part.url)
            break
        except TransportUnavailable:
            await asyncio.sleep(0.2)
    async with transport:
        recording = _recorded(part, transport, true_clock)
        if part.role == "runtime":
            handler = Handler(part)
            await AsyncWorker(recording, handler.awaiting, **handler.options()).run()
            return
        await asyncio.gather(*(arun(Member(part, recording, strand).play(), _call) for strand in range(STRANDS)))


def _opened(connecting: Callable[[], Any]) -> Any:
    while True:
        try:
            return connecting()
        except TransportUnavailable:
            time.sleep(0.2)


def _call(request: Callable[[], Any]) -> Any:
    return request()


def main(part: Part) -> None:
    """Play the part, by a clock that is as wrong as it says."""
    true_clock = time.time
    if part.clock_ahead_s:
        time.time = lambda: true_clock() + part.clock_ahead_s
    if part.flavour == "sync":
        _main_sync(part, true_clock)
    else:
        asyncio.run(_main_async(part, true_clock))


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=Part))
