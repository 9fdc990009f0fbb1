"""MongoDB's operations for the explorer: over the stand-in's store, without sockets, and one document at a time.

A command that changes several documents changes them one after the other, and others may come in between; so here each
is a step of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import Any, ClassVar

from harel.engine.queue.contract import Operations
from harel.engine.queue.mongo import requests as ask
from harel.engine.queue.mongo.ops import MongoOps
from harel.engine.queue.op import Op
from harel.testing import ManualClock
from harel.testing.explorer import Scene
from harel.testing.history import Operation
from tests.servers.mongo_store import Document, Store

PREFIX = "transport"


class StoreClient:
    """Carries requests out on a store, as pymongo would on a server."""

    def __init__(self, store: Store | None = None) -> None:
        self.store = store or Store()

    def send(self, request: Any) -> Any:
        return self._SENDERS[type(request)](self, request)

    def _run(self, name: str, request: Any, **fields: Any) -> Document:
        given = {key: value for key, value in fields.items() if value is not None}
        reply = self.store.run({name: f"{PREFIX}_{request.collection}", "$db": "harel", **given})
        for error in reply.get("writeErrors", ()):
            assert error["code"] == 11000, error
            raise ask.Duplicate([error["index"]])
        return reply

    def _find(self, request: ask.Find) -> list[Any]:
        reply = self._run(
            "find",
            request,
            filter=request.filter,
            sort=dict(request.order) if request.order else None,
            limit=request.limit,
            batchSize=10**6,
            projection=dict.fromkeys(request.fields, 1) if request.fields else None,
            hint=request.hint,
        )
        return list(reply["cursor"]["firstBatch"])

    def _find_and_update(self, request: ask.FindAndUpdate) -> Any:
        reply = self._run(
            "findAndModify",
            request,
            query=request.filter,
            update=request.update,
            new=True,
            upsert=request.upsert,
            sort=dict(request.order) if request.order else None,
            hint=request.hint,
        )
        return reply["value"]

    def _update_one(self, request: ask.UpdateOne) -> bool:
        return self._update(request, [(request.filter, request.update)]) > 0

    def _update_each(self, request: ask.UpdateEach) -> None:
        self._update(request, request.updates)

    def _update(self, request: Any, updates: Iterable[tuple[Any, Any]]) -> int:
        upsert = request.upsert
        statements = [{"q": which, "u": change, "upsert": upsert} for which, change in updates]
        return int(self._run("update", request, updates=statements)["n"])

    def _insert_each(self, request: ask.InsertEach) -> None:
        self._run("insert", request, documents=list(request.documents))

    def _delete_one(self, request: ask.DeleteOne) -> bool:
        return int(self._run("delete", request, deletes=[{"q": request.filter, "limit": 1}])["n"]) > 0

    def _delete_each(self, request: ask.DeleteEach) -> None:
        self._run("delete", request, deletes=[{"q": which, "limit": 1} for which in request.filters])

    def _delete_many(self, request: ask.DeleteMany) -> int:
        return int(self._run("delete", request, deletes=[{"q": request.filter, "limit": 0}])["n"])

    def _aggregate(self, request: ask.Aggregate) -> list[Any]:
        pipeline, cursor = list(request.pipeline), {"batchSize": 10**6}
        reply = self._run("aggregate", request, pipeline=pipeline, cursor=cursor, hint=request.hint)
        return list(reply["cursor"]["firstBatch"])

    def _list_indexes(self, request: ask.ListIndexes) -> list[str]:
        return []

    def _create_indexes(self, request: ask.CreateIndexes) -> None:
        specs: list[Document] = []
        for index in request.indexes:
            only = {} if index.only is None else {"partialFilterExpression": dict(index.only)}
            specs.append({"name": index.name, "key": dict.fromkeys(index.keys, 1), **only})
        self._run("createIndexes", request, indexes=specs)

    def _hello(self, request: ask.Hello) -> ask.ServerHello:
        return ask.ServerHello(0.0, 0.0, 0.0, 21)

    _SENDERS: ClassVar[dict[type, Callable[[Any, Any], Any]]] = {
        ask.Aggregate: _aggregate,
        ask.CreateIndexes: _create_indexes,
        ask.DeleteEach: _delete_each,
        ask.DeleteMany: _delete_many,
        ask.DeleteOne: _delete_one,
        ask.Find: _find,
        ask.FindAndUpdate: _find_and_update,
        ask.Hello: _hello,
        ask.InsertEach: _insert_each,
        ask.ListIndexes: _list_indexes,
        ask.UpdateEach: _update_each,
        ask.UpdateOne: _update_one,
    }


def one_by_one(op: Op[Any]) -> Op[Any]:
    """Run an operation with each document of its requests as a step."""
    try:
        request = next(op)
        while True:
            try:
                reply = yield from _steps(request)
            except GeneratorExit:
                op.close()
                raise
            except Exception as error:
                request = op.throw(error)
            else:
                request = op.send(reply)
    except StopIteration as done:
        return done.value


def _steps(request: Any) -> Op[Any]:
    match request:
        case ask.InsertEach():
            for document in request.documents:
                yield ask.InsertEach(request.collection, [document])
        case ask.UpdateEach():
            for update in request.updates:
                yield ask.UpdateEach(request.collection, [update], upsert=request.upsert)
        case ask.DeleteEach():
            for which in request.filters:
                yield ask.DeleteEach(request.collection, [which])
        case ask.DeleteMany():
            count = 0
            while (yield ask.DeleteOne(request.collection, request.filter)):
                count += 1
            return count
        case ask.Aggregate(pipeline=[{"$match": which}, {"$lookup": lookup}]):
            return (yield from _looked_up(request, which, lookup))
        case _:
            return (yield request)
    return None


def _looked_up(request: ask.Aggregate, which: Document, lookup: Document) -> Op[list[Document]]:
    locks = yield ask.Find(request.collection, which)
    found = []
    for lock in locks:
        query = {lookup["foreignField"]: lock[lookup["localField"]]}
        heads = yield ask.Aggregate("messages", [{"$match": query}, *lookup["pipeline"]])
        found.append({**lock, lookup["as"]: heads})
    return found


class OneByOne:
    """Operations whose every document is a step."""

    def __init__(self, ops: Operations) -> None:
        self._ops = ops

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._ops, name)
        if not callable(value):
            return value

        @wraps(value)
        def method(*args: Any) -> Op[Any]:
            return one_by_one(value(*args))

        return method


class Again:
    """Gives every world the same beginning: the first one's requests are carried out, the others' are only answered.

    An operation does not depend on anything else than the answers and the clock.
    """

    def __init__(self) -> None:
        self._replies: list[Any] = []
        self._store: Store | None = None
        self._client = StoreClient()
        self._answered = 0

    def send(self, request: Any) -> Any:
        if self._store is None:
            reply = self._client.send(request)
            self._replies.append(reply)
            return reply
        self._answered += 1
        return self._replies[self._answered - 1]

    def go_on(self) -> Callable[[Any], Any]:
        """End the beginning; return what carries out the requests that follow."""
        if self._store is None:
            self._store = self._client.store
        else:
            assert self._answered == len(self._replies), "another beginning"
        self._answered = 0
        return StoreClient(self._store.copy()).send


def make_ops(clock: ManualClock, ops_class: type[MongoOps] = MongoOps) -> MongoOps:
    return ops_class("mongodb://", PREFIX, clock=clock, fresh_first=True, poll_interval_s=1.0, create_schema=True)


class MongoScene(Scene):
    """A scene in which a redrive may die between its steps, and then may have happened or not."""

    def __init__(self, ops: Any, send: Callable[[Any], Any], clock: ManualClock) -> None:
        super().__init__(ops, send, clock)
        self._may_have_redriven = 0

    def goes_on_with(self, send: Callable[[Any], Any]) -> None:
        self._send = send

    def _op(self, name: str, method: str, args: tuple[Any, ...]) -> Op[Any]:
        self._may_have_redriven += method == "redrive"
        reply = yield from super()._op(name, method, args)
        self._may_have_redriven -= method == "redrive" and not reply
        return reply

    def _miscounted(self, history: Iterable[Operation]) -> Iterator[str]:
        letters = {letter.seq: letter.event.id for letter in self._ask("dead_letters", None, 1_000, None)}
        for seq in set(self._redriven):
            if self._redriven.count(seq) > 1 or seq in letters:
                yield f"Promise 3: dead letter {seq} was redriven, and is or was still there."
        done = [one for one in history if one.kind in ("ack", "reject") and one.may_have_happened]
        kept = {one.event_id for one in done if one.kind == "ack"} | set(letters.values())
        purged = any(one.kind == "purge" and one.may_have_happened for one in history)
        for event_id in {one.event_id for one in done}:
            seqs = {one.seq for one in done if one.event_id == event_id}
            if len(seqs) > 1 + self._may_have_redriven:
                yield f"Promise 3: {event_id} was settled as {sorted(map(str, seqs))}, more messages than there were."
            if event_id not in kept and not purged:
                yield f"Promise 3: event {event_id} was rejected, and is neither a dead letter nor delivered again."
