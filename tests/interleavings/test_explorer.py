"""The explorer itself: it tries every order, and it finds the faults of a backend that takes several steps."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import permutations

import pytest
from msgspec import structs

from harel import Event, TransportUnavailable
from harel.engine.queue.contract import DeadLetter, Lease, Packed
from harel.engine.queue.op import Op
from harel.engine.queue.schedule import FRESH
from harel.testing import ManualClock
from harel.testing.explorer import Actor, Crashed, Exploration, Scene, explore
from tests.interleavings.toy import GuardedOps, LockFirstOps, NaiveOps, Store, UnfencedOps


class Letters:
    """A world in which each actor writes its letter, so many times."""

    def __init__(self, **letters: int) -> None:
        self.written = ""
        self.actors = [Actor(letter, self._write(letter, times), self._add) for letter, times in letters.items()]

    def _write(self, letter: str, times: int) -> Op[None]:
        for _ in range(times):
            yield letter

    def _add(self, letter: str) -> None:
        self.written += letter

    def faults(self) -> list[str]:
        return [self.written]


def _tried(make: Callable[[], Letters], crashes: int) -> list[str]:
    return [failure.split()[-1] for failure in explore(make, crashes=crashes).failures]


def test_every_order_is_tried_once() -> None:
    tried = _tried(lambda: Letters(a=3, b=2), crashes=0)
    assert sorted(tried) == sorted({"".join(order) for order in permutations("aaabb")})


def test_three_actors_are_tried_in_every_order() -> None:
    assert explore(lambda: Letters(a=2, b=2, c=2), crashes=0).schedules == 90


def test_each_may_die_between_any_two_of_its_steps_and_not_before_or_after() -> None:
    tried = _tried(lambda: Letters(a=2, b=2), crashes=1)
    whole = {"".join(order) for order in permutations("aabb")}
    assert set(tried) == whole | {"".join(order) for short in ("abb", "aab") for order in permutations(short)}


def test_two_may_die() -> None:
    assert {"ab", "ba"} < set(_tried(lambda: Letters(a=2, b=2), crashes=2))
    assert "ab" not in _tried(lambda: Letters(a=2, b=2), crashes=1)


def test_an_operation_learns_of_an_error_and_one_that_died_in_a_request_does_not() -> None:
    seen: list[str] = []

    def operation() -> Op[None]:
        try:
            yield "request"
        except OSError:
            seen.append("error")
            yield "again"
        except GeneratorExit:
            seen.append("died")
            raise

    def refuse(request: str) -> None:
        if request == "request":
            raise OSError

    def die(request: str) -> None:
        raise Crashed

    for send in (refuse, die):
        actor = Actor("a", operation(), send)
        while not actor.ended:
            actor.step()
    assert seen == ["error", "died"]


def _publish_against_a_draining_ack(ops: type[NaiveOps]) -> Scene:
    clock = ManualClock()
    scene = Scene(ops(Store(clock)), lambda request: request(), clock)
    scene.do("publish", "g", Event("k", id="a"), 0)
    lease = scene.do("claim", "w", 30.0, 0)
    scene.meet("ack", lease)
    scene.meet("publish", "g", Event("k", id="b"), 0)
    return scene


def _ack_after_expiry_against_a_worker(ops: type[NaiveOps]) -> Scene:
    clock = ManualClock()
    scene = Scene(ops(Store(clock)), lambda request: request(), clock)
    scene.do("publish", "g", Event("k", id="a"), 0)
    lease = scene.do("claim", "w", 30.0, 0)
    clock.advance(31.0)
    scene.meet("ack", lease)
    scene.meet_worker(30.0)
    return scene


def _first_publish_against_a_claim(ops: type[NaiveOps]) -> Scene:
    clock = ManualClock()
    scene = Scene(ops(Store(clock)), lambda request: request(), clock)
    scene.meet("publish", "g", Event("k", id="a"), 0)
    scene.meet_worker(30.0)
    return scene


def _two_first_publishes(ops: type[NaiveOps]) -> Scene:
    clock = ManualClock()
    scene = Scene(ops(Store(clock)), lambda request: request(), clock)
    scene.meet("publish", "g", Event("k", id="a"), 0)
    scene.meet("publish", "g", Event("k", id="b"), 0)
    scene.meet("claim", "w", 30.0, 0)
    return scene


SCENES = (
    _publish_against_a_draining_ack,
    _ack_after_expiry_against_a_worker,
    _first_publish_against_a_claim,
    _two_first_publishes,
)


def _explored(scene: Callable[[type[NaiveOps]], Scene], ops: type[NaiveOps]) -> Exploration:
    return explore(lambda: scene(ops))


@pytest.mark.parametrize(
    ("promise", "scene", "ops"),
    [
        (4, _publish_against_a_draining_ack, NaiveOps),
        (5, _ack_after_expiry_against_a_worker, NaiveOps),
        (5, _ack_after_expiry_against_a_worker, UnfencedOps),
        (4, _first_publish_against_a_claim, LockFirstOps),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_fault_of_several_steps_is_found(
    promise: int, scene: Callable[[type[NaiveOps]], Scene], ops: type[NaiveOps]
) -> None:
    exploration = _explored(scene, ops)
    assert any(f"Promise {promise}" in failure for failure in exploration.failures), exploration


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_the_guarded_backend_keeps_the_promises_whoever_dies(scene: Callable[[type[NaiveOps]], Scene]) -> None:
    """Promises 1 to 6, with up to two deaths."""
    exploration = explore(lambda: scene(GuardedOps), crashes=2)
    print(exploration)
    assert exploration.schedules > 10
    assert not exploration.failures, exploration


def test_a_failure_tells_the_order_in_which_it_came_about() -> None:
    exploration = _explored(_publish_against_a_draining_ack, NaiveOps)
    orders = [failure.splitlines()[0] for failure in exploration.failures]
    assert "ack 1 steps, ack 1 steps, ack 1 steps, publish 2 steps, publish 2 steps, ack 1 steps:" in orders, (
        exploration
    )
    assert str(exploration).startswith(f"{exploration.schedules} schedules, {len(orders)} of them break a promise")


def test_a_request_may_meet_a_mishap_in_every_order() -> None:
    """One of the actors' requests at a time, in the place of what it would have been."""

    def world() -> Letters:
        letters = Letters(a=2, b=1)
        letters.actors[0].mishaps = {"mumbles": lambda _letter: letters._add("?")}
        return letters

    exploration = explore(world, crashes=0, mishaps=1)
    told = [failure.split()[-1] for failure in exploration.failures]
    whole = {"aab", "aba", "baa"}
    assert sorted(told) == sorted(whole | {order.replace("a", "?", 1) for order in whole} | {"a?b", "ab?", "ba?"})
    assert any(failure.startswith("a steps, a mumbles, b steps:") for failure in exploration.failures)
    assert {failure.split()[-1] for failure in explore(world, crashes=0).failures} == whole


