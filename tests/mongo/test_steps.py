"""What an operation does when another client is quicker by a step: played against it, without a server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from harel import HarelError, Lease
from harel.engine.queue.contract import Packed
from harel.engine.queue.mongo import requests as ask
from harel.engine.queue.mongo.ops import MongoOps
from harel.engine.queue.mongo.tickets import publishing
from harel.engine.queue.op import Op, run
from tests.interleavings.mongo_steps import StoreClient

NOW = 1_700_000_000.0


class Table:
    """A queue in a store, and what goes wrong with the requests to it."""

    def __init__(self) -> None:
        self.now = NOW
        self.client = StoreClient()
        self.ops = MongoOps(
            "q", "transport", clock=lambda: self.now, fresh_first=True, poll_interval_s=1.0, create_schema=True
        )
        self.sent: list[Any] = []
        self.do(self.ops.prepare())

    def do(self, op: Op[Any], meddle: Callable[[Any], Any] = lambda request: None) -> Any:
        """Run an operation; ``meddle`` sees each request before it is sent, and may raise."""
        self.sent = []

        def send(request: Any) -> Any:
            self.sent.append(request)
            meddle(request)
            return self.client.send(request)

        return run(op, send)

    def publish(self, *names: str) -> None:
        self.do(self.ops.publish([Packed(group, f'"{name}"', 0) for group, name in (one.split() for one in names)]))

    def claim(self) -> Lease:
        (lease,) = self.do(self.ops.claim("w", 30.0, 1, 0))
        return lease  # type: ignore[no-any-return]

    def waiting(self, group_id: str) -> list[str]:
        return [message.raw for message in self.do(self.ops.peek(group_id, 100))]


@pytest.fixture
def table() -> Table:
    return Table()


def once(kind: Any, error: Exception, among: str) -> Callable[[Any], None]:
    """Make the first request of a kind to a collection fail."""
    left = [error]

    def meddle(request: Any) -> None:
        if isinstance(request, kind) and request.collection == among and left:
            raise left.pop()

    return meddle


def finished(op: Op[Any], request: Any, table: Table) -> Any:
    """Run an operation to its end, from a request on."""
    try:
        while True:
            request = op.send(table.client.send(request))
    except StopIteration as done:
        return done.value


@pytest.mark.parametrize(
    ("messages", "kind", "among", "places"),
    [
        (["a 1"], ask.FindAndUpdate, "counters", [0]),
        (["a 1"], ask.UpdateOne, "locks", [0]),
        (["a 1", "b 2", "c 3"], ask.UpdateEach, "locks", [0, 1, 2]),
    ],
    ids=["the counter", "a lock", "several locks"],
)
def test_an_upsert_is_repeated_when_another_client_made_the_document(
    table: Table, messages: Sequence[str], kind: Any, among: str, places: list[int]
) -> None:
    packed = [Packed(group, raw, 0) for group, raw in (one.split() for one in messages)]
    table.do(table.ops.publish(packed), once(kind, ask.Duplicate(places), among))
    assert len([request for request in table.sent if isinstance(request, kind) and request.collection == among]) == 2
    assert table.do(table.ops.stats()).groups == len(messages)


def test_only_the_locks_that_were_refused_are_counted_again(table: Table) -> None:
    table.publish("a 1", "b 1")

    def meddle(request: Any) -> None:
        if isinstance(request, ask.UpdateEach) and len(request.updates) == 2:
            table.client.send(ask.UpdateEach(request.collection, request.updates[:1], upsert=True))
            raise ask.Duplicate([1])

    table.do(table.ops.publish([Packed("a", "2", 0), Packed("b", "2", 0)]), meddle)
    locks = table.client.send(ask.Find("locks", {}, order=(("_id", 1),)))
    assert [(lock["_id"], lock["version"]) for lock in locks] == [("a", 2), ("b", 2)]


def test_a_number_that_is_taken_is_an_error_that_says_why(table: Table) -> None:
    table.publish("a 1")
    table.client.send(ask.UpdateOne("counters", {"_id": "seq"}, {"$set": {"n": 0}}))
    with pytest.raises(HarelError, match="Message 1 exists"):
        table.publish("a 2")


def test_two_that_begin_to_reject_at_once_lose_no_letter(table: Table) -> None:
    """An upsert of one is refused since the other's came in the same moment; its token must still be there."""
    table.publish("a 1", "a 2")
    lost = table.claim()
    table.now += 31.0
    lease = table.claim()

    def meddle(request: Any) -> None:
        if isinstance(request, ask.UpdateOne) and request.upsert:
            pending = {"_id": lost.seq, "state": "pending"}
            letter = {"group_id": "a", "event": "x"}
            change = {"$addToSet": {"tokens": lost.token}, "$setOnInsert": letter}
            table.client.send(ask.UpdateOne("dead_letters", pending, change, upsert=True))
            raise ask.Duplicate

    assert table.do(table.ops.reject(lease, "why"), meddle) is True
    letters = table.do(table.ops.dead_letters(None, 10, None))
    assert [(letter.seq, letter.reason) for letter in letters] == [(lease.seq, "why")]


