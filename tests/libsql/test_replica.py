"""Replicas, as far as they can be seen without a primary: what is refused, what is unavailable, and no token shown."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import harel
from harel import ConfigError, TransportUnavailable
from harel.config import Environment
from harel.engine.aio_transport import AsyncLibsqlTransport
from harel.engine.queue.contract import Packed
from harel.engine.queue.libsql.ops import PRIMARYS_CLOCK, primary_of
from harel.engine.transport import LibsqlTransport
from harel.engine.transport.libsql import LibsqlFile

TOKEN = "a-token-that-nobody-may-see"

ANSWERS = """
import http.server, sys

class Primary(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        text = ("no rights for " + self.headers["authorization"]).encode()
        self.send_response(int(sys.argv[1]))
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_POST = do_GET

    def log_message(self, *args):
        pass

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Primary)
print(server.server_port, flush=True)
server.serve_forever()
"""
"""A process of its own, because the driver lets no thread of this one run while it waits."""


@pytest.fixture
def nobody() -> Iterator[str]:
    """The address of a port where nobody listens, and that nobody else can take."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture(params=["401", "500", "200"])
def answering(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a server that answers each request with this status, and tells the token."""
    process = subprocess.Popen([sys.executable, "-c", ANSWERS, request.param], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield f"127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.communicate()


def _refused(make: Any) -> str:
    with pytest.raises(TransportUnavailable) as raised:
        make()
    told = "".join(traceback.format_exception(raised.value))
    assert TOKEN not in told
    return str(raised.value)


def test_a_primary_that_cannot_be_reached_is_unavailable_and_named(nobody: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"sync_url": f"http://{nobody}", "auth_token": TOKEN}
    says = _refused(lambda: LibsqlTransport(tmp_path / "queue.db", **options))
    assert f"a replica of http://{nobody} cannot be used just now" in says
    url = f"libsql:///{tmp_path}/queue.db?sync_url=http://{nobody}&auth_token={TOKEN}"
    assert nobody in _refused(lambda: harel.connect(url))
    assert nobody in _refused(lambda: asyncio.run(harel.connect_async(url)))


def test_a_primary_that_refuses_is_unavailable_and_its_answer_tells_no_token(answering: str, tmp_path: Path) -> None:
    says = _refused(lambda: LibsqlTransport(tmp_path / "queue.db", sync_url=f"http://{answering}", auth_token=TOKEN))
    assert answering in says


@pytest.mark.parametrize(
    "sync_url",
    ["nonsense", "http://", "http://no such host", "ftp://host", "https://host:port", "libsql://häuser.io", 17],
)
def test_a_url_that_the_driver_would_die_of_is_refused(sync_url: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="sync_url is the URL of a primary, such as libsql://"):
        LibsqlTransport(tmp_path / "queue.db", sync_url=sync_url)
    assert list(tmp_path.iterdir()) == []


def test_a_token_that_cannot_be_sent_is_refused_and_not_shown(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="auth_token holds a space") as raised:
        LibsqlTransport(tmp_path / "queue.db", sync_url="http://localhost", auth_token=f"{TOKEN}\n")
    assert TOKEN not in str(raised.value)


@pytest.mark.parametrize("option", [{"auth_token": TOKEN}, {"sync_interval": 5.0}])
def test_options_of_a_replica_need_its_primary(option: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="they need sync_url") as raised:
        LibsqlTransport(tmp_path / "queue.db", **option)
    assert TOKEN not in str(raised.value)


def test_a_primary_is_shown_without_what_is_secret() -> None:
    assert primary_of("https://me:secret@name.turso.io:8080/x?authToken=secret") == "https://name.turso.io:8080"
    assert primary_of("libsql://name.turso.io") == "libsql://name.turso.io"


def test_a_replica_has_one_connection_and_nothing_of_it_is_shown(tmp_path: Path) -> None:
    file = LibsqlFile(
        tmp_path / "queue.db",
        primary={"sync_url": "http://me:secret@host", "auth_token": TOKEN, "sync_interval": None},
        busy_timeout_s=1.0,
        synchronous="FULL",
        clock=lambda: 5.0,
    )
    assert file._writer is file._reader
    assert file.address() == "http://host"
    assert file.name == f"{tmp_path}/queue.db, a replica of http://host"


def test_the_clock_of_a_primary_is_epoch_seconds(tmp_path: Path) -> None:
    with LibsqlTransport(tmp_path / "queue.db") as queue:
        connection = queue._file._writer.connection
        ((primarys, integers),) = connection.execute(f"SELECT {PRIMARYS_CLOCK}, unixepoch()").fetchall()
        assert isinstance(primarys, float)
        assert 0.0 <= primarys - integers < 2.0


def test_a_replica_goes_by_its_primarys_clock_and_a_file_by_this_machines(tmp_path: Path) -> None:
    """Promise 11: what writes runs on the primary, and no time is sent there unless a test gives one."""
    options: dict[str, Any] = {"sync_url": "http://host", "auth_token": TOKEN}
    replica = AsyncLibsqlTransport(tmp_path / "replica.db", **options)
    told = AsyncLibsqlTransport(tmp_path / "told.db", clock=lambda: 5.0, **options)
    file = AsyncLibsqlTransport(tmp_path / "file.db")
    assert [_sends_the_time(transport) for transport in (replica, told, file)] == [False, True, True]


def _sends_the_time(transport: Any) -> bool:
    writing = next(transport._ops.publish([Packed("g", "{}", 0)]))
    return any(":now" in statement for statement, _ in writing.steps)


def test_the_environment_names_a_file_and_its_primary(tmp_path: Path, nobody: str) -> None:
    settings = {"STM_TRANSPORT_BACKEND": "libsql"}
    assert Environment.read(settings).url == "libsql:///harel.db"
    settings["STM_LIBSQL_DB"] = f"{tmp_path}/50%?#.db"
    with harel.connect(Environment.read(settings).url) as queue:
        assert isinstance(queue, LibsqlTransport)
    assert (tmp_path / "50%?#.db").exists()
    settings["STM_LIBSQL_DB"] = f"{tmp_path}/replica.db"
    settings["STM_LIBSQL_SYNC_URL"] = f"http://{nobody}"
    settings["STM_LIBSQL_AUTH_TOKEN"] = TOKEN
    assert nobody in _refused(lambda: harel.connect(Environment.read(settings).url))


def test_a_url_without_a_file_says_where_a_primary_goes() -> None:
    with pytest.raises(ConfigError, match=r"libsql:///relative\.db.*option sync_url"):
        harel.connect("libsql://name.turso.io")
