"""The operations over PostgreSQL, without I/O: what to say, and what the answer means.

Each is one call of a function of the same name, ``sql/functions/harel_*.sql``, and so one round trip.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

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
from harel.engine.queue.postgres.schema import (
    FUNCTIONS,
    SCHEMA_VERSION,
    TABLES,
    advisory_key,
    claim_function,
    function_ddl,
    schema_ddl,
    tables_ddl,
)
from harel.engine.queue.postgres.walk import Walk
from harel.engine.queue.rows import dead_letters, group_infos, queue_stats, stored_messages
from harel.engine.queue.schedule import FRESH, LONGEST_S
from harel.engine.queue.tokens import token_stem
from harel.errors import ConfigError, SchemaMismatch

__all__ = ["Call", "Listening", "PostgresOps", "Script", "Transaction", "schema_ddl"]

OLDEST_SERVER = 140000
"""PostgreSQL 14."""


@dataclass(frozen=True, slots=True)
class Call:
    """A request: run this statement, which is a transaction of its own. The reply is its rows.

    A value is a str, int, float, bool, ``None``, or a list of str or int; in a row it is none of the last two.
    """

    statement: str
    """With ``$1`` and so on in place of the values."""
    values: Sequence[Any] = ()


@dataclass(frozen=True, slots=True)
class Script:
    """A request: run these statements. There is no reply."""

    text: str


@dataclass(frozen=True, slots=True)
class Transaction:
    """A request: run this operation in one transaction. The reply is its result."""

    op: Op[Any]


@dataclass(frozen=True, slots=True)
class Listening:
    """A request: run this operation with a listener, whom a publish wakes from its sleeps. The reply is its result."""

    op: Op[Any]


_SOON_S = 0.01
"""A publish is written and committed within a few milliseconds."""
_LOOK = """
SELECT
    current_setting('server_version_num')::integer,
    current_setting('transaction_isolation'),
    EXISTS (SELECT FROM pg_namespace AS n WHERE n.nspname = $1),
    array_to_string(ARRAY(
        SELECT c.relname FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
        WHERE n.nspname = $1 AND c.relname = ANY ($2::name[])
    ), ','),
    array_to_string(ARRAY(
        SELECT p.proname FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace
        WHERE n.nspname = $1 AND p.proname = ANY ($3::name[])
    ), ',')
