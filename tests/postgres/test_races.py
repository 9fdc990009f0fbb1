"""Every race that the functions are built for, stepped by hand on real connections."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from harel import Lease, Message, Transport
from harel.engine.queue.postgres.schema import DEAD_WORTH_A_LOOK
from tests.postgres.stage import Doing, Stage, event


def claim(queue: Transport) -> Lease:
    lease = queue.claim("w", 60.0)
    assert lease is not None
    return lease


def kinds(queue: Transport) -> list[str]:
    """Claim and settle all there is."""
    found = []
    while (lease := queue.claim("w", 60.0)) is not None:
        found.append(lease.event.kind)
        assert queue.ack(lease)
    return found


@dataclass(frozen=True)
class Way:
    """One by one, or many at once: other functions on the server, the same promises."""

    many: bool
    claim_function: str
    before_the_pick: str
    before_the_head: str

    def claim(self, queue: Transport, visibility: float = 60.0) -> Lease | None:
        """Claim one group, where there is no more than one."""
        leases = queue.claim_many("w", visibility, 2 if self.many else 1)
        assert len(leases) <= 1
        return leases[0] if leases else None

    def ack(self, queue: Transport, lease: Lease) -> bool:
        return queue.ack_many([lease, lease])[0] if self.many else queue.ack(lease)


WAYS = (
    Way(False, "harel_claim", "SELECT g.ctid, g.group_id", 'UPDATE "{schema}"'),
    Way(True, "harel_claim_many", "SELECT\n            array_agg(line.row)", "RETURN QUERY"),
)


MANY = 5 * DEAD_WORTH_A_LOOK


def settle(queue: Transport, way: Way, most: int) -> int:
    """Claim and settle so many messages at most; say how many."""
    for count in range(most):
        lease = way.claim(queue)
        if lease is None:
            return count
        assert way.ack(queue, lease)
    return most


def settled(stage: Stage, group_id: str) -> int:
    """Say up to which number it was found out that no message is left."""
    ((seq,),) = stage.ask("SELECT settled FROM {schema}.transport_groups WHERE group_id = $1", group_id)
    return int(seq)


def min_seq(stage: Stage, group_id: str) -> int:
    ((seq,),) = stage.ask("SELECT min(seq) FROM {schema}.transport_messages WHERE group_id = $1", group_id)
    return int(seq)


@pytest.fixture(params=WAYS, ids=["one", "many"])
def way(request: pytest.FixtureRequest) -> Way:
    chosen: Way = request.param
    return chosen


class TestPublishAgainstADrainingAck:
    """A publish and the ack that takes a group's last message."""

    @pytest.mark.parametrize("end", ["commit", "rollback"])
    @pytest.mark.parametrize("many", [False, True])
    def test_an_ack_does_not_wait_for_a_publisher_and_strands_nothing_promise_4(
        self, stage: Stage, way: Way, many: bool, end: str
    ) -> None:
        queue, publisher = stage.open(), stage.actor()
        queue.publish("g", event("m1"))
        lease = claim(queue)
        publisher.begin()
        if many:
            publisher.queue.publish_many([Message("g", event("m2")), Message("g", event("m3"))])
        else:
            publisher.queue.publish("g", event("m2"))
        assert way.ack(queue, lease) is True
        assert way.claim(queue) is None
        getattr(publisher, end)()
        expected = ["m2", "m3"] if many else ["m2"]
        assert kinds(queue) == (expected if end == "commit" else [])
        assert stage.groups() == []

    def test_a_group_that_a_publisher_holds_up_blocks_no_other(self, stage: Stage, way: Way) -> None:
        queue, publisher = stage.open(), stage.actor()
        queue.publish("g", event("m1"))
        lease = claim(queue)
        publisher.begin()
        publisher.queue.publish("g", event("m2"))
        assert way.ack(queue, lease) is True
        queue.publish_many([Message("h", event("h1")), Message("i", event("i1"))])
        assert kinds(queue) == ["h1", "i1"]
        assert queue.wait(0.0) is False
        publisher.commit()
        assert queue.wait(0.0) is True
        assert kinds(queue) == ["m2"]

    @pytest.mark.parametrize("end", ["commit", "rollback"])
    def test_a_publish_to_a_group_that_is_being_dropped_waits_and_is_not_lost_promise_3(
        self, stage: Stage, way: Way, end: str
    ) -> None:
        queue = stage.open()
        queue.publish("g", event("m1"))
        acker, publisher = stage.actor(), stage.actor()
        lease = claim(queue)
        acker.begin()
        assert way.ack(acker.queue, lease) is True
        publishing = Doing(lambda: publisher.queue.publish("g", event("m2")))
        stage.until_blocked(publisher.pid)
        queue.publish("h", event("h1"))
        assert claim(queue).group_id == "h"
        getattr(acker, end)()
        publishing.result()
        if end == "rollback":
            assert queue.ack(lease) is True
        assert kinds(queue) == ["m2"]

    def test_a_publish_that_commits_after_the_ack_saw_nothing_is_seen_by_the_drop(self, stage: Stage, way: Way) -> None:
        queue, other = stage.open(), stage.open()
        queue.publish("g", event("m1"))
        lease = claim(queue)
        with stage.pause("harel_drop", before="IF current_setting"):
            acking = Doing(lambda: way.ack(queue, lease))
            stage.until(BLOCKED_ON_THE_PAUSE)
            other.publish("g", event("m2"))
        assert acking.result() is True
        assert kinds(other) == ["m2"]

    def test_a_publish_meets_a_drop_that_has_the_row_already(self, stage: Stage, way: Way) -> None:
        queue = stage.open()
        queue.publish("g", event("m1"))
        lease, publisher = claim(queue), stage.actor()
        with stage.pause("harel_drop", before="WITH empty AS ("):
            acking = Doing(lambda: way.ack(queue, lease))
            stage.until(BLOCKED_ON_THE_PAUSE)
            publishing = Doing(lambda: publisher.queue.publish("g", event("m2")))
            stage.until_blocked(publisher.pid)
        assert acking.result() is True
        publishing.result()
        assert kinds(queue) == ["m2"]

    def test_a_group_that_goes_between_a_batchs_two_looks_is_made_anew(self, stage: Stage, way: Way) -> None:
        queue, other = stage.open(), stage.open()
        queue.publish("g", event("m1"))
        lease = claim(queue)
        with stage.pause("harel_publish_many", before="SELECT array_agg(there.group_id)"):
            publishing = Doing(lambda: other.publish_many([Message("g", event("m2")), Message("g", event("m3"))]))
            stage.until(BLOCKED_ON_THE_PAUSE)
            assert way.ack(queue, lease) is True
            assert stage.groups() == []
        publishing.result()
        assert kinds(queue) == ["m2", "m3"]


