"""The leader's clock, told in steps of 86.4 ms, by nodes that do not agree: promises 1, 4, 6, 7 and 11."""

from __future__ import annotations

import itertools
import time

import pytest

from harel import ConfigError, Event, Message, Transport
from harel.testing import ManualClock
from tests.rqlite.conftest import Twin
from tests.servers.rqlite_server import StandIn

EVENT = Event("k")
STEP_S = 0.0864
PHASES = [number / 13 * STEP_S for number in range(13)]
"""Where in a step something happens."""


@pytest.fixture
def clock(cluster: StandIn) -> ManualClock:
    """The leader's clock, which stands until it is told to go on."""
    clock = ManualClock(tick=0.0)
    cluster.database.clock = clock
    return clock


@pytest.fixture
def queue(twin: Twin, cluster: StandIn, clock: ManualClock) -> Transport:
    return twin.open(cluster.url)


def _now_s(cluster: StandIn) -> float:
    ((now_s,),) = cluster.rows("SELECT now_s FROM transport_clock")
    assert isinstance(now_s, float)
    return now_s


@pytest.mark.parametrize("visibility", [0.001, 0.05, 0.5, 1.0])
def test_a_lease_lasts_at_least_as_long_as_it_says_promise_1(
    queue: Transport, clock: ManualClock, visibility: float
) -> None:
    """Rounding may take 43 ms off both its beginning and its end."""
    for phase in PHASES:
        queue.publish("g", EVENT)
        clock.advance(phase)
        lease = queue.claim("w", visibility)
        assert lease is not None
        assert lease.expires_at >= clock.now + visibility
        clock.advance(visibility)
        assert queue.claim("v", 1.0) is None, phase
        assert queue.extend(lease, visibility)
        assert lease.expires_at >= clock.now + visibility
        clock.advance(visibility)
        assert queue.claim("v", 1.0) is None, phase
        clock.advance(0.2)
        assert queue.wait(0.0)
        again = queue.claim("v", 1.0)
        assert again is not None
        assert queue.ack(again)


def test_a_park_lasts_at_least_as_long_as_it_says(queue: Transport, clock: ManualClock) -> None:
    for phase in PHASES:
        queue.publish("g", EVENT)
        clock.advance(phase)
        lease = queue.claim("w", 60.0)
        assert lease is not None
        assert queue.nack(lease, 0.5)
        clock.advance(0.5)
        assert queue.claim("v", 1.0) is None, phase
        clock.advance(0.2)
        again = queue.claim("v", 60.0)
        assert again is not None
        assert queue.nack(again)
        at_once = queue.claim("v", 60.0)
        assert at_once is not None
        assert queue.ack(at_once)


@pytest.mark.parametrize("visibility", [0.02, 0.04, 0.06, 0.08])
def test_what_a_look_shows_as_ready_can_be_claimed_promise_4(
    queue: Transport, clock: ManualClock, visibility: float
) -> None:
    """At whatever part of a step the lease ends, and the claim's time is rounded down."""
    queue.publish("g", EVENT)
    found = 0
    for _ in range(60):
        clock.advance(0.0071)
        if queue.wait(0.0):
            found += 1
            lease = queue.claim("w", visibility)
            assert lease is not None
            assert lease.attempt == found
        else:
            assert queue.stats().ready == 0
    assert found >= 2


def test_what_was_just_put_in_line_is_ready_at_once(
    twin: Twin, cluster: StandIn, queue: Transport, clock: ManualClock
) -> None:
    """Also when the write's time was rounded up."""
    later = twin.open(cluster.url, fresh_first=False)
    for phase in PHASES:
        clock.advance(phase)
        later.publish("g", EVENT)
        assert queue.wait(0.0), phase
        assert queue.stats().ready == 1
        lease = queue.claim("w", 60.0)
        assert lease is not None
        assert queue.nack(lease)
        assert queue.wait(0.0), phase
        queue.purge("g")


def test_a_look_waits_no_longer_than_a_step_more_promise_6(queue: Transport, clock: ManualClock) -> None:
    for phase in PHASES:
        queue.publish("g", EVENT)
        clock.advance(phase)
        lease = queue.claim("w", 1.0)
        assert lease is not None
        clock.advance(1.0 + 3 * STEP_S)
        assert queue.wait(0.0), phase
        (info,) = queue.groups()
        assert info.state == "ready"
        assert queue.ack(lease)


