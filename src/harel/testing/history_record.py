"""A record of what concurrent processes did to a queue.

Each process writes a line before an operation and one after it, so that a process which is killed in
between leaves an operation that may have happened or not.
"""

from __future__ import annotations

import inspect
import math
import os
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import msgspec

from harel.engine.queue.contract import Lease
from harel.engine.queue.op import arun, run
from harel.errors import InvalidArgument, InvalidMessage, NotSupported
from harel.events import Event, Message

__all__ = ["Kind", "Notebook", "Operation", "RecordedCalls", "Recorder", "Recording", "read", "shortened"]

Kind = Literal["publish", "claim", "ack", "nack", "extend", "reject", "purge", "hold", "release", "redrive", "drained"]


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
        Of a redrive, the dead letter's.
    attempt : int
        0 where it is not known.
    visibility : float
        Seconds, of a claim or an extend.
    priority : int
        Of a publish.
    min_priority : int
        The floor of a claim.
    limit : int
        How many leases a claim asked for, at most.
    delay : float
        Seconds, of a nack.
    expires_at : float or None
        What the lease says; by the server's clock, so the checker does not go by it.
    batch : int or None
        The number of the first operation of the ``publish_many`` or ``claim_many`` that it belongs to.
    result : int or None
        What it returned: 1 for a publish and for a claim that found something, 0 for one that did not.
    refused : bool
        Whether the call was refused before anything was sent; then the result is 0 and says nothing.
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
    priority: int = 0
    min_priority: int = 0
    limit: int = 1
    delay: float = 0.0
    batch: int | None = None
    result: int | None = None
    refused: bool = False
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
        parts += [f"priority {self.priority}"] * bool(self.priority)
        parts += [f"floor {self.min_priority}"] * bool(self.min_priority)
        parts += [f"limit {self.limit}"] * (self.limit != 1)
        parts += [f"delay {self.delay:g} s"] * bool(self.delay)
        parts += [f"token {shortened(self.token)}"] * bool(self.token)
        parts += [f"said {self.result}"] * (self.result is not None)
        return "  ".join(parts)


def shortened(token: str) -> str:
    """Shorten a token to what a person needs to tell it from the others; those of one claim differ at the end."""
    worker, _, random = token.rpartition(":")
    return f"{worker}:{random[:6]}..{random[-4:]}" if len(random) > 12 else token


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

    A call that is refused, for its arguments or because the backend cannot do this at all, did nothing; one that
    fails otherwise stays without an answer.
    """

    def __init__(self, transport: Any, recorder: Recorder | Notebook) -> None:
        self._transport = transport
        self._recorder = recorder

    def publish(self, group_id: str, event: Event, priority: int = 0) -> _Plan:
        known = {"group_id": group_id, "event_id": event.id, "priority": priority}
        yield from self._asked("publish", [known], partial(self._transport.publish, group_id, event, priority))

    def publish_many(self, messages: Iterable[Message]) -> _Plan:
        batch = list(messages)
        known = [
            {"group_id": group_id, "event_id": event.id, "priority": priority} for group_id, event, priority in batch
        ]
        yield from self._asked("publish", known, partial(self._transport.publish_many, batch), ordered=True)

    def claim(self, worker_id: str, visibility: float, min_priority: int = 0) -> _Plan:
        call = partial(self._transport.claim, worker_id, visibility, min_priority)
        leases = yield from self._claimed({"visibility": visibility, "min_priority": min_priority}, call)
        return leases[0] if leases else None

    def claim_many(self, worker_id: str, visibility: float, limit: int, min_priority: int = 0) -> _Plan:
        call = partial(self._transport.claim_many, worker_id, visibility, limit, min_priority)
        known = {"visibility": visibility, "min_priority": min_priority, "limit": limit}
        return (yield from self._claimed(known, call))

    def ack(self, lease: Lease) -> _Plan:
        return (yield from self._asked("ack", [_of(lease)], partial(self._transport.ack, lease)))

    def ack_many(self, leases: Iterable[Lease]) -> _Plan:
        held = list(leases)
        return (yield from self._asked("ack", [_of(lease) for lease in held], partial(self._transport.ack_many, held)))

    def nack(self, lease: Lease, delay: float = 0.0) -> _Plan:
        known = {**_of(lease), "delay": delay}
        return (yield from self._asked("nack", [known], partial(self._transport.nack, lease, delay)))

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

    def hold(self, group_id: str) -> _Plan:
        return (yield from self._asked("hold", [{"group_id": group_id}], partial(self._transport.hold, group_id)))

    def release(self, group_id: str) -> _Plan:
        return (yield from self._asked("release", [{"group_id": group_id}], partial(self._transport.release, group_id)))

    def redrive(self, dead_letter_id: int) -> _Plan:
        call = partial(self._transport.redrive, dead_letter_id)
        return (yield from self._asked("redrive", [{"seq": dead_letter_id}], call))

    def _asked(
        self, kind: Kind, known: list[dict[str, Any]], call: Callable[[], Any], *, ordered: bool = False
    ) -> _Plan:
        operations = self._recorder.all_called(kind, known, ordered=ordered)
        try:
            reply = yield call
        except (InvalidArgument, NotSupported):
            refused = {"result": 0, "refused": True}
            self._recorder.all_returned([(operation, refused) for operation in operations])
            raise
        answers = reply if isinstance(reply, list) else [1 if reply is None else int(reply)] * len(operations)
        pairs = zip(operations, answers, strict=True)
        self._recorder.all_returned([(operation, {"result": int(answer)}) for operation, answer in pairs])
        return reply

    def _claimed(self, known: dict[str, Any], call: Callable[[], Any]) -> _Plan:
        operation = self._recorder.called("claim", **known)
        try:
            reply = yield call
        except (InvalidArgument, NotSupported):
            self._recorder.returned(operation, 0, refused=True)
            raise
        leases: list[Lease] = reply if isinstance(reply, list) else [reply] * (reply is not None)
        if not leases:
            self._recorder.returned(operation, 0)
            return leases
        operations = [operation, *(self._recorder.another(operation) for _ in leases[1:])]
        batch = operation.number if len(leases) > 1 else None
        answers = [
            {
                "result": 1,
                "attempt": lease.attempt,
                "expires_at": lease.expires_at,
                "batch": batch,
                **_of(lease),
            }
            for lease in leases
        ]
        # The one that is known to have begun comes last: if a kill cuts this short, it stays without an answer.
        each = list(zip(operations, answers, strict=True))
        self._recorder.all_returned([*each[1:], each[0]])
        return leases


def _of(lease: Lease) -> dict[str, Any]:
    try:
        event_id = lease.event.id
    except InvalidMessage:
        event_id = ""
    return {"group_id": lease.group_id, "seq": lease.seq, "token": lease.token, "event_id": event_id}
