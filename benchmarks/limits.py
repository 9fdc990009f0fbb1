"""What bounds the workers: the same backlog, drained with harel's own requests and no harel to make them.

A bare driver claims and acks in batches, one after the other. The server alone is given as many requests as it can
take: PostgreSQL by pgbench, which its wheel brings; Redis by requests that were recorded while one such backlog was
drained and are sent again for another, many ahead of their replies (valkey-benchmark is not in the wheel of Valkey, and
could not ack what it claims).
"""

from __future__ import annotations

import re
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import count
from time import perf_counter
from typing import Any, Protocol
from urllib.parse import urlsplit

from benchmarks.contenders import BARE, CONTENDERS
from benchmarks.crews import WORKERS, Load
from benchmarks.folders import Folders
from benchmarks.processes import Process, worker
from benchmarks.servers import Postgres, Server, postgres_program

__all__ = ["BATCH", "SERVER_ALONE", "BareDriver", "Limit", "Pgbench", "Replay", "limits_of"]

BATCH = 250
"""About what a worker of harel has in hand."""
BATCHES = (50, 125, BATCH)
"""What pgbench tries: with four clients at once large batches leave each other too few groups."""
SERVER_ALONE = {"postgres": "pgbench", "redis": "requests sent again"}
"""What measures the server alone, by backend."""


class Limit(Protocol):
    """Drains a backlog."""

    name: str
    is_server_alone: bool

    def drain(self, load: Load) -> float:
        """Have a backlog published, drain it, and return the messages a second."""
        ...


def limits_of(
    backend: str, folders: Folders, server: Server | None, stack: ExitStack, say: Callable[[str], None]
) -> Iterator[Limit]:
    """Open the limits of a backend."""
    if backend not in BARE:
        return
    (bare,) = (each for each in CONTENDERS if each.backend == backend and each.role == "limit")
    say(f"{backend}: {bare.name} sets up")
    filler = stack.enter_context(worker(bare, folders.cache))
    numbers = count(1)

    def new_place() -> str:
        if server is not None:
            return server.place()
        folder = folders.data / f"limit-{backend}-{next(numbers)}"
        folder.mkdir()
        return str(folder)

    def fill(load: Load) -> str:
        place = new_place()
        filler.ask("fill", place=place, groups=load.groups, messages=load.messages)
        if server is not None:
            server.settle(place)
        return place

    yield BareDriver(bare.name, filler, fill)
    if isinstance(server, Postgres):
        yield Pgbench(server, fill)
    elif backend == "redis":
        yield Replay(fill)


class BareDriver:
    """One connection that claims and acks in batches; timed is what is inside the driver."""

    is_server_alone = False

    def __init__(self, name: str, process: Process, fill: Callable[[Load], str]) -> None:
        self.name = name
        self._process = process
        self._fill = fill

    def drain(self, load: Load) -> float:
        self._process.ask("open", place=self._fill(load))
        found = self._process.ask("drain", batch=BATCH)
        self._process.ask("close")
        if found["messages"] != load.messages:
            raise RuntimeError(f"{self.name} drained {found['messages']} of {load.messages} messages.")
        return float(found["messages"] / found["seconds"])


