"""A message that is settled before it is counted: what its count finds, and what others find meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest

from harel import GroupInfo
from harel.engine.queue.contract import Packed
from harel.engine.queue.mongo import requests as ask
from harel.engine.queue.mongo.counting import OWED_S
from harel.engine.queue.mongo.tickets import publishing
from harel.engine.queue.op import Op, run
from tests.mongo.test_steps import Table


@pytest.fixture
def table() -> Table:
    return Table()


class Slow:
    """A publish that has stored its messages and counts them when it is told to."""

    def __init__(self, table: Table, *messages: tuple[str, int]) -> None:
        self._table = table
        self._op: Op[Any] = table.ops.publish([Packed(group, '"slow"', priority) for group, priority in messages])
        self._request = next(self._op)
        while not isinstance(self._request, ask.InsertEach):
            self._request = self._op.send(table.client.send(self._request))
        self._request = self._op.send(table.client.send(self._request))

    def counts(self) -> None:
        run(self._rest(), self._table.client.send)

    def _rest(self) -> Op[None]:
        """Go on from the request that was reached."""
        with suppress(StopIteration):
            while True:
                try:
                    reply = yield self._request
                except ask.Duplicate as refused:
                    self._request = self._op.throw(refused)
                else:
                    self._request = self._op.send(reply)

    def dies(self) -> None:
        self._op.close()


def publish(table: Table, *messages: tuple[str, int]) -> None:
    table.do(table.ops.publish([Packed(group, '"new"', priority) for group, priority in messages]))


def settle_all(table: Table) -> int:
    count = 0
    while leases := table.do(table.ops.claim("w", 30.0, 1, 0)):
        assert table.do(table.ops.ack(leases)) == [True]
        count += 1
    return count


def groups(table: Table) -> list[GroupInfo]:
    return list(table.do(table.ops.groups(None, 10, None)))


def locks(table: Table) -> list[Any]:
    return list(table.client.send(ask.Find("locks", {})))


def settled_early(table: Table, *, groups: Sequence[str] = ("a",)) -> Slow:
    """Make a publish whose messages have been settled, and their groups have drained, before it counts them."""
    publish(table, *[(name, 0) for name in groups])
    slow = Slow(table, *[(name, 1) for name in groups])
    assert settle_all(table) == 2 * len(groups)
    return slow


@pytest.mark.parametrize("names", [("a",), ("a", "b")], ids=["one group", "two groups"])
def test_a_count_that_comes_last_leaves_nothing_behind(table: Table, names: Sequence[str]) -> None:
    slow = settled_early(table, groups=names)
    assert groups(table) == []
    slow.counts()
    assert groups(table) == []
    assert locks(table) == []


def test_what_is_published_after_it_is_a_first_publish(table: Table) -> None:
    """Promises 7 and 8: neither the place in line nor the priority of what was settled."""
    slow = settled_early(table)
    slow.counts()
    table.now += 5.0
    publish(table, ("b", 0))
    publish(table, ("a", 3))
    assert [(info.group_id, info.priority) for info in groups(table)] == [("a", 3), ("b", 0)]
    (urgent,) = table.do(table.ops.claim("w", 30.0, 1, 3))
    assert urgent.group_id == "a"
    table.do(table.ops.nack(urgent, 0.0))
    (first,) = table.do(table.ops.claim("w", 30.0, 1, 0))
    assert first.group_id == "b"


def test_what_is_published_before_it_is_a_first_publish_and_drains(table: Table) -> None:
    slow = settled_early(table)
    publish(table, ("a", 3))
    slow.counts()
    (info,) = groups(table)
    assert (info.priority, info.messages, info.attempts) == (3, 1, 0)
    assert settle_all(table) == 1
    assert locks(table) == []


def test_what_is_published_and_settled_before_it_is_no_count_of_its_own(table: Table) -> None:
    slow = settled_early(table)
    publish(table, ("a", 3))
    assert settle_all(table) == 1
    assert groups(table) == []
    slow.counts()
    assert locks(table) == []
    publish(table, ("a", 2))
    assert [info.priority for info in groups(table)] == [2]


def test_a_batch_of_which_one_group_was_settled_early_begins_the_others(table: Table) -> None:
    publish(table, ("a", 0))
    slow = Slow(table, ("a", 1), ("b", 2), ("a", 1))
    assert settle_all(table) == 3
    slow.counts()
    assert [(info.group_id, info.priority, info.messages) for info in groups(table)] == [("b", 2, 1)]
    assert settle_all(table) == 1
    assert locks(table) == []


def test_two_that_count_late_both_count_once(table: Table) -> None:
    publish(table, ("a", 0))
    one, other = Slow(table, ("a", 1)), Slow(table, ("a", 2))
    assert settle_all(table) == 3
    for slow in (other, one):
        assert len(locks(table)) == 1
        slow.counts()
    assert locks(table) == []


def test_one_that_counts_while_another_begins_the_group_anew_counts_in_that(table: Table) -> None:
    """Between its looking at what is owed and its changing that, somebody publishes."""
    slow = settled_early(table)
    real = table.client.send
    came: list[bool] = []

    def send(request: Any) -> Any:
        if isinstance(request, ask.DeleteOne) and request.collection == "locks" and not came:
            came.append(True)
            publish(table, ("a", 3))
        return real(request)

    table.client.send = send  # type: ignore[method-assign]
    slow.counts()
    assert came
    assert [(info.priority, info.messages) for info in groups(table)] == [(3, 1)]
    assert settle_all(table) == 1
    assert locks(table) == []


def test_the_count_that_comes_between_the_look_and_the_drop_leaves_no_empty_group(table: Table) -> None:
    publish(table, ("a", 0))
    slow = Slow(table, ("a", 1))
    (lease,) = table.do(table.ops.claim("w", 30.0, 1, 0))
    assert table.do(table.ops.ack([lease])) == [True]
    (lease,) = table.do(table.ops.claim("w", 30.0, 1, 0))
    came: list[bool] = []

    def meddle(request: Any) -> None:
        if isinstance(request, ask.UpdateOne) and "owed" in request.update.get("$set", ()) and not came:
            came.append(True)
            slow.counts()

    assert table.do(table.ops.ack([lease]), meddle) == [True]
    assert came
    assert locks(table) == []


@pytest.mark.parametrize("method", ["hold", "release", "purge", "peek"])
def test_a_group_that_owes_is_no_group(table: Table, method: str) -> None:
    slow = settled_early(table)
    args: tuple[Any, ...] = ("a", 10) if method == "peek" else ("a",)
    assert not table.do(getattr(table.ops, method)(*args))
    assert table.do(table.ops.stats()).groups == 0
    slow.counts()
    assert locks(table) == []


def test_what_is_owed_by_a_publisher_that_died_is_forgotten(table: Table) -> None:
    settled_early(table).dies()
    table.now += OWED_S - 1.0
    assert settle_all(table) == 0
    assert len(locks(table)) == 1
    table.now += 2.0
    assert settle_all(table) == 0
    assert locks(table) == []


def test_a_late_message_that_waits_when_what_is_owed_is_forgotten_is_delivered(table: Table) -> None:
    settled_early(table).dies()
    late = Slow(table, ("a", 2))
    table.now += OWED_S + 1.0
    (lease,) = table.do(table.ops.claim("w", 30.0, 1, 0))
    late.counts()
    assert table.do(table.ops.extend([lease], 30.0)) == [table.now + 30.0]
    assert table.do(table.ops.ack([lease])) == [True]
    assert locks(table) == []


def purged(table: Table) -> None:
    assert table.do(table.ops.purge("a")) == 2


def purged_behind_the_head(table: Table) -> None:
    (lease,) = table.do(table.ops.claim("w", 30.0, 1, 0))
    assert table.do(table.ops.purge("a")) == 1
    assert table.do(table.ops.ack([lease])) == [True]


def acked_among_others(table: Table) -> None:
    publish(table, ("b", 0))
    while leases := table.do(table.ops.claim("w", 30.0, 10, 0)):
        assert all(table.do(table.ops.ack(leases)))


def rejected(table: Table) -> None:
    for _ in range(2):
        (lease,) = table.do(table.ops.claim("w", 30.0, 1, 0))
        assert table.do(table.ops.reject(lease, "why"))


@pytest.mark.parametrize("how", [purged, purged_behind_the_head, acked_among_others, rejected])
def test_whatever_settled_it_its_count_begins_no_group(table: Table, how: Callable[[Table], None]) -> None:
    publish(table, ("a", 0))
    slow = Slow(table, ("a", 1))
    how(table)
    slow.counts()
    assert locks(table) == []


@pytest.mark.parametrize("times", [1, 2])
def test_a_ticket_that_is_carried_out_late_counts_once_in_what_is_owed(table: Table, times: int) -> None:
    """A transaction stored its message, which was settled before anybody came to carry the ticket out."""
    publish(table, ("a", 0))
    table.client.send(ask.InsertEach("messages", [{"_id": 100, "group_id": "a", "event": '"bound"'}]))
    # A third message is never counted, so that one count is still owed after the ticket's.
    Slow(table, ("a", 1)).dies()
    assert settle_all(table) == 3
    ticket = publishing([Packed("a", '"bound"', 2)], 100, table.now)
    for _ in range(times):
        table.client.send(ask.InsertEach("locks", [ticket]))
        table.do(table.ops.take_in_these([ticket["_id"]]))
    (lock,) = locks(table)
    assert lock["owed"] == 1


def test_a_redrive_that_lost_is_settled_by_whoever_deletes_it(table: Table) -> None:
    """Else its group would seem to have one message more than it has, and stay when it drains."""
    publish(table, ("a", 0))
    (lease,) = table.do(table.ops.claim("w", 30.0, 1, 0))
    assert table.do(table.ops.reject(lease, "why"))
    slow = table.ops.redrive(lease.seq)
    request = next(slow)
    while not (isinstance(request, ask.FindAndUpdate) and request.collection == "dead_letters"):
        request = slow.send(table.client.send(request))
    assert table.do(table.ops.redrive(lease.seq)) is True
    slow.close()
    publish(table, ("a", 0))
    assert settle_all(table) == 2
    assert locks(table) == []


def acked_while_another_claims(table: Table) -> Op[Any]:
    """Ack a group's last message; have a claim take the group before it is dropped, and be slow. Return that claim."""
    (lease,) = table.do(table.ops.claim("w", 30.0, 1, 0))
    claiming = table.ops.claim("slow", 30.0, 1, 0)
    taken: list[Any] = []

    def meddle(request: Any) -> None:
        if isinstance(request, ask.DeleteOne) and request.collection == "messages":
            taken.append(claiming.send(table.client.send(next(claiming))))

    assert table.do(table.ops.ack([lease]), meddle) == [True]
    return _from(claiming, taken[0])


