"""Publishing and settling inside a transaction of the caller's: all of it happens, or nothing."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any
from uuid import uuid4

import pymongo
import pytest
from pymongo.errors import OperationFailure, PyMongoError

from harel import Event, InvalidArgument, LeaseLost, Message, NotSupported, TransportUnavailable
from harel.engine.aio_transport import AsyncMongoTransport
from harel.engine.transport import MongoTransport
from harel.engine.transport.mongo_errors import TRANSIENT, TransactionConflict
from harel.testing import ManualClock
from tests.mongo.conftest import seen_by
from tests.servers.mongo import StandIn

PATIENCE_S = 60.0


def event(kind: str) -> Event:
    return Event(kind)


class Side:
    """Both twins, as async code has them.

    Parameters
    ----------
    server : StandIn
    is_async : bool
    """

    def __init__(self, server: StandIn, is_async: bool) -> None:
        self.server = server
        self.is_async = is_async
        self.db_name = f"t{uuid4().hex[:12]}"
        self.transport: Any = AsyncMongoTransport if is_async else MongoTransport
        self.client_class: Any = pymongo.AsyncMongoClient if is_async else pymongo.MongoClient
        self.other_class: Any = pymongo.MongoClient if is_async else pymongo.AsyncMongoClient
        self.clock = ManualClock()
        self._opened: list[Any] = []

    async def open(self, **options: Any) -> Any:
        queue = self.transport.from_url(self.server.url, **{"db_name": self.db_name, "clock": self.clock, **options})
        self._opened.append(queue)
        return queue

    def client(self, **options: Any) -> Any:
        client = self.client_class(self.server.url, **options)
        self._opened.append(client)
        return client

    async def note(self, session: Any) -> None:
        """Write a row of the caller's."""
        await done(session.client[self.db_name].notes.insert_one({"note": "done"}, session=session))

    async def notes(self) -> int:
        return len(await done(self.client()[self.db_name].notes.find({}).to_list()))

    async def close(self) -> None:
        for opened in reversed(self._opened):
            await done(opened.close())


async def done(result: Any) -> Any:
    return await result if inspect.isawaitable(result) else result


@asynccontextmanager
async def block(manager: Any) -> AsyncIterator[Any]:
    """Enter either kind of context manager."""
    if hasattr(manager, "__aenter__"):
        async with manager as entered:
            yield entered
    else:
        with manager as entered:
            yield entered


@asynccontextmanager
async def on_ones_own_client(side: Side, queue: Any) -> AsyncIterator[Any]:
    """A session of the caller's, on a client that is not the transport's."""
    async with block(side.client().start_session()) as session, block(await done(session.start_transaction())):
        yield session


@asynccontextmanager
async def on_the_same_client(side: Side, queue: Any) -> AsyncIterator[Any]:
    """A session of the caller's, on the client that the transport has."""
    async with block(queue._client.start_session()) as session, block(await done(session.start_transaction())):
        yield session


@asynccontextmanager
async def the_queues(side: Side, queue: Any) -> AsyncIterator[Any]:
    """One that the transport opens."""
    async with block(queue.transaction()) as session:
        yield session


async def within(transaction: AbstractAsyncContextManager[Any], action: Callable[[Any], Awaitable[None]]) -> None:
    """Do something inside a transaction, with its session."""
    async with transaction as session:
        await action(session)


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def side(request: pytest.FixtureRequest, stand_in: StandIn) -> Side:
    return Side(stand_in, request.param)


each_way = pytest.mark.parametrize(
    "transaction", [on_ones_own_client, on_the_same_client, the_queues], ids=lambda way: way.__name__
)
each_settling = pytest.mark.parametrize(("settle", "extra"), [("ack", ()), ("nack", (0.0,)), ("reject", ("why",))])


async def names(queue: Any) -> list[str]:
    return [group.group_id for group in await done(queue.groups())]


async def drained(queue: Any) -> list[str]:
    found = []
    while (lease := await done(queue.claim("w", 60.0))) is not None:
        found.append(lease.event.kind)
        assert await done(queue.ack(lease)) is True
    assert await names(queue) == []
    return found


class Undo(Exception):
    """What a caller raises to have a transaction rolled back."""


