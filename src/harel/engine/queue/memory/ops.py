"""The in-memory operations: each is one request, a call that the driver makes under the queue's lock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from harel.engine.queue.contract import (
    Capabilities,
    DeadLetter,
    GroupInfo,
    GroupState,
    Lease,
    Packed,
    QueueStats,
    StoredMessage,
)
from harel.engine.queue.memory.state import MemoryQueue
from harel.engine.queue.op import Op, Sleep
from harel.engine.queue.schedule import LONGEST_S

__all__ = ["LOOK_AGAIN_S", "MemoryOps"]

T = TypeVar("T")

LOOK_AGAIN_S = 1.0
"""A wait looks at the clock this often, in seconds, since a clock may jump; a publish ends it at once."""


class MemoryOps:
    """Operations over a :class:`MemoryQueue`.

    Parameters
    ----------
    state : MemoryQueue
    look_again_s : float
        How often a wait looks at the clock, in seconds.
    """

    capabilities: Capabilities = Capabilities(
        shared=False, remote=False, max_event_bytes=2**30, max_visibility_s=LONGEST_S
    )

    def __init__(self, state: MemoryQueue, look_again_s: float = LOOK_AGAIN_S) -> None:
        self.queue: str = f"memory://{id(state):x}"
        self._state = state
        self._look_again_s = look_again_s

    def prepare(self) -> Op[None]:
        yield from ()

    def publish(self, messages: Sequence[Packed]) -> Op[None]:
        return _ask(partial(self._state.publish, messages))

    def claim(self, worker_id: str, visibility: float, limit: int, min_priority: int) -> Op[list[Lease]]:
        return _ask(partial(self._state.claim, worker_id, visibility, limit, min_priority, self.queue))

    def ack(self, leases: Sequence[Lease]) -> Op[list[bool]]:
        return _ask(partial(self._state.ack, leases))

    def nack(self, lease: Lease, delay: float) -> Op[bool]:
        return _ask(partial(self._state.nack, lease, delay))

    def extend(self, leases: Sequence[Lease], visibility: float) -> Op[list[float | None]]:
        return _ask(partial(self._state.extend, leases, visibility))

    def reject(self, lease: Lease, reason: str) -> Op[bool]:
        return _ask(partial(self._state.reject, lease, reason))

    def wait(self, timeout: float) -> Op[bool]:
        left = timeout
        while True:
            seen, pause = yield self._look
            if pause <= 0.0:
                return True
            if left <= 0.0:
                return False
            left -= yield Sleep(min(pause, left, self._look_again_s), seen)

    def stats(self) -> Op[QueueStats]:
        return _ask(self._state.stats)

    def groups(self, state: GroupState | None, limit: int, after: str | None) -> Op[list[GroupInfo]]:
        return _ask(partial(self._state.groups, state, limit, after))

    def peek(self, group_id: str, limit: int) -> Op[list[StoredMessage]]:
        return _ask(partial(self._state.peek, group_id, limit))

    def hold(self, group_id: str) -> Op[bool]:
        return _ask(partial(self._state.hold, group_id))

    def release(self, group_id: str) -> Op[bool]:
        return _ask(partial(self._state.release, group_id))

    def purge(self, group_id: str) -> Op[int]:
        return _ask(partial(self._state.purge, group_id))

    def dead_letters(self, group_id: str | None, limit: int, after: int | None) -> Op[list[DeadLetter]]:
        return _ask(partial(self._state.dead_letters, group_id, limit, after))

    def redrive(self, seq: int) -> Op[bool]:
        return _ask(partial(self._state.redrive, seq))

    def _look(self) -> tuple[int, float]:
        return self._state.version, self._state.seconds_to_claimable()


def _ask(call: Callable[[], T]) -> Op[T]:
    reply: T = yield call
    return reply