def test_an_operation_that_fails_is_a_fault_unless_its_caller_may_try_again() -> None:
    def world(error: Exception) -> Letters:
        letters = Letters(a=1, b=1)

        def fail(_letter: str) -> None:
            raise error

        letters.actors[0].mishaps = {"fails": fail}
        letters.faults = list  # type: ignore[method-assign]
        return letters

    failures = explore(lambda: world(ValueError("why")), mishaps=1).failures
    assert sorted(failures) == [
        "a fails, b steps:\n  a raised ValueError('why')",
        "b steps, a fails:\n  a raised ValueError('why')",
    ]
    assert not explore(lambda: world(TransportUnavailable("why")), mishaps=1).failures


def test_time_goes_by_at_every_moment() -> None:
    """A lease that runs out between any two steps of its holder."""
    clock = ManualClock(tick=0.0)
    seen = set()

    def world() -> Scene:
        store = Store(clock)
        scene = Scene(GuardedOps(store), lambda request: request(), clock)
        clock.now = 0.0
        scene.meet("publish", "g", Event("k", id="a"), 0)
        scene.meet_time(31.0)
        scene.faults = lambda: seen.add(store.locks["g"].number + FRESH) or []  # type: ignore[func-returns-value,method-assign]
        return scene

    assert explore(world, crashes=0).schedules == 3
    assert seen == {0.0, 31.0}


class _LettersOps(GuardedOps):
    """It keeps dead letters; a redrive moves one at once, and then does something else that it could do without."""

    capabilities = structs.replace(NaiveOps.capabilities, dead_letters=True)
    keeps_the_letter = False

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.letters: dict[int, DeadLetter] = {}

    def reject(self, lease: Lease, reason: str) -> Op[bool]:
        rejected = yield from super().reject(lease, reason)
        if rejected:
            self.letters[lease.seq] = DeadLetter(
                raw=lease.raw, seq=lease.seq, group_id="g", attempts=1, reason=reason, rejected_at=0.0, priority=0
            )
        return rejected

    def dead_letters(self, group_id: str | None, limit: int, after: int | None) -> Op[list[DeadLetter]]:
        yield lambda: None
        return list(self.letters.values())

    def redrive(self, seq: int) -> Op[bool]:
        found = yield partial(self._moved, seq)
        yield lambda: None
        return bool(found)

    def _moved(self, seq: int) -> bool:
        letter = self.letters.get(seq)
        if letter is None:
            return False
        if not self.keeps_the_letter:
            del self.letters[seq]
        self.store.add(Packed("g", letter.raw, 0))
        self.store.upsert("g")
        return True


class _KeepsTheLetter(_LettersOps):
    keeps_the_letter = True


def _two_redrives(ops_class: type[_LettersOps]) -> Scene:
    clock = ManualClock()
    scene = Scene(ops_class(Store(clock)), lambda request: request(), clock)
    scene.do("publish", "g", Event("k", id="a"), 0)
    lease = scene.do("claim", "w", 30.0, 0)
    scene.do("reject", lease, "why")
    scene.meet("redrive", lease.seq)
    scene.meet("redrive", lease.seq)
    return scene


def test_a_redrive_that_dies_after_its_decisive_step_is_one_that_may_have_happened() -> None:
    """Promise 3 holds: the message is there once more, though nobody was told."""
    exploration = explore(lambda: _two_redrives(_LettersOps), crashes=2)
    assert exploration.schedules > 10
    assert not exploration.failures, exploration


def test_a_redrive_that_says_false_did_not_happen_and_one_that_is_done_twice_is_found_out() -> None:
    """Promise 3."""
    failures = explore(lambda: _two_redrives(_KeepsTheLetter)).failures
    assert all("Promise 3" in failure for failure in failures)
    assert len(failures) == explore(lambda: _two_redrives(_LettersOps)).schedules
    died_once = [failure for failure in failures if failure.count("dies") == 1]
    assert died_once
