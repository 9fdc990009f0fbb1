"""A group's messages come one by one and in order, whatever happens to them. Promises 1 to 4."""

from __future__ import annotations

import random
from collections import deque

import pytest

from harel.engine.queue.contract import Lease, Transport
from harel.testing.conformance.kit import (
    MANY,
    Call,
    assert_empty,
    assert_nothing_claimable,
    drain,
    open_queue,
    put,
    said,
    take,
)
from harel.testing.subject import Subject


def test_a_group_comes_in_the_order_of_its_publishes_promise_2(subject: Subject) -> None:
    queue = open_queue(subject)
    put(queue, "g", *(f"m{n}" for n in range(25)))
    assert drain(queue) == [f"g m{n}" for n in range(25)]


def test_groups_in_turn_do_not_mix_up_their_orders_promise_2(subject: Subject) -> None:
    queue = open_queue(subject)
    for n in range(8):
        for group_id in "abc":
            put(queue, group_id, f"m{n}")
    came = drain(queue)
    for group_id in "abc":
        assert [kind for kind in came if kind.startswith(group_id)] == [f"{group_id} m{n}" for n in range(8)]


DISTURBANCES: dict[str, Call] = {
    "given back": lambda queue, lease: queue.nack(lease),
    "parked": lambda queue, lease: queue.nack(lease, 60.0),
    "extended": lambda queue, lease: queue.extend(lease, 60.0),
    "left to run out": lambda _queue, _lease: None,
}


@pytest.mark.parametrize("more", [False, True], ids=["", "more is published meanwhile"])
@pytest.mark.parametrize("disturbance", DISTURBANCES)
def test_what_is_not_settled_comes_again_before_the_next_promises_2_and_3(
    subject: Subject, disturbance: str, more: bool
) -> None:
    queue = open_queue(subject)
    put(queue, "g", "m1", "m2", "m3")
    assert queue.ack(take(queue))
    lease = take(queue)
    if more:
        put(queue, "g", "m4")
    DISTURBANCES[disturbance](queue, lease)
    subject.clock.advance(61.0)
    assert drain(queue) == ["g m2", "g m3", *(["g m4"] if more else [])]


def test_a_publish_to_a_draining_group_comes_after_what_is_in_flight_promise_2(subject: Subject) -> None:
    queue = open_queue(subject)
    for n in range(5):
        put(queue, "g", f"m{n}")
        lease = take(queue)
        assert said(lease) == f"g m{n}"
        put(queue, "g", f"n{n}")
        assert_nothing_claimable(queue)
        assert queue.ack(lease)
        assert drain(queue) == [f"g n{n}"]


class _Model:
    """What a queue must do, in the plainest words: a line a group, and who holds its head until when."""

    def __init__(self, subject: Subject, queue: Transport, seed: int) -> None:
        self.clock = subject.clock
        self.queue = queue
        self.chance = random.Random(seed)
        self.lines: dict[str, deque[str]] = {f"group {n}": deque() for n in range(5)}
        self.current: dict[str, Lease] = {}
        self.past: list[Lease] = []
        self.published = 0

    def publish(self) -> None:
        group_id = self.chance.choice(list(self.lines))
        self.published += 1
        self.lines[group_id].append(f"m{self.published}")
        put(self.queue, group_id, f"m{self.published}")

    def claim(self) -> None:
        lease = self.queue.claim(f"worker {self.chance.randrange(3)}", self.chance.choice([5.0, 50.0]))
        if lease is None:
            return
        held = self.current.get(lease.group_id)
        assert held is None or held.expires_at < self.clock.now, "a group has two live leases"
        assert lease.event.kind == self.lines[lease.group_id][0], "a message came before its turn"
        if held is not None:
            self.past.append(held)
        self.current[lease.group_id] = lease

    def settle(self) -> None:
        way = self.chance.choice(["ack", "ack", "nack", "extend", "reject"])
        if self.past and self.chance.random() < 0.3:
            assert self._do(way, self.chance.choice(self.past)) is False, "a lost lease changed something"
        elif self.current:
            self._settle_or_extend(way, self.chance.choice(list(self.current.values())))

    def _settle_or_extend(self, way: str, lease: Lease) -> None:
        late = self.clock.now - lease.expires_at
        held = self._do(way, lease)
        can = self.queue.capabilities
        # Between these two it has run out or not: where there is a step of time, a lease ends up to one after it says.
        if can.late_settle or late < 0.0:
            assert held is True
        elif late >= can.time_step_s:
            assert held is False, "a lease that ran out changed something"
        if way != "extend" or not held:
            self.past.append(self.current.pop(lease.group_id))
        if way in ("ack", "reject") and held:
            self.lines[lease.group_id].popleft()

    def advance(self) -> None:
        self.clock.advance(self.chance.choice([0.5, 4.0, 20.0]))

    def _do(self, way: str, lease: Lease) -> bool:
        if way == "ack":
            return self.queue.ack(lease)
        if way == "reject":
            return self.queue.reject(lease, "a reason")
        seconds = self.chance.choice([0.01, 3.0, 30.0])
        return self.queue.nack(lease, seconds) if way == "nack" else self.queue.extend(lease, seconds)


@pytest.mark.parametrize("seed", range(4))
def test_whatever_happens_nothing_is_lost_doubled_or_out_of_order_promises_1_to_5(subject: Subject, seed: int) -> None:
    model = _Model(subject, open_queue(subject), seed)
    steps = [model.publish, model.claim, model.claim, model.settle, model.settle, model.advance]
    for _ in range(400):
        model.chance.choice(steps)()
    subject.clock.advance(MANY)
    came = drain(model.queue)
    for group_id, line in model.lines.items():
        assert [message for message in came if message.startswith(group_id)] == [f"{group_id} {kind}" for kind in line]
    assert_empty(model.queue)
