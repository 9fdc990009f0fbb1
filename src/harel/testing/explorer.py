"""Runs a few operations step by step in every order, or stops one after any step, and checks the promises.

An operation is a generator of requests, and a backend carries out one request at a time, so the orders in
which requests may reach it are all that concurrency can do to a queue. Each order is tried on a fresh queue.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from harel.engine.queue.checked import Checked
from harel.engine.queue.contract import GroupInfo, Lease, Operations
from harel.engine.queue.op import Op, run
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
    """

    def __init__(self, name: str, op: Op[Any], send: Callable[[Any], Any]) -> None:
        self.name = name
        self.begun = self.ended = self.crashed = False
        self._op = op
        self._send = send
        self._request: Any = None

    def step(self) -> None:
        """Carry out the next request, and go on to the one after it or to the end."""
        try:
            if not self.begun:
                self.begun = True
                self._request = next(self._op)
            try:
                reply = self._send(self._request)
            except Crashed:
                self.crash()
            except Exception as error:  # noqa: BLE001 - whatever a driver raises goes into the operation
                self._request = self._op.throw(error)
            else:
                self._request = self._op.send(reply)
        except StopIteration:
            self.ended = True

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


@dataclass
class Exploration:
    """What was tried and what was found."""

    schedules: int = 0
    failures: list[str] = field(default_factory=list)
    """For each schedule after which a promise did not hold, the schedule and what is wrong."""

    def __str__(self) -> str:
        return "\n".join([f"{self.schedules} schedules, {len(self.failures)} of them break a promise", *self.failures])


