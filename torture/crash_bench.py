"""A queue with two transports: one whose connections are harmed, and one that looks at what became of it.

Both go by a clock that stands still until it is told, so that nothing here waits for a lease to end. Each case has
groups of its own, and leaves the queue empty; the harmed transport is the same for hundreds of cases.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, Self
from unittest.mock import patch
from uuid import uuid4

import psycopg
import pymongo.common

from harel import connect
from harel.config import connect_async
from harel.engine.aio_transport import AsyncSqsTransport
from harel.engine.transport import SqsTransport
from harel.errors import PartlyPublished, TransportUnavailable
from harel.testing import Blocking, ManualClock
from tests.backends import URLS, with_options
from tests.servers.sqs import REGION, async_session, opener_in, queue_in, sync_session
from torture.crash_scenes import VISIBILITY_S, Found, Scene, State, put
from torture.proxy import Harm, How, Proxy, Side

__all__ = ["ALLOWED", "Bench", "Link", "Outcome", "judged", "new_groups"]

ALLOWED = (TransportUnavailable, PartlyPublished)
"""What a client may be told when a connection broke."""

_PATIENCE_S = 60.0
_STEP_S = 1.0
"""More than the coarsest clock's step: SQS has whole seconds, rqlite 86 ms."""
_MOST_CONNECTIONS = 12


class Outcome:
    """What came of a harmed operation."""

    def __init__(self, result: Any = None, failure: BaseException | None = None, *, reached: bool = True) -> None:
        self.result = result
        self.failure = failure
        self.reached = reached


class Bench(Protocol):
    """A queue that operations are harmed on.

    Attributes
    ----------
    name : str
        Backend and flavour.
    harmed : transport
        Sync, or an async one as ``Blocking``.
    observer : Transport
    clock : ManualClock
    """

    name: str
    harmed: Any
    observer: Any
    clock: ManualClock

    def points(self, scene: Scene) -> tuple[str, list[Any]]:
        """Do the scene undisturbed; say how many messages it took, and where it can be harmed."""
        ...

    def groups(self) -> tuple[str, str]:
        """Return two names that no group has had."""
        ...

    def strike(self, scene: Scene, point: Any, groups: Sequence[str], arranged: Any) -> Outcome:
        """Carry the operation out, and harm it there."""
        ...

    def left_behind(self) -> list[str]:
        """Say what a case left behind outside the queue, each a sentence."""
        ...

    def close(self) -> list[str]:
        """Close all, and say what stays open."""
        ...


def new_groups(counter: Iterator[int]) -> tuple[str, str]:
    """Return two names that no group has had."""
    number = next(counter)
    return f"a{number}", f"b{number}"


# A queue behind a connection.


