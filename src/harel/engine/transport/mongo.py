"""The queue on MongoDB, for sync code."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Self

import pymongo
from pymongo.errors import InvalidURI, PyMongoError
from pymongo.uri_parser import split_options

from harel.engine.queue.face import Face, SyncFace
from harel.engine.queue.mongo.ops import MongoOps
from harel.engine.queue.mongo.schema import DEFAULT_PREFIX
from harel.engine.queue.op import Op, Sleep, run
from harel.engine.transport.mongo_calls import Calls
from harel.engine.transport.mongo_errors import FAILED, explained
from harel.errors import ConfigError, InvalidArgument, TransportUnavailable, shown

__all__ = ["MongoBase", "MongoTransport"]

_DATABASE = re.compile(r"[A-Za-z0-9_-]{1,63}")


class MongoBase(Face):
    """How both twins are made: on the caller's own client, or by :meth:`from_url`.

    Parameters
    ----------
    client : pymongo.MongoClient or pymongo.AsyncMongoClient
        It is not closed. Its timeouts apply, and its write concern if it has one; see ``from_url`` for what is better.
    db_name : str
        The database of the collections, whatever the URL's path says: that is where users are looked up.
    prefix : str
        What the names of the collections begin with.
    clock : callable, optional
        Returns epoch seconds; ``None`` is the server's clock.
    fresh_first : bool
        Whether groups that were never served go before those that were.
    poll_interval : float
        Seconds between the looks of ``wait``; it begins with an eighth and doubles.
    create_schema : bool
        Whether to make what is missing of collections and indexes.
    close_client : bool
        Whether closing the transport closes the client.
    """

    _client_class: Any = pymongo.MongoClient

    def __init__(
        self,
        client: Any,
        *,
        db_name: str = "harel",
        prefix: str = DEFAULT_PREFIX,
        clock: Callable[[], float] | None = None,
        fresh_first: bool = True,
        poll_interval: float = 0.1,
        create_schema: bool = True,
        close_client: bool = False,
    ) -> None:
        _must_be_positive("poll_interval", poll_interval)
        if not isinstance(db_name, str) or not _DATABASE.fullmatch(db_name):
            raise ConfigError(
                f"db_name is 1 to 63 ASCII letters, digits, underscores and hyphens; it is {shown(db_name)}."
            )
        if not isinstance(client, self._client_class):
            raise ConfigError(
                f"{type(self).__name__} takes a {self._client_class.__name__}, not {type(client).__name__}."
            )
        self._client = client
        self._close_client = close_client
        self._make_client: Callable[[], Any] | None = None
        self._pid = os.getpid()
        self._calls_on: Callable[[Any], Calls] = lambda client: Calls(client, db_name, prefix)
        self._calls = self._calls_on(client)
        self._address = _address(client)
        self._mongo_ops = MongoOps(
            f"{self._address}/{db_name}#{prefix}",
            prefix,
            clock=clock,
            fresh_first=fresh_first,
            poll_interval_s=poll_interval,
            create_schema=create_schema,
        )
        super().__init__(self._mongo_ops)

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        db_name: str = "harel",
        prefix: str = DEFAULT_PREFIX,
        clock: Callable[[], float] | None = None,
        fresh_first: bool = True,
        poll_interval: float = 0.1,
        create_schema: bool = True,
        timeout: float = 10.0,
        **client_options: Any,
    ) -> Self:
        """Connect by URL.

        Parameters
        ----------
        url : str
            As pymongo takes it, with its own query parameters:
            ``mongodb://[user:password@]host[:port][,host[:port]]/[?options]``, or ``mongodb+srv://``.
        db_name, prefix, clock, fresh_first, poll_interval, create_schema
            As for the class.
        timeout : float
            Seconds for each step of an operation, the search for a primary and a second try included, before
            :exc:`~harel.TransportUnavailable`. The URL's own ``timeoutMS`` goes before it.
        **client_options
            What else pymongo's client takes.

        Raises
        ------
        ConfigError
            When pymongo can make nothing of the URL or of an option.
        TransportUnavailable
            When the server cannot be reached; the async twin says so on first use.
        """
        _must_be_positive("timeout", timeout)
        _check_options(url)
        options = {**_defaults(url, timeout), **client_options}
        transport = cls(
            _client(cls._client_class, url, options),
            db_name=db_name,
            prefix=prefix,
            clock=clock,
            fresh_first=fresh_first,
            poll_interval=poll_interval,
            create_schema=create_schema,
            close_client=True,
        )
        transport._make_client = lambda: _client(cls._client_class, url, options)
        return transport

    def _op(self, request: Any) -> Op[Any]:
        """Return the calls that carry a request out, on a client of this process."""
        if self._checked.closed:
            raise InvalidArgument("This transport is closed; open a new one.")
        if self._make_client is not None and self._pid != os.getpid():
            self._pid = os.getpid()
            self._leave_to_parent(self._client)
            self._client = self._make_client()
            self._calls = self._calls_on(self._client)
        return self._calls.carry_out(request)

    def _leave_to_parent(self, client: Any) -> None:
        """Do with the client that a fork copied what does not disturb its owner."""
        raise NotImplementedError

    def _explained(self, error: BaseException) -> Exception:
        known = explained(error, self._address)
        if isinstance(known, TransportUnavailable):
            self._mongo_ops.server_clock.forget()  # it may be another server that answers next
        return known


class MongoTransport(MongoBase, SyncFace):
    """A queue on MongoDB 5.0 or later, for sync code; threads and processes may share it.

    See :class:`MongoBase` for the parameters.
    """

    def __init__(self, client: Any, **options: Any) -> None:
        self._closing = threading.Event()
        super().__init__(client, **options)

    def _send(self, request: Any) -> Any:
        if isinstance(request, Sleep):
            began = time.monotonic()
            self._closing.wait(request.seconds)
            return time.monotonic() - began
        try:
            return run(self._op(request), _call)
        except FAILED as error:
            raise self._explained(error) from error

    def _leave_to_parent(self, client: Any) -> None:
        # After a fork pymongo has made it anew; this only keeps it from complaining that it was not closed.
        with suppress(PyMongoError):
            client.close()

    def _shut(self) -> None:
        self._closing.set()
        if self._close_client:
            self._client.close()


def _call(request: Callable[[], Any]) -> Any:
    return request()


def _check_options(url: str) -> None:
    """See that pymongo knows each option of a URL; the client itself only warns of one that there is not."""
    for option in filter(None, url.partition("?")[2].split("&")):
        name = option.partition("=")[0]
        try:
            split_options(option)
        except (PyMongoError, ValueError) as error:
            # What stands there may also be the end of a password with a question mark in it.
            named = f"the option {name!r}" if name.isalpha() else "an option"
            raise ConfigError(f"pymongo cannot use {named} of this MongoDB URL: {error}.") from error


def _client(client_class: Any, url: str, options: Mapping[str, Any]) -> Any:
    """Make a client; it connects when it is first used."""
    try:
        return client_class(url, connect=False, **options)
    except InvalidURI:  # whose text may hold a piece of the password
        raise ConfigError(
            "pymongo cannot read this MongoDB URL; it is like mongodb://user:password@host:27017/?option=value. "
            "A password's special characters are written as %XX."
        ) from None
    except (PyMongoError, ValueError, TypeError) as error:
        raise ConfigError(f"pymongo cannot use an option of this MongoDB URL: {error}.") from error


def _defaults(url: str, timeout: float) -> dict[str, Any]:
    """Return the options that a URL does not have."""
    named = url.partition("?")[2].lower()
    milliseconds = max(1, round(timeout * 1_000))
    ours = {"timeoutMS": milliseconds, "connectTimeoutMS": milliseconds, "appname": "harel"}
    return {option: value for option, value in ours.items() if f"{option.lower()}=" not in named}


def _must_be_positive(name: str, seconds: float) -> None:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0.0 < seconds < float("inf"):
        raise ConfigError(f"{name} is a number of seconds above 0, not {seconds!r}.")


def _address(client: Any) -> str:
    """Return what a client was told to connect to, as a URL without a password.

    Not what it found there: two clients of one replica set may have found more or less of it.
    """
    servers = sorted(getattr(client, "_seeds", None) or client.topology_description.server_descriptions())
    return "mongodb://" + ",".join(host if port is None else f"{host}:{port}" for host, port in servers)
