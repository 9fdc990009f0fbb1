"""A small MongoDB: the documents, and the commands that harel sends, each carried out whole.

It knows only what harel uses; anything else is an error, as an unknown operator or field is the real server's. It is
stricter than that in two things: a query that no index serves is refused (the real server's ``notablescan``), and so
is one whose documents would have to be sorted.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count, islice
from typing import Any, TypeAlias

import bson
from bson.objectid import ObjectId

Document: TypeAlias = dict[str, Any]
Key: TypeAlias = tuple[float, Any]

LARGEST_DOCUMENT = 16 * 2**20
FIRST_BATCH = 101


class Refused(Exception):
    """An error of the server's, as the driver is told of it."""

    def __init__(self, code: int, message: str, *labels: str, **more: Any) -> None:
        super().__init__(message)
        self.code = code
        self.labels = labels
        self.more = more

    def reply(self) -> Document:
        reply = {"ok": 0.0, "code": self.code, "codeName": f"Error{self.code}", "errmsg": str(self), **self.more}
        return {**reply, "errorLabels": list(self.labels)} if self.labels else reply


BAD_VALUE, UNKNOWN_FIELD, DUPLICATE_KEY, NO_INDEX, TOO_LARGE = 2, 40415, 11000, 291, 10334
WRITE_CONFLICT, NO_SUCH_TRANSACTION = 112, 251
TRANSIENT = "TransientTransactionError"


def key_of(value: Any) -> Key:
    """What BSON's order compares: first the types, then the values of one type."""
    kind = type(value)
    if kind is str:
        return (3, value)
    if kind is int or kind is float:
        return (2, value)
    if value is None:
        return (1, 0)
    if kind is bool:
        return (8, value)
    if isinstance(value, int | float):
        return (2, value)
    if isinstance(value, list):
        return (5, tuple(map(key_of, value)))
    if isinstance(value, dict):
        return (4, tuple((key_of(inner), name) for name, inner in value.items()))
    if isinstance(value, ObjectId):
        return (7, value.binary)
    raise Refused(BAD_VALUE, f"the stand-in has no order for a {type(value).__name__}")


_AFTER_ALL: Key = (100, 0)
_COMPARED: dict[str, Callable[[Key, Key], bool]] = {
    "$gt": lambda value, bound: value[0] == bound[0] and value > bound,
    "$gte": lambda value, bound: value[0] == bound[0] and value >= bound,
    "$lt": lambda value, bound: value[0] == bound[0] and value < bound,
    "$lte": lambda value, bound: value[0] == bound[0] and value <= bound,
}


def _operators(condition: Any) -> Mapping[str, Any] | None:
    """The operators of a condition, or ``None`` where it is a value to be equal to."""
    if type(condition) is dict and condition and next(iter(condition))[0] == "$":
        return condition
    return None


def _equal(value: Any, wanted: Any) -> bool:
    key = key_of(wanted)
    return key_of(value) == key or (type(value) is list and any(key_of(one) == key for one in value))


def _fulfils(value: Any, condition: Any) -> bool:
    operators = _operators(condition)
    if operators is None:
        return _equal(value, condition)
    for name, bound in operators.items():
        if name in _COMPARED:
            met = _COMPARED[name](key_of(value), key_of(bound))
        elif name == "$in":
            met = any(_equal(value, wanted) for wanted in bound)
        elif name == "$ne":
            met = not _equal(value, bound)
        else:
            raise Refused(BAD_VALUE, f"unknown operator: {name}")
        if not met:
            return False
    return True


def matches(document: Document, query: Document) -> bool:
    """Say whether a document fulfils a query."""
    for name, condition in query.items():  # noqa: SIM110 - a loop takes half the time, and this is the stand-in's
        if not _fulfils(document.get(name), condition):
            return False
    return True


def check_query(query: Any) -> None:
    if not isinstance(query, dict):
        raise Refused(14, "a query must be an object")
    for name, condition in query.items():
        if name.startswith("$"):
            raise Refused(BAD_VALUE, f"unknown top level operator: {name}")
        if "." in name:
            raise Refused(BAD_VALUE, "the stand-in knows no paths")
        operators = _operators(condition)
        unknown = set(operators or ()) - {*_COMPARED, "$in", "$ne"}
        if unknown:
            raise Refused(BAD_VALUE, f"unknown operator: {unknown}")
        if operators and not isinstance(operators.get("$in", []), list):
            raise Refused(BAD_VALUE, "$in needs an array")


