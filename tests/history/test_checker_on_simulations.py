"""The history checker over thousands of random histories: it lets a correct queue be, and finds a broken one."""

from __future__ import annotations

import copy
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
from harel.testing.history import Notebook, Operation, Recorder, Recording, Violation, check, read

T = TypeVar("T")

Process: TypeAlias = Generator[float, None, T]
"""Yields for how many seconds it pauses."""

VISIBILITY_S = 5.0
SOFT = ("claim", "claim_many", "nack", "extend")
STATE = ("_groups", "_lines", "_dead", "_last_seq", "_arrivals", "_messages")
"""All that a queue knows."""
GROUPS = ("g", "h", "i", "j")


def _seconds(chance: random.Random) -> float:
    return chance.choice((0.1, 0.5, 1.0, 3.0, 7.0)) * chance.random()


class Simulation:
    """Processes that publish to, work on and operate one in-memory queue, all in one thread and by a clock of its own.

    A process pauses for a random time before each call takes effect and before its answer comes, so that calls
    overlap in every way. It may be killed in either pause, and then its call may still take effect, much later.

    Parameters
    ----------
    queue : type of SharedMemoryQueue
    seed : int
    dying : float
        How likely a process is to be killed at each of its steps.
    crashes : bool
        Whether the server crashes now and then and forgets the last claims, nacks and extends, as PostgreSQL may.
    fresh_first : bool
    """

    def __init__(
        self,
        queue: type[SharedMemoryQueue],
        seed: int,
        *,
        dying: float = 0.02,
        crashes: bool = False,
        fresh_first: bool = True,
    ) -> None:
        self._chance = random.Random(f"{seed}")
        self._clock = ManualClock(tick=0.0)
        self._fresh_first = fresh_first
        self._shared = queue(self._clock, fresh_first)
        self._notebooks: list[Notebook] = []
        self._events = 0
        self._dying = dying
        self._crashes = crashes
        self._not_on_disk: list[dict[str, Any]] = []
        """What the queue was before each of the last claims, nacks and extends."""
        self._restarts: list[tuple[float, float]] = []
        self._orphans: list[tuple[str, Any]] = []

    def history(self, steps: int = 400) -> list[Operation]:
        """Play it, and return what was recorded."""
        roles = (self._publisher, self._publisher, self._worker, self._worker, self._worker, self._operator)
        due = [(0.0, place, role()) for place, role in enumerate(roles)]
        for _ in range(steps):
            due.sort(key=lambda entry: entry[:2])
            at, place, process = due.pop(0)
            self._clock.now = max(self._clock.now, 1_700_000_000.0 + at)
            if self._chance.random() < self._dying:
                process = roles[place]()
            due.append((at + next(process), place, process))
            if self._crashes and self._chance.random() < 0.01:
                self._crash()
        self._drain()
        return [operation for notebook in self._notebooks for operation in notebook.operations]

    def violations(self) -> list[Violation]:
        """Play it, and check it as closely as a queue without clocks of its own can be."""
        history = self.history()
        return check(
            history,
            fair=True,
            late_settle=True,
            fresh_first=self._fresh_first,
            overlook_s=0.0,
            restarts=self._restarts,
        )

    def _open(self) -> Recording:
        self._notebooks.append(Notebook(f"p{len(self._notebooks)}", clock=self._clock))
        return Recording(InMemoryTransport(self._shared), self._notebooks[-1])

    def _do(self, transport: Recording, name: str, *args: Any) -> Process[Any]:
        plan = getattr(transport._recorded, name)(*args)
        call = next(plan)
        try:
            yield _seconds(self._chance)
        except GeneratorExit:
            # What a process that was killed had sent may be carried out when it is long gone.
            if self._chance.random() < 0.5:
                self._orphans.append((name, call))
            raise
        for late in [orphan for orphan in self._orphans if self._chance.random() < 0.3]:
            self._orphans.remove(late)
            self._carry_out(*late)
        reply = self._carry_out(name, call)
        yield _seconds(self._chance)
        try:
            plan.send(reply)
        except StopIteration as done:
            return done.value
        raise AssertionError("a recorded operation is one call")

    def _carry_out(self, name: str, call: Any) -> Any:
        if self._crashes and name in SOFT:
            self._not_on_disk.append(copy.deepcopy({name: getattr(self._shared, name) for name in STATE}))
            return call()
        self._not_on_disk.clear()
        return call()

    def _crash(self) -> None:
        """Lose the last claims, nacks and extends, any number of them, but none that anything else came after."""
        began = self._clock.now
        self._clock.advance(0.5)
        self._restarts.append((began, self._clock.now))
        if self._not_on_disk:
            for name, value in self._chance.choice(self._not_on_disk).items():
                setattr(self._shared, name, value)
            self._not_on_disk.clear()
        getattr(self._shared, "crashed", lambda: None)()

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
        past: list[Lease] = []
        while True:
            floor = self._chance.choice((0, 0, 1, 3))
            if self._chance.random() < 0.5:
                leases = yield from self._do(transport, "claim_many", "w", VISIBILITY_S, 2, floor)
            else:
                lease = yield from self._do(transport, "claim", "w", VISIBILITY_S, floor)
                leases = [lease] * (lease is not None)
            yield _seconds(self._chance)
            past += leases
            for lease in leases:
                if self._chance.random() < 0.2:
                    yield from self._do(transport, "extend", lease, self._chance.choice((1.0, VISIBILITY_S)))
                if self._chance.random() < 0.1:
                    yield 2 * VISIBILITY_S
                yield from self._settle(transport, lease)
            if past and self._chance.random() < 0.2:
                yield from self._settle(transport, self._chance.choice(past))

    def _settle(self, transport: Recording, lease: Lease) -> Process[None]:
        settle = self._chance.choice(("ack", "ack", "ack", "nack", "reject"))
        more: dict[str, list[Any]] = {"reject": ["why"], "nack": [self._chance.choice((0.0, 4.0))]}
        yield from self._do(transport, settle, lease, *more.get(settle, []))

    def _operator(self) -> Process[None]:
        transport = self._open()
        while True:
            group = self._chance.choice(GROUPS)
            what = self._chance.choice(("hold", "purge", "redrive", "pause", "pause"))
            if what == "hold":
                yield from self._do(transport, "hold", group)
                yield 3 * _seconds(self._chance)
                yield from self._do(transport, "release", group)
            elif what == "purge":
                yield from self._do(transport, "purge", group)
            elif what == "redrive":
                for letter in transport.dead_letters()[:2]:
                    yield from self._do(transport, "redrive", letter.seq)
            yield 5 * _seconds(self._chance)

    def _message(self) -> Message:
        self._events += 1
        group = self._chance.choice((*GROUPS, *GROUPS, f"new{self._events // 3}"))
        return Message(group, Event("k", id=f"e{self._events}"), self._chance.choice((0, 0, 1, 2, 3, 4)))

    def _drain(self) -> None:
        transport = self._open()
        self._orphans.clear()
        self._clock.advance(10 * VISIBILITY_S)
        for group in transport.groups(state="held", limit=1_000):
            transport.release(group.group_id)
        while lease := transport.claim("drain", VISIBILITY_S):
            self._clock.advance(0.01)
            transport.ack(lease)
        messages = self._shared.stats().messages
        self._notebooks[-1].drained({"": messages} if messages else {})


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


