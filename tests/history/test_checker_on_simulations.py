"""The history checker over thousands of random histories: it lets a correct queue be, and finds a broken one."""

from __future__ import annotations

import random
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import pytest

from harel import Event, InvalidArgument, Message
from harel.engine.queue.contract import Lease, Packed
from harel.engine.queue.memory.shared import SharedMemoryQueue
from harel.engine.transport import InMemoryTransport
from harel.testing import Blocking, ManualClock, Subject
from harel.testing.conformance.kit import open_queue
from harel.testing.history import Recorder, Recording, Violation, check, read

T = TypeVar("T")

Process: TypeAlias = Generator[float, None, T]
"""Yields for how many seconds it pauses."""

VISIBILITY_S = 5.0
GROUPS = ("g", "h", "i")


def _seconds(chance: random.Random) -> float:
    return chance.choice((0.1, 0.5, 1.0, 3.0, 7.0)) * chance.random()


class Simulation:
    """Processes that publish and work on one in-memory queue, all in one thread and by a clock of its own.

    A process pauses for a random time before each call takes effect and before its answer comes, so that calls
    overlap in every way, and may be killed in either pause.
    """

    def __init__(self, queue: type[SharedMemoryQueue], seed: int, folder: Path) -> None:
        self._chance = random.Random(seed)
        self._clock = ManualClock(tick=0.0)
        self._shared = queue(self._clock)
        self._record = folder / f"{queue.__name__}-{seed}"
        self._recorders: list[Recorder] = []
        self._events = 0

    def run(self) -> list[Violation]:
        roles = (self._publisher, self._publisher, self._worker, self._worker, self._worker)
        due = [(0.0, place, role()) for place, role in enumerate(roles)]
        for _ in range(400):
            due.sort(key=lambda entry: entry[:2])
            at, place, process = due.pop(0)
            self._clock.now = max(self._clock.now, 1_700_000_000.0 + at)
            if self._chance.random() < 0.02:
                process = roles[place]()
            due.append((at + next(process), place, process))
        self._drain()
        for recorder in self._recorders:
            recorder.close()
        return check(read(self._record))

    def _open(self) -> Recording:
        self._recorders.append(Recorder(self._record, f"p{len(self._recorders)}", clock=self._clock))
        return Recording(InMemoryTransport(self._shared), self._recorders[-1])

    def _do(self, transport: Recording, name: str, *args: Any) -> Process[Any]:
        plan = getattr(transport._recorded, name)(*args)
        call = next(plan)
        yield _seconds(self._chance)
        reply = call()
        yield _seconds(self._chance)
        try:
            plan.send(reply)
        except StopIteration as done:
            return done.value
        raise AssertionError("a recorded operation is one call")

    def _publisher(self) -> Process[None]:
        transport = self._open()
        while True:
            batch = [self._message() for _ in range(self._chance.choice((1, 1, 2, 3)))]
            if len(batch) == 1:
                yield from self._do(transport, "publish", *batch[0])
            else:
                yield from self._do(transport, "publish_many", batch)
            yield 4 * _seconds(self._chance)

    def _worker(self) -> Process[None]:
        transport = self._open()
        while True:
            leases = yield from self._do(transport, "claim_many", "w", VISIBILITY_S, 2)
            yield _seconds(self._chance)
            for lease in leases:
                if self._chance.random() < 0.2:
                    yield from self._do(transport, "extend", lease, self._chance.choice((1.0, VISIBILITY_S)))
                settle = self._chance.choice(("ack", "ack", "ack", "nack", "reject"))
                yield from self._do(transport, settle, lease, *(["why"] if settle == "reject" else []))
            if self._chance.random() < 0.02:
                yield from self._do(transport, "purge", self._chance.choice(GROUPS))

    def _message(self) -> Message:
        self._events += 1
        return Message(self._chance.choice(GROUPS), Event("k", id=f"e{self._events}"))

    def _drain(self) -> None:
        transport = self._open()
        self._clock.advance(10 * VISIBILITY_S)
        while lease := transport.claim("drain", VISIBILITY_S):
            self._clock.advance(0.01)
            transport.ack(lease)
        messages = self._shared.stats().messages
        self._recorders[-1].drained({"": messages} if messages else {})