def updated(document: Document, update: Any, *, inserting: bool = False) -> Document:
    """Return a document as an update changes it; the one that is given stays as it is."""
    if not isinstance(update, dict) or not update or not all(name.startswith("$") for name in update):
        raise Refused(9, "the stand-in takes only updates by operators")
    after = dict(document)
    changed: set[str] = set()
    for operator, fields in update.items():
        if operator not in _UPDATES:
            raise Refused(9, f"Unknown modifier: {operator}")
        for name, value in fields.items():
            if name in changed:
                raise Refused(40, f"Updating the path '{name}' would create a conflict at '{name}'")
            changed.add(name)
            if "." in name or name.startswith("$"):
                raise Refused(BAD_VALUE, "the stand-in knows no paths")
            if operator != "$setOnInsert" or inserting:
                _UPDATES[operator](after, name, value)
    if "_id" in document and after.get("_id") != document["_id"]:
        raise Refused(66, "Performing an update on the path '_id' would modify the immutable field '_id'")
    return after


def _set(document: Document, name: str, value: Any) -> None:
    document[name] = value


def _unset(document: Document, name: str, value: Any) -> None:
    document.pop(name, None)


def _increment(document: Document, name: str, value: Any) -> None:
    known = document.get(name, 0)
    if key_of(known)[0] != 2 or key_of(value)[0] != 2:
        raise Refused(14, f"Cannot apply $inc to a value of non-numeric type in {name}")
    document[name] = known + value


def _maximum(document: Document, name: str, value: Any) -> None:
    if name not in document or key_of(value) > key_of(document[name]):
        document[name] = value


def _push(document: Document, name: str, value: Any) -> None:
    known = document.get(name, [])
    if not isinstance(known, list):
        raise Refused(BAD_VALUE, f"The field '{name}' must be an array")
    if not isinstance(value, dict) or set(value) != {"$each", "$slice"} or value["$slice"] >= 0:
        raise Refused(BAD_VALUE, f"the stand-in has no such $push: {value}")
    document[name] = [*known, *value["$each"]][value["$slice"] :]


def _add_to_set(document: Document, name: str, value: Any) -> None:
    known = document.get(name, [])
    if not isinstance(known, list):
        raise Refused(BAD_VALUE, f"Cannot apply $addToSet to non-array field {name}")
    if value not in known:
        document[name] = [*known, value]


_UPDATES: dict[str, Callable[[Document, str, Any], None]] = {
    "$set": _set,
    "$setOnInsert": _set,
    "$unset": _unset,
    "$inc": _increment,
    "$max": _maximum,
    "$addToSet": _add_to_set,
    "$push": _push,
}


@dataclass
class Index:
    """An index, its entries in their order."""

    name: str
    fields: tuple[str, ...]
    only: Document | None = None
    entries: list[tuple[Key, ...]] = field(default_factory=list)
    """For each document the keys of its fields, and behind them that of its ``_id``."""

    def __post_init__(self) -> None:
        self.touched_by = {*self.fields, *(self.only or ())}

    def copy(self) -> Index:
        return Index(self.name, self.fields, self.only, list(self.entries))

    def entry(self, document: Document) -> tuple[Key, ...] | None:
        if self.only is not None and not matches(document, self.only):
            return None
        keys = [key_of(document.get(name)) for name in self.fields]
        for rank, _ in keys:
            if rank == 5:
                raise Refused(BAD_VALUE, "the stand-in has no multikey indexes")
        return (*keys, key_of(document["_id"]))

    def put(self, document: Document) -> None:
        entry = self.entry(document)
        if entry is not None:
            insort(self.entries, entry)

    def remove(self, document: Document) -> None:
        entry = self.entry(document)
        if entry is not None:
            del self.entries[bisect_left(self.entries, entry)]

    def covers(self, query: Document) -> bool:
        """Whether a query can match only what a partial index holds."""
        for name, condition in (self.only or {}).items():
            asked = _operators(query.get(name)) or {}
            if not ("$gte" in asked and asked["$gte"] >= condition["$gte"]):
                return False
        return True

    def spec(self) -> Document:
        more = {} if self.only is None else {"partialFilterExpression": self.only}
        return {"v": 2, "key": dict.fromkeys(self.fields, 1), "name": self.name, **more}


@dataclass
class Work:
    """What a command took."""

    command: str
    database: str
    collection: str
    keys: int = 0
    documents: int = 0
    indexes: list[str] = field(default_factory=list)
    within: bool = False
    """Whether in a transaction."""

    def told(self) -> Document:
        return dict(vars(self))


