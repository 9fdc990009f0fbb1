"""Values of every kind as every argument: taken if the contract says so, else refused before anything is sent."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias, get_args

from harel import Event, HarelError, InvalidArgument, Message, NotSupported, Transport
from harel.engine.queue.contract import HIGHEST_PRIORITY, Capabilities, GroupState, Lease
from harel.engine.queue.schedule import SHORTEST_S
from torture.hostile_bench import Bench, Unkept, said
from torture.hostile_values import ChangingDict, Mine, exactly, may_be_a_name

__all__ = [
    "ARGUMENTS",
    "EVENT_ARGUMENTS",
    "Argument",
    "World",
    "arranged",
    "cleared",
    "emptied",
    "is_a_sentence",
    "must_be_as_it_was",
    "named",
    "try_event_parts",
    "try_values",
]

May: TypeAlias = Callable[[Any, Capabilities], bool | None]
"""Whether the contract lets a value be this argument; ``None`` where both to take and to refuse it is right."""

OK = Event("k")
LONGEST_SENTENCE = 600


class Argument(NamedTuple):
    """One argument of one method."""

    name: str
    call: Callable[[Transport, Lease, Any], object]
    may: May
    capability: str | None = None
    iterates: bool = False
    """Whether it goes through something of the caller's, whose own errors are the caller's."""


def _group(value: Any, _can: Capabilities) -> bool | None:
    return may_be_a_name(value, 512)


def _group_or_none(value: Any, can: Capabilities) -> bool | None:
    return value is None or _group(value, can)


def _worker(value: Any, _can: Capabilities) -> bool | None:
    return may_be_a_name(value, 200)


def _whole(least: int, most: int | None = None) -> May:
    def may(value: Any, _can: Capabilities) -> bool | None:
        if type(value) is not int:
            return None if isinstance(value, int) and not isinstance(value, bool) else False
        return value >= least and (most is None or value <= most)

    return may


def _whole_or_none(value: Any, can: Capabilities) -> bool | None:
    return value is None or _whole(0)(value, can)


def _seconds(least: float) -> May:
    def may(value: Any, can: Capabilities) -> bool | None:
        if type(value) not in (int, float):
            return None if isinstance(value, int | float) and not isinstance(value, bool) else False
        return bool(least <= value <= can.max_visibility_s)

    return may


def _state(value: Any, _can: Capabilities) -> bool | None:
    if type(value) is not str:
        return None if isinstance(value, str) else value is None
    return value in get_args(GroupState)


def _reason(value: Any, _can: Capabilities) -> bool | None:
    return True if type(value) is str else None if isinstance(value, str) else False


def _event(value: Any, _can: Capabilities) -> bool:
    return type(value) is Event


def _none_in_it(value: Any, _can: Capabilities) -> bool | None:
    """Say of something that is to hold messages or leases, and holds neither: empty it is nothing to do."""
    try:
        return None if not list(value) else False
    except (TypeError, Mine):
        return None if isinstance(value, list) else False


def _no_lease(_value: Any, _can: Capabilities) -> bool:
    return False


def _waited(queue: Transport, _lease: Lease, value: Any) -> object:
    if type(value) in (int, float) and 0.01 < value <= queue.capabilities.max_visibility_s:
        return None  # it would really wait
    return queue.wait(value)


PRIORITY = _whole(0, HIGHEST_PRIORITY)
ARGUMENTS: tuple[Argument, ...] = (
    Argument("publish group_id", lambda q, _, v: q.publish(v, OK), _group),
    Argument("publish_many group_id", lambda q, _, v: q.publish_many([Message("r", OK), Message(v, OK)]), _group),
    Argument("publish event", lambda q, _, v: q.publish("r", v), _event),
    Argument("publish priority", lambda q, _, v: q.publish("r", OK, v), PRIORITY),
    Argument("publish_many priority", lambda q, _, v: q.publish_many([Message("r", OK, v)]), PRIORITY),
    Argument("publish_many messages", lambda q, _, v: q.publish_many(v), _none_in_it, iterates=True),
    Argument("claim worker_id", lambda q, _, v: q.claim(v, 60.0), _worker),
    Argument("claim_many worker_id", lambda q, _, v: q.claim_many(v, 60.0, 2), _worker),
    Argument("claim visibility", lambda q, _, v: q.claim("w", v), _seconds(SHORTEST_S)),
    Argument("claim_many visibility", lambda q, _, v: q.claim_many("w", v, 2), _seconds(SHORTEST_S)),
    Argument("claim_many limit", lambda q, _, v: q.claim_many("w", 60.0, v), _whole(1)),
    Argument("claim min_priority", lambda q, _, v: q.claim("w", 60.0, v), PRIORITY),
    Argument("claim_many min_priority", lambda q, _, v: q.claim_many("w", 60.0, 2, v), PRIORITY),
    Argument("ack lease", lambda q, _, v: q.ack(v), _no_lease),
    Argument("ack_many leases", lambda q, _, v: q.ack_many(v), _none_in_it, iterates=True),
    Argument("nack lease", lambda q, _, v: q.nack(v), _no_lease),
    Argument("nack delay", lambda q, lease, v: q.nack(lease, v), _seconds(0.0)),
    Argument("extend lease", lambda q, _, v: q.extend(v, 60.0), _no_lease),
    Argument("extend visibility", lambda q, lease, v: q.extend(lease, v), _seconds(SHORTEST_S)),
    Argument("reject lease", lambda q, _, v: q.reject(v, "why"), _no_lease),
    Argument("reject reason", lambda q, lease, v: q.reject(lease, v), _reason),
    Argument("wait timeout", _waited, _seconds(0.0)),
    Argument("groups state", lambda q, _, v: q.groups(state=v), _state, "groups"),
    Argument("groups limit", lambda q, _, v: q.groups(limit=v), _whole(1), "groups"),
    Argument("groups after", lambda q, _, v: q.groups(after=v), _group_or_none, "groups"),
    Argument("peek group_id", lambda q, _, v: q.peek(v), _group, "peek"),
    Argument("peek limit", lambda q, _, v: q.peek("r", v), _whole(1), "peek"),
    Argument("hold group_id", lambda q, _, v: q.hold(v), _group, "hold"),
    Argument("release group_id", lambda q, _, v: q.release(v), _group, "hold"),
    Argument("purge group_id", lambda q, _, v: q.purge(v), _group, "purge"),
    Argument("dead_letters group_id", lambda q, _, v: q.dead_letters(group_id=v), _group_or_none, "dead_letters"),
    Argument("dead_letters limit", lambda q, _, v: q.dead_letters(limit=v), _whole(1), "dead_letters"),
    Argument("dead_letters after", lambda q, _, v: q.dead_letters(after=v), _whole_or_none, "dead_letters"),
    Argument("redrive dead_letter_id", lambda q, _, v: q.redrive(v), _whole(0), "dead_letters"),
)


def _text_of_an_event(value: Any, can: Capabilities) -> bool | None:
    if type(value) is not str or len(value) > can.max_event_bytes / 2:
        return None if isinstance(value, str) else False
    return bool(value) and not any("\ud800" <= letter <= "\udfff" for letter in value)


def _no_payload(value: Any, _can: Capabilities) -> bool | None:
    return None if isinstance(value, dict) else False


EVENT_ARGUMENTS: tuple[Argument, ...] = (
    Argument("publish event.kind", lambda q, _, v: q.publish("r", Event(v)), _text_of_an_event),
    Argument("publish event.id", lambda q, _, v: q.publish("r", Event("k", {}, v)), _text_of_an_event),
    Argument("publish event.payload", lambda q, _, v: q.publish("r", Event("k", v)), _no_payload),
    Argument("publish event.headers", lambda q, _, v: q.publish("r", Event("k", headers=v)), _no_payload),
)


def try_values(bench: Bench, argument: Argument, kind: str, values: Iterable[Any]) -> None:
    """Give an argument these values, one by one, and keep in the book what became of each."""
    if argument.capability is not None and not getattr(bench.can, argument.capability):
        return
    for value in values:
        may = argument.may(value, bench.can)
        try:
            bench.world = bench.world or arranged(bench)
            if _tried(bench, argument, kind, bench.world.lease, value, may):
                bench.world = None
        except Unkept as unkept:
            bench.book.fail(bench.name, f"{argument.name} = {named(value)}: {unkept}")
            bench.renew()


def must_be_as_it_was(bench: Bench, kind: str) -> None:
    """See that what was refused since the queue was arranged has changed nothing: look, and ack a lease."""
    world, bench.world = bench.world, None
    if world is not None and (bench.see() != world.seen or bench.queue.ack(world.lease) is not True):
        bench.book.fail(bench.name, f"{kind}: all that was tried last was refused, and yet something changed.")


def _tried(bench: Bench, argument: Argument, kind: str, lease: Lease, value: Any, may: bool | None) -> bool:
    """Make one call; say whether it may have changed something."""
    sent = bench.sent
    try:
        argument.call(bench.queue, lease, value)
    except Mine as error:
        if argument.iterates:
            return False
        raise Unkept(f"an error of the value's own came through: {said(error)}") from error
    except HarelError as error:
        _must_be_refused_well(bench, argument, error, may, bench.sent - sent)
        bench.book.note(bench.name, kind, argument.name, "refused", said(error))
        return False
    except Exception as error:
        raise Unkept(f"an error that is none of harel's: {said(error)}") from error
    if may is False:
        raise Unkept("it was taken")
    bench.book.note(bench.name, kind, argument.name, "answered", "taken")
    return True


def _must_be_refused_well(bench: Bench, argument: Argument, error: HarelError, may: bool | None, sent: int) -> None:
    if sent:
        raise Unkept(f"it was refused only after {sent} requests: {said(error)}")
    if isinstance(error, NotSupported) and not bench.can.priority and "priority" in argument.name:
        return
    if may is True:
        raise Unkept(f"what the contract allows was refused: {said(error)}")
    if not isinstance(error, InvalidArgument):
        raise Unkept(f"it was refused by another error than InvalidArgument: {said(error)}")
    if not is_a_sentence(str(error)):
        raise Unkept(f"the refusal is no clear sentence: {str(error)[:LONGEST_SENTENCE]!r}")
    if argument.name.rpartition(" ")[2].partition(".")[0].rstrip("s") not in str(error).lower():
        raise Unkept(f"the refusal does not say which argument: {str(error)[:LONGEST_SENTENCE]!r}")


def is_a_sentence(text: str) -> bool:
    """Say whether a person can read it on one line."""
    return text.isprintable() and text.endswith(".") and len(text) <= LONGEST_SENTENCE


class World(NamedTuple):
    """A queue in which whatever is done shows."""

    lease: Lease
    """Of the group ``g``, which has two messages."""
    other: Lease
    """Of the group ``o``, which has two as well, and is another worker's."""
    seen: dict[str, object]


