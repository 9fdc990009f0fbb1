"""The contract: what every backend offers and promises.

The eleven promises, which tests cite by number:

1.  **Exclusive.** A group never has two live leases.
2.  **In order.** If one publish to a group returned before the next began, the first is settled (acked,
    rejected or purged) before the second is delivered.
3.  **Nothing lost.** A message whose publish returned is delivered until it is settled.
4.  **Nothing stranded.** A group that has messages and no live lease, park or hold can be claimed, whatever
    clients did at the same time and wherever one of them died.
5.  **Fenced.** With a token that is no longer current, nothing changes.
6.  **Self-healing.** A lease that runs out makes its group claimable; no sweeper is needed. Until somebody
    claims the group again, the holder may still settle or extend it.
7.  **Fair.** Of the groups never served, and then of those served before, the one that has waited longest
    goes first. A served group goes to the back.
8.  **Priority.** 0 to 4, fixed by a group's first publish, forgotten when the group drains. A claim with a
    floor finds a group at or above it behind any backlog of lower ones. Without a floor, priority changes
    nothing.
9.  **Undisturbed.** A publish never changes the lease, park, hold, place in line or priority of a group that
    exists.
10. **Cheap.** An operation costs O(log n) in the number of groups and does not depend on how many messages
    wait; the core five are one round trip each (on MongoDB, which has no procedures, a few). Drained groups
    leave nothing behind. (What counts or lists, ``stats`` and ``groups``, costs what it counts or lists.)
11. **One clock.** Leases are measured by the server's clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from types import TracebackType
from typing import Any, Protocol, Self, runtime_checkable

import msgspec

from harel.engine.queue.op import Op
from harel.engine.queue.schedule import GroupState
from harel.events import Event, Message, decode_event

__all__ = [
    "HIGHEST_PRIORITY",
    "AsyncBound",
    "AsyncTransport",
    "Bound",
    "Capabilities",
    "DeadLetter",
    "GroupInfo",
    "GroupState",
    "Lease",
    "Operations",
    "Packed",
    "QueueStats",
    "StoredMessage",
    "Transport",
]

HIGHEST_PRIORITY = 4
"""Priorities are 0 to this; 0 is the default."""

BACKLOG_COUNTED = 1_000
"""A group's messages are counted up to this many."""


class _Stored(msgspec.Struct, kw_only=True, eq=False):
    """Something that carries an event as it is stored, decoded when it is read."""

    raw: str
    """The stored JSON text."""
    _event: Event | None = None

    @property
    def event(self) -> Event:
        """The event, decoded on first use.

        Raises
        ------
        InvalidMessage
            When the stored text is not an event.
        """
        if self._event is None:
            self._event = decode_event(self.raw)
        return self._event


class Lease(_Stored, kw_only=True, eq=False):
    """The right to handle the head of one group until ``expires_at``, and proof of it.

    Attributes
    ----------
    group_id : str
    event : Event
        Decoded when it is read; raises :exc:`~harel.InvalidMessage` if it cannot be.
    seq : int
        The message's number: later messages of its group have larger ones, and where
        ``capabilities.queue_seq`` says so, later messages of the whole queue.
    token : str
        The fencing token, ``{worker_id}:{uuid}``, new on every claim.
    attempt : int
        1 on the first delivery of this message, then one more each time it is claimed again.
    expires_at : float
        Epoch seconds of the server's clock. A successful ``extend`` moves it.
    queue : str
        Which queue it was claimed from; no other one takes it back.
    """

    group_id: str
    seq: int
    token: str
    attempt: int
    expires_at: float
    queue: str

    @property
    def worker_id(self) -> str:
        """Who claimed it."""
        return self.token.rpartition(":")[0]

    def __repr__(self) -> str:
        return (
            f"Lease(group_id={self.group_id!r}, seq={self.seq}, attempt={self.attempt}, "
            f"token={self.token!r}, expires_at={self.expires_at!r})"
        )


class StoredMessage(_Stored, kw_only=True, eq=False):
    """A message that waits in its group, as ``peek`` shows it."""

    seq: int


