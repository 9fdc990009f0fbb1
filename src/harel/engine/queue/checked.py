"""Operations with their arguments checked: whatever is wrong in a call is said before anything is sent."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, get_args

from harel.engine.queue.contract import (
    HIGHEST_PRIORITY,
    Capabilities,
    DeadLetter,
    GroupInfo,
    GroupState,
    Lease,
    Operations,
    Packed,
    QueueStats,
    StoredMessage,
)
from harel.engine.queue.op import Op
from harel.engine.queue.schedule import SHORTEST_S
from harel.errors import InvalidArgument, NotSupported, shown
from harel.events import Event, Message, encode_event

__all__ = ["Checked"]

T = TypeVar("T")
V = TypeVar("V", str, int, float)

MAX_GROUP_ID_BYTES = 512
MAX_WORKER_ID_BYTES = 200
MAX_REASON_CHARS = 65_536
_LONGEST_ADDRESS = 300
_STATES: dict[str, GroupState] = {state: state for state in get_args(GroupState)}


class Checked:
    """The public methods as operations, for a face to run.

    Parameters
    ----------
    ops : Operations
        The backend's own, which trust their arguments.
    """

    def __init__(self, ops: Operations) -> None:
        self._ops = ops
        self._can: Capabilities = ops.capabilities
        self.closed = False

    def publish(self, group_id: str, event: Event, priority: int) -> Op[None]:
        self._must_be_open()
        return self._ops.publish((self._pack(group_id, event, priority),))

    def publish_many(self, messages: Iterable[Message]) -> Op[None]:
        self._must_be_open()
        packed = []
        for index, message in enumerate(_each("messages", messages)):
            try:
                group_id, event, priority = message
            except (TypeError, ValueError):
                raise InvalidArgument(
                    f"Message {index} must be a harel.Message (group_id, event, priority), "
                    f"not {type(message).__name__}."
                ) from None
            try:
                packed.append(self._pack(group_id, event, priority))
            except InvalidArgument as error:
                raise InvalidArgument(f"Message {index}: {error}") from error.__cause__
        return self._ops.publish(packed) if packed else _nothing(None)

    def claim(self, worker_id: str, visibility: float, min_priority: int) -> Op[Lease | None]:
        return _first(self.claim_many(worker_id, visibility, 1, min_priority))

    def claim_many(self, worker_id: str, visibility: float, limit: int, min_priority: int) -> Op[list[Lease]]:
        self._must_be_open()
        worker = _name("worker_id", worker_id, MAX_WORKER_ID_BYTES)
        seconds = self._seconds("visibility", visibility, SHORTEST_S)
        most = _bounded_limit(limit)
        return self._ops.claim(worker, seconds, most, self._priority("min_priority", min_priority))

    def ack(self, lease: Lease) -> Op[bool]:
        self._check_lease(lease)
        return _only(self._ops.ack((lease,)))

    def ack_many(self, leases: Iterable[Lease]) -> Op[list[bool]]:
        held = self._checked_leases(leases)
        return self._ops.ack(held) if held else _nothing([])

    def nack(self, lease: Lease, delay: float) -> Op[bool]:
        self._check_lease(lease)
        return self._ops.nack(lease, self._seconds("delay", delay, 0.0))

    def extend(self, lease: Lease, visibility: float) -> Op[bool]:
        self._check_lease(lease)
        seconds = self._seconds("visibility", visibility, SHORTEST_S)
        return _only(_moved((lease,), self._ops.extend((lease,), seconds)))

    def extend_many(self, leases: Iterable[Lease], visibility: float) -> Op[list[bool]]:
        held = self._checked_leases(leases)
        seconds = self._seconds("visibility", visibility, SHORTEST_S)
        return _moved(held, self._ops.extend(held, seconds)) if held else _nothing([])

    def reject(self, lease: Lease, reason: str) -> Op[bool]:
        self._check_lease(lease)
        text = _plain(reason, str)
        if text is None:
            raise InvalidArgument(f"reason must be a string, not {type(reason).__name__}.")
        # A reason is often an exception's text, which may hold anything; what a database refuses is replaced.
        text = text[:MAX_REASON_CHARS].replace("\0", "\ufffd").encode(errors="replace").decode()
        # An escaped byte is what a backend may have found stored.
        if type(lease.raw) is str and not _is_text(lease.raw, "surrogateescape"):
            raise InvalidArgument("This lease's raw is not one that a claim returned: it holds a lone surrogate.")
        return self._ops.reject(lease, text)

    def wait(self, timeout: float) -> Op[bool]:
        self._must_be_open()
        return self._ops.wait(self._seconds("timeout", timeout, 0.0))

    def stats(self) -> Op[QueueStats]:
        self._must("stats")
        return self._ops.stats()

    def groups(self, state: GroupState | None, limit: int, after: str | None) -> Op[list[GroupInfo]]:
        self._must("groups")
        wanted = None if state is None else _STATES.get(_plain(state, str) or "")
        if state is not None and wanted is None:
            raise InvalidArgument(f"state must be one of {', '.join(_STATES)}, not {shown(state)}.")
        most = _bounded_limit(limit)
        behind = None if after is None else _name("after", after, MAX_GROUP_ID_BYTES)
        return self._ops.groups(wanted, most, behind)

    def peek(self, group_id: str, limit: int) -> Op[list[StoredMessage]]:
        self._must("peek")
        group = _name("group_id", group_id, MAX_GROUP_ID_BYTES)
        return self._ops.peek(group, _bounded_limit(limit))

    def hold(self, group_id: str) -> Op[bool]:
        self._must("hold")
        return self._ops.hold(_name("group_id", group_id, MAX_GROUP_ID_BYTES))

    def release(self, group_id: str) -> Op[bool]:
        self._must("hold")
        return self._ops.release(_name("group_id", group_id, MAX_GROUP_ID_BYTES))

    def purge(self, group_id: str) -> Op[int]:
        self._must("purge")
        return self._ops.purge(_name("group_id", group_id, MAX_GROUP_ID_BYTES))

    def dead_letters(self, group_id: str | None, limit: int, after: int | None) -> Op[list[DeadLetter]]:
        self._must("dead_letters")
        group = None if group_id is None else _name("group_id", group_id, MAX_GROUP_ID_BYTES)
        most = _bounded_limit(limit)
        least = None if after is None else _bounded_seq("after", after)
        return self._ops.dead_letters(group, most, least)

    def redrive(self, dead_letter_id: int) -> Op[bool]:
        self._must("dead_letters")
        return self._ops.redrive(_bounded_seq("dead_letter_id", dead_letter_id))

    def _pack(self, group_id: str, event: Event, priority: int) -> Packed:
        group = _name("group_id", group_id, MAX_GROUP_ID_BYTES)
        tier = self._priority("priority", priority)
        raw = encode_event(event)
        if len(raw) * 4 > self._can.max_event_bytes:
            size = len(raw.encode())
            if size > self._can.max_event_bytes:
                raise InvalidArgument(
                    f"The event takes {size:,} bytes as JSON; this backend stores at most "
                    f"{self._can.max_event_bytes:,}. Keep what is large elsewhere and send where it is."
                )
        return Packed(group, raw, tier)

    def _must_be_open(self) -> None:
        if self.closed:
            raise InvalidArgument("This transport is closed; open a new one.")

    def must_bind(self) -> None:
        """Raise unless a transaction of the caller's can be used."""
        self._must("bind")

    def _must(self, capability: str) -> None:
        self._must_be_open()
        if not getattr(self._can, capability):
            raise NotSupported(f"This backend cannot do that: its capabilities say {capability}=False.")

    def _check_lease(self, lease: Lease) -> None:
        self._must_be_open()
        if not _is_as_claimed(lease, self._ops.queue):
            self._refuse_altered(lease)

    def _refuse_altered(self, lease: Lease) -> None:
        """Raise for what no claim returned; a backend may know leases that are not plain, and lets those pass."""
        if not issubclass(type(lease), Lease):
            raise InvalidArgument(f"A lease must be what claim returned, not {type(lease).__name__}.")
        if _plain(lease.queue, str) != self._ops.queue:
            raise InvalidArgument(
                f"This lease was claimed from {_address(lease.queue)}, and this transport serves {self._ops.queue}; "
                "settle it where it was claimed."
            )
        altered = _altered(lease, 63 if self._can.queue_seq else 128)
        if altered is not None:
            raise InvalidArgument(
                f"This lease's {altered} is not one that a claim returned: {shown(getattr(lease, altered))}. "
                "Settle the lease as it was claimed."
            )

    def _checked_leases(self, leases: Iterable[Lease]) -> list[Lease]:
        self._must_be_open()
        held = list(_each("leases", leases))
        for lease in held:
            if not _is_as_claimed(lease, self._ops.queue):
                self._refuse_altered(lease)
        return held

    def _priority(self, name: str, priority: int) -> int:
        tier = priority if type(priority) is int else _plain(priority, int)
        if tier is None or not 0 <= tier <= HIGHEST_PRIORITY:
            raise InvalidArgument(f"{name} must be an int from 0 to {HIGHEST_PRIORITY}, not {shown(priority)}.")
        if tier and not self._can.priority:
            raise NotSupported(f"This backend has no priorities (capabilities.priority is False); leave {name} at 0.")
        return tier

    def _seconds(self, name: str, seconds: float, least: float) -> float:
        whole = _plain(seconds, int)
        number = _plain(seconds, float) if whole is None else whole
        if number is None or not least <= number <= self._can.max_visibility_s:
            raise InvalidArgument(
                f"{name} must be a number of seconds from {least:g} to {self._can.max_visibility_s:,.0f}, "
                f"not {shown(seconds)}."
            )
        return number


