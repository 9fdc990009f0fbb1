"""Runs a few operations step by step in every order, or stops one after any step, and checks the promises.

An operation is a generator of requests, and a backend carries out one request at a time, so the orders in
which requests may reach it are all that concurrency can do to a queue. Each order is tried on a fresh queue.
What else may become of a request, such as a reply that is lost, is tried with each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from harel.engine.queue.checked import Checked
from harel.engine.queue.contract import HIGHEST_PRIORITY, GroupInfo, Lease, Operations
from harel.engine.queue.op import Op, run
from harel.errors import PartlyPublished, TransportUnavailable
from harel.events import Event, decode_event
from harel.testing.history import Notebook, Operation, RecordedCalls, check
from harel.testing.subject import ManualClock

__all__ = ["Actor", "Crashed", "Exploration", "Scene", "World", "explore"]


class Crashed(Exception):
    """Raised by a ``send`` that carried a request out only in part: its client dies here."""


class Actor:
    """An operation that is run one request at a time.

    Parameters
    ----------
    name : str
    op : Op
    send : callable
        Carries out a request.
    mishaps : mapping of str to callable
        What else may become of a request, by what is said of it: each is a ``send`` that goes wrong.
    """

    def __init__(
        self,
        name: str,
        op: Op[Any],
        send: Callable[[Any], Any],
        mishaps: Mapping[str, Callable[[Any], Any]] | None = None,
    ) -> None:
        self.name = name
        self.begun = self.ended = self.crashed = False
        self.mishaps: Mapping[str, Callable[[Any], Any]] = mishaps or {}
        self.met = 0
        """How many of its requests met a mishap."""
        self.error: Exception | None = None
        """What it raised, if that was no answer."""
        self._op = op
        self._send = send
        self._request: Any = None

    def step(self, mishap: str | None = None) -> None:
        """Carry out the next request, or have it meet a mishap, and go on to the one after it or to the end."""
        self.met += mishap is not None
        send = self._send if mishap is None else self.mishaps[mishap]
        try:
            if not self.begun:
                self.begun = True
                self._request = next(self._op)
            try:
                reply = send(self._request)
            except Crashed:
                self.crash()
            except Exception as error:  # noqa: BLE001 - whatever a driver raises goes into the operation
                self._request = self._op.throw(error)
            else:
                self._request = self._op.send(reply)
        except StopIteration:
            self.ended = True
        except (TransportUnavailable, PartlyPublished):
            self.ended = True  # without an answer: its caller does not know how much of it happened
        except Exception as error:  # noqa: BLE001 - it is found out about, with the schedule
            self.ended = True
            self.error = error

    def crash(self) -> None:
        """Die: not another request."""
        self._op.close()
        self.crashed = self.ended = True


class World(Protocol):
    """A fresh queue, the operations that meet on it, and what may be asked of it afterwards."""

    @property
    def actors(self) -> list[Actor]:
        """Who takes part; the same in every world of an exploration."""
        ...

    def faults(self) -> list[str]:
        """Say which promises do not hold."""
        ...


@dataclass(frozen=True, slots=True)
class _Move:
    actor: int
    crashes: bool = False
    mishap: str | None = None

    def told(self, actors: list[Actor]) -> str:
        how = "dies" if self.crashes else self.mishap or "steps"
        return f"{actors[self.actor].name} {how}"


@dataclass
class Exploration:
    """What was tried and what was found."""

    schedules: int = 0
    failures: list[str] = field(default_factory=list)
    """For each schedule after which a promise did not hold, the schedule and what is wrong."""

    def __str__(self) -> str:
        return "\n".join([f"{self.schedules} schedules, {len(self.failures)} of them break a promise", *self.failures])


def explore(make: Callable[[], World], *, crashes: int = 1, mishaps: int = 0) -> Exploration:
    """Try every order of the actors' requests, and every way in which so many of them may die or go wrong.

    Parameters
    ----------
    make : callable
        Makes a fresh world, the same each time.
    crashes : int
        How many actors may die in one schedule. One dies between two requests: before the first it would
        not have been there, and after the last only its answer is lost.
    mishaps : int
        How many requests in one schedule may each meet one of their actor's mishaps.

    Returns
    -------
    Exploration
    """
    exploration = Exploration()
    pending: list[list[_Move]] = [[]]
    while pending:
        moves = pending.pop()
        world = make()
        for move in moves:
            _make(move, world.actors)
        while options := list(_options(world.actors, crashes, mishaps)):
            pending += [[*moves, other] for other in options[1:]]
            moves = [*moves, options[0]]
            _make(options[0], world.actors)
        exploration.schedules += 1
        faults = [f"{actor.name} raised {actor.error!r}" for actor in world.actors if actor.error]
        faults += world.faults()
        if faults:
            told = ", ".join(move.told(world.actors) for move in moves)
            exploration.failures.append("\n  ".join([f"{told}:", *faults]))
    return exploration


def _make(move: _Move, actors: list[Actor]) -> None:
    actor = actors[move.actor]
    if move.crashes:
        actor.crash()
    else:
        actor.step(move.mishap)


def _options(actors: list[Actor], crashes: int, mishaps: int) -> Iterator[_Move]:
    running = [(place, actor) for place, actor in enumerate(actors) if not actor.ended]
    for place, _ in running:
        yield _Move(place)
    if sum(actor.crashed for actor in actors) < crashes:
        for place, actor in running:
            if actor.begun:
                yield _Move(place, crashes=True)
    if sum(actor.met for actor in actors) < mishaps:
        for place, actor in running:
            for mishap in actor.mishaps:
                yield _Move(place, mishap=mishap)


class Scene:
    """A world on one backend: operations that came before, those that meet, and the promises.

    Parameters
    ----------
    ops : Operations
        The backend's own, on an empty queue. It needs ``groups`` and ``peek``.
    send : callable
        Carries out one of its requests.
    clock : ManualClock
        What the backend goes by.
    """

    def __init__(self, ops: Operations, send: Callable[[Any], Any], clock: ManualClock) -> None:
        self.actors: list[Actor] = []
        self.mishaps: Mapping[str, Callable[[Any], Any]] = {}
        """What may become of the requests of those that meet."""
        self.clock = clock
        self._send = send
        self._can = ops.capabilities
        self._calls = Checked(ops)
        self._notebooks: list[Notebook] = []
        self._groups: set[str] = set()
        self._leases: list[Lease] = []
        self._redriven: list[int] = []
        self._redrives_that_may_have_happened = 0

    def do(self, method: str, *args: Any) -> Any:
        """Carry out an operation whole, before the others; the arguments are the method's, all of them."""
        return run(self._op(f"before {len(self._notebooks)}", method, args), self._send)

    def meet(self, method: str, *args: Any, send: Callable[[Any], Any] | None = None) -> None:
        """Add an operation to those that meet, with a ``send`` of its own if it needs one."""
        name = f"{method} {len(self.actors) + 1}"
        self.actors.append(Actor(name, self._op(name, method, args), send or self._send, self.mishaps))

    def meet_worker(self, visibility: float) -> None:
        """Add a worker to those that meet: it claims once and acks what it got."""
        name = f"worker {len(self.actors) + 1}"
        self.actors.append(Actor(name, self._work(name, visibility), self._send, self.mishaps))

    def meet_time(self, seconds: float) -> None:
        """Let so much time go by at once, before, between or after the requests of those that meet."""
        self.actors.append(Actor("time", _one(seconds), self.clock.advance))

    def _work(self, name: str, visibility: float) -> Op[None]:
        lease = yield from self._op(f"{name} claims", "claim", ("w", visibility, 0))
        if lease is not None:
            yield from self._op(f"{name} acks", "ack", (lease,))

    def _op(self, name: str, method: str, args: tuple[Any, ...], calls: Checked | None = None) -> Op[Any]:
        calls = calls or self._calls
        notebook = Notebook(name, self.clock)
        self._notebooks.append(notebook)
        if method.startswith("publish"):
            self._groups.update([args[0]] if method == "publish" else [message[0] for message in args[0]])
        recorded = getattr(RecordedCalls(calls, notebook), method, None)
        # Counted when it begins: one that dies on the way may have come to its decisive step.
        self._redrives_that_may_have_happened += method == "redrive"
        reply = yield from _played(recorded(*args)) if recorded else getattr(calls, method)(*args)
        if method.startswith("claim"):
            self._leases += reply if isinstance(reply, list) else [reply] * (reply is not None)
        elif method == "redrive" and reply:
            self._redriven.append(args[0])
        elif method == "redrive":
            self._redrives_that_may_have_happened -= 1
        return reply

    def faults(self) -> list[str]:
        """Check the promises.

        What is ready can be claimed and nothing else; old tokens change nothing; and once everything has
        run out all drains, in order and without a trace.
        """
        found = [*self._drained_begins_anew(), *self._claimable_is_claimed(), *self._old_tokens_change_nothing()]
        found += self._drains()
        history = [operation for notebook in self._notebooks for operation in notebook.operations]
        found += [str(violation) for violation in check(history)]
        return found + list(self._miscounted(history))

    def _ask(self, method: str, *args: Any) -> Any:
        return run(getattr(self._calls, method)(*args), self._send)

    def _infos(self) -> dict[str, GroupInfo]:
        """Return the groups that there are, by their ids."""
        return {info.group_id: info for info in self._ask("groups", None, 1_000, None)}

    def _waiting(self, group_id: str) -> list[tuple[int, str]]:
        """Return a group's messages: their seqs and texts."""
        return [(message.seq, message.raw) for message in self._ask("peek", group_id, 1_000)]

    def _dead_letters(self) -> dict[int, str]:
        """Return the ids of the dead letters' events, by the letters' seqs."""
        if not self._can.dead_letters:
            return {}
        return {letter.seq: letter.event.id for letter in self._ask("dead_letters", None, 1_000, None)}

    def _claim_all(self, visibility: float) -> list[Lease]:
        leases: list[Lease] = []
        while len(leases) < 1_000 and (lease := self.do("claim", "checker", visibility, 0)):
            leases.append(lease)
        return leases

    def _drained_begins_anew(self) -> Iterator[str]:
        """Publish to the groups that drained, if every operation was answered: that is a first publish."""
        done = [operation for notebook in self._notebooks for operation in notebook.operations]
        unanswered = any(one.may_have_happened and not one.happened for one in done)
        if not self._can.priority or unanswered or any(actor.crashed or actor.error for actor in self.actors):
            return
        for group_id in sorted(self._groups):
            before = self._infos().get(group_id)
            if self._waiting(group_id) or (before is not None and before.state == "held"):
                continue
            self.do("publish", group_id, Event("anew", {}), HIGHEST_PRIORITY)
            info = self._infos()[group_id]
            if info.priority != HIGHEST_PRIORITY:
                yield f"Promise 8: {group_id!r} had drained, and after a publish of another priority it is {info}."

    def _claimable_is_claimed(self) -> Iterator[str]:
        ready = {info.group_id for info in self._infos().values() if info.state == "ready" and info.messages}
        claimed = [lease.group_id for lease in self._claim_all(30.0)]
        if set(claimed) != ready or len(set(claimed)) < len(claimed):
            yield f"Promise 4: the groups {sorted(ready)} were ready, and claims found {sorted(claimed)}."

    def _old_tokens_change_nothing(self) -> Iterator[str]:
        current = {lease.group_id: lease for lease in self._leases}
        before = self._state()
        for lease in self._leases:
            newer = current[lease.group_id]
            if newer is not lease and newer.token.startswith("checker:"):
                tries = (("ack",), ("nack", 0.0), ("extend", 5.0), ("reject", "why"))
                for method, *args in tries:
                    if self._ask(method, lease, *args):
                        yield f"Promise 5: {method} succeeded with {lease}, though {newer} had replaced it."
        if self._state() != before:
            yield f"Promise 5: what old tokens were used for changed {before} to {self._state()}."

    def _state(self) -> object:
        return self._infos(), {name: self._waiting(name) for name in sorted(self._groups)}

    def _drains(self) -> Iterator[str]:
        self.clock.advance(100_000.0)
        if self._can.hold:
            for info in self._infos().values():
                if info.state == "held":
                    self._ask("release", info.group_id)
        for _ in range(1_000):
            lease = self.do("claim", "checker", 30.0, 0)
            if lease is None:
                break
            if not self.do("ack", lease):
                yield f"Promise 6: {lease} was lost while nobody else was there."
        self._note_what_is_left()
        remaining = sorted(self._infos())
        if remaining:
            yield f"Promise 10: the groups {remaining} are drained and still there."

    def _note_what_is_left(self) -> None:
        """Note the messages that no claim finds, but for what a publish that never returned left behind."""
        returned = {
            operation.event_id
            for notebook in self._notebooks
            for operation in notebook.operations
            if operation.kind == "publish" and operation.happened
        }
        left = {
            name: sum(decode_event(raw).id in returned for _, raw in self._waiting(name))
            for name in sorted(self._groups)
        }
        notebook = Notebook("the end", self.clock)
        notebook.drained({name: messages for name, messages in left.items() if messages})
        self._notebooks.append(notebook)

    def _miscounted(self, history: Iterable[Operation]) -> Iterator[str]:
        """Look for dead letters that are gone, and for messages of which there came to be two."""
        letters = self._dead_letters()
        for seq in set(self._redriven):
            if self._redriven.count(seq) > 1 or seq in letters:
                yield f"Promise 3: dead letter {seq} was redriven, and is or was still there."
        done = [
            operation for operation in history if operation.kind in ("ack", "reject") and operation.may_have_happened
        ]
        kept = {operation.event_id for operation in done if operation.kind == "ack"} | set(letters.values())
        purged = any(operation.kind == "purge" and operation.may_have_happened for operation in history)
        for event_id in {operation.event_id for operation in done}:
            seqs = {operation.seq for operation in done if operation.event_id == event_id}
            if len(seqs) > 1 + self._redrives_that_may_have_happened:
                yield f"Promise 3: {event_id} was settled as {sorted(map(str, seqs))}, more messages than there were."
            if event_id not in kept and not purged:
                yield f"Promise 3: event {event_id} was rejected, and is neither a dead letter nor delivered again."


def _one(request: object) -> Op[None]:
    """Make one request."""
    yield request


def _played(recorded: Generator[Callable[[], Op[Any]], Any, Any]) -> Op[Any]:
    """Run the operation that a recorded call asks for, with its own requests."""
    call = next(recorded)
    reply = yield from call()
    try:
        recorded.send(reply)
    except StopIteration as done:
        return done.value
    raise AssertionError("a recorded call asks once")