class DeadLetter(_Stored, kw_only=True, eq=False):
    """A message that was rejected.

    Attributes
    ----------
    seq : int
        The number that the message had; it identifies the dead letter.
    group_id : str
    event : Event
    attempts : int
        How often it had been claimed.
    reason : str
        What the rejection gave as its reason.
    rejected_at : float
        Epoch seconds of the server's clock.
    priority : int
        Its group's; a redrive that creates the group again uses it.
    """

    seq: int
    group_id: str
    attempts: int
    reason: str
    rejected_at: float
    priority: int


class QueueStats(msgspec.Struct, frozen=True, kw_only=True):
    """The queue in figures.

    Attributes
    ----------
    messages : int
        Messages not settled, in flight or not.
    groups : int
        Groups that exist; each is in exactly one of the four states.
    ready, leased, parked, held : int
        Groups that can be claimed; that a worker holds; that wait for a delay to end; that are held back.
    dead_letters : int
    oldest_ready_s : float
        For how many seconds the longest-waiting ready group has waited; 0.0 if none is ready.
    """

    messages: int
    groups: int
    ready: int
    leased: int
    parked: int
    held: int
    dead_letters: int
    oldest_ready_s: float


class GroupInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One group: why it runs or does not run.

    Attributes
    ----------
    group_id : str
    state : str
        ``"ready"``, ``"leased"``, ``"parked"`` or ``"held"``.
    since : float
        When it came into that state, epoch seconds of the server's clock.
    until : float or None
        When its lease or park ends; ``None`` for one that is ready or held.
    holder : str or None
        The worker that has it leased; also while it is held, until the lease is settled.
    attempts : int
        How often its first message was claimed.
    messages : int
        How many messages it has, counted up to 1,000.
    priority : int
    """

    group_id: str
    state: GroupState
    since: float
    until: float | None
    holder: str | None
    attempts: int
    messages: int
    priority: int


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a backend can do. Ask this, never the class.

    Attributes
    ----------
    shared : bool
        Other processes can open the same queue.
    remote : bool
        A server carries operations out, while this process does something else.
    atomic_batches : bool
        ``publish_many`` is all or nothing.
    priority : bool
        Priorities above 0 and floors.
    fair : bool
        Claims come in the order of promise 7.
    peek, groups, hold, purge : bool
        The methods of those names (``release`` goes with ``hold``).
    dead_letters : bool
        ``dead_letters`` and ``redrive``.
    stats : bool
        The method of that name.
    bind : bool
        ``bind`` and ``transaction``: publish and settle inside a transaction of the caller's.
    watch : bool
        ``wait`` looks whether something can be claimed. Without it, it only pauses, and a claim is the only look.
    late_settle : bool
        A lease that ran out but that nobody took over may still be settled or extended (promise 6).
    queue_seq : bool
        A later message of the queue has a larger ``seq``, whatever its group.
    max_event_bytes : int
        The largest event, as stored JSON in UTF-8.
    max_visibility_s : float
        The longest visibility and delay.
    time_step_s : float
        Visibilities and delays are rounded up to a multiple of this; 0.0 if they are not.
    """

    shared: bool = True
    remote: bool = True
    atomic_batches: bool = True
    priority: bool = True
    fair: bool = True
    peek: bool = True
    groups: bool = True
    hold: bool = True
    purge: bool = True
    dead_letters: bool = True
    stats: bool = True
    bind: bool = False
    watch: bool = True
    late_settle: bool = True
    queue_seq: bool = True
    max_event_bytes: int
    max_visibility_s: float
    time_step_s: float = 0.0


class Packed(msgspec.Struct, frozen=True):
    """A checked and encoded message, on its way into an operation."""

    group_id: str
    raw: str
    priority: int


