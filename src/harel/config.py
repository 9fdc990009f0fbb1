"""Which backend: by URL, or by the ``STM_*`` variables."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast, get_type_hints
from urllib.parse import parse_qsl, quote, unquote, urlencode

import msgspec

from harel.engine.queue.contract import AsyncTransport, Transport
from harel.engine.queue.face import AsyncFace
from harel.errors import ConfigError, shown

__all__ = [
    "BACKENDS",
    "Backend",
    "Environment",
    "connect",
    "connect_async",
    "connect_async_from_env",
    "connect_from_env",
    "default_worker_id",
    "redacted",
]


@dataclass(frozen=True, slots=True)
class Backend:
    """How a backend is found."""

    name: str
    """What ``STM_TRANSPORT_BACKEND`` calls it."""
    schemes: tuple[str, ...]
    sync_class: str
    async_class: str
    target: Callable[[str], tuple[Any, ...]]
    """From the URL without its query to the positional arguments of the classes."""
    extra: str | None = None
    """The extra that brings its driver."""
    maker: str | None = None
    """The class method that opens a URL, where that is not the class itself."""
    driver_options: bool = False
    """Whether query parameters that are no options of harel's stay in the URL, for the driver."""


def _no_target(url: str) -> tuple[Any, ...]:
    if url.partition("://")[2].strip("/"):
        raise ConfigError(f"A queue in memory has no name or path; use memory:// instead of {redacted(url)}.")
    return ()


def _file_target(url: str) -> tuple[Any, ...]:
    # Not by urlsplit, which refuses brackets in its own words.
    scheme, _, rest = url.partition("://")
    host, _, path = rest.partition("#")[0].partition("/")
    path = unquote(path)
    if host or not path:
        raise ConfigError(
            f"{redacted(url)} names no file: {scheme}:///relative.db, or {scheme}:////absolute/path.db (four slashes)."
            + (" A primary is named by the option sync_url." if scheme == "libsql" else "")
        )
    return (path,)


def _redis_target(url: str) -> tuple[Any, ...]:
    return (url.replace("valkey", "redis", 1) if url.startswith("valkey") else url,)


def _whole_target(url: str) -> tuple[Any, ...]:
    return (url,)


def _mongo_target(url: str) -> tuple[Any, ...]:
    address, mark, query = url.partition("?")
    scheme, _, rest = address.partition("://")
    return (f"{scheme}://{rest}{'' if '/' in rest.rpartition('@')[2] else '/'}{mark}{query}",)


def _sqs_target(url: str) -> tuple[Any, ...]:
    name = url.partition("://")[2]
    if "@" in name or "/" in name:
        raise ConfigError(
            "An SQS queue is named as sqs://orders.fifo, without a user, a host or a path; credentials come from where "
            "AWS's own tools take them, and another endpoint is the option endpoint_url."
        )
    return (name,)


_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,20}")

BACKENDS = (
    Backend("memory", ("memory",), "InMemoryTransport", "AsyncInMemoryTransport", _no_target),
    Backend("sqlite", ("sqlite",), "SqliteTransport", "AsyncSqliteTransport", _file_target),
    Backend("libsql", ("libsql",), "LibsqlTransport", "AsyncLibsqlTransport", _file_target, extra="libsql"),
    Backend(
        "redis",
        ("redis", "rediss", "valkey", "valkeys"),
        "RedisTransport",
        "AsyncRedisTransport",
        _redis_target,
        extra="redis",
        maker="from_url",
        driver_options=True,
    ),
    Backend(
        "postgres",
        ("postgresql", "postgres"),
        "PostgresTransport",
        "AsyncPostgresTransport",
        _whole_target,
        extra="postgres",
        driver_options=True,
    ),
    Backend(
        "mongo",
        ("mongodb", "mongodb+srv"),
        "MongoTransport",
        "AsyncMongoTransport",
        _mongo_target,
        extra="mongo",
        maker="from_url",
        driver_options=True,
    ),
    Backend("rqlite", ("rqlite", "rqlites"), "RqliteTransport", "AsyncRqliteTransport", _whole_target, extra="rqlite"),
    Backend("sqs", ("sqs",), "SqsTransport", "AsyncSqsTransport", _sqs_target, extra="sqs", maker="create"),
)


def connect(url: str, **options: Any) -> Transport:
    """Open the queue that a URL names.

    Parameters
    ----------
    url : str
        ``memory://`` or ``sqlite:///file.db``. Options follow as query parameters:
        ``sqlite:///file.db?prefix=orders&busy_timeout=10``.
    **options
        The same options, and those that a URL cannot hold, such as ``clock``. They win over the URL's.

    Returns
    -------
    Transport
        Use it as a context manager, or close it.

    Raises
    ------
    ConfigError
        When the URL or an option is not usable, or the backend's extra is not installed.
    """
    return cast("Transport", _make(url, options, is_async=False))


