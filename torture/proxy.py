"""A proxy between clients and a server, which knows where messages end and does harm where it is told.

Any number of processes may go through it; it runs in a thread of the one that opened it::

    with Proxy(url) as proxy:                          # url is any queue's: redis://, postgresql://, sqs://…
        queue = harel.connect(proxy.url_for(url))      # the same queue, through the proxy

        proxy.watch()                                  # count anew
        queue.publish("g", event)
        proxy.seen                                     # Seen(requests=1, replies=1)

        proxy.do(Harm("request", 1, "before"))         # the next request is swallowed: the server never got it
        proxy.do(Harm("reply", 1, "before"))           # it went through, and its reply is dropped
        proxy.do(Harm("reply", 1, "half"))             # half of the reply arrives
        proxy.do(Harm("reply", 1, "after"))            # it arrives, and then the connection is cut
        ...
        proxy.done                                     # whether it came to that

        proxy.freeze(); proxy.thaw()                   # nothing gets through, and then all that was kept
        proxy.cut_all()                                # all connections, at once
        proxy.refuse(); proxy.admit()                  # new connections are cut before their first byte

    with Proxy(url, chaos=Chaos(seed=1)) as proxy:     # harm at random: each message may meet it
        proxy.calm(); proxy.storm()                    # it begins with a storm

Of a chaos the choices come from the seed, message by message; which message of which process comes when does not.
A connection's messages are requests (from the client) and replies (from the server); both are counted over all
connections. What cannot be looked into (TLS) is passed on and counted by the piece.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self, TypeAlias
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

from torture.framing import FRAMINGS, Framing, Message

__all__ = ["Chaos", "Harm", "How", "Proxy", "Seen", "Side"]

Side: TypeAlias = Literal["request", "reply"]
How: TypeAlias = Literal["before", "half", "after", "delay", "freeze"]

_DEFAULT_PORTS = {"redis": 6379, "valkey": 6379, "postgresql": 5432, "postgres": 5432, "mongodb": 27017, "rqlite": 4001}
_AT_ONCE = 65_536
_CLOSE_WITH_RESET = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True)
class Harm:
    """What is done to one message.

    Attributes
    ----------
    side : str
        ``"request"`` or ``"reply"``.
    number : int
        Which one, from 1, of those that count since it was told.
    how : str
        ``"before"``: the connection is cut instead of passing it; ``"half"``: in the middle of it; ``"after"``: behind
        it. ``"delay"``: it comes ``seconds`` later. ``"freeze"``: nothing gets through from then on, until ``thaw``.
    seconds : float
    with_reset : bool
        Whether the client sees a reset connection, or one that was closed.
    """

    side: Side
    number: int
    how: How
    seconds: float = 0.0
    with_reset: bool = True


@dataclass(frozen=True, slots=True)
class Chaos:
    """How likely a message meets which harm.

    Attributes
    ----------
    seed : int
    swallow : float
        That a request never reaches the server, and its connection is cut.
    drop_reply : float
        That a reply is dropped, and its connection is cut: what was asked for is done.
    half : float
        That the connection is cut in the middle of a message, of either side.
    cut : float
        That the connection is cut behind a message, of either side.
    delay : float
        That it comes later, by up to ``delay_s`` seconds.
    delay_s : float
    """

    seed: int
    swallow: float = 0.01
    drop_reply: float = 0.02
    half: float = 0.005
    cut: float = 0.005
    delay: float = 0.05
    delay_s: float = 0.2

    def choose(self, chance: random.Random, side: Side) -> Harm | None:
        """Choose what is done to a message, if anything."""
        first = self.swallow if side == "request" else self.drop_reply
        fortune, with_reset = chance.random(), chance.random() < 0.5
        ways: tuple[tuple[How, float], ...] = (
            ("before", first),
            ("half", self.half),
            ("after", self.cut),
            ("delay", self.delay),
        )
        for how, likely in ways:
            if fortune < likely:
                return Harm(side, 0, how, chance.uniform(0.0, self.delay_s), with_reset)
            fortune -= likely
        return None


@dataclass(frozen=True, slots=True)
class Seen:
    """How many messages went through."""

    requests: int
    replies: int


class Proxy:
    """Passes messages between clients and a server; a context manager.

    Parameters
    ----------
    url : str
        A queue's, as ``harel.connect`` takes it; that of SQS has an ``endpoint_url``.
    chaos : Chaos, optional
        Harm at random.

    Attributes
    ----------
    address : tuple
        The host and port where it listens.
    suffered : Counter
        How often a message met each harm, as ``"reply before"``.
    """

    def __init__(self, url: str, chaos: Chaos | None = None) -> None:
        parts = urlsplit(url)
        self._framing = FRAMINGS[parts.scheme]
        self._upstream = _upstream(url)
        self._chaos = chaos
        self._chance = random.Random(0 if chaos is None else chaos.seed)
        self._stormy = chaos is not None
        self._refusing = False
        self._lock = threading.Lock()
        self._harm: Harm | None = None
        self._counts: Counter[Side] = Counter()
        self._done = threading.Event()
        self._open: set[_Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.suffered: Counter[str] = Counter()
        self._loop = asyncio.new_event_loop()
        self._thawed = asyncio.Event()
        self._thawed.set()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=200)
        self.address: tuple[str, int] = self._listener.getsockname()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._thread.start()

    # What a test says.

    def url_for(self, url: str) -> str:
        """Return the URL of the same queue, through the proxy."""
        return _through(url, *self.address)

    def watch(self) -> None:
        """Do no harm that was told, and count anew."""
        self._tell(None)

    def do(self, harm: Harm) -> None:
        """Do harm once, and count anew."""
        self._tell(harm)

    @property
    def seen(self) -> Seen:
        """What went through since ``watch`` or ``do``, the message that was harmed included."""
        with self._lock:
            return Seen(self._counts["request"], self._counts["reply"])

    @property
    def done(self) -> bool:
        """Whether the harm was done."""
        return self._done.is_set()

    def wait_until_done(self, timeout_s: float = 60.0) -> bool:
        """Return when the harm was done, or not in time."""
        return self._done.wait(timeout_s)

    @property
    def connections(self) -> int:
        """How many are open."""
        return self._call(lambda: len(self._open))

    def storm(self) -> None:
        """Begin with the chaos that it was made with."""
        self._stormy = self._chaos is not None

    def calm(self) -> None:
        """End it."""
        self._stormy = False

    def freeze(self) -> None:
        """Let nothing through, in neither direction."""
        self._call(self._thawed.clear)

    def thaw(self) -> None:
        """Let through what was kept, and all that comes."""
        self._call(self._thawed.set)

    def cut_all(self) -> None:
        """Cut all connections; they are when this returns."""
        self._call(self._cut_all)
        self._call(lambda: 0)  # they were closed in the loop's next round

    def refuse(self) -> None:
        """Cut every new connection before its first byte."""
        self._refusing = True

    def admit(self) -> None:
        """Take new connections again."""
        self._refusing = False

    def close(self) -> None:
        """Cut all connections and end."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _tell(self, harm: Harm | None) -> None:
        with self._lock:
            self._harm = harm
            self._counts.clear()
            self._done.clear()

    def _call(self, what: object) -> int:
        """Call something in the loop's thread, and return what it returns."""
        assert callable(what)
        answers: list[int] = []
        answered = threading.Event()

        def call() -> None:
            answers.append(what())
            answered.set()

        self._loop.call_soon_threadsafe(call)
        assert answered.wait(60.0), "the proxy has ended"
        return answers[0]

    # What its thread does.

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, sock=self._listener))
        self._loop.run_forever()
        server.close()
        self._cut_all()
        for task in self._tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*self._tasks, return_exceptions=True))
        self._loop.run_until_complete(asyncio.sleep(0))  # what was cut is closed in the loop's next round
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            if self._refusing:
                _cut(writer, with_reset=True)
                return
            await self._thawed.wait()
            await self._join(reader, writer)
        except asyncio.CancelledError:
            _cut(writer, with_reset=True)  # the proxy ends
        finally:
            self._tasks.discard(task)

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            up = await _connected(self._upstream)
        except OSError:
            _cut(writer, with_reset=True)
            return
        connection = _Connection(self._framing(), reader, writer, *up)
        self._open.add(connection)
        try:
            pumps = {asyncio.create_task(self._pump(connection, side)) for side in ("request", "reply")}
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
        finally:
            connection.close()
            self._open.discard(connection)

    async def _pump(self, connection: _Connection, side: Side) -> None:
        with suppress(OSError):
            while data := await connection.read(side):
                for message in connection.messages(side, data):
                    if not await self._pass(connection, side, message):
                        return
            await connection.write(side, connection.rest(side))

    async def _pass(self, connection: _Connection, side: Side, message: Message) -> bool:
        """Pass a message on; return whether the connection goes on."""
        await self._thawed.wait()
        harm = self._harm_to(side, message)
        if harm is None:
            await connection.write(side, message.data)
            return True
        if harm.how == "delay":
            await asyncio.sleep(harm.seconds)
        elif harm.how == "freeze":
            self._thawed.clear()
            await self._thawed.wait()
        passed = {"before": 0, "half": len(message.data) // 2}.get(harm.how, len(message.data))
        await connection.write(side, message.data[:passed])
        if harm.how in ("delay", "freeze"):
            return True
        connection.cut(harm.with_reset)
        if harm.number:
            await asyncio.sleep(0)  # in which it is closed
            self._done.set()
        return False

    def _harm_to(self, side: Side, message: Message) -> Harm | None:
        if not message.counts:
            return None
        with self._lock:
            self._counts[side] += 1
            harm = self._harm
            if harm is not None and (side, self._counts[side]) == (harm.side, harm.number):
                self._harm = None
            else:
                harm = self._chosen(side)
        if harm is not None:
            self.suffered[f"{harm.side} {harm.how}"] += 1
            if harm.number and harm.how in ("delay", "freeze"):
                self._done.set()
        return harm

    def _chosen(self, side: Side) -> Harm | None:
        return self._chaos.choose(self._chance, side) if self._chaos is not None and self._stormy else None

    def _cut_all(self) -> None:
        for connection in self._open:
            connection.cut(with_reset=True)


class _Connection:
    """A client's connection and the one to the server that goes with it."""

    def __init__(
        self,
        framing: Framing,
        client: asyncio.StreamReader,
        to_client: asyncio.StreamWriter,
        server: asyncio.StreamReader,
        to_server: asyncio.StreamWriter,
    ) -> None:
        self._framing = framing
        self._readers: dict[Side, asyncio.StreamReader] = {"request": client, "reply": server}
        self._writers: dict[Side, asyncio.StreamWriter] = {"request": to_server, "reply": to_client}

    async def read(self, side: Side) -> bytes:
        return await self._readers[side].read(_AT_ONCE)

    def messages(self, side: Side, data: bytes) -> list[Message]:
        return list(self._framing.requests(data) if side == "request" else self._framing.replies(data))

    def rest(self, side: Side) -> bytes:
        return self._framing.rest()[side == "reply"]

    async def write(self, side: Side, data: bytes) -> None:
        if data:
            self._writers[side].write(data)
            await self._writers[side].drain()

    def cut(self, with_reset: bool) -> None:
        _cut(self._writers["reply"], with_reset)
        _cut(self._writers["request"], with_reset=False)  # what was passed on arrives

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()


def _cut(writer: asyncio.StreamWriter, with_reset: bool) -> None:
    """Close a connection when what was written has gone out, by a reset or not."""
    end = writer.get_extra_info("socket")
    if with_reset and end is not None:
        with suppress(OSError):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _CLOSE_WITH_RESET)
    writer.close()