@each_way
class TestTogether:
    """What is done through it happens with the caller's own rows, or not at all."""

    async def test_a_publish(self, side: Side, transaction: Any) -> None:
        queue = await side.open()
        assert (await done(queue.stats())).messages == 0

        async def change_ones_mind(session: Any) -> None:
            await side.note(session)
            await done(queue.bind(session).publish("g", event("never")))
            raise Undo

        with pytest.raises(Undo):
            await within(transaction(side, queue), change_ones_mind)
        assert (await side.notes(), await names(queue)) == (0, [])
        async with transaction(side, queue) as session:
            bound = queue.bind(session)
            await done(bound.publish("g", event("m1"), 3))
            await done(bound.publish_many([Message("g", event("m2")), Message("h", event("h1"))]))
            await side.note(session)
            assert (await side.notes(), await names(queue)) == (0, [])
            assert await done(queue.claim("w", 30.0)) is None
        assert await done(queue.wait(0.0)) is True
        assert [message.event.kind for message in await done(queue.peek("g"))] == ["m1", "m2"]
        assert (await side.notes(), await names(queue)) == (1, ["g", "h"])
        assert (await done(queue.stats())).messages == 3
        lease = await done(queue.claim("w", 30.0, 3))
        assert (lease.group_id, lease.attempt) == ("g", 1)
        await side.close()

    @each_settling
    async def test_a_settling(self, side: Side, transaction: Any, settle: str, extra: tuple[Any, ...]) -> None:
        queue = await side.open()
        await done(queue.publish("g", event("m1"), 2))
        lease = await done(queue.claim("w", 60.0))

        async def handle(session: Any) -> None:
            await side.note(session)
            await done(getattr(queue.bind(session), settle)(lease, *extra))

        async def change_ones_mind(session: Any) -> None:
            await handle(session)
            raise Undo

        with pytest.raises(Undo):
            await within(transaction(side, queue), change_ones_mind)
        assert await side.notes() == 0
        assert await done(queue.dead_letters()) == []
        assert await done(queue.extend(lease, 60.0)) is True
        await within(transaction(side, queue), handle)
        assert await side.notes() == 1
        assert await done(getattr(queue, settle)(lease, *extra)) is False
        assert await done(queue.extend(lease, 60.0)) is False
        letters = await done(queue.dead_letters())
        assert [(one.seq, one.reason, one.attempts, one.priority) for one in letters] == (
            [(lease.seq, "why", 1, 2)] if settle == "reject" else []
        )
        assert await names(queue) == (["g"] if settle == "nack" else [])
        await side.close()

    async def test_a_park(self, side: Side, transaction: Any) -> None:
        queue = await side.open()
        await done(queue.publish("g", event("m1")))
        lease = await done(queue.claim("w", 10.0))
        async with transaction(side, queue) as session:
            await done(queue.bind(session).nack(lease, 50.0))
            side.clock.advance(20.0)
        assert (await done(queue.groups()))[0].state == "parked"
        assert await done(queue.claim("w", 10.0)) is None
        side.clock.advance(31.0)
        assert (await done(queue.claim("w", 10.0))).attempt == 2
        await side.close()

    @each_settling
    async def test_a_lost_lease_raises_and_nothing_commits_promise_5(
        self, side: Side, transaction: Any, settle: str, extra: tuple[Any, ...]
    ) -> None:
        queue = await side.open()
        await done(queue.publish("g", event("m1")))
        lease = await done(queue.claim("w", 60.0))
        assert await done(queue.nack(lease)) is True

        async def handle(session: Any) -> None:
            await side.note(session)
            await done(getattr(queue.bind(session), settle)(lease, *extra))

        with pytest.raises(LeaseLost, match="group 'g'"):
            await within(transaction(side, queue), handle)
        assert await side.notes() == 0
        assert await done(queue.dead_letters()) == []
        assert (await done(queue.claim("w", 60.0))).attempt == 2
        await side.close()

    async def test_a_loss_that_is_ignored_keeps_the_transaction_from_committing(
        self, side: Side, transaction: Any
    ) -> None:
        """The message is deleted in it by then; a caller that goes on must not lose it."""
        queue = await side.open()
        await done(queue.publish("g", event("m1")))
        lease = await done(queue.claim("w", 60.0))
        assert await done(queue.nack(lease)) is True

        async def handle(session: Any) -> None:
            with pytest.raises(LeaseLost):
                await done(queue.bind(session).ack(lease))

        with pytest.raises(PyMongoError) as raised:
            await within(transaction(side, queue), handle)
        assert raised.value.has_error_label(TRANSIENT)
        assert await drained(queue) == ["m1"]
        await side.close()

    async def test_what_is_settled_twice_in_it_is_lost_the_second_time(self, side: Side, transaction: Any) -> None:
        queue = await side.open()
        await done(queue.publish_many([Message("g", event("m1")), Message("h", event("h1"))]))
        first, second = await done(queue.claim_many("w", 60.0, 2))
        async with transaction(side, queue) as session:
            bound = queue.bind(session)
            await done(bound.nack(first))
            await done(bound.ack(second))
            for settling in (bound.ack, bound.nack):
                for lease in (first, second):
                    with pytest.raises(LeaseLost):
                        await done(settling(lease))
        assert await names(queue) == ["g"]
        assert await drained(queue) == ["m1"]
        await side.close()

    async def test_a_group_that_publishes_to_itself_goes_on_promise_4(self, side: Side, transaction: Any) -> None:
        queue = await side.open()
        await done(queue.publish("g", event("m1"), 3))
        lease = await done(queue.claim("w", 60.0))
        async with transaction(side, queue) as session:
            bound = queue.bind(session)
            await done(bound.ack(lease))
            await done(bound.publish("g", event("m2")))
        again = await done(queue.claim("w", 60.0, 3))
        assert (again.event.kind, again.attempt) == ("m2", 1)
        assert await done(queue.ack(again)) is True
        assert await names(queue) == []
        await side.close()

    async def test_one_that_is_open_for_long_keeps_nobody_waiting_and_strands_nothing_promise_4(
        self, side: Side, transaction: Any
    ) -> None:
        queue = await side.open()
        await done(queue.publish_many([Message("g", event("m1")), *(Message("h", event(f"h{n}")) for n in (1, 2))]))
        async with transaction(side, queue) as session:
            bound = queue.bind(session)
            await done(bound.publish("g", event("late")))
            first = await done(queue.claim("w", 60.0))
            other = await done(queue.claim("w", 60.0))
            assert (first.group_id, other.group_id) == ("g", "h")
            assert await done(queue.ack(first)) is True
            # What was claimed since it began it can settle if it sees the message.
            await done(bound.ack(other))
            assert await done(queue.extend(other, 60.0)) is True
            await done(queue.publish_many([Message("g", event("m2")), Message("h", event("h3"))]))
            second = await done(queue.claim("w", 60.0))
            assert second.event.kind == "m2"
            assert await done(queue.ack(second)) is True
            assert await done(queue.claim("w", 60.0)) is None
        assert sorted(await drained(queue)) == ["h2", "h3", "late"]
        await side.close()

    @pytest.mark.parametrize("many", [False, True], ids=["claim", "claim_many"])
    async def test_a_lease_that_ran_out_is_nobody_elses_while_it_is_being_settled(
        self, side: Side, transaction: Any, many: bool
    ) -> None:
        """Promises 1 and 6: claims of other groups do not wait, and the next message's attempt is the first."""
        queue = await side.open()
        other = await side.open()
        await done(queue.publish_many([Message("g", event(name)) for name in ("m1", "m2")]))
        lease = await done(queue.claim("w", 10.0))

        async def claim() -> Any:
            found = await done(other.claim_many("v", 60.0, 5) if many else other.claim("v", 60.0))
            return found[0] if many and found else found or None

        async with transaction(side, queue) as session:
            await side.note(session)
            await done(queue.bind(session).ack(lease))
            side.clock.advance(11.0)
            assert await claim() is None
            await done(other.publish("h", event("h1")))
            assert (await claim()).group_id == "h"
            side.clock.advance(0.1)
            assert await claim() is None
            side.clock.advance(1.0)
            assert await claim() is None
        again = await claim()
        assert (again.event.kind, again.attempt) == ("m2", 1)
        assert await side.notes() == 1
        await side.close()

    async def test_a_lease_that_ran_out_and_was_not_settled_after_all_is_claimed(
        self, side: Side, transaction: Any
    ) -> None:
        queue = await side.open()
        await done(queue.publish("g", event("m1")))
        lease = await done(queue.claim("w", 10.0))

        async def change_ones_mind(session: Any) -> None:
            await done(queue.bind(session).ack(lease))
            side.clock.advance(11.0)
            assert await done(queue.claim("v", 60.0)) is None
            raise Undo

        with pytest.raises(Undo):
            await within(transaction(side, queue), change_ones_mind)
        assert await done(queue.claim("v", 60.0)) is None
        side.clock.advance(1.0)
        again = await done(queue.claim("v", 60.0))
        assert (again.event.kind, again.attempt) == ("m1", 2)
        assert await done(queue.ack(lease)) is False
        assert await done(queue.ack(again)) is True
        assert await names(queue) == []
        await side.close()

    async def test_who_claims_first_has_it_promise_1(self, side: Side, transaction: Any) -> None:
        queue = await side.open()
        await done(queue.publish("g", event("m1")))
        lease = await done(queue.claim("w", 10.0))

        async def too_late(session: Any) -> None:
            await side.note(session)
            side.clock.advance(11.0)
            taken.append(await done(queue.claim("v", 60.0)))
            await done(queue.bind(session).ack(lease))

        taken: list[Any] = []
        with pytest.raises(LeaseLost):
            await within(transaction(side, queue), too_late)
        assert taken[0].attempt == 2
        assert await done(queue.ack(taken[0])) is True
        assert (await side.notes(), await names(queue)) == (0, [])
        await side.close()

    @each_settling
    async def test_while_it_is_open_its_lease_cannot_be_settled_elsewhere(
        self, side: Side, transaction: Any, settle: str, extra: tuple[Any, ...]
    ) -> None:
        queue = await side.open()
        await done(queue.publish_many([Message("g", event(name)) for name in ("m1", "m2")]))
        lease = await done(queue.claim("w", 60.0))
        async with transaction(side, queue) as session:
            await done(queue.bind(session).ack(lease))
            with pytest.raises(TransportUnavailable, match="open"):
                await done(getattr(queue, settle)(lease, *extra))
            assert await done(queue.extend(lease, 60.0)) is True
        assert await done(getattr(queue, settle)(lease, *extra)) is False
        assert await drained(queue) == ["m2"]
        await side.close()

    @each_settling
    async def test_when_it_was_rolled_back_its_lease_is_as_before(
        self, side: Side, transaction: Any, settle: str, extra: tuple[Any, ...]
    ) -> None:
        queue = await side.open()
        await done(queue.publish("g", event("m1")))
        lease = await done(queue.claim("w", 60.0))

        async def change_ones_mind(session: Any) -> None:
            await done(queue.bind(session).reject(lease, "no"))
            raise Undo

        with pytest.raises(Undo):
            await within(transaction(side, queue), change_ones_mind)
        assert await done(getattr(queue, settle)(lease, *extra)) is True
        assert [letter.reason for letter in await done(queue.dead_letters())] == (["why"] if settle == "reject" else [])
        assert await drained(queue) == (["m1"] if settle == "nack" else [])
        await side.close()

    async def test_a_purge_leaves_what_it_is_settling(self, side: Side, transaction: Any) -> None:
        queue = await side.open()
        await done(queue.publish_many([Message("g", event(name)) for name in ("m1", "m2")]))
        lease = await done(queue.claim("w", 10.0))
        async with transaction(side, queue) as session:
            await done(queue.bind(session).ack(lease))
            side.clock.advance(11.0)
            assert await done(queue.purge("g")) == 1
            assert [message.event.kind for message in await done(queue.peek("g"))] == ["m1"]
        assert await names(queue) == []
        await side.close()

    async def test_a_purge_after_it_deletes_all(self, side: Side, transaction: Any) -> None:
        queue = await side.open()
        await done(queue.publish_many([Message("g", event(name)) for name in ("m1", "m2")]))
        lease = await done(queue.claim("w", 10.0))
        async with transaction(side, queue) as session:
            await done(queue.bind(session).ack(lease))
            await done(queue.bind(session).publish("g", event("m3")))
            await done(queue.bind(session).publish("h", event("h1")))
        assert await done(queue.purge("h")) == 1
        assert await done(queue.purge("g")) == 2
        assert await names(queue) == []
        await side.close()

    async def test_a_hold_lasts(self, side: Side, transaction: Any) -> None:
        queue = await side.open()
        await done(queue.publish_many([Message("g", event(name)) for name in ("m1", "m2")]))
        lease = await done(queue.claim("w", 10.0))
        async with transaction(side, queue) as session:
            bound = queue.bind(session)
            await done(bound.ack(lease))
            await done(bound.publish("h", event("h1")))
            assert await done(queue.hold("g")) is True
            assert await done(queue.hold("h")) is False
        assert await done(queue.hold("h")) is True
        assert await done(queue.claim("w", 10.0)) is None
        assert [group.state for group in await done(queue.groups())] == ["held", "held"]
        assert await done(queue.release("g")) is True
        assert await done(queue.release("h")) is True
        assert sorted(await drained(queue)) == ["h1", "m2"]
        await side.close()

    async def test_a_dead_letter_can_be_redriven(self, side: Side, transaction: Any) -> None:
        queue = await side.open()
        await done(queue.publish("g", event("m1"), 2))
        lease = await done(queue.claim("w", 10.0))
        async with transaction(side, queue) as session:
            await done(queue.bind(session).reject(lease, "why"))
            assert await done(queue.dead_letters()) == []
            assert await done(queue.redrive(lease.seq)) is False
        assert await done(queue.redrive(lease.seq)) is True
        assert await done(queue.redrive(lease.seq)) is False
        again = await done(queue.claim("w", 10.0, 2))
        assert (again.event.kind, again.attempt) == ("m1", 1)
        assert await done(queue.ack(again)) is True
        assert (await names(queue), await done(queue.dead_letters())) == ([], [])
        await side.close()


