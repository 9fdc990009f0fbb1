"""The stand-in's transactions are as strict as the server's, as far as harel relies on them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pymongo
import pytest
from pymongo.client_session_shared import _TxnState
from pymongo.errors import DuplicateKeyError, ExecutionTimeout, OperationFailure

from tests.servers.mongo import StandIn

TRANSIENT = "TransientTransactionError"
PATIENCE_S = 60.0


@pytest.fixture
def notes(stand_in: StandIn) -> Iterator[Any]:
    """A collection with a document, outside of transactions."""
    with pymongo.MongoClient[dict[str, Any]](stand_in.url) as client:
        collection = client[f"t{uuid4().hex[:12]}"].notes
        collection.insert_one({"_id": 1, "n": 0})
        yield collection


@pytest.fixture
def session(notes: Any) -> Iterator[Any]:
    """One that is in a transaction which has looked."""
    with notes.database.client.start_session() as session:
        session.start_transaction()
        assert notes.find_one({"_id": 1}, session=session) == {"_id": 1, "n": 0}
        yield session


def conflicts(act: Callable[[], Any]) -> None:
    with pytest.raises(OperationFailure) as raised:
        act()
    assert raised.value.code == 112
    assert raised.value.has_error_label(TRANSIENT)


def is_over(session: Any, notes: Any) -> None:
    """Say that nothing more can be done in its transaction."""
    for act in (lambda: notes.find_one({"_id": 1}, session=session), session.commit_transaction):
        with pytest.raises(OperationFailure) as raised:
            act()
        assert raised.value.code == 251
        assert raised.value.has_error_label(TRANSIENT)


class Behind:
    """A call in a thread, which is to wait for a transaction."""

    def __init__(self, stand_in: StandIn, call: Callable[[], Any]) -> None:
        self._stand_in = stand_in
        self._call = call
        self.result: Any = None
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self.result = self._call()
        except Exception as error:
            self.result = error  # for the test to look at

    def __enter__(self) -> Behind:
        self._thread.start()
        pause = threading.Event()
        for _ in range(30_000):
            if self._stand_in.tell("waiting")["blocked"]:
                return self
            pause.wait(0.002)
        raise AssertionError("it does not wait")

    def __exit__(self, *_: object) -> None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


def test_it_sees_what_there_was_and_its_own_writes(notes: Any, session: Any) -> None:
    notes.update_one({"_id": 1}, {"$inc": {"n": 5}})
    notes.insert_one({"_id": 2, "n": 2})
    notes.insert_one({"_id": 3, "n": 3}, session=session)
    assert notes.find({}, session=session).to_list() == [{"_id": 1, "n": 0}, {"_id": 3, "n": 3}]
    assert notes.find({}).to_list() == [{"_id": 1, "n": 5}, {"_id": 2, "n": 2}]
    session.commit_transaction()
    assert notes.find({}).to_list() == [{"_id": 1, "n": 5}, {"_id": 2, "n": 2}, {"_id": 3, "n": 3}]


def test_nothing_of_one_that_is_aborted_happens(notes: Any, session: Any) -> None:
    notes.delete_one({"_id": 1}, session=session)
    notes.insert_one({"_id": 3, "n": 3}, session=session)
    session.abort_transaction()
    assert notes.find({}).to_list() == [{"_id": 1, "n": 0}]


@pytest.mark.parametrize("how", ["changed", "deleted", "being changed"])
def test_a_write_to_what_another_wrote_since_conflicts_and_aborts(notes: Any, session: Any, how: str) -> None:
    client = notes.database.client
    with client.start_session() as other:
        if how == "changed":
            notes.update_one({"_id": 1}, {"$inc": {"n": 1}})
        elif how == "deleted":
            notes.delete_one({"_id": 1})
        else:
            other.start_transaction()
            notes.update_one({"_id": 1}, {"$inc": {"n": 1}}, session=other)
        conflicts(lambda: notes.update_one({"_id": 1}, {"$set": {"m": 1}}, session=session))
        is_over(session, notes)


def test_an_insert_conflicts_with_one_that_it_does_not_see(notes: Any, session: Any) -> None:
    notes.insert_one({"_id": 2})
    conflicts(lambda: notes.insert_one({"_id": 2}, session=session))
    is_over(session, notes)


def test_a_write_that_changes_nothing_conflicts_with_nothing(notes: Any, session: Any) -> None:
    notes.update_one({"_id": 1}, {"$set": {"n": 0}}, session=session)
    notes.update_one({"_id": 1}, {"$inc": {"n": 1}})
    notes.update_one({"_id": 1}, {"$set": {"n": 0}}, session=session)
    session.commit_transaction()
    assert notes.find_one({"_id": 1}) == {"_id": 1, "n": 1}


def test_any_error_aborts_it(notes: Any, session: Any) -> None:
    with pytest.raises(DuplicateKeyError):
        notes.insert_one({"_id": 1}, session=session)
    is_over(session, notes)


@pytest.mark.parametrize("commits", [True, False])
def test_a_write_outside_waits_for_its_end(stand_in: StandIn, notes: Any, session: Any, commits: bool) -> None:
    notes.update_one({"_id": 1}, {"$set": {"n": 7}}, session=session)
    with Behind(stand_in, lambda: notes.update_one({"_id": 1}, {"$inc": {"n": 1}})):
        assert notes.find_one({"_id": 1}) == {"_id": 1, "n": 0}
        session.commit_transaction() if commits else session.abort_transaction()
    assert notes.find_one({"_id": 1}) == {"_id": 1, "n": 8 if commits else 1}


def test_so_does_an_insert_and_then_it_is_a_duplicate(stand_in: StandIn, notes: Any, session: Any) -> None:
    notes.insert_one({"_id": 2}, session=session)
    with Behind(stand_in, lambda: notes.insert_one({"_id": 2})) as behind:
        session.commit_transaction()
    assert isinstance(behind.result, DuplicateKeyError)


def test_a_batch_that_waits_has_done_nothing_twice(stand_in: StandIn, notes: Any, session: Any) -> None:
    notes.update_one({"_id": 1}, {"$set": {"n": 7}}, session=session)
    batch = [pymongo.UpdateOne({"_id": place}, {"$inc": {"n": 1}}, upsert=True) for place in (2, 1, 3)]
    with Behind(stand_in, lambda: notes.bulk_write(batch)):
        session.commit_transaction()
    assert {one["_id"]: one["n"] for one in notes.find({})} == {1: 8, 2: 1, 3: 1}


def test_it_waits_no_longer_than_it_may(notes: Any, session: Any) -> None:
    notes.update_one({"_id": 1}, {"$set": {"n": 7}}, session=session)
    with pytest.raises(ExecutionTimeout) as raised:
        notes.find_one_and_update({"_id": 1}, {"$inc": {"n": 1}}, maxTimeMS=20)
    assert raised.value.code == 50


def test_a_commit_that_is_sent_again_is_answered_again(notes: Any, session: Any) -> None:
    notes.insert_one({"_id": 2}, session=session)
    session.commit_transaction()
    session.commit_transaction()
    assert len(notes.find({}).to_list()) == 2


def test_what_is_open_for_too_long_is_aborted(stand_in: StandIn, notes: Any) -> None:
    stand_in.tell("set", name="transaction_s", value=0.05)
    try:
        with notes.database.client.start_session() as session:
            session.start_transaction()
            notes.update_one({"_id": 1}, {"$set": {"n": 7}}, session=session)
            notes.update_one({"_id": 1}, {"$inc": {"n": 1}})  # waits until then
            assert notes.find_one({"_id": 1}) == {"_id": 1, "n": 1}
            is_over(session, notes)
    finally:
        stand_in.tell("set", name="transaction_s", value=60.0)


def test_the_next_transaction_of_a_session_ends_the_one_before(stand_in: StandIn, notes: Any, session: Any) -> None:
    notes.insert_one({"_id": 2}, session=session)
    assert stand_in.tell("waiting")["open"] == 1
    session._transaction.state = _TxnState.NONE  # it forgets, and the server does not
    session.start_transaction()
    notes.insert_one({"_id": 2}, session=session)
    assert stand_in.tell("waiting")["open"] == 1
    session.commit_transaction()


def test_the_end_of_a_session_is_the_end_of_its_transaction(stand_in: StandIn, notes: Any) -> None:
    with pymongo.MongoClient[dict[str, Any]](stand_in.url) as client:
        session = client.start_session()
        session.start_transaction()
        client[notes.database.name].notes.insert_one({"_id": 2}, session=session)
        assert stand_in.tell("waiting")["open"] == 1
        session._transaction.state = _TxnState.NONE  # it forgets, and the server does not
        session.end_session()
    assert stand_in.tell("waiting")["open"] == 0


def test_a_server_alone_has_none(alone: StandIn) -> None:
    with pymongo.MongoClient[dict[str, Any]](alone.url) as client, client.start_session() as session:
        session.start_transaction()
        with pytest.raises(OperationFailure, match="only allowed on a replica set member or mongos") as raised:
            client.t.notes.insert_one({"_id": 1}, session=session)
        assert raised.value.code == 20


def test_indexes_and_drops_are_not_for_transactions(notes: Any, session: Any) -> None:
    with pytest.raises(OperationFailure) as raised:
        notes.database.command("drop", "notes", session=session)
    assert raised.value.code == 263
