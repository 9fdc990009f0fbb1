"""What the tests of all areas share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec
import pytest

from harel.engine.queue.contract import DeadLetter, GroupInfo, Lease, Packed, Transport
from harel.events import Event, Message
from harel.testing.subject import Subject

VISIBILITY_S = 30.0
"""How long the tests' leases run unless a test says otherwise."""

MANY = 10_000
"""More than any test publishes: where a loop over claims gives up."""

Call: TypeAlias = Callable[[Transport, Lease], object]
"""Something to ask of a transport that holds a lease."""


def open_queue(subject: Subject, *capabilities: str, **options: Any) -> Transport:
    """Open the queue; skip the test, with the name, where it lacks one of the capabilities."""
    queue = subject.open(**options)
    for name in capabilities:
        if not getattr(queue.capabilities, name):
            pytest.skip(f"capabilities.{name} is False")
    return queue


def put(queue: Transport, group_id: str, *kinds: str, priority: int = 0) -> None:
    """Publish an event of each of these kinds to a group, one by one."""
    for kind in kinds:
        queue.publish(group_id, Event(kind=kind), priority)


def put_batch(queue: Transport, *messages: str, priority: int = 0) -> None:
    """Publish messages, each written as ``"group kind"``, at once."""
    pairs = [message.split(" ") for message in messages]
    queue.publish_many([Message(group_id, Event(kind=kind), priority) for group_id, kind in pairs])


def put_groups(queue: Transport, *group_ids: str, priority: int = 0) -> None:
    """Publish a message to each of these groups, at once."""
    queue.publish_many([Message(group_id, Event(kind="m"), priority) for group_id in group_ids])


def take(queue: Transport, worker_id: str = "worker", visibility: float = VISIBILITY_S, floor: int = 0) -> Lease:
    """Claim what must be there."""
    lease = queue.claim(worker_id, visibility, floor)
    assert lease is not None, "there is a group to be claimed, and the claim found none"
    return lease


def take_from(queue: Transport, group_id: str, worker_id: str = "worker", visibility: float = VISIBILITY_S) -> Lease:
    """Claim what must be there, of this group."""
    lease = take(queue, worker_id, visibility)
    assert lease.group_id == group_id
    return lease


def assert_nothing_claimable(queue: Transport, floor: int = 0) -> None:
    """See that no claim finds a group."""
    assert queue.claim("an onlooker", VISIBILITY_S, floor) is None


def assert_counts(queue: Transport, **figures: int) -> None:
    """See that ``stats`` has these figures, where the backend has any."""
    if queue.capabilities.stats:
        stats = queue.stats()
        assert {name: getattr(stats, name) for name in figures} == figures


def assert_empty(queue: Transport) -> None:
    """See that no claim finds a group, and that none is left."""
    assert_nothing_claimable(queue)
    assert_counts(queue, messages=0, groups=0)


def assert_lasts(queue: Transport, lease: Lease, seconds: float, before: float, after: float) -> None:
    """See that a lease runs out so many seconds after a time between these two, to the backend's step of time."""
    step = queue.capabilities.time_step_s
    assert before - step <= lease.expires_at - seconds <= after + step


def many(queue: Transport, number: int) -> int:
    """Return so many, or a part of it where each message of a group is sent by itself."""
    return number if queue.capabilities.atomic_batches else number // 20


def said(lease: Lease) -> str:
    """Say what was claimed, as ``"group kind"``."""
    return f"{lease.group_id} {lease.event.kind}"


def drain(queue: Transport) -> list[str]:
    """Claim and ack until there is nothing; return what came, each as ``"group kind"``."""
    came = []
    while (lease := queue.claim("a drainer", VISIBILITY_S)) is not None:
        came.append(said(lease))
        assert queue.ack(lease)
        assert len(came) <= MANY, "acked messages keep coming"
    return came


def groups_in_turn(queue: Transport, turns: int) -> list[str]:
    """Claim and give back at once, that often; return whose turn it was each time."""
    served = []
    for _ in range(turns):
        lease = take(queue)
        served.append(lease.group_id)
        assert queue.nack(lease)
    return served


def kinds_in(queue: Transport, group_id: str) -> list[str]:
    """Return the kinds of a group's messages, as ``peek`` shows them."""
    return [message.event.kind for message in queue.peek(group_id, MANY)]


def info_of(queue: Transport, group_id: str) -> GroupInfo:
    """Return what ``groups`` shows of a group that must be there."""
    (info,) = [info for info in queue.groups(limit=MANY) if info.group_id == group_id]
    return info


def only_dead_letter(queue: Transport) -> DeadLetter:
    """Return the dead letter where there must be exactly one."""
    (letter,) = queue.dead_letters()
    return letter