async def test_what_a_rejection_that_died_left_goes_with_the_message(side: Side) -> None:
    queue = await side.open()
    await done(queue.publish("g", event("m1")))
    assert await done(queue.nack(await done(queue.claim("w", 60.0)))) is True
    letters = side.client()[side.db_name].transport_dead_letters
    await done(letters.insert_one({"_id": 1, "state": "pending", "tokens": ["w:1"], "group_id": "g", "event": "{}"}))
    lease = await done(queue.claim("w", 60.0))
    async with block(queue.transaction()) as session:
        await done(queue.bind(session).ack(lease))
    assert await done(letters.find({}).to_list()) == []
    await side.close()


class TestOldSnapshots:
    """A transaction sees what there was when it began; what it cannot settle it says so, to be begun anew."""

    async def test_a_message_that_came_later_is_for_another_transaction(self, side: Side) -> None:
        queue = await side.open()
        tries = 0

        async def handle(session: Any) -> None:
            nonlocal tries
            tries += 1
            await side.note(session)
            if tries == 1:
                await done(queue.publish("g", event("m1")))
                leases.append(await done(queue.claim("w", 60.0)))
            await done(queue.bind(session).ack(leases[0]))

        leases: list[Any] = []
        async with block(side.client().start_session()) as session:
            await done(session.with_transaction(handle if side.is_async else lambda it: finished(handle(it))))
        assert (tries, await side.notes(), await names(queue)) == (2, 1, [])
        await side.close()

    async def test_a_lease_on_a_message_that_it_sees_is_settled(self, side: Side) -> None:
        queue = await side.open()
        await done(queue.publish("g", event("m1")))
        async with block(queue.transaction()) as session:
            await side.note(session)
            lease = await done(queue.claim("w", 60.0))
            await done(queue.bind(session).ack(lease))
        assert (await side.notes(), await names(queue)) == (1, [])
        await side.close()

    async def test_of_two_that_settle_one_message_the_second_conflicts(self, side: Side) -> None:
        queue = await side.open()
        await done(queue.publish("g", event("m1")))
        lease = await done(queue.claim("w", 60.0))
        async with block(queue.transaction()) as session:
            await done(queue.bind(session).ack(lease))

            async def again(other: Any) -> None:
                await done(queue.bind(other).ack(lease))

            with pytest.raises(TransactionConflict, match="begin it anew") as raised:
                await within(block(queue.transaction()), again)
            assert raised.value.has_error_label(TRANSIENT)
            assert isinstance(raised.value.__cause__, OperationFailure)
        with pytest.raises(LeaseLost):
            await within(block(queue.transaction()), again)
        assert await names(queue) == []
        await side.close()

    async def test_one_that_began_before_a_settling_cannot_do_it_again(self, side: Side) -> None:
        queue = await side.open()
        await done(queue.publish("g", event("m1")))
        lease = await done(queue.claim("w", 60.0))

        async def settle_again(session: Any) -> None:
            await side.note(session)
            assert await done(queue.ack(lease)) is True
            await done(queue.bind(session).ack(lease))

        with pytest.raises(TransactionConflict):
            await within(block(queue.transaction()), settle_again)
        assert (await side.notes(), await names(queue)) == (0, [])
        await side.close()


