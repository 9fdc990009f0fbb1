"""The rqlite that the tests run on: ``HAREL_TEST_RQLITE_URL``, or a stand-in that the session starts."""

from __future__ import annotations

import atexit
import functools
import os
import subprocess
import sys
from collections import deque
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import httpx2

from harel.engine.queue.rqlite.address import Address

TABLES = ("messages", "groups", "dead_letters", "schema", "clock", "requests")

_KEPT = 30
"""So many prefixes at least, the latest, keep their tables: many more would make every new table dearer."""

_prefixes: deque[str] = deque()


@functools.cache
def rqlite_url() -> str:
    """Say where the session's server is; the first call starts it, and processes of the session find it too."""
    url = os.environ.get("HAREL_TEST_RQLITE_URL")
    if not url:
        url = os.environ["HAREL_TEST_RQLITE_URL"] = f"rqlite://localhost:{_started()}"
    return url


def _started() -> int:
    program = Path(__file__).with_name("rqlite_server.py")
    process = subprocess.Popen([sys.executable, program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None

    def stop() -> None:
        process.communicate()  # the end of its input is the end of the server

    port = int(process.stdout.readline())
    atexit.register(stop)
    return port


def prefix_in(folder: Path) -> str:
    """Give a folder's prefix, the same to every process; its tables are removed some time after the test."""
    file = folder / "rqlite-prefix"
    if not file.exists():
        file.write_text(f"t{uuid4().hex[:12]}")
        if not _prefixes:
            rqlite_url()
            atexit.register(lambda: remove(rqlite_url(), *_prefixes))
        _prefixes.append(file.read_text())
        if len(_prefixes) > 2 * _KEPT:
            remove(rqlite_url(), *(_prefixes.popleft() for _ in range(_KEPT)))
    return file.read_text()


def remove(url: str, *prefixes: str) -> None:
    """Remove the tables of prefixes, if the server is still there."""
    address = Address.of(url.partition("?")[0])
    headers = {"Authorization": address.authorization} if address.authorization else {}
    statements = [[f"DROP TABLE IF EXISTS {prefix}_{table}"] for prefix in prefixes for table in TABLES]
    # Not to read the system's certificates saves as much time as the rest of a short test takes.
    with suppress(httpx2.RequestError), httpx2.Client(verify=False, timeout=60.0) as client:
        client.post(f"{address.bases[0]}/db/request?transaction", json=statements, headers=headers)