class Collection:
    """Documents by their ``_id``, and indexes on them.

    Attributes
    ----------
    guard : callable
        Is told the key of what will be written, and may refuse that.
    """

    def __init__(self, guard: Callable[[Key], None] | None = None) -> None:
        self.documents: dict[Key, Document] = {}
        self.indexes: dict[str, Index] = {"_id_": Index("_id_", ("_id",))}
        self.guard = guard or (lambda key: None)

    def be_like(self, other: Collection) -> Collection:
        """Have what another collection has, for oneself."""
        self.documents = dict(other.documents)
        self.indexes = {name: index.copy() for name, index in other.indexes.items()}
        return self

    def insert(self, document: Document) -> None:
        key = key_of(document["_id"])
        self.guard(key)
        if key in self.documents:
            raise Refused(
                DUPLICATE_KEY,
                "E11000 duplicate key error, index: _id_",
                keyPattern={"_id": 1},
                keyValue={"_id": document["_id"]},
            )
        _check_size(document)
        self.documents[key] = document
        for index in self.indexes.values():
            index.put(document)

    def replace(self, before: Document, after: Document) -> None:
        if before == after:
            return  # which writes nothing
        self.guard(key_of(after["_id"]))
        _check_size(after)
        changed = {name for name in {*before, *after} if before.get(name) is not after.get(name)}
        for index in self.indexes.values():
            if not changed.isdisjoint(index.touched_by):
                index.remove(before)
                index.put(after)
        self.documents[key_of(after["_id"])] = after

    def delete(self, document: Document) -> None:
        self.guard(key_of(document["_id"]))
        for index in self.indexes.values():
            index.remove(document)
        del self.documents[key_of(document["_id"])]

    def put(self, key: Key, document: Document | None) -> None:
        """Have a document as it is given, or not at all."""
        known = self.documents.pop(key, None)
        for index in self.indexes.values():
            if known is not None:
                index.remove(known)
            if document is not None:
                index.put(document)
        if document is not None:
            self.documents[key] = document

    def find(
        self, query: Document, work: Work, *, sort: Mapping[str, int] | None = None, hint: str | None = None
    ) -> Iterator[Document]:
        """Find documents by an index, which also has their order."""
        order = tuple(sort or ())
        if any(direction != 1 for direction in (sort or {}).values()):
            raise Refused(BAD_VALUE, "the stand-in sorts upwards only")
        ids = _ids_in(query) if hint in (None, "_id_") else None
        if ids is not None and order in ((), ("_id",)):
            work.indexes.append("_id_")
            return self._by_id(sorted(ids) if order else ids, query, work)
        index, equal = self._choose(query, order, hint)
        work.indexes.append(index.name)
        return self._walk(index, equal, query, work)

    def _by_id(self, ids: Iterable[Key], query: Document, work: Work) -> Iterator[Document]:
        for key in ids:
            work.keys += 1
            document = self.documents.get(key)
            if document is not None:
                work.documents += 1
                if matches(document, query):
                    yield document

    def _choose(self, query: Document, order: tuple[str, ...], hint: str | None) -> tuple[Index, int]:
        """Choose an index; return it, and how many of its fields the query fixes."""
        if hint is not None and hint not in self.indexes:
            raise Refused(BAD_VALUE, "hint provided does not correspond to an existing index")
        best: tuple[Index, int] | None = None
        for index in self.indexes.values() if hint is None else [self.indexes[hint]]:
            equal = _fixed(index, query)
            serves = equal or order or hint is not None or not query or any(name in query for name in index.fields[:1])
            sorts = not order or (*index.fields, "_id")[equal : equal + len(order)] == order
            if serves and sorts and index.covers(query) and (best is None or equal > best[1]):
                best = index, equal
        if best is None:
            raise Refused(NO_INDEX, f"no index serves {query} in the order of {order}, and 'notablescan' is on")
        return best

    def _walk(self, index: Index, equal: int, query: Document, work: Work) -> Iterator[Document]:
        prefix = tuple(key_of(query[name]) for name in index.fields[:equal])
        asked = query.get(index.fields[equal]) if equal < len(index.fields) else None
        low, high = _bounds(prefix, _operators(asked) or {})
        # A copy, since what is found may be changed before the next is.
        entries = index.entries
        for entry in _slice(entries, bisect_left(entries, low), bisect_right(entries, high)):
            work.keys += 1
            document = self.documents[entry[-1]]
            work.documents += 1
            if matches(document, query):
                yield document


def _slice(entries: list[tuple[Key, ...]], begin: int, end: int) -> Iterator[tuple[Key, ...]]:
    """Copy in parts: who wants the first only pays for no more."""
    step, at = 4, begin
    while at < end:
        part = entries[at : min(at + step, end)]
        yield from part
        at += len(part)
        step = 4096


def _bounds(prefix: tuple[Key, ...], operators: Mapping[str, Any]) -> tuple[tuple[Key, ...], tuple[Key, ...]]:
    """Say between what the entries lie whose first fields are these, and whose next one is compared."""
    low, high = prefix, (*prefix, _AFTER_ALL)
    for name, value in operators.items():
        key = key_of(value) if name in _COMPARED else _AFTER_ALL
        if name in ("$gt", "$gte"):
            low = (*prefix, key, *([_AFTER_ALL] if name == "$gt" else ()))
            high = min(high, (*prefix, (key[0] + 0.5, 0)))
        elif name in ("$lt", "$lte"):
            low = max(low, (*prefix, (key[0], _LEAST.get(key[0], False))))
            high = min(high, (*prefix, key, *([_AFTER_ALL] if name == "$lte" else ())))
    return low, high


