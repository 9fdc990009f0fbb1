"""How PostgreSQL is found: by URL, and by the ``STM_*`` variables."""

from __future__ import annotations

import sys

import pytest

import harel.engine.aio_transport
import harel.engine.transport
from harel import ConfigError, TransportUnavailable, connect
from harel.config import Environment
from harel.engine.transport import PostgresTransport


def url_from(dsn: str) -> str:
    return Environment.read({"STM_TRANSPORT_BACKEND": "postgres", "STM_POSTGRES_DSN": dsn}).url


@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
def test_a_url_opens_it(url: str, schema: str, scheme: str) -> None:
    with connect(f"{scheme}://{url.partition('://')[2]}&schema={schema}") as queue:
        assert isinstance(queue, PostgresTransport)


def test_the_variable_takes_a_url_as_it_is() -> None:
    assert url_from("postgresql://joe:pw@db:5433/orders?sslmode=require") == (
        "postgresql://joe:pw@db:5433/orders?sslmode=require"
    )


def test_the_variable_takes_keywords_too(url: str, schema: str) -> None:
    folder = url.partition("host=")[2].replace("%2F", "/")
    with connect(url_from(f"host = '{folder}' user=postgres dbname=postgres") + f"&schema={schema}") as queue:
        assert isinstance(queue, PostgresTransport)


@pytest.mark.parametrize("dsn", ["", "orders", "host='x"])
def test_one_that_is_missing_or_malformed_is_named(dsn: str) -> None:
    with pytest.raises(ConfigError, match="STM_POSTGRES_DSN"):
        url_from(dsn)


@pytest.mark.parametrize(
    ("package", "name"),
    [(harel.engine.transport, "PostgresTransport"), (harel.engine.aio_transport, "AsyncPostgresTransport")],
    ids=["sync", "async"],
)
def test_without_the_driver_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, package: object, name: str) -> None:
    for module in [module for module in sys.modules if module.startswith("harel.") and "postgres" in module]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ConfigError, match=r"pip install 'harel\[postgres\]'"):
        getattr(package, name)


def test_what_the_driver_repeats_of_an_option_can_be_read() -> None:
    with pytest.raises(TransportUnavailable) as raised:
        connect("postgresql://127.0.0.1:1/db?sslmode=%1B%5B2J&connect_timeout=1")
    assert "\\x1b[2J" in str(raised.value)
    assert "\x1b" not in str(raised.value)
