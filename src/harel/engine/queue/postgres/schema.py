"""The schema: its tables and functions as DDL, and what of it has to be there.

A function that was shipped is never edited: a new version of it gets a new name, so that old and new workers run
side by side on one database. The number in ``transport_schema`` changes only with the tables.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from importlib.resources import files

from harel.engine.queue.assets import check_identifier
from harel.engine.queue.contract import HIGHEST_PRIORITY
from harel.engine.queue.schedule import FRESH, HELD, HELD_FROM

__all__ = ["FUNCTIONS", "SCHEMA_VERSION", "TABLES", "advisory_key", "channel", "claim_function", "schema_ddl"]

SCHEMA_VERSION = 1

TABLES = ("transport_messages", "transport_names", "transport_groups", "transport_dead_letters", "transport_schema")

_FLOORS = range(HIGHEST_PRIORITY + 1)
_FILES = (
    "harel_wake",
    "harel_claimable",
    "harel_publish",
    "harel_publish_many",
    "harel_drop",
    "harel_claim",
    "harel_claim_many",
    "harel_ack",
    "harel_ack_many",
    "harel_nack",
    "harel_extend",
    "harel_extend_many",
    "harel_reject",
    "harel_hold",
    "harel_release",
    "harel_purge",
    "harel_redrive",
    "harel_ready",
    "harel_writers",
    "harel_peek",
    "harel_groups",
    "harel_stats",
    "harel_dead_letters",
)
_PLACE = re.compile(r"\{([a-z_]+)\}")

_PLANS = """
    SET plan_cache_mode = force_generic_plan SET jit = off
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off"""
"""Every operation walks an index. A plan that was cached when the tables were small, or from statistics that are
stale or missing, must not say otherwise."""

_LEASE = "g.group_id = p_group AND g.head = p_seq AND g.attempts = p_attempt AND g.locked_by = p_token"
"""A lease is current. Its group's row has its message and its attempt as long as it has its token."""

_FREED = """locked_by = NULL,
            lock_expiry = CASE WHEN g.lock_expiry >= {held_from} THEN g.lock_expiry ELSE v_now END,
            attempts = 0,
            since = CASE WHEN g.lock_expiry >= {held_from} THEN g.since ELSE v_now END,
            dead = g.dead + 1"""
"""What settling a message sets in the row of a group that stays: the back of the line, unless it is held."""

DEAD_WORTH_A_LOOK = 32
"""After so many messages of a group went, a claim finds out up to where no message is left."""


def claim_function(floor: int, many: bool = False) -> str:
    """Name the function that claims at or above a priority."""
    return f"harel_claim{'_many' if many else ''}{f'_floor_{floor}' if floor else ''}"


FUNCTIONS = (*_FILES, *(claim_function(floor, many) for floor in _FLOORS if floor for many in (False, True)))


def advisory_key(schema: str, use: str) -> int:
    """Return the key of an advisory lock: of all the database's applications, this schema's alone.

    Parameters
    ----------
    schema : str
    use : str
        What the lock is for.
    """
    return int.from_bytes(hashlib.sha256(f"harel {use} {schema}".encode()).digest()[:8], "big", signed=True)


def channel(schema: str) -> str:
    """Name the channel on which waiters are woken."""
    return f"harel_{schema}"


def schema_ddl(schema: str = "public") -> str:
    """Return the statements that make the schema, for a migration tool.

    Parameters
    ----------
    schema : str
        The PostgreSQL schema that the tables and functions are in.
    """
    parts = [] if schema == "public" else [f'CREATE SCHEMA IF NOT EXISTS "{check_identifier("schema", schema)}";\n']
    return "\n".join([*parts, tables_ddl(schema), *(function_ddl(schema, name) for name in FUNCTIONS)])


def tables_ddl(schema: str) -> str:
    """Return the statements that make the tables."""
    return _fill("schema/tables.sql", _words(schema))


def function_ddl(schema: str, function: str) -> str:
    """Return the statement that makes one function."""
    words = _words(schema)
    file, _, floor = function.partition("_floor_")
    words["claim"] = function
    words["claimable"] = f"transport_groups_claimable_{floor}" if floor else "transport_groups_claimable"
    words["floor"] = f"AND g.priority >= {floor}" if floor else ""
    return _fill(f"functions/{file}.sql", words)


def _fill(file: str, words: Mapping[str, str]) -> str:
    text = files("harel.engine.queue.postgres").joinpath(f"sql/{file}").read_text(encoding="utf-8")
    return _filled(text, words)


def _filled(text: str, words: Mapping[str, str]) -> str:
    return _PLACE.sub(lambda place: words[place[1]], text)


def _words(schema: str) -> dict[str, str]:
    waiters = advisory_key(schema, "waiters")
    words = {
        "schema": check_identifier("schema", schema),
        "plans": _PLANS.strip(),
        "now": "coalesce(p_now, date_part('epoch', clock_timestamp()))",
        "fresh": repr(FRESH),
        "held": repr(HELD),
        "held_from": repr(HELD_FROM),
        "lease": _LEASE,
        "dead_worth_a_look": str(DEAD_WORTH_A_LOOK),
        "own_transaction": "p_soft AND current_setting('transaction_isolation') = 'read committed'",
        "version": str(SCHEMA_VERSION),
        "next": f"nextval('\"{schema}\".transport_messages_seq_seq'::regclass)",
        "somebody_waits": f"NOT (pg_try_advisory_lock({waiters}) AND pg_advisory_unlock({waiters}))",
        "channel": channel(schema),
    }
    return {**words, "freed": _filled(_FREED, words)}
