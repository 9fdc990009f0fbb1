"""MongoDB's operations in a caller's transaction against the others, in every order; any of them may die.

A transaction that is open when its client dies stays open: what it wrote keeps writes of the same documents waiting,
and those give up here, until the server aborts it. That may come at any moment too, as a scene's ``expiry``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from harel.engine.queue.op import run
from harel.testing import ManualClock
from harel.testing.explorer import explore
from tests.interleavings.mongo_steps import Again, MongoScene, OneByOne, make_ops
from tests.interleavings.test_mongo import MongoSetting
from tests.interleavings.test_pairs import (
    ENTRANTS,
    Enter,
    draining,
    expired,
    expired_draining,
    held_draining,
    live,
    replaced,
    settled,
)

ALL = os.environ.get("HAREL_MONGO_ORDERS") == "all"

BOUND: dict[str, Callable[[MongoSetting], None]] = {
    "bound ack": lambda at: at.scene.meet_bound("ack", at.lease),
    "bound ack, own": lambda at: at.scene.meet_bound("ack", at.lease, takes_in=True),
    "bound nack": lambda at: at.scene.meet_bound("nack", at.lease, 0.0),
    "bound park": lambda at: at.scene.meet_bound("nack", at.lease, 60.0),
    "bound reject": lambda at: at.scene.meet_bound("reject", at.lease, "why"),
    "bound publish": lambda at: at.scene.meet_bound("publish", "g", at.event(), 0),
    "bound publish, own": lambda at: at.scene.meet_bound("publish", "g", at.event(), 0, takes_in=True),
    "expiry": lambda at: at.scene.meet_expiry(),
}


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
            enter: Any = BOUND.get(name) or ENTRANTS[name]
            enter(setting)
        return setting.scene


def no_order_breaks_a_promise(prepare: Enter, names: tuple[str, ...], crashes: int) -> None:
    exploration = explore(Worlds(prepare, names), crashes=crashes)
    assert not exploration.failures, str(exploration)[:5_000]
    print(exploration.schedules, "orders")


SETTLINGS = ("bound ack", "bound ack, own", "bound nack", "bound park", "bound reject")
OTHERS = ("claim", "claim_many", "extend", "ack", "nack", "publish", "hold", "release", "purge")
PUBLISHES = ("bound publish", "bound publish, own")
SHORT = ("claim", "claim_many", "extend", "nack", "hold", "release")
LONG = {*PUBLISHES, *SETTLINGS, "purge", "reject", "publish"}
"""Operations of so many steps that two of them have hundreds of thousands of orders, if one may die."""


def cases() -> list[Any]:
    """Choose who meets whom, in which setting, and how many may die."""
    chosen: list[tuple[Enter, tuple[str, ...], int]] = []
    if ALL:
        pairs = [(one, other) for one in (*SETTLINGS, *PUBLISHES) for other in (*OTHERS, *SETTLINGS, "reject")]
        pairs = [pair for pair in pairs if pair[1] in SHORT or "own" not in "".join(pair)]
        settings = (live, draining, expired, expired_draining, replaced, held_draining)
        chosen += [(prepare, pair, 0 if LONG.issuperset(pair) else 1) for prepare in settings for pair in pairs]
        chosen += [
            (settled, (one, other), 0 if "own" in one + other else 1)
            for one in PUBLISHES
            for other in (*OTHERS, *PUBLISHES)
        ]
        chosen += [
            (prepare, (one, other, "expiry"), 1 if other == "extend" else 0)
            for prepare in (expired, expired_draining)
            for one in SETTLINGS
            for other in ("claim", "extend")
        ]
    else:
        chosen += [(expired_draining, ("bound ack", other), 1) for other in ("claim", "claim_many", "extend")]
        chosen += [(expired, ("bound ack", "claim"), 1), (expired, ("bound ack, own", "claim"), 0)]
        chosen += [(expired, (one, "claim"), 1) for one in ("bound park", "bound reject")]
        chosen += [(expired_draining, (one, other), 0) for one in ("bound ack", "bound nack") for other in ("purge",)]
        chosen += [(draining, ("bound ack", other), 1) for other in ("publish", "hold", "nack", "extend")]
        chosen += [(draining, ("bound ack", "bound nack"), 0), (replaced, ("bound ack", "ack"), 1)]
        chosen += [(held_draining, ("bound ack", "release"), 1)]
        chosen += [(settled, ("bound publish", other), 1) for other in ("claim", "publish", "hold")]
        chosen += [(settled, ("bound publish", "bound publish"), 0)]
        chosen += [(draining, ("bound publish", other), 1) for other in ("ack", "claim")]
        chosen += [(expired, ("bound ack", "claim", "expiry"), 0)]
    return [
        pytest.param(prepare, names, crashes, id=f"{prepare.__name__}-{' - '.join(names)}")
        for prepare, names, crashes in chosen
    ]


@pytest.mark.timeout(3_600 if ALL else 120)
@pytest.mark.parametrize(("prepare", "names", "crashes"), cases())
def test_no_order_breaks_a_promise_whoever_dies(prepare: Enter, names: tuple[str, ...], crashes: int) -> None:
    no_order_breaks_a_promise(prepare, names, crashes)
