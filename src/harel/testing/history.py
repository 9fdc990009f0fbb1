"""A record of what concurrent processes did to a queue, and a checker of promises 1 to 5 over it.

Each process writes a line before an operation and one after it, so that a process which is killed in
between leaves an operation that may have happened or not. The checker accuses no correct history: an
operation took effect at some unknown moment between its two times, one without a second time at any
moment after the first or never, and whatever such moments could explain is taken as explained.
"""

from __future__ import annotations

import inspect
import math
import os
import time
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, count, groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import msgspec

from harel.engine.queue.contract import Lease
from harel.engine.queue.op import arun, run
from harel.errors import InvalidArgument, InvalidMessage
from harel.events import Event, Message

__all__ = ["Notebook", "Operation", "RecordedCalls", "Recorder", "Recording", "Violation", "check", "read"]

Kind = Literal["publish", "claim", "ack", "nack", "extend", "reject", "purge", "drained"]


class Operation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One operation of one process, as far as that process knows.

    Attributes
    ----------
    process : str
        Who did it; each process of a history has a name of its own.
    number : int
        Which of the process's operations it is.
    kind : str
        The method's name; ``"drained"`` for what :meth:`Recorder.drained` writes.
    called, returned : float
        When, epoch seconds of a clock that all the processes share; ``returned`` is ``None`` when the
        process never learned of the outcome, because it was killed or the operation failed.
    group_id, event_id, token : str
        Empty where they do not apply or were not known.
    seq : int or None
    attempt : int
    visibility : float
        Seconds, of a claim or an extend.
    expires_at : float or None
        What the lease says; by the server's clock, so the checker does not go by it.
    batch : int or None
        The number of the first operation of the ``publish_many`` that it belongs to.
    result : int or None
        What it returned: 1 for a publish and for a claim that found something, 0 for one that did not.
    left : dict of str to int
        Of ``"drained"``: how many messages each group still has, though no claim finds them.
    """

    process: str
    number: int
    kind: Kind
    called: float
    returned: float | None = None
    group_id: str = ""
    event_id: str = ""
    token: str = ""
    seq: int | None = None
    attempt: int = 0
    visibility: float = 0.0
    expires_at: float | None = None
    batch: int | None = None
    result: int | None = None
    left: dict[str, int] = {}

    @property
    def happened(self) -> bool:
        """Whether it is known to have taken effect."""
        return self.returned is not None and bool(self.result)

    @property
    def may_have_happened(self) -> bool:
        """Whether it is not known to have had no effect."""
        return self.returned is None or bool(self.result)

    @property
    def latest(self) -> float:
        """By when it had taken effect, if it did."""
        return math.inf if self.returned is None else self.returned

    def line(self, began: float) -> str:
        """Describe it to a person, with times in seconds since ``began``."""
        until = "no answer" if self.returned is None else f"{self.returned - began:.6f}"
        parts = [f"{self.called - began:.6f} to {until}", self.process, self.kind]
        parts += [f"seq {self.seq}"] * (self.seq is not None)
        parts += [f"event {self.event_id}"] * bool(self.event_id)
        parts += [f"attempt {self.attempt}"] * bool(self.attempt)
        parts += [f"for {self.visibility:g} s"] * bool(self.visibility)
        parts += [f"token {self.token}"] * bool(self.token)
        parts += [f"said {self.result}"] * (self.result is not None)
        return "  ".join(parts)


class Violation(msgspec.Struct, frozen=True, kw_only=True):
    """A promise that a history breaks, and the operations that show it."""

    promise: int
    """Its number in :mod:`harel.engine.queue.contract`."""
    group_id: str
    text: str
    operations: tuple[Operation, ...]
    began: float = 0.0
    """When the history began; what ``str`` counts seconds from."""

    def __str__(self) -> str:
        shown = "".join(f"\n    {operation.line(self.began)}" for operation in self.operations)
        return f"Promise {self.promise} is broken in group {self.group_id!r}: {self.text}{shown}"


class _Notes:
    """What is noted before and after each call; where to, the classes below say."""

    def __init__(self, process: str, clock: Callable[[], float]) -> None:
        self.process = process
        self._clock = clock
        self._numbers = count(1)

    def called(self, kind: Kind, **known: Any) -> Operation:
        """Record that an operation begins."""
        (operation,) = self.all_called(kind, [known])
        return operation

    def all_called(self, kind: Kind, each: Sequence[dict[str, Any]], *, ordered: bool = False) -> list[Operation]:
        """Record that one call begins which does several operations, in this order if ``ordered``."""
        now = self._clock()
        numbers = [next(self._numbers) for _ in each]
        batch = numbers[0] if ordered and numbers else None
        operations = [
            Operation(process=self.process, number=number, kind=kind, called=now, batch=batch, **known)
            for number, known in zip(numbers, each, strict=True)
        ]
        self._write(operations)
        return operations

    def returned(self, operation: Operation, result: int, **known: Any) -> None:
        """Record what an operation answered."""
        self.all_returned([(operation, {"result": result, **known})])

    def all_returned(self, each: Sequence[tuple[Operation, dict[str, Any]]]) -> None:
        """Record what one call answered that did several operations."""
        now = self._clock()
        self._write([msgspec.structs.replace(operation, returned=now, **known) for operation, known in each])

    def another(self, operation: Operation) -> Operation:
        """Make one more operation of the same call."""
        return msgspec.structs.replace(operation, number=next(self._numbers))

    def drained(self, left: dict[str, int]) -> None:
        """Record that nothing can be claimed and that no lease, park or hold is left that would explain it.

        Parameters
        ----------
        left : dict of str to int
            The groups that have messages all the same, and how many; ``""`` where the group is not known.
        """
        self.returned(self.called("drained"), 1, left=left)

    def _write(self, operations: Sequence[Operation]) -> None:
        raise NotImplementedError


class Notebook(_Notes):
    """Records operations in memory, for one process or for one part of a test.

    Parameters
    ----------
    process : str
        A name that no other part of the history has.
    clock : callable
        Returns epoch seconds; the same clock for the whole history.
    """

    def __init__(self, process: str, clock: Callable[[], float] = time.time) -> None:
        super().__init__(process, clock)
        self._operations: dict[int, Operation] = {}

    @property
    def operations(self) -> list[Operation]:
        """What was recorded."""
        return list(self._operations.values())

    def _write(self, operations: Sequence[Operation]) -> None:
        self._operations.update({operation.number: operation for operation in operations})


class Recorder(_Notes):
    """Appends operations to a file, each line at once, so that a kill loses at most the line being written.

    Parameters
    ----------
    path : str or Path
        The file, made if it is not there. Processes may share it.
    process : str, optional
        The process's name; a new one unless given. Never the same for two processes.
    clock : callable
        Returns epoch seconds; the same clock for all the processes of a history.
    """

    def __init__(self, path: str | Path, process: str | None = None, *, clock: Callable[[], float] = time.time) -> None:
        super().__init__(process or f"{os.getpid()}-{uuid4().hex[:8]}", clock)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _write(self, operations: Sequence[Operation]) -> None:
        # The newline comes first, so that a line which a kill cut short spoils no other.
        rest = b"".join(b"\n" + msgspec.json.encode(operation) for operation in operations)
        while rest:
            rest = rest[os.write(self._file, rest) :]


def read(*paths: str | Path) -> list[Operation]:
    """Read what recorders wrote, operations that were cut short included."""
    operations: dict[tuple[str, int], Operation] = {}
    decode = msgspec.json.Decoder(Operation).decode
    for path in paths:
        with Path(path).open("rb") as lines:
            for line in lines:
                try:
                    operation = decode(line)
                except msgspec.DecodeError:
                    continue  # empty, or cut short
                operations[operation.process, operation.number] = operation
    return list(operations.values())


class Recording:
    """A transport, sync or async, that records what is done through it; all else it passes on.

    Parameters
    ----------
    transport : Transport or AsyncTransport
    recorder : Recorder or Notebook
    """

    def __init__(self, transport: Any, recorder: Recorder | Notebook) -> None:
        self.inner = transport
        self._recorded = RecordedCalls(transport, recorder)
        self._is_async = inspect.iscoroutinefunction(transport.claim)

    def __getattr__(self, name: str) -> Any:
        recorded = getattr(self._recorded, name, None)
        if recorded is None:
            return getattr(self.inner, name)
        if not self._is_async:
            return lambda *args, **kwargs: run(recorded(*args, **kwargs), _call)

        async def call(*args: Any, **kwargs: Any) -> Any:
            return await arun(recorded(*args, **kwargs), _call)

        return call


_Plan = Generator[Callable[[], Any], Any, Any]


def _call(request: Callable[[], Any]) -> Any:
    return request()


class RecordedCalls:
    """Each method as an operation that yields one call to make, once for both twins.

    A call that is refused for its arguments did nothing; one that fails otherwise stays without an answer.
    """

    def __init__(self, transport: Any, recorder: Recorder | Notebook) -> None:
        self._transport = transport
        self._recorder = recorder

    def publish(self, group_id: str, event: Event, priority: int = 0) -> _Plan:
        known = {"group_id": group_id, "event_id": event.id}
        yield from self._asked("publish", [known], partial(self._transport.publish, group_id, event, priority))

    def publish_many(self, messages: Iterable[Message]) -> _Plan:
        batch = list(messages)
        known = [{"group_id": group_id, "event_id": event.id} for group_id, event, _ in batch]
        yield from self._asked("publish", known, partial(self._transport.publish_many, batch), ordered=True)

    def claim(self, worker_id: str, visibility: float, min_priority: int = 0) -> _Plan:
        leases = yield from self._claimed(
            visibility, partial(self._transport.claim, worker_id, visibility, min_priority)
        )
        return leases[0] if leases else None

    def claim_many(self, worker_id: str, visibility: float, limit: int, min_priority: int = 0) -> _Plan:
        call = partial(self._transport.claim_many, worker_id, visibility, limit, min_priority)
        return (yield from self._claimed(visibility, call))

    def ack(self, lease: Lease) -> _Plan:
        return (yield from self._asked("ack", [_of(lease)], partial(self._transport.ack, lease)))

    def ack_many(self, leases: Iterable[Lease]) -> _Plan:
        held = list(leases)
        return (yield from self._asked("ack", [_of(lease) for lease in held], partial(self._transport.ack_many, held)))

    def nack(self, lease: Lease, delay: float = 0.0) -> _Plan:
        return (yield from self._asked("nack", [_of(lease)], partial(self._transport.nack, lease, delay)))

    def extend(self, lease: Lease, visibility: float) -> _Plan:
        known = {**_of(lease), "visibility": visibility}
        return (yield from self._asked("extend", [known], partial(self._transport.extend, lease, visibility)))

    def extend_many(self, leases: Iterable[Lease], visibility: float) -> _Plan:
        held = list(leases)
        known = [{**_of(lease), "visibility": visibility} for lease in held]
        return (yield from self._asked("extend", known, partial(self._transport.extend_many, held, visibility)))

    def reject(self, lease: Lease, reason: str) -> _Plan:
        return (yield from self._asked("reject", [_of(lease)], partial(self._transport.reject, lease, reason)))

    def purge(self, group_id: str) -> _Plan:
        return (yield from self._asked("purge", [{"group_id": group_id}], partial(self._transport.purge, group_id)))

    def _asked(
        self, kind: Kind, known: list[dict[str, Any]], call: Callable[[], Any], *, ordered: bool = False
    ) -> _Plan:
        operations = self._recorder.all_called(kind, known, ordered=ordered)
        try:
            reply = yield call
        except InvalidArgument:
            self._recorder.all_returned([(operation, {"result": 0}) for operation in operations])
            raise
        answers = reply if isinstance(reply, list) else [1 if reply is None else int(reply)] * len(operations)
        pairs = zip(operations, answers, strict=True)
        self._recorder.all_returned([(operation, {"result": int(answer)}) for operation, answer in pairs])
        return reply

    def _claimed(self, visibility: float, call: Callable[[], Any]) -> _Plan:
        operation = self._recorder.called("claim", visibility=visibility)
        reply = yield call
        leases: list[Lease] = reply if isinstance(reply, list) else [reply] * (reply is not None)
        if not leases:
            self._recorder.returned(operation, 0)
            return leases
        operations = [operation, *(self._recorder.another(operation) for _ in leases[1:])]
        known = [
            {"result": 1, "attempt": lease.attempt, "expires_at": lease.expires_at, **_of(lease)} for lease in leases
        ]
        self._recorder.all_returned(list(zip(operations, known, strict=True)))
        return leases


def _of(lease: Lease) -> dict[str, Any]:
    try:
        event_id = lease.event.id
    except InvalidMessage:
        event_id = ""
    return {"group_id": lease.group_id, "seq": lease.seq, "token": lease.token, "event_id": event_id}


def check(operations: Iterable[Operation], *, clock_slack_s: float = 0.001) -> list[Violation]:
    """Check promises 1 to 5 over a whole history.

    Every publish, claim, settle, extend and purge of the queue has to be in it. An event id names one
    message of a group; a history may publish one twice, and is then checked less closely for it.

    Whether a message was lost or stranded is only known once nothing can be claimed any more, so promises
    3 and 4 are checked if the history holds a ``"drained"``.

    Parameters
    ----------
    operations : iterable of Operation
        In any order.
    clock_slack_s : float
        How much sooner than its visibility says a lease may run out by the clock of the history, because
        the server measures it with another clock.

    Returns
    -------
    list of Violation
        Those of the lower promises first. Takes O(n log n).
    """
    history = sorted(operations, key=_by_call)
    groups: dict[str, _Group] = defaultdict(_Group)
    for operation in history:
        if operation.group_id:
            groups[operation.group_id].add(operation)
    drained = next((operation for operation in reversed(history) if operation.kind == "drained"), None)
    began = history[0].called if history else 0.0
    found: list[Violation] = []
    for group_id, group in groups.items():
        rules = (
            group.two_leases(clock_slack_s),
            group.out_of_order(),
            group.delivered_after_settled(),
            group.lost(drained.called, drained.left.get(group_id, 0), "" in drained.left) if drained else (),
            group.settled_by_a_lost_token(),
            group.settled_twice(),
        )
        found += [
            Violation(promise=promise, group_id=group_id, text=text, operations=shown, began=began)
            for rule in rules
            for promise, text, shown in rule
        ]
    if drained:
        found += _stranded(drained, groups, began)
    return sorted(found, key=lambda violation: (violation.promise, violation.operations[-1].called))


_Finding = tuple[int, str, tuple[Operation, ...]]
"""The promise, what is wrong, and the operations that show it."""


def _stranded(drained: Operation, groups: dict[str, _Group], began: float) -> Iterator[Violation]:
    for group_id, messages in drained.left.items():
        yield Violation(
            promise=4,
            group_id=group_id,
            text=f"{messages} of its messages can no longer be claimed, though no lease, park or hold is left.",
            operations=(*(groups[group_id].unsettled(drained.called) if group_id in groups else ()), drained),
            began=began,
        )


@dataclass(slots=True)
class _Segment:
    """A time in which a lease certainly lived."""

    start: float
    end: float
    claim: Operation
    shown: Operation


@dataclass(slots=True)
class _Group:
    """One group's operations, each list by when they were called."""

    publishes: list[Operation] = field(default_factory=list)
    claims: list[Operation] = field(default_factory=list)
    purges: list[Operation] = field(default_factory=list)
    by_token: dict[str, list[Operation]] = field(default_factory=lambda: defaultdict(list))
    """What was done with each lease, where it may have had an effect."""
    settles: dict[str, list[Operation]] = field(default_factory=lambda: defaultdict(list))
    """What may have settled each event."""

    def add(self, operation: Operation) -> None:
        if not operation.may_have_happened:
            return
        if operation.kind == "publish":
            self.publishes.append(operation)
        elif operation.kind == "purge":
            self.purges.append(operation)
        elif operation.kind == "claim":
            self.claims.append(operation)
        else:
            self.by_token[operation.token].append(operation)
            if operation.kind in ("ack", "reject"):
                self.settles[operation.event_id].append(operation)

    def two_leases(self, clock_slack_s: float) -> Iterator[_Finding]:
        """Promise 1: find claims that were granted while another lease lived."""
        steps: list[tuple[float, int, _Segment]] = []
        for claim in self.claims:
            segments = _segments(claim, self.by_token.get(claim.token, ()), clock_slack_s)
            steps += [(segment.start, 1, segment) for segment in segments]
            # A claim that was called after another returned was granted later, however short its own life.
            steps.append((claim.called, 0, _Segment(claim.latest, claim.latest, claim, claim)))
        steps.sort(key=lambda step: step[:2])
        live: _Segment | None = None
        accused: set[str] = set()
        for _, lives, segment in steps:
            if (
                live is not None
                and live.claim.token != segment.claim.token
                and segment.start < live.end
                and segment.claim.token not in accused
            ):
                accused |= {segment.claim.token, live.claim.token}
                shown = sorted({id(o): o for o in (live.claim, live.shown, segment.claim)}.values(), key=_by_call)
                yield 1, "it had two live leases.", tuple(shown)
            if lives and (live is None or segment.end > live.end):
                live = segment

    def out_of_order(self) -> Iterator[_Finding]:
        """Promise 2: find messages that were delivered before one published earlier was settled."""
        delivered: dict[str, Operation] = {}
        for claim in sorted(self.claims, key=attrgetter("latest")):
            delivered.setdefault(claim.event_id, claim)
        ahead = sorted((publish for publish in self.publishes if publish.happened), key=attrgetter("latest"))
        settled_from = self._settled_from()
        worst: tuple[float, int] = (-math.inf, -1)
        place = 0
        checked: set[str] = set()
        accused: set[int] = set()
        culprit: Operation | None
        for _, mates in groupby(
            self.publishes, key=lambda publish: (publish.process, publish.batch or -publish.number)
        ):
            batch = list(mates)
            while place < len(ahead) and ahead[place].latest < batch[0].called:
                worst = max(worst, (settled_from(ahead[place]), place))
                place += 1
            before = worst[0]
            culprit = ahead[worst[1]] if worst[1] >= 0 else None
            for publish in batch:
                first = None if publish.event_id in checked else delivered.get(publish.event_id)
                checked.add(publish.event_id)
                if first is not None and culprit is not None and before > first.latest and id(culprit) not in accused:
                    accused.add(id(culprit))
                    late = f"{publish.event_id} was delivered before {culprit.event_id}, an earlier one, was settled."
                    yield 2, late, (culprit, publish, first, *self.settles.get(culprit.event_id, ())[:1])
                if publish.happened and settled_from(publish) > before:
                    before, culprit = settled_from(publish), publish

    def delivered_after_settled(self) -> Iterator[_Finding]:
        """Promise 3: find deliveries of messages that were already settled."""
        settled: dict[int | None, Operation] = {}
        for settle in _flat(self.settles):
            if settle.happened and settle.latest < settled.get(settle.seq, _NEVER).latest:
                settled[settle.seq] = settle
        for claim in self.claims:
            settle = settled.get(claim.seq, _NEVER)
            if settle.latest < claim.called:
                yield 3, f"message {claim.seq} was delivered again after it had been settled.", (settle, claim)

    def lost(self, drained: float, left: int, left_somewhere: bool) -> Iterator[_Finding]:
        """Promise 3: find publishes that returned, were never settled and are not there any more."""
        unsettled = self.unsettled(drained)
        if len(unsettled) > left and not left_somewhere:
            gone = (
                f"of these {len(unsettled)} published messages, none of them settled, {len(unsettled) - left} are gone."
            )
            yield 3, gone, tuple(unsettled)

    def unsettled(self, drained: float) -> list[Operation]:
        """Return the publishes that returned before it was drained and that nothing can have settled."""
        settled_from = self._settled_from()
        times: dict[str, int] = defaultdict(int)
        unsettled = []
        for publish in self.publishes:
            if publish.happened and publish.latest < drained:
                times[publish.event_id] += 1
                settled = {settle.seq for settle in self.settles.get(publish.event_id, ())}
                if len(settled) < times[publish.event_id] and settled_from(publish, by_purge_only=True) == math.inf:
                    unsettled.append(publish)
        return unsettled

    def settled_by_a_lost_token(self) -> Iterator[_Finding]:
        """Promise 5: find what succeeded with a token after a later claim had replaced it."""
        claims = sorted(self.claims, key=attrgetter("latest"))
        returns = [claim.latest for claim in claims]
        newest: list[Operation] = list(accumulate(claims, _later_called))
        own = {claim.token: claim for claim in claims}
        for token, operations in self.by_token.items():
            claim = own.get(token)
            for operation in operations if claim is not None else ():
                before = bisect_left(returns, operation.called)
                newer = newest[before - 1] if before and operation.happened else None
                if claim is not None and newer is not None and newer.called > claim.latest:
                    yield (
                        5,
                        f"{operation.kind} succeeded with a token that a later claim had replaced.",
                        (claim, newer, operation),
                    )

    def settled_twice(self) -> Iterator[_Finding]:
        """Promise 5: find leases and messages that were settled more than once."""
        by_seq: dict[int | None, list[Operation]] = defaultdict(list)
        for operations in self.by_token.values():
            settles = [operation for operation in operations if operation.happened and operation.kind != "extend"]
            if len(settles) > 1:
                yield 5, "one lease was settled more than once.", tuple(settles)
            for extend in operations if settles else ():
                if extend.kind == "extend" and extend.happened and extend.called > settles[0].latest:
                    yield 5, "a lease was extended after it was settled.", (settles[0], extend)
            for settle in settles[:1]:
                if settle.kind != "nack":
                    by_seq[settle.seq].append(settle)
        for seq, settles in by_seq.items():
            if len(settles) > 1:
                yield 5, f"message {seq} was settled more than once.", tuple(sorted(settles, key=_by_call))

    def _settled_from(self) -> Callable[..., float]:
        """Return what says the earliest moment at which a published message can have been settled."""
        purges = sorted(self.purges, key=attrgetter("latest"))
        latest = [purge.latest for purge in purges]
        earliest = list(accumulate((purge.called for purge in reversed(purges)), min))[::-1]

        def settled_from(publish: Operation, by_purge_only: bool = False) -> float:
            place = bisect_right(latest, publish.called)
            purged = max(publish.called, earliest[place]) if place < len(purges) else math.inf
            settles = () if by_purge_only else self.settles.get(publish.event_id, ())
            return min(purged, settles[0].called) if settles else purged

        return settled_from