def test_a_rejection_by_an_older_lease_does_not_bring_a_redriven_letter_back(table: Table) -> None:
    """A zombie's letter that does not show, and a claimer that finishes a rejection late, of which all is done."""
    table.publish("a 1", "a 2")
    zombie = table.claim()
    table.now += 31.0
    lease = table.claim()
    rejecting = table.ops.reject(lease, "why")
    table.client.send(next(rejecting))
    request = rejecting.send(True)
    lock = table.client.send(request)
    claiming = table.ops.claim("late", 30.0, 1, 0)
    taken = table.client.send(next(claiming))
    # The late claimer looks for the head, finds what was settled, and is slow.
    finishing = claiming.send(table.client.send(claiming.send(taken)))
    request = rejecting.send(lock)
    assert finished(rejecting, request, table) is True
    assert table.do(table.ops.redrive(lease.seq)) is True
    late = table.ops.reject(zombie, "late")
    table.client.send(next(late))
    table.client.send(finishing)
    assert table.do(table.ops.dead_letters(None, 10, None)) == []


def test_a_late_message_with_a_smaller_number_is_delivered_and_nothing_settled_comes_back(table: Table) -> None:
    """Two publish at once, and the smaller number is stored when the other is settled but not deleted yet."""
    slow = table.ops.publish([Packed("a", '"slow"', 0)])
    number = table.client.send(next(slow))
    storing = slow.send(number)
    table.publish("a quick", "a third")
    acking = table.ops.ack([table.claim()])
    table.client.send(next(acking))  # and dies before it deletes the message
    table.client.send(storing)
    for expected in ('"slow"', '"third"'):
        lease = table.claim()
        assert lease.raw == expected
        assert table.do(table.ops.ack([lease])) == [True]
    assert table.do(table.ops.claim("w", 30.0, 1, 0)) == []
    assert table.do(table.ops.stats()).messages == 0


def test_an_acker_that_died_after_settling_leaves_a_group_that_the_next_claim_drops(table: Table) -> None:
    table.publish("a 1")
    acking = table.ops.ack([table.claim()])
    table.client.send(next(acking))
    assert table.do(table.ops.stats()).groups == 1
    assert table.do(table.ops.groups(None, 10, None))[0].messages == 0
    assert table.waiting("a") == []
    assert table.do(table.ops.claim("w", 30.0, 1, 0)) == []
    stats = table.do(table.ops.stats())
    assert (stats.groups, stats.messages) == (0, 0)


def test_a_drained_group_that_came_again_is_not_dropped_by_who_saw_it_empty_before(table: Table) -> None:
    """The lock of the same name is another one, though its counts are the same."""
    table.publish("a 1")
    acking = table.ops.ack([table.claim()])
    request = next(acking)
    while not (isinstance(request, ask.DeleteOne) and request.collection == "locks"):
        request = acking.send(table.client.send(request))
    assert table.do(table.ops.claim("w", 30.0, 1, 0)) == []  # drops it
    table.publish("a 2")
    assert table.client.send(request) is False
    assert table.claim().raw == '"2"'