class TestTwoFirstPublishes:
    """Two publishes to a group that does not exist."""

    @pytest.mark.parametrize(("end", "expected"), [("commit", ["m1", "m2"]), ("rollback", ["m2"])])
    def test_the_second_waits_and_neither_is_lost_promise_3(self, stage: Stage, end: str, expected: list[str]) -> None:
        queue = stage.open()
        first, second = stage.actor(), stage.actor()
        first.begin()
        first.queue.publish("g", event("m1"))
        publishing = Doing(lambda: second.queue.publish("g", event("m2")))
        stage.until_blocked(second.pid)
        queue.publish("h", event("h1"))
        assert claim(queue).group_id == "h"
        getattr(first, end)()
        publishing.result()
        assert kinds(queue) == expected

    def test_the_second_adds_to_what_the_first_made_between_its_two_looks(self, stage: Stage) -> None:
        queue, other = stage.open(), stage.open()
        with stage.pause("harel_publish", before="WITH made AS ("):
            publishing = Doing(lambda: other.publish("g", event("m2"), 4))
            stage.until(BLOCKED_ON_THE_PAUSE)
            queue.publish_many([Message("g", event("m1")), Message("h", event("h1"))])
        publishing.result()
        assert [group.priority for group in queue.groups()] == [0, 0]
        assert kinds(queue) == ["m1", "h1", "m2"]

    def test_batches_with_the_same_groups_in_different_orders_do_not_wait_crosswise(self, stage: Stage) -> None:
        queue, first, second = stage.open(), stage.actor(), stage.actor()
        first.begin()
        first.queue.publish("b", event("b1"))
        batch = Doing(lambda: second.queue.publish_many([Message("b", event("b2")), Message("a", event("a2"))]))
        stage.until_blocked(second.pid)
        # The batch has made "a" by now, before "b": had it begun with "b", then this would go through at once.
        third = stage.actor()
        publishing = Doing(lambda: third.queue.publish("a", event("a3")))
        stage.until_blocked(third.pid)
        first.commit()
        batch.result()
        publishing.result()
        assert sorted(kinds(queue)) == ["a2", "a3", "b1", "b2"]


