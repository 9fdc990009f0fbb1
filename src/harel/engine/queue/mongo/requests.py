"""What an operation may ask of MongoDB: each request is one command, and a command changes its documents one by one.

Collections go by what they hold, ``"messages"`` and so on; the driver puts the prefix in front. Filters and updates
are MongoDB's own documents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

__all__ = [
    "Abort",
    "Aggregate",
    "BeginAnew",
    "CreateIndexes",
    "DeleteEach",
    "DeleteMany",
    "DeleteOne",
    "Document",
    "Duplicate",
    "Find",
    "FindAndUpdate",
    "Hello",
    "Index",
    "InsertEach",
    "ListIndexes",
    "Probe",
    "ServerHello",
    "UpdateEach",
    "UpdateOne",
    "Within",
]

Document: TypeAlias = Mapping[str, Any]


class Duplicate(Exception):
    """A document with this ``_id`` exists. What a driver raises into the operation for a duplicate key.

    Parameters
    ----------
    places : sequence of int
        Which of the request's documents or updates were refused, from 0.
    """

    def __init__(self, places: Sequence[int] = (0,)) -> None:
        super().__init__(f"a document with this _id exists: {places}")
        self.places = tuple(places)


class Find(msgspec.Struct, frozen=True):
    """The reply: the documents, as a list."""

    collection: str
    filter: Document
    order: Sequence[tuple[str, int]] | None = None
    limit: int = 0
    fields: Sequence[str] | None = None
    hint: str | None = None


class FindAndUpdate(msgspec.Struct, frozen=True):
    """Change the first that matches. The reply: the document as it is afterwards, or ``None``."""

    collection: str
    filter: Document
    update: Document
    order: Sequence[tuple[str, int]] | None = None
    hint: str | None = None
    upsert: bool = False


class UpdateOne(msgspec.Struct, frozen=True):
    """Change one. The reply: whether there was one, or one was made."""

    collection: str
    filter: Document
    update: Document
    upsert: bool = False


class UpdateEach(msgspec.Struct, frozen=True):
    """Change one for each pair of filter and update, in their order. No reply."""

    collection: str
    updates: Sequence[tuple[Document, Document]]
    upsert: bool = False


class InsertEach(msgspec.Struct, frozen=True):
    """Insert documents in their order, up to the first that is refused. No reply."""

    collection: str
    documents: Sequence[Document]


class DeleteOne(msgspec.Struct, frozen=True):
    """The reply: whether there was one."""

    collection: str
    filter: Document


class DeleteEach(msgspec.Struct, frozen=True):
    """Delete one for each filter. The reply: how many there were."""

    collection: str
    filters: Sequence[Document]


class DeleteMany(msgspec.Struct, frozen=True):
    """Delete all that match. The reply: how many. The driver does not send it again when its answer is lost."""

    collection: str
    filter: Document


class Aggregate(msgspec.Struct, frozen=True):
    """The reply: the documents, as a list."""

    collection: str
    pipeline: Sequence[Document]
    hint: str | None = None


class Index(msgspec.Struct, frozen=True):
    """An index that the queue needs."""

    collection: str
    name: str
    keys: Sequence[str]
    """All ascending."""
    only: Document | None = None
    """The filter of a partial index."""


class ListIndexes(msgspec.Struct, frozen=True):
    """The reply: the names of a collection's indexes, none when there is no such collection."""

    collection: str


class CreateIndexes(msgspec.Struct, frozen=True):
    """Make a collection's indexes. No reply."""

    collection: str
    indexes: Sequence[Index]


class ServerHello(msgspec.Struct, frozen=True):
    """What the server says of itself.

    Attributes
    ----------
    time_s : float
        Its clock, epoch seconds, cut down to a thousandth.
    asked_at_s, answered_at_s : float
        When it was asked and when it had answered, by the client's steady clock.
    wire_version : int
        The newest protocol that it speaks: 13 is MongoDB 5.0.
    has_transactions : bool
        Whether it is a member of a replica set, or stands before a sharded cluster.
    """

    time_s: float
    asked_at_s: float
    answered_at_s: float
    wire_version: int
    has_transactions: bool = True


class Hello(msgspec.Struct, frozen=True):
    """Ask the primary who it is and what time it has. The reply is a :class:`ServerHello`."""


class Within(msgspec.Struct, frozen=True):
    """Do this in the caller's transaction, as a part of it. The reply is that of the request."""

    request: Any


class Abort(msgspec.Struct, frozen=True):
    """Have the server abort the caller's transaction, so that it cannot commit. No reply."""


class BeginAnew(msgspec.Struct, frozen=True):
    """Raise what has the caller begin the transaction anew: it sees too little."""


class Probe(msgspec.Struct, frozen=True):
    """Try to change a document, and undo it. The reply: ``False`` if an open transaction has written it."""

    collection: str
    id: Any
    mark: str
    """Something that the document has nowhere."""