class Unfenced(SharedMemoryQueue):
    """Takes any token for the current one."""

    def _held_by(self, lease: Lease) -> Any:
        group = self._groups.get(lease.group_id)
        return group if group is not None and group.head is not None else None


class Overbooked(SharedMemoryQueue):
    """Grants leases that run out in half the time."""

    def claim(self, worker_id: str, visibility: float, limit: int, min_priority: int, queue: str) -> list[Lease]:
        return super().claim(worker_id, visibility / 2, limit, min_priority, queue)


class Disordered(SharedMemoryQueue):
    """Puts a message that was given back behind the ones that follow it."""

    def nack(self, lease: Lease, delay: float) -> bool:
        group: Any = self._held_by(lease)
        done = super().nack(lease, delay)
        if done and group is not None and group.head is not group.tail:
            first = group.head
            group.head, group.tail.behind, group.tail, first.behind = first.behind, first, first, None
        return done


class Forgetful(SharedMemoryQueue):
    """Loses a message that is given back, if others wait behind it."""

    def nack(self, lease: Lease, delay: float) -> bool:
        group: Any = self._held_by(lease)
        done = super().nack(lease, delay)
        if done and group is not None and group.head is not group.tail:
            group.head = group.head.behind
            self._messages -= 1
        return done


class Stranding(SharedMemoryQueue):
    """Takes a group out of the line for good when it is published to while it is leased."""

    def publish(self, messages: Sequence[Packed]) -> None:
        for message in messages:
            group = self._groups.get(message.group_id)
            if group is not None and group.token is not None:
                group.ticket = 0
        super().publish(messages)


@pytest.mark.parametrize("seed", range(60))
def test_a_correct_queue_is_not_accused(seed: int, tmp_path: Path) -> None:
    assert [str(violation) for violation in Simulation(SharedMemoryQueue, seed, tmp_path).run()] == []


@pytest.mark.parametrize(
    ("promise", "queue"),
    [(1, Overbooked), (2, Disordered), (2, Forgetful), (3, Forgetful), (4, Stranding), (5, Unfenced)],
)
def test_a_broken_queue_is_found_out(promise: int, queue: type[SharedMemoryQueue], tmp_path: Path) -> None:
    found = [{violation.promise for violation in Simulation(queue, seed, tmp_path).run()} for seed in range(20)]
    assert sum(promise in promises for promises in found) >= 5


def test_a_recording_passes_everything_on_and_writes_it_down(subject: Subject, tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "record", clock=subject.clock)
    queue = _recorded(open_queue(subject, "fair", "purge", "stats"), recorder, subject)
    queue.publish("g", Event("k", id="a"))
    queue.publish_many([Message("g", Event("k", id="b")), Message("h", Event("k", id="c"))])
    first = queue.claim("w", 10.0)
    (second,) = queue.claim_many("w", 10.0, 5)
    assert (first.event.id, second.event.id) == ("a", "c")
    assert queue.claim("w", 10.0) is None
    assert queue.extend(first, 20.0) is True
    assert queue.extend_many([second, first], 20.0) == [True, True]
    assert queue.ack_many([first, second, second]) == [True, True, False]
    third = queue.claim("w", 10.0)
    assert (queue.nack(third), queue.reject(third, "why"), queue.purge("g")) == (True, False, 1)
    assert queue.stats().messages == 0
    with pytest.raises(InvalidArgument):
        queue.publish("", Event("k", id="d"))
    recorder.close()
    history = read(tmp_path / "record")
    assert [(operation.kind, operation.event_id, operation.result) for operation in history] == [
        ("publish", "a", 1),
        ("publish", "b", 1),
        ("publish", "c", 1),
        ("claim", "a", 1),
        ("claim", "c", 1),
        ("claim", "", 0),
        ("extend", "a", 1),
        ("extend", "c", 1),
        ("extend", "a", 1),
        ("ack", "a", 1),
        ("ack", "c", 1),
        ("ack", "c", 0),
        ("claim", "b", 1),
        ("nack", "b", 1),
        ("reject", "b", 0),
        ("purge", "", 1),
        ("publish", "d", 0),
    ]
    assert check(history) == []


def _recorded(transport: Any, recorder: Recorder, subject: Subject) -> Any:
    if isinstance(transport, Blocking):
        return Blocking(Recording(transport.inner, recorder), subject.runner)
    return Recording(transport, recorder)
