"""rqlite's operations against each other, when requests and replies are lost, late and doubled, in every order.

An operation is one request, and then two at a time have two orders; but one that got no answer is asked again, and what
was found already done is read. Promises 1 to 6 and 10 hold after all of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations_with_replacement

import pytest

from harel.engine.queue.rqlite.cluster import Answer, Post
from harel.testing import ManualClock
from harel.testing.explorer import Exploration, explore
from tests.interleavings.rqlite_steps import Beginning, RqliteScene, RqliteSetting, Server
from tests.interleavings.test_pairs import ENTRANTS, Enter, draining, expired_draining, live

DANGEROUS = (
    ("publish", "publish"),
    ("publish", "ack"),
    ("publish", "worker"),
    ("publish", "purge"),
    ("claim", "claim"),
    ("claim", "ack"),
    ("claim", "nack"),
    ("claim", "extend"),
    ("claim_many", "ack_many"),
    ("ack", "ack"),
    ("reject", "worker"),
    ("redrive", "redrive"),
    ("hold", "release"),
)
"""Where what one does twice, or late, the other could notice most."""

PAIRS = tuple(combinations_with_replacement(ENTRANTS, 2))


class Worlds:
    """Makes the same scene again and again, each on a new queue."""

    def __init__(self, prepare: Enter, names: tuple[str, ...], server_class: type[Server] = Server) -> None:
        self._prepare = prepare
        self._names = names
        self._beginning = Beginning(server_class)
        self._server: Server | None = None

    def __call__(self) -> RqliteScene:
        self.close()
        setting = RqliteSetting(self._beginning, ManualClock())
        self._prepare(setting)
        self._server = self._beginning.go_on()
        setting.scene.goes_on_with(self._server)
        for name in self._names:
            ENTRANTS[name](setting)
        return setting.scene

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None


def explored(worlds: Worlds, crashes: int, mishaps: int) -> Exploration:
    try:
        return explore(worlds, crashes=crashes, mishaps=mishaps)
    finally:
        worlds.close()


def all_tried(prepare: Enter, which: Iterable[tuple[str, ...]], crashes: int, mishaps: int) -> int:
    """Try all orders, and return how many there were."""
    schedules = 0
    for names in which:
        exploration = explored(Worlds(prepare, names), crashes, mishaps)
        assert not exploration.failures, exploration
        schedules += exploration.schedules
    return schedules


def _titled(prepare: Enter) -> str:
    return prepare.__name__


@pytest.mark.parametrize("prepare", [draining, expired_draining], ids=_titled)
def test_no_two_operations_break_a_promise_when_a_request_is_lost_late_or_heard_twice(prepare: Enter) -> None:
    pairs = DANGEROUS if prepare is draining else (("publish", "ack"), ("claim", "claim"), ("claim", "ack"))
    print(all_tried(prepare, pairs, crashes=0, mishaps=1), "orders")


def test_no_two_operations_break_a_promise_when_their_clients_die_in_doubt() -> None:
    """One that asks again may die before it has its answer."""
    print(all_tried(live, [("publish", "ack")], crashes=1, mishaps=1), "orders")


def test_no_two_operations_break_a_promise() -> None:
    print(all_tried(draining, PAIRS, crashes=0, mishaps=0), "orders")


class _Forgetful(Server):
    """Forgets at once which requests it has done."""

    def send(self, post: Post) -> Answer:
        self.database.connection.execute("DELETE FROM transport_requests")
        return super().send(post)


@pytest.mark.parametrize("names", [("publish", "worker"), ("claim", "ack")], ids=", ".join)
def test_a_request_that_is_done_twice_is_found_out(names: tuple[str, ...]) -> None:
    """Promise 3: there are two messages of one, or one that is gone was settled by nobody."""
    exploration = explored(Worlds(draining, names, _Forgetful), crashes=0, mishaps=1)
    assert any("Promise 3" in failure for failure in exploration.failures), exploration
