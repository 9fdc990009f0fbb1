"""Which backend a URL or the environment names."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest

import harel
from harel import ConfigError
from harel.config import BACKENDS, Environment, redacted
from harel.engine.aio_transport import AsyncInMemoryTransport, AsyncSqliteTransport
from harel.engine.transport import InMemoryTransport, SqliteTransport


def test_the_scheme_picks_the_backend(tmp_path: Path) -> None:
    with harel.connect("memory://") as memory, harel.connect(f"sqlite:///{tmp_path}/q.db") as sqlite:
        assert isinstance(memory, InMemoryTransport)
        assert isinstance(sqlite, SqliteTransport)


def test_the_scheme_picks_the_async_backend(tmp_path: Path) -> None:
    async def both() -> None:
        async with await harel.connect_async("memory://") as memory:
            assert isinstance(memory, AsyncInMemoryTransport)
        async with await harel.connect_async(f"sqlite:///{tmp_path}/q.db") as sqlite:
            assert isinstance(sqlite, AsyncSqliteTransport)

    asyncio.run(both())


def test_a_relative_and_an_escaped_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    harel.connect("sqlite:///a%20b%3F.db").close()
    assert (tmp_path / "a b?.db").exists()


def test_options_come_from_the_query_and_keywords_win(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/q.db?prefix=orders&busy_timeout=2.5&fresh_first=false"
    with harel.connect(url) as queue:
        assert "orders" in repr(queue)
    with harel.connect(url, prefix="invoices", clock=lambda: 5.0) as queue:
        assert "invoices" in repr(queue)
        queue.publish("a", harel.Event("x"))
        assert queue.groups()[0].since == 5.0


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("", "is not the URL of a queue. It begins with one of memory://, sqlite://"),
        ("harel.db", "is not the URL of a queue"),
        ("nats://host", "is not the URL of a queue"),
        ("nats://user:secret@host", "nats://user:\\*\\*\\*@host"),
        ("sqlite://q.db", "four slashes"),
        ("sqlite://", "names no file"),
        ("sqlite:///", "names no file"),
        ("memory://name", "has no name or path"),
        ("sqlite:///q.db?prefx=a", "has no option 'prefx'; it has prefix, fresh_first"),
        ("sqlite:///q.db?busy_timeout=soon", "busy_timeout='soon'"),
        ("sqlite:///q.db?fresh_first=perhaps", "fresh_first='perhaps'"),
        ("sqlite:///q.db?synchronous=HALF", "synchronous='HALF'"),
        ("sqlite:///q.db?clock=now", "has no option 'clock'"),
        ("memory://?prefix=a", "has no option 'prefix'; it has fresh_first"),
    ],
)
def test_a_url_that_is_not_usable_says_why(
    url: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=says) as raised:
        harel.connect(url)
    assert "secret" not in str(raised.value)
    with pytest.raises(ConfigError, match=says):
        asyncio.run(harel.connect_async(url))
    assert list(tmp_path.iterdir()) == []


def test_a_url_that_is_no_string() -> None:
    with pytest.raises(ConfigError, match="not PosixPath"):
        harel.connect(Path("q.db"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:secret@host:5432/db?password=secret", "postgresql://me:***@host:5432/db"),
        ("redis://:secret@host", "redis://:***@host"),
        ("redis://host/0", "redis://host/0"),
        ("mongodb://me:p@ss@a:1,b:2/x", "mongodb://me:***@a:1,b:2/x"),
        ("sqs://me@host", "sqs://me:***@host"),
        ("redis://me:se:cret@host", "redis://me:***@host"),
        ("redis://me:se?cret@host", "redis://***"),
        ("redis://host/0?password=se@cret", "redis://***"),
        ("me:secret@host", "***"),
        ("host=h password=secret", "***"),
    ],
)
def test_a_shown_url_has_no_password(url: str, shown: str) -> None:
    assert redacted(url) == shown


@pytest.mark.parametrize(
    "scheme", ["redis", "postgresql", "mongodb", "rqlite", "sqs", "sqlite", "libsql", "memory", "x"]
)
@pytest.mark.parametrize(
    "password",
    [
        "s?cret",
        "s#cret",
        "s/cret",
        "s@cret",
        "s:cret",
        "1?cret=1",
        "1?timeout=cret",
        "1/cret",
        "[cret]",
        "1&cret",
        "\ud800cret",
    ],
)
def test_no_piece_of_a_password_that_is_not_escaped_is_shown(
    scheme: str, password: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = {"redis": {"timeout": 0.2}, "postgresql": {"connect_timeout": 0.2}, "mongodb": {"timeout": 0.2}}
    with pytest.raises(harel.HarelError) as raised:
        harel.connect(f"{scheme}://localhost:{password}@127.0.0.1:1", **options.get(scheme, {}))
    assert "cret" not in "".join(traceback.format_exception(raised.value)).replace("test_no_piece_of_a_password", "")


@pytest.mark.parametrize("url", ["host=h password=secret", "me:secret@host", "password='secret'"])
def test_what_has_no_scheme_is_not_shown(url: str) -> None:
    with pytest.raises(ConfigError, match="This is not the URL of a queue") as raised:
        harel.connect(url)
    assert "secret" not in str(raised.value)
    with pytest.raises(ConfigError, match="STM_TRANSPORT_BACKEND is not a name") as raised:
        Environment.read({"STM_TRANSPORT_BACKEND": url})
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("dsn", "password"),
    [
        ("host=h password='a = b'", "a = b"),
        (r"host = h password = 'it\'s' port=1", "it's"),
        (r"password=a\ b host=h", "a b"),
        (r"password='a\\b'", "a\\b"),
    ],
)
def test_a_connection_string_of_keywords_is_read_as_libpq_reads_it(dsn: str, password: str) -> None:
    environment = Environment.read({"STM_TRANSPORT_BACKEND": "postgres", "STM_POSTGRES_DSN": dsn})
    assert dict(parse_qsl(environment.url.partition("?")[2]))["password"] == password


@pytest.mark.parametrize("seconds", ["-1", "nan", "inf", "1e308"])
@pytest.mark.parametrize("option", ["busy_timeout", "poll_interval"])
def test_seconds_that_nobody_can_wait_are_refused(option: str, seconds: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"{option} is a number of seconds"):
        harel.connect(f"sqlite:///{tmp_path}/q.db?{option}={seconds}")
    assert list(tmp_path.iterdir()) == []


def test_a_transport_that_cannot_be_opened_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []

    async def fail(self: AsyncInMemoryTransport) -> None:
        raise harel.TransportUnavailable("nobody is there.")

    async def close(self: AsyncInMemoryTransport) -> None:
        closed.append(self)

    monkeypatch.setattr(AsyncInMemoryTransport, "open", fail)
    monkeypatch.setattr(AsyncInMemoryTransport, "close", close)
    with pytest.raises(harel.TransportUnavailable):
        asyncio.run(harel.connect_async("memory://"))
    assert len(closed) == 1


def test_the_environment_unset_is_a_file_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("STM_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    harel.connect_from_env().close()
    assert (tmp_path / "harel.db").exists()
    environment = Environment.read({})
    assert (environment.visibility, environment.concurrency) == (30.0, 16)
    assert environment.worker_id.endswith(f"-{os.getpid()}")


def test_the_environment_names_the_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STM_TRANSPORT_BACKEND", "sqlite")
    monkeypatch.setenv("STM_TRANSPORT_DB", str(tmp_path / "50%?#.db"))
    with harel.connect_from_env(prefix="x") as queue:
        assert "x" in repr(queue)
    assert (tmp_path / "50%?#.db").exists()

    async def again() -> None:
        async with await harel.connect_async_from_env(prefix="x") as queue:
            assert (await queue.stats()).groups == 0

    asyncio.run(again())
    monkeypatch.setenv("STM_TRANSPORT_BACKEND", "memory")
    with harel.connect_from_env() as queue:
        assert isinstance(queue, InMemoryTransport)


@pytest.mark.parametrize(
    ("name", "value", "takes"),
    [
        ("STM_TRANSPORT_BACKEND", "oracle", "it takes one of memory, sqlite"),
        ("STM_VISIBILITY", "0", "it takes a number of seconds above 0"),
        ("STM_VISIBILITY", "nan", "it takes a number of seconds above 0"),
        ("STM_VISIBILITY", "inf", "it takes a number of seconds above 0"),
        ("STM_VISIBILITY", "long", "it takes a number of seconds above 0"),
        ("STM_CONCURRENCY", "0", "it takes a whole number of at least 1"),
        ("STM_CONCURRENCY", "2.5", "it takes a whole number of at least 1"),
    ],
)
def test_a_malformed_variable_is_named_with_what_it_takes(name: str, value: str, takes: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is '{value}'; {takes}"):
        Environment.read({name: value})


@pytest.mark.parametrize("backend", [backend for backend in BACKENDS if backend.extra], ids=lambda b: b.name)
def test_a_backend_whose_extra_is_missing_says_which_to_install(backend: object, tmp_path: Path) -> None:
    program = """
