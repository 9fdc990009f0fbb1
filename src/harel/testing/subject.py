"""What the tests are run on: one queue, opened as often as a test likes, by a clock that the test sets."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from harel.engine.queue.contract import AsyncTransport, Transport

__all__ = ["Blocking", "ManualClock", "Subject"]


class ManualClock:
    """A clock that stands still but for a tick at each reading, and goes where it is told.

    Parameters
    ----------
    start : float
        Epoch seconds.
    tick : float
        Seconds that each reading adds, so that no two are equal; 0.0 for a clock that stands.
    """

    def __init__(self, start: float = 1_700_000_000.0, tick: float = 2.0**-12) -> None:
        self.now: float = start
        self.tick: float = tick

    def __call__(self) -> float:
        self.now += self.tick
        return self.now

    def advance(self, seconds: float) -> None:
        """Go forward, or back if negative."""
        self.now += seconds


class Subject:
    """One queue under test.

    Parameters
    ----------
    open : callable
        Opens a transport, sync or async, on the queue, the same queue each time. It takes the options
        that it is called with, ``clock`` among them.

    Attributes
    ----------
    clock : ManualClock
        What every transport of this subject goes by.
    """

    def __init__(self, open: Callable[..., Transport | AsyncTransport]) -> None:  # noqa: A002
        self.clock: ManualClock = ManualClock()
        self._open = open
        self._opened: list[Any] = []
        self._runner: asyncio.Runner | None = None

    def open(self, **options: Any) -> Transport:
        """Open the queue once more; it is closed with the subject. An async one comes as :class:`Blocking`."""
        made = self._open(**{"clock": self.clock, **options})
        transport = made if isinstance(made, Transport) and not _is_async(made) else Blocking(made, self.runner)
        self._opened.append(transport)
        return transport

    @property
    def runner(self) -> asyncio.Runner:
        """The event loop of the async transports."""
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner

    def close(self) -> None:
        """Close all that was opened."""
        for transport in reversed(self._opened):
            transport.close()
        self._opened.clear()
        if self._runner is not None:
            self._runner.close()
            self._runner = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Blocking:
    """An async transport with blocking methods, so that one test serves both twins.

    Parameters
    ----------
    transport : AsyncTransport
    runner : asyncio.Runner
        Its event loop.
    """

    def __init__(self, transport: Any, runner: asyncio.Runner) -> None:
        self.inner = transport
        self.runner = runner

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.inner, name)
        if not inspect.iscoroutinefunction(value):
            return value

        @functools.wraps(value)
        def blocking(*args: Any, **kwargs: Any) -> Any:
            return self.runner.run(value(*args, **kwargs))

        return blocking

    def __enter__(self) -> Self:
        self.runner.run(self.inner.__aenter__())
        return self

    def __exit__(self, *exit_args: object) -> None:
        self.runner.run(self.inner.__aexit__(*exit_args))


def _is_async(transport: Any) -> bool:
    return inspect.iscoroutinefunction(transport.claim)
