"""The queue on MongoDB, for sync code."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Self, cast
from urllib.parse import unquote

import pymongo
from pymongo import ReadPreference
from pymongo.client_session import ClientSession
from pymongo.errors import InvalidURI, PyMongoError
from pymongo.read_concern import ReadConcern
from pymongo.uri_parser import split_options

from harel.engine.queue.assets import check_identifier, check_timeout
from harel.engine.queue.contract import Operations
from harel.engine.queue.face import Face, SyncFace
from harel.engine.queue.mongo.bound import BoundMongoOps
from harel.engine.queue.mongo.ops import MongoOps
from harel.engine.queue.mongo.requests import Abort, BeginAnew, Document, Within
from harel.engine.queue.mongo.schema import DEFAULT_PREFIX
from harel.engine.queue.op import Op, Sleep, run
from harel.engine.transport.mongo_calls import Calls
from harel.engine.transport.mongo_errors import FAILED, explained
from harel.errors import ConfigError, HarelError, InvalidArgument, NotSupported, TransportUnavailable, shown

__all__ = ["MongoBase", "MongoTransport"]

_NO_LIMIT = 1_000
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
    _session_class: Any = ClientSession

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
        check_timeout("poll_interval", poll_interval)
        prefix = check_identifier("prefix", prefix)
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
        self._tickets: dict[int, list[Document]] = {}
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
        check_timeout("timeout", timeout)
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

    @property
    def max_transactions(self) -> int:
        """How many ``transaction()`` blocks can be open at once, for a worker to go by: as many as connections."""
        return int(self._client.options.pool_options.max_pool_size or _NO_LIMIT)

    def _op(self, request: Any) -> Op[Any]:
        """Return the calls that carry a request out, on a client of this process."""
        return self._calls_of_this_process().carry_out(request)

    def _calls_of_this_process(self) -> Calls:
        if self._checked.closed:
            raise InvalidArgument("This transport is closed; open a new one.")
        if self._make_client is not None and self._pid != os.getpid():
            self._pid = os.getpid()
            self._leave_to_parent(self._client)
            self._client = self._make_client()
            self._calls = self._calls_on(self._client)
        return self._calls

    def _bound_op(self, session: Any, request: Any) -> Op[Any]:
        """Return the calls that carry a request out, of those for a transaction on a caller's session."""
        self._must_have_transactions()
        self._must_be_in_a_transaction(session)
        calls = self._calls_of_this_process()
        if isinstance(request, Abort | BeginAnew | Within):
            if session.client is not self._client:
                calls = self._calls_on(session.client)
            calls = calls.within(session)
        return calls.carry_out(request.request if isinstance(request, Within) else request)

    def _bound_ops(self, session: Any) -> Operations:
        self._must_have_transactions()
        self._must_be_in_a_transaction(session)
        # Of the operations, checks only ask the ones for a transaction.
        return cast("Operations", BoundMongoOps(self._mongo_ops, self._tickets.get(id(session), [])))

    def _must_be_in_a_transaction(self, session: Any) -> None:
        if not isinstance(session, self._session_class):
            raise InvalidArgument(
                f"bind takes a pymongo {self._session_class.__name__}, such as transaction() gives, "
                f"not {type(session).__name__}."
            )
        if session.has_ended:
            raise InvalidArgument("The session that was given to bind has ended.")
        if not session.in_transaction:
            raise InvalidArgument(
                "The session that was given to bind is in no transaction: call its start_transaction first, or use "
                "transaction()."
            )

    def _must_have_transactions(self) -> None:
        if not self._mongo_ops.capabilities.bind:
            raise NotSupported(
                f"{self._address} has no transactions (capabilities.bind is False): it is a server alone. Use a "
                "replica set, which may have one member."
            )

    @contextmanager
    def _tickets_of(self, session: Any) -> Iterator[list[Document]]:
        """Give the names of the tickets that are left in a transaction of the transport's own."""
        tickets = self._tickets[id(session)] = []
        try:
            yield tickets
        finally:
            del self._tickets[id(session)]

    def _in_a_transaction(self) -> dict[str, Any]:
        """Return with what a transaction is started."""
        concern = self._calls.concern
        return {
            "write_concern": concern,
            "read_concern": ReadConcern("snapshot" if concern.document.get("w") == "majority" else "local"),
            "read_preference": ReadPreference.PRIMARY,
        }

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

    See :class:`MongoBase` for the parameters. On a replica set ``bind`` takes a pymongo ``ClientSession`` that is in a
    transaction, and ``transaction()`` gives one. An operation that meets another transaction's write raises
    :exc:`~harel.engine.transport.mongo_errors.TransactionConflict`, which is a :exc:`~harel.TransportUnavailable` and
    has pymongo's label ``TransientTransactionError``, so that ``session.with_transaction`` begins anew.
    """

    def __init__(self, client: Any, **options: Any) -> None:
        self._closing = threading.Event()
        super().__init__(client, **options)

    def _send(self, request: Any) -> Any:
        if isinstance(request, Sleep):
            began = time.monotonic()
            self._closing.wait(request.seconds)
            return time.monotonic() - began
        return self._carry_out(self._op(request))

    def _carry_out(self, calls: Op[Any]) -> Any:
        try:
            return run(calls, _call)
        except FAILED as error:
            raise self._explained(error) from error

    def _bound(self, connection: Any) -> tuple[Operations, Callable[[Any], Any]]:
        def send(request: Any) -> Any:
            return self._carry_out(self._bound_op(connection, request))

        return self._bound_ops(connection), send

    def _transaction(self) -> AbstractContextManager[Any]:
        return self._transacting()

    @contextmanager
    def _transacting(self) -> Iterator[Any]:
        self._must_have_transactions()
        calls = self._calls_of_this_process()
        with self._client.start_session() as session, self._tickets_of(session) as tickets:
            session.start_transaction(**self._in_a_transaction())
            try:
                yield session
            except BaseException:
                if session.in_transaction:
                    session.abort_transaction()
                raise
            self._carry_out(calls.commit(session))
        with suppress(HarelError):  # it has committed; if this fails, the next claim does it
            if tickets:
                self._run(self._mongo_ops.take_in_these(tickets))

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
    query = url.partition("?")[2]
    for option in filter(None, query.split("&")):
        name = option.partition("=")[0]
        try:
            split_options(option)
        except (PyMongoError, ValueError) as error:
            # What stands there may also be the end of a password with a question mark in it.
            if "@" in unquote(query):
                raise ConfigError(
                    "pymongo cannot use an option of this MongoDB URL. A password's special characters are written as "
                    "%XX, its question marks too."
                ) from None
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


def _address(client: Any) -> str:
    """Return what a client was told to connect to, as a URL without a password.

    Not what it found there: two clients of one replica set may have found more or less of it.
    """
    servers = sorted(getattr(client, "_seeds", None) or client.topology_description.server_descriptions())
    return "mongodb://" + ",".join(host if port is None else f"{host}:{port}" for host, port in servers)
