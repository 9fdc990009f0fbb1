"""What the tests of the Redis backend share: both twins, on a prefix of the test's own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import redis
import redis.asyncio

from harel import Transport
from harel.engine.aio_transport import AsyncRedisTransport
from harel.engine.queue.redis.ops import RedisOps
from harel.engine.transport import RedisTransport
from harel.testing import Blocking
from tests.servers.redis import prefix_in, redis_url, server


class Twin:
    """Opens transports of one flavour; the async ones come as :class:`Blocking`."""

    def __init__(self, *, is_async: bool, url: str, prefix: str) -> None:
        self.is_async = is_async
        self.package: Any = redis.asyncio if is_async else redis
        self.url = url
        self.prefix = prefix
        self.runner = asyncio.Runner()
        self._opened: list[Any] = []

    def open(self, url: str | None = None, **options: Any) -> Transport:
        """Open by URL."""
        kind: Any = AsyncRedisTransport if self.is_async else RedisTransport
        return self._kept(kind.from_url(url or self.url, **{"prefix": self.prefix, **options}))

    def open_on(self, client: Any, **options: Any) -> Transport:
        """Open on a client of the caller's."""
        kind: Any = AsyncRedisTransport if self.is_async else RedisTransport
        return self._kept(kind(client, **{"prefix": self.prefix, **options}))

    def client(self, url: str | None = None, **options: Any) -> Any:
        """Make a client as a caller would."""
        return self.package.Redis.from_url(url or self.url, **options)

    def load_scripts(self, url: str | None = None) -> None:
        """Give the server all scripts, so that each operation is one request."""
        ops = RedisOps("", self.prefix, clock=None, fresh_first=True, poll_interval_s=1.0)
        with redis.Redis.from_url(url or self.url) as client:
            for script, _ in ops._scripts.values():
                client.script_load(script.text.decode())

    def close_client(self, client: Any) -> None:
        if self.is_async:
            self.runner.run(client.aclose())
        else:
            client.close()

    def close(self) -> None:
        for transport in self._opened:
            transport.close()
        self.runner.close()

    def _kept(self, made: Any) -> Transport:
        transport: Any = Blocking(made, self.runner) if self.is_async else made
        self._opened.append(transport)
        return cast("Transport", transport)


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def twin(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Twin]:
    """Either flavour, on the session's server."""
    twin = Twin(is_async=request.param, url=redis_url(), prefix=prefix_in(tmp_path))
    yield twin
    twin.close()


@pytest.fixture
def queue(twin: Twin) -> Transport:
    """A transport by the server's clock."""
    return twin.open()


@pytest.fixture
def onlooker(twin: Twin) -> Iterator[redis.Redis]:
    """A client on the session's server, to look from outside."""
    with redis.Redis.from_url(twin.url) as client:
        yield client


@pytest.fixture(scope="module")
def own_url() -> str:
    """A server that nobody else uses: for what counts its commands or changes its settings."""
    url: str = server().connection_url
    return url
