"""What a caller's transaction leaves to be done to locks once it has committed.

A write to a document that an open transaction has written waits for that transaction's end, and a claim takes the
first lock there is. So a transaction that had written a lock would keep every claim of every group waiting, and it
must write none: it writes a *ticket*, which says what is to become of the locks. A ticket lies among the locks, since
there the next claim finds it without looking anywhere else: its number is the smallest of all, and its priority the
highest. Nobody sees it before the transaction commits. Whoever finds it carries it out, outside of transactions, and
deletes it. Each step of that is done once, whoever else carries the same ticket out, and whoever died over it.

``{_id: {publishes: seq}}``
    Messages were published: ``groups`` has what to count in each, as :class:`~.counting.Count` says; ``number`` is
    what a group begins with. A lock names the tickets that counted in it last, as its ``tickets``.
``{_id: {settles: token}}``
    The message ``seq`` of ``group`` was settled at ``at`` by the lease of this token: parked ``until``, or done if that
    is null. Its lock is the one whose ``bound`` is the token: see ``bound.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from harel.engine.queue.contract import HIGHEST_PRIORITY, Lease, Packed
from harel.engine.queue.mongo.counting import Count, Lock, count, counts_of
from harel.engine.queue.mongo.requests import DeleteOne, Document, Find, FindAndUpdate
from harel.engine.queue.mongo.schema import DEAD_LETTERS, LOCKS
from harel.engine.queue.mongo.steps import drop_if_last
from harel.engine.queue.op import Op

__all__ = ["carry_out", "is_ticket", "name_of_settling", "publishing", "settling", "take_in", "take_in_these"]

_FIRST_OF_ALL = -(2.0**53)
_TICKETS: Document = {"_id": {"$gte": {}}}
"""The names of groups are strings, and of tickets documents."""
_AT_ONCE = 100


def is_ticket(lock: Lock) -> bool:
    """Say whether what lies among the locks is a ticket."""
    return not isinstance(lock["_id"], str)


def name_of_settling(token: str) -> Document:
    """Return the ``_id`` of the ticket that settles with this token."""
    return {"settles": token}


def publishing(messages: Sequence[Packed], first: int, number: float) -> Mapping[str, Any]:
    """Return the ticket for messages with the numbers from ``first`` on."""
    groups = [msgspec.structs.asdict(each) for each in counts_of(messages, first)]
    return {**_ticket({"publishes": first}, first), "number": number, "groups": groups}


def settling(lease: Lease, at: float, until: float | None) -> Mapping[str, Any]:
    """Return the ticket for a message that was settled, or that is to be parked."""
    return {
        **_ticket(name_of_settling(lease.token), lease.seq),
        "group": lease.group_id,
        "seq": lease.seq,
        "attempt": lease.attempt,
        "at": at,
        "until": until,
    }


def _ticket(name: Document, arrival: int) -> dict[str, Any]:
    return {
        "_id": name,
        "held": False,
        "available_at": _FIRST_OF_ALL,
        "arrival": arrival,
        "token": None,
        "priority": HIGHEST_PRIORITY,
        "attempts": 0,
    }


def take_in(now: float) -> Op[None]:
    """Carry out all tickets that there are."""
    while True:
        tickets = yield Find(LOCKS, _TICKETS, limit=_AT_ONCE, hint="_id_")
        for ticket in tickets:
            yield from carry_out(ticket, now)
        if len(tickets) < _AT_ONCE:
            return


def take_in_these(names: Sequence[Document], now: float) -> Op[None]:
    """Carry out these tickets, those of them that there are."""
    for begin in range(0, len(names), _AT_ONCE):
        for ticket in (yield Find(LOCKS, {"_id": {"$in": list(names[begin : begin + _AT_ONCE])}})):
            yield from carry_out(ticket, now)


def carry_out(ticket: Lock, now: float) -> Op[None]:
    """Do what a ticket says, unless it is done, and delete it."""
    if "groups" in ticket:
        yield from _count(ticket, now)
    else:
        yield from _free(ticket, now)
    yield DeleteOne(LOCKS, {"_id": ticket["_id"]})


def _count(ticket: Lock, now: float) -> Op[None]:
    counts = [Count(**each) for each in ticket["groups"]]
    yield from count(counts, ticket["number"], now, ticket["_id"]["publishes"])


def _free(ticket: Lock, now: float) -> Op[None]:
    """Let the group go on.

    By its mark, not by its token: between the lease's end and the commit another client may have taken the lock, but
    not without asking what became of the transaction.
    """
    which = {"_id": ticket["group"], "bound": ticket["_id"]["settles"]}
    free: dict[str, Any] = {"token": None, "since": now, "bound": None}
    if ticket["until"] is not None:
        number = max(now, ticket["until"])
        yield FindAndUpdate(LOCKS, which, {"$set": {**free, "available_at": number, "attempts": ticket["attempt"]}})
        return
    if ticket["attempt"] > 1:
        yield DeleteOne(DEAD_LETTERS, {"_id": ticket["seq"], "state": "pending"})
    settled = {**free, "available_at": now, "attempts": 0, "acked": ticket["seq"], "rejected": None}
    lock = yield FindAndUpdate(LOCKS, which, {"$set": settled, "$inc": {"settled": 1}})
    if lock is not None:
        yield from drop_if_last(lock, now)
