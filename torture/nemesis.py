"""What is done to the processes of a history, to their server and to what lies between, all chosen by a seed."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator

from torture.cast import Cast
from torture.proxy import Proxy
from torture.stage import Stage

__all__ = ["Nemesis"]


class Nemesis:
    """Does harm, one thing after another.

    Parameters
    ----------
    cast : Cast
        The processes.
    stage : Stage
        Where they play.
    proxy : Proxy or None
        What half of them go through.
    chance : random.Random
        What it chooses by.
    """

    def __init__(self, cast: Cast, stage: Stage, proxy: Proxy | None, chance: random.Random) -> None:
        self._cast = cast
        self._stage = stage
        self._proxy = proxy
        self._chance = chance
        self.done: Counter[str] = Counter()
        """How often each thing was done."""
        self.restarts: list[tuple[float, float]] = []
        """When the server was gone, epoch seconds."""
        self._harms = list(self._choices())

    def _choices(self) -> Iterator[tuple[str, Callable[[], None]]]:
        """Yield each harm as often as it weighs."""
        yield from [("SIGKILL of a process", self._kill)] * 8
        yield from [("SIGSTOP of a process for a while", self._freeze)] * 4
        yield from [("SIGTERM of a worker", self._terminate)] * 2
        if self._stage.restart is not None:
            yield from [("server killed and restarted", self._restart)] * 2
        if self._stage.fill_disk is not None:
            yield from [("disk full for a while", self._fill_disk)] * 2
        if self._proxy is not None:
            yield from [("connections cut, replies lost and delayed for a while", self._storm)] * 3
            yield ("all connections cut at once", self._proxy.cut_all)
            yield ("nothing gets through for a while", self._silence)

    def rage(self, until: float) -> None:
        """Do one thing after another, and replace who died, until this moment of the monotonic clock."""
        while time.monotonic() < until:
            time.sleep(self._chance.uniform(0.05, 0.5))
            self._cast.replace_the_dead()
            name, harm = self._chance.choice(self._harms)
            harm()
            self.done[name] += 1

    def _kill(self) -> None:
        self._cast.signal(self._cast.choose(self._chance), signal.SIGKILL)

    def _freeze(self) -> None:
        frozen = self._cast.choose(self._chance)
        self._cast.signal(frozen, signal.SIGSTOP)
        time.sleep(self._chance.choice((0.3, 1.5, 3.0)))
        self._cast.signal(frozen, signal.SIGCONT)

    def _terminate(self) -> None:
        self._cast.signal(self._cast.choose(self._chance, "runtime"), signal.SIGTERM)

    def _restart(self) -> None:
        assert self._stage.restart is not None
        began = time.time()
        self._stage.restart()
        self.restarts.append((began, time.time()))

    def _fill_disk(self) -> None:
        assert self._stage.fill_disk is not None
        with self._stage.fill_disk():
            time.sleep(self._chance.uniform(0.2, 1.0))

    def _storm(self) -> None:
        assert self._proxy is not None
        self._proxy.storm()
        time.sleep(self._chance.uniform(0.5, 2.0))
        self._proxy.calm()

    def _silence(self) -> None:
        assert self._proxy is not None
        self._proxy.freeze()
        time.sleep(self._chance.choice((0.5, 2.0)))
        self._proxy.thaw()
