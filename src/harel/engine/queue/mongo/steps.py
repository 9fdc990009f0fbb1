"""What several operations have in common: a group's head, finishing what another client began, dropping a group.

No step relies on the one after it: whoever comes next finishes what a client that died had decided. What is decided
stands in one document, a group's lock or a dead letter, and is named there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harel.engine.queue.contract import Packed
from harel.engine.queue.mongo.requests import (
    Aggregate,
    DeleteOne,
    Document,
    Duplicate,
    Find,
    FindAndUpdate,
    InsertEach,
    UpdateEach,
    UpdateOne,
)
from harel.engine.queue.mongo.schema import COUNTERS, DEAD_LETTERS, LOCKS, MESSAGES
from harel.engine.queue.op import Op
from harel.errors import HarelError

__all__ = [
    "Lock",
    "append",
    "decide_redrive",
    "drop",
    "drop_if_drained",
    "drop_if_last",
    "finish",
    "fresh_lock",
    "head_of",
    "heads_of",
    "insert_messages",
    "next_seq",
    "number_is_taken",
    "same_and_empty",
]

Lock = Mapping[str, Any]
"""A group's lock document."""

_BY_SEQ = (("_id", 1),)


def _upsert(request: FindAndUpdate | UpdateOne) -> Op[Any]:
    """Send an upsert; again, when another client made the document in the same moment."""
    while True:
        try:
            return (yield request)
        except Duplicate:
            continue


def _upsert_each(updates: Sequence[tuple[Document, Document]]) -> Op[None]:
    while updates:
        try:
            yield UpdateEach(LOCKS, updates, upsert=True)
        except Duplicate as refused:
            updates = [updates[place] for place in refused.places]
        else:
            return


def next_seq(count: int) -> Op[int]:
    """Take the numbers of so many messages; return the first.

    This is done when they are published, never kept for later: what is published later has the larger number.
    """
    counter = yield from _upsert(FindAndUpdate(COUNTERS, {"_id": "seq"}, {"$inc": {"n": count}}, upsert=True))
    return int(counter["n"]) - count + 1


def append(messages: Sequence[Packed], first: int, available_at: float, now: float, **more: Any) -> Op[None]:
    """Store messages with the numbers from ``first`` on, and then count them in their groups' locks.

    In this order, so that nobody finds a lock whose message comes later: a group that is found empty is dropped if
    its ``version`` is what it was *before* the messages were looked for, and so no message that was stored since can
    lose its lock. Of a publisher that dies between the two steps a message is left that its group delivers when it
    has a lock again.
    """
    try:
        yield insert_messages(messages, first, **more)
    except Duplicate as refused:
        raise number_is_taken(first + refused.places[0]) from refused
    updates = _counted(messages, first, available_at, now)
    if len(updates) == 1:
        yield from _upsert(UpdateOne(LOCKS, *updates[0], upsert=True))
    else:
        yield from _upsert_each(updates)


def insert_messages(messages: Sequence[Packed], first: int, **more: Any) -> InsertEach:
    """Return what stores messages with the numbers from ``first`` on."""
    return InsertEach(
        MESSAGES,
        [
            {"_id": seq, "group_id": message.group_id, "event": message.raw, **more}
            for seq, message in enumerate(messages, first)
        ],
    )


def number_is_taken(seq: int) -> HarelError:
    """Return what says that there is a message of this number already."""
    return HarelError(
        f"Message {seq} exists: the counter of messages was set back, as by a "
        "failover under a write concern below majority, or by restoring some collections and not others."
    )


def fresh_lock(arrival: int, priority: int, available_at: float, now: float) -> Document:
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


def _counted(
    messages: Sequence[Packed], first: int, available_at: float, now: float
) -> list[tuple[Document, Document]]:
    """Return what counts messages in their groups' locks, and makes a lock that is not there."""
    locks: dict[str, tuple[Document, dict[str, Any]]] = {}
    for seq, message in enumerate(messages, first):
        known = locks.get(message.group_id)
        if known is not None:
            known[1]["$inc"]["version"] += 1
            continue
        fresh = fresh_lock(seq, message.priority, available_at, now)
        locks[message.group_id] = ({"_id": message.group_id}, {"$inc": {"version": 1}, "$setOnInsert": fresh})
    return list(locks.values())


