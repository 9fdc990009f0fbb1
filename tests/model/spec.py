"""The contract once more, in the plainest words: lists, flags and loops, and no thought for speed.

The in-memory queue, which all other backends are compared with, is compared with this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from uuid import uuid4

from harel import Event, Message
from harel.engine.queue.contract import DeadLetter, GroupInfo, GroupState, Lease, QueueStats, StoredMessage
from harel.events import encode_event


@dataclass
class Group:
    group_id: str
    priority: int
    first_published: float
    waits_from: float
    """When it came or comes into line."""
    since: float
    """When its present state began."""
    fresh: bool = True
    """Never served."""
    held: bool = False
    token: str | None = None
    attempts: int = 0
    messages: list[StoredMessage] = field(default_factory=list)


class Spec:
    """A queue with the methods of a transport."""

    def __init__(self, clock: Callable[[], float], fresh_first: bool) -> None:
        self._clock = clock
        self._fresh_first = fresh_first
        self._all: list[Group] = []  # in the order of their first publishes
        self._dead: list[DeadLetter] = []
        self._seq = 0

    def publish(self, group_id: str, event: Event, priority: int = 0) -> None:
        group = self._find(group_id)
        if group is None:
            now = self._clock()
            group = Group(group_id, priority, first_published=now, waits_from=now, since=now)
            self._all.append(group)
        self._seq += 1
        group.messages.append(StoredMessage(seq=self._seq, raw=encode_event(event)))

    def publish_many(self, messages: Iterable[Message]) -> None:
        for message in messages:
            self.publish(*message)

    def claim(self, worker_id: str, visibility: float, min_priority: int = 0) -> Lease | None:
        leases = self.claim_many(worker_id, visibility, 1, min_priority)
        return leases[0] if leases else None

    def claim_many(self, worker_id: str, visibility: float, limit: int, min_priority: int = 0) -> list[Lease]:
        ready = [group for group in self._all if self._state(group) == "ready" and group.priority >= min_priority]
        ready.sort(key=lambda group: (not (group.fresh and self._fresh_first), group.waits_from))
        return [self._lease(group, worker_id, visibility) for group in ready[:limit]]

    def _lease(self, group: Group, worker_id: str, visibility: float) -> Lease:
        group.fresh = False
        group.token = f"{worker_id}:{uuid4()}"
        group.attempts += 1
        group.since = self._clock()
        group.waits_from = self._clock() + visibility
        head = group.messages[0]
        return Lease(
            group_id=group.group_id,
            seq=head.seq,
            raw=head.raw,
            token=group.token,
            attempt=group.attempts,
            expires_at=group.waits_from,
            queue="spec",
        )

    def ack(self, lease: Lease) -> bool:
        group = self._leased(lease)
        if group is not None:
            self._settle(group)
        return group is not None

    def ack_many(self, leases: Iterable[Lease]) -> list[bool]:
        return [self.ack(lease) for lease in leases]

    def nack(self, lease: Lease, delay: float = 0.0) -> bool:
        group = self._leased(lease)
        if group is not None:
            self._free(group, delay)
        return group is not None

    def extend(self, lease: Lease, visibility: float) -> bool:
        group = self._leased(lease)
        if group is not None:
            group.waits_from = lease.expires_at = self._clock() + visibility
        return group is not None

    def reject(self, lease: Lease, reason: str) -> bool:
        group = self._leased(lease)
        if group is None:
            return False
        letter = DeadLetter(
            seq=lease.seq,
            group_id=lease.group_id,
            raw=lease.raw,
            attempts=group.attempts,
            reason=reason,
            rejected_at=self._clock(),
            priority=group.priority,
        )
        self._dead.append(letter)
        self._settle(group)
        return True

    def wait(self, timeout: float) -> bool:
        return any(self._state(group) == "ready" for group in self._all)

    def stats(self) -> QueueStats:
        states = [self._state(group) for group in self._all]
        waits = [self._clock() - group.waits_from for group in self._all if self._state(group) == "ready"]
        return QueueStats(
            messages=sum(len(group.messages) for group in self._all),
            groups=len(self._all),
            ready=states.count("ready"),
            leased=states.count("leased"),
            parked=states.count("parked"),
            held=states.count("held"),
            dead_letters=len(self._dead),
            oldest_ready_s=max([0.0, *waits]),
        )

    def groups(self, *, state: GroupState | None = None, limit: int = 100, after: str | None = None) -> list[GroupInfo]:
        chosen = [
            group for group in self._all if state in (None, self._state(group)) and group.group_id > (after or "")
        ]
        return [self._info(group) for group in sorted(chosen, key=lambda group: group.group_id)][:limit]

    def _info(self, group: Group) -> GroupInfo:
        state = self._state(group)
        return GroupInfo(
            group_id=group.group_id,
            state=state,
            since=max(group.since, group.waits_from) if state == "ready" else group.since,
            until=group.waits_from if state in ("leased", "parked") else None,
            holder=group.token.rsplit(":", 1)[0] if group.token and state in ("leased", "held") else None,
            attempts=group.attempts,
            messages=len(group.messages),
            priority=group.priority,
        )

    def peek(self, group_id: str, limit: int = 10) -> list[StoredMessage]:
        group = self._find(group_id)
        return group.messages[:limit] if group else []

    def hold(self, group_id: str) -> bool:
        group = self._find(group_id)
        if group is None:
            return False
        if not group.held:
            group.held = True
            group.since = self._clock()
        return True

    def release(self, group_id: str) -> bool:
        group = self._find(group_id)
        if group is None or not group.held:
            return False
        now = self._clock()
        group.waits_from = max(now, group.waits_from) if group.token else now
        group.held = group.fresh = False
        group.since = now
        self._forget_if_drained(group)
        return True

    def purge(self, group_id: str) -> int:
        group = self._find(group_id)
        if group is None:
            return 0
        in_flight = group.token is not None and group.waits_from > self._clock()
        before = len(group.messages)
        del group.messages[1 if in_flight else 0 :]
        if not in_flight:
            group.token = None
            group.attempts = 0
            self._forget_if_drained(group)
        return before - len(group.messages)

    def dead_letters(
        self, *, group_id: str | None = None, limit: int = 100, after: int | None = None
    ) -> list[DeadLetter]:
        letters = sorted(self._dead, key=lambda letter: letter.seq)
        return [
            letter
            for letter in letters
            if group_id in (None, letter.group_id) and (after is None or letter.seq > after)
        ][:limit]

    def redrive(self, dead_letter_id: int) -> bool:
        for letter in self._dead:
            if letter.seq == dead_letter_id:
                self._dead.remove(letter)
                self.publish(letter.group_id, letter.event, letter.priority)
                return True
        return False

    def close(self) -> None:
        pass

    def _find(self, group_id: str) -> Group | None:
        return next((group for group in self._all if group.group_id == group_id), None)

    def _leased(self, lease: Lease) -> Group | None:
        group = self._find(lease.group_id)
        return group if group is not None and group.token == lease.token else None

    def _state(self, group: Group) -> GroupState:
        if group.held:
            return "held"
        if group.waits_from <= self._clock() or (group.fresh and self._fresh_first):
            return "ready"
        return "leased" if group.token else "parked"

    def _settle(self, group: Group) -> None:
        del group.messages[0]
        group.attempts = 0
        self._free(group, 0.0)
        self._forget_if_drained(group)

    def _free(self, group: Group, delay: float) -> None:
        group.token = None
        if not group.held:
            group.since = self._clock()
            group.waits_from = self._clock() + delay

    def _forget_if_drained(self, group: Group) -> None:
        if not group.messages and not group.held:
            self._all.remove(group)