def finished(coroutine: Any) -> Any:
    """Run a coroutine of sync code, which never waits."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("it waits")


class TestNoLockIsHeld:
    """A claim takes the first lock, and would wait if a transaction had written it."""

    async def test_a_transaction_writes_nothing_but_its_own_documents(self, side: Side) -> None:
        queue = await side.open()
        await done(queue.publish_many([Message(name, event("m")) for name in "abc"]))
        leases = await done(queue.claim_many("w", 60.0, 3))
        side.server.log()
        async with block(queue.transaction()) as session:
            bound = queue.bind(session)
            await done(bound.ack(leases[0]))
            await done(bound.nack(leases[1], 5.0))
            await done(bound.reject(leases[2], "why"))
            await done(bound.publish("d", event("m")))
        done_within = {
            (work["command"], work["collection"].removeprefix("transport_"))
            for work in seen_by(side.db_name, side.server.log())
            if work["within"]
        }
        assert done_within == {
            ("delete", "messages"),
            ("update", "messages"),
            ("insert", "messages"),
            ("update", "dead_letters"),
            ("insert", "locks"),
        }
        await side.close()

    async def test_no_command_waits_beside_one(self, side: Side) -> None:
        queue = await side.open()
        await done(queue.publish_many([Message(name, event("m")) for name in "abc"]))
        expired, live = await done(queue.claim_many("w", 10.0, 2))
        side.clock.advance(11.0)
        assert await done(queue.extend(live, 60.0)) is True
        async with block(queue.transaction()) as session:
            bound = queue.bind(session)
            await done(bound.publish_many([Message(name, event("late")) for name in "abcd"]))
            await done(bound.ack(expired))
            await done(bound.nack(live))
            assert side.server.tell("waiting")["open"] == 1
            assert (await done(queue.claim("v", 60.0))).group_id == "c"
            assert await done(queue.claim_many("v", 60.0, 9)) == []
            assert await done(queue.extend(live, 60.0)) is True
            await done(queue.publish_many([Message(name, event("m2")) for name in "abcd"]))
            assert (await done(queue.claim("v", 60.0))).group_id == "d"
            for name in "abcd":
                assert await done(queue.hold(name)) is True
                assert await done(queue.release(name)) is True
            assert (await done(queue.stats())).messages == 7
        assert (await done(queue.stats())).messages == 10
        await side.close()


class TestDying:
    """Wherever a client dies, what is committed is done, what is not never was, and nothing is stranded."""

    @pytest.mark.parametrize("ran_out", [False, True])
    async def test_before_the_commit_the_group_is_free_when_the_server_gives_up(
        self, side: Side, ran_out: bool
    ) -> None:
        queue = await side.open()
        await done(queue.publish("g", event("m1")))
        lease = await done(queue.claim("w", 10.0))
        client = side.client()
        session = client.start_session()
        await done(session.start_transaction())
        await side.note(session)
        await done(queue.bind(session).ack(lease))
        await done(queue.bind(session).publish("h", event("h1")))
        session._server_session = None  # nothing more is heard of it
        if ran_out:
            side.clock.advance(11.0)
            assert await done(queue.claim("v", 60.0)) is None
        side.server.tell("expire")
        side.clock.advance(11.0)
        again = await done(queue.claim("v", 60.0))
        assert (again.event.kind, again.attempt) == ("m1", 2)
        assert await done(queue.ack(again)) is True
        assert (await side.notes(), await names(queue)) == (0, [])
        await side.close()

    async def test_a_server_gives_up_what_is_open_for_too_long(self, side: Side) -> None:
        queue = await side.open()
        await done(queue.publish("g", event("m1")))
        lease = await done(queue.claim("w", 60.0))

        async def take_too_long(session: Any) -> None:
            await side.note(session)
            await done(queue.bind(session).ack(lease))
            side.server.tell("expire")

        with pytest.raises(TransactionConflict):
            await within(block(queue.transaction()), take_too_long)
        assert await side.notes() == 0
        async with block(queue.transaction()) as session:
            await done(queue.bind(session).ack(lease))
        assert await names(queue) == []
        await side.close()

    @pytest.mark.parametrize(("how", "code"), [("drop_before", 0), ("drop_after", 0), ("refuse", 50)])
    async def test_a_commit_whose_answer_is_lost_is_asked_for_again(
        self, side: Side, how: str, code: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(pymongo.common, "MIN_HEARTBEAT_INTERVAL", 0.002)
        queue = await side.open()
        await done(queue.publish("g", event("m1")))
        lease = await done(queue.claim("w", 60.0))
        side.server.fail("commitTransaction", how, code=code, times=3)
        async with block(queue.transaction()) as session:
            await side.note(session)
            await done(queue.bind(session).ack(lease))
        assert (await side.notes(), await names(queue)) == (1, [])
        await side.close()

    async def test_a_commit_that_is_not_known_to_have_happened_says_so(
        self, side: Side, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(pymongo.common, "MIN_HEARTBEAT_INTERVAL", 0.002)
        monkeypatch.setattr("harel.engine.transport.mongo_calls._COMMIT_S", -1.0)
        queue = await side.open()
        await done(queue.publish("g", event("m1")))
        lease = await done(queue.claim("w", 60.0))
        side.server.fail("commitTransaction", "drop_after")
        side.server.fail("commitTransaction", "refuse", code=50)

        async def handle(session: Any) -> None:
            await side.note(session)
            await done(queue.bind(session).ack(lease))

        with pytest.raises(TransportUnavailable, match="may have happened or not") as raised:
            await within(block(queue.transaction()), handle)
        assert not isinstance(raised.value, TransactionConflict)
        assert await done(queue.nack(lease)) is False, "it did happen"
        assert (await side.notes(), await names(queue)) == (1, [])
        await side.close()

    @pytest.mark.parametrize("work", ["settle", "publish"])
    async def test_after_the_commit_and_anywhere_in_carrying_out_what_it_left(
        self, side: Side, work: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whoever finds the ticket and dies over it leaves the group to be claimed; a look never lies."""
        monkeypatch.setattr(pymongo.common, "MIN_HEARTBEAT_INTERVAL", 0.002)
        place = 0
        while await self._dies_after(side, work, place):
            place += 1
        assert place > 2
        await side.close()

    async def _dies_after(self, side: Side, work: str, commands: int) -> bool:
        """Have a claim die after so many commands; return whether it died."""
        side.db_name += "x"
        queue = await side.open()
        impatient = await side.open(retryWrites=False, retryReads=False)
        await done(queue.publish_many([Message("g", event("m1")), Message("g", event("m2"))]))
        lease = await done(queue.claim("w", 10.0))
        async with on_ones_own_client(side, queue) as session:
            bound = queue.bind(session)
            await done(bound.ack(lease) if work == "settle" else bound.publish_many([Message("h", event("h1"))] * 2))
        await done(impatient.wait(0.0))  # which connects
        side.server.fail("any", "drop_after", skip=commands)
        died = False
        try:
            await done(impatient.claim("v", 10.0))
        except TransportUnavailable:
            died = True
        side.server.lift()
        counts = {group.group_id: group.messages for group in await done(queue.groups())}
        assert counts == ({"g": 1} if work == "settle" else {"g": 2, "h": 2})
        side.clock.advance(11.0)
        kinds = await drained(queue)
        assert sorted(kinds) == (["m2"] if work == "settle" else ["h1", "h1", "m1", "m2"])
        return died


