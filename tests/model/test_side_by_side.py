"""Every backend beside the in-memory queue, and that one beside a naive specification: each answer is the same.

``HAREL_MODEL_EXAMPLES`` sets how many runs each backend gets; unset, a fixed few that are the same each time.
"""

from __future__ import annotations

import os
from bisect import bisect_left, insort
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from harel import Event, Message
from harel.engine.queue.contract import DeadLetter, Lease, StoredMessage
from harel.engine.transport import InMemoryTransport
from tests.backends import Backend
from tests.model.spec import Spec

EXAMPLES = int(os.environ.get("HAREL_MODEL_EXAMPLES", "0"))
SETTINGS = settings(
    max_examples=EXAMPLES or 40,
    stateful_step_count=60,
    derandomize=not EXAMPLES,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)

GROUPS = st.sampled_from(("a", "b", "ü"))
WORKERS = st.sampled_from(("w", "v:1"))
PRIORITIES = st.integers(0, 4)
VISIBILITIES = st.sampled_from((1.0, 30.0, 60.0))
DELAYS = st.sampled_from((0.0, 0.0, 5.0, 45.0))
LIMITS = st.sampled_from((1, 2, 3, 100))
JUMPS = st.sampled_from((0.0, 0.5, 1.0, 29.0, 31.0, 100.0, -3.0))
TRANSPORTS = st.integers(0, 1)


NEEDED = ("priority", "fair", "peek", "groups", "hold", "purge", "dead_letters", "stats", "watch", "late_settle")
"""What a backend has to have for its answers to be the model's, one by one."""


def lacking(backend: Backend, folder: Path) -> list[str]:
    """Return which of them a backend has not."""
    with backend.subject(folder) as subject:
        can = subject.open().capabilities
    return [name for name in NEEDED if not getattr(can, name)] + ["time_step_s"] * bool(can.time_step_s)


class Pair(NamedTuple):
    """One lease, as each side knows it."""

    subject: Lease
    model: Lease


