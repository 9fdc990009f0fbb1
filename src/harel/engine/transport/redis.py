"""The queue on Redis or Valkey, for sync code."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self
from urllib.parse import unquote, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError, ResponseError
from redis.retry import Retry

from harel.engine.queue.assets import check_identifier, check_timeout
from harel.engine.queue.face import Face, SyncFace
from harel.engine.queue.op import Op, run
from harel.engine.queue.redis.ops import Hear, Hush, Listen, RedisOps, Script
from harel.engine.transport.redis_ears import Ears
from harel.engine.transport.redis_errors import FAILED, explained
from harel.errors import ConfigError, InvalidArgument

__all__ = ["RedisBase", "RedisTransport"]


class RedisBase(Face):
    """How both twins are made: on the caller's own client, or by :meth:`from_url`.

    Parameters
    ----------
    client : redis.Redis or redis.RedisCluster, or its twin in redis.asyncio
        Also one of Sentinel's ``master_for``; with ``decode_responses`` on or off. Its timeouts apply. Its retries
        do not: they could do an operation twice.
    prefix : str
        What the names of the keys begin with.
    clock : callable, optional
        Returns epoch seconds; ``None`` is the server's clock.
    fresh_first : bool
        Whether groups that were never served go before those that were.
    poll_interval : float
        Seconds between the looks of ``wait``, whatever it hears.
    close_client : bool
        Whether closing the transport closes the client.
    """

    _package: Any = redis
    _timeout_s: float | None = None

    def __init__(
        self,
        client: Any,
        *,
        prefix: str = "harel",
        clock: Callable[[], float] | None = None,
        fresh_first: bool = True,
        poll_interval: float = 1.0,
        close_client: bool = False,
    ) -> None:
        check_timeout("poll_interval", poll_interval)
        prefix = check_identifier("prefix", prefix)
        self._client = client
        self._close_client = close_client
        self._pool: Any = getattr(client, "connection_pool", None)
        self._address = _address(self._pool)
        self._ears = Ears(client, self._sleep)
        self._spare = Spare()
        self._packer = Packer()
        super().__init__(
            RedisOps(
                f"{self._address}#{prefix}",
                prefix,
                clock=clock,
                fresh_first=fresh_first,
                poll_interval_s=poll_interval,
            )
        )

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        prefix: str = "harel",
        clock: Callable[[], float] | None = None,
        fresh_first: bool = True,
        poll_interval: float = 1.0,
        timeout: float = 10.0,
        **client_options: Any,
    ) -> Self:
        """Connect by URL.

        Parameters
        ----------
        url : str
            As redis-py takes it, with its own query parameters: ``redis://[[user]:password@]host[:port][/db]``,
            ``rediss://`` for TLS, ``unix://`` for a socket.
        prefix, clock, fresh_first, poll_interval
            As for the class.
        timeout : float
            Seconds to wait for a connection, and for a reply, before :exc:`~harel.TransportUnavailable`.
        **client_options
            What else redis-py's ``from_url`` takes.

        Raises
        ------
        ConfigError
            When redis-py can make nothing of the URL or of an option.
        TransportUnavailable
            When the server cannot be reached; the async twin says so on first use.
        """
        check_timeout("timeout", timeout)
        options = {"protocol": 2, "max_connections": 2**31, **cls._timeouts(timeout), **client_options}
        transport = cls(
            _client(cls._package, url, options),
            prefix=prefix,
            clock=clock,
            fresh_first=fresh_first,
            poll_interval=poll_interval,
            close_client=True,
        )
        transport._timeout_s = timeout
        return transport

    @classmethod
    def _timeouts(cls, timeout: float) -> dict[str, Any]:
        return {"socket_connect_timeout": timeout, "socket_timeout": timeout}

    def _sleep(self, seconds: float) -> Any:
        raise NotImplementedError

    def _must_be_open(self) -> None:
        if self._checked.closed:
            raise InvalidArgument("This transport is closed; open a new one.")

    def _ears_op(self, request: Any) -> Op[Any]:
        if isinstance(request, Listen):
            return self._ears.listen(request.channel)
        if isinstance(request, Hear):
            return self._ears.hear(request.ear, request.seconds)
        assert isinstance(request, Hush), "a request of another backend"
        return self._ears.hush(request.ear)


class RedisTransport(RedisBase, SyncFace):
    """A queue on Redis 6.2 or later, or Valkey, for sync code; threads and processes may share it.

    See :class:`RedisBase` for the parameters.
    """

    def __init__(self, client: Any, **options: Any) -> None:
        self._closing = threading.Event()
        super().__init__(client, **options)

    def _send(self, request: Any) -> Any:
        if not isinstance(request, Script):
            return run(self._ears_op(request), _call)
        return self._run_in_cluster(request) if self._pool is None else self._run_on_pool(request)

    def _run_on_pool(self, request: Script) -> Any:
        """Run a script on a connection: the client itself would send it again when a reply is lost."""
        self._must_be_open()
        try:
            connection = self._connection()
        except FAILED as error:
            raise explained(error, self._address, sent=False) from error
        try:
            try:
                connection.send_packed_command((self._packer.by_hash(request),))
                reply = connection.read_response(disable_decoding=True)
            except NoScriptError:
                connection.send_packed_command((self._packer.by_text(request),))
                reply = connection.read_response(disable_decoding=True)
        except BaseException as error:
            if not isinstance(error, ResponseError):
                connection.disconnect()  # its reply may be unread
            self._pool.release(connection)
            if isinstance(error, FAILED):
                raise explained(error, self._address, sent=True) from error
            raise
        self._give_back(connection)
        return reply

    def _connection(self) -> Any:
        while (connection := self._spare.take()) is not None:
            try:
                if not connection.can_read():
                    return connection
            except FAILED:
                pass
            connection.disconnect()  # the server closed it, or sent what nobody asked for
            self._pool.release(connection)
        return self._pool.get_connection()

    def _give_back(self, connection: Any) -> None:
        if self._checked.closed:
            connection.disconnect()
        elif self._close_client:
            self._spare.keep(connection)
            return
        self._pool.release(connection)

    def _run_in_cluster(self, request: Script) -> Any:
        """Run a script on the keys' node. Given a node, the client follows redirections, and sends nothing again."""
        self._must_be_open()
        try:
            options = {"target_nodes": self._client.get_node_from_key(request.keys[0].decode()), "NEVER_DECODE": True}
            try:
                return self._client.execute_command("EVALSHA", *request.by_hash()[1:], **options)
            except NoScriptError:
                return self._client.execute_command("EVAL", *request.by_text()[1:], **options)
        except FAILED as error:
            raise explained(error, self._address, sent=not isinstance(error, ResponseError)) from error

    def _sleep(self, seconds: float) -> None:
        self._closing.wait(seconds)

    def _shut(self) -> None:
        self._closing.set()
        run(self._ears.close(), _call)
        if self._close_client:
            self._client.close()


