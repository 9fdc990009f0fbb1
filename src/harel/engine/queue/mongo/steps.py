"""What several operations have in common: a group's head, finishing what another client began, dropping a group.

How messages are counted in locks, and what becomes of a lock when the counts do not agree, is in ``counting.py``.

No step relies on the one after it: whoever comes next finishes what a client that died had decided. What is decided
stands in one document, a group's lock or a dead letter, and is named there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harel.engine.queue.contract import Packed
from harel.engine.queue.mongo.counting import Lock, count, counts_of, drop, vacate
from harel.engine.queue.mongo.requests import (
    Aggregate,
    DeleteOne,
    Document,
    Duplicate,
    Find,
    FindAndUpdate,
    InsertEach,
    UpdateOne,
)
from harel.engine.queue.mongo.schema import COUNTERS, DEAD_LETTERS, LOCKS, MESSAGES
from harel.engine.queue.op import Op
from harel.errors import HarelError

__all__ = [
    "Lock",
    "append",
    "decide_redrive",
    "delete_unredriven",
    "drop_if_drained",
    "drop_if_empty",
    "drop_if_last",
    "finish",
    "head_of",
    "heads_of",
    "insert_messages",
    "next_seq",
    "number_is_taken",
]

_BY_SEQ = (("_id", 1),)


def _upsert(request: FindAndUpdate) -> Op[Any]:
    """Send an upsert; again, when another client made the document in the same moment."""
    while True:
        try:
            return (yield request)
        except Duplicate:
            continue


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
    lose its lock. A message may be settled before it is counted: see ``counting.py``. Of a publisher that dies between
    the two steps a message is left that its group delivers when it has a lock again.
    """
    try:
        yield insert_messages(messages, first, **more)
    except Duplicate as refused:
        raise number_is_taken(first + refused.places[0]) from refused
    yield from count(counts_of(messages, first), available_at, now)


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
    yield from delete_unredriven(message)
    return False


def delete_unredriven(message: Document) -> Op[None]:
    """Delete a redrive's message that its dead letter did not become."""
    if (yield DeleteOne(MESSAGES, {"_id": message["_id"], "redrive_of": message["redrive_of"]})):
        yield UpdateOne(LOCKS, {"_id": message["group_id"]}, {"$inc": {"settled": 1}})


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


def drop_if_empty(lock: Lock, now: float) -> Op[None]:
    """Drop a group, unless there is a message in it; if another client has taken it, say there that it is empty."""
    while (yield from head_of(lock)) is None:
        free = lock["token"] is None
        if (yield from drop(lock, now) if free else vacate(lock)):
            return
        found = yield _there(lock["_id"])
        if not found:
            return
        lock = found[0]


def drop_if_last(lock: Lock, now: float) -> Op[None]:
    """Drop a group if its counts say that it may be empty, and it is."""
    if lock["settled"] >= lock["version"] and not lock["held"]:
        yield from drop_if_empty(lock, now)


def drop_if_drained(group_id: str, now: float) -> Op[None]:
    """Drop a group that is not held, if it is empty."""
    found = yield _there(group_id)
    if found:
        yield from drop_if_empty(found[0], now)


def _there(group_id: str) -> Find:
    return Find(LOCKS, {"_id": group_id, "held": False, "bound": None, "owed": None})
