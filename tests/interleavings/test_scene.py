"""What a scene asks of its queue after the schedule, when nobody in the schedule would have noticed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest

from harel import Event
from harel.engine.queue.contract import Lease
from harel.engine.queue.op import Op
from harel.testing import ManualClock
from harel.testing.explorer import Scene, explore
from tests.interleavings.toy import GuardedOps, Store


class AnyTokenExtends(GuardedOps):
    """Its extend asks whether the group is leased, and not by whom."""

    def extend(self, leases: Sequence[Lease], visibility: float) -> Op[list[float | None]]:
        (lease,) = leases
        token = self.store.locks[lease.group_id].token or ""
        moved = yield partial(self.store.move, lease.group_id, token, visibility)
        return [moved.number if moved else None]


class AnyTokenNacks(GuardedOps):
    """Its nack says that the lease was lost, and ends the one that replaced it."""

    def nack(self, lease: Lease, delay: float) -> Op[bool]:
        lock = self.store.locks[lease.group_id]
        yield partial(self.store.move, lease.group_id, lock.token or "", delay, free=True)
        return lock.token == lease.token


def _a_lease_that_another_replaces(ops: type[GuardedOps]) -> Scene:
    clock = ManualClock()
    scene = Scene(ops(Store(clock)), lambda request: request(), clock)
    scene.do("publish", "g", Event("k", id="a"), 0)
    scene.do("claim", "w", 30.0, 0)
    clock.advance(31.0)
    scene.meet("publish", "g", Event("k", id="b"), 0)
    return scene


@pytest.mark.parametrize(
    ("ops", "told"),
    [(AnyTokenExtends, "extend succeeded with"), (AnyTokenNacks, "what old tokens were used for changed")],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_an_old_token_that_still_changes_something_is_found_promise_5(ops: type[GuardedOps], told: str) -> None:
    exploration = explore(lambda: _a_lease_that_another_replaces(ops))
    assert exploration.failures
    assert all(f"Promise 5: {told}" in failure for failure in exploration.failures), exploration


def test_one_that_changes_nothing_is_no_fault() -> None:
    exploration = explore(lambda: _a_lease_that_another_replaces(GuardedOps))
    assert exploration.schedules > 1
    assert not exploration.failures, exploration