class TestTheQueuesOwn:
    """``transaction()``."""

    async def test_what_it_left_to_do_is_done_when_it_ends(self, side: Side) -> None:
        queue = await side.open()
        await done(queue.publish("g", event("m1")))
        lease = await done(queue.claim("w", 60.0))
        async with block(queue.transaction()) as session:
            await done(queue.bind(session).ack(lease))
            await done(queue.bind(session).publish("h", event("h1")))
        side.server.log()
        assert await done(queue.claim("w", 60.0)) is not None
        assert await done(queue.claim("w", 60.0)) is None
        commands = [work["command"] for work in seen_by(side.db_name, side.server.log())]
        assert commands == ["findAndModify", "find", "findAndModify"], "claims find no ticket"
        await side.close()

    async def test_if_that_fails_the_next_claim_does_it(self, side: Side) -> None:
        queue = await side.open()
        async with block(queue.transaction()) as session:
            await done(queue.bind(session).publish("h", event("h1")))
            side.server.fail("find", "refuse", code=189)
        assert (await done(queue.claim("w", 60.0))).event.kind == "h1"
        await side.close()

    async def test_one_that_the_caller_ends_itself_is_ended(self, side: Side) -> None:
        queue = await side.open()
        async with block(queue.transaction()) as session:
            await done(queue.bind(session).publish("g", event("m1")))
            await done(session.commit_transaction())
        async with block(queue.transaction()) as session:
            await done(queue.bind(session).publish("g", event("never")))
            await done(session.abort_transaction())
        assert await drained(queue) == ["m1"]
        await side.close()

    async def test_the_callers_own_mistakes_stay_its_own(self, side: Side) -> None:
        queue = await side.open()

        async def mistake(session: Any) -> None:
            await done(session.client[side.db_name].notes.update_one({}, {"$frobnicate": {"a": 1}}, session=session))

        with pytest.raises(OperationFailure):
            await within(block(queue.transaction()), mistake)
        async with block(queue.transaction()) as session:
            await done(queue.bind(session).publish("g", event("m1")))
        assert await names(queue) == ["g"]
        await side.close()

    async def test_there_can_be_as_many_as_connections(self, side: Side) -> None:
        queue = await side.open(maxPoolSize=7)
        assert queue.max_transactions == 7
        assert (await side.open()).max_transactions == 100
        await side.close()

    async def test_they_close_with_the_transport(self, side: Side) -> None:
        queue = await side.open()
        async with block(queue.transaction()) as session:
            bound = queue.bind(session)
        with pytest.raises(InvalidArgument, match="ended"):
            await done(bound.publish("g", event("m1")))
        await done(queue.close())
        with pytest.raises(InvalidArgument, match="closed"):
            queue.transaction()
        with pytest.raises(InvalidArgument, match="closed"):
            queue.bind(None)
        await side.close()

    def test_a_cancelled_task_leaves_none_open(self, stand_in: StandIn) -> None:
        async def scenario() -> None:
            async with AsyncMongoTransport.from_url(stand_in.url, db_name=f"t{uuid4().hex[:12]}") as queue:
                inside = asyncio.Event()

                async def handle() -> None:
                    async with queue.transaction() as session:
                        await queue.bind(session).publish("g", event("m1"))
                        inside.set()
                        await asyncio.Event().wait()

                handling = asyncio.create_task(handle())
                await inside.wait()
                assert stand_in.tell("waiting")["open"] == 1
                handling.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await handling
                assert stand_in.tell("waiting")["open"] == 0
                assert await queue.groups() == []

        asyncio.run(scenario())

    def test_a_task_can_bind_before_anything_else_was_done(self, stand_in: StandIn) -> None:
        async def scenario() -> None:
            queue = AsyncMongoTransport.from_url(stand_in.url, db_name=f"t{uuid4().hex[:12]}")
            client: Any = pymongo.AsyncMongoClient(stand_in.url)
            async with client.start_session() as session, await session.start_transaction():
                await queue.bind(session).publish("g", event("m1"))
            await client.close()
            async with queue.transaction() as session:
                await queue.bind(session).publish("g", event("m2"))
            assert len(await queue.peek("g")) == 2
            await queue.close()

        asyncio.run(scenario())


