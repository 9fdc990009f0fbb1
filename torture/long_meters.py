"""What is measured over a long run, and the rule by which it is flat.

Linux says in ``/proc`` what a process has; of the servers, what they count themselves is asked.
"""

from __future__ import annotations

import os
import sqlite3
import statistics
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pymongo
import redis

from tests.servers.redis import keys_of

__all__ = ["Limit", "Series", "limit_of", "process", "store_of"]

MB = 2**20

Figures = Mapping[str, float]


def process(pid: int) -> dict[str, float]:
    """Measure a process: its memory in bytes, its open files and its threads; empty if it is gone."""
    place = Path("/proc", str(pid))
    try:
        resident = int((place / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        files = len(list((place / "fd").iterdir()))
        return {"rss": float(resident), "files": files, "threads": len(list((place / "task").iterdir()))}
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return {}


def family_memory(pid: int) -> float:
    """Return what a process and its children take, in bytes, each shared page once."""
    total = 0.0
    for member in (pid, *_children(pid)):
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            for line in Path("/proc", str(member), "smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
    return total


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@dataclass(frozen=True)
class Limit:
    """By how much the last fifth's median may exceed the second's: a share of that, and so much more."""

    share: float
    more: float
    why: str


_LIMITS: tuple[tuple[str, Limit], ...] = (
    ("rss", Limit(0.10, 6 * MB, "the allocators of Python and C keep what they fragmented")),
    ("pss", Limit(0.15, 20 * MB, "each backend caches catalogs; 16 MB of buffers come in by and by")),
    ("used_memory", Limit(0.20, 4 * MB, "what waits varies")),
    ("files", Limit(0.0, 3, "a pool grows by a connection when its threads meet")),
    ("threads", Limit(0.0, 2, "a pool of threads grows when they meet")),
    ("connections", Limit(0.0, 8, "workers come and go, with pools of their own")),
    ("wal", Limit(0.5, 8 * MB, "a log is as long as a checkpoint was held up at most")),
    ("bytes", Limit(0.5, 8 * MB, "what is dead waits for the next autovacuum, and what waits varies")),
    ("dead rows", Limit(1.0, 100_000, "they wait for the next autovacuum")),
    ("rows", Limit(1.0, 6_000, "what waits varies")),
)


def limit_of(name: str) -> Limit:
    """Return the limit of a measure, which the end of its name says."""
    return next(limit for ending, limit in _LIMITS if name.endswith(ending))


class Series:
    """What was measured over time.

    Attributes
    ----------
    samples : dict
        The figures of each measure, in the order of time.
    """

    def __init__(self) -> None:
        self.samples: dict[str, list[float]] = {}

    def add(self, what: str, figures: Figures) -> None:
        """Add a sample of each of the figures."""
        for name, figure in figures.items():
            self.samples.setdefault(f"{what} {name}".strip(), []).append(figure)

    def fifths(self, name: str) -> tuple[float, float, float]:
        """Return the medians of the first, second and last fifth."""
        figures = self.samples[name]
        size = max(1, len(figures) // 5)
        return (
            statistics.median(figures[:size]),
            statistics.median(figures[size : 2 * size] or figures[-1:]),
            statistics.median(figures[-size:]),
        )

    def faults(self) -> list[str]:
        """Say what grew: the first fifth is for warming up."""
        found = []
        for name in self.samples:
            _, second, last = self.fifths(name)
            limit = limit_of(name)
            most = second * (1.0 + limit.share) + limit.more
            if last > most:
                found.append(
                    f"{name} grew from {told(name, second)} to {told(name, last)}; {told(name, most)} is allowed"
                )
        return found

    def rows(self, backend: str) -> Iterable[tuple[object, ...]]:
        """Return a line a measure, for a table."""
        for name in self.samples:
            yield (backend, name, *(told(name, figure) for figure in self.fifths(name)))


def told(name: str, figure: float) -> str:
    """Write a figure: of memory and files in megabytes."""
    if name.endswith(("rss", "pss", "used_memory", "wal", "bytes")):
        return f"{figure / MB:,.1f} MB"
    return f"{figure:,.0f}"


def store_of(backend: str, **at: Any) -> Callable[[], dict[str, float]]:
    """Return what measures a backend's store."""
    meters: dict[str, Callable[..., Callable[[], dict[str, float]]]] = {
        "sqlite": _file,
        "libsql": _file,
        "redis": _redis,
        "postgres": _postgres,
        "mongo": _mongo,
        "rqlite": _rqlite,
    }
    return meters[backend](**at) if backend in meters else dict


def _file(*, path: Path, **_at: Any) -> Callable[[], dict[str, float]]:
    tables = ("messages", "groups", "dead_letters")

    def measure() -> dict[str, float]:
        log = path.with_name(f"{path.name}-wal")
        figures = {"file bytes": float(path.stat().st_size), "wal": float(log.stat().st_size) if log.exists() else 0.0}
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30.0)) as connection:
            for table in tables:
                (figures[f"{table} rows"],) = connection.execute(f"SELECT count(*) FROM transport_{table}").fetchone()
        return figures

    return measure


_COUNTERS = {b"meta"}
"""What an empty queue keeps, for its numbers to go on."""


def _redis(*, url: str, prefix: str, **_at: Any) -> Callable[[], dict[str, float]]:
    def measure() -> dict[str, float]:
        with closing(redis.Redis.from_url(url)) as client:
            told_of: Any = client.info()
            keys = {key.removeprefix(f"{{{prefix}}}:".encode()) for key in keys_of(client, prefix)}
        return {
            "rss": float(told_of["used_memory_rss"]),
            "used_memory": float(told_of["used_memory"]),
            "dataset used_memory": float(told_of["used_memory_dataset"]),
            "connections": told_of["connected_clients"],
            "keys rows": float(len(keys - _COUNTERS)),
        }

    return measure


_RELATIONS = """
SELECT c.relname, pg_relation_size(c.oid), coalesce(s.n_dead_tup, 0), c.relkind = 'r'
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
LEFT JOIN pg_stat_user_tables AS s ON s.relid = c.oid
WHERE n.nspname = %s AND c.relkind IN ('r', 'i')
ORDER BY c.relname
"""

_CONNECTIONS = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"


def _postgres(*, url: str, schema: str, pid: int | None = None, **_at: Any) -> Callable[[], dict[str, float]]:
    def measure() -> dict[str, float]:
        figures: dict[str, float] = {}
        with psycopg.connect(url, autocommit=True) as connection:
            for name, size, dead, is_table in connection.execute(_RELATIONS, (schema,)).fetchall():
                figures[f"{name.removeprefix('transport_')} bytes"] = float(size)
                if is_table:
                    figures[f"{name.removeprefix('transport_')} dead rows"] = dead
            for table in ("messages", "names", "groups", "dead_letters"):
                ask = f'SELECT count(*) FROM "{schema}".transport_{table}'.encode()
                ((figures[f"{table} rows"],),) = connection.execute(ask).fetchall()
            ((figures["connections"],),) = connection.execute(_CONNECTIONS).fetchall()
        if pid is not None:
            figures["pss"] = family_memory(pid)
        return figures

    return measure


def _mongo(*, url: str, database: str, **_at: Any) -> Callable[[], dict[str, float]]:
    names = ("messages", "locks", "dead_letters")

    def measure() -> dict[str, float]:
        client: pymongo.MongoClient[dict[str, Any]]
        with pymongo.MongoClient(url) as client:
            found: Any = client[database]
            return {f"{name} rows": float(found[f"transport_{name}"].count_documents({})) for name in names}

    return measure


def _rqlite(*, base: str, prefix: str, **_at: Any) -> Callable[[], dict[str, float]]:
    tables = ("messages", "groups", "dead_letters")
    statements = [[f"SELECT count(*) FROM {prefix}_{table}"] for table in tables]

    def measure() -> dict[str, float]:
        with httpx2.Client(verify=False, timeout=60.0) as client:
            results = client.post(f"{base}/db/query?level=weak", json=statements).json()["results"]
        return {f"{table} rows": result["values"][0][0] for table, result in zip(tables, results, strict=True)}

    return measure
