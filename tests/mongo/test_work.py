"""How much an operation asks of the server: so many commands, so many documents, whatever waits. Promise 10."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from harel import Event, Lease, Message, Transport
from harel.testing import ManualClock
from tests.mongo.conftest import Twin, seen_by
from tests.servers.mongo import StandIn

EVENT = Event("noted", {"n": 1})
FEW, MANY = 30, 3_000


class Bench:
    """A queue whose server's work is listed."""

    def __init__(self, twin: Twin, stand_in: StandIn, **options: Any) -> None:
        self.clock = ManualClock(tick=0.001)
        self.queue: Transport = twin.open(clock=self.clock, **options)
        self._stand_in = stand_in
        self._twin = twin

    def fill(self, groups: int, priority: int = 0, prefix: str = "filler") -> None:
        self.queue.publish_many(Message(f"{prefix}{n}", EVENT, priority) for n in range(groups))

    def take(self, floor: int = 0) -> Lease:
        lease = self.queue.claim("w", 30.0, floor)
        assert lease is not None
        return lease

    def work(self, call: Callable[[], object]) -> list[dict[str, Any]]:
        """Return the commands that a call gives."""
        self._stand_in.log()
        call()
        return seen_by(self._twin.db_name, self._stand_in.log())

    def commands(self, call: Callable[[], object]) -> list[str]:
        return [f"{work['command']} {work['collection'].removeprefix('transport_')}" for work in self.work(call)]

    def cost(self, call: Callable[[], object]) -> list[tuple[str, int]]:
        """Return the commands with how many documents each looked at."""
        return [(work["command"], work["documents"]) for work in self.work(call)]


@pytest.fixture
def bench(twin: Twin, stand_in: StandIn) -> Bench:
    return Bench(twin, stand_in)


NUMBER, STORE, COUNT = "findAndModify counters", "insert messages", "update locks"
LOCK, HEAD, DELETE, DROP = "findAndModify locks", "find messages", "delete messages", "delete locks"
LOOK = "aggregate locks"


def test_publish_numbers_stores_and_counts(bench: Bench) -> None:
    assert bench.commands(lambda: bench.queue.publish("g", EVENT)) == [NUMBER, STORE, COUNT]
    assert bench.commands(lambda: bench.queue.publish("g", EVENT)) == [NUMBER, STORE, COUNT]


def test_a_batch_takes_as_many_commands_as_one_message_up_to_a_thousand(bench: Bench) -> None:
    def publish(count: int) -> list[str]:
        return bench.commands(lambda: bench.queue.publish_many([Message(f"g{n % 7}", EVENT) for n in range(count)]))

    assert publish(2) == publish(1_000) == [NUMBER, STORE, COUNT]
    assert publish(1_001) == [NUMBER, STORE, COUNT, STORE, COUNT]


def test_a_batch_of_large_events_is_sent_in_parts_that_the_protocol_takes(sync_twin: Twin, stand_in: StandIn) -> None:
    bench = Bench(sync_twin, stand_in)
    large = Event("large", {"text": "x" * (3 * 2**20)})
    batch = [Message(f"g{n}", large) for n in range(4)]
    assert bench.commands(lambda: bench.queue.publish_many(batch)) == [NUMBER, *[STORE, COUNT] * 4]
    assert sorted(lease.group_id for lease in bench.queue.claim_many("w", 30.0, 10)) == ["g0", "g1", "g2", "g3"]


def test_claim_takes_a_lock_and_reads_the_head(bench: Bench) -> None:
    bench.queue.publish("g", EVENT)
    assert bench.commands(lambda: bench.take()) == [LOCK, HEAD]
    assert bench.commands(lambda: bench.queue.claim("w", 30.0)) == [LOCK]
    assert bench.commands(lambda: bench.queue.claim("w", 30.0, 3)) == [LOCK]


@pytest.mark.parametrize("count", [2, 20])
def test_claim_many_takes_three_commands_for_any_number(bench: Bench, count: int) -> None:
    bench.fill(count)
    leases: list[Lease] = []
    commands = bench.commands(lambda: leases.extend(bench.queue.claim_many("w", 30.0, count)))
    assert commands == ["find locks", "update locks", LOOK]
    assert len(leases) == count
    assert bench.commands(lambda: bench.queue.claim_many("w", 30.0, 5)) == ["find locks"]


