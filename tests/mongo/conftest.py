"""What the tests of the MongoDB backend share: both twins, on stand-in servers that can be made to fail."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from typing import Any, cast
from uuid import uuid4

import pymongo
import pytest

from harel import Transport
from harel.engine.aio_transport import AsyncMongoTransport
from harel.engine.transport import MongoTransport
from harel.testing import Blocking
from tests.servers.mongo import StandIn


class Twin:
    """Opens transports of one flavour, on a database of the test's own; the async ones come as :class:`Blocking`."""

    def __init__(self, *, is_async: bool, url: str) -> None:
        self.is_async = is_async
        self.kind: Any = AsyncMongoTransport if is_async else MongoTransport
        self.client_kind: Any = pymongo.AsyncMongoClient if is_async else pymongo.MongoClient
        self.url = url
        self.db_name = f"t{uuid4().hex[:12]}"
        self.runner = asyncio.Runner()
        self._opened: list[Any] = []
        self._clients: list[Any] = []

    def open(self, url: str | None = None, **options: Any) -> Transport:
        """Open by URL; an async one connects here, as a sync one does."""
        made = self.kind.from_url(url or self.url, **{"db_name": self.db_name, **options})
        return self._kept(made)

    def open_on(self, client: Any, **options: Any) -> Transport:
        """Open on a client of the caller's."""
        return self._kept(self.kind(client, **{"db_name": self.db_name, **options}))

    def client(self, url: str | None = None, **options: Any) -> Any:
        """Make a client as a caller would."""
        client = self.client_kind(url or self.url, **options)
        self._clients.append(client)
        return client

    def wait_for(self, value: Any) -> Any:
        """Return what a call of either API returns."""
        return self.runner.run(value) if asyncio.iscoroutine(value) else value

    def close(self) -> None:
        while self._opened:
            self._opened.pop().close()
        while self._clients:
            self.wait_for(self._clients.pop().close())
        self.runner.close()

    def _kept(self, made: Any) -> Transport:
        transport: Any = Blocking(made, self.runner) if self.is_async else made
        self._opened.append(transport)
        if self.is_async:
            self.runner.run(made.open())
        return cast("Transport", transport)


@pytest.fixture(scope="session")
def replica() -> Iterator[StandIn]:
    """A member of a replica set: it takes retryable writes."""
    with StandIn() as server:
        yield server


@pytest.fixture(scope="session")
def alone() -> Iterator[StandIn]:
    """A server alone: nothing is sent twice."""
    with StandIn(set_name="") as server:
        yield server


@pytest.fixture
def stand_in(replica: StandIn) -> Iterator[StandIn]:
    """The replica set's, with nothing amiss before and after."""
    replica.lift()
    replica.log()
    yield replica
    replica.lift()
    replica.tell("expire")


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def twin(request: pytest.FixtureRequest, stand_in: StandIn) -> Iterator[Twin]:
    """Either flavour, on the replica set."""
    twin = Twin(is_async=request.param, url=stand_in.url)
    yield twin
    twin.close()


@pytest.fixture
def lonely(twin: Twin) -> Iterator[Twin]:
    """Either flavour, for servers that go or do not answer.

    pymongo's async client, cancelled while it connects, leaves a socket to the garbage collector, which says so. A test
    that takes this lets it say so: ``@lets_sockets_go``.
    """
    yield twin
    twin.close()
    gc.collect()


lets_sockets_go = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")


@pytest.fixture
def sync_twin(stand_in: StandIn) -> Iterator[Twin]:
    """The sync flavour, where the two cannot differ."""
    twin = Twin(is_async=False, url=stand_in.url)
    yield twin
    twin.close()


def seen_by(database: str, log: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave out of a log what another database's was, or nobody's."""
    return [work for work in log if work["database"] == database]