_LEAST: Mapping[float, Any] = {2: -float("inf"), 3: ""}


def _fixed(index: Index, query: Document) -> int:
    equal = 0
    for name in index.fields:
        if name not in query or _operators(query[name]) is not None:
            break
        equal += 1
    return equal


def _ids_in(query: Document) -> list[Key] | None:
    if "_id" not in query:
        return None
    operators = _operators(query["_id"])
    if operators is None:
        return [key_of(query["_id"])]
    return [key_of(value) for value in operators["$in"]] if "$in" in operators else None


def _check_size(document: Document) -> None:
    if _weight(document) > 2**20 and len(bson.encode(document)) > LARGEST_DOCUMENT:
        raise Refused(TOO_LARGE, f"BSONObj size is invalid: it must be between 0 and {LARGEST_DOCUMENT}")


def _weight(document: Document) -> int:
    """Roughly how large a document is."""
    total = 50 * len(document)
    for value in document.values():
        if isinstance(value, str):
            total += len(value) if value.isascii() or len(value) < 1_000 else len(value.encode())
        elif isinstance(value, list):
            total += sum(_weight(one) if isinstance(one, dict) else 50 for one in value)
    return total


def projected(document: Document, fields: Mapping[str, Any] | None) -> Document:
    if not fields:
        return document
    if any(not shown for shown in fields.values()):
        raise Refused(BAD_VALUE, "the stand-in only takes fields that are to be shown")
    return {name: value for name, value in document.items() if name in fields or name == "_id"}


def evaluated(expression: Any, document: Document) -> Any:
    """Return what an aggregation's expression says of a document."""
    if isinstance(expression, str) and expression.startswith("$"):
        return document.get(expression[1:])
    if not isinstance(expression, dict):
        return expression
    if len(expression) == 1:
        ((operator, values),) = expression.items()
        if operator in ("$lte", "$lt", "$ne"):
            one, other = (key_of(evaluated(value, document)) for value in values)
            return {"$lte": one <= other, "$lt": one < other, "$ne": one != other}[operator]
    if any(name.startswith("$") for name in expression):
        raise Refused(168, f"Unrecognized expression {expression}")
    return {name: evaluated(value, document) for name, value in expression.items()}


class Pipeline:
    """An aggregation over the collections of one database."""

    def __init__(self, database: Seen, work: Work) -> None:
        self._database = database
        self._work = work

    def run(
        self, name: str, stages: Sequence[Document], hint: str | None = None, query: Document | None = None
    ) -> Iterator[Document]:
        rest = list(stages)
        query = dict(query or {})
        sort = None
        if rest and "$match" in rest[0]:
            query = {**query, **rest.pop(0)["$match"]}
        if rest and "$sort" in rest[0]:
            sort = rest.pop(0)["$sort"]
        check_query(query)
        collection = self._database.get(name)
        found = iter(()) if collection is None else collection.find(query, self._work, sort=sort, hint=hint)
        for stage in rest:
            ((operator, value),) = stage.items()
            if operator not in self._STAGES:
                raise Refused(40324, f"Unrecognized pipeline stage name: '{operator}'")
            found = self._STAGES[operator](self, found, value)
        return found

    def _limit(self, found: Iterator[Document], value: int) -> Iterator[Document]:
        if not 0 < value < 2**63:
            raise Refused(15958, "the limit must be positive")
        return islice(found, value)

    def _project(self, found: Iterator[Document], value: Document) -> Iterator[Document]:
        return (projected(document, value) for document in found)

    def _count(self, found: Iterator[Document], value: str) -> Iterator[Document]:
        total = sum(1 for _ in found)
        return iter([{value: total}] if total else [])

    def _group(self, found: Iterator[Document], value: Document) -> Iterator[Document]:
        groups: dict[Key, Document] = {}
        for document in found:
            which = evaluated(value["_id"], document)
            group = groups.setdefault(key_of(which), {"_id": which})
            for name, accumulator in value.items():
                if name == "_id":
                    continue
                ((operator, expression),) = accumulator.items()
                new = evaluated(expression, document)
                if operator == "$sum":
                    group[name] = group.get(name, 0) + new
                elif operator == "$min":
                    group[name] = min(group.get(name, new), new, key=key_of)
                else:
                    raise Refused(15952, f"unknown group operator '{operator}'")
        return iter(groups.values())

    def _lookup(self, found: Iterator[Document], value: Document) -> Iterator[Document]:
        if set(value) != {"from", "localField", "foreignField", "pipeline", "as"}:
            raise Refused(9, f"the stand-in has no such $lookup: {value}")
        for document in found:
            query = {value["foreignField"]: document.get(value["localField"])}
            joined = list(self.run(value["from"], value["pipeline"], query=query))
            whole = {**document, value["as"]: joined}
            if _weight(whole) > 2**20:
                _check_size(whole)
            yield whole

    _STAGES: Mapping[str, Callable[[Pipeline, Iterator[Document], Any], Iterator[Document]]] = {
        "$limit": _limit,
        "$project": _project,
        "$count": _count,
        "$group": _group,
        "$lookup": _lookup,
    }