class TestALateCommit:
    """A message whose number is smaller than that of one which is there already."""

    def test_it_is_delivered_after_the_one_that_was_in_flight_promise_3(self, stage: Stage, way: Way) -> None:
        queue, late = stage.open(), stage.actor()
        queue.publish("g", event("m1"))
        late.begin()
        late.queue.publish("g", event("late"))
        queue.publish("g", event("m2"))
        assert way.ack(queue, claim(queue)) is True
        lease = claim(queue)
        assert lease.event.kind == "m2"
        late.commit()
        assert way.ack(queue, lease) is True
        lease = claim(queue)
        assert (lease.event.kind, lease.attempt) == ("late", 1)
        assert way.ack(queue, lease) is True
        assert stage.groups() == []

    def test_it_does_not_pass_for_the_one_that_is_claimed_again(self, stage: Stage) -> None:
        queue, late = stage.open(), stage.actor()
        queue.publish("g", event("m1"))
        late.begin()
        late.queue.publish("g", event("late"))
        queue.publish("g", event("m2"))
        assert queue.ack(claim(queue)) is True
        lease = claim(queue)
        late.commit()
        assert queue.nack(lease) is True
        lease = claim(queue)
        assert (lease.event.kind, lease.attempt) == ("late", 1)
        assert queue.purge("g") == 1
        assert [message.event.kind for message in queue.peek("g")] == ["late"]


