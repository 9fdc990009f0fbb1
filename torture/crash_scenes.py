"""The operations of the contract, each with what there is before it and what there may be behind it.

What may be there is said as :class:`State`: exactly one of them is found when all has been delivered that there is.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harel import Event, Message
from harel.errors import PartlyPublished
from harel.testing import Blocking

__all__ = ["CORE", "SCENES", "VISIBILITY_S", "Found", "Scene", "State"]

VISIBILITY_S = 30.0
WORKER = "harmed"

Names = Sequence[str]


@dataclass(frozen=True, slots=True)
class State:
    """What is in the queue.

    Attributes
    ----------
    waiting : mapping
        Of each group that has any, the names of its messages in order.
    dead : tuple of str
        The messages that are dead letters.
    held : tuple of str
        The groups that are held.
    """

    waiting: Mapping[str, tuple[str, ...]]
    dead: tuple[str, ...] = ()
    held: tuple[str, ...] = ()

    def __str__(self) -> str:
        waiting = "; ".join(f"{group}: {', '.join(names)}" for group, names in sorted(self.waiting.items()))
        dead = f"; dead: {', '.join(self.dead)}" if self.dead else ""
        held = f"; held: {', '.join(self.held)}" if self.held else ""
        return f"{waiting or 'no message'}{dead}{held}"


@dataclass(frozen=True, slots=True)
class Found:
    """What was found afterwards: the state, and how often the first message of each group had been delivered."""

    state: State
    attempts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Scene:
    """One operation, and what is done before it.

    Attributes
    ----------
    name : str
    arrange : callable
        From a transport and two groups to what the operation needs.
    act : callable
        Carries the operation out: from a transport, the groups and what was arranged, to its result.
    before, after : callable
        From the groups to the state without the operation, and with it.
    right : callable
        Whether a result can be: from the result and what was arranged.
    between : callable
        From the groups, what else there may be where several messages are not one transaction.
    needs : tuple of str
        The capabilities without which there is no such operation.
    leases : bool
        Whether the operation makes a lease, which the count of deliveries shows.
    reconnects : bool
        Whether all connections are cut before, so that it begins with a new one.
    wakes : bool
        Whether it is to be seen afterwards that a publish still wakes who waits.
    """

    name: str
    arrange: Callable[[Any, Names], Any]
    act: Callable[[Any, Names, Any], Any]
    before: Callable[[Names], State]
    after: Callable[[Names], State]
    right: Callable[[Any, Any], bool] = lambda result, arranged: result is True
    between: Callable[[Names], Iterable[State]] = lambda groups: ()
    needs: tuple[str, ...] = ()
    leases: bool = False
    reconnects: bool = False
    wakes: bool = False

    def possible(self, groups: Names, failure: BaseException | None, is_atomic: bool) -> list[State]:
        """Return what may be there, after a result or a failure."""
        if failure is None:
            return [self.after(groups)]
        states = [self.before(groups), self.after(groups)]
        if not is_atomic:
            states += self.between(groups)
        if isinstance(failure, PartlyPublished):
            known = _BATCH[: failure.published]
            states = [state for state in states if _holds(state, groups, known)]
        return states

    def happened(self, found: Found, groups: Names) -> bool | None:
        """Say whether the operation took effect; ``None`` where nothing shows it."""
        if self.leases:
            return any(attempt > 1 for attempt in found.attempts.values())
        if self.before(groups) == self.after(groups):
            return None
        return found.state != self.before(groups)


def event(name: str) -> Event:
    """Return an event that is known by its name."""
    return Event("k", id=name)


def put(queue: Any, *messages: tuple[str, int], priority: int = 0) -> None:
    """Publish messages: a group each, and a number."""
    for group, number in messages:
        queue.publish(group, event(f"{group}/{number}"), priority)


def _state(*messages: tuple[str, int], dead: tuple[str, ...] = (), held: tuple[str, ...] = ()) -> State:
    waiting: dict[str, tuple[str, ...]] = {}
    for group, number in messages:
        waiting[group] = (*waiting.get(group, ()), f"{group}/{number}")
    return State(waiting, dead, held)


def _fixed(*messages: tuple[int, int]) -> Callable[[Names], State]:
    """Return what gives the state with these messages: of a group, and with a number."""
    return lambda groups: _state(*((groups[group], number) for group, number in messages))


_BATCH = ((0, 1), (1, 1), (0, 2))


def _batch_states(groups: Names) -> Iterable[State]:
    """Yield what there may be of a batch: of each group, some from the front."""
    for first, second in itertools.product(((), ((0, 1),), ((0, 1), (0, 2))), ((), ((1, 1),))):
        yield _fixed(*first, *second)(groups)


def _holds(state: State, groups: Names, messages: Sequence[tuple[int, int]]) -> bool:
    return all(f"{groups[group]}/{number}" in state.waiting.get(groups[group], ()) for group, number in messages)


def _acked_states(groups: Names) -> Iterable[State]:
    yield _fixed((0, 2), (1, 1))(groups)
    yield _fixed((0, 1), (0, 2))(groups)


def _one(queue: Any, groups: Names) -> Any:
    put(queue, (groups[0], 1))


def _two(queue: Any, groups: Names) -> Any:
    put(queue, (groups[0], 1), (groups[0], 2))


def _each(queue: Any, groups: Names) -> Any:
    put(queue, (groups[0], 1), (groups[1], 1))


def _nothing(queue: Any, groups: Names) -> None:
    return None


def _claimed(arrange: Callable[[Any, Names], Any]) -> Callable[[Any, Names], Any]:
    def claimed(queue: Any, groups: Names) -> Any:
        arrange(queue, groups)
        return queue.claim_many(WORKER, VISIBILITY_S, 10)

    return claimed


def _two_and_one(queue: Any, groups: Names) -> None:
    put(queue, (groups[0], 1), (groups[1], 1), (groups[0], 2))


def _low_and_high(queue: Any, groups: Names) -> None:
    put(queue, (groups[0], 1))
    put(queue, (groups[1], 1), priority=2)


def _dead(queue: Any, groups: Names) -> Any:
    _one(queue, groups)
    queue.reject(queue.claim(WORKER, VISIBILITY_S), "why")
    return queue.dead_letters(group_id=groups[0])


def _held(queue: Any, groups: Names) -> Any:
    _one(queue, groups)
    queue.hold(groups[0])


def _is_none(result: Any, arranged: Any) -> bool:
    return result is None


def _is_lease(result: Any, arranged: Any) -> bool:
    # None is no lie: the lease that a lost reply was about is running.
    return result is None or bool(result.attempt == 1 and result.event.id.endswith("/1"))


def _are_leases(result: Any, arranged: Any) -> bool:
    return len({lease.group_id for lease in result}) == len(result) and all(lease.attempt == 1 for lease in result)


def _all_true(result: Any, arranged: Any) -> bool:
    return bool(result == [True] * len(arranged))


def _publish_many(queue: Any, groups: Names, arranged: Any) -> None:
    queue.publish_many([Message(groups[at], event(f"{groups[at]}/{number}")) for at, number in _BATCH])


def _bound_publish(queue: Any, groups: Names, arranged: Any) -> None:
    def act(bound: Any) -> Any:
        return bound.publish(groups[0], event(f"{groups[0]}/2"))

    _in_transaction(queue, act)


def _bound_ack(queue: Any, groups: Names, arranged: Any) -> None:
    """Settle a message and publish what follows from it, to another group, in one transaction."""

    def act(bound: Any) -> Any:
        return bound.ack(arranged[0]), bound.publish(groups[1], event(f"{groups[1]}/1"))

    async def act_async(bound: Any) -> None:
        await bound.ack(arranged[0])
        await bound.publish(groups[1], event(f"{groups[1]}/1"))

    _in_transaction(queue, act_async if isinstance(queue, Blocking) else act)


def _in_transaction(queue: Any, act: Callable[[Any], Any]) -> None:
    if not isinstance(queue, Blocking):
        with queue.transaction() as connection:
            act(queue.bind(connection))
        return

    async def acting() -> None:
        async with queue.inner.transaction() as connection:
            await act(queue.inner.bind(connection))

    queue.runner.run(acting())


def _is_seq_of_first(result: Any, arranged: Any) -> bool:
    return [message.event.id[-2:] for message in result] == ["/1", "/2"]


_SETTLED: dict[str, Any] = {"before": _fixed((0, 1), (0, 2)), "after": _fixed((0, 2))}
_KEPT: dict[str, Any] = {"before": _fixed((0, 1), (0, 2)), "after": _fixed((0, 1), (0, 2))}
_STAYS: dict[str, Any] = {"before": _fixed((0, 1)), "after": _fixed((0, 1))}

SCENES: tuple[Scene, ...] = (
    Scene(
        "publish",
        _one,
        lambda queue, groups, _: put(queue, (groups[0], 2)),
        before=_fixed((0, 1)),
        after=_fixed((0, 1), (0, 2)),
        right=_is_none,
    ),
    Scene(
        "publish to a new group",
        _nothing,
        lambda queue, groups, _: put(queue, (groups[0], 1)),
        before=_fixed(),
        after=_fixed((0, 1)),
        right=_is_none,
    ),
    Scene(
        "publish, connecting anew",
        _nothing,
        lambda queue, groups, _: put(queue, (groups[0], 1)),
        before=_fixed(),
        after=_fixed((0, 1)),
        right=_is_none,
        reconnects=True,
    ),
    Scene(
        "publish_many",
        _nothing,
        _publish_many,
        before=_fixed(),
        after=_fixed(*_BATCH),
        right=_is_none,
        between=_batch_states,
    ),
    Scene(
        "claim",
        _two,
        lambda queue, groups, _: queue.claim(WORKER, VISIBILITY_S),
        **_KEPT,
        right=_is_lease,
        leases=True,
    ),
    Scene(
        "claim with a floor",
        _low_and_high,
        lambda queue, groups, _: queue.claim(WORKER, VISIBILITY_S, 1),
        before=_fixed((0, 1), (1, 1)),
        after=_fixed((0, 1), (1, 1)),
        right=_is_lease,
        needs=("priority",),
        leases=True,
    ),
    Scene(
        "claim_many",
        _each,
        lambda queue, groups, _: queue.claim_many(WORKER, VISIBILITY_S, 5),
        before=_fixed((0, 1), (1, 1)),
        after=_fixed((0, 1), (1, 1)),
        right=_are_leases,
        leases=True,
    ),
    Scene("ack", _claimed(_two), lambda queue, groups, leases: queue.ack(leases[0]), **_SETTLED),
    Scene(
        "ack of the last",
        _claimed(_one),
        lambda queue, groups, leases: queue.ack(leases[0]),
        before=_fixed((0, 1)),
        after=_fixed(),
    ),
    Scene(
        "ack_many",
        _claimed(_two_and_one),
        lambda queue, groups, leases: queue.ack_many(leases),
        before=_fixed((0, 1), (1, 1), (0, 2)),
        after=_fixed((0, 2)),
        right=_all_true,
        between=_acked_states,
    ),
    Scene("nack", _claimed(_two), lambda queue, groups, leases: queue.nack(leases[0]), **_KEPT),
    Scene("nack with a delay", _claimed(_two), lambda queue, groups, leases: queue.nack(leases[0], 5.0), **_KEPT),
    Scene("extend", _claimed(_two), lambda queue, groups, leases: queue.extend(leases[0], VISIBILITY_S), **_KEPT),
    Scene(
        "extend_many",
        _claimed(_each),
        lambda queue, groups, leases: queue.extend_many(leases, VISIBILITY_S),
        before=_fixed((0, 1), (1, 1)),
        after=_fixed((0, 1), (1, 1)),
        right=_all_true,
    ),
    Scene(
        "reject",
        _claimed(_two),
        lambda queue, groups, leases: queue.reject(leases[0], "why"),
        before=_fixed((0, 1), (0, 2)),
        after=lambda groups: _state((groups[0], 2), dead=(f"{groups[0]}/1",)),
    ),
    Scene(
        "hold",
        _one,
        lambda queue, groups, _: queue.hold(groups[0]),
        before=_fixed((0, 1)),
        after=lambda groups: _state((groups[0], 1), held=(groups[0],)),
        needs=("hold",),
    ),
    Scene(
        "release",
        _held,
        lambda queue, groups, _: queue.release(groups[0]),
        before=lambda groups: _state((groups[0], 1), held=(groups[0],)),
        after=_fixed((0, 1)),
        needs=("hold",),
    ),
    Scene(
        "purge",
        _two,
        lambda queue, groups, _: queue.purge(groups[0]),
        before=_fixed((0, 1), (0, 2)),
        after=_fixed(),
        right=lambda result, _: bool(result == 2),
        needs=("purge",),
    ),
    Scene(
        "redrive",
        _dead,
        lambda queue, groups, letters: queue.redrive(letters[0].seq),
        before=lambda groups: _state(dead=(f"{groups[0]}/1",)),
        after=_fixed((0, 1)),
        needs=("dead_letters",),
    ),
    Scene(
        "stats",
        _one,
        lambda queue, groups, _: queue.stats(),
        **_STAYS,
        right=lambda stats, _: bool(stats.messages == stats.ready == 1),
        needs=("stats",),
    ),
    Scene(
        "groups",
        _one,
        lambda queue, groups, _: queue.groups(),
        **_STAYS,
        right=lambda infos, _: [info.state for info in infos] == ["ready"],
        needs=("groups",),
    ),
    Scene(
        "peek",
        _two,
        lambda queue, groups, _: queue.peek(groups[0]),
        **_KEPT,
        right=_is_seq_of_first,
        needs=("peek",),
    ),
    Scene(
        "dead_letters",
        _dead,
        lambda queue, groups, _: queue.dead_letters(group_id=groups[0]),
        before=lambda groups: _state(dead=(f"{groups[0]}/1",)),
        after=lambda groups: _state(dead=(f"{groups[0]}/1",)),
        right=lambda letters, _: len(letters) == 1,
        needs=("dead_letters",),
    ),
    Scene(
        "wait",
        _nothing,
        lambda queue, groups, _: queue.wait(0.05),
        before=_fixed(),
        after=_fixed(),
        right=lambda result, _: isinstance(result, bool),
        wakes=True,
    ),
    Scene(
        "publish in a transaction",
        _one,
        _bound_publish,
        before=_fixed((0, 1)),
        after=_fixed((0, 1), (0, 2)),
        right=_is_none,
        needs=("bind",),
    ),
    Scene(
        "ack and publish in a transaction",
        _claimed(_one),
        _bound_ack,
        before=_fixed((0, 1)),
        after=_fixed((1, 1)),
        right=_is_none,
        needs=("bind",),
    ),
)

CORE = ("publish", "publish to a new group", "claim", "ack", "ack of the last", "nack")
"""The core five."""