class Seen:
    """A database as a command sees it, in a transaction or not."""

    def __init__(self, store: Store, name: str, within: Transaction | None) -> None:
        self._store = store
        self._name = name
        self._within = within

    def get(self, name: str) -> Collection | None:
        """Return a collection to look at, if there is one."""
        if self._within is not None and (view := self._within.views.get((self._name, name))) is not None:
            return view
        return self._store.databases.get(self._name, {}).get(name)

    def written(self, name: str) -> Collection:
        """Return a collection to write to; there is one then."""
        if self._within is None:
            return self._store.collection(self._name, name)
        return self._store.own_view(self._name, name, self._within)

    def drop(self, name: str | None) -> None:
        """Drop a collection, or all of them."""
        self._store.drop(self._name, name)


class Blocked(Exception):
    """A write outside of transactions met what an open one wrote: nothing was done, and it waits for its end."""


@dataclass(eq=False)
class Transaction:
    """A transaction: it sees what there was when it began, and what it wrote.

    Attributes
    ----------
    began : int
        How many writes there had been.
    state : str
        ``open``, ``committed`` or ``aborted``.
    views : dict
        Its own copies of collections: of those it wrote, and of those that others wrote since it began.
    written : dict
        What it wrote, by collection and key.
    """

    began: int
    state: str = "open"
    views: dict[tuple[str, str], Collection] = field(default_factory=dict)
    written: dict[tuple[str, str, Key], None] = field(default_factory=dict)


_ANY = {"$db", "lsid", "$clusterTime", "$readPreference", "maxTimeMS", "comment"}
_WITHIN = {"txnNumber", "autocommit", "startTransaction", "readConcern"}
"""Fields of a command in a transaction."""
_READS = {"readConcern"}
_WRITES = {"writeConcern", "txnNumber"}
_IN_TRANSACTIONS = {"find", "aggregate", "getMore", "insert", "update", "delete", "findAndModify"}
_FIELDS: dict[str, set[str]] = {
    "find": {"filter", "sort", "projection", "limit", "batchSize", "singleBatch", "hint"} | _READS,
    "aggregate": {"pipeline", "cursor", "hint"} | _READS,
    "getMore": {"collection", "batchSize"},
    "killCursors": {"cursors"},
    "insert": {"documents", "ordered"} | _WRITES,
    "update": {"updates", "ordered"} | _WRITES,
    "delete": {"deletes", "ordered"} | _WRITES,
    "findAndModify": {"query", "update", "new", "upsert", "sort", "fields", "hint"} | _WRITES,
    "createIndexes": {"indexes", "writeConcern"},
    "listIndexes": {"cursor"},
    "dropDatabase": {"writeConcern"},
    "drop": {"writeConcern"},
    "ping": set(),
    "endSessions": set(),
    "buildInfo": set(),
}