class TestWhatBindTakes:
    """A session of its twin's class, in a transaction, on a server that has them; anything else changes nothing."""

    async def test_one_in_no_transaction_is_refused(self, side: Side) -> None:
        queue = await side.open()
        session = side.client().start_session()
        with pytest.raises(InvalidArgument, match="start_transaction"):
            queue.bind(session)
        await done(session.start_transaction())
        bound = queue.bind(session)
        await done(session.abort_transaction())
        with pytest.raises(InvalidArgument, match="start_transaction"):
            await done(bound.publish("g", event("m1")))
        await done(session.end_session())
        with pytest.raises(InvalidArgument, match="ended"):
            queue.bind(session)
        assert await names(queue) == []
        await side.close()

    async def test_so_is_the_other_twins_and_anything_else(self, side: Side) -> None:
        queue = await side.open()
        other = side.other_class(side.server.url, connect=False)
        for wrong in (other.start_session(), object(), side.client(), side.server.url):
            with pytest.raises(InvalidArgument, match=f"pymongo {side.transport._session_class.__name__}"):
                queue.bind(wrong)
        await done(other.close())
        await side.close()

    @pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
    async def test_a_server_alone_has_none_and_says_so(self, alone: StandIn, is_async: bool) -> None:
        side = Side(alone, is_async)
        queue = await side.open()
        session = side.client().start_session()
        await done(session.start_transaction())
        if is_async:
            # Nobody knows yet; then it is said at the first request.
            with pytest.raises(NotSupported, match="replica set"):
                await within(block(queue.transaction()), side.note)
        assert queue.capabilities.bind is False
        with pytest.raises(NotSupported, match=r"capabilities\.bind is False.*replica set"):
            queue.bind(session)
        with pytest.raises(NotSupported, match="replica set"):
            await within(block(queue.transaction()), side.note)
        await done(queue.publish("g", event("m1")))
        assert await drained(queue) == ["m1"]
        await side.close()

    def test_a_task_learns_of_a_server_alone_when_it_first_asks(self, alone: StandIn) -> None:
        async def scenario() -> None:
            queue = AsyncMongoTransport.from_url(alone.url, db_name=f"t{uuid4().hex[:12]}")
            assert queue.capabilities.bind is True, "nobody knows yet"
            client: Any = pymongo.AsyncMongoClient(alone.url)
            async with client.start_session() as session:
                await session.start_transaction()
                bound = queue.bind(session)
                with pytest.raises(NotSupported, match="replica set"):
                    await bound.publish("g", event("m1"))
            assert queue.capabilities.bind is False
            await client.close()
            await queue.close()

        asyncio.run(scenario())


