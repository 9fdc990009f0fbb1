"""The operations on rqlite, without I/O: the statements of SQLite, sent so that each takes effect once.

A write is one request: it sets the clock, writes down under a new id what it will do or has found, does it, and reads
the answer. Sent again, it breaks on the id, and the answer is read from what was written down.

No statement uses RETURNING: rqlite returns rows of it only where its own parser understands the whole statement, and
goes on with a transaction in which such a statement failed.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from operator import itemgetter
from typing import Any, TypeAlias

import msgspec

from harel.engine.queue.assets import load_sql
from harel.engine.queue.contract import (
    HIGHEST_PRIORITY,
    Capabilities,
    DeadLetter,
    GroupInfo,
    GroupState,
    Lease,
    Packed,
    QueueStats,
)
from harel.engine.queue.op import Op
from harel.engine.queue.rqlite.cluster import Change
from harel.engine.queue.schedule import LONGEST_S
from harel.engine.queue.sqlite.ops import (
    Read,
    SqliteOps,
    Values,
    claimable_index,
    key_of,
    settled_once,
    words_of,
)
from harel.engine.queue.tokens import token_stem
from harel.errors import SchemaMismatch

__all__ = ["STEP_S", "RqliteOps", "schema_ddl"]

STEP_S = 0.0875
"""Seconds by which a time may come early: rqlite tells it in steps of 86.4 ms, and SQLite rounds to milliseconds. What
has to last so long at least gets as much more."""

_PACKAGE = "harel.engine.queue.rqlite.sql"
_SQLITE = "harel.engine.queue.sqlite.sql"
_FILES = ("ack", "answer", "claimed", "current", "forget", "hold", "publish", "purge", "redrive", "release", "there")
_EFFECTS = ("ack", "extend", "hold", "nack", "publish", "purge", "redrive", "reject", "release")
_RETURNING = re.compile(r"\sRETURNING\s.*\Z", re.DOTALL)

Statements: TypeAlias = tuple[str, ...]
Step: TypeAlias = tuple[str, Values]
Steps: TypeAlias = tuple[Step, ...]


class RqliteOps(SqliteOps):
    """The operations on rqlite.

    Parameters
    ----------
    queue : str
        What the queue is called in messages, and what leases are checked against.
    prefix : str
        What the names of tables begin with.
    clock_given : bool
        Whether whoever sends binds the time, ``:now``, to a clock of the caller's; else it is the leader's.
    fresh_first : bool
        Whether groups that were never served go before those that were.
    poll_interval_s : float
        How often a wait looks, in seconds.
    keep_s : float
        For how many seconds a request may be sent again.
    create_schema : bool
        Whether to make the tables if they are missing.
    """

    def __init__(
        self,
        queue: str,
        prefix: str,
        *,
        clock_given: bool,
        fresh_first: bool,
        poll_interval_s: float,
        keep_s: float,
        create_schema: bool,
    ) -> None:
        words = _words(prefix)
        (now,) = load_sql(_PACKAGE, "now", words)
        super().__init__(
            queue,
            prefix,
            fresh_first=fresh_first,
            poll_interval_s=poll_interval_s,
            create_schema=create_schema,
            now=":now" if clock_given else now,
        )
        self.capabilities = Capabilities(max_event_bytes=8 * 2**20, max_visibility_s=LONGEST_S)
        self._prefix = prefix
        self._keep_s = keep_s
        self._step_s = 0.0 if clock_given else STEP_S
        self._set_clock = load_sql(_PACKAGE, "clock_given" if clock_given else "clock", words)
        self._own = {name: load_sql(_PACKAGE, name, words) for name in _FILES}
        self._effects = {name: _silent(load_sql(_SQLITE, name, words)) for name in _EFFECTS}
        self._claims = [
            load_sql(_PACKAGE, "claim", {**words, "floor": str(floor), "claimable": claimable_index(prefix, floor)})
            for floor in range(HIGHEST_PRIORITY + 1)
        ]

    def prepare(self) -> Op[None]:
        """Check the schema, and make it if it is missing and may be made."""
        (there,) = self._own["there"]
        if not (yield Read(there, {})):
            if not self._create_schema:
                raise SchemaMismatch(
                    f"{self.queue} has no harel schema, and create_schema is off. "
                    "Run what `harel schema rqlite` prints with your migration tool."
                )
            yield Change(_each(_schema(self._prefix), {}))
        yield from super().prepare()

    def publish(self, messages: Sequence[Packed]) -> Op[None]:
        batch = [(message.group_id, message.raw, message.priority) for message in messages]
        values = {"messages": _json(batch), "ahead": self._ahead}
        yield self._change(_each(self._own["publish"] + self._effects["publish"], values))

    def claim(self, worker_id: str, visibility: float, limit: int, min_priority: int) -> Op[list[Lease]]:
        values = {"stem": token_stem(worker_id), "visibility": visibility + self._step_s, "limit": limit}
        rows = yield self._change(_each(self._claims[min_priority], values), (self._own["claimed"][0], values))
        rows.sort(key=itemgetter(1))
        return [
            Lease(
                group_id=group_id,
                token=token,
                attempt=attempts,
                expires_at=float(expiry),
                seq=seq,
                raw=raw,
                queue=self.queue,
            )
            for group_id, token, attempts, expiry, seq, raw in rows
        ]

    def ack(self, leases: Sequence[Lease]) -> Op[list[bool]]:
        places, _ = yield from self._settled(leases, self._acked(leases))
        return settled_once(leases, set(places))

    def nack(self, lease: Lease, delay: float) -> Op[bool]:
        wait_s = delay + self._step_s if delay > 0.0 else 0.0
        values = {**key_of(lease), "delay": wait_s}
        places, _ = yield from self._settled((lease,), _each(self._effects["nack"], values))
        return bool(places)

    def extend(self, leases: Sequence[Lease], visibility: float) -> Op[list[float | None]]:
        lasts_s = visibility + self._step_s
        values = {"leases": _pairs(leases), "visibility": lasts_s}
        places, at = yield from self._settled(leases, _each(self._effects["extend"], values))
        return [at + lasts_s if place in places else None for place in range(len(leases))]

    def reject(self, lease: Lease, reason: str) -> Op[bool]:
        values = {**key_of(lease), "reason": reason}
        steps = _each(self._effects["reject"], values) + self._acked((lease,))
        places, _ = yield from self._settled((lease,), steps)
        return bool(places)

    def stats(self) -> Op[QueueStats]:
        stats = yield from super().stats()
        return msgspec.structs.replace(stats, oldest_ready_s=float(stats.oldest_ready_s))

    def groups(self, state: GroupState | None, limit: int, after: str | None) -> Op[list[GroupInfo]]:
        infos = yield from super().groups(state, limit, after)
        return [
            msgspec.structs.replace(
                info, since=float(info.since), until=None if info.until is None else float(info.until)
            )
            for info in infos
        ]

    def hold(self, group_id: str) -> Op[bool]:
        steps = _each(self._own["hold"] + self._effects["hold"], {"group_id": group_id})
        return bool((yield from self._found(steps)))

    def release(self, group_id: str) -> Op[bool]:
        steps = _each(self._own["release"] + self._effects["release"], {"group_id": group_id})
        return bool((yield from self._found(steps)))

    def purge(self, group_id: str) -> Op[int]:
        delete, _, *tidy = self._effects["purge"]
        count: int = yield from self._found(_each((delete, *self._own["purge"], *tidy), {"group_id": group_id}))
        return count

    def dead_letters(self, group_id: str | None, limit: int, after: int | None) -> Op[list[DeadLetter]]:
        letters = yield from super().dead_letters(group_id, limit, after)
        for letter in letters:
            letter.rejected_at = float(letter.rejected_at)
        return letters

    def redrive(self, seq: int) -> Op[bool]:
        steps = _each(self._own["redrive"] + self._effects["redrive"], {"seq": seq, "ahead": self._ahead})
        return bool((yield from self._found(steps)))

    def _acked(self, leases: Sequence[Lease]) -> Steps:
        """Delete heads one by one: only a single number is sure to be looked up, whatever the statistics say."""
        delete, *_ = self._effects["ack"]
        deletes = tuple((delete, key_of(lease)) for lease in leases)
        return deletes + _each(self._own["ack"], {"leases": _pairs(leases)})

    def _settled(self, leases: Sequence[Lease], effects: Steps) -> Op[tuple[list[int], float]]:
        """Do something with those of the leases that are current; return their places, and when it was."""
        ((places, at),) = yield self._change(_each(self._own["current"], {"leases": _pairs(leases)}) + effects)
        return msgspec.json.decode(places, type=list[int]), float(at)

    def _found(self, steps: Steps) -> Op[Any]:
        ((answer, _),) = yield self._change(steps)
        return msgspec.json.decode(answer)

    def _change(self, steps: Steps, answer: Step | None = None) -> Change:
        """Make a request under a new id."""
        request = {"request": uuid.uuid4().hex, "keep": self._keep_s}
        around = _each(self._set_clock, {}), _each(self._own["forget"], {})
        statement, values = answer or (self._own["answer"][0], {})
        return Change(
            tuple((text, {**own, **request}) for text, own in around[0] + steps + around[1]),
            (statement, {**values, **request}),
            f"{self._prefix}_requests",
        )


def schema_ddl(prefix: str = "transport") -> str:
    """Return the statements that make the schema, for a migration tool."""
    return "".join(f"{statement};\n\n" for statement in _schema(prefix))


def _schema(prefix: str) -> Statements:
    words = _words(prefix)
    return load_sql(_PACKAGE, "schema", words) + load_sql(_SQLITE, "schema", words)


def _words(prefix: str) -> dict[str, str]:
    now = f"(SELECT now_s FROM {prefix}_clock WHERE id = 1)"  # noqa: S608 - words_of checks the prefix
    return words_of(prefix, now)


def _silent(statements: Statements) -> Statements:
    return tuple(_RETURNING.sub("", statement) for statement in statements)


def _each(statements: Statements, values: Values) -> Steps:
    return tuple((statement, values) for statement in statements)


def _pairs(leases: Sequence[Lease]) -> str:
    return _json([(lease.group_id, lease.token) for lease in leases])


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
