"""Opening, using and closing transports and workers, over and over in one process, and what is left of them."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from harel import AsyncTransport, AsyncWorker, Event, Message, Transport, Worker, connect, connect_async
from harel.errors import ConfigError, HarelError, TransportUnavailable
from tests.backends import with_options

__all__ = ["Cycles", "Left", "fail_to_open", "left_here", "unreachable", "wait_for"]

PATIENCE_S = 60.0

Left = Mapping[str, float]


def left_here() -> dict[str, float]:
    """Count what this process has open: files, sockets among them, and threads, those of libraries in C among them."""
    gc.collect()
    gc.collect()  # what the first pass finalized may have held more
    files, threads = (list(Path("/proc/self", name).iterdir()) for name in ("fd", "task"))
    return {"files": len(files), "threads": len(threads)}


def wait_for(measure: Callable[[], Left], most: Left) -> dict[str, tuple[float, float]]:
    """Measure until nothing is above ``most``, for what is closed may be gone a moment later.

    Returns
    -------
    dict
        Of what stays above: how much there may be, and how much there is.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        found = measure()
        above = {name: (most[name], found[name]) for name in most if found[name] > most[name]}
        if not above or time.monotonic() > deadline:
            return above
        time.sleep(0.01)


class Cycles:
    """What is done over and over on one queue.

    Parameters
    ----------
    url : str
    """

    def __init__(self, url: str) -> None:
        self._url = url

    def sync(self) -> None:
        """Open, use and close a transport."""
        with connect(self._url) as transport:
            _use(transport)

    def looped(self) -> None:
        """Do it in asyncio, on an event loop of its own."""
        asyncio.run(self._open_and_use())

    async def awaiting(self, times: int) -> None:
        """Do it in asyncio, on one event loop, and leave no task."""
        for _ in range(times):
            await self._open_and_use()
        await _no_task_is_left()

    async def _open_and_use(self) -> None:
        async with await connect_async(self._url) as transport:
            await _use_awaiting(transport)

    def threaded(self) -> None:
        """Use a transport in threads at the same time."""
        with connect(self._url) as transport:
            threads = [threading.Thread(target=_use, args=(transport,)) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    def worker(self) -> None:
        """Run a worker until it has handled something."""
        with connect(self._url) as transport:
            transport.publish("g", Event("k"))
            worker: Worker

            def handler(event: Event) -> None:
                worker.stop()

            worker = Worker(transport, handler, concurrency=2)
            worker.run()

    def awaiting_worker(self) -> None:
        asyncio.run(self._awaiting_worker())

    async def _awaiting_worker(self) -> None:
        async with await connect_async(self._url) as transport:
            await transport.publish("g", Event("k"))
            worker: AsyncWorker

            async def handler(event: Event) -> None:
                worker.stop()

            worker = AsyncWorker(transport, handler, concurrency=2)
            await worker.run()
        await _no_task_is_left()


def _use(transport: Transport) -> None:
    name = str(threading.get_ident())
    transport.publish_many([Message(name, Event("k")), Message(name, Event("k"))])
    while leases := transport.claim_many("w", 30.0, 2):
        transport.ack_many(leases)
    transport.wait(0.001)


async def _use_awaiting(transport: AsyncTransport) -> None:
    await transport.publish_many([Message("g", Event("k")), Message("g", Event("k"))])
    while leases := await transport.claim_many("w", 30.0, 2):
        await transport.ack_many(leases)
    await transport.wait(0.001)


@contextmanager
def unreachable(backend: str, folder: Path) -> Iterator[str]:
    """Give the URL of a server that nobody answers at, or of a file in a folder that is none."""
    with closing(socket.socket()) as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        place = f"127.0.0.1:{nobody.getsockname()[1]}"
        blocked = folder / "a file"
        blocked.touch()
        yield {
            "sqlite": f"sqlite:///{blocked}/queue.db",
            "libsql": f"libsql:///{blocked}/queue.db",
            "redis": f"redis://{place}",
            "postgres": f"postgresql://u@{place}/d?connect_timeout=1",
            "mongo": f"mongodb://{place}/?timeout=0.05",
            "rqlite": f"rqlite://{place}?timeout=0.05",
            "sqs": with_options("sqs://q.fifo", endpoint_url=f"http://{place}", region="eu-west-1", timeout="0.1"),
        }[backend]


def fail_to_open(url: str) -> None:
    """Open what cannot be opened, sync and async, and let it go."""
    with suppress(TransportUnavailable, ConfigError):
        with connect(url) as transport:
            transport.publish("g", Event("k"))
        raise AssertionError(f"{url} was opened")
    with suppress(TransportUnavailable, ConfigError):
        asyncio.run(_fail_awaiting(url))
        raise AssertionError(f"{url} was opened")


async def _fail_awaiting(url: str) -> None:
    try:
        async with await connect_async(url) as transport:
            await transport.publish("g", Event("k"))
    except HarelError:
        await _no_task_is_left()
        raise


async def _no_task_is_left() -> None:
    """Look until this loop has no other task: one that is at its end has a few turns yet."""
    deadline = time.monotonic() + PATIENCE_S
    while others := asyncio.all_tasks() - {asyncio.current_task()}:
        assert time.monotonic() < deadline, f"tasks that are left: {others}"
        await asyncio.sleep(0.001)
