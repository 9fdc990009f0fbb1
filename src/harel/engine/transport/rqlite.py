"""The queue on rqlite, for sync code."""

from __future__ import annotations

import os
import ssl
import threading
import time
from collections.abc import Callable
from typing import Any, get_args

import httpx2

from harel.engine.queue.assets import check_identifier, check_timeout
from harel.engine.queue.face import Face, SyncFace
from harel.engine.queue.op import Sleep, run
from harel.engine.queue.rqlite.address import Address
from harel.engine.queue.rqlite.cluster import Answer, Cluster, Post, ReadLevel, Unanswered
from harel.engine.queue.rqlite.ops import RqliteOps
from harel.errors import ConfigError, InvalidArgument

__all__ = ["FAILED", "RqliteBase", "RqliteTransport", "unanswered"]

FAILED = (httpx2.RequestError, httpx2.InvalidURL, httpx2.StreamError)
"""What the client raises when no whole answer came."""

_KEPT_AFTER_S = 60.0
"""For how long after a request's last try its id is kept: as long as a copy of it may be on its way between nodes."""

_left_to_the_parent: list[Any] = []
"""Clients that a fork copied. They are neither used nor closed here: both would harm the parent's connections."""


class RqliteBase(Face):
    """How both twins are made.

    Parameters
    ----------
    url : str
        ``rqlite://user:password@host:4001,other-host:4001``, ``rqlites://`` for TLS: some of the nodes of one cluster.
    client : httpx2.Client or httpx2.AsyncClient, optional
        The caller's own, which is then used as it is, except for its timeouts, and not closed.
    prefix : str
        What the names of the tables begin with.
    clock : callable, optional
        Returns epoch seconds; ``None`` is the leader's clock.
    fresh_first : bool
        Whether groups that were never served go before those that were.
    poll_interval : float
        Seconds between the looks of ``wait``.
    timeout : float
        Seconds for an operation with all its tries, before :exc:`~harel.TransportUnavailable`.
    read_level : str
        How sure looks are (``stats``, ``groups``, ``peek``, ``dead_letters``, ``wait``). ``"weak"``: the leader
        answers, and one that has just lost its office without knowing may show what was a moment ago.
        ``"linearizable"``: it asks the others first.
    redirect : bool
        Whether a node that does not lead names the leader, which is then asked. If ``False`` it passes requests on; the
        time is then that of the node that was asked.
    ca_file : str, optional
        The certificates to trust, in PEM, instead of the system's.
    create_schema : bool
        Whether to make the tables if they are missing.
    """

    _client_class: type[httpx2.Client] | type[httpx2.AsyncClient]

    def __init__(
        self,
        url: str,
        client: Any = None,
        *,
        prefix: str = "transport",
        clock: Callable[[], float] | None = None,
        fresh_first: bool = True,
        poll_interval: float = 0.1,
        timeout: float = 10.0,
        read_level: ReadLevel = "weak",
        redirect: bool = True,
        ca_file: str | None = None,
        create_schema: bool = True,
    ) -> None:
        check_timeout("poll_interval", poll_interval)
        check_timeout("timeout", timeout)
        prefix = check_identifier("prefix", prefix)
        if read_level not in get_args(ReadLevel):
            raise ConfigError(f"read_level must be one of {', '.join(get_args(ReadLevel))}, not {read_level!r}.")
        address = Address.of(url)
        self._own = client
        self._trusted = _trusted(address, ca_file)
        self._clients: dict[int, Any] = {}
        self._closing = threading.Event()
        self._cluster = Cluster(address, timeout_s=timeout, read_level=read_level, redirect=redirect, clock=clock)
        super().__init__(
            RqliteOps(
                f"{address}#{prefix}",
                prefix,
                clock_given=clock is not None,
                fresh_first=fresh_first,
                poll_interval_s=poll_interval,
                keep_s=timeout + _KEPT_AFTER_S,
                create_schema=create_schema,
            )
        )

    def _client_of_this_process(self) -> Any:
        self._must_be_open()
        if self._own is not None:
            return self._own
        client = self._clients.get(os.getpid())
        if client is None:
            _left_to_the_parent.extend(self._clients.values())
            limits = httpx2.Limits(max_connections=None, max_keepalive_connections=100, keepalive_expiry=60.0)
            # The environment's proxies are for the web, and a .netrc's passwords for other clients.
            made = self._client_class(verify=self._trusted, limits=limits, trust_env=False)
            client = self._clients.setdefault(os.getpid(), made)  # another thread may have been quicker
        return client

    def _must_be_open(self) -> None:
        if self._checked.closed:
            raise InvalidArgument("This transport is closed; open a new one.")


class RqliteTransport(RqliteBase, SyncFace):
    """A queue on rqlite 8.33 or later, for sync code; threads and processes may share it.

    See :class:`RqliteBase` for the parameters.
    """

    _client_class = httpx2.Client

    def _send(self, request: Any) -> Any:
        return self._pause(request) if isinstance(request, Sleep) else run(self._cluster.carry(request), self._do)

    def _do(self, request: Post | Sleep) -> Any:
        if isinstance(request, Sleep):
            return self._pause(request)
        client = self._client_of_this_process()
        try:
            answer = client.post(
                request.url,
                content=request.body,
                headers=request.headers,
                timeout=request.timeout_s,
                follow_redirects=False,
            )
        except FAILED as error:
            raise unanswered(error, request) from error
        except RuntimeError:
            self._must_be_open()  # closed by another thread
            raise
        return Answer(answer.status_code, answer.headers, answer.content)

    def _pause(self, request: Sleep) -> float:
        began = time.monotonic()
        self._closing.wait(request.seconds)
        return time.monotonic() - began

    def _shut(self) -> None:
        self._closing.set()
        client = self._clients.get(os.getpid())
        if client is not None:
            client.close()


def unanswered(error: Exception, request: Post) -> Exception:
    """Say what became of a request that got no answer."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return ConfigError(
                f"The certificate of {request.url.split('/')[2]} is not trusted ({cause.verify_message}). "
                "Name the file of its authority with ca_file."
            )
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, httpx2.TimeoutException):
        return Unanswered(f"nothing came within {request.timeout_s:.3g} s")
    return Unanswered(str(error) or type(error).__name__)


def _trusted(address: Address, ca_file: str | None) -> ssl.SSLContext:
    if address.scheme != "rqlites":
        if ca_file is not None:
            raise ConfigError("ca_file is for TLS: the URL begins with rqlites:// then.")
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # trusts nobody; to read the system's certificates takes long
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"ca_file={ca_file!r} holds no certificates that can be read: {error}.") from error
