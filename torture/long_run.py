"""The long run: messages by the hundred thousand, workers that come and go, and nothing that grows.

On each backend one publisher and two workers live from the beginning to the end; others are started, told to leave and
killed all the time, ``harel worker --processes 2`` among them. What each of those that stay has, what the server has
and what is stored is sampled; by the rule of :mod:`torture.long_meters` it is flat. At last all is drained, and no
record may be left. Then transports are opened, used and closed over and over in one process.
"""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from harel import Transport, connect
from harel.errors import TransportUnavailable
from tests.backends import URLS, with_options
from tests.servers.mongo import database_in, mongo_url
from tests.servers.postgres import PostgresServer
from tests.servers.redis import server as redis_server
from tests.servers.rqlite import prefix_in as rqlite_prefix_in
from tests.servers.rqlite import rqlite_url
from torture.long_cycles import Cycles, fail_to_open, left_here, unreachable
from torture.long_member import Duty, counted
from torture.long_meters import Series, process, store_of
from torture.part import Options, Report, table

__all__ = ["run"]

_ROOT = Path(__file__).resolve().parent.parent

_DRAIN_S = 180.0

_POSTGRES = (
    "max_connections = 100",
    "shared_buffers = 16MB",  # so that they are full soon, and what grows later is something else
    "autovacuum_naptime = 2s",  # a run of a minute has the cycles of half an hour
    "fsync = off",
    "synchronous_commit = on",
)


@dataclass(frozen=True)
class Effort:
    """How long it takes: seconds of traffic, and how many messages at most, by the kind of the backend."""

    fast_s: float
    slow_s: float
    most: int
    cycles: int


EFFORTS = {"short": Effort(12.0, 6.0, 30_000, 20), "full": Effort(300.0, 20.0, 1_000_000, 120)}

FAST = ("memory", "sqlite", "redis", "postgres")


@dataclass
class Place:
    """Where a queue is, and what measures its store."""

    url: str
    measure: Callable[[], dict[str, float]] = dict