def explore(make: Callable[[], World], *, crashes: int = 1) -> Exploration:
    """Try every order of the actors' requests, and every way in which so many of them may die on the way.

    Parameters
    ----------
    make : callable
        Makes a fresh world, the same each time.
    crashes : int
        How many actors may die in one schedule. One dies between two requests: before the first it would
        not have been there, and after the last only its answer is lost.

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
        while options := list(_options(world.actors, crashes)):
            pending += [[*moves, other] for other in options[1:]]
            moves = [*moves, options[0]]
            _make(options[0], world.actors)
        exploration.schedules += 1
        faults = world.faults()
        if faults:
            told = ", ".join(f"{world.actors[move.actor].name} {'dies' if move.crashes else 'steps'}" for move in moves)
            exploration.failures.append("\n  ".join([f"{told}:", *faults]))
    return exploration


def _make(move: _Move, actors: list[Actor]) -> None:
    actor = actors[move.actor]
    if move.crashes:
        actor.crash()
    else:
        actor.step()


def _options(actors: list[Actor], crashes: int) -> Iterator[_Move]:
    running = [(place, actor) for place, actor in enumerate(actors) if not actor.ended]
    for place, _ in running:
        yield _Move(place)
    if sum(actor.crashed for actor in actors) < crashes:
        for place, actor in running:
            if actor.begun:
                yield _Move(place, crashes=True)


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
        self.clock = clock
        self._send = send
        self._can = ops.capabilities
        self._calls = Checked(ops)
        self._notebooks: list[Notebook] = []
        self._groups: set[str] = set()
        self._leases: list[Lease] = []
        self._redriven: list[int] = []

    def do(self, method: str, *args: Any) -> Any:
        """Carry out an operation whole, before the others; the arguments are the method's, all of them."""
        return run(self._op(f"before {len(self._notebooks)}", method, args), self._send)

    def meet(self, method: str, *args: Any, send: Callable[[Any], Any] | None = None) -> None:
        """Add an operation to those that meet, with a ``send`` of its own if it needs one."""
        name = f"{method} {len(self.actors) + 1}"
        self.actors.append(Actor(name, self._op(name, method, args), send or self._send))

    def meet_worker(self, visibility: float) -> None:
        """Add a worker to those that meet: it claims once and acks what it got."""
        name = f"worker {len(self.actors) + 1}"
        self.actors.append(Actor(name, self._work(name, visibility), self._send))

    def _work(self, name: str, visibility: float) -> Op[None]:
        lease = yield from self._op(f"{name} claims", "claim", ("w", visibility, 0))
        if lease is not None:
            yield from self._op(f"{name} acks", "ack", (lease,))

    def _op(self, name: str, method: str, args: tuple[Any, ...]) -> Op[Any]:
        notebook = Notebook(name, self.clock)
        self._notebooks.append(notebook)
        if method.startswith("publish"):
            self._groups.update([args[0]] if method == "publish" else [message[0] for message in args[0]])
        recorded = getattr(RecordedCalls(self._calls, notebook), method, None)
        reply = yield from _played(recorded(*args)) if recorded else getattr(self._calls, method)(*args)
        if method.startswith("claim"):
            self._leases += reply if isinstance(reply, list) else [reply] * (reply is not None)
        elif method == "redrive" and reply:
            self._redriven.append(args[0])
        return reply

    def faults(self) -> list[str]:
        """Check the promises.

        What is ready can be claimed and nothing else; old tokens change nothing; and once everything has
        run out all drains, in order and without a trace.
        """
        found = [*self._claimable_is_claimed(), *self._old_tokens_change_nothing(), *self._drains()]
        history = [operation for notebook in self._notebooks for operation in notebook.operations]
        found += [str(violation) for violation in check(history)]
        return found + list(self._miscounted(history))

    def _ask(self, method: str, *args: Any) -> Any:
        return run(getattr(self._calls, method)(*args), self._send)

    def _infos(self) -> dict[str, GroupInfo]:
        return {info.group_id: info for info in self._ask("groups", None, 1_000, None)}

    def _claim_all(self, visibility: float) -> list[Lease]:
        leases: list[Lease] = []
        while len(leases) < 1_000 and (lease := self.do("claim", "checker", visibility, 0)):
            leases.append(lease)
        return leases

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
        names = sorted(self._groups)
        waiting = {name: [(message.seq, message.raw) for message in self._ask("peek", name, 1_000)] for name in names}
        return self._infos(), waiting

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
            name: sum(message.event.id in returned for message in self._ask("peek", name, 1_000))
            for name in sorted(self._groups)
        }
        notebook = Notebook("the end", self.clock)
        notebook.drained({name: messages for name, messages in left.items() if messages})
        self._notebooks.append(notebook)

    def _miscounted(self, history: Iterable[Operation]) -> Iterator[str]:
        """Look for dead letters that are gone, and for messages of which there came to be two."""
        letters = self._ask("dead_letters", None, 1_000, None) if self._can.dead_letters else []
        for seq in set(self._redriven):
            if self._redriven.count(seq) > 1 or seq in {letter.seq for letter in letters}:
                yield f"Promise 3: dead letter {seq} was redriven, and is or was still there."
        done = [
            operation for operation in history if operation.kind in ("ack", "reject") and operation.may_have_happened
        ]
        kept = {operation.event_id for operation in done if operation.kind == "ack"}
        kept |= {letter.event.id for letter in letters}
        purged = any(operation.kind == "purge" and operation.may_have_happened for operation in history)
        for event_id in {operation.event_id for operation in done}:
            seqs = {operation.seq for operation in done if operation.event_id == event_id}
            if len(seqs) > 1 + len(self._redriven):
                yield f"Promise 3: {event_id} was settled as {len(seqs)} messages after {self._redriven} were redriven."
            if event_id not in kept and not purged:
                yield f"Promise 3: event {event_id} was rejected, and is neither a dead letter nor delivered again."


def _played(recorded: Generator[Callable[[], Op[Any]], Any, Any]) -> Op[Any]:
    """Run the operation that a recorded call asks for, with its own requests."""
    call = next(recorded)
    reply = yield from call()
    try:
        recorded.send(reply)
    except StopIteration as done:
        return done.value
    raise AssertionError("a recorded call asks once")