def snapshot(queue: Transport) -> dict[str, object]:
    """Return all that can be seen of a queue and does not depend on when one looks."""
    can = queue.capabilities
    seen: dict[str, object] = {}
    if can.stats:
        seen["stats"] = msgspec.structs.replace(queue.stats(), oldest_ready_s=0.0)
    if can.groups:
        infos = queue.groups(limit=MANY)
        seen["groups"] = infos
        if can.peek:
            seen["messages"] = {
                info.group_id: [(message.seq, message.raw) for message in queue.peek(info.group_id, MANY)]
                for info in infos
            }
    if can.dead_letters:
        seen["dead letters"] = [
            (letter.seq, letter.group_id, letter.raw, letter.attempts, letter.reason, letter.rejected_at)
            for letter in queue.dead_letters(limit=MANY)
        ]
    return seen


def assert_refused(
    subject: Subject, queue: Transport, error: type[Exception], call: Callable[[], object], watcher: Transport
) -> str:
    """See that a call raises before anything is sent, and that nothing changes.

    Parameters
    ----------
    subject : Subject
        Whatever is sent is measured by its clock; so a clock that was not read shows that nothing was.
    queue : Transport
        What the call is made on.
    error : type
        The exception, of just this class.
    call : callable
    watcher : Transport
        An open transport on the same queue.

    Returns
    -------
    str
        The error's message.
    """
    before = snapshot(watcher)
    read = subject.clock.now
    with pytest.raises(error) as raised:
        call()
    assert subject.clock.now == read, f"{queue!r} read the clock: something was sent"
    assert raised.type is error
    assert snapshot(watcher) == before
    return str(raised.value)


WAYS: dict[str, Call] = {
    "ack": lambda queue, lease: queue.ack(lease),
    "ack_many": lambda queue, lease: queue.ack_many([lease])[0],
    "nack": lambda queue, lease: queue.nack(lease),
    "nack with a delay": lambda queue, lease: queue.nack(lease, 600.0),
    "extend": lambda queue, lease: queue.extend(lease, 600.0),
    "extend_many": lambda queue, lease: queue.extend_many([lease], 600.0)[0],
    "reject": lambda queue, lease: queue.reject(lease, "a reason"),
}
"""Every way in which a lease can be settled or renewed."""

each_way = pytest.mark.parametrize("way", WAYS)
"""Run a test for every way in which a lease can be settled or renewed."""


def store_raw(queue: Transport, group_id: str, raw: str) -> None:
    """Publish stored text that ``publish`` would refuse, as an older or a broken program may have left it.

    It needs a transport made of harel's own faces, so that the backend's operation can be run as it is.
    """
    inside: Any = queue
    if not hasattr(inside, "_ops"):
        pytest.skip("this transport does not say how to store an event unchecked")
    inside._run(inside._ops.publish([Packed(group_id, raw, 0)]))  # noqa: SLF001


EVERY_CALL: dict[str, tuple[str | None, Call]] = {
    "publish": (None, lambda queue, _lease: queue.publish("g", Event(kind="k"))),
    "publish_many": (None, lambda queue, _lease: queue.publish_many([Message("g", Event(kind="k"))])),
    "publish_many of nothing": (None, lambda queue, _lease: queue.publish_many([])),
    "claim": (None, lambda queue, _lease: queue.claim("w", 1.0)),
    "claim_many": (None, lambda queue, _lease: queue.claim_many("w", 1.0, 2)),
    **{way: (None, call) for way, call in WAYS.items()},
    "ack_many of nothing": (None, lambda queue, _lease: queue.ack_many([])),
    "extend_many of nothing": (None, lambda queue, _lease: queue.extend_many([], 1.0)),
    "wait": (None, lambda queue, _lease: queue.wait(0.0)),
    "stats": ("stats", lambda queue, _lease: queue.stats()),
    "publish with a priority": ("priority", lambda queue, _lease: queue.publish("g", Event(kind="k"), 1)),
    "publish_many with a priority": (
        "priority",
        lambda queue, _lease: queue.publish_many([Message("g", Event(kind="k")), Message("g", Event(kind="k"), 1)]),
    ),
    "claim with a floor": ("priority", lambda queue, _lease: queue.claim("w", 1.0, 1)),
    "claim_many with a floor": ("priority", lambda queue, _lease: queue.claim_many("w", 1.0, 2, 1)),
    "groups": ("groups", lambda queue, _lease: queue.groups()),
    "peek": ("peek", lambda queue, _lease: queue.peek("g")),
    "hold": ("hold", lambda queue, _lease: queue.hold("g")),
    "release": ("hold", lambda queue, _lease: queue.release("g")),
    "purge": ("purge", lambda queue, _lease: queue.purge("g")),
    "dead_letters": ("dead_letters", lambda queue, _lease: queue.dead_letters()),
    "redrive": ("dead_letters", lambda queue, _lease: queue.redrive(1)),
    "bind": ("bind", lambda queue, _lease: queue.bind(object())),
    "transaction": ("bind", lambda queue, _lease: queue.transaction()),
}
"""Every method, with the capability that it needs."""
