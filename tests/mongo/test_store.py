"""The stand-in does what MongoDB does: compared with mongomock where that knows it, and stricter nowhere by mistake."""

from __future__ import annotations

import itertools
import random
from typing import Any

import mongomock
import pymongo
import pytest
from bson.int64 import Int64
from pymongo.errors import BulkWriteError, DocumentTooLarge, OperationFailure

from tests.servers.mongo import StandIn
from tests.servers.mongo_store import Refused, Store, key_of

QUERIES: list[dict[str, Any]] = [
    {"_id": "a"},
    {"_id": {"$in": ["a", "c", "nobody"]}},
    {"held": False, "n": {"$lte": 3}},
    {"held": False, "n": {"$lte": 3}, "p": {"$gte": 2}},
    {"held": False, "n": {"$gt": 1}, "token": None},
    {"held": False, "n": {"$gt": 1}, "token": {"$ne": None}},
    {"held": True},
    {"_id": {"$gt": "b"}},
    {"_id": {"$ne": "b"}, "held": False},
    {"_id": "a", "tokens": "x"},
    {"_id": "b", "into": {"$in": [None, 7]}},
    {"_id": "a", "into": {"$in": [None, 7]}},
    {"_id": "a", "n": 1, "token": None},
    {"_id": "a", "n": 1.0},
]
DOCUMENTS: list[dict[str, Any]] = [
    {"_id": "a", "held": False, "n": 1, "p": 0, "token": None, "tokens": ["x", "y"]},
    {"_id": "b", "held": False, "n": 2.5, "p": 2, "token": "t", "into": 7},
    {"_id": "c", "held": True, "n": 3, "p": 4, "token": "u", "into": 8},
    {"_id": "d", "held": False, "n": 4, "p": 3, "token": None, "into": None},
    {"_id": "e", "held": False, "p": 1},
]
UPDATES: list[dict[str, Any]] = [
    {"$set": {"n": 9, "token": "new"}},
    {"$set": {"token": None}, "$inc": {"n": 2}},
    {"$inc": {"made": 1}},
    {"$unset": {"token": ""}},
    {"$max": {"n": 3}},
    {"$addToSet": {"tokens": "x"}, "$setOnInsert": {"k": 1}},
    {"$addToSet": {"tokens": "z"}},
    {"$inc": {"version": 1}, "$setOnInsert": {"held": False, "n": 0}},
]
INDEXES = [[("held", 1), ("n", 1)], [("held", 1), ("p", 1)]]

Pair = tuple[Any, Any]


@pytest.fixture
def both(stand_in: StandIn) -> Any:
    """The same collection here and there."""
    with pymongo.MongoClient[dict[str, Any]](stand_in.url) as client:
        ours = client["compared"]["c"]
        other: Any = mongomock.MongoClient()["compared"]["c"]
        ours.drop()
        for collection in (ours, other):
            for keys in INDEXES:
                collection.create_index(keys)
        yield ours, other


def _refill(both: Pair) -> None:
    for collection in both:
        for document in DOCUMENTS:
            collection.delete_one({"_id": document["_id"]})
        collection.delete_one({"_id": "nobody"})
        collection.insert_many([dict(document) for document in DOCUMENTS])


def _all(collection: Any) -> list[dict[str, Any]]:
    return list(collection.find({}).sort("_id", 1))


@pytest.mark.parametrize("query", QUERIES, ids=str)
def test_a_query_finds_the_same(both: Pair, query: dict[str, Any]) -> None:
    _refill(both)
    ours, other = (sorted(one["_id"] for one in collection.find(query)) for collection in both)
    assert ours == other


def test_a_boolean_is_no_number(both: Pair) -> None:
    _refill(both)
    assert list(both[0].find({"_id": "a", "n": True})) == []


@pytest.mark.parametrize("upsert", [False, True])
@pytest.mark.parametrize("update", UPDATES, ids=str)
@pytest.mark.parametrize("query", [{"_id": "a"}, {"_id": "nobody"}, {"_id": "b", "token": "t"}], ids=str)
def test_an_update_changes_the_same(both: Pair, query: dict[str, Any], update: dict[str, Any], upsert: bool) -> None:
    _refill(both)
    results = [collection.update_one(query, update, upsert=upsert) for collection in both]
    assert results[0].matched_count == results[1].matched_count
    assert results[0].upserted_id == results[1].upserted_id
    assert _all(both[0]) == _all(both[1])


