"""A stand-in for rqlite: its HTTP API over ``sqlite3``, on real sockets, with faults that a test chooses.

The nodes of a cluster share one database, and one of them leads. Where it differs from rqlite it is stricter: it takes
only what the transports may send, and refuses a write whose time functions rqlite might leave to each node. In rqlite a
statement with RETURNING answers no rows unless rqlite's own parser understands it; here it never does. As in rqlite, a
statement that cannot be prepared does not end a transaction.

Run as a program it serves one node until its standard input ends, and prints its port.
"""

from __future__ import annotations

import base64
import json
import random
import re
import socket
import sqlite3
import ssl
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias
from urllib.parse import parse_qsl, urlsplit

Fault: TypeAlias = Literal[
    "drop before",  # the connection ends, and nothing is done
    "drop after",  # it is done, and the connection ends
    "cut",  # it is done, and the connection ends in the middle of the reply
    "late",  # the connection ends, and it is done when the test says so
    "no leader",  # 503
    "not leader",  # an error in the reply, nothing is done
    "leadership lost",  # an error in the reply, and it is done
    "leadership lost, undone",  # the same error, and it is not done
    "not rqlite",  # a page of some proxy's
    "new leader",  # another node leads from now on, then as usual
    "drop after, new leader",
]

JULIAN_EPOCH = 2_440_587.5
_NAMES = re.compile(r"(?<![\w:]):([A-Za-z_]\w*)")
_TIMES = re.compile(r"\b(?:date|time|datetime|julianday|unixepoch|strftime|timediff)\s*\(", re.IGNORECASE)
_NOW = re.compile(r"'now'", re.IGNORECASE)
_PLAIN = re.compile(r"UPDATE \w+ SET \w+ = julianday\('now'\) WHERE \w+ = \d+")
_RANDOM = re.compile(r"\brandom\s*\(\s*\)", re.IGNORECASE)
_PARAMETERS = {
    "/db/request": {"transaction", "redirect", "timings", "level"},
    "/db/query": {"level", "redirect", "timings"},
}
_LEVELS = ("none", "weak", "linearizable", "strong")


class Refused(Exception):
    """What gets a 400."""


@dataclass
class Asked:
    """One request that came to a node."""

    node: int
    path: str
    query: dict[str, str]
    authorization: str | None
    statements: list[Any] = field(default_factory=list)