def arranged(bench: Bench) -> World:
    """Empty the queue and bring a world about."""
    queue = bench.queue
    cleared(bench)
    for group_id in ("g", "g", "o", "o", "parked", "dead"):
        queue.publish(group_id, OK)
    longest = bench.can.max_visibility_s
    leases = {lease.group_id: lease for lease in queue.claim_many("worker", longest, 10)}
    queue.nack(leases["o"])
    other = queue.claim("other:worker", longest)
    assert other is not None
    queue.nack(leases["parked"], longest)
    queue.reject(leases["dead"], "why")
    queue.publish("r", OK)
    return World(leases["g"], other, bench.see())


def cleared(bench: Bench) -> None:
    """Settle all that is there, and delete the dead letters."""
    queue, bench.world = bench.queue, None
    if bench.can.hold:
        for info in queue.groups(state="held", limit=1_000):
            queue.release(info.group_id)
    if bench.can.dead_letters:
        for letter in queue.dead_letters(limit=1_000):
            queue.redrive(letter.seq)
    emptied(bench)


def emptied(bench: Bench) -> list[Lease]:
    """Settle all that can be, in time or when its lease or park has ended; return what came."""
    clock = bench.subject.clock
    now, came = clock.now, []
    clock.advance(bench.can.max_visibility_s + 1.0)
    while leases := bench.queue.claim_many("an emptier", 60.0, 1_000):
        came += leases
        bench.queue.ack_many(leases)
    clock.now = now
    return came