class Link:
    """A queue on a server, with a proxy between it and one of the two transports.

    Parameters
    ----------
    backend : str
    flavour : str
        ``"sync"`` or ``"async"``.
    folder : Path
    seed : int
    """

    def __init__(self, backend: str, flavour: str, folder: Path, seed: int) -> None:
        self.name = f"{backend}-{flavour}"
        self.backend = backend
        self.clock = ManualClock()
        self._flavour = flavour
        self._folder = folder
        self._seed = seed
        self._numbers = itertools.count(1)
        self._mark = f"crash-{uuid4().hex[:8]}"
        self._runner = asyncio.Runner() if flavour == "async" else None
        self._stack = ExitStack()
        self._stack.enter_context(_quick_looks())
        self._stack.enter_context(_silent_pool())
        self.url = self._url(folder)
        self.proxy = self._stack.enter_context(Proxy(self.url))
        self.observer: Any = self._opened_by_observer()
        self.harmed: Any = self.open(folder)
        self._server = self._stack.enter_context(_asking(self.url)) if backend == "postgres" else None

    def open(self, folder: Path) -> Any:
        """Open a folder's queue once more, through the proxy."""
        if self.backend == "sqs":
            return self._open_sqs(folder)
        url = self.proxy.url_for(self._url(folder))
        if self._runner is None:
            return connect(url, clock=self.clock)
        return Blocking(self._runner.run(connect_async(url, clock=self.clock)), self._runner)

    def _url(self, folder: Path) -> str:
        return with_options(URLS[self.backend](folder), **_OPTIONS.get(self.backend, {}), **self._name_in_postgres())

    def _name_in_postgres(self) -> dict[str, str]:
        return {"application_name": self._mark} if self.backend == "postgres" else {}

    def _open_sqs(self, folder: Path) -> Any:
        endpoint = f"http://{self.proxy.address[0]}:{self.proxy.address[1]}"
        if self._runner is None:
            made = SqsTransport.create(queue_in(folder), sync_session(), endpoint_url=endpoint, region=REGION)
            made._asker.monotonic = lambda: 0.0
            return made
        session = async_session()
        twin = AsyncSqsTransport.create(queue_in(folder), session, endpoint_url=endpoint, region=REGION)
        twin._asker.monotonic = lambda: 0.0
        self._runner.run(twin.open())
        return Blocking(twin, self._runner)

    def _opened_by_observer(self) -> Any:
        if self.backend == "sqs":
            # This has the stand-in go by the clock, for whoever speaks of this queue.
            return opener_in(SqsTransport, self._folder)(clock=self.clock)
        return connect(self.url, clock=self.clock)

    def points(self, scene: Scene) -> tuple[str, list[Harm]]:
        requests = replies = 0
        for is_cold in (True, False):
            if is_cold:
                self._cut_all()
                self._heal()
            groups = new_groups(self._numbers)
            arranged = self._arranged(scene, groups)
            self.proxy.watch()
            outcome = Outcome(scene.act(self.harmed, groups, arranged))
            seen = self.proxy.seen
            requests, replies = max(requests, seen.requests), max(replies, seen.replies)
            complaints, _ = judged(self, scene, groups, outcome, arranged)
            assert not complaints, f"{self.name}, {scene.name}, undisturbed: {complaints[0]}"
        return f"{requests} + {replies}", list(self.harms(requests, replies, scene.name))

    def harms(self, requests: int, replies: int, name: str) -> Iterator[Harm]:
        """Yield every place where an operation of so many messages can be cut, and every way."""
        return _harms(requests, replies, random.Random(f"{self._seed}/{self.name}/{name}"))

    def groups(self) -> tuple[str, str]:
        """Return two names that no group has had."""
        return new_groups(self._numbers)

    def _arranged(self, scene: Scene, groups: Sequence[str]) -> Any:
        arranged = scene.arrange(self.harmed, groups)
        if scene.reconnects:
            self._cut_all()
        return arranged

    def strike(self, scene: Scene, point: Harm, groups: Sequence[str], arranged: Any) -> Outcome:
        if scene.reconnects:
            self._cut_all()
        self.proxy.do(point)
        try:
            outcome = Outcome(scene.act(self.harmed, groups, arranged))
        except Exception as error:
            outcome = Outcome(failure=error)
        seen = self.proxy.seen
        came_to_it = (seen.requests if point.side == "request" else seen.replies) >= point.number
        outcome.reached = came_to_it and self.proxy.wait_until_done(_PATIENCE_S)
        self.proxy.watch()
        return outcome

    def _cut_all(self) -> None:
        self.proxy.cut_all()
        if self._runner is not None:
            self._runner.run(asyncio.sleep(0.01))  # an event loop hears of it when it turns

    def _heal(self) -> None:
        """Have the harmed transport find out that its connections were cut."""
        for _ in range(10):
            with suppress(TransportUnavailable):
                self.harmed.claim("nobody", VISIBILITY_S)
                return
        raise AssertionError(f"{self.name} does not come back after all its connections were cut")

    def left_behind(self) -> list[str]:
        complaints = []
        if self.proxy.connections > _MOST_CONNECTIONS:
            complaints.append(f"it has {self.proxy.connections} connections open")
        if self._server is not None and not _eventually(lambda: not _open_transactions(self._server, self._mark)):
            complaints.append("the server still has a transaction of it open")
        return complaints

    def close(self) -> list[str]:
        """Close both transports, and say what stays open."""
        self.harmed.close()
        self.observer.close()
        complaints = []
        gc.collect()  # an error and its traceback may hold a connection that broke
        if not _eventually(lambda: self.proxy.connections == 0):
            complaints.append(f"after close it still has {self.proxy.connections} connections open")
        self._stack.close()
        if self._runner is not None:
            self._runner.close()
        return complaints

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_OPTIONS = {
    # So few connections that one which is not given back is missed soon.
    "postgres": {"max_size": "2", "max_transactions": "1", "connect_timeout": "30"},
    "redis": {"timeout": "30"},
    "mongo": {"timeout": "30"},
}