import sys
for name in ("psycopg", "psycopg_pool", "redis", "pymongo", "httpx2", "libsql", "boto3", "aiobotocore"):
    sys.modules[name] = None
import harel
try:
    harel.connect(sys.argv[1])
except harel.ConfigError as error:
    print(error)
"""
    url = f"{backend.schemes[0]}://localhost"  # type: ignore[attr-defined]
    done = subprocess.run([sys.executable, "-c", program, url], capture_output=True, text=True, check=True, timeout=60)
    assert f"pip install 'harel[{backend.extra}]'" in done.stdout  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "variables",
    [
        {"STM_TRANSPORT_BACKEND": "postgres", "STM_POSTGRES_DSN": "postgresql://me:hush@host/db"},
        {"STM_TRANSPORT_BACKEND": "postgres", "STM_POSTGRES_DSN": "host=h password=hush"},
        {"STM_TRANSPORT_BACKEND": "redis", "STM_REDIS_URL": "redis://:hush@host"},
        {"STM_TRANSPORT_BACKEND": "mongo", "STM_MONGO_URL": "mongodb://me:hush@host"},
        {"STM_TRANSPORT_BACKEND": "rqlite", "STM_RQLITE_URL": "rqlite://me:hush@host"},
        {"STM_TRANSPORT_BACKEND": "libsql", "STM_LIBSQL_SYNC_URL": "libsql://h", "STM_LIBSQL_AUTH_TOKEN": "hush"},
    ],
)
def test_settings_show_no_secret(variables: dict[str, str]) -> None:
    environment = Environment.read(variables)
    assert "hush" in environment.url
    assert "hush" not in repr(environment)
    assert "hush" not in str(environment)


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: str(backend.name))
def test_a_url_with_a_nul_is_refused_before_a_driver_takes_that_for_its_end(backend: Any) -> None:
    with pytest.raises(ConfigError, match="holds a NUL") as raised:
        harel.connect(f"{backend.schemes[0]}://me:secret\0@127.0.0.1:1/db")
    assert "secret" not in str(raised.value)
