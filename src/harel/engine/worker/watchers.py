"""A worker's observers, called in such a way that none of them can harm it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from types import TracebackType

from harel.engine.queue.contract import Lease
from harel.engine.worker.job import Job
from harel.engine.worker.log import WorkerLog
from harel.engine.worker.observer import Observer
from harel.events import Event

__all__ = ["Watchers"]


class Watchers:
    """All observers of a worker. What one of them raises is logged, and goes no further.

    Parameters
    ----------
    observers : sequence of Observer
    log : WorkerLog
    """

    def __init__(self, observers: Sequence[Observer], log: WorkerLog) -> None:
        self._observers = tuple(observers)
        self._log = log

    def __bool__(self) -> bool:
        return bool(self._observers)

    def began(self, job: Job) -> None:
        self._each(lambda observer: observer.began(job.lease))

    def settled(self, job: Job) -> None:
        verdict = job.verdict
        if verdict is not None:
            self._each(lambda observer: observer.settled(job.lease, verdict, job.handled_s, job.error))

    def lost(self, job: Job) -> None:
        self._each(lambda observer: observer.lost(job.lease, job.handled_s))

    def unreachable(self, error: Exception) -> None:
        self._each(lambda observer: observer.unreachable(error))

    def reachable(self) -> None:
        self._each(lambda observer: observer.reachable())

    def handling(self, lease: Lease, event: Event) -> AbstractContextManager[object]:
        """Return what a handler's call is put inside of: what each observer gives for it."""
        return _Around([partial(observer.handling, lease, event) for observer in self._observers], self._failed)

    def _each(self, call: Callable[[Observer], None]) -> None:
        for observer in self._observers:
            try:
                call(observer)
            except Exception as error:  # noqa: BLE001 - an observer's bug is no reason to stop working
                self._failed(error)

    def _failed(self, error: Exception) -> None:
        self._log(logging.ERROR, "An observer failed; the worker goes on.", error=error)


class _Around(AbstractContextManager[None]):
    """Enters all that it is given and leaves what it entered, whatever they raise or swallow."""

    def __init__(
        self, makers: Sequence[Callable[[], AbstractContextManager[object]]], failed: Callable[[Exception], None]
    ) -> None:
        self._makers = makers
        self._failed = failed
        self._entered: list[AbstractContextManager[object]] = []

    def __enter__(self) -> None:
        for make in self._makers:
            try:
                manager = make()
                manager.__enter__()
            except Exception as error:  # noqa: BLE001 - an observer's bug is no reason not to handle
                self._failed(error)
            else:
                self._entered.append(manager)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for manager in reversed(self._entered):
            try:
                manager.__exit__(kind, error, trace)
            except Exception as another:  # noqa: BLE001
                if another is not error:  # one that raises again what it was given
                    self._failed(another)
