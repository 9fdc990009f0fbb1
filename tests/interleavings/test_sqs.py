"""SQS's operations, each of one call or several, against each other: two at a time and chosen threes, in every order.

Any of them may die after any call; or a call may be lost, or its answer. Promises 1 to 5 hold after all of it, and the
queue drains. What SQS says of a call whose answer was lost is for the client to understand.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations_with_replacement

import pytest

from harel.engine.queue.sqs.ops import SqsOps
from harel.testing import ManualClock
from harel.testing.explorer import Exploration, explore
from tests.interleavings.sqs_steps import SqsScene, SqsSetting
from tests.interleavings.test_pairs import (
    ENTRANTS,
    VISIBILITY_S,
    Enter,
    draining,
    expired,
    expired_draining,
    live,
    replaced,
    settled,
)

TIME = "time"
"""In the place of an operation: all leases run out."""

SETTINGS = (live, draining, expired, expired_draining, replaced, settled)

CORE = (
    "publish",
    "publish elsewhere",
    "publish_many",
    "claim",
    "claim_many",
    "ack",
    "ack_many",
    "nack",
    "park",
    "extend",
    "reject",
    "worker",
)
"""What SQS can do."""

THREES = (
    ("publish", "ack", "claim"),
    ("publish", "reject", "worker"),
    ("ack", "nack", "claim"),
    ("ack", "reject", "worker"),
    ("extend", "claim", "ack"),
    ("worker", "worker", "publish_many"),
)


class Worlds:
    """Makes the same scene again and again, each on a new queue."""

    def __init__(self, prepare: Enter, names: tuple[str, ...], ops_class: type[SqsOps] = SqsOps) -> None:
        self._prepare = prepare
        self._names = names
        self._ops_class = ops_class

    def __call__(self) -> SqsScene:
        setting = SqsSetting(ManualClock(), self._ops_class)
        self._prepare(setting)
        for name in self._names:
            if name == TIME:
                setting.scene.meet_time(VISIBILITY_S + 1.0)
            else:
                ENTRANTS[name](setting)
        return setting.scene


def tried(prepare: Enter, names: tuple[str, ...], crashes: int, mishaps: int) -> int:
    """Try all orders, and return how many there were."""
    exploration = explore(Worlds(prepare, names), crashes=crashes, mishaps=mishaps)
    assert not exploration.failures, exploration
    return exploration.schedules


def all_tried(prepare: Enter, which: Iterable[tuple[str, ...]], crashes: int, mishaps: int) -> int:
    return sum(tried(prepare, names, crashes, mishaps) for names in which)


PAIRS = tuple(combinations_with_replacement(CORE, 2))
SHORT_PAIRS = tuple(pair for pair in PAIRS if "publish_many" not in pair)
"""Without what is only longer: a publish of many is a publish in several calls."""


def _titled(prepare: Enter) -> str:
    return prepare.__name__


@pytest.mark.parametrize("prepare", SETTINGS, ids=_titled)
def test_no_two_operations_break_a_promise_whoever_dies(prepare: Enter) -> None:
    print(all_tried(prepare, PAIRS, crashes=1, mishaps=0), "orders")


@pytest.mark.parametrize("prepare", [live, draining], ids=_titled)
def test_no_two_operations_break_a_promise_while_their_leases_run_out(prepare: Enter) -> None:
    """Promises 1, 2 and 5, also if a client sleeps for long between its calls."""
    print(all_tried(prepare, ((*pair, TIME) for pair in SHORT_PAIRS), crashes=1, mishaps=0), "orders")


@pytest.mark.parametrize("prepare", [draining, expired_draining], ids=_titled)
def test_no_two_operations_break_a_promise_when_a_call_or_its_answer_is_lost(prepare: Enter) -> None:
    print(all_tried(prepare, SHORT_PAIRS, crashes=0, mishaps=1), "orders")


@pytest.mark.parametrize("pair", [("claim", "nack"), ("publish elsewhere", "claim")], ids=", ".join)
def test_an_answer_that_is_lost_until_the_lease_has_run_out_breaks_no_promise(pair: tuple[str, str]) -> None:
    """SQS says nothing more of what the first try received, and refuses what it has given back."""
    print(tried(draining, (*pair, TIME), crashes=0, mishaps=1), "orders")


def test_no_three_operations_break_a_promise() -> None:
    print(all_tried(draining, THREES, crashes=0, mishaps=0), "orders")


class _TrustsAnyReceipt(SqsOps):
    """Takes a lease for its own, however long ago it was claimed, and does not renew it to reject it."""

    def _is_live(self, lease: object) -> bool:
        return True

    def _is_held(self, outcome: object) -> bool:
        return True


def test_a_client_that_trusts_any_receipt_is_found_out() -> None:
    exploration: Exploration = explore(Worlds(expired, ("ack", "worker"), _TrustsAnyReceipt))
    assert any("Promise 5" in failure for failure in exploration.failures), exploration
