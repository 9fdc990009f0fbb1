"""DBOS: a partitioned queue whose partitions are the groups, and its own workers."""

from __future__ import annotations

import asyncio
import importlib
import os
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.runtimes import Handle, Message, Runtime, group_name

__all__ = ["Dbos"]

NAME = "bench"
QUEUE = "orders"
WORKFLOW = "handle"
POLLING_S = 0.02
"""How often its queue looks for work; a second unless set."""
ENDING_S = 30
"""How long it waits for workflows that run, when it is to end."""


class Dbos(Runtime):
    """A message is a workflow on a queue with ``partition_concurrency=1``; its group is the partition's key.

    Messages are enqueued by ``DBOSClient``, as the documentation has it for who runs no workflows: many in one
    transaction (``enqueue_in_transaction``). Those of a group that tie on the time in milliseconds, as all of one
    transaction do, go by their ids, so each is given one that ascends. A worker is launched when there is work for it,
    since it takes work as soon as it is launched, and ends after it.

    Parameters
    ----------
    file : str
        The file of SQLite in the place, or empty where the place is a database's URL.
    """

    def __init__(self, file: str) -> None:
        self._file = file
        self._dbos: Any = importlib.import_module("dbos")
        self._url = ""
        self._client: Any = None
        self._engine: Any = None
        self._last = 0
        self._handle: Handle | None = None

        @self._dbos.DBOS.workflow(name=WORKFLOW)  # type: ignore[untyped-decorator]  # not in this environment
        async def handle(group: int, number: int) -> None:
            assert self._handle is not None
            rest = self._handle(group, number)
            if rest is not None:
                await rest

    async def open(self, place: str) -> None:
        self._url = f"sqlite:///{place}/{self._file}" if self._file else place

    async def prepare(self, groups: int) -> None:
        assert groups
        await asyncio.to_thread(self._dbos.DBOS.migrate, self._url)
        await asyncio.to_thread(self._register, None)

    async def publish(self, group: int, number: int) -> None:
        await self._publisher().enqueue_async(self._options(group), group, number)

    async def publish_many(self, messages: Sequence[Message]) -> None:
        await asyncio.to_thread(self._enqueue, messages)

    async def work(self, handle: Handle, enough: asyncio.Event, concurrency: int) -> None:
        self._handle = handle
        await asyncio.to_thread(self._launch, concurrency)
        self.up_at = time.perf_counter()
        try:
            await enough.wait()
        finally:
            await asyncio.to_thread(self._dbos.DBOS.destroy, workflow_completion_timeout_sec=ENDING_S)

    async def waiting(self) -> int | None:
        left = await self._publisher().list_queued_workflows_async(queue_name=QUEUE, load_input=False)
        return len(left)

    async def close(self) -> None:
        if self._client is not None:
            self._client.destroy()
            self._engine.dispose()

    def _publisher(self) -> Any:
        if self._client is None:
            alchemy: Any = importlib.import_module("sqlalchemy")
            url = self._url if self._file else alchemy.make_url(self._url).set(drivername="postgresql+psycopg")
            self._engine = alchemy.create_engine(url)
            self._client = self._dbos.DBOSClient(system_database_url=self._url, application_name=NAME)
        return self._client

    def _enqueue(self, messages: Sequence[Message]) -> None:
        publisher = self._publisher()
        with self._engine.begin() as transaction:
            for group, number in messages:
                publisher.enqueue_in_transaction(transaction, self._options(group), group, number)

    def _register(self, concurrency: int | None) -> None:
        self._publisher().register_queue(
            QUEUE, partition_concurrency=1, worker_concurrency=concurrency, polling_interval_sec=POLLING_S
        )

    def _launch(self, concurrency: int) -> None:
        self._register(concurrency)
        config = {
            "name": NAME,
            "system_database_url": self._url,
            "application_version": "1",
            "executor_id": f"{NAME}-{os.getpid()}",
            "log_level": "WARNING",
        }
        dbos = self._dbos.DBOS
        dbos(config=config)
        dbos.listen_queues([QUEUE])
        dbos.launch()

    def _options(self, group: int) -> dict[str, str]:
        self._last = max(self._last + 1, time.time_ns())
        return {
            "workflow_name": WORKFLOW,
            "queue_name": QUEUE,
            "queue_partition_key": group_name(group),
            "workflow_id": f"{self._last:020}",
        }
