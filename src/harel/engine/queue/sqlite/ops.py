"""The operations in SQLite's dialect, without I/O: what to say, and what the answer means.

Each is one transaction whose statements need no answer from one another, so it can be sent whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, TypeAlias, TypeVar

import msgspec

from harel.engine.queue.assets import check_identifier, load_sql
from harel.engine.queue.contract import (
    BACKLOG_COUNTED,
    HIGHEST_PRIORITY,
    Capabilities,
    DeadLetter,
    GroupInfo,
    GroupState,
    Lease,
    Packed,
    QueueStats,
    StoredMessage,
)
from harel.engine.queue.op import Op, Sleep, rests
from harel.engine.queue.rows import dead_letters, group_infos, queue_stats, stored_messages
from harel.engine.queue.schedule import FRESH, HELD, HELD_FROM, LONGEST_S
from harel.engine.queue.tokens import token_stem
from harel.errors import SchemaMismatch

__all__ = [
    "SCHEMA_VERSION",
    "Read",
    "SqliteOps",
    "Write",
    "claimable_index",
    "key_of",
    "schema_ddl",
    "settled_once",
    "words_of",
]

T = TypeVar("T")

SCHEMA_VERSION = 1

_PACKAGE = "harel.engine.queue.sqlite.sql"
_FILES = (
    "ack",
    "current",
    "dead_letters",
    "dead_letters_of_group",
    "extend",
    "groups",
    "hold",
    "lock",
    "nack",
    "peek",
    "publish",
    "purge",
    "ready",
    "redrive",
    "reject",
    "release",
    "schema",
    "schema_version",
    "stats",
)


Values: TypeAlias = Mapping[str, Any]
"""What a statement's ``:names`` stand for."""


@dataclass(frozen=True, slots=True)
class Write:
    """A request: run these statements as one transaction that takes the write lock first.

    The reply is a list of rows for each statement. The driver adds ``:now`` to the values, read when
    the lock is had: a clock read earlier would be as old as the wait for the lock.
    """

    steps: tuple[tuple[str, Values | list[Values]], ...]
    """A statement with its values; with several sets of them it runs for each and answers no rows."""
    durable: bool = True
    """Whether a power cut after the reply may not undo it."""


@dataclass(frozen=True, slots=True)
class Read:
    """A request: run this statement, which changes nothing. The reply is its rows."""

    statement: str
    values: Values


