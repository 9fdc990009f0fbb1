"""What each request is in pymongo's words, once for both twins.

pymongo's two APIs are the same but for what is to be awaited, so a request becomes an operation whose own requests
are calls to make, and to await in the async twin.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from functools import partial
from typing import Any, ClassVar

import pymongo
from bson.codec_options import CodecOptions
from pymongo import IndexModel, ReadPreference, ReturnDocument, WriteConcern
from pymongo.errors import BulkWriteError, DuplicateKeyError, OperationFailure, PyMongoError
from pymongo.read_concern import ReadConcern

from harel.engine.queue.mongo import requests as ask
from harel.engine.queue.mongo.clock import steady
from harel.engine.queue.op import Op
from harel.engine.transport.mongo_errors import TRANSIENT, UNKNOWN_COMMIT
from harel.errors import ConfigError

__all__ = ["Calls"]

_DUPLICATE_KEY = 11000
_WRITE_CONFLICT = 112
_COMMIT_S = 10.0
"""For so long a commit is asked for again, when it is not known to have happened."""


class Calls:
    """Carries requests out on a client.

    Parameters
    ----------
    client : pymongo.MongoClient or pymongo.AsyncMongoClient
    db_name : str
    prefix : str
    """

    def __init__(self, client: Any, db_name: str, prefix: str) -> None:
        self._client = client
        self._prefix = prefix
        concern = _write_concern(client)
        is_majority = concern.document.get("w") == "majority"
        self._database = client.get_database(
            db_name,
            codec_options=CodecOptions(),  # whatever the client makes of documents for its owner
            read_preference=ReadPreference.PRIMARY,
            write_concern=concern,
            # Below a majority, what was written last would be missing from what a majority has.
            read_concern=ReadConcern("majority" if is_majority else "local"),
        )
        self.concern = concern
        self._collections: dict[str, Any] = {}
        self.session: Any = None

    def within(self, session: Any) -> Calls:
        """Return what carries requests out on this client as a part of its session's transaction."""
        calls = copy(self)
        calls.session = session
        return calls

    def carry_out(self, request: Any) -> Op[Any]:
        """Return the operation that carries a request out.

        Raises
        ------
        Duplicate
            For a duplicate key; whatever else pymongo raises, as it is.
        """
        return self._CALLS[type(request)](self, request)

    def commit(self, session: Any) -> Op[None]:
        """Return the operation that commits a session's transaction, and asks again while it is not known to have."""
        give_up_at_s = steady() + _COMMIT_S
        committed = not session.in_transaction  # the caller has ended it
        while not committed:
            try:
                yield session.commit_transaction
            except PyMongoError as error:
                if not error.has_error_label(UNKNOWN_COMMIT) or steady() > give_up_at_s:
                    raise
            else:
                committed = True

    def _in(self, request: Any) -> Any:
        name = request.collection
        collection = self._collections.get(name)
        if collection is None:
            collection = self._collections[name] = self._database[f"{self._prefix}_{name}"]
        return collection

    def _hello(self, _: ask.Hello) -> Op[ask.ServerHello]:
        asked_at_s = steady()
        reply = yield partial(self._client.admin.command, "hello")
        return ask.ServerHello(
            time_s=reply["localTime"].timestamp(),
            asked_at_s=asked_at_s,
            answered_at_s=steady(),
            wire_version=reply["maxWireVersion"],
            has_transactions="setName" in reply or reply.get("msg") == "isdbgrid",
        )

    def _find(self, request: ask.Find) -> Op[list[Any]]:
        cursor = self._in(request).find(
            request.filter,
            None if request.fields is None else dict.fromkeys(request.fields, 1),
            sort=request.order,
            limit=request.limit,
            hint=request.hint,
            session=self.session,
        )
        documents: list[Any] = yield partial(_all, cursor)
        return documents

    def _find_and_update(self, request: ask.FindAndUpdate) -> Op[Any]:
        with _Duplicates():
            return (
                yield partial(
                    self._in(request).find_one_and_update,
                    request.filter,
                    request.update,
                    sort=request.order,
                    hint=request.hint,
                    upsert=request.upsert,
                    return_document=ReturnDocument.AFTER,
                    session=self.session,
                )
            )

    def _update_one(self, request: ask.UpdateOne) -> Op[bool]:
        with _Duplicates():
            result = yield partial(
                self._in(request).update_one,
                request.filter,
                request.update,
                upsert=request.upsert,
                session=self.session,
            )
        return result.matched_count > 0 or result.upserted_id is not None

    def _update_each(self, request: ask.UpdateEach) -> Op[None]:
        updates = [pymongo.UpdateOne(which, change, upsert=request.upsert) for which, change in request.updates]
        with _Duplicates():
            yield partial(self._in(request).bulk_write, updates, ordered=False, session=self.session)

    def _insert_each(self, request: ask.InsertEach) -> Op[None]:
        collection, documents = self._in(request), request.documents
        with _Duplicates():
            if len(documents) == 1:
                yield partial(collection.insert_one, documents[0], session=self.session)
            else:
                yield partial(collection.insert_many, documents, ordered=True, session=self.session)

    def _delete_one(self, request: ask.DeleteOne) -> Op[bool]:
        result = yield partial(self._in(request).delete_one, request.filter, session=self.session)
        return bool(result.deleted_count)

    def _delete_each(self, request: ask.DeleteEach) -> Op[int]:
        deletes = [pymongo.DeleteOne(which) for which in request.filters]
        result = yield partial(self._in(request).bulk_write, deletes, ordered=False, session=self.session)
        return int(result.deleted_count)

    def _delete_many(self, request: ask.DeleteMany) -> Op[int]:
        result = yield partial(self._in(request).delete_many, request.filter)
        return int(result.deleted_count)

    def _aggregate(self, request: ask.Aggregate) -> Op[list[Any]]:
        hint = {} if request.hint is None else {"hint": request.hint}
        cursor = yield partial(self._in(request).aggregate, list(request.pipeline), **hint)
        documents: list[Any] = yield partial(_all, cursor)
        return documents

    def _list_indexes(self, request: ask.ListIndexes) -> Op[list[str]]:
        cursor = yield partial(self._in(request).list_indexes)
        return [index["name"] for index in (yield partial(_all, cursor))]

    def _create_indexes(self, request: ask.CreateIndexes) -> Op[None]:
        models = [
            IndexModel(
                [(key, 1) for key in index.keys],
                name=index.name,
                **({} if index.only is None else {"partialFilterExpression": index.only}),
            )
            for index in request.indexes
        ]
        yield partial(self._in(request).create_indexes, models)

    def _probe(self, request: ask.Probe) -> Op[bool]:
        # In a transaction, a write that meets another one's does not wait for it, but fails at once.
        session = self._client.start_session()
        try:
            yield session.start_transaction
            change = {"$set": {"probe": request.mark}}
            yield partial(self._in(request).update_one, {"_id": request.id}, change, session=session)
        except OperationFailure as error:
            if error.code != _WRITE_CONFLICT:
                raise
            return False
        else:
            return True
        finally:
            if session.in_transaction:
                yield session.abort_transaction
            yield session.end_session

    def _abort(self, _: ask.Abort) -> Op[None]:
        # The session is not to know: what it is used for afterwards must fail, and not happen outside the transaction.
        yield partial(self._client.admin.command, "abortTransaction", session=self.session)

    def _begin_anew(self, _: ask.BeginAnew) -> Op[None]:
        raise OperationFailure(
            "the transaction began before the message was published",
            _WRITE_CONFLICT,
            {"errorLabels": [TRANSIENT]},
        )
        yield

    _CALLS: ClassVar[Mapping[type, Callable[[Calls, Any], Op[Any]]]] = {
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
    }


class _Duplicates:
    """Turns pymongo's errors for a duplicate key into the one that operations know."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, DuplicateKeyError):
            raise ask.Duplicate from error
        if isinstance(error, BulkWriteError):
            refused = error.details["writeErrors"]
            if refused and all(one["code"] == _DUPLICATE_KEY for one in refused):
                raise ask.Duplicate([one["index"] for one in refused]) from error


def _all(cursor: Any) -> Any:
    return cursor.to_list() if hasattr(cursor, "to_list") else list(cursor)


def _write_concern(client: Any) -> WriteConcern:
    """Return what the client asks for; if it does not say how many are to confirm a write, a majority."""
    given = dict(client.write_concern.document)
    if given.get("w") == 0:
        raise ConfigError("With w=0 MongoDB does not say whether it stored anything; leave w out, or set w=majority.")
    return WriteConcern(**{"w": "majority", **given})
