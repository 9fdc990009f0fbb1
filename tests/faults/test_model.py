"""The runner of ``torture/model.py``: it counts what it does, and finds a transport with one broken rule.

The state machines themselves run in ``tests/model``.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harel import Message
from harel.engine.queue.memory.shared import SharedMemoryQueue
from harel.engine.queue.memory.state import MemoryQueue
from harel.engine.transport import InMemoryTransport
from tests.backends import BACKENDS, Backend, Opener
from tests.model.spec import Spec
from tests.model.test_loosely import Loosely
from tests.model.test_side_by_side import SideBySide
from torture.model import Budget, explore, run
from torture.part import Options

SMALL = Budget(runs=10, steps=60, seconds=1_000.0)
ENOUGH = Budget(runs=400, steps=60, seconds=1_000.0, shorten=False)


class KeepsPriority(InMemoryTransport):
    """Takes the priority of the latest publish."""

    def publish(self, group_id: str, event: Any, priority: int = 0) -> None:
        super().publish(group_id, event, priority)
        group = self._shared._groups[group_id]
        group.priority = priority


class LosesTheLast(InMemoryTransport):
    """Loses the last message of a batch of four and more."""

    def publish_many(self, messages: Any) -> None:
        some: list[Message] = list(messages)
        super().publish_many(some[:-1] if len(some) > 3 else some)


class ForgetsTheDelay(InMemoryTransport):
    """Parks no group."""

    def nack(self, lease: Any, delay: float = 0.0) -> bool:
        return super().nack(lease, 0.0)


class BelievesAnyToken(InMemoryTransport):
    """Settles with a token that is no longer current."""

    def ack(self, lease: Any) -> bool:
        state: MemoryQueue = self._shared
        group = state._groups.get(lease.group_id)
        if group is not None and group.token is not None:
            lease.token = group.token
        return super().ack(lease)


BROKEN = (KeepsPriority, LosesTheLast, ForgetsTheDelay, BelievesAnyToken)


@dataclass(frozen=True)
class Broken(Backend):
    """A backend with a fault."""

    @classmethod
    def made_of(cls, transport: type[InMemoryTransport]) -> Backend:
        def at(_folder: Path) -> Opener:
            queues: list[SharedMemoryQueue] = []

            def opened(*, clock: Any, fresh_first: bool = True) -> Any:
                if not queues:
                    queues.append(SharedMemoryQueue(clock, fresh_first))
                return transport(queues[0])

            return opened

        return cls("memory-broken", False, at)


@pytest.mark.parametrize("transport", BROKEN)
def test_a_broken_rule_is_found_and_shown_with_its_steps(transport: type[InMemoryTransport]) -> None:
    tally = explore(functools.partial(SideBySide, Broken.made_of(transport), Spec), ENOUGH, seed_of_all=1)
    assert tally.failure is not None
    assert tally.failure.startswith("seed ")
    assert "state = SideBySide()" in tally.failure
    assert "state.open(" in tally.failure
    assert "state.teardown()" in tally.failure


def test_what_broke_is_made_short_before_it_is_shown() -> None:
    loses = functools.partial(SideBySide, Broken.made_of(LosesTheLast), Spec)
    short = explore(loses, msgspec.structs.replace(ENOUGH, shorten=True), seed_of_all=1).failure
    long = explore(loses, ENOUGH, seed_of_all=1).failure
    assert short is not None
    assert long is not None
    assert short.count("\nstate.publish_many(") == 1
    assert len(short.splitlines()) < len(long.splitlines())


def test_a_broken_promise_is_found_where_answers_are_left_open() -> None:
    tally = explore(functools.partial(Loosely, Broken.made_of(LosesTheLast)), ENOUGH, seed_of_all=1)
    assert tally.failure is not None
    assert "state = Loosely()" in tally.failure


def test_what_is_done_is_counted_and_the_same_for_a_seed() -> None:
    sound = functools.partial(SideBySide, Broken.made_of(InMemoryTransport), Spec)
    one, same, other = (explore(sound, SMALL, seed_of_all=seed) for seed in (1, 1, 9))
    assert one.failure is None
    assert one.runs >= SMALL.runs
    assert one.steps > 100
    assert sum(one.rules.values()) == one.steps
    assert {"publish", "claim", "ack", "reject", "redrive"} < set(one.rules)
    assert (one.runs, one.steps, one.rules) == (same.runs, same.steps, same.rules)
    assert one.rules != other.rules


def test_no_few_runs_begin_when_the_time_is_over() -> None:
    sound = functools.partial(SideBySide, Broken.made_of(InMemoryTransport), Spec)
    tally = explore(sound, Budget(runs=1_000_000, steps=60, seconds=0.0), seed_of_all=1)
    assert 0 < tally.runs < 100


def test_the_report_shows_every_backend_and_rule(tmp_path: Path) -> None:
    report = run(Options(backends=(), seed=1, size="short", folder=tmp_path))
    assert report.failures == []
    for name in [backend.name for backend in BACKENDS if backend.name.startswith("memory")]:
        assert f"| {name} |" in report.text
    assert "| empty_while_held |" in report.text
