"""What the tests of the rqlite backend share: stand-ins of the test's own, and both twins on them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, cast

import pytest

from harel import Transport
from harel.engine.aio_transport import AsyncRqliteTransport
from harel.engine.transport import RqliteTransport
from harel.testing import Blocking
from tests.servers.rqlite_server import StandIn

PATIENT_S = 60.0
"""A timeout that no machine is too slow for."""


class Twin:
    """Opens transports of one flavour; the async ones come as :class:`Blocking`."""

    def __init__(self, *, is_async: bool) -> None:
        self.is_async = is_async
        self.kind: Any = AsyncRqliteTransport if is_async else RqliteTransport
        self.runner = asyncio.Runner()
        self._opened: list[Any] = []

    def open(self, url: str, *args: Any, **options: Any) -> Transport:
        """Open, and do what the first use of an async one would."""
        made = self.kind(url, *args, **{"timeout": PATIENT_S, **options})
        transport: Any = Blocking(made, self.runner) if self.is_async else made
        self._opened.append(transport)
        if self.is_async:
            self.runner.run(made.open())
        return cast("Transport", transport)

    def close(self) -> None:
        for transport in self._opened:
            transport.close()
        self.runner.close()


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def twin(request: pytest.FixtureRequest) -> Iterator[Twin]:
    """Either flavour."""
    twin = Twin(is_async=request.param)
    yield twin
    twin.close()


@pytest.fixture
def cluster() -> Iterator[StandIn]:
    """Three nodes, of which the first one leads."""
    with StandIn(3) as cluster:
        yield cluster