class Resurrecting(SharedMemoryQueue):
    """Keeps now and then what was acked."""

    def _settle_head(self, group: Any, now: float) -> None:
        if group.head.seq % 3 == 0 and group.attempts == 1:
            self._free(group, now, 0.0)
        else:
            super()._settle_head(group, now)


class Amnesic(SharedMemoryQueue):
    """Loses messages in a crash."""

    def crashed(self) -> None:
        for group in self._groups.values():
            if group.head is not None and group.head is not group.tail:
                self._messages -= 1
                group.head = group.head.behind


class Generous(SharedMemoryQueue):
    """Redrives a dead letter as often as it is asked to."""

    def redrive(self, seq: int) -> bool:
        letter = self._dead.get(seq)
        done = super().redrive(seq)
        if letter is not None:
            self._dead[seq] = letter
        return done


class Dozing(SharedMemoryQueue):
    """Finds nothing now and then."""

    naps = 0

    def claim(self, worker_id: str, visibility: float, limit: int, min_priority: int, queue: str) -> list[Lease]:
        self.naps += 1
        return [] if self.naps % 4 == 0 else super().claim(worker_id, visibility, limit, min_priority, queue)


class Stingy(SharedMemoryQueue):
    """Gives one lease only, however many are asked for."""

    def claim(self, worker_id: str, visibility: float, limit: int, min_priority: int, queue: str) -> list[Lease]:
        return super().claim(worker_id, visibility, 1, min_priority, queue)


class Unhealing(SharedMemoryQueue):
    """Never takes a lease for over that was not settled."""

    def _lease(self, group: Any, worker_id: str, now: float, visibility: float, queue: str) -> Lease:
        lease = super()._lease(group, worker_id, now, visibility, queue)
        self._line(group).place(group, now + 1e6)
        return lease


class Strict(SharedMemoryQueue):
    """Takes a lease that ran out for lost, though nobody took it over."""

    def _held_by(self, lease: Lease) -> Any:
        group = super()._held_by(lease)
        return group if group is not None and group.number > self._clock() else None


class Greedy(SharedMemoryQueue):
    """Puts a group that is through with a message before the others."""

    def _free(self, group: Any, now: float, delay: float) -> None:
        super()._free(group, now, delay - 100.0)


class Starving(SharedMemoryQueue):
    """Takes one group only if there is no other."""

    def _first(self, min_priority: int) -> Any:
        group = super()._first(min_priority)
        if group is not None and group.group_id == "g":
            number = group.number
            self._line(group).place(group, number + 1e6)
            other = super()._first(min_priority)
            self._line(group).place(group, number)
            return other if other is not None and other.number <= self._clock() else group
        return group


