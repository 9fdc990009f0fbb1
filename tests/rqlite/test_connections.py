"""Connections: redirections, passwords, TLS, forks, clients of the caller's, and what ends in the middle."""

from __future__ import annotations

import asyncio
import base64
import logging
import socket
import ssl
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

import harel
from harel import ConfigError, Event, HarelError, InvalidArgument, Message, SchemaMismatch, Transport
from harel.engine.aio_transport import AsyncRqliteTransport
from harel.engine.queue.contract import Lease
from harel.engine.queue.rqlite.ops import schema_ddl
from harel.engine.queue.sqlite import ops as sqlite
from harel.engine.transport import RqliteTransport
from tests.rqlite.certificates import Authority
from tests.rqlite.conftest import PATIENT_S, Twin
from tests.servers.rqlite_server import StandIn

EVENT = Event("noted", {"n": 1})
PASSWORD = "pa:s%25s@w/rd"  # as a URL has it, the @ is the last one's to the left
SECRETS = ("pa:s%s@w/rd", PASSWORD, base64.b64encode(b"me:pa:s%s@w/rd").decode())


def _free_port() -> int:
    """Return a port of which it is sure that nobody listens: it stays bound."""
    holder = socket.socket()
    holder.bind(("127.0.0.1", 0))
    _held.append(holder)
    port: int = holder.getsockname()[1]
    return port


_held: list[socket.socket] = []


@pytest.fixture(scope="module", autouse=True)
def _let_go() -> Any:
    yield
    for holder in _held:
        holder.close()
    _held.clear()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


def _asked_nodes(cluster: StandIn) -> list[int]:
    nodes = [asked.node for asked in cluster.asked]
    cluster.asked.clear()
    return nodes


# Each operation is one request.

