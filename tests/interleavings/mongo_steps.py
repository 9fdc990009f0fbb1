"""MongoDB's operations for the explorer: over the stand-in's store, without sockets, and one document at a time.

A command that changes several documents changes them one after the other, and others may come in between; so here each
is a step of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import wraps
from typing import Any, ClassVar, cast

from harel.engine.queue.checked import Checked
from harel.engine.queue.contract import Operations
from harel.engine.queue.mongo import requests as ask
from harel.engine.queue.mongo.bound import BoundMongoOps
from harel.engine.queue.mongo.ops import MongoOps
from harel.engine.queue.op import Op
from harel.errors import TransportUnavailable
from harel.testing import ManualClock
from harel.testing.explorer import Actor, Scene, _played
from harel.testing.history import Notebook, RecordedCalls
from tests.servers.mongo_store import TRANSIENT, WRITE_CONFLICT, Blocked, Document, Refused, Store, Transaction

PREFIX = "transport"


@dataclass(frozen=True)
class Begin:
    """Open a transaction: from here on it sees nothing new."""


@dataclass(frozen=True)
class Commit:
    """Commit it."""


@dataclass(frozen=True)
class Expire:
    """Have the server abort every transaction, as it does with one that is too old."""


class StoreClient:
    """Carries requests out on a store, as pymongo would on a server.

    What has to wait for a transaction's end is given up at once. That it waits till then is another order.
    """

    def __init__(self, store: Store | None = None) -> None:
        self.store = store or Store()
        self._transaction: Transaction | None = None
        self._within: Transaction | None = None

    def send(self, request: Any) -> Any:
        try:
            return self._SENDERS[type(request)](self, request)
        except Blocked as blocked:
            raise TransportUnavailable(f"The answer was lost: {blocked} is being written.") from blocked
        except Refused as refused:
            if TRANSIENT not in refused.labels:
                raise
            raise TransportUnavailable(f"The transaction cannot commit: {refused}") from refused

    def _begin(self, _: Begin) -> None:
        self._transaction = self.store.begin()

    def _commit(self, _: Commit) -> None:
        assert self._transaction is not None
        self.store.commit(self._transaction)

    def _abort(self, _: ask.Abort) -> None:
        assert self._transaction is not None
        self.store.abort(self._transaction)

    def _expire(self, _: Expire) -> None:
        for transaction in list(self.store.open):
            self.store.abort(transaction)

    def _do_within(self, request: ask.Within) -> Any:
        self._within = self._transaction
        try:
            return self._SENDERS[type(request.request)](self, request.request)
        finally:
            self._within = None

    def _begin_anew(self, _: ask.BeginAnew) -> None:
        raise TransportUnavailable("The transaction cannot commit: it sees too little.")

    def _probe(self, request: ask.Probe) -> bool:
        self._within = self.store.begin()
        try:
            self._update(
                ask.UpdateOne(request.collection, {}, {}),
                [({"_id": request.id}, {"$set": {"probe": request.mark}})],
            )
        except Refused as refused:
            if refused.code != WRITE_CONFLICT:
                raise
            return False
        else:
            return True
        finally:
            self.store.abort(self._within)
            self._within = None

    def _run(self, name: str, request: Any, **fields: Any) -> Document:
        given = {key: value for key, value in fields.items() if value is not None}
        command = {name: f"{PREFIX}_{request.collection}", "$db": "harel", **given}
        reply = self.store.run(command, self._within)
        refused = reply.get("writeErrors", ())
        assert all(error["code"] == 11000 for error in refused), refused
        if refused:
            raise ask.Duplicate([error["index"] for error in refused])
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
        return int(self._run("update", request, updates=statements, ordered=False)["n"])

    def _insert_each(self, request: ask.InsertEach) -> None:
        self._run("insert", request, documents=list(request.documents))

    def _delete_one(self, request: ask.DeleteOne) -> bool:
        return int(self._run("delete", request, deletes=[{"q": request.filter, "limit": 1}])["n"]) > 0

    def _delete_each(self, request: ask.DeleteEach) -> int:
        return int(self._run("delete", request, deletes=[{"q": which, "limit": 1} for which in request.filters])["n"])

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
        Begin: _begin,
        Commit: _commit,
        Expire: _expire,
        ask.Abort: _abort,
        ask.Aggregate: _aggregate,
        ask.BeginAnew: _begin_anew,
        ask.CreateIndexes: _create_indexes,
        ask.DeleteEach: _delete_each,
        ask.DeleteMany: _delete_many,
        ask.DeleteOne: _delete_one,
        ask.Find: _find,
        ask.FindAndUpdate: _find_and_update,
        ask.Hello: _hello,
        ask.InsertEach: _insert_each,
        ask.ListIndexes: _list_indexes,
        ask.Probe: _probe,
        ask.UpdateEach: _update_each,
        ask.UpdateOne: _update_one,
        ask.Within: _do_within,
    }


class InTransactions:
    """Each method as an operation in a transaction of its own, which begins when it does and then commits.

    Parameters
    ----------
    ops : MongoOps
    takes_in : bool
        Whether the tickets are carried out at once, as after ``transaction()``, or are left to whoever comes.
    """

    def __init__(self, ops: MongoOps, *, takes_in: bool) -> None:
        self._ops = ops
        self._takes_in = takes_in

    def publish(self, *args: Any) -> Op[Any]:
        return self._within("publish", args)

    def publish_many(self, *args: Any) -> Op[Any]:
        return self._within("publish_many", args)

    def ack(self, *args: Any) -> Op[Any]:
        return self._within("ack", args)

    def nack(self, *args: Any) -> Op[Any]:
        return self._within("nack", args)

    def reject(self, *args: Any) -> Op[Any]:
        return self._within("reject", args)

    def _within(self, method: str, args: tuple[Any, ...]) -> Op[Any]:
        tickets: list[Any] = []
        calls = Checked(cast("Operations", BoundMongoOps(self._ops, tickets)))
        yield Begin()
        reply = yield from getattr(calls, method)(*args)
        if reply is False:
            yield ask.Abort()
            return False
        yield Commit()
        if self._takes_in:
            yield from one_by_one(self._ops.take_in_these(tickets))
        return reply


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
            count = 0
            for which in request.filters:
                count += yield ask.DeleteEach(request.collection, [which])
            return count
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
        self.whole = ops

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.whole, name)
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

    def go_on(self) -> StoreClient:
        """End the beginning; return what carries out the requests that follow."""
        if self._store is None:
            self._store = self._client.store
        else:
            assert self._answered == len(self._replies), "another beginning"
        self._answered = 0
        return StoreClient(self._store.copy())


def make_ops(clock: ManualClock, ops_class: type[MongoOps] = MongoOps) -> MongoOps:
    return ops_class("mongodb://", PREFIX, clock=clock, fresh_first=True, poll_interval_s=1.0, create_schema=True)


class MongoScene(Scene):
    """A scene whose beginning is carried out elsewhere than what follows."""

    def __init__(self, ops: Any, send: Callable[[Any], Any], clock: ManualClock) -> None:
        super().__init__(ops, send, clock)
        self._ops = ops
        self._store: Store | None = None
        self._counts_attempts = False

    def goes_on_with(self, client: StoreClient) -> None:
        self._send = client.send
        self._store = client.store

    def meet_bound(self, method: str, *args: Any, takes_in: bool = False) -> None:
        """Add an operation in a transaction of a caller's.

        After a settlement the attempts are looked at, too. One that comes late before others counts theirs as its own,
        and so does one that is published after a purge which died: not where there is such a one.
        """
        self._counts_attempts = method != "publish"
        name = f"bound {method} {len(self.actors) + 1}"
        notebook = Notebook(name, self.clock)
        self._notebooks.append(notebook)
        self._groups.update([args[0]] if method == "publish" else [])
        calls = RecordedCalls(InTransactions(self._ops.whole, takes_in=takes_in), notebook)
        op = _played(getattr(calls, method)(*args))
        self.actors.append(Actor(name, op, StoreClient(self._store).send))

    def meet(self, method: str, *args: Any, **more: Any) -> None:
        super().meet(method, *args, **more)
        if method == "purge":
            self._counts_attempts = False

    def meet_expiry(self) -> None:
        """Add a server that aborts what is open, at some moment."""
        self.actors.append(Actor("expiry", _one(Expire()), StoreClient(self._store).send))

    def faults(self) -> list[str]:
        if self._store is not None:
            StoreClient(self._store).send(Expire())  # whose client died
        return super().faults() + list(self._miscounted_attempts())

    def _miscounted_attempts(self) -> Iterator[str]:
        """Look for a message that counts more attempts than it can have had."""
        operations = [operation for notebook in self._notebooks for operation in notebook.operations]
        if not self._counts_attempts:
            return
        unanswered = sum(one.kind == "claim" and not one.happened and one.may_have_happened for one in operations)
        for place, lease in enumerate(self._leases):
            deliveries = sum(one.seq == lease.seq for one in self._leases[: place + 1])
            if lease.attempt > deliveries + unanswered:
                yield f"{lease} was delivered {deliveries} times, {unanswered} claims were not answered."


def _one(request: object) -> Op[None]:
    yield request
