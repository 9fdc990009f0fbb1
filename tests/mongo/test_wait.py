"""Waiting looks often at first, then every poll interval, and when the next lease or park ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from harel import Event
from harel.engine.queue.mongo.ops import MongoOps
from harel.engine.queue.mongo.requests import Find
from harel.engine.queue.op import Sleep
from tests.mongo.conftest import Twin

NOW = 1_000.0


def pauses(look: Callable[[int], list[dict[str, Any]]], timeout: float) -> tuple[list[float], bool]:
    """Play a wait in a world where time passes only while it sleeps."""
    now = NOW
    ops = MongoOps("q", "p", clock=lambda: now, fresh_first=True, poll_interval_s=0.8, create_schema=True)
    wait = ops.wait(timeout)
    slept: list[float] = []
    request = next(wait)
    try:
        while True:
            if isinstance(request, Sleep):
                slept.append(request.seconds)
                now += request.seconds
                request = wait.send(request.seconds)
            else:
                assert isinstance(request, Find)
                request = wait.send(look(len(slept)))
    except StopIteration as done:
        return slept, done.value


def test_it_looks_less_and_less_often_until_the_poll_interval() -> None:
    slept, found = pauses(lambda _: [], 3.0)
    assert slept == pytest.approx([0.1, 0.2, 0.4, 0.8, 0.8, 0.7])
    assert found is False


def test_it_looks_when_the_next_lease_or_park_ends() -> None:
    slept, found = pauses(lambda _: [{"available_at": NOW + 0.25}], 60.0)
    assert slept == pytest.approx([0.1, 0.15])
    assert found is True


def test_it_ends_with_the_look_that_finds_something() -> None:
    slept, found = pauses(lambda looks: [{"available_at": NOW - 1.0}] if looks == 2 else [], 60.0)
    assert slept == pytest.approx([0.1, 0.2])
    assert found is True


def test_without_time_it_looks_once() -> None:
    assert pauses(lambda _: [], 0.0) == ([], False)


def test_a_real_wait_ends_when_a_lease_runs_out(twin: Twin) -> None:
    queue = twin.open(poll_interval=0.01)
    queue.publish("g", Event("k"))
    assert queue.claim("w", 0.2) is not None
    assert queue.wait(60.0) is True
    lease = queue.claim("w", 30.0)
    assert lease is not None
    assert lease.attempt == 2
    assert queue.wait(0.01) is False
