"""Collections and indexes: made where they are missing, left alone where they are, refused where they are newer."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pymongo
import pytest

from harel import ConfigError, Event, SchemaMismatch
from harel.engine.queue.mongo.ops import schema_ddl
from harel.engine.queue.mongo.schema import INDEXES, SCHEMA_VERSION
from harel.engine.transport import MongoTransport
from tests.mongo.conftest import Twin, seen_by
from tests.servers.mongo import StandIn

WANTED = {
    "transport_messages": {"_id_", "group"},
    "transport_locks": {"_id_", *(f"claimable_{floor}" for floor in range(5))},
    "transport_dead_letters": {"_id_", "state", "group"},
}


def indexes_in(stand_in: StandIn, database: str, prefix: str = "transport") -> dict[str, set[str]]:
    with pymongo.MongoClient[dict[str, Any]](stand_in.url) as client:
        return {name: set(client[database][name.replace("transport", prefix)].index_information()) for name in WANTED}


def test_every_index_is_made_also_for_a_client_that_was_handed_in(twin: Twin, stand_in: StandIn) -> None:
    twin.open_on(twin.client())
    assert indexes_in(stand_in, twin.db_name) == WANTED
    twin.open(prefix="orders")
    assert indexes_in(stand_in, twin.db_name, "orders") == WANTED


def test_a_layout_that_is_there_is_only_read(twin: Twin, stand_in: StandIn) -> None:
    twin.open()
    stand_in.log()
    twin.open(create_schema=False)
    twin.open()
    commands = {work["command"] for work in seen_by(twin.db_name, stand_in.log())}
    assert commands == {"find", "listIndexes"}


def test_an_index_that_was_dropped_is_made_again(twin: Twin, stand_in: StandIn) -> None:
    twin.open()
    with pymongo.MongoClient[dict[str, Any]](stand_in.url) as client:
        client[twin.db_name].drop_collection("transport_locks")
    with pytest.raises(SchemaMismatch, match=r"Missing: locks\.claimable_0, locks\.claimable_1"):
        twin.open(create_schema=False)
    twin.open()
    assert indexes_in(stand_in, twin.db_name) == WANTED


def test_without_create_schema_nothing_is_made(twin: Twin, stand_in: StandIn) -> None:
    with pytest.raises(SchemaMismatch, match="Run what `harel schema mongo` prints"):
        twin.open(create_schema=False)
    assert {work["command"] for work in seen_by(twin.db_name, stand_in.log())} == {"find", "listIndexes"}


def test_indexes_without_the_version_are_no_layout(twin: Twin, stand_in: StandIn) -> None:
    twin.open()
    with pymongo.MongoClient[dict[str, Any]](stand_in.url) as client:
        client[twin.db_name]["transport_counters"].delete_one({"_id": "schema"})
    with pytest.raises(SchemaMismatch, match="Missing: the version document"):
        twin.open(create_schema=False)
    twin.open()
    twin.open(create_schema=False)


def test_a_newer_layout_is_refused_and_left_alone(twin: Twin, stand_in: StandIn) -> None:
    twin.open().publish("g", Event("k"))
    with pymongo.MongoClient[dict[str, Any]](stand_in.url) as client:
        counters = client[twin.db_name]["transport_counters"]
        counters.update_one({"_id": "schema"}, {"$set": {"version": SCHEMA_VERSION + 1}})
        stand_in.log()
        with pytest.raises(SchemaMismatch, match=f"has version {SCHEMA_VERSION + 1} of the layout"):
            twin.open()
        assert {work["command"] for work in seen_by(twin.db_name, stand_in.log())} == {"find"}


def test_many_that_open_at_once_make_it_once(sync_twin: Twin, stand_in: StandIn) -> None:
    def open_and_publish(name: str) -> None:
        with MongoTransport.from_url(stand_in.url, db_name=sync_twin.db_name) as queue:
            queue.publish(name, Event("k"))

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(open_and_publish, "abcdef"))
    assert sync_twin.open().stats().groups == 6


def test_what_is_printed_for_a_migration_tool_is_what_is_made(sync_twin: Twin, stand_in: StandIn) -> None:
    """Run the statements as ``mongosh`` would."""
    with pymongo.MongoClient[dict[str, Any]](stand_in.url) as client:
        for line in schema_ddl("orders").splitlines():
            found = re.fullmatch(r"db\.(\w+)\.(\w+)\((.*)\);", line)
            assert found is not None, line
            collection = client[sync_twin.db_name][found[1]]
            arguments = json.loads(f"[{found[3]}]")
            if found[2] == "createIndex":
                collection.create_index(list(arguments[0].items()), **arguments[1])
            else:
                collection.update_one(*arguments[:2], **arguments[2])
    sync_twin.open(prefix="orders", create_schema=False).publish("g", Event("k"))
    assert len(schema_ddl().splitlines()) == len(INDEXES) + 1
    with pytest.raises(ConfigError, match="prefix"):
        schema_ddl("a; b")


def test_an_older_server_is_refused(twin: Twin) -> None:
    with StandIn(wire_version=9) as old, pytest.raises(ConfigError, match=r"MongoDB 5\.0 or later"):
        twin.open(old.url)