def _plain(value: Any, kind: type[V]) -> V | None:
    """Return a value as just this kind, or ``None`` if it is of another; a bool is no int here.

    A driver may not know a subclass, as an ``IntEnum`` or numpy's string, and its methods may say anything.
    """
    if type(value) is kind:
        return value
    if not issubclass(type(value), kind) or type(value) is bool:
        return None
    plain: V = _PLAINLY[kind](value)
    return plain


_PLAINLY: dict[type, Callable[[Any], Any]] = {str: str.__str__, int: int.__int__, float: float.__float__}


def _is_as_claimed(lease: Lease, queue: str) -> bool:
    """Say at once of nearly every lease that nothing is wrong with it."""
    return (
        type(lease) is Lease
        and type(lease.queue) is type(lease.group_id) is type(lease.token) is str
        and type(lease.seq) is type(lease.attempt) is int
        and lease.queue == queue
        and lease.group_id.isascii()
        and lease.token.isascii()
        and "\0" not in lease.group_id
        and "\0" not in lease.token
        and lease.group_id != ""
        and lease.token != ""
        and 0 <= lease.seq < 2**63
        and 0 <= lease.attempt < 2**31
    )


def _altered(lease: Lease, bits_of_seq: int) -> str | None:
    """Name the field of a lease that was altered into what no claim returns, and no backend is to be asked about."""
    for field in ("group_id", "token"):
        text = getattr(lease, field)
        if type(text) is not str or not text or "\0" in text or not _is_text(text):
            return field
    for field, bits in (("seq", bits_of_seq), ("attempt", 31)):
        number = getattr(lease, field)
        if type(number) is not int or number < 0 or number.bit_length() > bits:
            return field
    return None


