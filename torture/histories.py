"""Histories under faults: many processes on one queue, harm done to all of it, and a check of what they wrote down."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from harel import Transport, connect
from harel.errors import TransportUnavailable
from harel.testing.history import Operation, Recorder, Recording, check, read
from torture.cast import Cast
from torture.member import PATIENCE_S, Part, Role
from torture.nemesis import Nemesis
from torture.part import Options, Report, table
from torture.proxy import Chaos, Proxy
from torture.stage import Stage, stage

__all__ = ["History", "run"]

VISIBILITY_S = 1.0

RAGES_S = {"short": 3.0, "full": 60.0}

_HOUR_S = 3_600.0

CAST: tuple[tuple[str, Role, bool, float], ...] = (
    ("publisher-1", "publish", False, 2 * _HOUR_S),
    ("publisher-2", "publish", True, 0.0),
    ("worker-1", "work", False, 3 * _HOUR_S),
    ("worker-2", "work", True, -5 * _HOUR_S),
    ("worker-3", "work", True, 0.0),
    ("runtime-1", "runtime", False, -_HOUR_S),
    ("runtime-2", "runtime", True, 0.0),
    ("operator", "operate", False, 0.0),
)
"""Who plays: a name, a role, whether it goes through the proxy, and by how much its clock is ahead.