class TestUpToWhereNothingIsLeft:
    """What a claim finds out when many messages of a group are gone, so that no later one passes over them again."""

    def test_a_late_commit_is_found_all_the_same_promise_4(self, stage: Stage, way: Way) -> None:
        queue, late = stage.open(), stage.actor()
        queue.publish("g", event("m"))
        late.begin()
        late.queue.publish("g", event("late"))
        queue.publish_many([Message("g", event("m"))] * MANY)
        assert settle(queue, way, 2 * DEAD_WORTH_A_LOOK) == 2 * DEAD_WORTH_A_LOOK
        late.commit()
        lease = way.claim(queue)
        assert lease is not None
        assert (lease.event.kind, lease.attempt) == ("late", 1)
        assert way.ack(queue, lease) is True
        assert settle(queue, way, 2 * MANY) == MANY + 1 - 2 * DEAD_WORTH_A_LOOK
        assert stage.groups() == []

    def test_it_is_found_out_once_nobody_publishes(self, stage: Stage, way: Way) -> None:
        queue, publisher = stage.open(), stage.actor()
        queue.publish_many([Message("g", event("m"))] * MANY)
        before = settled(stage, "g")
        publisher.begin()
        publisher.queue.publish("g", event("m"))
        assert settle(queue, way, 2 * DEAD_WORTH_A_LOOK) == 2 * DEAD_WORTH_A_LOOK
        assert settled(stage, "g") == before
        publisher.rollback()
        assert settle(queue, way, 2 * DEAD_WORTH_A_LOOK) == 2 * DEAD_WORTH_A_LOOK
        assert before + 3 * DEAD_WORTH_A_LOOK <= settled(stage, "g") < min_seq(stage, "g")

    def test_after_a_purge_too(self, stage: Stage, way: Way) -> None:
        queue = stage.open()
        queue.publish_many([Message("g", event("m"))] * MANY)
        lease = claim(queue)
        assert queue.purge("g") == MANY - 1
        queue.publish("g", event("last"))
        assert queue.ack(lease) is True
        last = way.claim(queue)
        assert last is not None
        assert settled(stage, "g") == last.seq - 1

    def test_who_publishes_to_a_group_that_a_claim_looks_at_waits_for_the_claim_alone(
        self, stage: Stage, way: Way
    ) -> None:
        queue, publisher = stage.open(), stage.actor()
        queue.publish_many([Message("g", event("m"))] * MANY)
        assert settle(queue, way, DEAD_WORTH_A_LOOK) == DEAD_WORTH_A_LOOK
        with stage.pause(way.claim_function, before=way.before_the_head):
            claiming = Doing(lambda: way.claim(queue))
            stage.until(BLOCKED_ON_THE_PAUSE)
            publishing = Doing(lambda: publisher.queue.publish("g", event("last")))
            stage.until_blocked(publisher.pid)
        assert claiming.result().event.kind == "m"
        publishing.result()
        assert queue.peek("g", MANY)[-1].event.kind == "last"

    def test_a_claim_in_a_callers_transaction_keeps_no_publisher_waiting(self, stage: Stage, way: Way) -> None:
        queue, caller = stage.open(statement_timeout=20.0), stage.actor()
        queue.publish_many([Message("g", event("m"))] * MANY)
        assert settle(queue, way, DEAD_WORTH_A_LOOK) == DEAD_WORTH_A_LOOK
        caller.begin()
        assert way.claim(caller.queue) is not None
        queue.publish("g", event("last"))
        caller.commit()

    @pytest.mark.parametrize("many", [False, True])
    def test_a_message_is_numbered_after_its_publisher_has_the_group(self, stage: Stage, many: bool) -> None:
        queue, publisher, holder = stage.open(), stage.actor(), stage.actor()
        queue.publish("g", event("m1"))
        holder.connection.execute(f'SELECT FROM "{stage.schema}".transport_names FOR UPDATE')
        batch = [Message("g", event("m2")), Message("g", event("m3"))]
        publishing = Doing(
            (lambda: publisher.queue.publish_many(batch))
            if many
            else (lambda: publisher.queue.publish("g", event("m2")))
        )
        stage.until_blocked(publisher.pid)
        queue.publish("h", event("h1"))
        holder.commit()
        publishing.result()
        (meanwhile,) = queue.peek("h")
        assert all(message.seq > meanwhile.seq for message in queue.peek("g")[1:])

    def test_a_claim_that_does_not_see_the_latest_finds_nothing_out(self, stage: Stage, way: Way) -> None:
        queue, late = stage.open(), stage.actor()
        queue.publish_many([Message("g", event("m"))] * MANY)
        assert settle(queue, way, DEAD_WORTH_A_LOOK) == DEAD_WORTH_A_LOOK
        late.begin()
        late.queue.publish("g", event("late"))
        queue.publish("g", event("last"))
        stage.do("DELETE FROM {schema}.transport_messages WHERE event LIKE '%\"m\"%'")
        with psycopg.connect(stage.url) as old:
            old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            old.execute("SELECT 1")
            late.commit()
            which = "'t', 5" if way.many else "'t'"
            claimed = old.execute(
                f"SELECT \"{stage.schema}\".{way.claim_function}({which}, 60, '-Infinity', '-Infinity', true, NULL)"
            )
            assert claimed.rowcount == 1
        assert settled(stage, "g") < min_seq(stage, "g")