class Store:
    """Databases, and the commands on them.

    Attributes
    ----------
    log : list of Work
        What was done, until somebody takes it.
    """

    def __init__(self) -> None:
        self.databases: dict[str, dict[str, Collection]] = {}
        self.log: list[Work] = []
        self.open: list[Transaction] = []
        self._uncommitted: dict[tuple[str, str, Key], Transaction] = {}
        self._written_at: dict[tuple[str, str, Key], int] = {}
        self._writes = 0
        self.ended: Callable[[], None] = lambda: None
        """Is called when a transaction ends."""
        self._undo: list[tuple[Collection, Key, Document | None]] = []
        self._cursors: dict[int, tuple[str, Iterator[Document]]] = {}
        self._ids = count(1_000)

    def copy(self) -> Store:
        """Return the same databases once more. A document is never changed, but replaced, so both may have it."""
        assert not self.open
        other = Store()
        for name, database in self.databases.items():
            for collection, documents in database.items():
                other.collection(name, collection).be_like(documents)
        return other

    def run(self, command: Document, within: Transaction | None = None) -> Document:
        """Carry a command out, in a transaction or not.

        Raises
        ------
        Refused
            When the server would refuse it. A transaction is aborted by that.
        Blocked
            When it would wait for the end of a transaction; then nothing was done.
        """
        if within is None:
            return self._run(command, None)
        self._must_be_open(within)
        try:
            reply = self._run(command, within)
        except Refused:
            self.abort(within)
            raise
        if reply.get("writeErrors"):
            self.abort(within)
        return reply

    def _run(self, command: Document, within: Transaction | None) -> Document:
        name = next(iter(command))
        if name not in _FIELDS:
            raise Refused(59, f"no such command: '{name}'")
        known = _FIELDS[name] | _ANY
        if within is not None:
            known = (known - {"writeConcern"}) | _WITHIN
            if name not in _IN_TRANSACTIONS:
                raise Refused(263, f"Cannot run '{name}' in a multi-document transaction.")
        for unknown in command.keys() - known:
            if unknown != name:
                raise Refused(UNKNOWN_FIELD, f"BSON field '{name}.{unknown}' is an unknown field.")
        _check_write_concern(command.get("writeConcern"))
        _check_read_concern(command.get("readConcern"), within is not None)
        handler: Callable[[Document, Seen, Work], Document] = getattr(self, f"_{name}")
        work = Work(name, command["$db"], str(command[name]), within=within is not None)
        database = Seen(self, command["$db"], within)
        self.log.append(work)
        self._undo = []
        try:
            reply = handler(command, database, work)
        except Blocked:
            self.log.pop()
            for collection, key, before in reversed(self._undo):
                collection.put(key, before)
            raise
        del self.log[:-100_000]
        return {**reply, "ok": 1.0}

    def begin(self) -> Transaction:
        """Open a transaction; it sees what there is now."""
        transaction = Transaction(self._writes)
        self.open.append(transaction)
        return transaction

    def commit(self, transaction: Transaction) -> None:
        """Have what a transaction wrote happen."""
        if transaction.state == "committed":
            return
        self._must_be_open(transaction)
        self._end(transaction, "committed")
        for database, name, key in transaction.written:
            seen = transaction.views[database, name].documents.get(key)
            collection = self.collection(database, name)
            self._before_write(database, name, key)
            collection.put(key, seen)
        self.ended()

    def abort(self, transaction: Transaction) -> None:
        """Have nothing of a transaction happen, if it is open."""
        if transaction.state == "open":
            self._end(transaction, "aborted")
            self.ended()

    def _end(self, transaction: Transaction, state: str) -> None:
        transaction.state = state
        self.open.remove(transaction)
        for written in transaction.written:
            del self._uncommitted[written]
        if not self.open:
            self._written_at.clear()

    def _must_be_open(self, transaction: Transaction) -> None:
        if transaction.state == "aborted":
            raise Refused(NO_SUCH_TRANSACTION, "Transaction has been aborted.", TRANSIENT)
        if transaction.state == "committed":
            raise Refused(256, "Transaction has been committed.")

    def collection(self, database: str, name: str) -> Collection:
        """Return a collection as it is outside of transactions, made if there was none."""
        collections = self.databases.setdefault(database, {})
        if name not in collections:
            collections[name] = Collection(partial(self._guard, database, name))
        return collections[name]

    def drop(self, database: str, name: str | None) -> None:
        """Drop a collection, or a database."""
        for one in list(self.databases.get(database, {})) if name is None else [name]:
            if any(written[:2] == (database, one) for written in self._uncommitted):
                raise Blocked(one)
            self.databases.get(database, {}).pop(one, None)

    def own_view(self, database: str, name: str, transaction: Transaction) -> Collection:
        """Return a collection that a transaction can write."""
        self._keep_view(database, name, transaction)
        view = transaction.views[database, name]
        view.guard = partial(self._guard_within, database, name, transaction)
        return view

    def _keep_view(self, database: str, name: str, transaction: Transaction) -> None:
        if (database, name) not in transaction.views:
            transaction.views[database, name] = Collection().be_like(self.collection(database, name))

    def _guard(self, database: str, name: str, key: Key) -> None:
        """Let a write outside of transactions wait for one that has written the same."""
        if (database, name, key) in self._uncommitted:
            raise Blocked(f"{name} {key}")
        self._before_write(database, name, key)
        collection = self.databases[database][name]
        self._undo.append((collection, key, collection.documents.get(key)))

    def _before_write(self, database: str, name: str, key: Key) -> None:
        self._writes += 1
        if self.open:
            self._written_at[database, name, key] = self._writes
        for transaction in self.open:
            self._keep_view(database, name, transaction)

    def _guard_within(self, database: str, name: str, transaction: Transaction, key: Key) -> None:
        """Let a write in a transaction fail where another one's is, or one that it does not see."""
        written = database, name, key
        other = self._uncommitted.setdefault(written, transaction)
        if other is not transaction or self._written_at.get(written, 0) > transaction.began:
            if other is transaction and written not in transaction.written:
                del self._uncommitted[written]
            raise Refused(WRITE_CONFLICT, "Write conflict during plan execution and yielding is disabled.", TRANSIENT)
        transaction.written[written] = None

    def _ping(self, command: Document, database: Seen, work: Work) -> Document:
        return {}

    _endSessions = _ping  # noqa: N815 - the command's name

    def _buildInfo(self, command: Document, database: Seen, work: Work) -> Document:  # noqa: N802
        return {"version": "7.0.0", "versionArray": [7, 0, 0, 0]}

    def _drop(self, command: Document, database: Seen, work: Work) -> Document:
        database.drop(command["drop"])
        return {}

    def _dropDatabase(self, command: Document, database: Seen, work: Work) -> Document:  # noqa: N802
        database.drop(None)
        return {}

    def _find(self, command: Document, database: Seen, work: Work) -> Document:
        query = command.get("filter", {})
        check_query(query)
        limit, fields = command.get("limit", 0), command.get("projection")
        if limit < 0:
            raise Refused(51024, "BSON field 'limit' value must be >= 0")
        collection = database.get(command["find"])
        found: Iterator[Document] = iter(())
        if collection is not None:
            found = collection.find(query, work, sort=command.get("sort"), hint=command.get("hint"))
        if limit:
            found = islice(found, limit)
        batch = min(command.get("batchSize", FIRST_BATCH), limit or FIRST_BATCH)
        return self._cursor(command, "find", (projected(one, fields) for one in found), batch)

    def _aggregate(self, command: Document, database: Seen, work: Work) -> Document:
        found = Pipeline(database, work).run(command["aggregate"], command["pipeline"], command.get("hint"))
        batch = command["cursor"].get("batchSize", FIRST_BATCH)
        return self._cursor(command, "aggregate", found, batch)

    def _cursor(self, command: Document, name: str, found: Iterator[Document], batch: int) -> Document:
        namespace = f"{command['$db']}.{command[name]}"
        # All is found in this moment; the real server goes on finding.
        documents = list(found)
        first, rest = _batch(documents, batch)
        return {"cursor": {"id": self._kept(namespace, rest), "ns": namespace, "firstBatch": first}}

    def _kept(self, namespace: str, rest: list[Document]) -> int:
        if not rest:
            return 0
        cursor = next(self._ids)
        self._cursors[cursor] = (namespace, iter(rest))
        return cursor

    def _getMore(self, command: Document, database: Seen, work: Work) -> Document:  # noqa: N802
        namespace, found = self._cursors.pop(command["getMore"], (None, iter(())))
        if namespace is None:
            raise Refused(43, f"cursor id {command['getMore']} not found")
        batch, rest = _batch(list(found), command.get("batchSize", 10**9))
        cursor = self._kept(namespace, rest)
        return {"cursor": {"id": cursor, "ns": namespace, "nextBatch": batch}}

    def _killCursors(self, command: Document, database: Seen, work: Work) -> Document:  # noqa: N802
        for cursor in command["cursors"]:
            self._cursors.pop(cursor, None)
        return {"cursorsKilled": command["cursors"]}

    def _insert(self, command: Document, database: Seen, work: Work) -> Document:
        collection = database.written(command["insert"])

        def insert(document: Document) -> None:
            if "_id" not in document:
                document = {"_id": ObjectId(), **document}
            collection.insert(document)

        done, errors = _each(command["documents"], command.get("ordered", True), insert)
        return _written({"n": len(done)}, errors)

    def _update(self, command: Document, database: Seen, work: Work) -> Document:
        collection = database.written(command["update"])
        changed: list[int] = []

        def update(statement: Document) -> Document | None:
            _check_statement("update.updates", statement, {"q", "u", "upsert", "multi", "hint"})
            if statement.get("multi"):
                raise Refused(BAD_VALUE, "the stand-in updates one at a time")
            before, after = _change(collection, statement["q"], statement["u"], work, upsert=statement.get("upsert"))
            if before is None and after is None:
                return None
            changed.append(before is not None and before != after)
            return {"_id": after["_id"]} if before is None and after is not None else {}

        done, errors = _each(command["updates"], command.get("ordered", True), update)
        upserted = [{"index": place, **made} for place, made in done if made]
        reply: Document = {"n": sum(made is not None for _, made in done), "nModified": sum(changed)}
        if upserted:
            reply["upserted"] = upserted
        return _written(reply, errors)

    def _delete(self, command: Document, database: Seen, work: Work) -> Document:
        collection = database.written(command["delete"])

        def delete(statement: Document) -> int:
            _check_statement("delete.deletes", statement, {"q", "limit", "hint"})
            check_query(statement["q"])
            if statement["limit"] not in (0, 1):
                raise Refused(9, "The limit field in delete objects must be 0 or 1")
            found = list(islice(collection.find(statement["q"], work), statement["limit"] or None))
            for document in found:
                collection.delete(document)
            return len(found)

        done, errors = _each(command["deletes"], command.get("ordered", True), delete)
        return _written({"n": sum(number for _, number in done)}, errors)

    def _findAndModify(  # noqa: N802
        self, command: Document, database: Seen, work: Work
    ) -> Document:
        name = command["findAndModify"]
        collection = database.written(name)
        before, after = _change(
            collection,
            command.get("query", {}),
            command["update"],
            work,
            upsert=command.get("upsert"),
            sort=command.get("sort"),
            hint=command.get("hint"),
        )
        shown = after if command.get("new") else before
        return {
            "value": None if shown is None else projected(shown, command.get("fields")),
            "lastErrorObject": {"n": int(after is not None), "updatedExisting": before is not None},
        }

    def _createIndexes(self, command: Document, database: Seen, work: Work) -> Document:  # noqa: N802
        collection = database.written(command["createIndexes"])
        for spec in command["indexes"]:
            _check_statement("createIndexes.indexes", spec, {"key", "name", "partialFilterExpression"})
            index = Index(spec["name"], tuple(spec["key"]), spec.get("partialFilterExpression"))
            known = collection.indexes.get(index.name)
            if known is not None and known.spec() != index.spec():
                raise Refused(86, f"An existing index has the same name as the requested index: {index.name}")
            if any({**one.spec(), "name": ""} == {**index.spec(), "name": ""} for one in collection.indexes.values()):
                if known is None:
                    raise Refused(85, f"Index already exists with a different name: {index.name}")
                continue
            for document in collection.documents.values():
                index.put(document)
            collection.indexes[index.name] = index
        return {"numIndexesAfter": len(collection.indexes)}

    def _listIndexes(self, command: Document, database: Seen, work: Work) -> Document:  # noqa: N802
        collection = database.get(command["listIndexes"])
        if collection is None:
            raise Refused(26, f"ns does not exist: {command['$db']}.{command['listIndexes']}")
        found = (index.spec() for index in collection.indexes.values())
        return self._cursor(command, "listIndexes", found, FIRST_BATCH)