def test_find_and_modify_changes_and_returns_the_first_in_order(both: Pair) -> None:
    _refill(both)
    for _ in range(5):
        answers = [
            collection.find_one_and_update(
                {"held": False, "n": {"$lte": 10}},
                {"$set": {"n": 20}},
                sort=[("n", 1)],
                return_document=pymongo.ReturnDocument.AFTER,
            )
            for collection in both
        ]
        assert answers[0] == answers[1]
    assert _all(both[0]) == _all(both[1])


def test_an_aggregation_groups_the_same(both: Pair) -> None:
    _refill(both)
    for collection in both:
        collection.delete_one({"_id": "e"})
    kind = {"held": "$held", "ready": {"$lte": ["$n", 3]}, "has": {"$ne": ["$token", None]}}
    pipeline = [{"$group": {"_id": kind, "n": {"$sum": 1}, "oldest": {"$min": "$n"}}}]
    ours, other = (
        sorted((sorted(one["_id"].items()), one["n"], one["oldest"]) for one in collection.aggregate(pipeline))
        for collection in both
    )
    assert ours == other


def test_keys_are_in_the_order_of_bson() -> None:
    ascending = [None, -1.5, 0, 2, 2.5, "", "Z", "a", "é", "\uffff", "\U00010000", False, True]
    descending = list(reversed(ascending))
    assert sorted(descending, key=key_of) == ascending
    with pytest.raises(Refused):
        key_of(object())


def test_what_an_index_holds_is_what_is_there_after_any_changes() -> None:
    store, chance = Store(), random.Random(5)
    name = {"$db": "d"}
    specs = [
        {"name": "n", "key": {"held": 1, "n": 1}},
        {"name": "p", "key": {"held": 1, "n": 1}, "partialFilterExpression": {"p": {"$gte": 2}}},
    ]
    store.run({"createIndexes": "c", "indexes": specs, **name})
    for step in range(400):
        which = {"_id": chance.randrange(20)}
        if chance.random() < 0.3:
            store.run({"delete": "c", "deletes": [{"q": which, "limit": 1}], **name})
        else:
            change = {"$set": {"held": chance.random() < 0.5, "n": chance.randrange(9), "p": chance.randrange(4)}}
            store.run({"update": "c", "updates": [{"q": which, "u": change, "upsert": True}], **name})
        collection = store.databases["d"]["c"]
        for index in collection.indexes.values():
            entries = (index.entry(document) for document in collection.documents.values())
            assert index.entries == sorted(entry for entry in entries if entry is not None), step