class Operations(Protocol):
    """What a backend writes: each operation once, without I/O.

    Arguments arrive checked, and limits and seqs fit 64 bits. An operation for one lease and one for many are the
    same, so there is one.
    """

    queue: str
    capabilities: Capabilities

    def prepare(self) -> Op[None]:
        """Make the backend ready; comes before everything else, once."""
        ...

    def publish(self, messages: Sequence[Packed]) -> Op[None]: ...
    def claim(self, worker_id: str, visibility: float, limit: int, min_priority: int) -> Op[list[Lease]]: ...
    def ack(self, leases: Sequence[Lease]) -> Op[list[bool]]: ...
    def nack(self, lease: Lease, delay: float) -> Op[bool]: ...
    def extend(self, leases: Sequence[Lease], visibility: float) -> Op[list[float | None]]:
        """Return for each the new ``expires_at``, or ``None`` when the lease was lost."""
        ...

    def reject(self, lease: Lease, reason: str) -> Op[bool]: ...
    def wait(self, timeout: float) -> Op[bool]: ...
    def stats(self) -> Op[QueueStats]: ...
    def groups(self, state: GroupState | None, limit: int, after: str | None) -> Op[list[GroupInfo]]: ...
    def peek(self, group_id: str, limit: int) -> Op[list[StoredMessage]]: ...
    def hold(self, group_id: str) -> Op[bool]: ...
    def release(self, group_id: str) -> Op[bool]: ...
    def purge(self, group_id: str) -> Op[int]: ...
    def dead_letters(self, group_id: str | None, limit: int, after: int | None) -> Op[list[DeadLetter]]: ...
    def redrive(self, seq: int) -> Op[bool]: ...


class Bound(Protocol):
    """A queue inside the caller's own open transaction: what it does happens when that commits.

    A lease that was lost raises :exc:`~harel.LeaseLost`, so that the transaction does not commit.
    """

    def publish(self, group_id: str, event: Event, priority: int = 0) -> None:
        """Add an event at its group's tail; see :meth:`Transport.publish`."""
        ...

    def publish_many(self, messages: Iterable[Message]) -> None:
        """Add many events at once, in the order given."""
        ...

    def ack(self, lease: Lease) -> None:
        """Settle a message; see :meth:`Transport.ack`."""
        ...

    def nack(self, lease: Lease, delay: float = 0.0) -> None:
        """Give a message back; see :meth:`Transport.nack`."""
        ...

    def reject(self, lease: Lease, reason: str) -> None:
        """Move a message to the dead letters; see :meth:`Transport.reject`."""
        ...


class AsyncBound(Protocol):
    """:class:`Bound` with ``await``."""

    async def publish(self, group_id: str, event: Event, priority: int = 0) -> None:
        """See :meth:`Bound.publish`."""
        ...

    async def publish_many(self, messages: Iterable[Message]) -> None:
        """See :meth:`Bound.publish_many`."""
        ...

    async def ack(self, lease: Lease) -> None:
        """See :meth:`Bound.ack`."""
        ...

    async def nack(self, lease: Lease, delay: float = 0.0) -> None:
        """See :meth:`Bound.nack`."""
        ...

    async def reject(self, lease: Lease, reason: str) -> None:
        """See :meth:`Bound.reject`."""
        ...


