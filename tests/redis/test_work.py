"""How much a server does for an operation: the same whatever waits in the queue. Promise 10, without a clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from harel import Event, Lease, Message
from harel.engine.transport import RedisTransport
from harel.testing import ManualClock
from tests.redis.watching import Watch, watching
from tests.servers.redis import prefix_in

FEW, MANY = 100, 20_000
SHALLOW, DEEP = 10, 10_000
EVENT = Event("noted", {"n": 1})


class Bench:
    """A queue whose server's commands are listed."""

    def __init__(self, url: str, prefix: str, watch: Watch) -> None:
        self.clock = ManualClock(tick=0.0)
        self.queue = RedisTransport.from_url(url, prefix=prefix, clock=self.clock)
        self.watch = watch
        for script, _ in self.queue._ops._scripts.values():  # type: ignore[attr-defined]
            watch.client.script_load(script.text.decode())

    def fill(self, groups: int, priority: int = 0, prefix: str = "filler") -> None:
        self.queue.publish_many(Message(f"{prefix}{n}", EVENT, priority) for n in range(groups))

    def claim(self, floor: int = 0) -> Lease:
        lease = self.queue.claim("w", 30.0, floor)
        assert lease is not None
        return lease

    def work(self, call: Callable[[], object]) -> list[str]:
        """Return the names of the commands that a call's script gives, having seen that each is bounded."""
        command = self.watch.one(call)
        return [_bounded(words) for words in command.inner]

    def core(self, name: str) -> dict[str, list[str]]:
        """Return the work of each core operation, and of ``wait`` and ``stats``, on the group with this name."""
        leases: list[Lease] = []
        return {
            "publish": self.work(lambda: self.queue.publish(name, EVENT)),
            "first publish": self.work(lambda: self.queue.publish(f"new {name}", EVENT)),
            "claim": self.work(lambda: leases.append(self.claim())),
            "extend": self.work(lambda: self.queue.extend(leases[0], 60.0)),
            "ack": self.work(lambda: self.queue.ack(leases[0])),
            "claim again": self.work(lambda: leases.append(self.claim())),
            "nack": self.work(lambda: self.queue.nack(leases[1])),
            "many": self.work(lambda: leases.extend(self.queue.claim_many("w", 30.0, 5))),
            "reject": self.work(lambda: self.queue.reject(leases[2], "a reason")),
            "wait": self.work(lambda: self.queue.wait(0.0)),
            "stats": self.work(self.queue.stats),
            "hold": self.work(lambda: self.queue.hold(name)),
            "release": self.work(lambda: self.queue.release(name)),
        }


@pytest.fixture
def bench(own_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Bench]]:
    made: list[Bench] = []
    with watching(own_url) as watch:

        def make() -> Bench:
            made.append(Bench(own_url, prefix_in(tmp_path_factory.mktemp("bench")), watch))
            return made[-1]

        yield make
        for one in made:
            one.queue.close()


def test_work_does_not_grow_with_the_groups_promise_10(bench: Callable[[], Bench]) -> None:
    def core(groups: int) -> dict[str, list[str]]:
        one = bench()
        one.queue.publish_many([Message("g", EVENT), Message("g", EVENT)])
        one.clock.advance(1.0)
        one.fill(groups)
        return one.core("g")

    assert core(FEW) == core(MANY)


def test_work_does_not_grow_with_the_messages_of_a_group_promise_10(bench: Callable[[], Bench]) -> None:
    def core(messages: int) -> dict[str, list[str]]:
        one = bench()
        one.queue.publish_many(Message("g", EVENT) for _ in range(messages))
        one.clock.advance(1.0)
        one.fill(SHALLOW)
        return one.core("g")

    assert core(SHALLOW) == core(DEEP)


@pytest.mark.parametrize("floor", [1, 2, 3, 4])
def test_a_floor_costs_the_same_behind_any_backlog_of_lower_groups_promises_8_and_10(
    bench: Callable[[], Bench], floor: int
) -> None:
    def work(groups: int) -> list[str]:
        one = bench()
        for priority in range(floor):
            one.fill(groups // floor, priority, f"low{priority}-")
        one.queue.publish("high", EVENT, floor)
        leases: list[Lease] = []
        work = one.work(lambda: leases.append(one.claim(floor)))
        assert leases[0].group_id == "high"
        assert one.work(lambda: one.queue.claim("w", 30.0, floor)) != work
        return work

    assert work(FEW) == work(MANY)


@pytest.mark.parametrize("state", ["leased", "parked", "held"])
def test_groups_that_cannot_be_claimed_are_not_in_a_claims_way_promise_4(
    bench: Callable[[], Bench], state: str
) -> None:
    def work(groups: int) -> list[str]:
        one = bench()
        one.fill(groups)
        for lease in one.queue.claim_many("w", 60.0, groups):
            if state == "parked":
                assert one.queue.nack(lease, 60.0)
            elif state == "held":
                assert one.queue.hold(lease.group_id)
        one.queue.publish("g", EVENT)
        leases: list[Lease] = []
        work = one.work(lambda: leases.append(one.claim()))
        assert leases[0].group_id == "g"
        return work

    assert work(10) == work(1_000)


def _bounded(words: list[str]) -> str:
    """See that a command costs O(log n) at most; return its name."""
    name = words[0].upper()
    assert name in CHEAP, f"{name} is not known to be cheap"
    if name == "ZRANGE":
        assert words[2:4] == ["0", "0"]
    if name in ("ZRANGEBYSCORE", "ZRANGEBYLEX"):
        assert "LIMIT" in words
    return name


CHEAP = {
    "EXISTS",
    "HDEL",
    "HGET",
    "HINCRBY",
    "HLEN",
    "HMGET",
    "HSET",
    "PUBLISH",
    "TIME",
    "ZADD",
    "ZCARD",
    "ZCOUNT",
    "ZRANGE",
    "ZRANGEBYLEX",
    "ZRANGEBYSCORE",
    "ZREM",
    "ZSCORE",
}
"""Commands of O(log n) at most, where their ranges are bounded."""
