"""The server's clock: leases go by it, whatever a worker's own says, and last as long as they say. Promise 11."""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest

from harel import Event
from harel.engine.queue.mongo.clock import EXACT_S, REFRESH_S, SOON_S, ServerClock
from harel.engine.queue.mongo.ops import MongoOps
from harel.engine.queue.mongo.requests import FindAndUpdate, Hello, ServerHello
from tests.mongo.conftest import Twin
from tests.servers.mongo import StandIn

HOUR_S = 3_600.0


class World:
    """A server's clock and a client's steady one, and a network of which the test says how slow it is."""

    def __init__(self) -> None:
        self.truth = 1_700_000_000.0
        self.count = 500.0
        self.clock = ServerClock(lambda: self.count)

    def goes_by(self, seconds: float) -> None:
        self.truth += seconds
        self.count += seconds

    def hello(self, there_s: float, back_s: float) -> ServerHello:
        asked = self.count
        self.goes_by(there_s)
        said = int(self.truth * 1_000) / 1_000
        self.goes_by(back_s)
        return ServerHello(said, asked, self.count, 21)


@pytest.mark.parametrize(("there_s", "back_s"), list(itertools.product((0.0, 0.001, 0.4, 3.0), repeat=2)))
def test_the_truth_lies_between_now_and_latest_however_slow_the_network_is(there_s: float, back_s: float) -> None:
    world = World()
    world.clock.learn(world.hello(there_s, back_s))
    for seconds in (0.0, 0.0137, 0.3, 0.6):
        world.goes_by(seconds)
        moment = world.clock.moment()
        assert moment is not None
        assert moment.now <= world.truth <= moment.latest
        assert moment.latest - moment.now <= there_s + back_s + 0.02


def test_after_an_answer_that_took_long_the_server_is_asked_again_soon() -> None:
    world = World()
    world.clock.learn(world.hello(EXACT_S, 0.1))
    world.goes_by(SOON_S - 0.5)
    assert world.clock.moment() is not None
    world.goes_by(1.0)
    assert world.clock.moment() is None
    world.clock.learn(world.hello(0.0, EXACT_S - 0.01))
    world.goes_by(REFRESH_S - 1.0)
    moment = world.clock.moment()
    assert moment is not None
    assert moment.latest - moment.now < EXACT_S + 0.02


def test_the_server_is_asked_again_after_a_while_and_when_it_may_be_another() -> None:
    world = World()
    assert world.clock.moment() is None
    world.clock.learn(world.hello(0.0, 0.0))
    world.goes_by(REFRESH_S - 1.0)
    assert world.clock.moment() is not None
    world.goes_by(2.0)
    assert world.clock.moment() is None
    world.clock.learn(world.hello(1.0, 1.0))
    assert world.clock.moment() is not None
    world.clock.forget()
    assert world.clock.moment() is None


def test_a_slow_answer_does_not_replace_a_better_one_that_agrees() -> None:
    world = World()
    world.clock.learn(world.hello(0.001, 0.001))
    world.goes_by(REFRESH_S)
    world.clock.learn(world.hello(2.0, 2.0))
    moment = world.clock.moment()
    assert moment is not None
    assert moment.latest - moment.now < 0.1
    assert moment.now <= world.truth <= moment.latest


@pytest.mark.parametrize("step_s", [-HOUR_S, -0.5, 0.5, HOUR_S])
def test_a_server_whose_clock_was_set_is_followed(step_s: float) -> None:
    world = World()
    world.clock.learn(world.hello(0.001, 0.001))
    assert world.clock.moment() is not None
    world.truth += step_s
    world.clock.learn(world.hello(0.002, 0.002))
    moment = world.clock.moment()
    assert moment is not None
    assert moment.now <= world.truth <= moment.latest


def test_time_does_not_go_back_when_an_answer_is_less_exact() -> None:
    world = World()
    world.clock.learn(world.hello(0.0, 0.0))
    first = world.clock.moment()
    world.clock.forget()
    world.clock.learn(world.hello(0.0, 0.4))
    second = world.clock.moment()
    assert first is not None
    assert second is not None
    assert first.now <= second.now <= world.truth <= second.latest


def test_a_lease_lasts_its_visibility_though_the_claim_knows_the_time_only_roughly() -> None:
    """What another client sees as the end is no earlier than the visibility after the claim."""
    world = World()
    ops = MongoOps("q", "p", clock=None, fresh_first=True, poll_interval_s=1.0, create_schema=True)
    ops.server_clock = world.clock
    claim = ops.claim("w", 10.0, 1, 0)
    assert isinstance(next(claim), Hello)
    request = claim.send(world.hello(0.2, 0.3))
    assert isinstance(request, FindAndUpdate)
    assert request.filter["available_at"]["$lte"] <= world.truth
    change: Any = request.update
    assert world.truth + 10.0 <= change["$set"]["available_at"] <= world.truth + 10.6


@pytest.mark.parametrize("ahead_s", [-5 * HOUR_S, 5 * HOUR_S])
def test_leases_go_by_the_server_and_not_by_the_workers_clock_promise_11(twin: Twin, ahead_s: float) -> None:
    with StandIn(ahead_s=ahead_s) as server:
        one, other = twin.open(server.url), twin.open(server.url)
        one.publish("g", Event("k"))
        lease = one.claim("w", 60.0)
        assert lease is not None
        assert lease.expires_at == pytest.approx(time.time() + ahead_s + 60.0, abs=30.0)
        assert other.claim("w", 60.0) is None
        server.tell("set", name="ahead_s", value=ahead_s + 61.0)
        other = twin.open(server.url)
        again = other.claim("w", 60.0)
        assert again is not None
        assert again.attempt == 2
        assert one.ack(lease) is False
        assert [letter.seq for letter in one.dead_letters()] == []


def test_workers_whose_own_clock_is_wrong_take_no_lease_from_each_other(
    twin: Twin, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = twin.open()
    queue.publish("g", Event("k"))
    assert queue.claim("w", 60.0) is not None
    right = time.time
    monkeypatch.setattr(time, "time", lambda: right() + HOUR_S)
    assert twin.open().claim("w", 60.0) is None
    assert queue.stats().leased == 1