def test_bounds_of_a_walk_are_exact() -> None:
    store = Store()
    name = {"$db": "d"}
    store.run({"createIndexes": "c", "indexes": [{"name": "n", "key": {"g": 1, "n": 1}}], **name})
    values: list[Any] = [None, "x", True, *range(6)]
    documents = [
        {"_id": place, "g": group, "n": n} for place, (group, n) in enumerate(itertools.product("abc", values))
    ]
    store.run({"insert": "c", "documents": documents, **name})
    for operator, bound in itertools.product(("$gt", "$gte", "$lt", "$lte"), (-1, 0, 2, 5, 9, "x")):
        store.log.clear()
        query = {"g": "b", "n": {operator: bound}}
        reply = store.run({"find": "c", "filter": query, "batchSize": 99, **name})
        assert store.log[0].documents == len(reply["cursor"]["firstBatch"]), query


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ({"find": "c", "filter": {"n": 1}}, 291),
        ({"find": "c", "filter": {"_id": 1}, "sort": {"n": 1}}, 291),
        ({"find": "c", "filter": {"$where": "1"}}, 2),
        ({"find": "c", "filter": {"_id": {"$regex": "a"}}}, 2),
        ({"find": "c", "filters": {}}, 40415),
        ({"find": "c", "filter": {"_id": 1}, "hint": "nothing"}, 2),
        ({"find": "c", "filter": {"_id": 1}, "writeConcern": {"w": 1}}, 40415),
        ({"insert": "c", "documents": [{"_id": 1}], "readConcern": {"level": "majority"}}, 40415),
        ({"find": "c", "filter": {"_id": 1}, "readConcern": {"level": "snapshot"}}, 2),
        ({"update": "c", "updates": [{"q": {"_id": 1}, "u": {"n": 1}}]}, 9),
        ({"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$rename": {"n": 1}}}]}, 9),
        ({"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"n": 1}, "$inc": {"n": 1}}}]}, 40),
        ({"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"_id": 2}}}]}, 66),
        ({"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"text": 1}}}]}, 14),
        ({"insert": "c", "documents": [{"_id": 1}]}, 11000),
        ({"insert": "c", "documents": []}, 2),
        ({"delete": "c", "deletes": [{"q": {}, "limit": 7}]}, 9),
        ({"mapReduce": "c"}, 59),
        ({"listIndexes": "nobody"}, 26),
        ({"getMore": 5, "collection": "c"}, 43),
        ({"aggregate": "c", "pipeline": [{"$out": "d"}], "cursor": {}}, 40324),
        ({"createIndexes": "c", "indexes": [{"name": "n", "key": {"b": 1}}]}, 86),
        ({"createIndexes": "c", "indexes": [{"name": "again", "key": {"a": 1, "n": 1}}]}, 85),
    ],
    ids=str,
)
def test_what_the_server_refuses_is_refused(command: dict[str, Any], code: int) -> None:
    store = Store()
    store.run({"insert": "c", "documents": [{"_id": 1, "text": "t"}], "$db": "d"})
    store.run({"createIndexes": "c", "indexes": [{"name": "n", "key": {"a": 1, "n": 1}}], "$db": "d"})
    try:
        reply = store.run({**command, "$db": "d"})
        codes = [error["code"] for error in reply["writeErrors"]]
    except Refused as refused:
        codes = [refused.code]
    assert codes == [code]


def test_several_partial_indexes_on_the_same_fields_are_no_duplicates() -> None:
    store = Store()
    specs = [
        {"name": f"n{floor}", "key": {"n": 1}, "partialFilterExpression": {"p": {"$gte": floor}}} for floor in (1, 2)
    ]
    for _ in range(2):
        reply = store.run({"createIndexes": "c", "indexes": [{"name": "n", "key": {"n": 1}}, *specs], "$db": "d"})
    assert reply["numIndexesAfter"] == 4
    store.run({"insert": "c", "documents": [{"_id": 1, "n": 1, "p": 1}], "$db": "d"})
    with pytest.raises(Refused):
        store.run({"find": "c", "filter": {"n": 1}, "hint": "n2", "$db": "d"})


def test_a_document_larger_than_16_mib_is_refused_by_the_server_too(stand_in: StandIn) -> None:
    with pymongo.MongoClient[dict[str, Any]](stand_in.url) as client:
        collection = client["large"]["c"]
        with pytest.raises((DocumentTooLarge, OperationFailure)):
            collection.insert_one({"_id": 1, "text": "x" * 2**24})
        collection.insert_one({"_id": 1, "text": "x" * (2**24 - 1_000)})
        with pytest.raises(OperationFailure) as raised:
            collection.update_one({"_id": 1}, {"$set": {"more": "x" * 2_000}})
        assert raised.value.code == 10334
        client.drop_database("large")


def test_a_server_alone_takes_no_transaction_numbers(alone: StandIn) -> None:
    with pymongo.MongoClient[dict[str, Any]](alone.url) as client, client.start_session() as session:
        command = {"insert": "c", "documents": [{"_id": 1}], "txnNumber": Int64(1)}
        with pytest.raises(OperationFailure, match="only allowed on a replica set member") as raised:
            client["d"].command(command, session=session)
        assert raised.value.code == 20


def test_many_are_found_in_parts(stand_in: StandIn) -> None:
    with pymongo.MongoClient[dict[str, Any]](stand_in.url) as client:
        collection = client["parts"]["c"]
        collection.drop()
        collection.insert_many([{"_id": n, "text": "x" * (2**20 if n < 40 else 1)} for n in range(300)])
        stand_in.log()
        assert [one["_id"] for one in collection.find({}).sort("_id", 1)] == list(range(300))
        commands = [work["command"] for work in stand_in.log() if work["database"] == "parts"]
        assert commands[0] == "find"
        assert commands[1:] == ["getMore"] * 2
        with pytest.raises(BulkWriteError):
            collection.insert_many([{"_id": n} for n in (1_000, 5, 1_001)])
        assert collection.find_one({"_id": 1_000}) == {"_id": 1_000}
        assert collection.find_one({"_id": 1_001}) is None
        client.drop_database("parts")
