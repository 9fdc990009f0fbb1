"""Servers that cannot be reached, refuse, hang or go; clients of the caller's; forks; tasks that are cancelled."""

from __future__ import annotations

import asyncio
import multiprocessing
import socket
import threading
import warnings
from typing import Any

import pymongo
import pytest
from bson.son import SON

import harel
from harel import ConfigError, Event, HarelError, InvalidArgument, TransportUnavailable
from harel.config import Environment
from harel.engine.aio_transport import AsyncMongoTransport
from harel.engine.transport import MongoTransport
from tests.mongo.conftest import Twin, lets_sockets_go
from tests.servers.mongo import StandIn

EVENT = Event("noted", {"n": 1})


@lets_sockets_go
@pytest.mark.parametrize("listens", [False, True])
def test_a_server_that_cannot_be_reached_is_named(lonely: Twin, listens: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        if not listens:
            listener.close()
        with pytest.raises(TransportUnavailable, match=address) as raised:
            lonely.open(f"mongodb://user:the-secret@{address}/", timeout=0.2).stats()
    assert "the-secret" not in str(raised.value)
    assert "Topology" not in str(raised.value)
    assert raised.value.__cause__ is not None


def test_a_reply_that_does_not_come_in_time_is_an_error_and_not_the_next_callers(twin: Twin, stand_in: StandIn) -> None:
    queue, patient = twin.open(timeout=3.0), twin.open()
    patient.publish("g", EVENT)
    stand_in.fail("findAndModify", "hang", times=2)
    with pytest.raises(TransportUnavailable, match=stand_in.address):
        queue.claim("w", 30.0)
    stand_in.lift()
    transport: Any = getattr(queue, "inner", queue)
    assert transport._mongo_ops.server_clock.moment() is None  # another server may answer next
    assert patient.stats().messages == 1
    queue.publish("h", EVENT)
    assert [message.event for message in queue.peek("h")] == [EVENT]


@lets_sockets_go
def test_a_server_that_went_is_an_error_in_the_time_asked_for(lonely: Twin) -> None:
    with StandIn() as server:
        queue = lonely.open(server.url, timeout=3.0)
    with pytest.raises(TransportUnavailable, match=server.address):
        queue.publish("g", EVENT)


def test_a_password_is_never_shown(twin: Twin) -> None:
    with StandIn(locked=True) as locked:
        url = f"mongodb://somebody:the-secret@{locked.address}/?authMechanism=SCRAM-SHA-256"
        with pytest.raises(ConfigError, match=locked.address) as refused:
            twin.open(url)
        assert "the-secret" not in f"{refused.value}{refused.value.__cause__}"
        with pytest.raises(ConfigError, match="readWrite"):
            twin.open(locked.url)


def test_a_repr_names_the_server_and_the_queue_and_no_password(stand_in: StandIn) -> None:
    transport = AsyncMongoTransport.from_url(f"mongodb://me:the-secret@{stand_in.address}/", prefix="orders")
    assert repr(transport) == f"<AsyncMongoTransport mongodb://{stand_in.address}/harel#orders>"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("mongodb://me:the-secr@t:x@host/", "cannot read this MongoDB URL"),
        ("mongodb://me:p?the-secret@host/", "cannot use an option of this MongoDB URL"),
        ("mongodb://host:the-secret/", "Port"),
        ("mongodb:///", "Empty host"),
        ("mongodb://host/?prefx=orders", "the option 'prefx'"),
        ("mongodb://host/?w=0", "w=0"),
        ("mongodb://host/?timeout=0", "timeout"),
        ("mongodb://host/?poll_interval=-1", "poll_interval"),
        ("mongodb://host/?prefix=a-b", "prefix"),
        ("mongodb://host/?db_name=a.b", "db_name"),
        ("mongodb://host/?create_schema=perhaps", "create_schema"),
        ("mongodb://host/?connectTimeoutMS=soon", "the option 'connectTimeoutMS'"),
    ],
)
async def test_a_url_that_is_not_usable_says_why(url: str, says: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ConfigError, match=says) as raised:
            harel.connect(url)
        with pytest.raises(ConfigError, match=says):
            await harel.connect_async(url)
    assert "the-secr" not in f"{raised.value}"


