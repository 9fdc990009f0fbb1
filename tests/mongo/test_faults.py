"""The connection breaks before or after any command of any operation: nothing lost, nothing twice, nothing stranded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any
from uuid import uuid4

import pymongo
import pytest

from harel import Event, HarelError, Message, PartlyPublished, TransportUnavailable
from harel.engine.transport import MongoTransport
from harel.testing import ManualClock
from tests.interleavings.test_mongo import MongoSetting
from tests.interleavings.test_pairs import ENTRANTS, Enter, draining, expired, live
from tests.mongo.conftest import Twin, seen_by
from tests.servers.mongo import StandIn

NOT_SENT_AGAIN = ("purge",)
"""What deletes many documents by one command."""

Client = pymongo.MongoClient[dict[str, Any]]


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """pymongo looks for a server that it lost no sooner than after half a second."""
    monkeypatch.setattr(pymongo.common, "MIN_HEARTBEAT_INTERVAL", 0.002)


@pytest.fixture(params=["replica", "alone"])
def server(request: pytest.FixtureRequest, replica: StandIn, alone: StandIn) -> Iterator[StandIn]:
    chosen = {"replica": replica, "alone": alone}[request.param]
    chosen.lift()
    yield chosen
    chosen.lift()


@pytest.fixture
def client(no_patience: None, server: StandIn) -> Iterator[Client]:
    with pymongo.MongoClient[dict[str, Any]](server.url) as client:
        yield client


class Play:
    """One operation that meets a fault, on a queue of its own."""

    def __init__(self, client: Client, server: StandIn, prepare: Enter, name: str) -> None:
        self.server = server
        self.database = f"t{uuid4().hex[:12]}"
        self.clock = ManualClock()
        self.queue = MongoTransport(client, db_name=self.database, clock=self.clock)
        self.setting = MongoSetting(self.queue._ops, self._send, self.clock)
        self.error: HarelError | None = None
        prepare(self.setting)
        ENTRANTS[name](self.setting)
        (self.actor,) = self.setting.scene.actors

    def _send(self, request: Any) -> Any:
        try:
            return self.queue._send(request)
        except TransportUnavailable as error:
            self.error = error
            raise

    def run(self) -> HarelError | None:
        """Run the operation; return what it met, if it did not succeed."""
        with suppress(TransportUnavailable, PartlyPublished):
            while not self.actor.ended:
                self.actor.step()
        return self.error

    def faults(self) -> list[str]:
        self.server.lift()
        return self.setting.scene.faults()

    def close(self, client: Client) -> None:
        self.queue.close()
        client.drop_database(self.database)


def _count(play: Play) -> int:
    play.server.log()
    assert play.run() is None
    commands = len(seen_by(play.database, play.server.log()))
    assert play.faults() == []
    return commands


@pytest.mark.parametrize("prepare", [live, draining, expired], ids=lambda prepare: prepare.__name__)
@pytest.mark.parametrize("name", ENTRANTS)
def test_a_connection_that_breaks_at_any_command_breaks_no_promise(
    client: Client, server: StandIn, name: str, prepare: Enter
) -> None:
    def play(act: Callable[[Play], Any]) -> Any:
        one = Play(client, server, prepare, name)
        answer = act(one)
        one.close(client)
        return answer

    errors: list[HarelError | None] = []
    retries = bool(client.admin.command("hello").get("setName")) and name not in NOT_SENT_AGAIN
    for place in range(play(_count)):
        for how in ("drop_before", "drop_after"):

            def meet(one: Play, how: str = how, place: int = place) -> None:
                server.fail("any", how, skip=place)
                error = one.run()
                assert server.tell("to come")["times"] == 0
                errors.append(error)
                assert not (retries and error), f"{how} {place}: {error!r}"
                assert one.faults() == [], f"{how} {place}"

            play(meet)
    # A server alone is asked again only what changes nothing: here all but a release, which finds no hold.
    assert retries or any(errors) or prepare is not expired or name == "release"


def test_a_batch_that_broke_off_says_how_many_are_published_and_they_are_in_order(
    client: Client, server: StandIn
) -> None:
    with MongoTransport(client, db_name=f"t{uuid4().hex[:12]}") as queue:
        batch = [Message(f"g{n % 3}", Event("k", id=str(n))) for n in range(2_500)]
        server.fail("insert", "refuse", skip=2, code=189)
        with pytest.raises(PartlyPublished, match="2,500 messages the first 2,000 were published") as raised:
            queue.publish_many(batch)
        assert raised.value.published == 2_000
        assert isinstance(raised.value.__cause__, TransportUnavailable)
        queue.publish_many(batch[2_000:])
        stored = [[message.event.id for message in queue.peek(f"g{group}", 3_000)] for group in range(3)]
        assert stored == [[str(n) for n in range(group, 2_500, 3)] for group in range(3)]


def test_a_batch_that_failed_at_once_was_not_published(client: Client, server: StandIn) -> None:
    with MongoTransport(client, db_name=f"t{uuid4().hex[:12]}") as queue:
        server.fail("findAndModify", "refuse", code=189)
        with pytest.raises(TransportUnavailable):
            queue.publish_many([Message("g", Event("k"))] * 2)
        assert queue.stats().messages == 0


@pytest.mark.parametrize("code", [91, 189, 10107, 11600, 11602, 13435])
def test_a_primary_that_steps_down_is_asked_again_on_a_replica_set(
    no_patience: None, replica: StandIn, twin: Twin, code: int
) -> None:
    queue = twin.open()
    replica.fail("insert", "refuse", code=code, labels=["RetryableWriteError"])
    queue.publish("g", Event("k"))
    replica.fail("findAndModify", "refuse", code=code, labels=["RetryableWriteError"])
    lease = queue.claim("w", 30.0)
    assert lease is not None
    replica.fail("findAndModify", "drop_after")
    assert queue.ack(lease) is True
    assert queue.stats().messages == 0


def test_a_write_that_is_sent_again_is_done_once(no_patience: None, replica: StandIn, twin: Twin) -> None:
    queue = twin.open()
    for command in ("findAndModify", "insert", "update"):
        replica.fail(command, "drop_after")
        queue.publish("g", Event("k"))
    assert [message.seq for message in queue.peek("g")] == [1, 2, 3]
    replica.fail("findAndModify", "drop_after")
    lease = queue.claim("w", 30.0)
    assert lease is not None
    assert lease.attempt == 1