def _from(op: Op[Any], request: Any) -> Op[Any]:
    """Go on with an operation from a request on."""
    try:
        while True:
            request = op.send((yield request))
    except StopIteration as done:
        return done.value


def test_a_claim_that_took_a_drained_group_and_died_leaves_it_neither_its_priority_nor_its_message(
    table: Table,
) -> None:
    publish(table, ("a", 1))
    acked_while_another_claims(table)
    publish(table, ("a", 3))
    (info,) = groups(table)
    assert (info.state, info.priority, info.messages) == ("leased", 3, 1)
    assert table.do(table.ops.claim("w", 30.0, 1, 0)) == []
    table.now += 31.0
    (lease,) = table.do(table.ops.claim("w", 30.0, 1, 3))
    assert table.do(table.ops.ack([lease])) == [True]
    assert locks(table) == []


def test_a_claim_that_took_a_drained_group_delivers_what_came_meanwhile(table: Table) -> None:
    publish(table, ("a", 1))
    slow = acked_while_another_claims(table)
    publish(table, ("a", 3))
    (lease,) = run(slow, table.client.send)
    assert lease.raw == '"new"'
    assert table.do(table.ops.claim("w", 30.0, 1, 0)) == []
    assert table.do(table.ops.ack([lease])) == [True]
    assert locks(table) == []