def named(value: object) -> str:
    """Say which value it was."""
    kind = type(value).__name__
    with contextlib.suppress(Exception):
        text = ascii(value)
        return f"{kind} {text if len(text) <= 120 else text[:120] + '…'}"
    return f"{kind} that does not say what it is"


def try_event_parts(bench: Bench, kind: str, values: Iterable[Any]) -> None:
    """Publish each value somewhere in a payload: it is refused, or comes back equal."""
    cleared(bench)
    for value in values:
        for where, payload in (
            ("in a dict", {"a": value}),
            ("in a list", {"a": [0, value]}),
            ("in a tuple", {"a": (value,)}),
        ):
            try:
                _stored_or_refused(bench, kind, f"payload, {where}", payload)
            except Unkept as unkept:
                bench.book.fail(bench.name, f"event.payload, {where}: {named(value)}: {unkept}")
                bench.renew()


def _stored_or_refused(bench: Bench, kind: str, where: str, payload: dict[str, Any]) -> None:
    sent = bench.sent
    try:
        bench.queue.publish("e", Event("k", payload))
    except InvalidArgument as error:
        if bench.sent != sent:
            raise Unkept("it was refused only after something was sent") from error
        if not is_a_sentence(str(error)):
            raise Unkept(f"the refusal is no clear sentence: {str(error)[:LONGEST_SENTENCE]!r}") from error
        bench.book.note(bench.name, kind, where, "refused", said(error))
        return
    except Exception as error:
        raise Unkept(f"another error than InvalidArgument: {said(error)}") from error
    lease = bench.queue.claim("w", 60.0)
    if lease is None or lease.group_id != "e":
        raise Unkept("it was taken, and is not there")
    try:
        came = _from_deep_down(lease)
    except Exception as error:
        raise Unkept(f"it was taken, and cannot be read: {said(error)}") from error
    if not bench.queue.ack(lease):
        raise Unkept("its lease was lost")
    if not _equal(payload, came.payload):
        raise Unkept("it was taken, and came back as something else")
    bench.book.note(bench.name, kind, where, "stored", "stored")