"""


class PostgresOps:
    """The operations over PostgreSQL.

    Parameters
    ----------
    queue : str
        What the queue is called in messages, and what leases are checked against.
    schema : str
        The PostgreSQL schema that the tables and functions are in.
    clock : callable, optional
        Returns epoch seconds; ``None`` is the server's clock.
    fresh_first : bool
        Whether groups that were never served go before those that were.
    poll_interval_s : float
        How often a wait looks, in seconds, if nothing wakes it.
    create_schema : bool
        Whether to make what is missing of the schema.
    soft : bool
        Whether a crash of the server may undo a claim, a nack or an extension: then they need not wait for the disk.
        Not for a caller's transaction, all of whose commit would then be soft.
    """

    def __init__(
        self,
        queue: str,
        schema: str,
        *,
        clock: Callable[[], float] | None,
        fresh_first: bool,
        poll_interval_s: float,
        create_schema: bool,
        soft: bool,
    ) -> None:
        self.queue = queue
        self.capabilities = Capabilities(bind=True, max_event_bytes=64 * 2**20, max_visibility_s=LONGEST_S)
        self._schema = schema
        self._clock = clock
        self._ahead = FRESH if fresh_first else 0.0
        self._poll_interval_s = poll_interval_s
        self._create_schema = create_schema
        self._soft = soft
        self._walks = [Walk(time.monotonic) for _ in range(HIGHEST_PRIORITY + 1)]
        self._statements: dict[str, str] = {}

    def prepare(self) -> Op[None]:
        """Check the schema, and make what is missing if it may be made.

        A schema that is there is only read: that needs no rights to make anything, and waits for nobody.
        """
        has_schema, tables, functions = yield from self._missing()
        if has_schema and not tables and not functions:
            return
        if not self._create_schema:
            raise SchemaMismatch(
                f"{self.queue} has no harel schema, or only a part of it, and create_schema is off. Run what "
                f"`harel schema postgres` prints with your migration tool. Missing: {', '.join(tables + functions)}."
            )
        yield Transaction(self._create())

    def _create(self) -> Op[None]:
        yield Call("SELECT pg_advisory_xact_lock($1)", (advisory_key(self._schema, "schema"),))
        has_schema, tables, functions = yield from self._missing()
        parts = [] if has_schema else [f'CREATE SCHEMA "{self._schema}";']
        if tables:
            parts.append(tables_ddl(self._schema))
        parts.extend(function_ddl(self._schema, function) for function in functions)
        if parts:
            yield Script("\n".join(parts))

    def _missing(self) -> Op[tuple[bool, list[str], list[str]]]:
        """Say whether the schema is there, and which of its tables and functions are not."""
        ((server, isolation, has_schema, *found),) = yield Call(_LOOK, (self._schema, list(TABLES), list(FUNCTIONS)))
        tables, functions = (names.split(",") for names in found)
        if server < OLDEST_SERVER:
            raise ConfigError(f"harel needs PostgreSQL 14 or later; {self.queue} is {server // 10_000}.")
        if isolation != "read committed":
            raise ConfigError(
                f"harel needs connections that are READ COMMITTED by default; those to {self.queue} are "
                f"{isolation.upper()}. Set default_transaction_isolation for this role or connection."
            )
        if "transport_schema" in tables:
            ((version,),) = yield Call(f'SELECT max(version) FROM "{self._schema}".transport_schema')  # noqa: S608
            if version != SCHEMA_VERSION:
                raise SchemaMismatch(
                    f"{self.queue} has version {version} of the schema, and this harel works with version "
                    f"{SCHEMA_VERSION}. Use a harel as new as the one that made it."
                )
        return (
            has_schema,
            [table for table in TABLES if table not in tables],
            [function for function in FUNCTIONS if function not in functions],
        )

    def publish(self, messages: Sequence[Packed]) -> Op[None]:
        if len(messages) == 1:
            (message,) = messages
            yield self._call("harel_publish", message.group_id, message.raw, message.priority, self._ahead, self._now())
            return
        yield self._call(
            "harel_publish_many",
            [message.group_id for message in messages],
            [message.raw for message in messages],
            [message.priority for message in messages],
            self._ahead,
            self._now(),
        )

    def claim(self, worker_id: str, visibility: float, limit: int, min_priority: int) -> Op[list[Lease]]:
        walk = self._walks[min_priority]
        began = walk.begin()
        stem = token_stem(worker_id)
        which = (f"{stem}{1:012x}",) if limit == 1 else (stem, limit)
        rows = yield self._call(
            claim_function(min_priority, many=limit > 1),
            *which,
            float(visibility),
            *began,
            self._soft,
            self._now(),
        )
        if rows:
            rows.sort(key=itemgetter(1))
            _, _, _, expires_at, _, _, number, entries = rows[-1]
            walk.ended(began, number, entries - len(rows), expires_at - visibility)
        return [
            Lease(
                group_id=group_id, token=token, attempt=attempt, expires_at=expiry, seq=seq, raw=raw, queue=self.queue
            )
            for group_id, token, attempt, expiry, seq, raw, _, _ in rows
        ]

    def ack(self, leases: Sequence[Lease]) -> Op[list[bool]]:
        if len(leases) == 1:
            (lease,) = leases
            return [(yield from self._value("harel_ack", *_key(lease), self._now()))]
        rows = yield self._call("harel_ack_many", *_keys(leases), self._now())
        left = {token for (token,) in rows}
        answers = []
        for lease in leases:
            answers.append(lease.token in left)
            left.discard(lease.token)
        return answers

    def nack(self, lease: Lease, delay: float) -> Op[bool]:
        return self._value("harel_nack", *_key(lease), float(delay), self._soft, self._now())

    def extend(self, leases: Sequence[Lease], visibility: float) -> Op[list[float | None]]:
        how = (float(visibility), self._soft, self._now())
        if len(leases) == 1:
            (lease,) = leases
            return [(yield from self._value("harel_extend", *_key(lease), *how))]
        rows = yield self._call("harel_extend_many", *_keys(leases), *how)
        ends = dict(rows)
        return [ends.get(lease.token) for lease in leases]

    def reject(self, lease: Lease, reason: str) -> Op[bool]:
        return self._value("harel_reject", *_key(lease), reason, self._now())

    def wait(self, timeout: float) -> Op[bool]:
        if (yield from self._seconds_to_claimable()) <= 0.0:
            return True
        if timeout <= 0.0:
            return False
        ready: bool = yield Listening(self._watch(timeout))
        return ready

    def _watch(self, timeout: float) -> Op[bool]:
        """Look until something can be claimed; soon again while a transaction is open that may not wake who waits."""
        left = timeout
        soon = rests(self._poll_interval_s, _SOON_S)
        unaware = yield from self._value("harel_writers", None)
        while True:
            pause = yield from self._seconds_to_claimable()
            if pause <= 0.0:
                return True
            if left <= 0.0:
                return False
            rest = next(soon) if unaware else self._poll_interval_s
            left -= yield Sleep(min(pause, left, rest))
            if unaware:
                unaware = yield from self._value("harel_writers", unaware)

    def _seconds_to_claimable(self) -> Op[float]:
        seconds = yield from self._value("harel_ready", self._now())
        return float("inf") if seconds is None else float(seconds)

    def stats(self) -> Op[QueueStats]:
        (row,) = yield self._call("harel_stats", self._now())
        return queue_stats(row)

    def groups(self, state: GroupState | None, limit: int, after: str | None) -> Op[list[GroupInfo]]:
        rows = yield self._call("harel_groups", state, limit, after or "", BACKLOG_COUNTED, self._now())
        return group_infos(rows)

    def peek(self, group_id: str, limit: int) -> Op[list[StoredMessage]]:
        rows = yield self._call("harel_peek", group_id, limit)
        return stored_messages(rows)

    def hold(self, group_id: str) -> Op[bool]:
        return self._value("harel_hold", group_id, self._now())

    def release(self, group_id: str) -> Op[bool]:
        return self._value("harel_release", group_id, self._now())

    def purge(self, group_id: str) -> Op[int]:
        return self._value("harel_purge", group_id, self._now())

    def dead_letters(self, group_id: str | None, limit: int, after: int | None) -> Op[list[DeadLetter]]:
        rows = yield self._call("harel_dead_letters", group_id, limit, -1 if after is None else after)
        return dead_letters(rows)

    def redrive(self, seq: int) -> Op[bool]:
        return self._value("harel_redrive", seq, self._ahead, self._now())

    def _call(self, function: str, *values: Any) -> Call:
        statement = self._statements.get(function)
        if statement is None:
            places = ", ".join(f"${number}" for number in range(1, len(values) + 1))
            statement = self._statements[function] = f'SELECT * FROM "{self._schema}".{function}({places})'  # noqa: S608
        return Call(statement, values)

    def _value(self, function: str, *values: Any) -> Op[Any]:
        ((value,),) = yield self._call(function, *values)
        return value

    def _now(self) -> float | None:
        return None if self._clock is None else self._clock()


def _key(lease: Lease) -> tuple[str, int, int, str]:
    """Say what finds a lease's group, and proves that the lease is current."""
    return lease.group_id, lease.seq, lease.attempt, lease.token


def _keys(leases: Sequence[Lease]) -> tuple[list[str], list[int], list[int], list[str]]:
    """Say so for many leases, for each but once."""
    each = {lease.token: lease for lease in leases}.values()
    return (
        [lease.group_id for lease in each],
        [lease.seq for lease in each],
        [lease.attempt for lease in each],
        [lease.token for lease in each],
    )