OPERATIONS: dict[str, Callable[[Transport, list[Lease]], object]] = {
    "publish": lambda queue, _: queue.publish("a", EVENT),
    "publish_many": lambda queue, _: queue.publish_many(Message(f"g{n}", EVENT) for n in range(50)),
    "claim": lambda queue, _: queue.claim("w", 30.0),
    "claim_many": lambda queue, _: queue.claim_many("w", 30.0, 50),
    "ack": lambda queue, leases: queue.ack(leases[0]),
    "ack_many": lambda queue, leases: queue.ack_many(leases),
    "nack": lambda queue, leases: queue.nack(leases[0], 5.0),
    "extend": lambda queue, leases: queue.extend(leases[0], 5.0),
    "extend_many": lambda queue, leases: queue.extend_many(leases, 5.0),
    "reject": lambda queue, leases: queue.reject(leases[0], "why"),
    "wait": lambda queue, _: queue.wait(0.0),
    "stats": lambda queue, _: queue.stats(),
    "groups": lambda queue, _: queue.groups(),
    "peek": lambda queue, _: queue.peek("a"),
    "hold": lambda queue, _: queue.hold("a"),
    "release": lambda queue, _: queue.release("a"),
    "purge": lambda queue, _: queue.purge("a"),
    "dead_letters": lambda queue, _: queue.dead_letters(),
    "redrive": lambda queue, _: queue.redrive(1),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_is_one_request_promise_10(twin: Twin, cluster: StandIn, name: str) -> None:
    queue = twin.open(cluster.url)
    queue.publish_many(Message(f"g{number}", EVENT) for number in range(20))
    leases = queue.claim_many("w", 30.0, 10)
    cluster.asked.clear()
    OPERATIONS[name](queue, leases)
    assert len(cluster.asked) == 1
    assert ("transaction" in cluster.asked[0].query) == (cluster.asked[0].path == "/db/request")


def test_an_open_schema_is_seen_with_two_looks_and_made_with_one_request(twin: Twin, cluster: StandIn) -> None:
    twin.open(cluster.url)
    assert [asked.path for asked in cluster.asked] == ["/db/query", "/db/request", "/db/query", "/db/query"]
    cluster.asked.clear()
    twin.open(cluster.url)
    assert {asked.path for asked in cluster.asked} == {"/db/query"}


# The leader.


def test_a_request_goes_where_the_leader_is_and_the_next_ones_at_once(twin: Twin, cluster: StandIn) -> None:
    cluster.leader = 2
    queue = twin.open(cluster.url)
    assert _asked_nodes(cluster)[:3] == [0, 2, 2]
    queue.publish("g", EVENT)
    cluster.leader = 1
    queue.publish("g", EVENT)
    queue.publish("g", EVENT)
    assert _asked_nodes(cluster) == [2, 2, 1, 1]


def test_a_password_goes_along_to_the_leader(twin: Twin) -> None:
    with StandIn(2, users={"me": "pa:s%s@w/rd"}) as cluster:
        cluster.leader = 1
        queue = twin.open(cluster.url_of("me", PASSWORD))
        queue.publish("g", EVENT)
        assert {asked.node for asked in cluster.asked} == {0, 1}
        assert {asked.authorization for asked in cluster.asked} == {f"Basic {SECRETS[2]}"}


def test_a_node_that_may_not_redirect_passes_requests_on(twin: Twin, cluster: StandIn) -> None:
    cluster.leader = 2
    cluster.advertised[2] = f"http://localhost:{_free_port()}"
    queue = twin.open(cluster.url, redirect=False)
    queue.publish("g", EVENT)
    assert queue.claim("w", 5.0) is not None
    assert set(_asked_nodes(cluster)) == {0}


def test_a_node_that_is_down_is_passed_over(twin: Twin, cluster: StandIn) -> None:
    queue = twin.open(cluster.url.replace("://", f"://localhost:{_free_port()},"))
    queue.publish("g", EVENT)
    assert queue.stats().messages == 1


def test_a_server_that_stops_and_comes_back_is_no_error_within_the_timeout(twin: Twin, cluster: StandIn) -> None:
    queue = twin.open(cluster.url, timeout=60.0)
    cluster.leader = None
    cluster.arrived.clear()

    def come_back() -> None:
        assert cluster.arrived.wait(30)
        cluster.leader = 1

    with ThreadPoolExecutor(1) as threads:
        back = threads.submit(come_back)
        queue.publish("g", EVENT)
        back.result()
    assert queue.stats().messages == 1


# Passwords and TLS.


def _all_of(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)) + repr(error)


