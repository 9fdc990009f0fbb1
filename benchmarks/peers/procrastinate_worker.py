"""procrastinate: a lock for each group, and its own async worker."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from benchmarks.runtimes import Handle, Message, Runtime, group_name

__all__ = ["Procrastinate"]

CONNECTIONS = 12
"""One for each of the jobs that run at once, one that listens, and one to spare."""
POLLING_S = 0.02
"""How long a worker waits that found every lock taken, unless a job is deferred meanwhile; 5 s unless set."""


class Procrastinate(Runtime):
    """Jobs of a group have its ``lock``, which by the documentation runs them one by one, in the order of deferring.

    The worker is as it comes, but for its concurrency, for how soon it looks again, and for ``delete_jobs``: jobs that
    succeeded are deleted, as the documentation has it for a table that is not to grow. Many are deferred in one call,
    each with its own lock.
    """

    def __init__(self) -> None:
        self._procrastinate: Any = importlib.import_module("procrastinate")
        self._app: Any = None
        self._task: Any = None
        self._handle: Handle | None = None

    async def open(self, place: str) -> None:
        connector = self._procrastinate.PsycopgConnector(conninfo=place, min_size=1, max_size=CONNECTIONS)
        self._app = self._procrastinate.App(connector=connector)

        @self._app.task(name="handle")  # type: ignore[untyped-decorator]  # the library is not in this environment
        async def handle(group: int, number: int) -> None:
            assert self._handle is not None
            rest = self._handle(group, number)
            if rest is not None:
                await rest

        self._task = handle
        await self._app.open_async()

    async def prepare(self, groups: int) -> None:
        assert groups
        if not await self._app.check_connection_async():
            await self._app.schema_manager.apply_schema_async()

    async def publish(self, group: int, number: int) -> None:
        await self._task.configure(lock=group_name(group)).defer_async(group=group, number=number)

    async def publish_many(self, messages: Sequence[Message]) -> None:
        jobs = [
            self._task.configure(lock=group_name(group)).make_new_job(group=group, number=number)
            for group, number in messages
        ]
        await self._app.job_manager.batch_defer_jobs_async(jobs=jobs)

    async def work(self, handle: Handle, enough: asyncio.Event, concurrency: int) -> None:
        self._handle = handle
        worker = asyncio.create_task(
            self._app.run_worker_async(
                concurrency=concurrency,
                fetch_job_polling_interval=POLLING_S,
                delete_jobs="successful",
                install_signal_handlers=False,
            )
        )
        waiter = asyncio.create_task(enough.wait())
        await asyncio.wait({worker, waiter}, return_when=asyncio.FIRST_COMPLETED)
        waiter.cancel()
        if worker.done() and not enough.is_set():
            worker.result()
            raise RuntimeError("The worker ended by itself before there was enough.")
        worker.cancel()  # it lets the jobs that it runs end
        with suppress(asyncio.CancelledError):
            await worker

    async def waiting(self) -> int | None:
        jobs = await self._app.job_manager.list_jobs_async()
        return sum(job.status in ("todo", "doing") for job in jobs)

    async def close(self) -> None:
        await self._app.close_async()