def _from_deep_down(lease: Lease, frames: int = 200) -> Event:
    """Read a lease's event as a handler does that many calls down."""
    return lease.event if frames == 0 else _from_deep_down(lease, frames - 1)


def _equal(given: Any, came: Any) -> bool:
    """Say whether it came back equal, with tuples as lists, whatever the classes of the caller's are."""
    pairs = [(given, came)]
    while pairs:
        one, other = pairs.pop()
        inner = _inner(one, other)
        if inner is None:
            return False
        pairs += inner
    return True


def _inner(one: Any, other: Any) -> list[tuple[Any, Any]] | None:
    """Return the pairs that have to be equal if these are, or ``None`` if they are not."""
    if isinstance(one, ChangingDict):
        return [] if "a" in other else None  # of the rest nobody can say what it was
    if isinstance(one, dict):
        if type(other) is not dict or dict.__len__(one) != len(other):
            return None
        keys = zip(dict.keys(one), other, strict=True)
        return [*keys, *zip(dict.values(one), other.values(), strict=True)]
    if isinstance(one, list | tuple):
        parts = one if isinstance(one, tuple) else [*list.__iter__(one)]
        same = type(other) is list and len(parts) == len(other)
        return [*zip(parts, other, strict=True)] if same else None
    if isinstance(one, str):
        return [] if type(other) is str and str.__eq__(one, other) is True else None
    same = exactly(one, other) or (type(other) in (int, float) and isinstance(one, type(other)) and other == one)
    return [] if same else None
