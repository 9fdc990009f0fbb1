"""Leases that no claim returned: copied, altered in a field, of another group, of another queue, of no type at all."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec

from harel import HarelError, InvalidArgument, Transport
from harel.engine.queue.contract import Lease
from harel.testing.conformance.kit import WAYS
from torture.hostile_bench import Bench, Unkept, said
from torture.hostile_calls import World, arranged, emptied, is_a_sentence, named
from torture.hostile_values import HostileEquality, HostileText, Level, Mine, RaisingText, Text

__all__ = ["forged", "try_leases"]

SETTLING = ("ack", "ack_many", "reject")

OPERATORS: list[Any] = [{"$gt": ""}, {"$ne": None}, {"$exists": True}, {"$regex": ".*"}, {"$in": ["g"]}, ["g"]]
NO_TEXT: list[Any] = [
    None,
    True,
    0,
    1,
    1.5,
    b"g",
    object(),
    HostileText(),
    HostileEquality(),
    RaisingText("g"),
    *OPERATORS,
]
TEXT = [
    "",
    "'",
    "' OR '1'='1",
    '{"$gt": ""}',
    "*",
    "%",
    "\0",
    "\ud800",
    "\r\nFLUSHALL\r\n",
    "x" * 1_000_000,
    "g\x00",
    "G",
    "g ",
]
NUMBERS: list[Any] = [0, -1, 2**31, 2**53 + 1, 2**63 - 1, 2**63, 10**5_000, 1.5, float("nan"), float("inf"), None,
                      "1", True,
                      Level.ONE, b"1", HostileEquality(), {"$gt": 0}, [1]]  # fmt: skip


class Forged(NamedTuple):
    """A lease that was tampered with."""

    what: str
    lease: Lease
    field: str | None
    """What was altered; ``None`` of a copy, which is as good as the lease itself."""


def forged(world: World) -> Iterator[Forged]:
    """Make of a live lease all that it might be taken for."""
    lease, other = world.lease, world.other
    for what, make in _COPIES.items():
        yield Forged(what, make(lease), None)
    altered: dict[str, list[Any]] = {
        "token": [other.token, lease.token + " ", lease.token.upper(), lease.token[:-1], lease.token.rpartition(":")[2],
                  "worker:", "worker", lease.worker_id + ":%", Text(lease.token), *TEXT, *NO_TEXT],
        "group_id": ["o", "r", "parked", "nobody", Text("g"), *TEXT, *NO_TEXT],
        "seq": [lease.seq + 1, lease.seq - 1, other.seq, *NUMBERS],
        "attempt": [lease.attempt + 1, *NUMBERS],
        "expires_at": [0.0, -1e308, 1e308, *NUMBERS],
        "queue": [*TEXT, *NO_TEXT],
        "raw": ['{"kind":"forged"}', *TEXT],
    }  # fmt: skip
    if hasattr(lease, "receipt"):
        altered["receipt"] = [lease.receipt + "x", "nobody", *TEXT]
    for field, values in altered.items():
        for value in values:
            yield Forged(f"{field} = {named(value)}", _with(lease, field, value), field)


def try_leases(bench: Bench, ways: tuple[str, ...] = tuple(WAYS), every: int = 1) -> None:
    """Settle and renew with every forged lease, or every so many-th, in each of the ways."""
    for way in ways:
        world = arranged(bench)
        fakes = list(forged(world))
        for place in range(0, len(fakes), every):
            fake = fakes[place]
            try:
                if not _tried(bench, world, fake, way):
                    continue
                world = _another_world(bench)
            except Unkept as unkept:
                bench.book.fail(bench.name, f"{way} with a lease whose {fake.what}: {unkept}")
                bench.renew()
                world = arranged(bench)
            fakes = list(forged(world))


def _another_world(bench: Bench) -> World:
    try:
        return arranged(bench)
    except Exception as error:
        raise Unkept(f"it was taken, and then the queue could not be emptied: {said(error)}") from error


def _tried(bench: Bench, world: World, fake: Forged, way: str) -> bool:
    """Use a forged lease; say whether it was taken for a live one."""
    kind = "forged leases"
    sent = bench.sent
    try:
        answer = WAYS[way](bench.queue, fake.lease)
    except InvalidArgument as error:
        if bench.sent != sent:
            raise Unkept(f"it was refused only after something was sent: {said(error)}") from error
        if not is_a_sentence(str(error)):
            raise Unkept(f"the refusal is no clear sentence: {str(error)[:500]!r}") from error
        bench.book.note(bench.name, kind, f"{way}, {fake.field or 'a copy'}", "refused", said(error))
        _must_be_unchanged(bench, world)
        return False
    except (HarelError, Mine, Exception) as error:
        raise Unkept(f"another error than InvalidArgument: {said(error)}") from error
    bench.book.note(bench.name, kind, f"{way}, {fake.field or 'a copy'}", "answered", f"{answer}")
    if answer not in (True, False):
        raise Unkept(f"it was answered with {answer!r}")
    if answer is False and fake.field is None:
        raise Unkept("a copy of a live lease was not taken")
    if answer is False and fake.field != "seq":
        _must_be_unchanged(bench, world)
        return False
    try:
        _must_have_been_the_lease(bench, world, fake, way)
    except Unkept:
        raise
    except Exception as error:
        raise Unkept(f"it was taken, and then the queue could not be used: {said(error)}") from error
    return True


def _must_be_unchanged(bench: Bench, world: World) -> None:
    if bench.see() != world.seen:
        raise Unkept("nothing should have changed, and something did")


def _must_have_been_the_lease(bench: Bench, world: World, fake: Forged, way: str) -> None:
    """See that a lease that was taken did what the real one does: to its group's first message, and to no other.

    With another number, which a backend may go by, it may spoil the settling of its own group, and of no other. And
    where a receipt is what tells leases apart, that alone does.
    """
    by_receipt = hasattr(world.lease, "receipt")
    if fake.field in ("group_id", "token") and not by_receipt and not isinstance(getattr(fake.lease, fake.field), Text):
        raise Unkept(f"it was taken, with another {fake.field}")
    ends = way in SETTLING or way.startswith("nack")
    if ends and fake.field != "seq" and not by_receipt and bench.queue.ack(world.lease) is not False:
        raise Unkept("it was taken, and the lease is still good")
    if bench.can.dead_letters:
        _must_have_rejected(bench, world, fake, way)
    left = sorted(lease.group_id for lease in emptied(bench))
    settled = {1} if way in SETTLING else {2}
    counts = {1, 2} if fake.field == "seq" else settled
    if not any(left == sorted([*["g"] * count, "o", "o", "parked", "r"]) for count in counts):
        raise Unkept(f"it was taken, and then the messages were of {left}")


def _must_have_rejected(bench: Bench, world: World, fake: Forged, way: str) -> None:
    before = {letter.seq for letter in bench.queue.dead_letters(group_id="dead")}
    if len(before) != 1:
        raise Unkept("it was taken, and the dead letter of another group is gone")
    new = [letter for letter in bench.queue.dead_letters(limit=100) if letter.seq not in before]
    if fake.field == "seq":
        held = len(new) <= (way == "reject")
    else:
        raws = (world.lease.raw, fake.lease.raw)
        held = way != "reject" and not new
        held = held or (len(new) == 1 and new[0].seq == world.lease.seq and new[0].raw in raws)
    if not held or any(letter.group_id != "g" for letter in new):
        raise Unkept(f"it was taken, and the dead letters are {[named(letter) for letter in new]}")


def _with(lease: Lease, field: str, value: Any) -> Lease:
    made = copy.copy(lease)
    setattr(made, field, value)
    return made


_COPIES: dict[str, Callable[[Lease], Lease]] = {
    "copy": copy.copy,
    "deep copy": copy.deepcopy,
    "pickled copy": lambda lease: pickle.loads(pickle.dumps(lease)),
    "replaced copy": lambda lease: msgspec.structs.replace(lease),
}


def try_leases_twice(queue: Transport, lease: Lease) -> list[object]:
    """Settle one lease by all its copies; one of them at most is the first."""
    return [queue.ack(make(lease)) for make in _COPIES.values()]
