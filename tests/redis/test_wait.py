"""Wait: woken by pub/sub, and by polling where that is lost.

Where waking is tested the polling is slower than a test may last, and where polling is tested nothing is heard.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar
from urllib.parse import urlsplit

import pytest
import redis

from harel import Event, HarelError, Lease, Transport
from harel.engine.aio_transport import AsyncRedisTransport
from harel.engine.queue.op import run
from harel.engine.transport import RedisTransport
from harel.engine.transport.redis_ears import MOST_EARS, _confirmed
from tests.redis.conftest import Twin
from tests.redis.watching import watching
from tests.servers.redis import server

EVENT = Event("noted", {"n": 1})
NEVER_S = 600.0
"""A polling interval longer than a test may last."""


@pytest.fixture(autouse=True)
def scripts(twin: Twin) -> None:
    """The server has the scripts, so that each look is one command."""
    twin.load_scripts()


@pytest.fixture
def other(twin: Twin) -> Iterator[Transport]:
    """Another process's transport on the queue."""
    with RedisTransport.from_url(twin.url, prefix=twin.prefix) as other:
        yield other


WAYS: dict[str, Callable[[Transport, Lease], object]] = {
    "a first publish": lambda other, lease: other.publish("new", EVENT),
    "an ack with messages left": lambda other, lease: other.ack(lease),
    "a reject with messages left": lambda other, lease: other.reject(lease, "a reason"),
    "a nack": lambda other, lease: other.nack(lease),
    "a nack with a short delay": lambda other, lease: other.nack(lease, 0.01),
    "a release": lambda other, lease: (other.hold("g"), other.nack(lease), other.release("g")),
    "a redrive": lambda other, lease: other.redrive(1),
}


@pytest.mark.parametrize("way", WAYS)
def test_what_makes_a_group_claimable_wakes_who_waits(
    twin: Twin, other: Transport, onlooker: redis.Redis, way: str
) -> None:
    queue = twin.open(poll_interval=NEVER_S)
    other.publish("dead", EVENT)
    lease = other.claim("w", NEVER_S)
    assert lease is not None
    assert other.reject(lease, "a reason")
    other.publish("g", EVENT)
    other.publish("g", EVENT)
    lease = other.claim("w", NEVER_S)
    assert lease is not None
    with once_it_listens(twin, onlooker, lambda: WAYS[way](other, lease)):
        assert queue.wait(NEVER_S) is True


@pytest.mark.parametrize("parked", [False, True])
def test_a_group_whose_time_comes_is_noticed_without_a_word_from_anyone(twin: Twin, parked: bool) -> None:
    queue = twin.open(poll_interval=NEVER_S)
    queue.publish("g", EVENT)
    lease = queue.claim("w", NEVER_S if parked else 0.05)
    assert lease is not None
    if parked:
        assert queue.nack(lease, 0.05)
    assert queue.wait(NEVER_S) is True
    assert queue.claim("w", NEVER_S) is not None


def test_a_subscription_that_is_dropped_is_had_again(twin: Twin, other: Transport, onlooker: redis.Redis) -> None:
    queue = twin.open(poll_interval=NEVER_S)

    def drop_and_publish() -> None:
        for _ in range(3):
            before = looks(onlooker)
            onlooker.client_kill_filter(_type="pubsub")
            until_it_listens(twin, onlooker, before + 2)  # one when it was lost, one when it was had again
        other.publish("g", EVENT)

    with once_it_listens(twin, onlooker, drop_and_publish):
        assert queue.wait(NEVER_S) is True


def test_a_wait_after_an_idle_subscription_died_listens_again(
    twin: Twin, other: Transport, onlooker: redis.Redis
) -> None:
    queue = twin.open(poll_interval=NEVER_S)
    assert queue.wait(0.01) is False
    for one in onlooker.client_list():
        if "unsubscribe" in one["cmd"]:
            onlooker.client_kill_filter(_id=one["id"])
    with once_it_listens(twin, onlooker, lambda: other.publish("g", EVENT)):
        assert queue.wait(NEVER_S) is True


def test_without_a_subscription_it_polls(twin: Twin) -> None:
    guarded = server()
    with redis.Redis.from_url(guarded.connection_url) as client:
        client.execute_command("ACL", "SETUSER", "mute", "on", ">pw", "resetchannels", "~*", "+@all")
    address = urlsplit(guarded.connection_url).netloc
    queue = twin.open(f"redis://mute:pw@{address}", poll_interval=0.01)
    publishing = threading.Timer(0.05, publish, (guarded.connection_url, twin.prefix))
    publishing.start()
    assert queue.wait(NEVER_S) is True
    publishing.join()


