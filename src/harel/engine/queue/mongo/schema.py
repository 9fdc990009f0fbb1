"""The collections, their indexes, and the version of their layout.

``{prefix}_messages``
    ``_id`` (the seq), ``group_id``, ``event``; ``redrive_of`` while it is not settled which of two redrives of one dead
    letter made the new message; ``fence``, the token that parked it in a caller's transaction.
``{prefix}_locks``
    A document a group: ``_id`` (its name), ``held``, ``available_at``, ``arrival`` (the seq that made it; this tells it
    from another of the same name, and equal numbers apart), ``token``, ``priority``, ``attempts``, ``version`` (how
    many messages were published), ``settled`` (how many were settled), ``acked`` (the seq that was settled last),
    ``rejected`` (how, if it was rejected), ``since``, ``held_since``; ``bound`` and ``bound_seq`` (the token and the
    seq that a caller's transaction settles, or did), ``tickets`` (those that counted in ``version`` last), ``owed`` (of
    a group that is gone, how many counts are still to come: see ``counting.py``). And tickets, whose ``_id`` is no
    name but a document: see ``tickets.py``.
``{prefix}_counters``
    ``seq``: ``n``, the last seq. ``schema``: ``version``.
``{prefix}_dead_letters``
    ``_id`` (the seq), ``group_id``, ``event``, ``attempts``, ``priority``, ``reason``, ``rejected_at``; ``state``:
    ``pending`` (a rejection has begun, by the leases with these ``tokens``), ``dead`` (it shows), or ``gone`` (it
    became the message ``into``).
"""

from __future__ import annotations

import json
from contextlib import suppress
from itertools import groupby
from operator import attrgetter
from typing import Any

from harel.engine.queue.assets import check_identifier
from harel.engine.queue.contract import HIGHEST_PRIORITY
from harel.engine.queue.mongo.requests import CreateIndexes, Duplicate, Find, Index, ListIndexes, UpdateOne
from harel.engine.queue.op import Op
from harel.errors import SchemaMismatch

__all__ = [
    "COUNTERS",
    "DEAD_LETTERS",
    "DEFAULT_PREFIX",
    "INDEXES",
    "LOCKS",
    "MESSAGES",
    "SCHEMA_VERSION",
    "claimable_index",
    "prepare_schema",
    "schema_ddl",
]

SCHEMA_VERSION = 1
DEFAULT_PREFIX = "transport"

MESSAGES = "messages"
LOCKS = "locks"
COUNTERS = "counters"
DEAD_LETTERS = "dead_letters"


def claimable_index(floor: int) -> str:
    """Name the index that claims with this floor walk."""
    return f"claimable_{floor}"


INDEXES = (
    Index(MESSAGES, "group", ("group_id", "_id")),
    *(
        Index(
            LOCKS,
            claimable_index(floor),
            ("held", "available_at", "arrival"),
            {"priority": {"$gte": floor}} if floor else None,
        )
        for floor in range(HIGHEST_PRIORITY + 1)
    ),
    Index(DEAD_LETTERS, "state", ("state", "_id")),
    Index(DEAD_LETTERS, "group", ("group_id", "state", "_id")),
)
"""Held groups are no part of what a claim walks, nor are groups below its floor: an index a floor."""


def prepare_schema(queue: str, *, create: bool) -> Op[None]:
    """Check the layout's version and its indexes, and make what is missing if it may be made.

    What is there is only read: that needs no right to make anything.
    """
    marks = yield Find(COUNTERS, {"_id": "schema"})
    if marks and marks[0]["version"] != SCHEMA_VERSION:
        raise SchemaMismatch(
            f"{queue} has version {marks[0]['version']} of the layout, and this harel works with version "
            f"{SCHEMA_VERSION}. Use a harel as new as the one that made it."
        )
    missing = []
    for collection, indexes in groupby(INDEXES, key=attrgetter("collection")):
        found = yield ListIndexes(collection)
        missing += [index for index in indexes if index.name not in found]
    if marks and not missing:
        return
    if not create:
        lacks = ", ".join([f"{index.collection}.{index.name}" for index in missing]) or "the version document"
        raise SchemaMismatch(
            f"{queue} has no harel layout, or only a part of it, and create_schema is off. Run what "
            f"`harel schema mongo` prints. Missing: {lacks}."
        )
    for collection, indexes in groupby(missing, key=attrgetter("collection")):
        yield CreateIndexes(collection, tuple(indexes))
    # Last, so that who finds it finds all.
    with suppress(Duplicate):
        yield UpdateOne(COUNTERS, {"_id": "schema"}, {"$setOnInsert": {"version": SCHEMA_VERSION}}, upsert=True)


def schema_ddl(prefix: str = DEFAULT_PREFIX) -> str:
    """Return the layout as statements for ``mongosh``, to be run in the queue's database."""
    check_identifier("prefix", prefix)
    lines = []
    for index in INDEXES:
        options: dict[str, Any] = {"name": index.name}
        if index.only is not None:
            options["partialFilterExpression"] = index.only
        keys = json.dumps(dict.fromkeys(index.keys, 1))
        lines.append(f"db.{prefix}_{index.collection}.createIndex({keys}, {json.dumps(options)});")
    lines.append(
        f'db.{prefix}_{COUNTERS}.updateOne({{"_id": "schema"}}, '
        f'{{"$setOnInsert": {{"version": {SCHEMA_VERSION}}}}}, {{"upsert": true}});'
    )
    return "\n".join(lines) + "\n"