@contextmanager
def _quick_looks() -> Iterator[None]:
    """Let pymongo look at a server again at once; it waits half a second after each connection that broke."""
    with patch.object(pymongo.common, "MIN_HEARTBEAT_INTERVAL", 0.01):
        yield


@contextmanager
def _silent_pool() -> Iterator[None]:
    """Do not let psycopg's pool warn of every connection that was cut."""
    logger = logging.getLogger("psycopg.pool")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def _harms(requests: int, replies: int, chance: random.Random) -> Iterator[Harm]:
    """Yield every place where a connection can be cut, and every way."""
    ways: tuple[tuple[Side, int, tuple[How, ...]], ...] = (
        ("request", requests, ("before", "half")),
        ("reply", replies, ("before", "half")),
    )
    for side, most, hows in ways:
        for number in range(1, most + 1):
            for how in hows:
                yield Harm(side, number, how, with_reset=chance.random() < 0.5)
    if replies:
        yield Harm("reply", replies, "after", with_reset=chance.random() < 0.5)


def _asking(url: str) -> psycopg.Connection[Any]:
    """Connect to PostgreSQL, to ask what goes on there."""
    address, _, options = url.partition("?")
    host = next((option for option in options.split("&") if option.startswith("host=")), "")
    return psycopg.connect(f"{address}?{host}", autocommit=True)  # what is not libpq's is an option of ours


def _open_transactions(server: psycopg.Connection[Any] | None, mark: str) -> int:
    assert server is not None
    rows = server.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s "
        "AND (state LIKE 'idle in transaction%%' OR state = 'active')",
        (mark,),
    ).fetchall()
    return int(rows[0][0])


def _eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + _PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


# What must hold, whatever was harmed.


def judged(
    bench: Bench, scene: Scene, groups: Sequence[str], outcome: Outcome, arranged: Any
) -> tuple[list[str], bool | None]:
    """Look at what is there, and leave the queue empty.

    Returns
    -------
    tuple
        What is wrong, each a sentence; and whether the operation took effect, or ``None`` where nothing shows it.
    """
    can = bench.observer.capabilities
    complaints = [*_told(outcome, scene, arranged, is_atomic=can.atomic_batches), *_still_leased(bench, scene, outcome)]
    complaints += _goes_on(bench, scene, outcome, f"p{groups[0]}")
    found, more = _everything(bench, groups)
    complaints += more
    possible = scene.possible(groups, outcome.failure, can.atomic_batches)
    if not can.dead_letters:
        possible = [State(state.waiting, (), state.held) for state in possible]
    if found.state not in possible:
        told = "it returned" if outcome.failure is None else f"it raised {type(outcome.failure).__name__}"
        allowed = " or ".join(f"[{state}]" for state in possible)
        complaints.append(f"{told}, and then there is [{found.state}] instead of {allowed}")
    complaints += bench.left_behind()
    return complaints, scene.happened(found, groups)