def test_a_claim_that_finds_a_group_empty_takes_what_came_meanwhile(table: Table) -> None:
    table.publish("a 1")
    acking = table.ops.ack([table.claim()])
    table.client.send(next(acking))
    came: list[bool] = []

    def meddle(request: Any) -> None:
        if isinstance(request, ask.DeleteOne) and request.collection == "locks" and not came:
            came.append(True)
            other = Table()
            other.client = table.client
            other.do(other.ops.publish([Packed("a", '"2"', 0)]))

    (lease,) = table.do(table.ops.claim("w", 30.0, 1, 0), meddle)
    assert (lease.raw, lease.attempt) == ('"2"', 1)


def test_a_group_that_is_held_while_a_claim_finds_it_empty_stays_held_and_free(table: Table) -> None:
    table.publish("a 1")
    acking = table.ops.ack([table.claim()])
    table.client.send(next(acking))
    held: list[bool] = []

    def meddle(request: Any) -> None:
        if isinstance(request, ask.DeleteOne) and request.collection == "locks" and not held:
            held.append(run(table.ops.hold("a"), table.client.send))

    assert table.do(table.ops.claim("w", 30.0, 1, 0), meddle) == []
    (info,) = table.do(table.ops.groups(None, 10, None))
    assert (info.state, info.holder, info.attempts) == ("held", None, 0)


def test_a_redrive_that_died_leaves_a_letter_or_a_message_and_never_both(table: Table) -> None:
    for steps in range(1, 8):
        table = Table()
        table.publish("a 1")
        lease = table.claim()
        assert table.do(table.ops.reject(lease, "why"))
        redriving = table.ops.redrive(lease.seq)
        request = next(redriving)
        for _ in range(steps - 1):
            request = redriving.send(table.client.send(request))
        redriving.close()
        table.publish("a 2")
        came = []
        while leases := table.do(table.ops.claim("w", 30.0, 1, 0)):
            came.append(leases[0].raw)
            assert table.do(table.ops.ack(leases)) == [True]
        letters = [letter.raw for letter in table.do(table.ops.dead_letters(None, 10, None))]
        assert sorted(came + letters) == ['"1"', '"2"'], steps
        assert table.do(table.ops.stats()).groups == 0


def test_two_redrives_of_which_one_died_make_one_message(table: Table) -> None:
    table.publish("a 1")
    lease = table.claim()
    assert table.do(table.ops.reject(lease, "why"))
    dying = table.ops.redrive(lease.seq)
    request = next(dying)
    while not (isinstance(request, ask.FindAndUpdate) and request.collection == "dead_letters"):
        request = dying.send(table.client.send(request))
    assert table.do(table.ops.redrive(lease.seq)) is True
    assert table.do(table.ops.redrive(lease.seq)) is False
    came = []
    while leases := table.do(table.ops.claim("w", 30.0, 1, 0)):
        came.append(leases[0].raw)
        assert table.do(table.ops.ack(leases)) == [True]
    assert came == ['"1"']
    assert table.do(table.ops.stats()).groups == 0


def _about_to_drop(table: Table) -> tuple[Any, Op[Any]]:
    """Ack the only message up to the drop, and have another stored that is not counted yet.

    Returns
    -------
    tuple
        The request that drops the group, and the publish that goes on with the counting.
    """
    table.publish("a 1")
    acking = table.ops.ack([table.claim()])
    request = next(acking)
    while not (isinstance(request, ask.DeleteOne) and request.collection == "locks"):
        request = acking.send(table.client.send(request))
    publishing = table.ops.publish([Packed("a", '"2"', 0)])
    storing = publishing.send(table.client.send(next(publishing)))
    table.client.send(storing)
    return request, publishing


def test_a_group_is_not_dropped_under_who_claimed_it_meanwhile(table: Table) -> None:
    request, publishing = _about_to_drop(table)
    lease = table.claim()
    assert lease.raw == '"2"'
    assert table.client.send(request) is False
    finished(publishing, publishing.send(None), table)
    assert table.do(table.ops.claim("w", 30.0, 1, 0)) == []
    assert table.do(table.ops.ack([lease])) == [True]