async def _connected(upstream: str | tuple[str, int]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if isinstance(upstream, str):
        return await asyncio.open_unix_connection(upstream)
    return await asyncio.open_connection(*upstream)


def _upstream(url: str) -> str | tuple[str, int]:
    """Return where a queue's server is: a host and port, or the path of a Unix socket."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    if parts.scheme == "sqs":
        return _upstream(options["endpoint_url"])
    host = unquote(parts.hostname or "") or options.get("host", "localhost")
    port = parts.port or int(options.get("port", _DEFAULT_PORTS.get(parts.scheme, 80)))
    return f"{host}/.s.PGSQL.{port}" if host.startswith("/") else (host, port)


# The proxy's own address, and nothing that it could not look into.
_OF_POSTGRES = {"host": None, "port": None, "hostaddr": None, "sslmode": "disable", "gssencmode": "disable"}

_OPTIONS: dict[str, dict[str, str | None]] = {
    "postgresql": {**_OF_POSTGRES},
    "postgres": {**_OF_POSTGRES},
    # Else the driver looks for the other members, and finds the server itself.
    "mongodb": {"directConnection": "true", "replicaSet": None},
}
"""Of each scheme, the options that a URL through the proxy has, or does not have."""


def _through(url: str, host: str, port: int) -> str:
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if parts.scheme == "sqs":
        options["endpoint_url"] = _through(options["endpoint_url"], host, port)
        return urlunsplit(parts._replace(query=urlencode(options)))
    for name, value in _OPTIONS.get(parts.scheme, {}).items():
        options.pop(name, None)
        if value is not None:
            options[name] = value
    user = f"{parts.netloc.rpartition('@')[0]}@" if "@" in parts.netloc else ""
    query = urlencode(options, quote_via=quote)
    return urlunsplit(parts._replace(netloc=f"{user}{host}:{port}", query=query))
