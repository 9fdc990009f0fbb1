"""Backends that do not keep all the promises, beside a model that leaves open what they leave open.

Which group is served next, and what cannot be asked, is theirs; that a lease is exclusive, a group's messages come in
order and none is lost, and who may settle what, is not. ``HAREL_MODEL_EXAMPLES`` sets how many runs each backend gets.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, multiple, rule, run_state_machine_as_test

from harel import Event, Message
from harel.engine.queue.contract import Lease
from harel.testing.conformance.kit import drain
from tests.backends import Backend
from tests.model.test_side_by_side import (
    DELAYS,
    EXAMPLES,
    GROUPS,
    LIMITS,
    SETTINGS,
    TRANSPORTS,
    VISIBILITIES,
    WORKERS,
    lacking,
)

JUMPS = st.sampled_from((0.0, 0.5, 1.0, 29.0, 31.0, 100.0))
"""Forward alone: what a served group does while a clock goes back is not the same everywhere."""

FEWER = settings(SETTINGS, max_examples=EXAMPLES or 20)


@dataclass
class Group:
    """A line of messages, and what keeps its head back."""

    line: deque[str] = field(default_factory=deque)
    blocked_until: float = -math.inf
    holder: Lease | None = None
    attempts: int = 0


class Loosely(RuleBasedStateMachine):
    """Does anything to a backend, and knows what it may answer."""

    leases: Bundle[Lease] = Bundle("leases")

    def __init__(self, backend: Backend) -> None:
        super().__init__()
        self._folder = TemporaryDirectory()
        self._subject = backend.subject(Path(self._folder.name))
        self.clock = self._subject.clock
        self.clock.tick = 0.0
        self.groups: dict[str, Group] = {}
        self.tokens: set[str] = set()
        self.published = 0

    @initialize()
    def open(self) -> None:
        self.transports = [self._subject.open() for _ in range(2)]
        self.can = self.transports[0].capabilities

    def teardown(self) -> None:
        try:
            self.clock.advance(1_000.0)
            came = drain(self.transports[0])
            for group_id, group in self.groups.items():
                mine = [message for message in came if message.startswith(f"{group_id} ")]
                assert mine == [f"{group_id} {kind}" for kind in group.line], "lost, doubled or out of order"
        finally:
            self._subject.close()
            self._folder.cleanup()

    def in_steps(self, seconds: float) -> float:
        step = self.can.time_step_s
        return math.ceil(seconds / step) * step if step else seconds

    def claimable(self) -> set[str]:
        return {
            group_id for group_id, group in self.groups.items() if group.line and group.blocked_until <= self.clock.now
        }

    def is_held(self, lease: Lease) -> bool:
        group = self.groups[lease.group_id]
        return group.holder is lease and (self.can.late_settle or self.clock.now < group.blocked_until)

    def came(self, lease: Lease, worker: str, visibility: float, claimable: set[str]) -> None:
        group = self.groups[lease.group_id]
        assert lease.group_id in claimable, "claimed while another has it, or it is parked"
        assert lease.event.kind == group.line[0], "a message came before its turn"
        group.attempts += 1
        assert lease.attempt == group.attempts
        assert lease.worker_id == worker
        assert lease.token not in self.tokens
        self.tokens.add(lease.token)
        group.holder = lease
        group.blocked_until = self.clock.now + self.in_steps(visibility)
        self.lasts(lease)

    def lasts(self, lease: Lease) -> None:
        end = self.groups[lease.group_id].blocked_until
        assert end - self.can.time_step_s <= lease.expires_at <= end

    def settled(self, lease: Lease, delay: float = 0.0, *, gone: bool) -> None:
        group = self.groups[lease.group_id]
        group.holder = None
        group.blocked_until = self.clock.now + self.in_steps(delay)
        if gone:
            group.line.popleft()
            group.attempts = 0

    def event(self, group_id: str) -> Event:
        self.published += 1
        self.groups.setdefault(group_id, Group()).line.append(f"m{self.published}")
        return Event(f"m{self.published}")

    @rule(seconds=JUMPS)
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(at=TRANSPORTS, group=GROUPS)
    def publish(self, at: int, group: str) -> None:
        self.transports[at].publish(group, self.event(group))

    @rule(at=TRANSPORTS, groups=st.lists(GROUPS, max_size=5))
    def publish_many(self, at: int, groups: list[str]) -> None:
        self.transports[at].publish_many([Message(group, self.event(group)) for group in groups])

    @rule(target=leases, at=TRANSPORTS, worker=WORKERS, visibility=VISIBILITIES)
    def claim(self, at: int, worker: str, visibility: float) -> Any:
        claimable = self.claimable()
        lease = self.transports[at].claim(worker, visibility)
        assert (lease is not None) == bool(claimable), "stranded, or not there"
        if lease is None:
            return multiple()
        self.came(lease, worker, visibility, claimable)
        return lease

    @rule(target=leases, at=TRANSPORTS, worker=WORKERS, visibility=VISIBILITIES, limit=LIMITS)
    def claim_many(self, at: int, worker: str, visibility: float, limit: int) -> Any:
        claimable = self.claimable()
        leases = self.transports[at].claim_many(worker, visibility, limit)
        assert len(leases) == len({lease.group_id for lease in leases}) == min(limit, len(claimable))
        for lease in leases:
            self.came(lease, worker, visibility, claimable)
        return multiple(*leases)

    @rule(at=TRANSPORTS, lease=leases)
    def ack(self, at: int, lease: Lease) -> None:
        held = self.is_held(lease)
        assert self.transports[at].ack(lease) is held
        if held:
            self.settled(lease, gone=True)

    @rule(at=TRANSPORTS, some=st.lists(leases, max_size=4))
    def ack_many(self, at: int, some: list[Lease]) -> None:
        answers = self.transports[at].ack_many(some)
        for lease, answer in zip(some, answers, strict=True):
            assert answer is self.is_held(lease)
            if answer:
                self.settled(lease, gone=True)

    @rule(at=TRANSPORTS, lease=leases, delay=DELAYS)
    def nack(self, at: int, lease: Lease, delay: float) -> None:
        held = self.is_held(lease)
        assert self.transports[at].nack(lease, delay) is held
        if held:
            self.settled(lease, delay, gone=False)

    @rule(at=TRANSPORTS, lease=leases)
    def reject(self, at: int, lease: Lease) -> None:
        held = self.is_held(lease)
        assert self.transports[at].reject(lease, "why") is held
        if held:
            self.settled(lease, gone=True)

    @rule(at=TRANSPORTS, some=st.lists(leases, max_size=4), visibility=VISIBILITIES)
    def extend_many(self, at: int, some: list[Lease], visibility: float) -> None:
        answers = self.transports[at].extend_many(some, visibility)
        assert answers == [self.is_held(lease) for lease in some]
        for lease, held in zip(some, answers, strict=True):
            if held:
                self.groups[lease.group_id].blocked_until = self.clock.now + self.in_steps(visibility)
                self.lasts(lease)


@pytest.mark.timeout(900)  # a failing run is made shorter before it is shown
def test_no_answer_breaks_a_promise(backend: Backend, tmp_path: Path) -> None:
    """Promises 1 to 6, on the backends that are not compared answer by answer, and on one that is."""
    if not lacking(backend, tmp_path) and backend.name != "memory-sync":
        pytest.skip("every answer of this backend is compared with the model's")

    class OfThisBackend(Loosely):
        def __init__(self) -> None:
            super().__init__(backend)

    run_state_machine_as_test(OfThisBackend, settings=FEWER)
