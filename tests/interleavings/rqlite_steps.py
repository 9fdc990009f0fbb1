"""rqlite's operations for the explorer: each HTTP request of theirs is a step, on the stand-in's database, no sockets.

A request may be lost, its reply may be, and a copy of it that was late on the way may come when its client has long
asked again; the copy is brought by a courier, who then is one of those that meet.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import lru_cache, wraps
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from harel.engine.queue.contract import Lease
from harel.engine.queue.op import Op, Sleep, run
from harel.engine.queue.rqlite.address import Address
from harel.engine.queue.rqlite.cluster import Answer, Cluster, Post, Unanswered
from harel.engine.queue.rqlite.ops import RqliteOps
from harel.testing import ManualClock
from harel.testing.explorer import Actor, Scene
from tests.interleavings.test_pairs import VISIBILITY_S, Setting
from tests.servers.rqlite_server import Database

_PATHS = re.compile(r"/db/(request\?transaction|query\?level=(weak|linearizable))")


class Server:
    """A node that leads, without HTTP.

    Parameters
    ----------
    content : bytes or None
        What its database holds, as :meth:`content` returned it; ``None`` is nothing.
    """

    def __init__(self, content: bytes | None = None) -> None:
        self.database = Database()
        self.actors: list[Actor] = []
        """Who meets; a courier joins them with each copy that is late."""
        if content is not None:
            self.database.connection.deserialize(content)

    def content(self) -> bytes:
        return self.database.connection.serialize()

    def close(self) -> None:
        self.database.close()

    def send(self, post: Post) -> Answer:
        url = urlsplit(post.url)
        assert _PATHS.fullmatch(f"{url.path}?{url.query}"), post.url
        assert dict(post.headers) == {"Content-Type": "application/json"}
        statements = json.loads(post.body)
        if url.path == "/db/query":
            results = self.database.query(statements, 0.0)
        else:
            transaction = "transaction" in dict(parse_qsl(url.query, True))
            results = self.database.request(statements, transaction=transaction, offset_s=0.0)
        return Answer(200, {"x-rqlite-version": "v8.36.14"}, json.dumps({"results": results}).encode())

    def lose_the_reply(self, post: Post) -> Answer:
        """Do it, and do not say so."""
        self.send(post)
        return self.lose(post)

    def lose(self, post: Post) -> Answer:
        """Do not do it; nobody can tell."""
        raise Unanswered("the connection ended")

    def do_it_late(self, post: Post) -> Answer:
        """Leave it for later."""
        self.actors.append(Actor("the courier", _one(post), self.send))
        return self.lose(post)

    def do_it_twice(self, post: Post) -> Answer:
        """Do it, do not say so, and do it again later."""
        self.send(post)
        return self.do_it_late(post)

    @property
    def mishaps(self) -> Mapping[str, Callable[[Any], Any]]:
        return {
            "loses the reply": self.lose_the_reply,
            "is not heard": self.lose,
            "is late": self.do_it_late,
            "is heard twice": self.do_it_twice,
        }


class Clustered:
    """Operations whose every HTTP request is a step, without their pauses.

    Parameters
    ----------
    ops : RqliteOps
    clock : callable
        Epoch seconds.
    """

    def __init__(self, ops: RqliteOps, clock: Callable[[], float]) -> None:
        self._ops = ops
        self._cluster = Cluster(
            Address.of("rqlite://localhost:4001"), timeout_s=10.0, read_level="weak", redirect=False, clock=clock
        )

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._ops, name)
        if not callable(value):
            return value

        @wraps(value)
        def method(*args: Any) -> Op[Any]:
            return _flat(value(*args), self._carry)

        return method

    def _carry(self, request: Any) -> Op[Any]:
        return _flat(self._cluster.carry(request), _one)


def _one(request: Any) -> Op[Any]:
    if isinstance(request, Sleep):
        return request.seconds
    return (yield request)


def _flat(op: Op[Any], carry: Callable[[Any], Op[Any]]) -> Op[Any]:
    """Run an operation with each of its requests carried out by another operation."""
    try:
        request = next(op)
        while True:
            try:
                reply = yield from carry(request)
            except GeneratorExit:
                op.close()
                raise
            except Exception as error:
                request = op.throw(error)
            else:
                request = op.send(reply)
    except StopIteration as done:
        return done.value


@lru_cache
def make_ops() -> RqliteOps:
    return RqliteOps(
        "rqlite://#transport",
        "transport",
        clock_given=True,
        fresh_first=True,
        poll_interval_s=1.0,
        keep_s=70.0,
        create_schema=True,
    )


class Beginning:
    """Gives every world the same beginning: the first one's requests are done, the others' are only answered."""

    def __init__(self, server_class: type[Server] = Server) -> None:
        self._server_class = server_class
        self._first = Server()
        self._answers: list[Answer] = []
        self._content: bytes | None = None
        self._answered = 0

    def send(self, post: Post) -> Answer:
        if self._content is None:
            self._answers.append(self._first.send(post))
            return self._answers[-1]
        self._answered += 1
        return self._answers[self._answered - 1]

    def go_on(self) -> Server:
        """End the beginning; return the server that it left."""
        if self._content is None:
            self._content = self._first.content()
            self._first.close()
        else:
            assert self._answered == len(self._answers), "another beginning"
        self._answered = 0
        return self._server_class(self._content)


class RqliteScene(Scene):
    """A scene whose beginning is carried out elsewhere than what follows."""

    def goes_on_with(self, server: Server) -> None:
        self._send = server.send
        self.mishaps = server.mishaps
        server.actors = self.actors


class RqliteSetting(Setting):
    """The same setting on rqlite."""

    def __init__(self, beginning: Beginning, clock: ManualClock) -> None:
        ops: Any = Clustered(make_ops(), clock)
        run(ops.prepare(), beginning.send)
        self.scene: RqliteScene = RqliteScene(ops, beginning.send, clock)
        self.clock = clock
        self.send = None
        self._events = 0
        self.dead = self._dead_letter()
        self.lease: Lease = self.scene.do("claim", "w", VISIBILITY_S, 0)
