"""The queue on Amazon SQS FIFO, for sync code."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self
from urllib.parse import urlsplit

import boto3  # type: ignore[import-untyped]
import botocore.session  # type: ignore[import-untyped]
from botocore.config import Config  # type: ignore[import-untyped]
from botocore.loaders import Loader, create_loader  # type: ignore[import-untyped]

from harel.engine.queue.assets import check_timeout
from harel.engine.queue.face import Face, SyncFace
from harel.engine.queue.op import Sleep
from harel.engine.queue.sqs.asking import Call, Together
from harel.engine.queue.sqs.opening import Names
from harel.engine.queue.sqs.ops import SqsOps
from harel.engine.queue.sqs.refusals import Refused, Unanswered
from harel.engine.transport.sqs_errors import FAILED, failure_of, must_be_whole, setting_error
from harel.errors import ConfigError, HarelError, shown

__all__ = ["Line", "SqsBase", "SqsTransport", "shared_loader"]

MESSAGE_BYTES = 262_144
"""The largest message and batch that every queue of SQS takes unless it is set to less."""

MOST_MESSAGE_BYTES = 1_048_576
_LEAST_MESSAGE_BYTES = 2_048

_CALLS_AT_ONCE = 10
_CONNECTIONS = 50


class Line:
    """How SQS is reached: with the caller's own client, or with one that is made here.

    Parameters
    ----------
    client : object or None
        The caller's own.
    session : object or None
        What makes a client otherwise; ``None`` is a new one.
    settings : dict
        What a client is made with.
    """

    def __init__(self, client: Any, session: Any = None, **settings: Any) -> None:
        self.client: Any = client
        self.is_own: bool = client is None
        self.session: Any = session
        self.settings: dict[str, Any] = settings


class SqsBase(Face):
    """How both twins are made: on the caller's own client, or by :meth:`create`.

    Parameters
    ----------
    client : object
        An SQS client, of boto3 for the sync class and of aiobotocore for the async one. It is not closed, and its own
        timeouts and retries apply.
    queue_url : str
        The queue's URL, as SQS gave it.
    dead_letter_url : str, optional
        Where rejected messages go: the URL of a FIFO queue. ``None`` is the queue of this one's name with ``-dead``,
        looked up at the first rejection.
    poll_interval : float
        For how many seconds ``wait`` pauses.
    max_message_bytes : int
        The largest message and batch, 2,048 to 1,048,576 bytes. A queue takes 262,144, or what its attribute
        ``MaximumMessageSize`` says.
    """

    def __init__(
        self,
        client: Any,
        queue_url: str,
        *,
        dead_letter_url: str | None = None,
        poll_interval: float = 1.0,
        max_message_bytes: int = MESSAGE_BYTES,
    ) -> None:
        names = Names.of_url(queue_url, dead_letter_url)
        endpoint = str(getattr(getattr(client, "meta", None), "endpoint_url", "") or queue_url)
        self._begin(Line(client), names, endpoint, 10.0, poll_interval, max_message_bytes)

    @classmethod
    def create(
        cls,
        queue_name: str,
        session: Any = None,
        *,
        endpoint_url: str | None = None,
        region: str | None = None,
        max_attempts: int | None = None,
        create_queue: bool = True,
        timeout: float = 10.0,
        poll_interval: float = 1.0,
        max_message_bytes: int = MESSAGE_BYTES,
        clock: Callable[[], float] | None = None,
    ) -> Self:
        """Find the queue by its name, or create it, and the one for its dead letters: ``orders-dead.fifo``.

        Parameters
        ----------
        queue_name : str
            1 to 70 letters, digits, hyphens and underscores; ``.fifo`` is added where it is missing.
        session : object, optional
            A ``boto3.Session``, or aiobotocore's for the async class: another profile, or a role that was assumed.
            Unless given, credentials come from where AWS's own tools take them.
        endpoint_url : str, optional
            Another endpoint than the region's.
        region : str, optional
            Unless given, the one of the environment or profile.
        max_attempts : int, optional
            After how many attempts SQS itself moves a message to the dead letters (its redrive policy).
        create_queue : bool
            Whether to create what is missing: a FIFO queue for high throughput that keeps messages for 14 days.
        timeout : float
            Seconds to wait for SQS before :exc:`~harel.TransportUnavailable`.
        poll_interval, max_message_bytes
            As for the class.
        clock : None
            SQS goes by its own clock.

        Raises
        ------
        ConfigError
            When there are no credentials, no region, no such queue, or when SQS does not let these credentials do it.
        TransportUnavailable
            When SQS cannot be reached. The async twin says these on first use.
        """
        names = Names.of_name(queue_name, max_attempts=max_attempts, create_queue=create_queue)
        check_timeout("timeout", timeout)
        if clock is not None:
            raise ConfigError("SQS goes by its own clock, and takes no other; leave clock out.")
        settings = {
            "region_name": region,
            "endpoint_url": _checked_endpoint(endpoint_url),
            # Sent again, within the timeout, is what the operations say; two attempts of half of it make the whole.
            "config": {
                "connect_timeout": timeout / 2,
                "read_timeout": timeout / 2,
                "retries": {"total_max_attempts": 1},
                "max_pool_connections": _CONNECTIONS,
                "user_agent_extra": "harel",
            },
        }
        where = endpoint_url or "https://sqs.amazonaws.com"
        transport = cls.__new__(cls)
        line = Line(None, session, **settings)
        transport._begin(line, names, where, timeout, poll_interval, max_message_bytes)  # noqa: SLF001 - it is made here
        return transport

    def _begin(
        self, line: Line, names: Names, endpoint: str, timeout: float, poll_interval: float, max_message_bytes: int
    ) -> None:
        check_timeout("poll_interval", poll_interval)
        number = isinstance(max_message_bytes, int) and not isinstance(max_message_bytes, bool)
        if not number or not _LEAST_MESSAGE_BYTES <= max_message_bytes <= MOST_MESSAGE_BYTES:
            raise ConfigError(
                f"max_message_bytes is an int from {_LEAST_MESSAGE_BYTES:,} to {MOST_MESSAGE_BYTES:,}, "
                f"not {shown(max_message_bytes)}."
            )
        self._line = line
        if line.client is not None:
            _watch(line.client)
        ops = SqsOps(
            names,
            where=_host_and_port(endpoint),
            poll_interval_s=poll_interval,
            max_message_bytes=max_message_bytes,
            patience_s=timeout / 2,
        )
        self._asker = ops.asker
        super().__init__(ops)

    def _use(self, client: Any) -> None:
        """Take a client that was made here; it knows the endpoint of the region."""
        self._line.client = client
        _watch(client)
        self._asker.where = _host_and_port(client.meta.endpoint_url)


def _watch(client: Any) -> None:
    client.meta.events.register("before-parse.sqs", must_be_whole, unique_id="harel-must-be-whole")


class SqsTransport(SqsBase, SyncFace):
    """A queue on Amazon SQS FIFO, for sync code; threads and processes may share it.

    See :class:`SqsBase` for the parameters.
    """

    def _begin(self, *settings: Any) -> None:
        self._closing = threading.Event()
        self._making = threading.Lock()
        self._pid = os.getpid()
        self._threads: ThreadPoolExecutor | None = None
        super()._begin(*settings)

    def _send(self, request: Any) -> Any:
        if isinstance(request, Sleep):
            return self._pause(request.seconds)
        assert isinstance(request, Together), "a request of another backend"
        self._connected()
        if len(request.calls) == 1:
            return [self._called(request.calls[0])]
        assert self._threads is not None
        return list(self._threads.map(self._called, request.calls))

    def _called(self, call: Call) -> dict[str, Any] | Refused | Unanswered:
        try:
            reply: dict[str, Any] = getattr(self._line.client, call.action)(**call.params)
        except FAILED as error:
            return failure_of(error)
        return reply

    def _connected(self) -> None:
        """Have a client, and threads for what is to be done at the same time; a fork's child, of its own."""
        if self._threads is not None and self._pid == os.getpid():
            return
        with self._making:
            if self._threads is not None and self._pid == os.getpid():
                return
            if self._line.is_own:
                self._use(_made(self._line))
            self._threads = ThreadPoolExecutor(_CALLS_AT_ONCE, thread_name_prefix="harel-sqs")
            self._pid = os.getpid()

    def _pause(self, seconds: float) -> float:
        self._closing.wait(seconds)
        return seconds

    def _shut(self) -> None:
        self._closing.set()
        if self._threads is not None and self._pid == os.getpid():
            self._threads.shutdown(wait=True)
        if self._line.is_own and self._line.client is not None:
            self._line.client.close()