def test_ack_settles_and_deletes_and_looks_only_when_the_group_seems_empty(bench: Bench) -> None:
    bench.queue.publish_many([Message("g", EVENT) for _ in range(2)])
    lease = bench.take()
    assert bench.commands(lambda: bench.queue.ack(lease)) == [LOCK, DELETE]
    assert bench.commands(lambda: bench.queue.ack(lease)) == [LOCK]
    last = bench.take()
    assert bench.commands(lambda: bench.queue.ack(last)) == [LOCK, DELETE, HEAD, DROP]


def test_an_ack_after_a_retry_takes_one_more(bench: Bench) -> None:
    bench.queue.publish_many([Message("g", EVENT) for _ in range(2)])
    bench.queue.nack(bench.take())
    lease = bench.take()
    assert bench.commands(lambda: bench.queue.ack(lease)) == [LOCK, "delete dead_letters", DELETE]


def test_ack_many_settles_each_and_does_the_rest_at_once(bench: Bench) -> None:
    bench.fill(5)
    leases = bench.queue.claim_many("w", 30.0, 5)
    assert bench.commands(lambda: bench.queue.ack_many(leases)) == [*[LOCK] * 5, DELETE, LOOK, DROP]
    assert bench.queue.stats().groups == 0


def test_what_changes_only_the_lock_is_one_command(bench: Bench) -> None:
    bench.fill(3)
    leases = bench.queue.claim_many("w", 30.0, 3)
    assert bench.commands(lambda: bench.queue.extend(leases[0], 30.0)) == [COUNT]
    assert bench.commands(lambda: bench.queue.extend_many(leases, 30.0)) == [COUNT, "find locks"]
    assert bench.commands(lambda: bench.queue.nack(leases[0], 5.0)) == [COUNT]
    assert bench.commands(lambda: bench.queue.hold("filler1")) == [COUNT]
    assert bench.commands(lambda: bench.queue.wait(0.0)) == ["find locks"]


def test_reject_and_redrive(bench: Bench) -> None:
    bench.queue.publish_many([Message("g", EVENT) for _ in range(2)])
    lease = bench.take()
    letter = "update dead_letters"
    assert bench.commands(lambda: bench.queue.reject(lease, "why")) == [letter, LOCK, letter, DELETE]
    assert bench.commands(lambda: bench.queue.redrive(lease.seq)) == [
        "find dead_letters",
        NUMBER,
        STORE,
        COUNT,
        "findAndModify dead_letters",
        "update messages",
        "delete dead_letters",
    ]


def test_a_transaction_costs_the_next_claim_what_it_left_to_do(bench: Bench, twin: Twin) -> None:
    """And later claims nothing."""
    session = twin.client().start_session()
    twin.wait_for(session.start_transaction())
    bound: Any = bench.queue.bind(session)
    assert bench.commands(lambda: twin.wait_for(bound.publish("g", EVENT))) == [NUMBER, STORE, "insert locks"]
    twin.wait_for(session.commit_transaction())
    leases: list[Lease] = []
    ticket = [LOCK, COUNT, DROP]
    assert bench.commands(lambda: leases.append(bench.take())) == [*ticket, LOCK, HEAD]
    bench.queue.publish("g", EVENT)
    twin.wait_for(session.start_transaction())
    bound = bench.queue.bind(session)
    assert bench.commands(lambda: twin.wait_for(bound.ack(leases[0]))) == [DELETE, LOCK, "insert locks"]
    twin.wait_for(session.commit_transaction())
    ticket = [LOCK, LOCK, DROP]
    assert bench.commands(lambda: bench.take()) == [*ticket, LOCK, HEAD]
    assert bench.commands(lambda: bench.queue.claim("w", 30.0)) == [LOCK]
    twin.wait_for(session.end_session())


def _core(bench: Bench, name: str) -> dict[str, list[tuple[str, int]]]:
    """Return the cost of each core operation on the group that is first in line, and of ``wait``."""
    queue = bench.queue
    leases: list[Lease] = []
    return {
        "publish": bench.cost(lambda: queue.publish(name, EVENT)),
        "first publish": bench.cost(lambda: queue.publish(f"new {name}", EVENT)),
        "claim": bench.cost(lambda: leases.append(bench.take())),
        "extend": bench.cost(lambda: queue.extend(leases[0], 60.0)),
        "ack": bench.cost(lambda: queue.ack(leases[0])),
        "claim again": bench.cost(lambda: leases.append(bench.take())),
        "nack": bench.cost(lambda: queue.nack(leases[1])),
        "many": bench.cost(lambda: leases.extend(queue.claim_many("w", 30.0, 5))),
        "reject": bench.cost(lambda: queue.reject(leases[2], "a reason")),
        "wait": bench.cost(lambda: queue.wait(0.0)),
        "hold": bench.cost(lambda: queue.hold(name)),
        "release": bench.cost(lambda: queue.release(name)),
        "peek": bench.cost(lambda: queue.peek(name, 1)),
    }


