"""One process of a long run: it publishes, works by hand, runs harel's worker, or does both alone.

Run as a program with a :class:`Duty` in JSON as its argument. What it did it counts in a file, for the parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any, Literal

import msgspec

from harel import (
    AsyncWorker,
    Event,
    Message,
    Reject,
    RetryLater,
    RetryPolicy,
    Transport,
    Worker,
    connect,
    connect_async,
)
from harel.engine.queue.contract import Lease
from harel.errors import HarelError, TransportUnavailable

__all__ = ["Duty", "Publisher", "Taker", "counted"]

OLD_GROUPS = 50
"""Groups that are published to over and over; all other messages have a group of their own, never used again."""

VISIBILITY_S = 5.0


class Duty(msgspec.Struct, frozen=True, kw_only=True):
    """What one process is to do, until the file ``no-more`` is there or a signal comes.

    Attributes
    ----------
    batch : int
        How many messages are published and claimed at once.
    enough : int
        With so many waiting, a publisher waits.
    most : int
        How many messages are published in all.
    """

    name: str
    role: Literal["publish", "take", "work", "work_async", "alone"]
    url: str
    folder: str
    batch: int = 200
    enough: int = 4_000
    most: int = 2**62
    seed: int = 1

    @property
    def no_more(self) -> Path:
        return Path(self.folder) / "no-more"


def counted(folder: Path, what: str) -> int:
    """Add up what the processes of a run counted so far."""
    return sum(int(file.read_text() or "0") for file in folder.glob(f"*.{what}"))


class _Count:
    def __init__(self, duty: Duty, what: str) -> None:
        self._file = Path(duty.folder) / f"{duty.name}-{os.getpid()}.{what}"
        self.total = 0

    def add(self, more: int) -> None:
        self.total += more
        new = self._file.with_suffix(".new")
        new.write_text(str(self.total))
        new.replace(self._file)  # so that a reader never finds it half written


class Publisher:
    """Publishes batches, mostly to new groups, and does what an operator may in between."""

    def __init__(self, duty: Duty, transport: Transport) -> None:
        self._duty = duty
        self._transport = transport
        self._can = transport.capabilities
        self._chance = random.Random(f"{duty.seed}/{duty.name}")
        self._count = _Count(duty, "published")

    @property
    def is_done(self) -> bool:
        return self._count.total >= self._duty.most

    def step(self) -> None:
        """Publish a batch, and operate a little."""
        messages = []
        for number in range(self._duty.batch):
            is_old = self._chance.random() < 0.1
            place = self._chance.randrange(OLD_GROUPS)
            name = f"old {place}" if is_old else f"{self._duty.name}/{self._count.total + number}"
            messages.append(Message(name, Event("k", {"n": number}), self._a_priority()))
        self._transport.publish_many(messages)
        self._count.add(len(messages))
        self._operate(f"old {self._chance.randrange(OLD_GROUPS)}")

    def must_wait(self) -> bool:
        return self._can.stats and self._transport.stats().messages > self._duty.enough

    def _a_priority(self) -> int:
        return self._chance.choice((0, 0, 0, 1, 4)) if self._can.priority else 0

    def _operate(self, group_id: str) -> None:
        if self._can.hold:
            self._transport.hold(group_id)
            self._transport.release(group_id)
        if self._can.purge and self._chance.random() < 0.1:
            self._transport.purge(group_id)
        if self._can.dead_letters:
            for letter in self._transport.dead_letters(limit=self._duty.batch):
                self._transport.redrive(letter.seq)


class Taker:
    """Claims and settles batches: of a hundred messages one is given back, one parked and one rejected."""

    def __init__(self, duty: Duty, transport: Transport) -> None:
        self._duty = duty
        self._transport = transport
        self._chance = random.Random(f"{duty.seed}/{duty.name}")
        self._count = _Count(duty, "settled")

    def step(self) -> bool:
        """Say whether there was something."""
        leases = self._transport.claim_many(self._duty.name, VISIBILITY_S, self._duty.batch)
        rest: list[Lease] = []
        for lease in leases:
            fortune = self._chance.random()
            if fortune < 0.01:
                self._transport.nack(lease)
            elif fortune < 0.02:
                self._transport.nack(lease, 0.5)
            elif fortune < 0.03:
                self._transport.reject(lease, "why")
            else:
                rest.append(lease)
        if rest:
            self._count.add(sum(self._transport.ack_many(rest)))
        return bool(leases)


class Handler:
    """What harel's own worker is given to do."""

    def __init__(self, duty: Duty) -> None:
        self._chance = random.Random(f"{duty.seed}/{duty.name}")
        self._count = _Count(duty, "settled")
        self._since = 0

    def sync(self, event: Event) -> None:
        fortune = self._chance.random()
        if fortune < 0.01:
            raise RetryLater(0.5)
        if fortune < 0.02:
            raise Reject("why")
        if fortune < 0.03:
            raise ValueError("this handler fails")
        self._since += 1
        if self._since == 100:
            self._count.add(100)
            self._since = 0

    async def awaiting(self, event: Event) -> None:
        self.sync(event)

    def options(self, duty: Duty) -> dict[str, Any]:
        retry = RetryPolicy(max_attempts=3, backoff=0.1, max_claims=50)
        return {"worker_id": duty.name, "visibility": VISIBILITY_S, "concurrency": 64, "retry": retry}


def main(duty: Duty) -> None:
    """Do the duty."""
    if duty.role == "work_async":
        asyncio.run(_work_async(duty))
        return
    with connect(duty.url) as transport:
        if duty.role == "work":
            handler = Handler(duty)
            Worker(transport, handler.sync, **handler.options(duty)).run()
            return
        signal.signal(signal.SIGTERM, lambda *_: sys.exit())
        steps = {"publish": _publish, "take": _take, "alone": _alone}
        steps[duty.role](duty, transport)


async def _work_async(duty: Duty) -> None:
    async with await connect_async(duty.url) as transport:
        handler = Handler(duty)
        await AsyncWorker(transport, handler.awaiting, **handler.options(duty)).run()


def _publish(duty: Duty, transport: Transport) -> None:
    publisher = Publisher(duty, transport)
    while not duty.no_more.exists() and not publisher.is_done:
        with contextlib.suppress(TransportUnavailable):
            publisher.step()
        time.sleep(0.0 if transport.capabilities.stats else 0.5)  # who cannot ask goes slowly
        while publisher.must_wait() and not duty.no_more.exists():
            time.sleep(0.02)
    while not duty.no_more.exists():
        time.sleep(0.1)  # its memory is looked at to the end


def _take(duty: Duty, transport: Transport) -> None:
    taker = Taker(duty, transport)
    while not duty.no_more.exists():
        try:
            if not taker.step():
                transport.wait(0.1)
        except TransportUnavailable:
            time.sleep(0.1)


def _alone(duty: Duty, transport: Transport) -> None:
    publisher, taker = Publisher(duty, transport), Taker(duty, transport)
    while not duty.no_more.exists():
        if not publisher.is_done:
            publisher.step()
        if not taker.step() and publisher.is_done:
            time.sleep(0.02)


if __name__ == "__main__":
    try:
        main(msgspec.json.decode(sys.argv[1], type=Duty))
    except HarelError as error:
        sys.exit(f"{type(error).__name__}: {error}")
