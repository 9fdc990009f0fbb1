"""What only looks: figures, groups, messages and dead letters."""

from __future__ import annotations

from typing import Any

from harel.engine.queue.contract import BACKLOG_COUNTED, DeadLetter, GroupInfo, GroupState, QueueStats, StoredMessage
from harel.engine.queue.mongo.requests import Aggregate, Document, Find
from harel.engine.queue.mongo.schema import DEAD_LETTERS, LOCKS, MESSAGES
from harel.engine.queue.mongo.tickets import take_in
from harel.engine.queue.op import Op
from harel.engine.queue.schedule import waiting_since
from harel.engine.queue.tokens import worker_of

__all__ = ["dead_letters", "groups", "peek", "stats"]

_MOST = 2**31 - 1
"""The largest limit that is sent."""
_GROUPS: Document = {"$gte": ""}
"""The names of groups are strings; what else lies among the locks are tickets."""
_IS_A_GROUP: Document = {"owed": None}
"""A lock that owes has no group any more."""
_COUNT: Document = {"$group": {"_id": None, "n": {"$sum": 1}}}


def stats(now: float) -> Op[QueueStats]:
    """Count the queue: one walk of the locks, one of the messages, one of the dead letters."""
    kind = {
        "held": "$held",
        "ready": {"$lte": ["$available_at", now]},
        "leased": {"$ne": ["$token", None]},
        "fresh": {"$lt": ["$available_at", 0]},
    }
    count = {"$group": {"_id": kind, "n": {"$sum": 1}, "oldest": {"$min": "$available_at"}}}
    rows = yield Aggregate(LOCKS, [{"$match": {"_id": _GROUPS, **_IS_A_GROUP}}, count])
    counts: dict[GroupState, int] = {"ready": 0, "leased": 0, "parked": 0, "held": 0}
    oldest = now
    for row in rows:
        state = _state(row["_id"]["held"], row["_id"]["ready"], row["_id"]["leased"])
        counts[state] += row["n"]
        if state == "ready":
            oldest = min(oldest, waiting_since(row["oldest"]))
    return QueueStats(
        messages=_counted((yield Aggregate(MESSAGES, [_COUNT], hint="_id_"))),
        groups=sum(counts.values()),
        ready=counts["ready"],
        leased=counts["leased"],
        parked=counts["parked"],
        held=counts["held"],
        dead_letters=_counted((yield Aggregate(DEAD_LETTERS, [{"$match": {"state": "dead"}}, _COUNT], hint="state"))),
        oldest_ready_s=now - oldest,
    )


def groups(messages: str, now: float, state: GroupState | None, limit: int, after: str | None) -> Op[list[GroupInfo]]:
    """List groups by name; ``messages`` is the name of the collection of messages."""
    which: dict[str, Any] = {"_id": _GROUPS if after is None else {"$gt": after}, **_IS_A_GROUP}
    if state is not None:
        which["held"] = state == "held"
    if state == "ready":
        which["available_at"] = {"$lte": now}
    elif state in ("leased", "parked"):
        which["available_at"] = {"$gt": now}
        which["token"] = {"$ne": None} if state == "leased" else None
    waiting = {
        "from": messages,
        "localField": "_id",
        "foreignField": "group_id",
        "pipeline": [{"$limit": BACKLOG_COUNTED + 1}, {"$count": "n"}],
        "as": "waiting",
    }
    # A message that was settled and is not deleted yet does not count.
    settled = {
        "from": messages,
        "localField": "acked",
        "foreignField": "_id",
        "pipeline": [{"$limit": 1}, {"$count": "n"}],
        "as": "done",
    }
    rows = yield Aggregate(
        LOCKS,
        [
            {"$match": which},
            {"$sort": {"_id": 1}},
            {"$limit": min(limit, _MOST)},
            {"$lookup": waiting},
            {"$lookup": settled},
        ],
        hint="_id_",
    )
    return [_info(lock, now) for lock in rows]


def peek(group_id: str, limit: int, now: float) -> Op[list[StoredMessage]]:
    """Show the first messages of a group that has a lock."""
    look = Find(LOCKS, {"_id": group_id, **_IS_A_GROUP}, fields=("acked",))
    found = yield look
    if not found:
        yield from take_in(now)  # its first publish may have committed just now
        found = yield look
    if not found:
        return []
    which: dict[str, Any] = {"group_id": group_id}
    if found[0]["acked"] is not None:
        which["_id"] = {"$ne": found[0]["acked"]}
    stored = yield Find(MESSAGES, which, order=(("_id", 1),), limit=min(limit, _MOST), hint="group")
    return [StoredMessage(seq=message["_id"], raw=message["event"]) for message in stored]


def dead_letters(group_id: str | None, limit: int, after: int | None) -> Op[list[DeadLetter]]:
    """List those that show, by seq."""
    which: dict[str, Any] = {"state": "dead"}
    if group_id is not None:
        which["group_id"] = group_id
    if after is not None:
        which["_id"] = {"$gt": after}
    found = yield Find(
        DEAD_LETTERS,
        which,
        order=(("_id", 1),),
        limit=min(limit, _MOST),
        hint="state" if group_id is None else "group",
    )
    return [
        DeadLetter(
            seq=letter["_id"],
            group_id=letter["group_id"],
            raw=letter["event"],
            attempts=letter["attempts"],
            reason=letter["reason"],
            rejected_at=letter["rejected_at"],
            priority=letter["priority"],
        )
        for letter in found
    ]


def _counted(rows: list[Any]) -> int:
    return int(rows[0]["n"]) if rows else 0


def _state(held: bool, ready: bool, leased: bool) -> GroupState:
    if held:
        return "held"
    if ready:
        return "ready"
    return "leased" if leased else "parked"


def _info(lock: Document, now: float) -> GroupInfo:
    number, token = lock["available_at"], lock["token"]
    state = _state(lock["held"], number <= now, token is not None)
    since = lock["held_since"] if state == "held" else lock["since"]
    return GroupInfo(
        group_id=lock["_id"],
        state=state,
        since=max(since, number) if state == "ready" else since,
        until=number if state in ("leased", "parked") else None,
        holder=worker_of(token) if token and state in ("leased", "held") else None,
        attempts=lock["attempts"],
        messages=min(_counted(lock["waiting"]) - _counted(lock["done"]), BACKLOG_COUNTED),
        priority=lock["priority"],
    )