class Packer:
    """Writes a script's command in Redis's protocol.

    Of a command that is sent by hash most is the same each time, and written once.
    """

    def __init__(self) -> None:
        self._heads: dict[str, bytes] = {}

    def by_hash(self, request: Script) -> bytes:
        name = request.script.name
        head = self._heads.get(name)
        if head is None:
            head = self._heads[name] = _bulks(request.by_hash()[: 3 + len(request.keys)])
        return b"*%d\r\n%b%b" % (3 + len(request.keys) + len(request.args), head, _bulks(request.args))

    def by_text(self, request: Script) -> bytes:
        command = request.by_text()
        return b"*%d\r\n%b" % (len(command), _bulks(command))


class Spare:
    """Connections that a transport keeps between its operations, if the pool is its own.

    A third of what an operation costs the client goes into a pool's taking and giving.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._connections: list[Any] = []

    def take(self) -> Any:
        """Return one, or ``None``. What a fork copied is the parent's, and left alone."""
        if self._pid != os.getpid():
            self._pid, self._connections = os.getpid(), []
        try:
            return self._connections.pop()
        except IndexError:
            return None

    def keep(self, connection: Any) -> None:
        self._connections.append(connection)


def _client(package: Any, url: str, options: Mapping[str, Any]) -> Any:
    try:
        _ = urlsplit(url).port
    except ValueError:  # whose text may hold a piece of the password
        raise ConfigError(
            "The host or port of this Redis URL cannot be read. A password's special characters are written as %XX."
        ) from None
    try:
        client = package.Redis.from_url(url, retry=Retry(NoBackoff(), 0), **options)
        # The pool finds an option that there is not only when it connects.
        client.connection_pool.connection_class(**client.connection_pool.connection_kwargs)
    except (ValueError, TypeError, RedisError) as error:
        if "@" in unquote(url.partition("?")[2]):  # what stands there may be the end of a password
            raise ConfigError(
                "redis-py cannot use an option of this Redis URL. A password's special characters are written as %XX, "
                "its question marks too."
            ) from None
        raise ConfigError(f"redis-py cannot use an option of this Redis URL: {error}.") from error
    for option in ("socket_timeout", "socket_connect_timeout"):
        seconds = client.connection_pool.connection_kwargs.get(option)
        if seconds is not None:
            check_timeout(option, seconds)
    return client


def _address(pool: Any) -> str:
    if pool is None:
        return "redis-cluster://"
    if hasattr(pool, "service_name"):
        return f"redis-sentinel://{pool.service_name}"
    options = pool.connection_kwargs
    if "path" in options:
        return f"unix://{options['path']}"
    return f"redis://{options.get('host', 'localhost')}:{options.get('port', 6379)}/{options.get('db', 0)}"


def _bulks(args: Sequence[bytes]) -> bytes:
    return b"".join([b"$%d\r\n%b\r\n" % (len(arg), arg) for arg in args])


def _call(request: Callable[[], Any]) -> Any:
    return request()