def test_within_a_step_of_the_clock_a_served_group_goes_to_the_back_promise_7(queue: Transport) -> None:
    queue.publish_many(Message(name, EVENT) for name in ("a", "b", "c") for _ in range(5))
    served = []
    for _ in range(12):
        lease = queue.claim("w", 60.0)
        assert lease is not None
        served.append(lease.group_id)
        assert queue.ack(lease)
    assert served == ["a", "b", "c"] * 4


def test_within_a_step_of_the_clock_new_groups_go_in_the_order_of_arrival_promise_7(queue: Transport) -> None:
    names = [f"g{number}" for number in (5, 3, 9, 1, 7)]
    for name in names[:3]:
        queue.publish(name, EVENT)
    queue.publish_many(Message(name, EVENT) for name in names[3:])
    assert [lease.group_id for lease in queue.claim_many("w", 60.0, 9)] == names


def test_every_write_is_later_than_the_one_before_also_under_a_leader_whose_clock_is_behind(
    queue: Transport, cluster: StandIn, clock: ManualClock
) -> None:
    cluster.nodes[1].ahead_s = -9.0
    cluster.nodes[2].ahead_s = -3.0
    times = []
    for node, _ in itertools.product((0, 1, 2, 0, 2, 1), range(5)):
        cluster.leader = node
        clock.advance(0.01)
        queue.publish("g", EVENT)
        times.append(_now_s(cluster))
    assert times == sorted(set(times))
    assert times[-1] - times[0] < 0.5
    cluster.leader = 0
    queue.publish("g", EVENT)
    assert _now_s(cluster) == pytest.approx(clock.now, abs=STEP_S)


def test_a_leader_whose_clock_was_hours_ahead_does_not_stop_the_time_of_the_next_promise_6(
    queue: Transport, cluster: StandIn, clock: ManualClock
) -> None:
    cluster.nodes[1].ahead_s = 7_200.0
    cluster.leader = 1
    queue.publish("g", EVENT)
    assert _now_s(cluster) == pytest.approx(clock.now + 7_200.0, abs=STEP_S)
    cluster.leader = 0
    lease = queue.claim("w", 10.0)
    assert lease is not None
    assert lease.expires_at == pytest.approx(clock.now + 10.0, abs=2 * STEP_S)
    clock.advance(11.0)
    assert queue.claim("v", 10.0) is not None
    assert not queue.ack(lease)


def test_the_clock_is_the_leaders_and_not_that_of_the_node_that_is_asked_promise_11(
    queue: Transport, cluster: StandIn, clock: ManualClock
) -> None:
    cluster.nodes[0].ahead_s = 3_600.0
    cluster.leader = 1
    queue.publish("g", EVENT)
    lease = queue.claim("w", 10.0)
    assert lease is not None
    assert lease.expires_at == pytest.approx(clock.now + 10.0, abs=2 * STEP_S)


def test_the_machines_clock_does_not_matter_promise_11(queue: Transport, clock: ManualClock) -> None:
    """The stand-in's is years behind this machine's."""
    assert time.time() - clock.now > 1_000_000
    queue.publish("g", EVENT)
    (info,) = queue.groups()
    assert info.since == pytest.approx(clock.now, abs=STEP_S)
    clock.advance(100.0)
    assert queue.stats().oldest_ready_s == pytest.approx(100.0, abs=STEP_S)


def test_a_server_that_leaves_now_to_each_node_is_refused(
    queue: Transport, cluster: StandIn, clock: ManualClock
) -> None:
    """Whatever its version says: nodes that differ would be worse than an error."""
    cluster.database.rewrites = False
    clock.now = 1_700_000_000.021
    with pytest.raises(ConfigError, match="leaves 'now' to each node"):
        queue.publish("g", EVENT)
    cluster.database.rewrites = True
    assert queue.stats().messages == 0


def test_times_are_real_numbers_though_json_may_show_none(twin: Twin, cluster: StandIn) -> None:
    """rqlite writes 1700000000.0 as 1700000000."""
    queue = twin.open(cluster.url, clock=lambda: 1_700_000_000.0, prefix="whole")
    queue.publish_many(Message(name, EVENT) for name in ("a", "b", "c"))
    lease = queue.claim("w", 30.0)
    assert lease is not None
    times = [lease.expires_at]
    assert queue.extend(lease, 60.0)
    times.append(lease.expires_at)
    for info in queue.groups():
        times += [info.since] if info.until is None else [info.since, info.until]
    assert queue.reject(lease, "why")
    times += [queue.dead_letters()[0].rejected_at, queue.stats().oldest_ready_s]
    assert {type(each) for each in times} == {float}