class SqliteOps:
    """The operations over SQLite's dialect.

    Parameters
    ----------
    queue : str
        What the queue is called in messages, and what leases are checked against.
    prefix : str
        What the names of tables begin with.
    fresh_first : bool
        Whether groups that were never served go before those that were.
    poll_interval_s : float
        How often a wait looks, in seconds.
    create_schema : bool
        Whether to make the tables if they are missing.
    now : str
        The expression for the server's clock, epoch seconds.
    """

    def __init__(
        self,
        queue: str,
        prefix: str,
        *,
        fresh_first: bool,
        poll_interval_s: float,
        create_schema: bool,
        now: str = ":now",
    ) -> None:
        self.queue = queue
        self.capabilities: Capabilities = Capabilities(
            remote=False, bind=True, max_event_bytes=64 * 2**20, max_visibility_s=LONGEST_S
        )
        self._ahead = FRESH if fresh_first else 0.0
        self._poll_interval_s = poll_interval_s
        self._create_schema = create_schema
        words = words_of(prefix, now)
        self._sql = {name: load_sql(_PACKAGE, name, words) for name in _FILES}
        self._claims = [
            load_sql(_PACKAGE, "claim", {**words, "floor": str(floor), "claimable": claimable_index(prefix, floor)})
            for floor in range(HIGHEST_PRIORITY + 1)
        ]

    def prepare(self) -> Op[None]:
        """Check the schema, and make it if it is missing and may be made.

        Reads come first: a schema that is there is opened without waiting for anyone's transaction.
        """
        there, version = self._sql["schema_version"]
        if not (yield Read(there, {})):
            if not self._create_schema:
                raise SchemaMismatch(
                    f"{self.queue} has no harel schema, and create_schema is off. "
                    "Run what `harel schema sqlite` prints with your migration tool."
                )
            yield Write(_each(self._sql["schema"], {}))
        ((found,),) = yield Read(version, {})
        if found != SCHEMA_VERSION:
            raise SchemaMismatch(
                f"{self.queue} has version {found} of the schema, and this harel works with version {SCHEMA_VERSION}. "
                "Use a harel as new as the one that made it."
            )

    def publish(self, messages: Sequence[Packed]) -> Op[None]:
        batch = [(message.group_id, message.raw, message.priority) for message in messages]
        yield Write(_each(self._sql["publish"], {"messages": _json(batch), "ahead": self._ahead}))

    def claim(self, worker_id: str, visibility: float, limit: int, min_priority: int) -> Op[list[Lease]]:
        values = {"stem": token_stem(worker_id), "visibility": visibility, "limit": limit}
        # If a power cut undoes a claim, the group is simply claimable again.
        (rows,) = yield Write(_each(self._claims[min_priority], values), durable=False)
        if len(rows) > 1:
            rows.sort(key=itemgetter(1))
        return [
            Lease(
                group_id=group_id, token=token, attempt=attempts, expires_at=expiry, seq=seq, raw=raw, queue=self.queue
            )
            for group_id, token, attempts, expiry, seq, raw in rows
        ]

    def ack(self, leases: Sequence[Lease]) -> Op[list[bool]]:
        keys: list[Values] = [key_of(lease) for lease in leases]
        settled, *_ = yield Write((self._current(leases), *_each(self._sql["ack"], keys)))
        return settled_once(leases, {place for (place,) in settled})

    def nack(self, lease: Lease, delay: float) -> Op[bool]:
        (rows,) = yield Write(_each(self._sql["nack"], {**key_of(lease), "delay": delay}), durable=False)
        return bool(rows)

    def extend(self, leases: Sequence[Lease], visibility: float) -> Op[list[float | None]]:
        values = {"leases": _pairs(leases), "visibility": visibility}
        (rows,) = yield Write(_each(self._sql["extend"], values), durable=False)
        ends: dict[str, float] = dict(rows)
        return [ends.get(lease.token) for lease in leases]

    def reject(self, lease: Lease, reason: str) -> Op[bool]:
        statements = self._sql["reject"] + self._sql["ack"]
        rejected, *_ = yield Write(_each(statements, {**key_of(lease), "reason": reason}))
        return bool(rejected)

    def wait(self, timeout: float) -> Op[bool]:
        (look,) = self._sql["ready"]
        left = timeout
        for rest in rests(self._poll_interval_s):
            if (yield Read(look, {})):
                return True
            if left <= 0.0:
                break
            left -= yield Sleep(min(left, rest))
        return False

    def stats(self) -> Op[QueueStats]:
        (row,) = yield Read(self._sql["stats"][0], {})
        return queue_stats(row)

    def groups(self, state: GroupState | None, limit: int, after: str | None) -> Op[list[GroupInfo]]:
        rows = yield Read(
            self._sql["groups"][0],
            {"state": state, "limit": limit, "after": after or "", "counted": BACKLOG_COUNTED},
        )
        return group_infos(rows)

    def peek(self, group_id: str, limit: int) -> Op[list[StoredMessage]]:
        rows = yield Read(self._sql["peek"][0], {"group_id": group_id, "limit": limit})
        return stored_messages(rows)

    def hold(self, group_id: str) -> Op[bool]:
        (rows,) = yield Write(_each(self._sql["hold"], {"group_id": group_id}))
        return bool(rows)

    def release(self, group_id: str) -> Op[bool]:
        rows, _ = yield Write(_each(self._sql["release"], {"group_id": group_id}))
        return bool(rows)

    def purge(self, group_id: str) -> Op[int]:
        _, ((count,),), *_ = yield Write(_each(self._sql["purge"], {"group_id": group_id}))
        return int(count)

    def dead_letters(self, group_id: str | None, limit: int, after: int | None) -> Op[list[DeadLetter]]:
        (statement,) = self._sql["dead_letters" if group_id is None else "dead_letters_of_group"]
        rows = yield Read(
            statement,
            {
                "group_id": group_id,
                "limit": limit,
                "after": -1 if after is None else after,
            },
        )
        return dead_letters(rows)

    def redrive(self, seq: int) -> Op[bool]:
        *_, rows = yield Write(_each(self._sql["redrive"], {"seq": seq, "ahead": self._ahead}))
        return bool(rows)

    @property
    def lock(self) -> str:
        """The statement that takes the write lock and changes nothing."""
        (statement,) = self._sql["lock"]
        return statement

    def _current(self, leases: Sequence[Lease]) -> tuple[str, Values]:
        (statement,) = self._sql["current"]
        return statement, {"leases": _pairs(leases)}


def schema_ddl(prefix: str = "transport") -> str:
    """Return the statements that make the schema, for a migration tool."""
    statements = load_sql(_PACKAGE, "schema", words_of(prefix, ":now"))
    return "".join(f"{statement};\n\n" for statement in statements)


def words_of(prefix: str, now: str) -> dict[str, str]:
    """Return what takes the places in the statements: names with this prefix, and ``now``, the time's expression."""
    return {
        "prefix": check_identifier("prefix", prefix),
        "now": now,
        "fresh": repr(FRESH),
        "held": repr(HELD),
        "held_from": repr(HELD_FROM),
        "version": str(SCHEMA_VERSION),
    }


def claimable_index(prefix: str, floor: int) -> str:
    """Return the name of the index that a claim with this floor walks."""
    return f"{prefix}_groups_claimable_{floor}" if floor else f"{prefix}_groups_claimable"


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _pairs(leases: Sequence[Lease]) -> str:
    return _json([(lease.group_id, lease.token) for lease in leases])


def _each(statements: Sequence[str], values: Values | list[Values]) -> tuple[tuple[str, Any], ...]:
    return tuple((statement, values) for statement in statements)


def key_of(lease: Lease) -> dict[str, Any]:
    """Return what a statement needs to know of a lease."""
    return {"group_id": lease.group_id, "seq": lease.seq, "token": lease.token}


def settled_once(leases: Sequence[Lease], places: set[int]) -> list[bool]:
    """Say which leases were settled: those at these places, but one that is given twice only once."""
    settled: set[str] = set()
    answers = []
    for place, lease in enumerate(leases):
        answers.append(place in places and lease.token not in settled)
        settled.add(lease.token)
    return answers