class Pgbench:
    """PostgreSQL's own: four clients that call the same functions, with the batch that does best."""

    name = SERVER_ALONE["postgres"]
    is_server_alone = True

    def __init__(self, server: Postgres, fill: Callable[[Load], str]) -> None:
        self._server = server
        self._fill = fill

    def drain(self, load: Load) -> float:
        return max(self._drain(load, batch) for batch in BATCHES)

    def _drain(self, load: Load, batch: int) -> float:
        place = self._fill(load)
        script = self._server.folder / "drain.sql"
        script.write_text(pgbench_script(batch))
        each = max(1, load.messages // (WORKERS * batch))
        how = (f"--client={WORKERS}", "--jobs=2", f"--transactions={each}", "--protocol=prepared", "--no-vacuum")
        done = subprocess.run(
            [postgres_program("pgbench"), *how, f"--file={script}", place], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"pgbench failed: {done.stderr.strip()}")
        handled = load.messages - int(self._server.ask("SELECT count(*) FROM transport_messages", place))
        return handled / seconds_of(done.stdout)


def seconds_of(said: str) -> float:
    """Return how long pgbench took, by what it says; connecting is not counted."""
    done = re.search(r"transactions actually processed: (\d+)/", said)
    rate = re.search(r"tps = ([0-9.]+) \(without initial connection time\)", said)
    if done is None or rate is None:
        raise RuntimeError(f"pgbench said nothing that could be read: {said}")
    return int(done[1]) / float(rate[1])


def pgbench_script(batch: int) -> str:
    """Write a transaction of pgbench: a claim, then the ack of what it got, as harel's own operations call them."""
    from harel.engine.queue.contract import Lease
    from harel.engine.queue.postgres.ops import PostgresOps

    ops = PostgresOps("", "public", clock=None, fresh_first=True, poll_interval_s=1.0, create_schema=False, soft=True)
    lease = Lease(group_id="", raw="", seq=1, token="t", attempt=1, expires_at=0.0, queue="")
    other = Lease(group_id="", raw="", seq=2, token="u", attempt=1, expires_at=0.0, queue="")
    claim, ack = next(ops.claim("bench", 60.0, batch, 0)), next(ops.ack([lease, other]))
    columns = {"group_id": "text", "seq": "bigint", "attempt": "integer", "token": "text"}
    gathered = ", ".join(f"coalesce(array_agg({name}), '{{}}')::text AS {name}s" for name in columns)
    claimed = _with(claim.statement, [_literal(value) for value in claim.values])
    taken = [f":{name}s::{kind}[]" for name, kind in columns.items()]
    acked = _with(ack.statement, [*taken, *(_literal(value) for value in ack.values[len(taken) :])])
    return f"SELECT {gathered} FROM ({claimed}) AS claimed \\gset\n{acked.replace('*', 'count(*)', 1)};\n"


def _with(statement: str, values: Sequence[str]) -> str:
    return re.sub(r"\$(\d+)", lambda place: values[int(place[1]) - 1], statement)


def _literal(value: Any) -> str:
    """Write a value of our own into pgbench's script."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and abs(value) == float("inf"):
        return f"'{'-' if value < 0 else ''}Infinity'"
    # A colon would be a variable of its.
    return f"'{value.replace(':', '.')}'" if isinstance(value, str) else str(value)


class Replay:
    """Redis alone: the requests that drain a backlog, recorded, and sent for another many ahead of their replies."""

    name = SERVER_ALONE["redis"]
    is_server_alone = True

    def __init__(self, fill: Callable[[Load], str]) -> None:
        self._fill = fill
        self._recorded: dict[Load, list[bytes]] = {}

    def drain(self, load: Load) -> float:
        if load not in self._recorded:
            self._recorded[load] = self._record(self._fill(load))
        place = self._fill(load)
        seconds = _send(place, self._recorded[load])
        left = _left(place)
        if left:
            raise RuntimeError(f"The requests that were sent again left {left} of {load.messages} messages.")
        return load.messages / seconds

    @staticmethod
    def _record(place: str) -> list[bytes]:
        from redis import Redis

        requests: list[bytes] = []
        with Redis.from_url(place) as client:
            connection: Any = client.connection_pool.get_connection()

            def send(request: Any) -> Any:
                packed = b"".join(connection.pack_command(*request.by_hash()))
                requests.append(packed)
                connection.send_packed_command([packed])
                return connection.read_response()

            ops = _redis_ops()
            for script, _ in ops._scripts.values():
                client.script_load(script.text)
            while leases := _run(ops.claim("bench", 60.0, BATCH, 0), send):
                _run(ops.ack(leases), send)
            client.connection_pool.release(connection)
        return requests[:-1]  # the last claim found nothing


def _redis_ops() -> Any:
    from harel.engine.queue.redis.ops import RedisOps

    return RedisOps("", "harel", clock=None, fresh_first=True, poll_interval_s=1.0)


def _run(operation: Any, send: Callable[[Any], Any]) -> Any:
    try:
        request = next(operation)
        while True:
            request = operation.send(send(request))
    except StopIteration as done:
        return done.value


def _send(place: str, requests: Sequence[bytes]) -> float:
    """Send them all, and read the replies beside; return the seconds from the first to the last."""
    import hiredis

    url = urlsplit(place)
    reader = hiredis.Reader()
    with socket.create_connection((url.hostname, url.port)) as server:
        server.sendall(b"*2\r\n$6\r\nSELECT\r\n$%d\r\n%s\r\n" % (len(url.path) - 1, url.path[1:].encode()))
        server.recv(64)
        sender = threading.Thread(target=server.sendall, args=(b"".join(requests),))
        began = perf_counter()
        sender.start()
        replies = 0
        while replies < len(requests):
            reader.feed(server.recv(2**18))
            while (reply := reader.gets()) is not False:
                replies += 1
                if isinstance(reply, Exception):
                    raise RuntimeError(f"The server said: {reply}")
        took_s = perf_counter() - began
        sender.join()
    return took_s


def _left(place: str) -> int:
    import harel

    with harel.connect(place) as queue:
        return queue.stats().messages
