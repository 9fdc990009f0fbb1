"""Where a history takes place: a server with its usual, durable settings, and what can be done to it.

The stand-ins for MongoDB, rqlite and SQS keep what they hold in memory, so that they cannot be killed and restarted;
what lies between them and their clients can be.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.backends import URLS, with_options
from tests.servers.postgres import PostgresServer
from tests.servers.redis import server as redis_server

__all__ = ["Stage", "stage"]


@dataclass
class Stage:
    """A queue's place.

    Attributes
    ----------
    url : str
    settings : str
        What is not the default there, for the report.
    restart : callable or None
        Kill the server as a crash would, and start it again.
    fill_disk : callable or None
        Leave no room on the disk, while the context lasts.
    has_proxy : bool
        Whether there is a connection to a server that something may lie in the way of.
    slack_s : float
        By how much a lease may end sooner or later than the clock of the history says.
    """

    url: str
    settings: str
    restart: Callable[[], None] | None = None
    fill_disk: Callable[[], AbstractContextManager[None]] | None = None
    has_proxy: bool = True
    slack_s: float = 0.05
    overlook_s: float = 0.0
    """For how long a claim that finds others may pass a claimable group over."""
    pace: float = 1.0
    """How many messages are published, beside what PostgreSQL takes."""


@contextmanager
def stage(backend: str, folder: Path) -> Iterator[Stage]:
    """Open a backend's place, and clear it away."""
    with _STAGES.get(backend, _stand_in)(backend, folder) as opened:
        yield opened


@contextmanager
def _file(backend: str, folder: Path) -> Iterator[Stage]:
    with _a_small_disk(folder) as (disk, kind):
        yield Stage(
            url=f"{backend}:///{disk}/queue.db",
            settings=f"synchronous=FULL, on {kind}",
            fill_disk=lambda: _filled(disk) if kind.startswith("a small disk") else contextlib.nullcontext(),
            has_proxy=False,
            pace=0.5,
        )


@contextmanager
def _a_small_disk(folder: Path) -> Iterator[tuple[Path, str]]:
    """Mount one, which only root may; else there is only the usual disk, which is not filled."""
    disk = folder / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(disk)]
    try:
        mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    except OSError:
        mounted = False
    try:
        yield disk, "a small disk that is filled" if mounted else "the usual disk, which is not filled (needs root)"
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(disk)], check=False)


@contextmanager
def _filled(disk: Path) -> Iterator[None]:
    """Write until there is no room, also none in the log of the queue's file, which would be written over."""
    ballast = disk / "ballast"
    empty_the_log = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('PRAGMA wal_checkpoint(TRUNCATE)')"
    try:
        _fill(ballast)
        subprocess.run([sys.executable, "-c", empty_the_log, disk / "queue.db"], capture_output=True, check=False)
        _fill(ballast)
        yield
    finally:
        ballast.unlink(missing_ok=True)


def _fill(ballast: Path) -> None:
    for size in (65_536, 512):
        with ballast.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(bytes(size)):
                pass


@contextmanager
def _postgres(backend: str, folder: Path) -> Iterator[Stage]:
    server = PostgresServer("max_connections = 200")

    def restart() -> None:
        server.stop("immediate")
        server.start()

    try:
        yield Stage(url=server.url, settings="as installed", restart=restart, overlook_s=1.0)
    finally:
        server.remove()


@contextmanager
def _redis(backend: str, folder: Path) -> Iterator[Stage]:
    with tempfile.TemporaryDirectory(prefix="harel-aof-") as data:
        server = redis_server({"appendonly": "yes", "appendfsync": "everysec"}, Path(data))

        def restart() -> None:
            server.terminate()
            server.start()

        try:
            yield Stage(url=server.connection_url, settings="appendonly yes, appendfsync everysec", restart=restart)
        finally:
            server.terminate()


@contextmanager
def _stand_in(backend: str, folder: Path) -> Iterator[Stage]:
    named = os.environ.get(f"HAREL_TEST_{backend.upper()}_URL")
    yield Stage(
        url=with_options(URLS[backend](folder), **_PATIENCE.get(backend, {})),
        settings="the server that is named" if named else "a stand-in",
        slack_s=_SLACK_S[backend],
        pace=0.1 if backend == "sqs" else 0.3,
    )


_SLACK_S = {"mongo": 2.5, "rqlite": 0.5, "sqs": 1.0}
"""A client knows MongoDB's clock as exactly as it was answered, which takes two seconds when nothing gets through;
rqlite's has steps of 86 ms, and SQS's of a second."""

_PATIENCE = {"sqs": {"poll_interval": "0.1"}}

_STAGES: dict[str, Callable[[str, Path], AbstractContextManager[Stage]]] = {
    "sqlite": _file,
    "libsql": _file,
    "postgres": _postgres,
    "redis": _redis,
}