@pytest.mark.parametrize("kind", ["wrong password", "nobody there", "bad option", "no leader"])
def test_a_password_is_never_shown(twin: Twin, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    users = {"me": "another"} if kind == "wrong password" else {"me": SECRETS[0]}
    with StandIn(2, users=users) as cluster:
        url = cluster.url_of("me", PASSWORD)
        if kind == "nobody there":
            url = f"rqlite://me:{PASSWORD}@localhost:{_free_port()}"
        elif kind == "no leader":
            cluster.leader = None
        options = {"bad option": {"read_level": "none"}, "wrong password": {}}.get(kind, {"timeout": 0.1})
        with pytest.raises(HarelError) as raised:
            twin.open(url, **options)
        if kind == "wrong password":
            assert type(raised.value) is ConfigError
            assert "the user 'me'" in str(raised.value)
        cluster.leader = 0
        shown = _all_of(raised.value) + caplog.text
        if kind == "no leader":
            queue = twin.open(url)
            queue.publish("g", EVENT)
            shown += repr(queue) + repr(queue.claim("w", 5.0)) + repr(vars(getattr(queue, "inner", queue)))
        for secret in SECRETS:
            assert secret not in shown.replace(__file__, "")


def test_over_tls_by_an_authority_of_ones_own(twin: Twin, authority: Authority) -> None:
    with StandIn(2, tls=authority.context(), users={"me": "pw"}) as cluster:
        cluster.leader = 1
        queue = twin.open(cluster.url_of("me", "pw"), ca_file=str(authority.ca_file))
        queue.publish("g", EVENT)
        assert queue.claim("w", 5.0) is not None
        assert {asked.node for asked in cluster.asked} == {0, 1}


def test_a_certificate_of_nobody_known_is_refused_at_once(twin: Twin, authority: Authority) -> None:
    with StandIn(tls=authority.context()) as cluster:
        with pytest.raises(ConfigError, match=r"not trusted .*ca_file"):
            twin.open(cluster.url, timeout=600.0)
        assert cluster.asked == []


def test_a_certificate_of_another_host_is_refused_at_once(twin: Twin, authority: Authority) -> None:
    with (
        StandIn(tls=authority.context()) as cluster,
        pytest.raises(ConfigError, match="not trusted"),
    ):
        twin.open(cluster.url.replace("localhost", "127.0.0.1"), timeout=600.0, ca_file=str(authority.ca_file))


def test_what_is_asked_over_tls_is_not_repeated_without(twin: Twin, authority: Authority) -> None:
    with StandIn() as plain, StandIn(2, tls=authority.context(), users={"me": "pw"}) as cluster:
        cluster.leader = 1
        cluster.advertised[1] = plain.nodes[0].base
        queue = twin.open(cluster.url_of("me", "pw"), ca_file=str(authority.ca_file))
        queue.publish("g", EVENT)
        assert plain.asked == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"ca_file": "/nowhere.pem"}, "begins with rqlites://"),
        ({"timeout": 0}, "timeout is a number of seconds above 0"),
        ({"timeout": float("inf")}, "timeout is a number of seconds above 0"),
        ({"poll_interval": -1}, "poll_interval is a number of seconds above 0"),
        ({"read_level": "strong"}, "read_level must be one of weak, linearizable, not 'strong'"),
        ({"prefix": "a-b"}, "prefix is 1 to 40"),
    ],
)
def test_an_option_that_is_not_usable_says_why(twin: Twin, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        twin.open("rqlite://localhost:1", **options)


def test_a_ca_file_that_is_none_says_so(twin: Twin, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("nothing")
    for name in ("ca.pem", "missing.pem"):
        with pytest.raises(ConfigError, match="no certificates that can be read"):
            twin.open("rqlites://localhost:1", ca_file=str(tmp_path / name))


def test_options_come_from_the_url(cluster: StandIn) -> None:
    url = f"{cluster.url}?prefix=orders&timeout=2.5&read_level=linearizable&redirect=false&poll_interval=0.2"
    with harel.connect(url) as queue:
        assert isinstance(queue, RqliteTransport)
        assert f"{','.join(sorted(node.place for node in cluster.nodes))}#orders" in repr(queue)
        queue.stats()
    assert cluster.asked[-1].query == {"level": "linearizable"}
    with pytest.raises(ConfigError, match="has no option 'client'"):
        harel.connect(f"{cluster.url}?client=x")


def test_the_environment_names_the_cluster(cluster: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STM_TRANSPORT_BACKEND", "rqlite")
    monkeypatch.delenv("STM_RQLITE_URL", raising=False)
    with pytest.raises(ConfigError, match="STM_RQLITE_URL is not set"):
        harel.connect_from_env()
    monkeypatch.setenv("STM_RQLITE_URL", cluster.url)
    with harel.connect_from_env() as queue:
        assert isinstance(queue, RqliteTransport)


# The schema.


def test_a_schema_that_may_not_be_made_is_asked_for(twin: Twin, cluster: StandIn) -> None:
    with pytest.raises(SchemaMismatch, match="harel schema rqlite"):
        twin.open(cluster.url, create_schema=False)
    cluster.database.connection.executescript(schema_ddl())
    twin.open(cluster.url, create_schema=False).publish("g", EVENT)


def test_tables_that_come_from_a_sqlite_file_are_completed(twin: Twin, cluster: StandIn) -> None:
    cluster.database.connection.executescript(sqlite.schema_ddl())
    cluster.database.connection.execute("INSERT INTO transport_messages (group_id, event) VALUES ('g', '{}')")
    queue = twin.open(cluster.url)
    queue.publish("g", EVENT)
    assert len(queue.peek("g")) == 2


def test_a_schema_of_a_later_version_is_refused(twin: Twin, cluster: StandIn) -> None:
    twin.open(cluster.url)
    cluster.database.connection.execute("UPDATE transport_schema SET version = 99")
    with pytest.raises(SchemaMismatch, match="version 99"):
        twin.open(cluster.url)


def test_a_server_that_is_too_old_is_refused(twin: Twin, cluster: StandIn) -> None:
    for node in cluster.nodes:
        node.version = "v8.32.7"
    with pytest.raises(ConfigError, match=r"v8\.32\.7; harel needs 8\.33"):
        twin.open(cluster.url)
    assert cluster.rows("SELECT * FROM sqlite_master") == []


# Clients, closing, cancelling, forking.


def test_a_client_of_the_callers_is_used_and_not_closed(twin: Twin, cluster: StandIn) -> None:
    kind: Any = httpx2.AsyncClient if twin.is_async else httpx2.Client
    client = kind(headers={"X-Mine": "yes"})
    queue = twin.open(cluster.url, client)
    queue.publish("g", EVENT)
    queue.close()
    assert not client.is_closed
    twin.runner.run(client.aclose()) if twin.is_async else client.close()


def test_the_environments_proxies_are_not_asked(twin: Twin, cluster: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://localhost:{_free_port()}")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    twin.open(cluster.url).publish("g", EVENT)


def test_a_transport_that_is_closed_meanwhile_ends_the_operation(cluster: StandIn) -> None:
    """The reply is held back. Whether closing waits for it or not: there is an error of ours, or none."""
    queue = RqliteTransport(cluster.url, timeout=PATIENT_S)
    cluster.gate.clear()
    cluster.arrived.clear()
    with ThreadPoolExecutor(1) as threads:
        publishing = threads.submit(queue.publish, "g", EVENT)
        assert cluster.arrived.wait(30)
        queue.close()
        cluster.gate.set()
        error = publishing.exception()
    assert error is None or isinstance(error, HarelError)


class Sleeping(threading.Event):
    """Says when somebody waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        self.begun.set()
        return super().wait(timeout)


def test_a_wait_ends_when_the_transport_is_closed(cluster: StandIn) -> None:
    queue = RqliteTransport(cluster.url, poll_interval=500.0, timeout=PATIENT_S)
    queue._closing = closing = Sleeping()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(queue.wait, 1_000.0)
        assert closing.begun.wait(30)
        queue.close()
        with pytest.raises(HarelError, match="closed"):
            waiting.result(60)


class ClosedJustNow:
    """A client that was closed between its being taken and its being used; it says so as httpx2 does."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport

    def post(self, *args: Any, **options: Any) -> Any:
        self._transport._checked.closed = True
        raise RuntimeError("Cannot send a request, as the client has been closed.")


def test_a_client_that_was_closed_meanwhile_is_a_closed_transport(twin: Twin, cluster: StandIn) -> None:
    queue: Any = twin.open(cluster.url)
    inner = getattr(queue, "inner", queue)
    inner._own = ClosedJustNow(inner)
    with pytest.raises(InvalidArgument, match="closed"):
        queue.publish("g", EVENT)
    inner._checked.closed = False


async def test_an_async_transport_that_is_closed_meanwhile_ends_the_operation(cluster: StandIn) -> None:
    queue = await AsyncRqliteTransport(cluster.url, timeout=PATIENT_S).open()
    cluster.gate.clear()
    cluster.arrived.clear()
    publishing = asyncio.create_task(queue.publish("g", EVENT))
    assert await asyncio.to_thread(cluster.arrived.wait, 30)
    await queue.close()
    cluster.gate.set()
    (error,) = await asyncio.gather(publishing, return_exceptions=True)
    assert error is None or isinstance(error, HarelError)


async def test_a_task_cancelled_in_an_operation_leaves_a_transport_that_works(cluster: StandIn) -> None:
    async with AsyncRqliteTransport(cluster.url, timeout=PATIENT_S) as queue:
        for act in (queue.publish("g", EVENT), queue.claim("w", 30.0), queue.publish("h", EVENT)):
            cluster.gate.clear()
            cluster.arrived.clear()
            task = asyncio.create_task(act)
            assert await asyncio.to_thread(cluster.arrived.wait, 30)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            cluster.gate.set()
            await queue.stats()
        await queue.publish("i", EVENT)
        done = {group.group_id for group in await queue.groups()}
        assert "i" in done <= {"g", "h", "i"}


async def test_tasks_share_a_transport(cluster: StandIn) -> None:
    async with AsyncRqliteTransport(cluster.url, timeout=PATIENT_S) as queue:
        await asyncio.gather(*(queue.publish(f"g{number % 7}", EVENT) for number in range(100)))
        leases = await asyncio.gather(*(queue.claim(f"w{number}", 30.0) for number in range(10)))
        held = [lease.group_id for lease in leases if lease is not None]
        assert sorted(held) == [f"g{number}" for number in range(7)]


FORKING = """
import os, sys
from harel import Event
from harel.engine.transport import RqliteTransport

queue = RqliteTransport(sys.argv[1], timeout=60.0)
queue.publish("parents", Event("k"))
child = os.fork()
if child == 0:
    for _ in range(20):
        queue.publish("childs", Event("k"))
    assert queue.stats().messages >= 21
    queue.close()
    os._exit(0)
for _ in range(20):
    queue.publish("parents", Event("k"))
assert os.waitpid(child, 0)[1] == 0
queue.publish("parents", Event("k"))
assert queue.stats().messages == 42
queue.close()
"""


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_a_fork_and_its_parent_do_not_share_a_connection(tls: bool, authority: Authority) -> None:
    context: ssl.SSLContext | None = authority.context() if tls else None
    program = FORKING.replace("timeout", f"ca_file={str(authority.ca_file)!r}, timeout") if tls else FORKING
    with StandIn(tls=context) as cluster:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", program, cluster.url],
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )
        assert done.returncode == 0, done.stderr


def test_threads_share_a_transport(cluster: StandIn) -> None:
    with RqliteTransport(cluster.url, timeout=PATIENT_S) as queue, ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda number: queue.publish(f"g{number % 7}", EVENT), range(100)))
        held = [lease.group_id for lease in threads.map(lambda n: queue.claim(f"w{n}", 30.0), range(10)) if lease]
        assert sorted(held) == [f"g{number}" for number in range(7)]


def test_numbers_and_text_are_exact(twin: Twin, cluster: StandIn) -> None:
    payload = {
        "large": 2**63 - 1,
        "small": -(2**63),
        "real": 0.1 + 0.2,
        "tiny": 5e-324,
        "text": "<&>\u2028\u2029 \U0001f409 \\ \" ' ; -- :now $1 ?",
        "deep": {"a": [None, True, 1.0, 1]},
    }
    queue = twin.open(cluster.url)
    queue.publish("a 'b' ; -- :now", Event("k", payload))
    lease = queue.claim("w 'x' :y", 30.0)
    assert lease is not None
    assert lease.event.payload == payload
    assert lease.group_id == "a 'b' ; -- :now"
    assert lease.worker_id == "w 'x' :y"
    assert isinstance(lease.expires_at, float)
    assert queue.reject(lease, "r :now '\u2028") is True
    assert queue.dead_letters()[0].reason == "r :now '\u2028"