def test_a_claim_that_took_a_drained_group_drops_it(table: Table) -> None:
    publish(table, ("a", 1))
    slow = acked_while_another_claims(table)
    assert groups(table) == []
    assert run(slow, table.client.send) == []
    assert locks(table) == []


def test_what_a_taken_group_owes_is_not_forgotten_by_the_one_who_took_it(table: Table) -> None:
    publish(table, ("a", 0))
    late = Slow(table, ("a", 1))
    (lease,) = table.do(table.ops.claim("w", 30.0, 1, 0))
    assert table.do(table.ops.ack([lease])) == [True]
    claiming = acked_while_another_claims(table)
    assert run(claiming, table.client.send) == []
    assert [lock["owed"] for lock in locks(table)] == [1]
    late.counts()
    assert locks(table) == []


def test_a_late_count_leaves_a_taken_group_to_the_one_who_took_it(table: Table) -> None:
    """It was settled, and is all that was owed; but who took the lock may be about to deliver another message."""
    publish(table, ("a", 0))
    late = Slow(table, ("a", 1))
    (lease,) = table.do(table.ops.claim("w", 30.0, 1, 0))
    assert table.do(table.ops.ack([lease])) == [True]
    claiming = acked_while_another_claims(table)
    other = Slow(table, ("a", 2))
    (delivered,) = run(claiming, table.client.send)
    late.counts()
    assert table.do(table.ops.extend([delivered], 30.0)) == [table.now + 30.0]
    other.counts()
    assert table.do(table.ops.ack([delivered])) == [True]
    assert locks(table) == []