async def connect_async(url: str, **options: Any) -> AsyncTransport:
    """Open the queue that a URL names, for asyncio. See :func:`connect`."""
    transport = cast("AsyncFace", _make(url, options, is_async=True))
    return await transport.__aenter__()  # which closes what it cannot open: nobody else has it to close


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """The ``STM_*`` variables that say which queue and how to work it."""

    url: str
    worker_id: str
    visibility: float
    concurrency: int

    def __repr__(self) -> str:
        return (
            f"Environment(url={redacted(self.url)!r}, worker_id={self.worker_id!r}, visibility={self.visibility!r}, "
            f"concurrency={self.concurrency!r})"
        )

    @classmethod
    def read(cls, variables: Mapping[str, str] | None = None) -> Environment:
        """Read the variables.

        Raises
        ------
        ConfigError
            Names the variable that is missing or malformed, and what it takes.
        """
        values = os.environ if variables is None else variables
        return cls(
            url=_url_from(values),
            worker_id=values.get("STM_WORKER_ID") or default_worker_id(),
            visibility=_positive(values, "STM_VISIBILITY", float, "30", "a number of seconds above 0"),
            concurrency=_positive(values, "STM_CONCURRENCY", int, "16", "a whole number of at least 1"),
        )


def connect_from_env(**options: Any) -> Transport:
    """Open the queue that the ``STM_*`` variables name.

    ``STM_TRANSPORT_BACKEND`` is ``sqlite`` unless set, and ``STM_TRANSPORT_DB`` is ``harel.db``.

    Raises
    ------
    ConfigError
        Names the variable that is missing or malformed, and what it takes.
    """
    return connect(Environment.read().url, **options)


async def connect_async_from_env(**options: Any) -> AsyncTransport:
    """Open the queue that the ``STM_*`` variables name, for asyncio. See :func:`connect_from_env`."""
    return await connect_async(Environment.read().url, **options)


def default_worker_id() -> str:
    """Return this host's name and this process's number."""
    return f"{socket.gethostname()}-{os.getpid()}"


def redacted(url: str) -> str:
    """Return a URL without its password and its query, for messages and logs.

    A password whose special characters are not written as %XX may end early to who reads the URL; so of what may be a
    piece of one nothing is shown either.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        return "***"
    place, _, query = rest.partition("?")
    if "@" in query:
        return f"{scheme}{separator}***"
    user, at, host = place.rpartition("@")
    return f"{scheme}{separator}{user.partition(':')[0]}:***@{host}" if at else f"{scheme}{separator}{host}"


def _url_from(values: Mapping[str, str]) -> str:
    name = values.get("STM_TRANSPORT_BACKEND") or "sqlite"
    if name == "memory":
        return "memory://"
    if name == "sqlite":
        path = values.get("STM_TRANSPORT_DB") or "harel.db"
        return f"sqlite:///{_quoted_path(path)}"
    if name == "libsql":
        return _libsql_url(values)
    if name == "redis":
        return _required(values, "STM_REDIS_URL", "a URL such as redis://localhost:6379/0")
    if name == "postgres":
        return _postgres_url(
            _required(values, "STM_POSTGRES_DSN", "a URL such as postgresql://user@host:5432/database")
        )
    if name == "rqlite":
        return _required(values, "STM_RQLITE_URL", "a URL such as rqlite://user:password@host:4001,other-host:4001")
    if name == "mongo":
        return _mongo_url(values)
    if name == "sqs":
        return _sqs_url(values)
    known = ", ".join(backend.name for backend in BACKENDS)
    given = repr(name) if name.isalnum() else "not a name"  # it may be a URL with a password
    raise ConfigError(f"STM_TRANSPORT_BACKEND is {given}; it takes one of {known}.")


def _quoted_path(path: str) -> str:
    return path.replace("%", "%25").replace("?", "%3F").replace("#", "%23")


def _libsql_url(values: Mapping[str, str]) -> str:
    named = {"sync_url": values.get("STM_LIBSQL_SYNC_URL"), "auth_token": values.get("STM_LIBSQL_AUTH_TOKEN")}
    primary = {name: value for name, value in named.items() if value}
    url = f"libsql:///{_quoted_path(values.get('STM_LIBSQL_DB') or 'harel.db')}"
    return f"{url}?{urlencode(primary, quote_via=quote)}" if primary else url


_KEYWORD = re.compile(r"\s*([A-Za-z_]+)\s*=\s*(?:'((?:[^'\\]|\\.)*)'|((?:[^\s'\\]|\\.)*))(?=\s|\Z)", re.DOTALL)
"""A keyword of libpq's connection strings, with its value in quotes or without."""
_KEYWORDS = re.compile(rf"(?:{_KEYWORD.pattern})*\s*", re.DOTALL)