def test_a_wait_does_not_pile_up_what_it_did_not_read(twin: Twin, other: Transport, onlooker: redis.Redis) -> None:
    queue = twin.open(poll_interval=NEVER_S)
    assert queue.wait(0.01) is False
    channel = f"{{{twin.prefix}}}:meta"
    while onlooker.pubsub_numsub(channel)[0][1]:
        pass
    for n in range(100):
        other.publish(f"g{n}", EVENT)
    assert other.claim_many("w", NEVER_S, 100)
    with once_it_listens(twin, onlooker, lambda: other.publish("new", EVENT)):
        assert queue.wait(NEVER_S) is True


def test_a_wait_that_finds_something_is_one_round_trip(twin: Twin) -> None:
    queue = twin.open()
    queue.publish("g", EVENT)
    with watching(twin.url) as watch:
        assert watch.one(lambda: queue.wait(30.0)).words[0] == "EVALSHA"


def test_more_waits_than_subscriptions_all_end(twin: Twin, other: Transport) -> None:
    if twin.is_async:
        return
    queue = twin.open(poll_interval=0.05)
    answers: list[bool] = []
    waiting = [threading.Thread(target=lambda: answers.append(queue.wait(NEVER_S))) for _ in range(MOST_EARS + 4)]
    for thread in waiting:
        thread.start()
    other.publish("g", EVENT)
    for thread in waiting:
        thread.join()
    assert answers == [True] * len(waiting)


def test_closing_ends_a_wait(twin: Twin, onlooker: redis.Redis) -> None:
    if twin.is_async:
        return
    queue = twin.open(poll_interval=NEVER_S)
    with once_it_listens(twin, onlooker, queue.close), pytest.raises(HarelError):
        queue.wait(NEVER_S)  # says that it is closed, or that its connection is gone


async def test_closing_ends_a_wait_of_another_task(twin: Twin, onlooker: redis.Redis) -> None:
    if not twin.is_async:
        return
    queue = await AsyncRedisTransport.from_url(twin.url, prefix=twin.prefix, poll_interval=NEVER_S).open()
    before = looks(onlooker)
    waiting = asyncio.create_task(queue.wait(NEVER_S))
    await asyncio.to_thread(until_it_listens, twin, onlooker, before + 2)
    await queue.close()
    with pytest.raises(HarelError):
        await waiting


async def test_a_cancelled_wait_leaves_its_subscription_to_the_next(twin: Twin, onlooker: redis.Redis) -> None:
    if not twin.is_async:
        return
    async with AsyncRedisTransport.from_url(twin.url, prefix=twin.prefix, poll_interval=NEVER_S) as queue:
        for _ in range(3):
            before = looks(onlooker)
            waiting = asyncio.create_task(queue.wait(NEVER_S))
            await asyncio.to_thread(until_it_listens, twin, onlooker, before + 2)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        before = looks(onlooker)
        waiting = asyncio.create_task(queue.wait(NEVER_S))
        await asyncio.to_thread(until_it_listens, twin, onlooker, before + 2)
        await queue.publish("g", EVENT)
        assert await waiting is True


def test_a_subscription_stands_when_its_confirmation_came_and_not_before() -> None:
    class Subscription:
        left: ClassVar[list[str | None]] = ["message", "unsubscribe", None, "message", "subscribe", "message"]

        def get_message(self, timeout: float) -> dict[str, str] | None:
            kind = self.left.pop(0)
            return None if kind is None else {"type": kind}

    assert run(_confirmed(Subscription()), lambda call: call()) is True
    assert Subscription.left == ["message"]


@contextmanager
def once_it_listens(twin: Twin, onlooker: redis.Redis, then: Callable[[], object]) -> Iterator[None]:
    """Have something done by another thread as soon as a wait listens."""
    before = looks(onlooker)

    def act() -> None:
        until_it_listens(twin, onlooker, before + 2)
        then()

    thread = threading.Thread(target=act)
    thread.start()
    yield
    thread.join()


def until_it_listens(twin: Twin, onlooker: redis.Redis, so_many_looks: int) -> None:
    """Let a wait subscribe, and look once more: from then on it rests on what it hears."""
    while not onlooker.pubsub_numsub(f"{{{twin.prefix}}}:meta")[0][1] or looks(onlooker) < so_many_looks:
        pass


def looks(onlooker: redis.Redis) -> int:
    """Return how many scripts the server has run."""
    count: int = onlooker.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"]
    return count


def publish(url: str, prefix: str) -> None:
    with RedisTransport.from_url(url, prefix=prefix) as other:
        other.publish("g", EVENT)