@runtime_checkable
class Transport(Protocol):
    """A queue partitioned into groups, at most one message of a group in flight.

    Safe to share between threads. A context manager: leaving it closes it. Every method raises
    :exc:`~harel.InvalidArgument` for a call that is wrong in itself (before anything is sent),
    :exc:`~harel.NotSupported` for what :attr:`capabilities` denies, and
    :exc:`~harel.TransportUnavailable` when the server or file cannot be reached in time.
    """

    @property
    def capabilities(self) -> Capabilities:
        """What this backend can do."""
        ...

    def publish(self, group_id: str, event: Event, priority: int = 0) -> None:
        """Add an event at its group's tail. When it returns, the event is stored.

        Parameters
        ----------
        group_id : str
            1 to 512 bytes in UTF-8, without NUL.
        event : Event
        priority : int
            0 to 4. Counts only if this creates the group.
        """
        ...

    def publish_many(self, messages: Iterable[Message]) -> None:
        """Add many events at once, in the order given.

        All or nothing where ``capabilities.atomic_batches`` says so.

        Parameters
        ----------
        messages : iterable of Message
            ``(group_id, event, priority)`` each.

        Raises
        ------
        PartlyPublished
            Where batches are not atomic: says how many, from the front, were published.
        """
        ...

    def claim(self, worker_id: str, visibility: float, min_priority: int = 0) -> Lease | None:
        """Lease the head of the group that has waited longest.

        Parameters
        ----------
        worker_id : str
            Who asks; becomes part of the token. 1 to 200 bytes in UTF-8, without NUL.
        visibility : float
            Seconds until the lease runs out, from now.
        min_priority : int
            Only groups of this priority or above.

        Returns
        -------
        Lease or None
            ``None`` when no group can be claimed.
        """
        ...

    def claim_many(self, worker_id: str, visibility: float, limit: int, min_priority: int = 0) -> list[Lease]:
        """Lease the heads of up to ``limit`` groups, those that have waited longest first.

        Returns
        -------
        list of Lease
            Of distinct groups; empty when none can be claimed.
        """
        ...

    def ack(self, lease: Lease) -> bool:
        """Settle a message: it is done and gone, and its group goes to the back of the line.

        Returns
        -------
        bool
            ``False`` when the lease was lost; then nothing was changed.
        """
        ...

    def ack_many(self, leases: Iterable[Lease]) -> list[bool]:
        """Settle many messages at once; the answers come in the order of the leases."""
        ...

    def nack(self, lease: Lease, delay: float = 0.0) -> bool:
        """Give a message back. Its whole group is parked for ``delay`` seconds, then in line again.

        Returns
        -------
        bool
            ``False`` when the lease was lost; then nothing was changed.
        """
        ...

    def extend(self, lease: Lease, visibility: float) -> bool:
        """Renew a lease: it now runs out ``visibility`` seconds from now. Moves ``lease.expires_at``.

        Returns
        -------
        bool
            ``False`` when the lease was lost; then nothing was changed.
        """
        ...

    def extend_many(self, leases: Iterable[Lease], visibility: float) -> list[bool]:
        """Renew many leases at once; the answers come in the order of the leases."""
        ...

    def reject(self, lease: Lease, reason: str) -> bool:
        """Move a message to the dead letters; its group goes on with the next one.

        Returns
        -------
        bool
            ``False`` when the lease was lost; then nothing was changed.
        """
        ...

    def wait(self, timeout: float) -> bool:
        """Wait until something may be claimable, ``timeout`` seconds at most.

        Returns
        -------
        bool
            ``False`` when the time ran out.
        """
        ...

    def stats(self) -> QueueStats:
        """Count the queue. Costs as much as there is to count."""
        ...

    def groups(self, *, state: GroupState | None = None, limit: int = 100, after: str | None = None) -> list[GroupInfo]:
        """List groups by name, a page at a time.

        Parameters
        ----------
        state : str, optional
            Only groups in this state.
        limit : int
            How many at most.
        after : str, optional
            The last name of the page before.
        """
        ...

    def peek(self, group_id: str, limit: int = 10) -> list[StoredMessage]:
        """Show a group's first messages, the one in flight included, and change nothing."""
        ...

    def hold(self, group_id: str) -> bool:
        """Hold a group back: it is not claimable until released, even if it drains meanwhile.

        A lease that is running goes on and may be settled or extended.

        Returns
        -------
        bool
            Whether the group is held now; ``False`` when there is no such group.
        """
        ...

    def release(self, group_id: str) -> bool:
        """End a hold: the group is at the back of the line, or leased if its lease is still running.

        Returns
        -------
        bool
            Whether the group was held.
        """
        ...

    def purge(self, group_id: str) -> int:
        """Delete a group's messages, except one that a live lease holds: that is its holder's to settle.

        Returns
        -------
        int
            How many were deleted.
        """
        ...

    def dead_letters(
        self, *, group_id: str | None = None, limit: int = 100, after: int | None = None
    ) -> list[DeadLetter]:
        """List dead letters by ``seq``, a page at a time.

        Parameters
        ----------
        group_id : str, optional
            Only this group's.
        limit : int
            How many at most.
        after : int, optional
            The last ``seq`` of the page before.
        """
        ...

    def redrive(self, dead_letter_id: int) -> bool:
        """Put a dead letter back, as a new message at its group's tail, once.

        Parameters
        ----------
        dead_letter_id : int
            Its ``seq``.

        Returns
        -------
        bool
            ``False`` when there is no such dead letter (any more).
        """
        ...

    def bind(self, connection: Any) -> Bound:
        """Publish and settle inside the transaction that is open on the caller's own connection.

        What is done through it happens when that transaction commits, together with the caller's own rows,
        or not at all.

        Parameters
        ----------
        connection : object
            The driver's own connection to the same database: the backend's documentation says of which class.
        """
        ...

    def transaction(self) -> AbstractContextManager[Any]:
        """Open a transaction on a connection of the transport's, for :meth:`bind` and for the caller's own statements.

        Leaving the block commits it; an exception rolls it back.

        Returns
        -------
        context manager
            Of the connection.
        """
        ...

    def close(self) -> None:
        """Close what the transport opened itself. Closing twice is fine."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


@runtime_checkable
class AsyncTransport(Protocol):
    """:class:`Transport` with ``await``: the same methods, the same promises.

    Safe to share between tasks of one event loop. Cancelling a task inside an operation leaves no
    open transaction and no lock; the operation happened or it did not. A claim that happened all the
    same runs out with its visibility.
    """

    @property
    def capabilities(self) -> Capabilities:
        """What this backend can do."""
        ...

    async def publish(self, group_id: str, event: Event, priority: int = 0) -> None:
        """See :meth:`Transport.publish`."""
        ...

    async def publish_many(self, messages: Iterable[Message]) -> None:
        """See :meth:`Transport.publish_many`."""
        ...

    async def claim(self, worker_id: str, visibility: float, min_priority: int = 0) -> Lease | None:
        """See :meth:`Transport.claim`."""
        ...

    async def claim_many(self, worker_id: str, visibility: float, limit: int, min_priority: int = 0) -> list[Lease]:
        """See :meth:`Transport.claim_many`."""
        ...

    async def ack(self, lease: Lease) -> bool:
        """See :meth:`Transport.ack`."""
        ...

    async def ack_many(self, leases: Iterable[Lease]) -> list[bool]:
        """See :meth:`Transport.ack_many`."""
        ...

    async def nack(self, lease: Lease, delay: float = 0.0) -> bool:
        """See :meth:`Transport.nack`."""
        ...

    async def extend(self, lease: Lease, visibility: float) -> bool:
        """See :meth:`Transport.extend`."""
        ...

    async def extend_many(self, leases: Iterable[Lease], visibility: float) -> list[bool]:
        """See :meth:`Transport.extend_many`."""
        ...

    async def reject(self, lease: Lease, reason: str) -> bool:
        """See :meth:`Transport.reject`."""
        ...

    async def wait(self, timeout: float) -> bool:
        """See :meth:`Transport.wait`."""
        ...

    async def stats(self) -> QueueStats:
        """See :meth:`Transport.stats`."""
        ...

    async def groups(
        self, *, state: GroupState | None = None, limit: int = 100, after: str | None = None
    ) -> list[GroupInfo]:
        """See :meth:`Transport.groups`."""
        ...

    async def peek(self, group_id: str, limit: int = 10) -> list[StoredMessage]:
        """See :meth:`Transport.peek`."""
        ...

    async def hold(self, group_id: str) -> bool:
        """See :meth:`Transport.hold`."""
        ...

    async def release(self, group_id: str) -> bool:
        """See :meth:`Transport.release`."""
        ...

    async def purge(self, group_id: str) -> int:
        """See :meth:`Transport.purge`."""
        ...

    async def dead_letters(
        self, *, group_id: str | None = None, limit: int = 100, after: int | None = None
    ) -> list[DeadLetter]:
        """See :meth:`Transport.dead_letters`."""
        ...

    async def redrive(self, dead_letter_id: int) -> bool:
        """See :meth:`Transport.redrive`."""
        ...

    def bind(self, connection: Any) -> AsyncBound:
        """See :meth:`Transport.bind`."""
        ...

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """See :meth:`Transport.transaction`."""
        ...

    async def close(self) -> None:
        """See :meth:`Transport.close`."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...