def test_a_group_is_not_dropped_while_its_lock_names_what_is_to_be_finished(table: Table) -> None:
    request, publishing = _about_to_drop(table)
    acking = table.ops.ack([table.claim()])
    table.client.send(next(acking))  # and dies before it deletes the message
    assert table.client.send(request) is False
    finished(publishing, publishing.send(None), table)
    assert table.do(table.ops.claim("w", 30.0, 1, 0)) == []


def test_a_group_is_not_dropped_when_it_was_held_meanwhile(table: Table) -> None:
    request, _ = _about_to_drop(table)
    assert table.do(table.ops.hold("a")) is True
    assert table.client.send(request) is False
    assert table.do(table.ops.groups("held", 10, None))[0].group_id == "a"


def test_a_group_that_never_had_a_lease_and_came_again_is_not_dropped_either(table: Table) -> None:
    table.publish("a 1")
    assert table.do(table.ops.hold("a"))
    assert table.do(table.ops.purge("a")) == 1
    releasing = table.ops.release("a")
    request = next(releasing)
    while not isinstance(request, ask.DeleteOne):
        request = releasing.send(table.client.send(request))
    assert table.do(table.ops.claim("w", 30.0, 1, 0)) == []  # drops it
    table.publish("a 2")
    assert table.client.send(request) is False
    assert table.claim().raw == '"2"'


def test_a_redrive_that_comes_second_takes_its_message_back(table: Table) -> None:
    table.publish("a 1", "a 2")
    lease = table.claim()
    assert table.do(table.ops.reject(lease, "why"))
    second = table.ops.redrive(lease.seq)
    request = next(second)
    while not (isinstance(request, ask.FindAndUpdate) and request.collection == "dead_letters"):
        request = second.send(table.client.send(request))
    assert table.do(table.ops.redrive(lease.seq)) is True
    assert finished(second, request, table) is False
    assert table.waiting("a") == ['"2"', '"1"']
    assert table.do(table.ops.stats()).messages == 2


def test_a_rejection_that_comes_too_late_leaves_nothing_behind(table: Table) -> None:
    table.publish("a 1")
    zombie = table.claim()
    table.now += 31.0
    assert table.do(table.ops.ack([table.claim()])) == [True]
    assert table.do(table.ops.reject(zombie, "late")) is False
    assert table.client.send(ask.Find("dead_letters", {})) == []


def test_a_rejection_that_died_at_its_beginning_leaves_nothing_when_the_message_is_settled_or_purged(
    table: Table,
) -> None:
    for way in ("ack", "ack many", "purge"):
        table.publish("a 1", "b 1")
        rejecting = table.ops.reject(table.claim(), "why")
        table.client.send(next(rejecting))
        assert len(table.client.send(ask.Find("dead_letters", {}))) == 1
        table.now += 31.0
        if way == "purge":
            assert table.do(table.ops.purge("a")) == 1
        elif way == "ack":
            while leases := table.do(table.ops.claim("w", 30.0, 1, 0)):
                assert table.do(table.ops.ack(leases)) == [True]
        else:
            assert table.do(table.ops.ack(table.do(table.ops.claim("w", 30.0, 5, 0)))) == [True, True]
        assert table.do(table.ops.dead_letters(None, 10, None)) == []
        assert table.client.send(ask.Find("dead_letters", {})) == [], way


def test_a_release_that_meets_a_park_ends_it(table: Table) -> None:
    table.publish("a 1")
    lease = table.claim()
    assert table.do(table.ops.hold("a"))
    releasing = table.ops.release("a")
    request = releasing.send(table.client.send(next(releasing)))
    assert table.do(table.ops.nack(lease, 600.0)) is True
    assert finished(releasing, request, table) is True
    assert table.claim().attempt == 2


def test_a_purge_first_finishes_a_rejection_whose_client_died(table: Table) -> None:
    table.publish("a 1", "a 2")
    rejecting = table.ops.reject(table.claim(), "why")
    table.client.send(rejecting.send(table.client.send(next(rejecting))))
    assert table.do(table.ops.purge("a")) == 1
    assert [letter.raw for letter in table.do(table.ops.dead_letters(None, 10, None))] == ['"1"']
    assert table.do(table.ops.stats()).messages == 0