def test_connect_takes_out_its_own_options_and_passes_on_the_drivers(twin: Twin, stand_in: StandIn) -> None:
    own = f"db_name={twin.db_name}&prefix=orders&poll_interval=0.5&fresh_first=false&timeout=7"
    with harel.connect(f"mongodb://{stand_in.address}?{own}&appname=mine") as queue:
        client: Any = queue._client  # type: ignore[attr-defined]
        assert client.options.pool_options.metadata["application"]["name"] == "mine"
        assert client.options.timeout == 7.0
        assert f"{twin.db_name}#orders" in repr(queue)
        queue.publish("g", EVENT)
        assert queue.groups()[0].since > 1e9
    with harel.connect(f"{stand_in.url}?{own}&timeoutMS=3000") as queue:
        assert queue._client.options.timeout == 3.0  # type: ignore[attr-defined]


def test_the_environment_names_the_server_and_the_database(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch, sync_twin: Twin
) -> None:
    monkeypatch.setenv("STM_TRANSPORT_BACKEND", "mongo")
    monkeypatch.delenv("STM_MONGO_URL", raising=False)
    with pytest.raises(ConfigError, match=r"STM_MONGO_URL is not set; it takes a URL such as mongodb://"):
        Environment.read()
    monkeypatch.setenv("STM_MONGO_URL", f"mongodb://{stand_in.address}/?appname=a")
    assert Environment.read().url == f"mongodb://{stand_in.address}/?appname=a&db_name=harel"
    monkeypatch.setenv("STM_MONGO_DB", sync_twin.db_name)
    with harel.connect_from_env() as queue:
        assert isinstance(queue, MongoTransport)
        assert sync_twin.db_name in repr(queue)


def test_a_client_of_the_callers_is_not_closed(twin: Twin) -> None:
    client = twin.client()
    queue = twin.open_on(client)
    queue.publish("g", EVENT)
    queue.close()
    assert twin.wait_for(client.admin.command("ping"))["ok"] == 1.0
    with pytest.raises(InvalidArgument, match="closed"):
        queue.publish("g", EVENT)


def test_a_client_that_its_owner_closed_is_an_error(twin: Twin) -> None:
    client = twin.client()
    queue = twin.open_on(client)
    twin.wait_for(client.close())
    with pytest.raises(HarelError):
        queue.publish("g", EVENT)


@pytest.mark.parametrize(
    "options",
    [
        {"tz_aware": True},
        {"document_class": SON},
        {"w": 1},
        {"w": "majority", "journal": True},
        {"readPreference": "secondaryPreferred"},
        {"readConcernLevel": "local"},
    ],
    ids=str,
)
def test_a_client_of_any_kind_serves(twin: Twin, options: dict[str, Any]) -> None:
    queue = twin.open_on(twin.client(**options))
    queue.publish("g", EVENT)
    lease = queue.claim("w", 30.0)
    assert lease is not None
    assert lease.event == EVENT
    assert queue.reject(lease, "why")
    assert queue.redrive(lease.seq)
    assert queue.stats().messages == 1


def test_another_kind_of_client_is_refused(twin: Twin, stand_in: StandIn) -> None:
    other = pymongo.MongoClient[Any](stand_in.url) if twin.is_async else pymongo.AsyncMongoClient[Any](stand_in.url)
    with pytest.raises(ConfigError, match="takes a"):
        twin.kind(other)
    if twin.is_async:
        other.close()


