"""The in-memory queue itself: plain objects, one ordered line a priority, no I/O and no lock of its own.

Each core operation is O(log n) in the number of groups and constant in the number of messages.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from harel.engine.queue.contract import (
    BACKLOG_COUNTED,
    HIGHEST_PRIORITY,
    DeadLetter,
    GroupInfo,
    GroupState,
    Lease,
    Packed,
    QueueStats,
    StoredMessage,
)
from harel.engine.queue.schedule import FRESH, HELD, HELD_FROM, state_of, waiting_since
from harel.engine.queue.tokens import new_token, worker_of

__all__ = ["MemoryQueue"]


class _Message:
    """A link of a group's chain: a deque a group would take ten times the memory when groups are many."""

    __slots__ = ("behind", "raw", "seq")

    def __init__(self, seq: int, raw: str) -> None:
        self.seq = seq
        self.raw = raw
        self.behind: _Message | None = None


class _Group:
    __slots__ = ("arrival", "attempts", "group_id", "head", "number", "priority", "since", "tail", "ticket", "token")

    def __init__(self, group_id: str, arrival: int, priority: int, since: float) -> None:
        self.group_id = group_id
        self.arrival = arrival
        self.priority = priority
        self.since = since
        self.number = 0.0
        self.ticket = 0
        self.token: str | None = None
        self.attempts = 0
        self.head: _Message | None = None
        self.tail: _Message | None = None

    @property
    def place(self) -> tuple[float, int]:
        """What orders it: its number, and among equal numbers its arrival."""
        return self.number, self.arrival

    def messages(self) -> Iterator[_Message]:
        message = self.head
        while message is not None:
            yield message
            message = message.behind


