"""From the rows that the SQL backends answer, whose columns come in the same order, to what a caller gets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from harel.engine.queue.contract import DeadLetter, GroupInfo, QueueStats, StoredMessage
from harel.engine.queue.tokens import worker_of

__all__ = ["dead_letters", "group_infos", "queue_stats", "stored_messages"]

_DEAD_LETTER = ("seq", "group_id", "raw", "attempts", "priority", "reason", "rejected_at")


def queue_stats(row: Sequence[Any]) -> QueueStats:
    """Take the fields in their order."""
    return QueueStats(**dict(zip(QueueStats.__struct_fields__, row, strict=True)))


def group_infos(rows: Iterable[Sequence[Any]]) -> list[GroupInfo]:
    """Take the fields in their order, with the token in place of the holder."""
    return [
        GroupInfo(
            group_id=group_id,
            state=state,
            since=since,
            until=until,
            holder=worker_of(token) if token else None,
            attempts=attempts,
            messages=messages,
            priority=priority,
        )
        for group_id, state, since, until, token, attempts, messages, priority in rows
    ]


def stored_messages(rows: Iterable[Sequence[Any]]) -> list[StoredMessage]:
    """Take ``seq`` and the stored text."""
    return [StoredMessage(seq=seq, raw=raw) for seq, raw in rows]


def dead_letters(rows: Iterable[Sequence[Any]]) -> list[DeadLetter]:
    """Take the columns of the table in their order."""
    return [DeadLetter(**dict(zip(_DEAD_LETTER, row, strict=True))) for row in rows]