def test_a_majority_is_asked_for_unless_the_client_says_otherwise(twin: Twin, stand_in: StandIn) -> None:
    def concerns(**options: Any) -> tuple[Any, Any]:
        queue: Any = twin.open_on(twin.client(**options), prefix=f"p{len(options)}")
        database = getattr(queue, "inner", queue)._calls._database
        return database.write_concern.document, database.read_concern.level

    assert concerns() == ({"w": "majority"}, "majority")
    assert concerns(journal=True) == ({"w": "majority", "j": True}, "majority")
    assert concerns(w=1) == ({"w": 1}, "local")
    with pytest.raises(ConfigError, match="w=0"):
        twin.open_on(twin.client(w=0))


def test_closing_wakes_who_waits(sync_twin: Twin) -> None:
    queue = sync_twin.open(poll_interval=3_600.0)
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            queue.wait(3_600.0)
        except HarelError as error:  # of what kind depends on whether it looked or slept
            raised.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    queue.close()
    waiting.join(60.0)
    assert not waiting.is_alive()
    assert raised


def _in_child(queue: MongoTransport, answers: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            queue.publish("child", EVENT)
            lease = queue.claim("child", 30.0)
            answers.put(lease.group_id if lease else None)
            queue.close()
        except BaseException as error:
            answers.put(repr(error))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_child_of_a_fork_connects_anew_and_leaves_its_parent_alone(sync_twin: Twin) -> None:
    queue: Any = sync_twin.open()
    queue.publish("parent", EVENT)
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    child = context.Process(target=_in_child, args=(queue, answers))
    child.start()
    assert answers.get() == "parent"
    child.join(60.0)
    assert child.exitcode == 0
    lease = queue.claim("w", 30.0)
    assert lease is not None
    assert lease.group_id == "child"
    assert queue.ack(lease)


async def test_a_task_that_is_cancelled_leaves_nothing_broken(stand_in: StandIn, sync_twin: Twin) -> None:
    async with AsyncMongoTransport.from_url(stand_in.url, db_name=sync_twin.db_name) as queue:
        await queue.publish("g", EVENT)
        for command, operation in (
            ("findAndModify", queue.publish("g", EVENT)),
            ("insert", queue.publish("g", EVENT)),
            ("update", queue.publish("g", EVENT)),
            ("find", queue.claim("w", 30.0)),
        ):
            stand_in.fail(command, "hang")
            task: asyncio.Task[Any] = asyncio.create_task(operation)
            await asyncio.to_thread(stand_in.wait_until_it_hangs)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            stand_in.lift()
            assert (await queue.stats()).groups == 1
        # What was under way when it was cancelled happened or did not; the claim runs out with its visibility.
        assert (await queue.stats()).leased == 1
        assert 2 <= len(await queue.peek("g")) <= 4


async def test_many_tasks_share_a_transport(stand_in: StandIn, sync_twin: Twin) -> None:
    async with AsyncMongoTransport.from_url(stand_in.url, db_name=sync_twin.db_name) as queue:
        await asyncio.gather(*(queue.publish(f"g{n}", EVENT) for n in range(60)))
        leases = await asyncio.gather(*(queue.claim("w", 30.0) for _ in range(60)))
        assert len({lease.group_id for lease in leases if lease is not None}) == 60
        assert all(await asyncio.gather(*(queue.ack(lease) for lease in leases if lease is not None)))
        assert (await queue.stats()).groups == 0


def test_a_counter_that_was_set_back_is_said_so(twin: Twin, stand_in: StandIn) -> None:
    queue = twin.open()
    queue.publish("g", EVENT)
    with pymongo.MongoClient[dict[str, Any]](stand_in.url) as client:
        client[twin.db_name]["transport_counters"].update_one({"_id": "seq"}, {"$set": {"n": 0}})
    with pytest.raises(HarelError, match="Message 1 exists: the counter of messages was set back"):
        queue.publish("g", EVENT)
    queue.publish("g", EVENT)
    assert [message.seq for message in queue.peek("g")] == [1, 2]