class _Line:
    """The groups of one priority, ordered by their numbers; equal numbers by arrival.

    A heap whose outdated places are passed over when they come up, and cleared away when they are many.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, int, _Group]] = []
        self._tickets = 0
        self.size = 0

    def place(self, group: _Group, number: float) -> None:
        self._tickets += 1
        group.number = number
        group.ticket = self._tickets
        heapq.heappush(self._heap, (number, group.arrival, self._tickets, group))
        if len(self._heap) > 64 + 2 * self.size:
            self._heap = [place for place in self._heap if place[2] == place[3].ticket]
            heapq.heapify(self._heap)

    def first(self) -> _Group | None:
        heap = self._heap
        while heap and heap[0][2] != heap[0][3].ticket:
            heapq.heappop(heap)
        return heap[0][3] if heap else None


class MemoryQueue:
    """A queue in this process's memory.

    Parameters
    ----------
    clock : callable
        Returns epoch seconds.
    fresh_first : bool
        Whether groups that were never served go before those that were.

    Attributes
    ----------
    version : int
        Grows whenever something may have become claimable.
    """

    def __init__(self, clock: Callable[[], float], fresh_first: bool = True) -> None:
        self.version: int = 0
        self._clock = clock
        self._fresh = FRESH if fresh_first else 0.0
        self._groups: dict[str, _Group] = {}
        self._lines = [_Line() for _ in range(HIGHEST_PRIORITY + 1)]
        self._dead: dict[int, DeadLetter] = {}
        self._last_seq = 0
        self._arrivals = 0
        self._messages = 0

    def publish(self, messages: Sequence[Packed]) -> None:
        now = self._clock()
        for message in messages:
            self._append(message.group_id, message.raw, message.priority, now)
        self.version += 1

    def claim(self, worker_id: str, visibility: float, limit: int, min_priority: int, queue: str) -> list[Lease]:
        now = self._clock()
        leases: list[Lease] = []
        while len(leases) < limit:
            group = self._first(min_priority)
            if group is None or group.number > now:
                break
            leases.append(self._lease(group, worker_id, now, visibility, queue))
        return leases

    def ack(self, leases: Sequence[Lease]) -> list[bool]:
        now = self._clock()
        answers = []
        for lease in leases:
            group = self._held_by(lease)
            if group is not None:
                self._settle_head(group, now)
            answers.append(group is not None)
        return answers

    def nack(self, lease: Lease, delay: float) -> bool:
        group = self._held_by(lease)
        if group is None:
            return False
        self._free(group, self._clock(), delay)
        return True

    def extend(self, leases: Sequence[Lease], visibility: float) -> list[float | None]:
        expires_at = self._clock() + visibility
        answers: list[float | None] = []
        for lease in leases:
            group = self._held_by(lease)
            if group is not None:
                held = HELD if group.number >= HELD_FROM else 0.0
                self._line(group).place(group, expires_at + held)
            answers.append(None if group is None else expires_at)
        return answers

    def reject(self, lease: Lease, reason: str) -> bool:
        group = self._held_by(lease)
        if group is None or group.head is None:
            return False
        now = self._clock()
        self._dead[group.head.seq] = DeadLetter(
            seq=group.head.seq,
            group_id=group.group_id,
            raw=group.head.raw,
            attempts=group.attempts,
            reason=reason,
            rejected_at=now,
            priority=group.priority,
        )
        self._settle_head(group, now)
        return True

    def seconds_to_claimable(self) -> float:
        """Return 0.0 when something can be claimed, else for how long nothing will be, if nothing happens."""
        now = self._clock()
        group = self._first(0)
        return float("inf") if group is None else max(0.0, group.number - now)

    def stats(self) -> QueueStats:
        now = self._clock()
        counts: dict[GroupState, int] = {"ready": 0, "leased": 0, "parked": 0, "held": 0}
        oldest = now
        for group in self._groups.values():
            state = state_of(group.number, group.token is not None, now)
            counts[state] += 1
            if state == "ready":
                oldest = min(oldest, waiting_since(group.number))
        return QueueStats(
            messages=self._messages,
            groups=len(self._groups),
            ready=counts["ready"],
            leased=counts["leased"],
            parked=counts["parked"],
            held=counts["held"],
            dead_letters=len(self._dead),
            oldest_ready_s=now - oldest,
        )

    def groups(self, state: GroupState | None, limit: int, after: str | None) -> list[GroupInfo]:
        now = self._clock()
        names = sorted(self._groups)
        start = 0 if after is None else bisect_right(names, after)
        infos = (self._info(self._groups[name], now) for name in islice(names, start, None))
        return list(islice((info for info in infos if state in (None, info.state)), limit))

    def peek(self, group_id: str, limit: int) -> list[StoredMessage]:
        group = self._groups.get(group_id)
        if group is None:
            return []
        return [StoredMessage(seq=message.seq, raw=message.raw) for message in islice(group.messages(), limit)]

    def hold(self, group_id: str) -> bool:
        group = self._groups.get(group_id)
        if group is None:
            return False
        if group.number < HELD_FROM:
            group.since = self._clock()
            self._line(group).place(group, group.number + HELD)
        return True

    def release(self, group_id: str) -> bool:
        group = self._groups.get(group_id)
        if group is None or group.number < HELD_FROM:
            return False
        now = self._clock()
        number = now if group.token is None else max(now, group.number - HELD)
        group.since = now
        self._line(group).place(group, number)
        self._drop_if_drained(group)
        self.version += 1
        return True

    def purge(self, group_id: str) -> int:
        group = self._groups.get(group_id)
        if group is None:
            return 0
        held = group.number >= HELD_FROM
        expires_at = group.number - HELD if held else group.number
        kept = group.head if group.token is not None and expires_at > self._clock() else None
        count = sum(1 for _ in group.messages()) - (kept is not None)
        self._messages -= count
        group.head = group.tail = kept
        if kept is None:
            group.token = None
            group.attempts = 0
            self._drop_if_drained(group)
        else:
            kept.behind = None
        return count

    def dead_letters(self, group_id: str | None, limit: int, after: int | None) -> list[DeadLetter]:
        seqs = sorted(seq for seq in self._dead if after is None or seq > after)
        letters = (self._dead[seq] for seq in seqs)
        return list(islice((letter for letter in letters if group_id in (None, letter.group_id)), limit))

    def redrive(self, seq: int) -> bool:
        letter = self._dead.pop(seq, None)
        if letter is None:
            return False
        self._append(letter.group_id, letter.raw, letter.priority, self._clock())
        self.version += 1
        return True

    def _append(self, group_id: str, raw: str, priority: int, now: float) -> None:
        group = self._groups.get(group_id)
        if group is None:
            self._arrivals += 1
            group = self._groups[group_id] = _Group(group_id, self._arrivals, priority, now)
            self._line(group).size += 1
            self._line(group).place(group, now - self._fresh)
        self._last_seq += 1
        self._messages += 1
        message = _Message(self._last_seq, raw)
        if group.tail is None:
            group.head = message
        else:
            group.tail.behind = message
        group.tail = message

    def _first(self, min_priority: int) -> _Group | None:
        best: _Group | None = None
        for line in self._lines[min_priority:]:
            group = line.first() if line.size else None
            if group is not None and (best is None or group.place < best.place):
                best = group
        return best

    def _lease(self, group: _Group, worker_id: str, now: float, visibility: float, queue: str) -> Lease:
        message = group.head
        assert message is not None, "a group without messages that is not held"
        group.token = new_token(worker_id)
        group.attempts += 1
        group.since = now
        self._line(group).place(group, now + visibility)
        return Lease(
            group_id=group.group_id,
            raw=message.raw,
            seq=message.seq,
            token=group.token,
            attempt=group.attempts,
            expires_at=group.number,
            queue=queue,
        )

    def _held_by(self, lease: Lease) -> _Group | None:
        group = self._groups.get(lease.group_id)
        return group if group is not None and group.token == lease.token else None

    def _settle_head(self, group: _Group, now: float) -> None:
        assert group.head is not None, "a lease without a message"
        group.head = group.head.behind
        if group.head is None:
            group.tail = None
        self._messages -= 1
        group.attempts = 0
        self._free(group, now, 0.0)
        self._drop_if_drained(group)

    def _free(self, group: _Group, now: float, delay: float) -> None:
        group.token = None
        if group.number < HELD_FROM:
            group.since = now
            self._line(group).place(group, now + delay)
        self.version += 1

    def _drop_if_drained(self, group: _Group) -> None:
        if group.head is None and group.number < HELD_FROM:
            group.ticket = 0
            self._line(group).size -= 1
            del self._groups[group.group_id]

    def _line(self, group: _Group) -> _Line:
        return self._lines[group.priority]

    def _info(self, group: _Group, now: float) -> GroupInfo:
        state = state_of(group.number, group.token is not None, now)
        return GroupInfo(
            group_id=group.group_id,
            state=state,
            since=max(group.since, group.number) if state == "ready" else group.since,
            until=group.number if state in ("leased", "parked") else None,
            holder=worker_of(group.token) if group.token and state in ("leased", "held") else None,
            attempts=group.attempts,
            messages=sum(1 for _ in islice(group.messages(), BACKLOG_COUNTED)),
            priority=group.priority,
        )