class Database:
    """One SQLite database in memory, and what rqlite does around it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._offset_s = 0.0
        self.clock: Callable[[], float] = time.time
        self.rewrites = True
        self.connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self.connection.create_function("julianday", -1, self._julianday)

    def request(self, statements: list[Any], *, transaction: bool, offset_s: float) -> list[dict[str, Any]]:
        """Carry out statements that may write; ``'now'`` is by the clock of the node that was asked first."""
        parsed = [(self._rewritten(sql, offset_s), values) for sql, values in map(_parsed, statements)]
        with self._lock:
            if not transaction:
                return [self._result(sql, values)[0] for sql, values in parsed]
            self.connection.execute("BEGIN IMMEDIATE")
            results = []
            for sql, values in parsed:
                result, aborts = self._result(sql, values)
                results.append(result)
                if aborts:
                    self.connection.execute("ROLLBACK")
                    return results
            self.connection.execute("COMMIT")
            return results

    def query(self, statements: list[Any], offset_s: float) -> list[dict[str, Any]]:
        """Carry out statements that only read, by the clock of the node that reads."""
        with self._lock:
            self._offset_s = offset_s
            results = []
            for sql, values in map(_parsed, statements):
                if not _reads(sql):
                    results.append({"error": "attempt to change database via query operation"})
                else:
                    results.append(self._result(sql, values)[0])
            return results

    def close(self) -> None:
        with self._lock:
            self.connection.close()

    def _result(self, sql: str, values: dict[str, Any]) -> tuple[dict[str, Any], bool]:
        if set(values) != set(_NAMES.findall(sql)):
            return {"error": f"parameters {sorted(values)} do not fit {sql}"}, True
        try:
            cursor = self.connection.execute(sql, values)
            rows = cursor.fetchall()
        except sqlite3.Error as error:
            return {"error": str(error)}, not self._is_of_preparing(error, sql)
        if not _reads(sql):
            return _without_zeros(
                {"last_insert_id": cursor.lastrowid or 0, "rows_affected": max(cursor.rowcount, 0)}
            ), False
        result: dict[str, Any] = {
            "columns": [column[0] for column in cursor.description],
            "types": [_type(value) for value in rows[0]] if rows else [""] * len(cursor.description),
        }
        if rows:
            result["values"] = [[_number_as_go_writes_it(value) for value in row] for row in rows]
        return result, False

    def _is_of_preparing(self, error: sqlite3.Error, sql: str) -> bool:
        if getattr(error, "sqlite_errorcode", 0) != sqlite3.SQLITE_ERROR:
            return False
        try:
            self.connection.execute(f"EXPLAIN {sql}", dict.fromkeys(_NAMES.findall(sql)))
        except sqlite3.Error:
            return True
        return False

    def _rewritten(self, sql: str, offset_s: float) -> str:
        sql = _RANDOM.sub(lambda _: str(random.getrandbits(63)), sql)
        if not self.rewrites or not (_TIMES.search(sql) and _NOW.search(sql)):
            return sql
        if not _PLAIN.fullmatch(sql):
            raise Refused(f"a time function in a statement that rqlite may leave as it is: {sql}")
        return _NOW.sub(f"{(self.clock() + offset_s) / 86_400.0 + JULIAN_EPOCH:.6f}", sql)

    def _julianday(self, *args: Any) -> float:
        """Keep time in whole milliseconds, as SQLite does."""
        (told,) = args
        day = (self.clock() + self._offset_s) / 86_400.0 + JULIAN_EPOCH if told == "now" else float(told)
        return int(day * 86_400_000.0 + 0.5) / 86_400_000.0


class Node:
    """One address of a cluster, and how far its clock is ahead, in seconds."""

    def __init__(self, cluster: StandIn, number: int) -> None:
        self.number = number
        self.ahead_s = 0.0
        self.version = "v8.36.14"
        self.sockets: set[socket.socket] = set()
        handler = type("Handler", (_Handler,), {"cluster": cluster, "node": self})
        self.server = _Server(("127.0.0.1", 0), handler)
        self.server.tls = cluster.tls
        self.port: int = self.server.server_address[1]
        self.place = f"localhost:{self.port}"
        self.base = f"{'https' if cluster.tls else 'http'}://{self.place}"
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.thread.start()


class StandIn:
    """A cluster.

    Attributes
    ----------
    nodes : list of Node
    leader : int or None
        The number of the node that leads.
    faults : deque
        What goes wrong with the next requests, one each; ``None`` is nothing.
    asked : list of Asked
        What has come.
    """

    def __init__(
        self, nodes: int = 1, *, users: dict[str, str] | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self.database = Database()
        self.users = users
        self.tls = tls
        self.leader: int | None = 0
        self.faults: deque[Fault | None] = deque()
        self.asked: list[Asked] = []
        self.late: list[Callable[[], Any]] = []
        self.advertised: dict[int, str] = {}
        self.arrived = threading.Event()
        self.gate = threading.Event()
        self.gate.set()
        self.nodes = [Node(self, number) for number in range(nodes)]

    @property
    def url(self) -> str:
        return f"{'rqlites' if self.tls else 'rqlite'}://{','.join(node.place for node in self.nodes)}"

    def url_of(self, user: str, password: str) -> str:
        return self.url.replace("://", f"://{user}:{password}@")

    def fail(self, *faults: Fault | None) -> None:
        self.faults.extend(faults)

    def run_late(self) -> None:
        """Do what was set aside."""
        for action in self.late:
            action()
        self.late.clear()

    def rows(self, sql: str) -> list[Any]:
        """Look into the database from outside."""
        with self.database._lock:
            return self.database.connection.execute(sql).fetchall()

    def base_of(self, number: int) -> str:
        """Return what a node says of its own address."""
        return self.advertised.get(number, self.nodes[number].base)

    def elect(self) -> None:
        """Let the next node lead."""
        self.leader = ((self.leader or 0) + 1) % len(self.nodes)

    def close(self) -> None:
        self.gate.set()
        for node in self.nodes:
            node.server.stop()
            node.thread.join()
            node.server.server_close()
        self.database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    tls: ssl.SSLContext | None = None

    def __init__(self, *args: Any) -> None:
        self._open: set[socket.socket] = set()
        self._opening = threading.Lock()
        self._stopping = False
        super().__init__(*args)

    def run(self) -> None:
        """Take connections until :meth:`stop`, which ends this at once; ``serve_forever`` looks only now and then."""
        while True:
            connection, address = self.get_request()
            if self._stopping:
                connection.close()
                return
            self.process_request(connection, address)

    def stop(self) -> None:
        """End it, and all connections."""
        self._stopping = True
        # A connection wakes the one who waits for connections.
        socket.create_connection(("127.0.0.1", self.server_address[1])).close()
        with self._opening:
            for request in self._open:
                with suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._opening:
            self._open.add(request)
        super().process_request(request, client_address)

    def finish_request(self, request: Any, client_address: Any) -> None:
        if self.tls is None:
            super().finish_request(request, client_address)
            return
        with suppress(OSError), self.tls.wrap_socket(request, server_side=True) as wrapped:
            super().finish_request(wrapped, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._opening:
            self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Keep still about clients that go away."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    cluster: StandIn
    node: Node

    def do_POST(self) -> None:
        cluster = self.cluster
        url = urlsplit(self.path)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        asked = Asked(self.node.number, url.path, dict(parse_qsl(url.query, True)), self.headers["Authorization"])
        cluster.asked.append(asked)
        cluster.arrived.set()
        cluster.gate.wait()
        fault = cluster.faults.popleft() if cluster.faults else None
        if fault == "new leader":
            cluster.elect()
        if self._refuses(asked):
            return
        try:
            self._meet(fault, asked, _statements(body, self.headers["Content-Type"]))
        except Refused as error:
            self._say(400, f"{error}\n")

    def do_GET(self) -> None:
        self._say(404, "")

    def log_message(self, *args: Any) -> None:
        """Keep still."""

    def _refuses(self, asked: Asked) -> bool:
        if self.cluster.users is not None and not self._known(asked.authorization):
            self._say(401, "")
        elif asked.path not in _PARAMETERS:
            self._say(404, "")
        else:
            return False
        return True

    def _known(self, authorization: str | None) -> bool:
        assert self.cluster.users is not None
        kind, _, token = (authorization or "").partition(" ")
        user, _, password = base64.b64decode(token).decode().partition(":")
        return kind == "Basic" and self.cluster.users.get(user) == password

    def _meet(self, fault: Fault | None, asked: Asked, statements: list[Any]) -> None:
        asked.statements = statements
        if strange := set(asked.query) - _PARAMETERS[asked.path]:
            raise Refused(f"parameters that this stand-in does not know: {strange}")
        if asked.query.get("level", "weak") not in _LEVELS:
            raise Refused(f"level {asked.query['level']}")
        if fault == "drop before":
            self._end()
        elif fault == "late":
            self.cluster.late.append(lambda: self._results(asked, statements))
            self._end()
        elif fault == "no leader" or self.cluster.leader is None:
            self._say(503, "leader not found\n")
        elif fault == "not leader":
            self._say_json({"results": [], "error": "not leader"})
        elif fault == "leadership lost, undone":
            self._say_json({"results": [], "error": "leadership lost while committing log"})
        elif fault == "not rqlite":
            self._say(200, "<html>Welcome</html>")
        elif self.cluster.leader != self.node.number and "redirect" in asked.query:
            leader = self.cluster.base_of(self.cluster.leader)
            self._say(301, "", {"Location": f"{leader}{self.path}"})
        else:
            self._answer(fault, {"results": self._results(asked, statements)})

    def _answer(self, fault: Fault | None, reply: dict[str, Any]) -> None:
        if fault == "drop after":
            self._end()
        elif fault == "drop after, new leader":
            self.cluster.elect()
            self._end()
        elif fault == "cut":
            self._say_json(reply, cut=True)
            self._end()
        elif fault == "leadership lost":
            self._say_json({"results": [], "error": "leadership lost while committing log"})
        else:
            self._say_json(reply)

    def _results(self, asked: Asked, statements: list[Any]) -> list[dict[str, Any]]:
        database = self.cluster.database
        if asked.path == "/db/query":
            leader = self.cluster.leader or 0
            return database.query(statements, self.cluster.nodes[leader].ahead_s)
        transaction = "transaction" in asked.query
        return database.request(statements, transaction=transaction, offset_s=self.node.ahead_s)

    def _say_json(self, reply: dict[str, Any], cut: bool = False) -> None:
        self._say(200, json.dumps(reply), {"Content-Type": "application/json; charset=utf-8"}, cut)

    def _say(self, status: int, text: str, headers: dict[str, str] | None = None, cut: bool = False) -> None:
        body = text.encode()
        head = {"X-RQLITE-VERSION": self.node.version, "Content-Length": str(len(body)), **(headers or {})}
        lines = [f"HTTP/1.1 {status} Status", *(f"{name}: {value}" for name, value in head.items())]
        whole = "\r\n".join(lines).encode() + b"\r\n\r\n" + body
        with suppress(OSError):
            self.wfile.write(whole[: -len(body) // 2] if cut else whole)

    def _end(self) -> None:
        self.close_connection = True
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)


def _statements(body: bytes, content_type: str | None) -> list[Any]:
    if content_type != "application/json":
        raise Refused(f"Content-Type {content_type}")
    try:
        statements = json.loads(body, parse_constant=_no_number)
    except ValueError as error:
        raise Refused("invalid JSON body") from error
    if not isinstance(statements, list):
        raise Refused("invalid request")
    if not statements:
        raise Refused("no statements")
    return statements


def _no_number(text: str) -> float:
    raise ValueError(text)


def _parsed(statement: Any) -> tuple[str, dict[str, Any]]:
    if isinstance(statement, str):
        statement = [statement]
    if not isinstance(statement, list) or not 1 <= len(statement) <= 2 or not isinstance(statement[0], str):
        raise Refused("invalid request")
    values = statement[1] if len(statement) == 2 else {}
    if not isinstance(values, dict) or not all(map(_is_bindable, values.values())):
        raise Refused("unsupported type")
    return statement[0], values


def _is_bindable(value: Any) -> bool:
    if isinstance(value, int):
        return -(2**63) <= value < 2**63
    return value is None or isinstance(value, float | str)


def _reads(sql: str) -> bool:
    return sql.lstrip()[:6].upper() == "SELECT"


def _type(value: Any) -> str:
    return {int: "integer", float: "real", str: "text", type(None): ""}[type(value)]


def _number_as_go_writes_it(value: Any) -> Any:
    """Go's JSON has no fraction where there is none, whatever the column's type."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 1e21 else value


def _without_zeros(result: dict[str, int]) -> dict[str, int]:
    return {name: value for name, value in result.items() if value}


def main(_args: Iterable[str]) -> None:
    with StandIn() as cluster:
        cluster.asked = _Nothing()
        print(cluster.nodes[0].port, flush=True)
        sys.stdin.read()


class _Nothing(list[Asked]):
    """Keeps nothing."""

    def append(self, item: Asked) -> None:
        pass


if __name__ == "__main__":
    main(sys.argv[1:])