def test_who_waits_finds_what_was_committed(stand_in: StandIn) -> None:
    with MongoTransport.from_url(stand_in.url, db_name=f"t{uuid4().hex[:12]}", poll_interval=0.01) as queue:
        answers: list[bool] = []
        waiting = threading.Thread(target=lambda: answers.append(queue.wait(PATIENCE_S)))
        with queue.transaction() as session:
            queue.bind(session).publish("g", event("m1"))
            waiting.start()
            time.sleep(0.05)
            assert answers == []
        waiting.join(PATIENCE_S)
        assert answers == [True]


def test_a_batch_of_thousands_is_all_or_nothing(stand_in: StandIn) -> None:
    with MongoTransport.from_url(stand_in.url, db_name=f"t{uuid4().hex[:12]}") as queue:
        batch = [Message(f"g{n % 3}", Event("k", id=str(n))) for n in range(2_500)]

        def publish(*, then_fail: bool) -> None:
            with queue.transaction() as session:
                queue.bind(session).publish_many(batch)
                if then_fail:
                    raise Undo

        with pytest.raises(Undo):
            publish(then_fail=True)
        assert queue.stats().messages == 0
        publish(then_fail=False)
        stored = [[message.event.id for message in queue.peek(f"g{group}", 3_000)] for group in range(3)]
        assert stored == [[str(n) for n in range(group, 2_500, 3)] for group in range(3)]
        assert [group.messages for group in queue.groups()] == [834, 833, 833]


def test_a_ticket_that_is_carried_out_twice_counts_once(stand_in: StandIn) -> None:
    """Two who find it at once: neither the group's count nor its life is doubled."""
    with MongoTransport.from_url(stand_in.url, db_name=f"t{uuid4().hex[:12]}") as queue:
        client: Any = queue._client
        locks = client[queue._mongo_ops.queue.rpartition("/")[2].partition("#")[0]]["transport_locks"]
        with client.start_session() as session, session.start_transaction():
            queue.bind(session).publish_many([Message("g", event("m1")), Message("h", event("h1"))])
        (ticket,) = locks.find({"_id": {"$gte": {}}}).to_list()
        assert queue.stats().groups == 2
        locks.insert_one(ticket)
        assert queue.stats().groups == 2
        assert locks.find({"_id": {"$gte": {}}}).to_list() == []
        assert [lock["version"] for lock in locks.find({"_id": {"$gte": ""}}).to_list()] == [1, 1]
        for _ in range(2):
            lease = queue.claim("w", 30.0)
            assert lease is not None
            assert queue.ack(lease) is True
        assert queue.stats().groups == 0