def _is_text(text: str, errors: str = "strict") -> bool:
    if text.isascii():
        return True
    try:
        text.encode(errors=errors)
    except UnicodeEncodeError:
        return False
    return True


def _address(queue: object) -> str:
    """Return what a lease says of its queue, as a message may show it."""
    text = _plain(queue, str)
    return text if text and len(text) <= _LONGEST_ADDRESS and text.isprintable() else shown(queue)


def _each(name: str, values: Iterable[T]) -> Iterable[T]:
    try:
        return iter(values)
    except TypeError:
        raise InvalidArgument(f"{name} must be an iterable such as a list, not {shown(values)}.") from None


def _name(name: str, value: str, most: int) -> str:
    """Check a name, and return it."""
    text = value if type(value) is str else _plain(value, str)
    if not text:
        raise InvalidArgument(f"{name} must be a string that is not empty, not {shown(value)}.")
    if "\0" in text:
        raise InvalidArgument(f"{name} must not contain NUL: {shown(text)}.")
    if text.isascii() and len(text) <= most:
        return text
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"{name} holds a lone surrogate at position {error.start}, which is not text.") from None
    if size > most:
        raise InvalidArgument(f"{name} takes {size:,} bytes; at most {most} are allowed. It is {shown(text)}.")
    return text


def _bounded_limit(limit: int) -> int:
    """Check a limit, and return one that says the same and that every driver can hold."""
    most = _plain(limit, int)
    if most is None or most < 1:
        raise InvalidArgument(f"limit must be an int of at least 1, not {shown(limit)}.")
    return min(most, sys.maxsize)


def _bounded_seq(name: str, seq: int) -> int:
    """Check a seq, and return it, or the largest that there can be."""
    number = _plain(seq, int)
    if number is None or number < 0:
        raise InvalidArgument(f"{name} must be a dead letter's seq, an int that is not negative, not {shown(seq)}.")
    return min(number, 2**63 - 1)


def _nothing(result: T) -> Op[T]:
    """Return a result without a request."""
    yield from ()
    return result


def _first(op: Op[list[Lease]]) -> Op[Lease | None]:
    leases = yield from op
    return leases[0] if leases else None


def _only(op: Op[list[bool]]) -> Op[bool]:
    (answer,) = yield from op
    return answer


def _moved(leases: Sequence[Lease], op: Op[list[float | None]]) -> Op[list[bool]]:
    ends = yield from op
    for lease, expires_at in zip(leases, ends, strict=True):
        if expires_at is not None:
            lease.expires_at = expires_at
    return [expires_at is not None for expires_at in ends]