def _batch(documents: list[Document], most: int) -> tuple[list[Document], list[Document]]:
    size = taken = 0
    for document in documents[:most]:
        size += _weight(document)
        if taken and size > LARGEST_DOCUMENT:
            break
        taken += 1
    return documents[:taken], documents[taken:]


def _change(
    collection: Collection,
    query: Document,
    update: Document,
    work: Work,
    *,
    upsert: bool | None = False,
    sort: Mapping[str, int] | None = None,
    hint: str | None = None,
) -> tuple[Document | None, Document | None]:
    """Change the first document that matches, or insert one; return it before and after."""
    check_query(query)
    before = next(collection.find(query, work, sort=sort, hint=hint), None)
    if before is not None:
        after = updated(before, update)
        collection.replace(before, after)
        return before, after
    updated({}, update)
    if not upsert:
        return None, None
    equal = {name: value for name, value in query.items() if _operators(value) is None}
    made = updated(equal, update, inserting=True)
    made = {"_id": made.pop("_id", None) or ObjectId(), **made}
    collection.insert(made)
    return None, made


def _each(
    statements: Sequence[Any], ordered: bool, act: Callable[[Any], Any]
) -> tuple[list[tuple[int, Any]], list[Document]]:
    """Carry out each statement; return what each did, and the errors."""
    if not 0 < len(statements) <= 100_000:
        raise Refused(BAD_VALUE, "Write batch sizes must be between 1 and 100000")
    done: list[tuple[int, Any]] = []
    errors: list[Document] = []
    for place, statement in enumerate(statements):
        try:
            done.append((place, act(statement)))
        except Refused as refused:
            if refused.code == WRITE_CONFLICT:
                raise
            errors.append({"index": place, "code": refused.code, "errmsg": str(refused), **refused.more})
            if ordered:
                break
    return done, errors


def _written(reply: Document, errors: list[Document]) -> Document:
    return {**reply, "writeErrors": errors} if errors else reply


def _check_statement(where: str, statement: Document, fields: set[str]) -> None:
    unknown = set(statement) - fields
    if unknown:
        raise Refused(UNKNOWN_FIELD, f"BSON field '{where}.{unknown.pop()}' is an unknown field.")


def _check_write_concern(concern: Any) -> None:
    if concern is None:
        return
    unknown = set(concern) - {"w", "j", "wtimeout"}
    if unknown or not (concern.get("w", 1) == "majority" or isinstance(concern.get("w", 1), int)):
        raise Refused(79, f"No write concern mode named {concern}")


def _check_read_concern(concern: Any, within: bool) -> None:
    levels = ("local", "majority", "snapshot") if within else ("local", "majority")
    if concern is not None and concern.get("level", "local") not in levels:
        raise Refused(BAD_VALUE, f"the stand-in has no read concern {concern}")
