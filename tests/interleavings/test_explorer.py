"""The explorer itself: it tries every order, and it finds the faults of a backend that takes several steps."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations

import pytest

from harel import Event
from harel.engine.queue.op import Op
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