class SideBySide(RuleBasedStateMachine):
    """Does the same to a backend and to the model, at the same times, and compares."""

    leases: Bundle[Pair] = Bundle("leases")

    def __init__(self, backend: Backend, model: Callable[..., Any]) -> None:
        super().__init__()
        self._folder = TemporaryDirectory()
        self._subject = backend.subject(Path(self._folder.name))
        self._make_model = model
        self.clock = self._subject.clock
        self.clock.tick = 0.0
        self._events = 0
        self._seqs: dict[int, int] = {}
        self._sorted: list[tuple[int, int]] = []
        self._tokens: set[str] = set()

    @initialize(fresh_first=st.booleans())
    def open(self, fresh_first: bool) -> None:
        self.transports = [self._subject.open(fresh_first=fresh_first) for _ in range(2)]
        self.model = self._make_model(clock=self.clock, fresh_first=fresh_first)

    def teardown(self) -> None:
        self._subject.close()
        self._folder.cleanup()

    # What may differ is what each side names as it likes: tokens, and seqs but for their order.

    def same_seq(self, subject: int, model: int) -> None:
        if subject not in self._seqs:
            self._seqs[subject] = model
            insort(self._sorted, (subject, model))
            place = bisect_left(self._sorted, (subject, model))
            around = [model for _, model in self._sorted[max(place - 1, 0) : place + 2]]
            assert around == sorted(set(around)), "seqs of the backend are not in the order of the model's"
        assert self._seqs[subject] == model

    def same_stored(self, subject: list[StoredMessage], model: list[StoredMessage]) -> None:
        assert [message.event for message in subject] == [message.event for message in model]
        for one, other in zip(subject, model, strict=True):
            self.same_seq(one.seq, other.seq)

    def same_leases(self, worker: str, subject: list[Lease], model: list[Lease]) -> list[Pair]:
        def known(lease: Lease) -> tuple[object, ...]:
            return lease.group_id, lease.event, lease.attempt, lease.expires_at, lease.worker_id

        assert [known(lease) for lease in subject] == [known(lease) for lease in model]
        pairs = [Pair(one, other) for one, other in zip(subject, model, strict=True)]
        for pair in pairs:
            self.same_seq(pair.subject.seq, pair.model.seq)
            assert pair.subject.worker_id == worker
            assert pair.subject.token not in self._tokens
            self._tokens.add(pair.subject.token)
        return pairs

    def both(self, transport: int, method: str, *args: Any, **kwargs: Any) -> None:
        """Call both with the same arguments, and compare the answers as they are."""
        answer = getattr(self.transports[transport], method)(*args, **kwargs)
        assert answer == getattr(self.model, method)(*args, **kwargs)

    def event(self) -> Event:
        self._events += 1
        return Event("kind", {"number": self._events}, id=f"e{self._events}")

    @rule(seconds=JUMPS)
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(at=TRANSPORTS, group=GROUPS, priority=PRIORITIES)
    def publish(self, at: int, group: str, priority: int) -> None:
        self.both(at, "publish", group, self.event(), priority)

    @rule(at=TRANSPORTS, batch=st.lists(st.tuples(GROUPS, PRIORITIES), max_size=5))
    def publish_many(self, at: int, batch: list[tuple[str, int]]) -> None:
        self.both(at, "publish_many", [Message(group, self.event(), priority) for group, priority in batch])

    @rule(
        target=leases, at=TRANSPORTS, worker=WORKERS, visibility=VISIBILITIES, floor=st.sampled_from((0, 0, 1, 2, 3, 4))
    )
    def claim(self, at: int, worker: str, visibility: float, floor: int) -> Any:
        one = self.transports[at].claim(worker, visibility, floor)
        other = self.model.claim(worker, visibility, floor)
        pairs = self.same_leases(worker, [one] if one else [], [other] if other else [])
        return multiple(*pairs)

    @rule(target=leases, at=TRANSPORTS, worker=WORKERS, visibility=VISIBILITIES, limit=LIMITS, floor=PRIORITIES)
    def claim_many(self, at: int, worker: str, visibility: float, limit: int, floor: int) -> Any:
        subject = self.transports[at].claim_many(worker, visibility, limit, floor)
        return multiple(*self.same_leases(worker, subject, self.model.claim_many(worker, visibility, limit, floor)))

    def with_lease(self, at: int, pair: Pair, method: str, *args: Any) -> None:
        answer = getattr(self.transports[at], method)(pair.subject, *args)
        assert answer is getattr(self.model, method)(pair.model, *args)
        assert pair.subject.expires_at == pair.model.expires_at

    @rule(at=TRANSPORTS, pair=leases)
    def ack(self, at: int, pair: Pair) -> None:
        self.with_lease(at, pair, "ack")

    @rule(at=TRANSPORTS, pairs=st.lists(leases, max_size=4))
    def ack_many(self, at: int, pairs: list[Pair]) -> None:
        answers = self.transports[at].ack_many([pair.subject for pair in pairs])
        assert answers == self.model.ack_many([pair.model for pair in pairs])

    @rule(at=TRANSPORTS, pair=leases, delay=DELAYS)
    def nack(self, at: int, pair: Pair, delay: float) -> None:
        self.with_lease(at, pair, "nack", delay)

    @rule(at=TRANSPORTS, pair=leases, visibility=VISIBILITIES)
    def extend(self, at: int, pair: Pair, visibility: float) -> None:
        self.with_lease(at, pair, "extend", visibility)

    @rule(at=TRANSPORTS, pair=leases, reason=st.sampled_from(("", "boom")))
    def reject(self, at: int, pair: Pair, reason: str) -> None:
        self.with_lease(at, pair, "reject", reason)

    @rule(at=TRANSPORTS, group=GROUPS)
    def hold(self, at: int, group: str) -> None:
        self.both(at, "hold", group)

    @rule(at=TRANSPORTS, group=GROUPS)
    def release(self, at: int, group: str) -> None:
        self.both(at, "release", group)

    @rule(at=TRANSPORTS, group=GROUPS)
    def purge(self, at: int, group: str) -> None:
        self.both(at, "purge", group)

    @rule(at=TRANSPORTS, group=GROUPS, refill=st.booleans())
    def empty_while_held(self, at: int, group: str, refill: bool) -> None:
        """A way that chance alone seldom goes."""
        self.both(at, "hold", group)
        self.both(at, "purge", group)
        if refill:
            self.publish(at, group, 3)
        self.both(at, "groups")
        self.both(at, "release", group)

    @rule(at=TRANSPORTS, pair=leases)
    def redrive(self, at: int, pair: Pair) -> None:
        """Whatever became of the lease's message: it may be a dead letter or not."""
        assert self.transports[at].redrive(pair.subject.seq) is self.model.redrive(pair.model.seq)

    @rule(at=TRANSPORTS)
    def redrive_all(self, at: int) -> None:
        for one, other in zip(self.transports[at].dead_letters(), self.model.dead_letters(), strict=True):
            assert self.transports[at].redrive(one.seq) is True
            assert self.model.redrive(other.seq) is True

    @rule(at=TRANSPORTS, group=GROUPS, limit=LIMITS)
    def peek(self, at: int, group: str, limit: int) -> None:
        self.same_stored(self.transports[at].peek(group, limit), self.model.peek(group, limit))

    @rule(
        at=TRANSPORTS,
        state=st.sampled_from((None, "ready", "leased", "parked", "held")),
        limit=LIMITS,
        after=st.none() | GROUPS,
    )
    def groups(self, at: int, state: str | None, limit: int, after: str | None) -> None:
        self.both(at, "groups", state=state, limit=limit, after=after)

    @rule(at=TRANSPORTS, group=st.none() | GROUPS, limit=LIMITS, after=st.none() | leases)
    def dead_letters(self, at: int, group: str | None, limit: int, after: Pair | None) -> None:
        def known(letter: DeadLetter) -> tuple[object, ...]:
            return letter.group_id, letter.event, letter.attempts, letter.reason, letter.rejected_at, letter.priority

        seqs = (None, None) if after is None else (after.subject.seq, after.model.seq)
        subject = self.transports[at].dead_letters(group_id=group, limit=limit, after=seqs[0])
        model = self.model.dead_letters(group_id=group, limit=limit, after=seqs[1])
        assert [known(letter) for letter in subject] == [known(letter) for letter in model]
        for one, other in zip(subject, model, strict=True):
            self.same_seq(one.seq, other.seq)

    @rule(at=TRANSPORTS)
    def wait(self, at: int) -> None:
        self.both(at, "wait", 0.0)

    @invariant()
    def the_figures_agree(self) -> None:
        self.both(0, "stats")
        self.both(1, "groups")


@pytest.mark.timeout(900)  # a failing run is made shorter before it is shown
def test_every_answer_is_the_model_s(backend: Backend, tmp_path: Path) -> None:
    """Promises 1 to 9 and 11, as far as the model keeps them; the model itself is compared with the specification."""
    lacks = lacking(backend, tmp_path)
    if lacks:
        pytest.skip(f"capabilities.{lacks[0]} is not as the model's; see test_loosely.py")

    class OfThisBackend(SideBySide):
        def __init__(self) -> None:
            super().__init__(backend, Spec if backend.name.startswith("memory") else InMemoryTransport)

    run_state_machine_as_test(OfThisBackend, settings=SETTINGS)