Sync and async code take turns. Where the queue is a file its clock is the machine's, and nobody's is wrong.
"""

_ENOUGH_TIME_S = 180.0

_UNDER_WAY_BYTES = 100_000
"""Of what the processes wrote down: some hundred operations."""

_WORTH_CHECKING = 200
"""With fewer messages a history would show nothing."""


def run(options: Options) -> Report:
    """Play one history a backend."""
    rows: list[tuple[object, ...]] = []
    failures: list[str] = []
    for backend in options.backends:
        folder = options.folder / backend
        folder.mkdir()
        history = History(backend, folder, options.seed, RAGES_S[options.size])
        found = history.play()
        failures += [f"{backend}, seed {options.seed}: {fault}" for fault in found]
        rows.append((*history.figures(), len(found) or "none"))
    heads = ("Backend", "Server", "Processes", "Operations", "Messages", "Redelivered", "Lost leases", "Unanswered")
    return Report(
        title="Histories under faults",
        text=table((*heads, "Harm done", "Checked in", "Violations"), rows),
        failures=failures,
    )


class History:
    """One history.

    Parameters
    ----------
    backend : str
    folder : Path
        For what the processes write; empty.
    seed : int
    rage_s : float
        How long harm is done, in seconds.
    """

    def __init__(self, backend: str, folder: Path, seed: int, rage_s: float) -> None:
        self._backend = backend
        self._folder = folder
        self._seed = seed
        self._rage_s = rage_s
        self._chance = random.Random(f"{backend}/{seed}")
        self._history: list[Operation] = []
        self._checked_in_s = 0.0
        self._settings = ""
        self._nemesis: Nemesis | None = None
        self._processes = 0

    def play(self) -> list[str]:
        """Play it, and return what was wrong."""
        with ExitStack() as stack:
            place = stack.enter_context(stage(self._backend, self._folder))
            self._settings = place.settings
            connect(place.url).close()
            proxy = stack.enter_context(_proxy(place, self._seed))
            cast = Cast(self._parts(place, proxy))
            stack.callback(cast.stop)
            self._nemesis = Nemesis(cast, place, proxy, self._chance)
            self._wait_until_under_way()
            self._nemesis.rage(until=time.monotonic() + self._rage_s)
            self._come_to_an_end(cast, place)
            self._processes = cast.started
            return [*cast.surprises, *self._check(place, self._nemesis.restarts)]

    def _wait_until_under_way(self) -> None:
        """Harm nobody who has not begun: that would show nothing."""
        record = self._folder / "record"
        deadline = time.monotonic() + _ENOUGH_TIME_S
        while not (record.exists() and record.stat().st_size > _UNDER_WAY_BYTES) and time.monotonic() < deadline:
            time.sleep(0.05)

    def _parts(self, place: Stage, proxy: Proxy | None) -> Iterator[Part]:
        for number, (name, role, is_far, ahead_s) in enumerate(CAST):
            yield Part(
                name=name,
                role=role,
                flavour="sync" if number % 2 else "async",
                url=proxy.url_for(place.url) if proxy is not None and is_far else place.url,
                folder=str(self._folder),
                seed=self._seed,
                visibility_s=VISIBILITY_S,
                clock_ahead_s=ahead_s if proxy is not None else 0.0,
                pause_s=0.004 / place.pace,
            )

    def _come_to_an_end(self, cast: Cast, place: Stage) -> None:
        """Let everybody finish in peace, and write down what is left when nothing can be claimed any more."""
        cast.replace_the_dead()
        parts = Part("", "operate", "sync", place.url, str(self._folder), self._seed, VISIBILITY_S)
        parts.no_more.touch()
        cast.wait("publish", "operate", "work", timeout_s=_ENOUGH_TIME_S)
        cast.stop()
        recorder = Recorder(parts.record, "observer")
        with connect(place.url) as transport:
            _drain(Recording(transport, recorder))
            recorder.drained(_left(transport))
        recorder.close()

    def _check(self, place: Stage, restarts: list[tuple[float, float]]) -> list[str]:
        self._history = read(self._folder / "record")
        began = time.monotonic()
        with connect(place.url) as transport:
            can = transport.capabilities
        found = check(
            self._history,
            fair=can.fair,
            finds_all=can.fair,
            late_settle=can.late_settle,
            slack_s=place.slack_s,
            overlook_s=place.overlook_s,
            restarts=restarts,
        )
        self._checked_in_s = time.monotonic() - began
        if self._published() < _WORTH_CHECKING:
            return [f"Only {self._published()} messages were published, which shows nothing.", *map(str, found)]
        return [str(violation) for violation in found]

    def _published(self) -> int:
        return sum(operation.kind == "publish" and operation.happened for operation in self._history)

    def figures(self) -> tuple[object, ...]:
        """Return what there was to check, for a table."""
        assert self._nemesis is not None
        claims = [operation for operation in self._history if operation.kind == "claim" and operation.token]
        settles = [operation for operation in self._history if operation.kind in ("ack", "nack", "reject")]
        return (
            self._backend,
            self._settings,
            self._processes,
            f"{len(self._history):,}",
            f"{self._published():,}",
            f"{sum(claim.attempt > 1 for claim in claims):,}",
            f"{sum(settle.result == 0 for settle in settles):,}",
            f"{sum(operation.returned is None for operation in self._history):,}",
            "; ".join(f"{name}: {count}" for name, count in sorted(self._nemesis.done.items())),
            f"{self._checked_in_s:.1f} s",
        )


@contextmanager
def _proxy(place: Stage, seed: int) -> Iterator[Proxy | None]:
    if not place.has_proxy:
        yield None
        return
    with Proxy(place.url, chaos=Chaos(seed)) as proxy:
        proxy.calm()
        yield proxy


def _drain(transport: Recording) -> None:
    """Settle all that comes, until nothing has come for long."""
    patience = time.monotonic() + PATIENCE_S
    while time.monotonic() < patience:
        try:
            if transport.capabilities.stats and transport.stats().groups == 0:
                return
            leases = transport.claim_many("observer", VISIBILITY_S, 10)
            if leases:
                patience = time.monotonic() + PATIENCE_S
                transport.ack_many(leases)
            else:
                transport.wait(0.1)
        except TransportUnavailable:
            time.sleep(0.1)


def _left(transport: Transport) -> dict[str, int]:
    """Say what each group still has, where it can be asked."""
    if not transport.capabilities.groups:
        return {}
    left: dict[str, int] = {}
    after: str | None = None
    while page := transport.groups(limit=1_000, after=after):
        left.update({group.group_id: group.messages for group in page})
        after = page[-1].group_id
    return left