_NEVER = Operation(process="", number=0, kind="ack", called=math.inf)

_by_call = attrgetter("called", "process", "number")


def _later_called(one: Operation, other: Operation) -> Operation:
    return max(one, other, key=attrgetter("called"))


def _flat(operations: dict[str, list[Operation]]) -> Iterator[Operation]:
    return (operation for some in operations.values() for operation in some)


def _segments(claim: Operation, operations: Sequence[Operation], clock_slack_s: float) -> Iterator[_Segment]:
    """Say when a lease certainly lived.

    From the return of its claim, and of each extend, for as long as the visibility reaches from their
    call; but never longer than until its settle was called, or than an extend allows that may have come later.
    """
    settled = min((o.called for o in operations if o.kind != "extend"), default=math.inf)
    extends = sorted((o for o in operations if o.kind == "extend"), key=attrgetter("latest"))
    latest = [extend.latest for extend in extends]
    ends = [extend.called + extend.visibility for extend in extends]
    shortest = [*list(accumulate(reversed(ends), min))[::-1], math.inf]
    for grant in (claim, *extends):
        later = bisect_left(latest, grant.called)
        end = min(grant.called + grant.visibility, shortest[later]) - clock_slack_s
        if grant.returned is not None and grant.returned < min(end, settled):
            yield _Segment(grant.returned, min(end, settled), claim, grant)
