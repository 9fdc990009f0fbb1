"""MongoDB's operations, each of several steps, against each other: two at a time and chosen threes, in every order.

Any of them may die after any step; promises 1 to 6 and 10 hold after all of it. Unset, the dangerous orders of the
operations on one group are tried; ``HAREL_MONGO_ORDERS=all`` tries all pairs of the core in every setting.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import combinations_with_replacement
from typing import Any

import pytest

from harel.engine.queue.op import run
from harel.testing import ManualClock
from harel.testing.explorer import explore
from tests.interleavings.mongo_steps import Again, MongoScene, OneByOne, make_ops
from tests.interleavings.test_pairs import (
    ENTRANTS,
    SETTINGS,
    VISIBILITY_S,
    Enter,
    Setting,
    draining,
    expired_draining,
    live,
    settled,
)

ALL = os.environ.get("HAREL_MONGO_ORDERS") == "all"

CORE = ("publish", "claim", "ack", "nack", "extend", "reject", "hold", "release", "purge", "redrive")
LONG = {"reject", "purge", "redrive"}
"""Operations of so many steps that two of them have tens of thousands of orders, if one may die."""

FOUGHT_OVER = (draining, expired_draining)
"""Where a group may be dropped while another client is at work on it, with its lease live and with it run out."""

THREES = (
    ("ack", "claim", "claim"),
    ("extend", "claim", "ack"),
    ("hold", "ack", "release"),
    ("publish", "ack", "claim"),
    ("nack", "claim", "purge"),
    ("publish", "publish", "claim"),
    ("publish", "publish", "ack"),
    ("publish", "reject", "claim"),
    ("hold", "ack", "publish"),
)
SHORT_THREES = THREES[:3]


class MongoSetting(Setting):
    """The same setting, for operations of several steps."""

    def __init__(self, ops: Any, send: Callable[[Any], Any], clock: ManualClock) -> None:
        self.scene: MongoScene = MongoScene(ops, send, clock)
        self.clock = clock
        self.send = None
        self._events = 0
        self.dead = self._dead_letter()
        self.lease = self.scene.do("claim", "w", VISIBILITY_S, 0)


class Worlds:
    """Makes the same scene again and again, each on a new queue."""

    def __init__(self, prepare: Enter, names: tuple[str, ...]) -> None:
        self._prepare = prepare
        self._names = names
        self._again = Again()

    def __call__(self) -> MongoScene:
        clock = ManualClock()
        ops = make_ops(clock)
        run(ops.prepare(), self._again.send)
        setting = MongoSetting(OneByOne(ops), self._again.send, clock)
        self._prepare(setting)
        setting.scene.goes_on_with(self._again.go_on())
        for name in self._names:
            ENTRANTS[name](setting)
        return setting.scene


def no_order_breaks_a_promise(prepare: Enter, names: tuple[str, ...], crashes: int = 1) -> int:
    exploration = explore(Worlds(prepare, names), crashes=crashes)
    assert not exploration.failures, exploration
    return exploration.schedules


def _cases() -> list[Any]:
    """Choose which pairs are tried in which setting, and how many may die."""
    if ALL:
        chosen = [
            (prepare, pair, 1)
            for prepare in SETTINGS
            for pair in combinations_with_replacement(ENTRANTS if prepare in (live, draining) else CORE, 2)
        ]
    else:
        chosen = [
            (prepare, pair, 0 if LONG.issuperset(pair) else 1)
            for prepare in FOUGHT_OVER
            for pair in combinations_with_replacement(CORE, 2)
            if not LONG.issuperset(pair) or (prepare is draining and pair[0] == pair[1])
        ]
        chosen += [
            (settled, ("publish elsewhere", "worker"), 1),
            (draining, ("ack_many", "claim_many"), 1),
            (expired_draining, ("claim", "claim_many"), 1),
            (expired_draining, ("ack", "claim_many"), 1),
        ]
    return [
        pytest.param(prepare, pair, crashes, id=f"{prepare.__name__}-{', '.join(pair)}")
        for prepare, pair, crashes in chosen
    ]


@pytest.mark.timeout(3_600 if ALL else 120)
@pytest.mark.parametrize(("prepare", "pair", "crashes"), _cases())
def test_no_two_operations_break_a_promise_whoever_dies(prepare: Enter, pair: tuple[str, str], crashes: int) -> None:
    print(no_order_breaks_a_promise(prepare, pair, crashes), "orders")


@pytest.mark.timeout(3_600 if ALL else 120)
@pytest.mark.parametrize("names", THREES if ALL else SHORT_THREES, ids=", ".join)
def test_no_three_operations_break_a_promise(names: tuple[str, ...]) -> None:
    for prepare in FOUGHT_OVER if ALL else FOUGHT_OVER[:1]:
        print(no_order_breaks_a_promise(prepare, names, crashes=0), "orders")


def test_the_same_beginning_is_only_answered_and_the_same() -> None:
    """A world whose beginning is answered from memory is the same as one that went through it."""
    worlds = Worlds(draining, ("ack", "publish"))
    first, again = worlds(), worlds()
    assert [str(one._state()) for one in (first, again)] == [str(first._state())] * 2
    assert first.faults() == again.faults() == []