@dataclass
class Course:
    """The long run of one backend.

    Attributes
    ----------
    started, killed : int
        How many processes came, and of how many that was the end.
    """

    backend: str
    folder: Path
    seed: int
    lasts_s: float
    most: int
    series: Series = field(default_factory=Series)
    started: int = 0
    killed: int = 0
    published: int = 0
    settled: int = 0
    failures: list[str] = field(default_factory=list)

    def run(self) -> None:
        """Let everybody work, and look at it."""
        with ExitStack() as stack:
            place = stack.enter_context(_place(self.backend, self.folder))
            if self.backend != "memory":
                connect(place.url).close()
            lasting = {name: self._start(role, name, place) for name, role in self._who_stays()}
            stack.callback(_end, list(lasting.values()))
            passing = _Passing(self, place)
            stack.callback(passing.end)
            self._watch(lasting, passing, place)
            self._finish(lasting, passing, place)
        self.failures += self.series.faults()

    def _who_stays(self) -> Iterator[tuple[str, str]]:
        if self.backend == "memory":
            yield "alone", "alone"
            return
        yield "publisher", "publish"
        yield "taker", "take"
        yield "worker", "work_async"

    def _start(self, role: str, name: str, place: Place) -> subprocess.Popen[bytes]:
        self.started += 1
        duty = Duty(
            name=name,
            role=role,  # type: ignore[arg-type]
            url=place.url,
            folder=str(self.folder),
            most=self.most,
            batch=200 if self.backend in FAST else 20,
            enough=4_000 if self.backend in FAST else 200,
            seed=self.seed,
        )
        command = [sys.executable, "-m", "torture.long_member", msgspec.json.encode(duty).decode()]
        return self.spawn(name, command)

    def spawn(self, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.said").open("ab") as said:
            return subprocess.Popen(command, cwd=_ROOT, stdin=subprocess.DEVNULL, stdout=said, stderr=said)

    def _wait_for_all(self, lasting: dict[str, subprocess.Popen[bytes]]) -> None:
        """Wait until all that stay are at work, or have ended before."""
        until = time.monotonic() + _DRAIN_S
        while time.monotonic() < until and all(member.poll() is None for member in lasting.values()):
            if all(list(self.folder.glob(f"{name}-*.[ps]*ed")) for name in lasting):
                return
            time.sleep(0.05)

    def _watch(self, lasting: dict[str, subprocess.Popen[bytes]], passing: _Passing, place: Place) -> None:
        self._wait_for_all(lasting)
        until = time.monotonic() + self.lasts_s
        while time.monotonic() < until and counted(self.folder, "published") < self.most:
            time.sleep(self.lasts_s / 120)
            for name, member in lasting.items():
                self.series.add(name, process(member.pid))
            with suppress(TransportUnavailable):
                self.series.add("store", place.measure())
            if self.backend != "memory":
                passing.step()

    def _finish(self, lasting: dict[str, subprocess.Popen[bytes]], passing: _Passing, place: Place) -> None:
        """Let those that stay leave, settle what is left, and see that nothing is."""
        for name, member in lasting.items():
            if member.poll() is not None:
                said = (self.folder / f"{name}.said").read_text(errors="replace")[-2_000:]
                self.failures.append(f"{name} ended with {member.returncode} and said:\n{said}")
        passing.end()
        (self.folder / "no-more").touch()
        _end(list(lasting.values()))
        self.published, self.settled = counted(self.folder, "published"), counted(self.folder, "settled")
        if self.backend == "memory":
            return
        with connect(place.url) as transport:
            self.failures += _drained(transport)
        left = {name: rows for name, rows in place.measure().items() if name.endswith(" rows") and rows}
        told = [f"{count:g} of {name} are left of a queue that is drained" for name, count in left.items()]
        self.failures += [each for each in told if "dead rows" not in each]

    def row(self) -> tuple[object, ...]:
        """Return what there was, for a table."""
        return (self.backend, f"{self.published:,}", self.started, self.killed, len(self.failures) or "none")


class _Passing:
    """The processes that come and go: one at a time, of each kind in turn."""

    def __init__(self, course: Course, place: Place) -> None:
        self._course = course
        self._place = place
        self._chance = random.Random(f"{course.backend}/{course.seed}")
        self._here: list[tuple[subprocess.Popen[bytes], float]] = []
        self._lives = 0

    def step(self) -> None:
        """Start one if there is none; end one whose time has come, kindly or not."""
        for member, until in list(self._here):
            if time.monotonic() > until:
                hard = self._chance.random() < 0.5
                member.send_signal(signal.SIGKILL if hard else signal.SIGTERM)
                self._course.killed += hard
                self._here.remove((member, until))
                _end([member], told=True)
        if not self._here:
            self._lives += 1
            self._here.append((self._next(), time.monotonic() + self._chance.uniform(2.0, 5.0)))

    def _next(self) -> subprocess.Popen[bytes]:
        name = f"passing-{self._lives}"
        roles = ("work", "take", "crew", "work_async")
        role = roles[self._lives % len(roles)]
        if role != "crew":
            return self._course._start(role, name, self._place)
        self._course.started += 3
        command = [sys.executable, "-m", "harel.cli", "worker", "--transport", self._place.url]
        return self._course.spawn(name, [*command, "--processes", "2", "torture.long_handler:handle"])

    def end(self) -> None:
        """Have none left."""
        for member, _ in self._here:
            member.send_signal(signal.SIGTERM)
        _end([member for member, _ in self._here], told=True)
        self._here.clear()


def _end(members: list[subprocess.Popen[bytes]], told: bool = False) -> None:
    for member in members:
        if member.poll() is None and not told:
            member.send_signal(signal.SIGTERM)
    for member in members:
        try:
            member.wait(60.0)
        except subprocess.TimeoutExpired:
            member.kill()
            member.wait()


def _drained(transport: Transport) -> list[str]:
    """Settle and redrive until there is nothing; say what could not be."""
    can = transport.capabilities
    deadline = time.monotonic() + _DRAIN_S
    quiet_since = time.monotonic()
    while time.monotonic() < deadline:
        if can.dead_letters:
            for letter in transport.dead_letters(limit=1_000):
                transport.redrive(letter.seq)
        leases = transport.claim_many("end", 30.0, 500 if can.atomic_batches else 10)
        if leases:
            transport.ack_many(leases)
            quiet_since = time.monotonic()
            continue
        if not can.stats:
            if time.monotonic() - quiet_since > 8.0:
                return []
        elif transport.stats().groups == transport.stats().dead_letters == 0:
            return []
        transport.wait(0.2)
    return [f"The queue could not be drained in {_DRAIN_S:g} seconds."]


@contextmanager
def _place(backend: str, folder: Path) -> Iterator[Place]:
    if backend == "memory":
        yield Place("memory://")
    elif backend == "postgres":
        server = PostgresServer(*_POSTGRES)
        pid = int((server.folder / "data" / "postmaster.pid").read_text().split()[0])
        try:
            url = with_options(server.url, schema="long_run")
            yield Place(url, store_of(backend, url=server.url, schema="long_run", pid=pid))
        finally:
            server.remove()
    elif backend == "redis":
        valkey = redis_server()
        url = valkey.connection_url
        try:
            yield Place(with_options(url, prefix="long"), store_of(backend, url=url, prefix="long"))
        finally:
            valkey.terminate()
    else:
        yield Place(URLS[backend](folder), _store(backend, folder))


def _store(backend: str, folder: Path) -> Callable[[], dict[str, float]]:
    if backend == "mongo":
        return store_of(backend, url=mongo_url(), database=database_in(folder))
    if backend == "rqlite":
        return store_of(backend, base=rqlite_url().replace("rqlite://", "http://"), prefix=rqlite_prefix_in(folder))
    return store_of(backend, path=folder / "queue.db")


def _cycled(backend: str, folder: Path, times: int) -> tuple[Series, int]:
    """Open, use and close over and over, also what cannot be opened; return what was left each time, and how often."""
    series, done = Series(), 0
    with ExitStack() as stack:
        place = stack.enter_context(_place(backend, folder))
        nowhere = stack.enter_context(unreachable(backend, folder))
        cycles = Cycles(place.url)
        for number in range(times):
            for cycle in (cycles.sync, cycles.looped, cycles.threaded):
                cycle()
            asyncio.run(cycles.awaiting(5))
            done += 8
            if number % 10 == 0:
                fail_to_open(nowhere)
                done += 2
            memory = process(_own_pid())["rss"]
            series.add("opening and closing", {"rss": memory, **left_here()})
    return series, done


def _own_pid() -> int:
    return int(Path("/proc/self").readlink().name)


def run(options: Options) -> Report:
    """Let it run, backend by backend."""
    effort = EFFORTS[options.size]
    rows: list[tuple[object, ...]] = []
    measured: list[tuple[object, ...]] = []
    failures: list[str] = []
    for backend in ("memory", *options.backends):
        folder = options.folder / backend
        folder.mkdir()
        lasts_s = effort.fast_s if backend in FAST else effort.slow_s
        course = Course(backend, folder, options.seed, lasts_s, effort.most)
        course.run()
        measured += course.series.rows(backend)
        opened: object = "-"
        if backend != "memory":
            again = options.folder / f"{backend}-again"
            again.mkdir()
            series, opened = _cycled(backend, again, effort.cycles if backend in FAST else effort.cycles // 3)
            measured += series.rows(backend)
            course.failures += series.faults()
        rows.append((*course.row()[:-1], opened, course.row()[-1]))
        failures += [f"{backend}, seed {options.seed}: {failure}" for failure in course.failures]
    heads = ("Backend", "Messages", "Processes", "Killed", "Transports opened and closed", "Failures")
    figures = table(("Backend", "Measure", "First fifth", "Second fifth", "Last fifth"), measured)
    return Report(title="The long run", text=f"{table(heads, rows)}\n\n{_NOTE}\n\n{figures}", failures=failures)


_NOTE = """Medians of the fifths of each run; the first is for warming up, and the last may exceed the second by what
`torture/long_meters.py` allows, and says why. Of the stand-ins for MongoDB and rqlite only what they store is counted,
of that for SQS nothing: it keeps every receipt."""