class TestClaim:
    """A claim and what goes on beside it."""

    def test_a_claim_gets_a_group_that_somebody_is_publishing_to(self, stage: Stage, way: Way) -> None:
        queue, publisher = stage.open(), stage.actor()
        queue.publish("g", event("m1"))
        publisher.begin()
        publisher.queue.publish("g", event("m2"))
        lease = way.claim(queue)
        assert lease is not None
        assert lease.event.kind == "m1"

    def test_a_first_publish_that_is_not_committed_is_no_group(self, stage: Stage) -> None:
        queue, publisher = stage.open(), stage.actor()
        publisher.begin()
        publisher.queue.publish("g", event("m1"))
        queue.publish("h", event("h1"))
        assert kinds(queue) == ["h1"]
        publisher.commit()
        assert kinds(queue) == ["m1"]

    def test_two_claims_at_once_get_two_groups_promise_1(self, stage: Stage, way: Way) -> None:
        queue, first = stage.open(), stage.actor()
        queue.publish_many([Message("g", event("g1")), Message("h", event("h1"))])
        first.begin()
        assert claim(first.queue).group_id == "g"
        second = way.claim(queue)
        assert second is not None
        assert second.group_id == "h"
        assert way.claim(queue) is None
        first.rollback()
        assert claim(queue).group_id == "g"

    def test_a_claim_that_began_before_an_ack_gets_what_is_left_promise_2(self, stage: Stage, way: Way) -> None:
        queue, other = stage.open(), stage.open(clock=lambda: 4e9)
        queue.publish_many([Message("g", event("m1")), Message("g", event("m2"))])
        lease = claim(queue)
        with stage.pause(way.claim_function, before=way.before_the_pick):
            claiming = Doing(lambda: way.claim(other))
            stage.until(BLOCKED_ON_THE_PAUSE)
            assert queue.ack(lease) is True
        assert claiming.result().event.kind == "m2"

    def test_a_claim_sees_what_was_published_after_it_had_locked_the_group(self, stage: Stage, way: Way) -> None:
        queue, other = stage.open(), stage.open()
        queue.publish("g", event("m1"))
        stage.do("DELETE FROM {schema}.transport_messages")
        with stage.pause(way.claim_function, before=way.before_the_head):
            claiming = Doing(lambda: way.claim(other))
            stage.until(BLOCKED_ON_THE_PAUSE)
            queue.publish("g", event("m2"))
        assert claiming.result().event.kind == "m2"

    def test_a_claim_drops_what_is_empty_and_goes_on_to_the_next(self, stage: Stage, way: Way) -> None:
        queue = stage.open()
        queue.publish_many([Message("a", event("a1")), Message("b", event("b1")), Message("c", event("c1"))])
        stage.do("DELETE FROM {schema}.transport_messages WHERE group_id IN ('a', 'b')")
        lease = way.claim(queue)
        assert lease is not None
        assert lease.group_id == "c"
        assert stage.groups() == ["c"]

    def test_a_claim_passes_by_an_empty_group_that_somebody_publishes_to(self, stage: Stage, way: Way) -> None:
        queue, publisher = stage.open(), stage.actor()
        queue.publish_many([Message("a", event("a1")), Message("b", event("b1"))])
        stage.do("DELETE FROM {schema}.transport_messages WHERE group_id = 'a'")
        publisher.begin()
        publisher.queue.publish("a", event("a2"))
        lease = way.claim(queue)
        assert lease is not None
        assert lease.group_id == "b"
        assert stage.groups() == ["a", "b"]
        publisher.commit()
        assert claim(queue).event.kind == "a2"


