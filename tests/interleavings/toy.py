"""A backend in a dict whose operations take several steps, in a naive way and in a guarded one.

It is what the explorer is tested on. The naive one is what one writes first: each step is right by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from harel.engine.queue.contract import Capabilities, GroupInfo, Lease, Packed, StoredMessage
from harel.engine.queue.op import Op
from harel.engine.queue.schedule import FRESH, state_of
from harel.engine.queue.tokens import new_token, worker_of

SETTLING_S = 10.0
"""For how long a guarded settle keeps others away."""


@dataclass
class Lock:
    """A group's record."""

    number: float
    token: str | None = None
    attempts: int = 0
    version: int = 0


class Store:
    """The server: each of its methods is one step."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.messages: dict[int, tuple[str, str]] = {}
        self.locks: dict[str, Lock] = {}
        self.last_seq = 0

    def add(self, message: Packed) -> None:
        self.last_seq += 1
        self.messages[self.last_seq] = (message.group_id, message.raw)

    def remove(self, seq: int) -> None:
        self.messages.pop(seq, None)

    def head(self, group_id: str) -> tuple[int, str] | None:
        found = [(seq, raw) for seq, (group, raw) in self.messages.items() if group == group_id]
        return min(found, default=None)

    def upsert(self, group_id: str) -> None:
        lock = self.locks.setdefault(group_id, Lock(self.clock() - FRESH))
        lock.version += 1

    def take(self, token: str, visibility: float) -> tuple[str, Lock] | None:
        now = self.clock()
        free = [(lock.number, group_id) for group_id, lock in self.locks.items() if lock.number <= now]
        if not free:
            return None
        group_id = min(free)[1]
        lock = self.locks[group_id]
        lock.number, lock.token, lock.attempts = now + visibility, token, lock.attempts + 1
        return group_id, Lock(lock.number, token, lock.attempts, lock.version)

    def current(self, group_id: str, token: str) -> bool:
        lock = self.locks.get(group_id)
        return lock is not None and lock.token == token

    def move(self, group_id: str, token: str, seconds: float, free: bool = False) -> Lock | None:
        """If the token is current, set when the group may next be claimed."""
        lock = self.locks.get(group_id)
        if lock is None or lock.token != token:
            return None
        lock.number = self.clock() + seconds
        if free:
            lock.token, lock.attempts = None, 0
        return Lock(lock.number, token, lock.attempts, lock.version)

    def drop(self, group_id: str, version: int | None = None) -> bool:
        lock = self.locks.get(group_id)
        if lock is None or version not in (None, lock.version):
            return False
        del self.locks[group_id]
        return True


class NaiveOps:
    """Publish writes the message and then the lock; ack deletes the message, looks, and deletes the lock."""

    queue = "toy"
    capabilities = Capabilities(
        priority=False, hold=False, purge=False, dead_letters=False, max_event_bytes=1_000, max_visibility_s=1e6
    )

    def __init__(self, store: Store) -> None:
        self.store = store

    def prepare(self) -> Op[None]:
        yield from ()

    def publish(self, messages: Sequence[Packed]) -> Op[None]:
        for message in messages:
            yield partial(self.store.add, message)
            yield partial(self.store.upsert, message.group_id)

    def claim(self, worker_id: str, visibility: float, limit: int, min_priority: int) -> Op[list[Lease]]:
        token = new_token(worker_id)
        while taken := (yield partial(self.store.take, token, visibility)):
            group_id, lock = taken
            head = yield partial(self.store.head, group_id)
            if head is not None:
                seq, raw = head
                return [self._lease(group_id, raw, seq, lock)]
            yield from self._leave(group_id, lock)
        return []

    def _lease(self, group_id: str, raw: str, seq: int, lock: Lock) -> Lease:
        assert lock.token is not None
        return Lease(
            group_id=group_id,
            raw=raw,
            seq=seq,
            token=lock.token,
            attempt=lock.attempts,
            expires_at=lock.number,
            queue=self.queue,
        )

    def _leave(self, group_id: str, lock: Lock) -> Op[None]:
        """Let go of a group in which no message was found."""
        yield partial(self.store.drop, group_id)

    def ack(self, leases: Sequence[Lease]) -> Op[list[bool]]:
        (lease,) = leases
        if not (yield partial(self.store.current, lease.group_id, lease.token)):
            return [False]
        yield partial(self.store.remove, lease.seq)
        if (yield partial(self.store.head, lease.group_id)) is None:
            yield partial(self.store.drop, lease.group_id)
        else:
            yield partial(self.store.move, lease.group_id, lease.token, 0.0, free=True)
        return [True]

    def nack(self, lease: Lease, delay: float) -> Op[bool]:
        moved = yield partial(self.store.move, lease.group_id, lease.token, delay, free=True)
        return moved is not None

    def extend(self, leases: Sequence[Lease], visibility: float) -> Op[list[float | None]]:
        ends: list[float | None] = []
        for lease in leases:
            moved = yield partial(self.store.move, lease.group_id, lease.token, visibility)
            ends.append(moved.number if moved else None)
        return ends

    def reject(self, lease: Lease, reason: str) -> Op[bool]:
        (answer,) = yield from self.ack((lease,))
        return answer

    def groups(self, state: str | None, limit: int, after: str | None) -> Op[list[GroupInfo]]:
        infos: list[GroupInfo] = yield self._infos
        return infos

    def peek(self, group_id: str, limit: int) -> Op[list[StoredMessage]]:
        waiting: list[StoredMessage] = yield partial(self._waiting, group_id)
        return waiting

    def _infos(self) -> list[GroupInfo]:
        now = self.store.clock()
        return [
            GroupInfo(
                group_id=group_id,
                state=state_of(lock.number, lock.token is not None, now),
                since=0.0,
                until=None,
                holder=worker_of(lock.token) if lock.token else None,
                attempts=lock.attempts,
                messages=len(self._waiting(group_id)),
                priority=0,
            )
            for group_id, lock in sorted(self.store.locks.items())
        ]

    def _waiting(self, group_id: str) -> list[StoredMessage]:
        messages = sorted(self.store.messages.items())
        return [StoredMessage(seq=seq, raw=raw) for seq, (group, raw) in messages if group == group_id]

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the toy has no {name}")


class GuardedOps(NaiveOps):
    """The same, with two guards.

    A publish counts the lock's version up, and a lock is dropped only if its version is what it was before the
    messages were looked for. And an ack first renews the lease, in the step that checks the token, so that
    nobody takes the group over while it is at work.
    """

    def ack(self, leases: Sequence[Lease]) -> Op[list[bool]]:
        (lease,) = leases
        lock = yield partial(self.store.move, lease.group_id, lease.token, SETTLING_S)
        if lock is None:
            return [False]
        yield partial(self.store.remove, lease.seq)
        if (yield partial(self.store.head, lease.group_id)) is not None or not (
            yield partial(self.store.drop, lease.group_id, lock.version)
        ):
            yield partial(self.store.move, lease.group_id, lease.token, 0.0, free=True)
        return [True]

    def _leave(self, group_id: str, lock: Lock) -> Op[None]:
        if not (yield partial(self.store.drop, group_id, lock.version)):
            assert lock.token is not None
            yield partial(self.store.move, group_id, lock.token, 0.0, free=True)


class UnfencedOps(GuardedOps):
    """The guarded one without the renewal: its ack checks the token and only then goes to work."""

    def ack(self, leases: Sequence[Lease]) -> Op[list[bool]]:
        (lease,) = leases
        lock = self.store.locks.get(lease.group_id)
        if not (yield partial(self.store.current, lease.group_id, lease.token)) or lock is None:
            return [False]
        version = lock.version
        yield partial(self.store.remove, lease.seq)
        if (yield partial(self.store.head, lease.group_id)) is not None or not (
            yield partial(self.store.drop, lease.group_id, version)
        ):
            yield partial(self.store.move, lease.group_id, lease.token, 0.0, free=True)
        return [True]


class LockFirstOps(GuardedOps):
    """Publishes the lock before the message, so that a claim finds it empty, drops it, and the message comes late."""

    def publish(self, messages: Sequence[Packed]) -> Op[None]:
        for message in messages:
            yield partial(self.store.upsert, message.group_id)
            yield partial(self.store.add, message)