def _told(outcome: Outcome, scene: Scene, arranged: Any, *, is_atomic: bool) -> Iterator[str]:
    """Say what is wrong with what the client was told."""
    failure = outcome.failure
    if failure is None:
        if not scene.right(outcome.result, arranged):
            yield f"it returned {outcome.result!r}"
        return
    if not isinstance(failure, ALLOWED) or (is_atomic and isinstance(failure, PartlyPublished)):
        yield f"it raised {type(failure).__name__}: {failure}"
    elif not str(failure).endswith("."):
        yield f"it raised {type(failure).__name__} without a sentence: {failure}"


def _still_leased(bench: Bench, scene: Scene, outcome: Outcome) -> Iterator[str]:
    """See that nobody else gets what a claim has just given (promise 1)."""
    if not scene.leases or outcome.failure is not None or not outcome.result:
        return
    leases = outcome.result if isinstance(outcome.result, list) else [outcome.result]
    taken = {lease.group_id for lease in bench.observer.claim_many("thief", VISIBILITY_S, 10)}
    for lease in leases:
        if lease.group_id in taken:
            yield f"it returned a lease of {lease.group_id}, and another client got one too"


def _goes_on(bench: Bench, scene: Scene, outcome: Outcome, group: str) -> Iterator[str]:
    """See that the harmed transport works as if nothing had been."""
    # One that broke behind the last reply is only found out about by the next operation.
    tries = 2 if outcome.failure is None else 1
    for left in reversed(range(tries)):
        try:
            if scene.wakes and bench.harmed.capabilities.watch:
                put(bench.observer, (group, 1))
                if not bench.harmed.wait(_PATIENCE_S):
                    yield "a publish afterwards does not end its wait"
            else:
                put(bench.harmed, (group, 1))
        except TransportUnavailable as error:
            if not left:
                yield f"the next operation fails too: {error}"
        except Exception as error:
            yield f"the next operation raises {type(error).__name__}: {error}"
            return
        else:
            return


def _everything(bench: Bench, groups: Sequence[str]) -> tuple[Found, list[str]]:
    """Let all leases and parks end, and take all that there is."""
    bench.clock.advance(VISIBILITY_S + _STEP_S)
    can = bench.observer.capabilities
    held: tuple[str, ...] = ()
    if can.hold:
        held = tuple(sorted(info.group_id for info in bench.observer.groups(state="held")))
        for group in held:
            bench.observer.release(group)
    waiting: dict[str, tuple[str, ...]] = defaultdict(tuple)
    attempts: dict[str, int] = {}
    complaints = []
    for queue in (bench.harmed, bench.observer):
        complaints += _take(queue, waiting, attempts, most=1 if queue is bench.harmed else 100)
    if can.stats and (stats := bench.observer.stats()) and (stats.messages or stats.groups):
        complaints.append(
            f"{stats.messages} messages and {stats.groups} groups are left that no claim reaches after a visibility"
        )
    dead: list[str] = []
    if can.dead_letters:
        for group in groups:
            dead += [letter.event.id for letter in bench.observer.dead_letters(group_id=group)]
    probe = waiting.pop(f"p{groups[0]}", ())
    if len(probe) > 1:
        complaints.append(f"what was published afterwards is delivered {len(probe)} times")
    return Found(
        State(dict(waiting), tuple(dead), held), {g: n for g, n in attempts.items() if g in groups}
    ), complaints


def _take(queue: Any, waiting: dict[str, tuple[str, ...]], attempts: dict[str, int], most: int) -> list[str]:
    for _ in range(most):
        try:
            leases = queue.claim_many("afterwards", VISIBILITY_S, 10)
            for lease in leases:
                waiting[lease.group_id] += (lease.event.id,)
                attempts.setdefault(lease.group_id, lease.attempt)
            if not leases:
                break
            if not all(queue.ack_many(leases)):
                return ["a message that was claimed afterwards cannot be settled"]
        except Exception as error:
            return [f"to take what is there raises {type(error).__name__}: {error}"]
    return []