class TestFencing:
    """A lease that ran out, and the claim that takes its group over."""

    @pytest.mark.parametrize(("end", "settled"), [("commit", False), ("rollback", True)])
    def test_an_ack_waits_for_a_claim_under_way_and_then_knows_promise_5(
        self, stage: Stage, way: Way, end: str, settled: bool
    ) -> None:
        queue, late, thief = stage.open(), stage.actor(), stage.actor()
        queue.publish("g", event("m1"))
        lease = way.claim(queue, 0.001)
        assert lease is not None
        thief.begin()
        stage.until("SELECT 1 FROM {schema}.transport_groups WHERE lock_expiry < date_part('epoch', clock_timestamp())")
        stolen = way.claim(thief.queue)
        assert stolen is not None
        assert stolen.attempt == 2
        acking = Doing(lambda: way.ack(late.queue, lease))
        stage.until_blocked(late.pid)
        getattr(thief, end)()
        assert acking.result() is settled
        assert stage.groups() == ([] if settled else ["g"])

    def test_an_extension_counts_from_when_it_got_the_row(self, stage: Stage) -> None:
        queue, holder, worker = stage.open(), stage.actor(), stage.actor()
        queue.publish("g", event("m1"))
        lease = claim(queue)
        holder.begin()
        assert holder.queue.nack(lease) is True
        extending = Doing(lambda: worker.queue.extend(lease, 10.0))
        stage.until_blocked(worker.pid)
        ((waited_until,),) = stage.ask("SELECT date_part('epoch', clock_timestamp())")
        holder.rollback()
        assert extending.result() is True
        assert lease.expires_at >= waited_until + 10.0


class TestBatchesOfLeases:
    """Two batches with the same leases in different orders."""

    @pytest.mark.parametrize("settle_many", [("ack_many",), ("extend_many", 60.0)], ids=["ack", "extend"])
    def test_they_do_not_wait_crosswise(self, stage: Stage, settle_many: tuple[Any, ...]) -> None:
        queue, first, second = stage.open(statement_timeout=20.0), stage.actor(), stage.actor()
        queue.publish_many([Message(name, event(name)) for name in "abc"])
        a, b, c = queue.claim_many("w", 60.0, 3)
        how, *extra = settle_many
        first.begin()
        assert first.queue.extend(b, 60.0) is True
        batch = Doing(lambda: getattr(second.queue, how)([c, b, a], *extra))
        stage.until_blocked(second.pid)
        # The batch has "a" by now, and has not come to "c": had it begun with that, then this would wait.
        assert queue.extend(c, 60.0) is True
        waiting = stage.actor()
        extending = Doing(lambda: waiting.queue.extend(a, 60.0))
        stage.until_blocked(waiting.pid)
        first.commit()
        assert batch.result() == [True] * 3
        assert extending.result() is (how == "extend_many")

    def test_an_extension_of_many_keeps_a_hold_and_knows_what_was_lost(self, stage: Stage) -> None:
        queue = stage.open()
        queue.publish_many([Message(name, event(name)) for name in "abc"])
        a, b, c = queue.claim_many("w", 60.0, 3)
        assert queue.hold("b") is True
        assert queue.nack(c, 30.0) is True
        ends = [lease.expires_at for lease in (a, b, c)]
        assert queue.extend_many([c, b, a, b], 600.0) == [False, True, True, True]
        assert a.expires_at >= ends[0] + 500.0
        assert b.expires_at == a.expires_at
        assert c.expires_at == ends[2]
        assert [group.state for group in queue.groups()] == ["leased", "held", "parked"]
        assert queue.release("b") is True
        assert queue.ack_many([a, b]) == [True, True]


class TestAnOlderSnapshot:
    """A caller's transaction that sees what it saw at its beginning."""

    def test_an_ack_that_cannot_see_the_latest_message_drops_nothing_promise_4(self, stage: Stage, way: Way) -> None:
        queue, acker = stage.open(), stage.actor()
        queue.publish("g", event("m1"))
        lease = claim(queue)
        acker.connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        acker.begin()
        queue.publish("g", event("m2"))
        assert way.ack(acker.queue, lease) is True
        acker.commit()
        assert kinds(queue) == ["m2"]


BLOCKED_ON_THE_PAUSE = "SELECT 1 FROM {sessions} WHERE wait_event = 'advisory'"