def head_of(lock: Lock) -> Op[Document | None]:
    """Find a group's first message, having finished the settlement that its lock names.

    A message that was settled last is gone when a larger one is first: then there is nothing to finish, and this is
    one request.
    """
    acked = lock["acked"]
    while True:
        found = yield Find(MESSAGES, {"group_id": lock["_id"]}, order=_BY_SEQ, limit=1)
        head: Document | None = found[0] if found else None
        if head is not None and acked is not None and head["_id"] <= acked:
            yield from finish(lock)
            was_settled = head["_id"] == acked
            acked = None
            if was_settled:
                continue
        if head is None or "redrive_of" not in head or (yield from _is_redriven(head)):
            return head


def finish(lock: Lock) -> Op[None]:
    """Do what is left to do for the message that was settled last: its dead letter shows, and the message goes."""
    rejected = lock["rejected"]
    if rejected is not None:
        letter = {key: value for key, value in rejected.items() if key != "token"}
        yield UpdateOne(
            DEAD_LETTERS,
            # By its token: what an older lease's rejection left, and another client redrove since, does not come back.
            {"_id": lock["acked"], "state": "pending", "tokens": rejected["token"]},
            {"$set": {**letter, "priority": lock["priority"], "state": "dead"}, "$unset": {"tokens": ""}},
        )
    yield DeleteOne(MESSAGES, {"_id": lock["acked"], "group_id": lock["_id"]})


def decide_redrive(dead_letter: int, message: int) -> Op[bool]:
    """Make a message the one that a dead letter became, unless another one is."""
    decided = yield FindAndUpdate(
        DEAD_LETTERS,
        {"_id": dead_letter, "state": {"$in": ["dead", "gone"]}, "into": {"$in": [None, message]}},
        {"$set": {"state": "gone", "into": message}},
    )
    return decided is not None


def _is_redriven(message: Document) -> Op[bool]:
    """Say whether a redrive's message is the one that its dead letter became; delete it if not.

    The one whose redrive is complete does not say any more what it was made of, so one that does, and whose dead
    letter is gone, is another redrive's that lost.
    """
    if (yield from decide_redrive(message["redrive_of"], message["_id"])):
        return True
    yield DeleteOne(MESSAGES, {"_id": message["_id"], "redrive_of": message["redrive_of"]})
    return False


def heads_of(group_ids: Sequence[str], messages: str, *, whole: bool) -> Op[dict[str, Lock]]:
    """Look at many groups at once: their locks, each with its ``heads``, a list of the first message or of none.

    Parameters
    ----------
    group_ids : sequence of str
    messages : str
        The name of the collection of messages.
    whole : bool
        Whether the messages come with their events.
    """
    inner: list[Document] = [{"$sort": {"_id": 1}}, {"$limit": 1}]
    if not whole:
        inner.append({"$project": {"_id": 1, "redrive_of": 1}})
    lookup = {"from": messages, "localField": "_id", "foreignField": "group_id", "pipeline": inner, "as": "heads"}
    found = yield Aggregate(LOCKS, [{"$match": {"_id": {"$in": list(group_ids)}}}, {"$lookup": lookup}])
    return {lock["_id"]: lock for lock in found}


def same_and_empty(lock: Lock) -> Document:
    """Return what matches a lock that is still as it was when its group was found empty."""
    return {
        "_id": lock["_id"],
        "arrival": lock["arrival"],
        "version": lock["version"],
        "token": lock["token"],
        "acked": lock["acked"],
        "held": False,
    }


def drop(lock: Lock) -> Op[bool]:
    """Drop a group that was found empty after this was read of its lock, unless it changed since."""
    dropped: bool = yield DeleteOne(LOCKS, same_and_empty(lock))
    return dropped


def drop_if_last(lock: Lock) -> Op[None]:
    """Drop a group if its counts say that it is empty, and it is.

    They may say too much, and then the next claim drops it; the group itself says whether they say too little.
    """
    if lock["settled"] >= lock["version"] and not lock["held"] and (yield from head_of(lock)) is None:
        yield from drop(lock)


def drop_if_drained(group_id: str) -> Op[None]:
    """Drop a group that nobody has leased or held, if it is empty."""
    found = yield Find(LOCKS, {"_id": group_id, "token": None, "held": False})
    if found and (yield from head_of(found[0])) is None:
        yield from drop(found[0])