@functools.cache
def shared_loader() -> Loader:
    """Return what reads botocore's descriptions of services: each once in a process."""
    return create_loader()


def client_options(line: Line, config: type[Config]) -> dict[str, Any]:
    """Return what a client is made with."""
    settings = {name: value for name, value in line.settings.items() if value is not None}
    return {**settings, "config": config(**settings["config"])}


def making_failed(error: BaseException) -> HarelError:
    """Return the error for a client that could not be made."""
    return setting_error(error) or ConfigError(f"No SQS client can be made with these settings: {error}.")


def _made(line: Line) -> Any:
    try:
        session = line.session
        if session is None:
            inner = botocore.session.Session()
            inner.register_component("data_loader", shared_loader())
            session = boto3.session.Session(botocore_session=inner)
        return session.client("sqs", **client_options(line, Config))
    except (*FAILED, ValueError, TypeError) as error:
        raise making_failed(error) from error


def _checked_endpoint(url: str | None) -> str | None:
    if url is None:
        return None
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        names_user = "@" in parts.netloc
    except (ValueError, TypeError, AttributeError):
        usable = names_user = False
    if not usable or names_user:
        # Not shown: a part of it may be a password.
        raise ConfigError(
            "endpoint_url (STM_SQS_ENDPOINT) takes http://host:port or https://host, without a user: credentials come "
            "from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or a profile."
        )
    return url


def _host_and_port(endpoint: str) -> str:
    parts = urlsplit(endpoint)
    return f"{parts.hostname}:{parts.port or (80 if parts.scheme == 'http' else 443)}"
