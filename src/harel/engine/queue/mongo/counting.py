"""How messages are counted in their groups' locks, and what becomes of a lock that is short of counts.

A message is stored first and counted after that, so it may be claimed and settled in between, if its group has a lock
already. Its count is then still to come. Were the lock dropped, once its group is empty, that count would make a new
one, for a group in which nothing is; and what is published next would find that lock, and wait in its place and at its
priority, though its own publish is its group's first.

So a lock whose group is empty is only deleted if ``version``, how many messages were counted, is no less than
``settled``, how many were settled. Else it *owes* the difference, and says so: it is no group any more, no claim finds
it, and each count that comes meets it, since no update of a group's lock matches one that owes. Whoever has come to
count looks whether its messages are there. Those that are gone are what was owed, and with the last of them the lock
goes; those that are there begin the group anew. Nothing can change that meanwhile, as nobody can claim them.

Between a settlement and the drop a claim may have taken the lock, and its client may be slow to find that there is
nothing, or dead. Then the lock is that one's until its lease ends, and who settled says in it that it owes, if only
nothing: whoever counts next looks, too, and begins the group anew under that lease.

A publisher that died never counts. So a lock owes for :data:`OWED_S` at most, and then a claim that finds it drops it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from harel.engine.queue.contract import Packed
from harel.engine.queue.mongo.requests import DeleteOne, Document, Duplicate, Find, UpdateEach, UpdateOne
from harel.engine.queue.mongo.schema import LOCKS, MESSAGES
from harel.engine.queue.op import Op

__all__ = ["OWED_S", "Count", "Lock", "count", "counts_of", "drop", "same_and_empty", "vacate"]

Lock = Mapping[str, Any]
"""A group's lock document."""

OWED_S = 3_600.0
"""No publish takes as long between its two steps, unless its client is stopped in the middle, or dead."""
_TICKETS_NAMED = 8
"""So many of the tickets that counted last are named by a lock."""


class Count(msgspec.Struct, frozen=True):
    """What a publish counts in one group's lock.

    Attributes
    ----------
    group : str
    count : int
        How many messages.
    priority : int
        What the group gets if it begins with them.
    first, last : int
        The smallest and the largest of their numbers; of those in between none is another publish's.
    """

    group: str
    count: int
    priority: int
    first: int
    last: int


def counts_of(messages: Sequence[Packed], first: int) -> list[Count]:
    """Return what to count of messages with the numbers from ``first`` on, a group each."""
    counts: dict[str, Count] = {}
    for seq, message in enumerate(messages, first):
        known = counts.get(message.group_id)
        if known is None:
            counts[message.group_id] = Count(message.group_id, 1, message.priority, seq, seq)
        else:
            counts[message.group_id] = msgspec.structs.replace(known, count=known.count + 1, last=seq)
    return list(counts.values())


def count(counts: Sequence[Count], available_at: float, now: float, ticket: int | None = None) -> Op[None]:
    """Count messages that are stored in their groups' locks, and make a lock that is not there.

    Parameters
    ----------
    counts : sequence of Count
    available_at : float
        Where in line a group begins.
    now : float
    ticket : int or None
        The ticket by which they are counted, once whoever carries it out; see ``tickets.py``.
    """
    left = counts
    while left:
        updates = [_update(each, available_at, now, ticket) for each in left]
        try:
            if len(updates) == 1:
                yield UpdateOne(LOCKS, *updates[0], upsert=True)
            else:
                yield UpdateEach(LOCKS, updates, upsert=True)
        except Duplicate as refused:
            left = yield from _refused([left[place] for place in refused.places], available_at, now, ticket)
        else:
            return


def _update(each: Count, available_at: float, now: float, ticket: int | None) -> tuple[Document, Document]:
    which: dict[str, Any] = {"_id": each.group, "owed": None}
    change: dict[str, Any] = {
        "$inc": {"version": each.count},
        "$setOnInsert": _fresh(each.first, each.priority, available_at, now),
    }
    if ticket is not None:
        which["tickets"] = {"$ne": ticket}
        change.update(_named(ticket))
    return which, change


