"""The MongoDB that the tests run on: ``HAREL_TEST_MONGO_URL``, or a stand-in that the session starts."""

from __future__ import annotations

import atexit
import functools
import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import pymongo
from pymongo.errors import PyMongoError

__all__ = ["StandIn", "database_in", "mongo_url"]


@functools.cache
def mongo_url() -> str:
    """Say where the session's server is; the first call starts it, and processes of the session find it too."""
    url = os.environ.get("HAREL_TEST_MONGO_URL")
    if not url:
        url = os.environ["HAREL_TEST_MONGO_URL"] = StandIn().url
        _goes_with_the_session.append(url)
    return url


_goes_with_the_session: list[str] = []


class StandIn:
    """A stand-in server in a process of its own; it stops when this process ends, if not before.

    Parameters
    ----------
    **settings
        Those of :class:`tests.servers.mongo_server.Settings`.
    """

    def __init__(self, **settings: Any) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.servers.mongo_server", json.dumps(settings)],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        atexit.register(self.stop)
        assert self._process.stdout is not None
        self.address = f"127.0.0.1:{int(self._process.stdout.readline())}"
        self.url = f"mongodb://{self.address}/"
        self._client: pymongo.MongoClient[dict[str, Any]] | None = None

    def tell(self, what: str, **more: Any) -> dict[str, Any]:
        """Have it do what no real server can."""
        if self._client is None:
            self._client = pymongo.MongoClient(self.url, directConnection=True)
        return self._client.admin.command({"standIn": what, **more})

    def fail(self, command: str, how: str, *, skip: int = 0, times: int = 1, code: int = 0, labels: Any = ()) -> None:
        """Let commands fail; see :class:`tests.servers.mongo_server.Fault`."""
        self.tell("fault", command=command, how=how, skip=skip, times=times, code=code, labels=list(labels))

    def lift(self) -> None:
        """Let nothing fail any more, and go on with what hangs."""
        self.tell("lift")

    def wait_until_it_hangs(self) -> None:
        """Return when a command hangs, as ``fail`` had it."""
        deadline = time.monotonic() + 60.0
        while not self.tell("hung")["hung"]:
            assert time.monotonic() < deadline, "no command hangs"

    def log(self) -> list[dict[str, Any]]:
        """Take what was done since the log was last taken."""
        log: list[dict[str, Any]] = json.loads(self.tell("log")["log"])
        return log

    def stop(self) -> None:
        """End it."""
        if self._client is not None:
            self._client.close()
            self._client = None
        if self._process.stdin is not None:
            self._process.stdin.close()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def database_in(folder: Path) -> str:
    """Give a folder's database, the same to every process; when this one ends it goes, if the server stays."""
    file = folder / "mongo-database"
    if not file.exists():
        file.write_text(f"t{uuid4().hex[:12]}")
        if mongo_url() not in _goes_with_the_session:
            atexit.register(drop, mongo_url(), file.read_text())
    return file.read_text()


def drop(url: str, database: str) -> None:
    """Drop a database, if the server is still there."""
    with suppress(PyMongoError), pymongo.MongoClient[dict[str, Any]](url) as client:
        client.drop_database(database)