def _postgres_url(dsn: str) -> str:
    """Return a connection string as a URL, also one that consists of keywords: ``host=... dbname=...``."""
    if "://" in dsn:
        return dsn
    if not _KEYWORDS.fullmatch(dsn):
        raise ConfigError(
            "STM_POSTGRES_DSN is not a connection string; it takes a URL such as postgresql://user@host:5432/database."
        )
    keywords = {
        name: re.sub(r"\\(.)", r"\1", quoted or plain, flags=re.DOTALL) for name, quoted, plain in _KEYWORD.findall(dsn)
    }
    return f"postgresql:///?{urlencode(keywords, quote_via=quote)}"


def _mongo_url(values: Mapping[str, str]) -> str:
    url = _required(values, "STM_MONGO_URL", "a URL such as mongodb://user:password@host:27017/")
    named = urlencode({"db_name": values.get("STM_MONGO_DB") or "harel"}, quote_via=quote)
    return f"{url}{'&' if '?' in url else '?'}{named}"


def _sqs_url(values: Mapping[str, str]) -> str:
    named = {"endpoint_url": values.get("STM_SQS_ENDPOINT"), "region": values.get("STM_AWS_REGION")}
    query = urlencode({name: value for name, value in named.items() if value}, quote_via=quote)
    return f"sqs://{quote(values.get('STM_SQS_QUEUE') or 'stm.fifo', safe='')}?{query}"


def _required(values: Mapping[str, str], name: str, takes: str) -> str:
    value = values.get(name)
    if not value:
        raise ConfigError(f"{name} is not set; it takes {takes}.")
    return value


def _positive(values: Mapping[str, str], name: str, kind: Callable[[str], Any], default: str, takes: str) -> Any:
    text = values.get(name) or default
    try:
        number = kind(text)
    except ValueError:
        number = 0
    if not 0 < number < float("inf"):
        raise ConfigError(f"{name} is {text!r}; it takes {takes}.")
    return number


def _make(url: str, options: Mapping[str, Any], *, is_async: bool) -> Any:
    if not isinstance(url, str):
        raise ConfigError(f"A queue's URL is a string such as sqlite:///harel.db, not {type(url).__name__}.")
    try:
        url.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"A queue's URL is text; at position {error.start} it holds a lone surrogate.") from None
    if "\0" in url:  # what drivers in C take for its end
        raise ConfigError(f"A queue's URL is text; at position {url.index(chr(0))} it holds a NUL.")
    backend = _backend_of(url)
    package = importlib.import_module("harel.engine.aio_transport" if is_async else "harel.engine.transport")
    make = getattr(package, backend.async_class if is_async else backend.sync_class)
    if backend.maker is not None:
        make = getattr(make, backend.maker)
    address, _, query = url.partition("?")
    ours, others = _options(make, query, url, driver_options=backend.driver_options)
    if others:
        address = f"{address}?{urlencode(others, quote_via=quote)}"
    return make(*backend.target(address), **{**ours, **options})


def _backend_of(url: str) -> Backend:
    scheme, separator, _ = url.partition("://")
    for backend in BACKENDS:
        if separator and scheme in backend.schemes:
            return backend
    known = ", ".join(f"{scheme}://" for backend in BACKENDS for scheme in backend.schemes)
    # Without a scheme it may be anything, as a connection string with a password among its keywords.
    given = f"{redacted(url)!r} is" if _SCHEME.fullmatch(scheme) and separator else "This is"
    raise ConfigError(f"{given} not the URL of a queue. It begins with one of {known}.")


def _options(
    make: Callable[..., Any], query: str, url: str, *, driver_options: bool
) -> tuple[dict[str, Any], dict[str, str]]:
    hints = get_type_hints(make.__init__ if isinstance(make, type) else make)  # type: ignore[misc]
    takes = {
        name: hints[name]
        for name, parameter in inspect.signature(make).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY and name != "clock"
    }
    options = {}
    others = {}
    for name, text in parse_qsl(query, keep_blank_values=True):
        if name not in takes:
            if driver_options:
                others[name] = text
                continue
            raise ConfigError(f"{redacted(url)} has no option {_shown(name, query)}; it has {', '.join(takes)}.")
        try:
            options[name] = msgspec.convert(text, takes[name], strict=False)
        except msgspec.ValidationError as error:
            raise ConfigError(
                f"The option {name}={_shown(text, query)} of {redacted(url)} is not usable: {error}."
            ) from error
    return options, others


def _shown(text: str, query: str) -> str:
    """Return a part of a URL's query for a message, unless it may be the end of a password with a question mark."""
    return "***" if "@" in query else shown(text)