def _named(ticket: int) -> Document:
    return {"$push": {"tickets": {"$each": [ticket], "$slice": -_TICKETS_NAMED}}}


def _fresh(arrival: int, priority: int, available_at: float, now: float) -> Document:
    """Return what a lock begins with."""
    return {
        "held": False,
        "available_at": available_at,
        "arrival": arrival,
        "token": None,
        "priority": priority,
        "attempts": 0,
        "settled": 0,
        "acked": None,
        "rejected": None,
        "since": now,
        "held_since": None,
    }


def _refused(counts: Sequence[Count], available_at: float, now: float, ticket: int | None) -> Op[list[Count]]:
    """Go on with counts that met a lock which their update did not match; return what is to be tried again."""
    found = yield Find(LOCKS, {"_id": {"$in": [each.group for each in counts]}})
    locks = {lock["_id"]: lock for lock in found}
    left = []
    for each in counts:
        lock = locks.get(each.group)
        if lock is not None and ticket is not None and ticket in lock.get("tickets", ()):
            continue  # somebody else carried it out
        # Unless it owes, another client made it, or dropped it, in this moment.
        if lock is None or lock.get("owed") is None or not (yield from _pay(lock, each, available_at, now, ticket)):
            left.append(each)
    return left


def _pay(lock: Lock, each: Count, available_at: float, now: float, ticket: int | None) -> Op[bool]:
    """Count in a lock that owes. Return whether that was possible; if not, it has changed."""
    numbers = {"group_id": each.group, "_id": {"$gte": each.first, "$lte": each.last}}
    there = yield Find(MESSAGES, numbers, order=(("_id", 1),), fields=("_id",), hint="group")
    owed = max(lock["owed"] - each.count + len(there), 0)
    unchanged = {key: lock[key] for key in ("_id", "arrival", "version", "token", "owed")}
    if not there and not owed and lock["token"] is None:
        return bool((yield DeleteOne(LOCKS, unchanged)))
    change: dict[str, Any] = {"$set": {"owed": owed}}
    if there:
        begun = _fresh(there[0]["_id"], each.priority, available_at, now)
        if lock["token"] is not None:
            begun = {key: begun[key] for key in ("arrival", "priority")}
        # What is owed still goes on to be more settled than counted.
        settled = lock["settled"] + owed
        change["$set"] = {**begun, "owed": None, "settled": settled, "version": lock["version"] + len(there)}
    if ticket is not None:
        change.update(_named(ticket))
    return bool((yield UpdateOne(LOCKS, unchanged, change)))


def same_and_empty(lock: Lock) -> Document:
    """Return what matches a lock that is still as it was when its group was found empty."""
    return {
        "_id": lock["_id"],
        "arrival": lock["arrival"],
        "version": lock["version"],
        "settled": lock["settled"],
        "token": lock["token"],
        "acked": lock["acked"],
        "bound": None,
        "held": False,
    }


def drop(lock: Lock, now: float, purged: int = 0) -> Op[bool]:
    """Drop a group that was found empty after this was read of its lock, unless it changed since.

    Parameters
    ----------
    lock : Lock
    now : float
    purged : int
        How many of its messages are settled and not counted as that.
    """
    owed = _owed(lock, purged)
    if not owed["owed"]:
        return bool((yield DeleteOne(LOCKS, same_and_empty(lock))))
    kept = {"token": None, "available_at": now + OWED_S, **owed}
    return bool((yield UpdateOne(LOCKS, same_and_empty(lock), {"$set": kept})))


def vacate(lock: Lock) -> Op[bool]:
    """Say in a lock that another client has taken that its group was found empty after this was read of it."""
    return bool((yield UpdateOne(LOCKS, same_and_empty(lock), {"$set": _owed(lock)})))


def _owed(lock: Lock, purged: int = 0) -> Document:
    """Return the counts of a lock whose group is empty, with what it owes apart."""
    settled = lock["settled"] + purged
    owed = max(settled - lock["version"], 0) + (lock.get("owed") or 0)
    return {"owed": owed, "settled": settled, "version": settled}