class Floorless(SharedMemoryQueue):
    """Does not look at the floor of a claim."""

    def claim(self, worker_id: str, visibility: float, limit: int, min_priority: int, queue: str) -> list[Lease]:
        return super().claim(worker_id, visibility, limit, 0, queue)


class Lofty(SharedMemoryQueue):
    """Looks only above the floor of a claim."""

    def _first(self, min_priority: int) -> Any:
        return super()._first(min_priority + (0 < min_priority < 4))


class Unforgetting(SharedMemoryQueue):
    """Keeps the priority of a group that is gone."""

    def __init__(self, clock: Any, fresh_first: bool = True) -> None:
        super().__init__(clock, fresh_first)
        self._first_ever: dict[str, int] = {}

    def _append(self, group_id: str, raw: str, priority: int, now: float) -> None:
        super()._append(group_id, raw, self._first_ever.setdefault(group_id, priority), now)


class Fickle(SharedMemoryQueue):
    """Gives a group the priority of its newest message."""

    def _append(self, group_id: str, raw: str, priority: int, now: float) -> None:
        group = self._groups.get(group_id)
        if group is not None:
            number = group.number
            self._line(group).size -= 1
            group.priority = priority
            self._line(group).size += 1
            self._line(group).place(group, number)
        super()._append(group_id, raw, priority, now)


CORRECT: dict[str, dict[str, Any]] = {
    "": {},
    "nobody dies": {"dying": 0.0},
    "many die": {"dying": 0.1},
    "new groups last": {"fresh_first": False},
}


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("how", CORRECT)
def test_a_correct_queue_is_not_accused(how: str, seed: int) -> None:
    simulation = Simulation(SharedMemoryQueue, seed, **CORRECT[how])
    assert [str(violation) for violation in simulation.violations()] == []


@pytest.mark.parametrize("seed", range(12))
def test_a_server_that_forgets_what_is_soft_is_not_accused(seed: int) -> None:
    simulation = Simulation(SharedMemoryQueue, seed, crashes=True)
    assert [str(violation) for violation in simulation.violations()] == []


def test_a_server_that_forgets_is_accused_if_it_was_not_restarted() -> None:
    found = []
    for seed in range(12):
        simulation = Simulation(SharedMemoryQueue, seed, crashes=True)
        found += [violation.promise for violation in check(simulation.history())]
    assert 1 in found


@pytest.mark.parametrize(
    ("promise", "queue"),
    [
        (1, Overbooked),
        (2, Disordered),
        (2, Forgetful),
        (3, Forgetful),
        (3, Resurrecting),
        (3, Generous),
        (4, Stranding),
        (4, Dozing),
        (4, Stingy),
        (5, Unfenced),
        (6, Dozing),
        (6, Unhealing),
        (6, Strict),
        (7, Greedy),
        (7, Starving),
        (8, Floorless),
        (8, Lofty),
        (8, Unforgetting),
        (8, Fickle),
    ],
)
def test_a_broken_queue_is_found_out(promise: int, queue: type[SharedMemoryQueue]) -> None:
    found = [{violation.promise for violation in Simulation(queue, seed).violations()} for seed in range(20)]
    assert sum(promise in promises for promises in found) >= 5


def test_a_server_that_loses_messages_is_found_out() -> None:
    found = [
        {violation.promise for violation in Simulation(Amnesic, seed, crashes=True).violations()} for seed in range(10)
    ]
    assert sum(3 in promises for promises in found) >= 5


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


def test_what_an_operation_was_asked_for_is_written_down() -> None:
    clock = ManualClock()
    notebook = Notebook("p", clock)
    queue = Recording(InMemoryTransport(SharedMemoryQueue(clock)), notebook)
    queue.publish("g", Event("k", id="a"), 3)
    queue.publish_many([Message("h", Event("k", id="b"), 2)])
    assert (queue.hold("g"), queue.release("g"), queue.hold("nowhere")) == (True, True, False)
    first, second = queue.claim_many("w", 5.0, 4, 1)
    assert queue.claim("w", 5.0, 2) is None
    assert (queue.nack(first, 7.0), queue.reject(second, "why")) == (True, True)
    assert (queue.redrive(second.seq), queue.redrive(second.seq)) == (True, False)
    with pytest.raises(InvalidArgument):
        queue.nack(first, -1.0)
    told = {operation.number: operation for operation in notebook.operations}
    assert [told[number].priority for number in (1, 2)] == [3, 2]
    holds = [(told[number].kind, told[number].group_id, told[number].result) for number in (3, 4, 5)]
    assert holds == [("hold", "g", 1), ("release", "g", 1), ("hold", "nowhere", 0)]
    claims = [(told[number].limit, told[number].min_priority, told[number].batch) for number in (6, 7, 8)]
    assert claims == [(4, 1, 6), (4, 1, 6), (1, 2, None)]
    assert (told[9].delay, told[13].delay, told[9].refused, told[13].refused) == (7.0, -1.0, False, True)
    assert [(told[number].seq, told[number].result) for number in (11, 12)] == [(second.seq, 1), (second.seq, 0)]
    assert check(notebook.operations, fair=True, late_settle=True, overlook_s=0.0) == []