def test_work_does_not_grow_with_the_groups_promise_10(sync_twin: Twin, stand_in: StandIn) -> None:
    def core(groups: int) -> dict[str, list[tuple[str, int]]]:
        sync_twin.db_name += "x"
        bench = Bench(sync_twin, stand_in)
        bench.queue.publish_many([Message("g", EVENT), Message("g", EVENT)])
        bench.fill(groups)
        return _core(bench, "g")

    few = core(FEW)
    assert few == core(MANY)
    assert few["claim"] == [("findAndModify", 1), ("find", 1)]


def test_work_does_not_grow_with_the_messages_of_a_group_promise_10(sync_twin: Twin, stand_in: StandIn) -> None:
    def core(messages: int) -> dict[str, list[tuple[str, int]]]:
        sync_twin.db_name += "x"
        bench = Bench(sync_twin, stand_in)
        bench.queue.publish_many(Message("g", EVENT) for _ in range(messages))
        bench.fill(FEW)
        return _core(bench, "g")

    assert core(FEW) == core(MANY)


@pytest.mark.parametrize("floor", [1, 2, 3, 4])
def test_a_floor_costs_the_same_behind_any_backlog_of_lower_groups_promises_8_and_10(
    sync_twin: Twin, stand_in: StandIn, floor: int
) -> None:
    bench = Bench(sync_twin, stand_in)
    for priority in range(floor):
        bench.fill(100, priority, f"low{priority}-")
    bench.queue.publish("high", EVENT, floor)
    leases: list[Lease] = []
    assert bench.cost(lambda: leases.append(bench.take(floor))) == [("findAndModify", 1), ("find", 1)]
    assert leases[0].group_id == "high"
    assert bench.cost(lambda: bench.queue.claim("w", 30.0, floor)) == [("findAndModify", 0)]
    assert bench.cost(lambda: bench.queue.claim_many("w", 30.0, 9, floor)) == [("find", 0)]


@pytest.mark.parametrize("state", ["leased", "parked", "held"])
def test_groups_that_cannot_be_claimed_are_not_in_a_claims_way_promise_4(
    sync_twin: Twin, stand_in: StandIn, state: str
) -> None:
    bench = Bench(sync_twin, stand_in)
    bench.fill(200)
    for lease in bench.queue.claim_many("w", 60.0, 200):
        if state == "parked":
            assert bench.queue.nack(lease, 60.0)
        elif state == "held":
            assert bench.queue.hold(lease.group_id)
    assert bench.cost(lambda: bench.queue.claim("w", 30.0)) == [("findAndModify", 0)]
    bench.queue.publish("g", EVENT)
    assert bench.cost(bench.take) == [("findAndModify", 1), ("find", 1)]
    assert bench.cost(lambda: bench.queue.wait(0.0))[0][1] <= 1


def test_what_lists_is_served_by_an_index_a_page_at_a_time(sync_twin: Twin, stand_in: StandIn) -> None:
    bench = Bench(sync_twin, stand_in)
    bench.fill(50)
    for lease in bench.queue.claim_many("w", 30.0, 40):
        assert bench.queue.reject(lease, "a reason")
    assert bench.cost(lambda: bench.queue.dead_letters(limit=5, after=20)) == [("find", 5)]
    assert bench.cost(lambda: bench.queue.dead_letters(group_id="filler7")) == [("find", 1)]
    # First they look whether a transaction has left anything to be done.
    assert bench.cost(lambda: bench.queue.groups(limit=3)) == [("find", 0), ("aggregate", 3 + 3)]
    assert len(bench.work(bench.queue.stats)) == 1 + 3


def test_a_backlog_is_counted_up_to_a_thousand_messages(sync_twin: Twin, stand_in: StandIn) -> None:
    bench = Bench(sync_twin, stand_in)
    bench.queue.publish_many(Message("g", EVENT) for _ in range(MANY))
    assert bench.cost(bench.queue.groups) == [("find", 0), ("aggregate", 1 + 1_001)]
    assert bench.queue.groups()[0].messages == 1_000