def test_a_purge_behind_a_lease_first_finishes_a_rejection_whose_client_died(table: Table) -> None:
    table.publish("a 1", "a 2", "a 3")
    rejecting = table.ops.reject(table.claim(), "why")
    lock = table.client.send(rejecting.send(table.client.send(next(rejecting))))
    # Somebody has taken the lock, and has not looked into the group yet.
    claiming = table.ops.claim("w", 30.0, 1, 0)
    taken = table.client.send(next(claiming))
    assert taken["acked"] == lock["acked"]
    assert table.do(table.ops.purge("a")) == 1
    (lease,) = finished(claiming, claiming.send(taken), table)
    assert lease.raw == '"2"'
    assert [letter.raw for letter in table.do(table.ops.dead_letters(None, 10, None))] == ['"1"']


def test_a_purge_that_meets_a_claim_leaves_the_message_in_flight(table: Table) -> None:
    table.publish("a 1", "a 2")
    purging = table.ops.purge("a")
    request = purging.send(table.client.send(next(purging)))
    lease = table.claim()
    assert finished(purging, request, table) == 1
    assert table.waiting("a") == ['"1"']
    assert table.do(table.ops.ack([lease])) == [True]
    assert table.do(table.ops.stats()).groups == 0


@pytest.mark.parametrize("meanwhile", ["claimed", "held", "drained"])
def test_claim_many_takes_only_what_is_still_to_be_had(table: Table, meanwhile: str) -> None:
    table.publish("a 1", "b 1")
    claiming = table.ops.claim("many", 30.0, 5, 0)
    request = claiming.send(table.client.send(next(claiming)))
    if meanwhile == "held":
        assert table.do(table.ops.hold("a")) is True
    else:
        lease = table.claim()
        if meanwhile == "drained":
            assert table.do(table.ops.ack([lease])) == [True]
    leases = finished(claiming, request, table)
    assert [lease.group_id for lease in leases] == ["b"]
    if meanwhile == "claimed":
        assert table.do(table.ops.ack([lease])) == [True]


@pytest.mark.parametrize("look", ["stats", "groups"])
def test_a_ticket_that_comes_while_one_looks_is_no_group(table: Table, look: str) -> None:
    table.publish("a 1")

    def commit_something(request: Any) -> None:
        if isinstance(request, ask.Aggregate) and request.collection == "locks":
            table.client.send(ask.InsertEach("locks", [publishing([Packed("b", "2", 4)], 2, NOW)]))

    if look == "stats":
        stats = table.do(table.ops.stats(), commit_something)
        assert (stats.groups, stats.ready, stats.oldest_ready_s) == (1, 1, 0.0)
    else:
        groups = table.do(table.ops.groups(None, 10, None), commit_something)
        assert [group.group_id for group in groups] == ["a"]


@pytest.mark.parametrize("floor", range(5))
@pytest.mark.parametrize("limit", [1, 5])
def test_a_claim_with_any_floor_takes_in_a_ticket(table: Table, floor: int, limit: int) -> None:
    table.publish("a 1")
    table.client.send(ask.InsertEach("locks", [publishing([Packed("b", "2", floor)], 2, NOW)]))
    table.client.send(ask.InsertEach("messages", [{"_id": 2, "group_id": "b", "event": "2"}]))
    leases = table.do(table.ops.claim("w", 30.0, limit, floor))
    assert "b" in [lease.group_id for lease in leases] or (floor == 0 and limit == 1)
    assert table.client.send(ask.Find("locks", {"_id": {"$gte": {}}})) == []


def test_a_ticket_whose_finder_died_is_found_again_when_the_lease_ends(table: Table) -> None:
    table.client.send(ask.InsertEach("locks", [publishing([Packed("b", "2", 0)], 2, NOW)]))
    table.client.send(ask.InsertEach("messages", [{"_id": 2, "group_id": "b", "event": "2"}]))
    claim = table.ops.claim("w", 30.0, 1, 0)
    table.client.send(next(claim))
    claim.close()
    assert table.do(table.ops.claim("v", 30.0, 1, 0)) == []
    table.now += 31.0
    assert [lease.group_id for lease in table.do(table.ops.claim("v", 30.0, 1, 0))] == ["b"]
