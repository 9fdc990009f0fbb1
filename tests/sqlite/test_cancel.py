"""Tasks that share the async transport: a transaction belongs to one, and none is left open by a cancelled one."""

from __future__ import annotations

import asyncio
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from harel import Event, Message
from tests.sqlite.drivers import Driver

EVENT = Event("noted", {"n": 1})


class Gate:
    """Holds a statement that begins with some words until it is let go."""

    def __init__(self, driver: Driver, monkeypatch: pytest.MonkeyPatch, words: str) -> None:
        self.reached = threading.Event()
        self.go = threading.Event()
        execute = driver.file._execute

        def held(file: Any, connection: Any, statement: str, *rest: Any) -> Any:
            if statement.startswith(words):
                self.reached.set()
                assert self.go.wait(30)
            return execute(file, connection, statement, *rest)

        monkeypatch.setattr(driver.file, "_execute", held)

    async def wait(self) -> None:
        assert await asyncio.to_thread(self.reached.wait, 30)


async def test_a_task_cancelled_inside_a_transaction_finds_it_rolled_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driver: Driver
) -> None:
    async with driver.async_transport(tmp_path / "queue.db") as queue:
        gate = Gate(driver, monkeypatch, "INSERT INTO transport_groups")
        publishing = asyncio.create_task(queue.publish("a", EVENT))
        await gate.wait()
        publishing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await publishing
        gate.go.set()
        await queue.publish("b", EVENT)
        assert [group.group_id for group in await queue.groups()] == ["b"]
        assert (await queue.stats()).messages == 1


async def test_a_claim_cancelled_before_its_commit_leases_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driver: Driver
) -> None:
    async with driver.async_transport(tmp_path / "queue.db") as queue:
        await queue.publish("a", EVENT)
        gate = Gate(driver, monkeypatch, "UPDATE transport_groups AS g")
        claiming = asyncio.create_task(queue.claim("w", 30.0))
        await gate.wait()
        claiming.cancel()
        with pytest.raises(asyncio.CancelledError):
            await claiming
        gate.go.set()
        lease = await queue.claim("w", 30.0)
        assert lease is not None
        assert lease.attempt == 1


async def test_a_task_cancelled_while_it_waits_for_the_file_lets_the_next_one_through(
    tmp_path: Path, driver: Driver
) -> None:
    path = tmp_path / "queue.db"
    async with driver.async_transport(path, busy_timeout=60.0) as queue:
        with closing(driver.connect(path)) as other:
            other.execute("BEGIN IMMEDIATE")
            first = asyncio.create_task(queue.publish("a", EVENT))
            second = asyncio.create_task(queue.publish("b", EVENT))
            await asyncio.sleep(0)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            other.execute("COMMIT")
            await second
        assert [group.group_id for group in await queue.groups()] == ["b"]


async def test_many_tasks_share_a_transport_and_each_transaction_is_whole(tmp_path: Path, driver: Driver) -> None:
    async with driver.async_transport(tmp_path / "queue.db") as queue:

        async def work(name: str) -> None:
            for n in range(10):
                await queue.publish_many([Message(f"{name}-{n}-{k}", EVENT, 0) for k in range(3)])
                leases = await queue.claim_many(name, 30.0, 3)
                assert all(await queue.ack_many(leases))

        tasks = [asyncio.create_task(work(str(n))) for n in range(20)]
        cancelled = asyncio.create_task(work("cancelled"))
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.gather(*tasks)
        assert all(group.group_id.startswith("cancelled-") for group in await queue.groups())


async def test_reading_goes_on_while_a_write_is_held_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driver: Driver
) -> None:
    async with driver.async_transport(tmp_path / "queue.db") as queue:
        gate = Gate(driver, monkeypatch, "INSERT INTO transport_groups")
        publishing = asyncio.create_task(queue.publish("a", EVENT))
        await gate.wait()
        assert (await queue.stats()).messages == 0
        gate.go.set()
        await publishing
        assert (await queue.stats()).messages == 1


async def test_closing_ends_after_what_runs_and_leaves_no_thread(tmp_path: Path, driver: Driver) -> None:
    before = set(threading.enumerate())
    queue = driver.async_transport(tmp_path / "queue.db")
    await queue.publish("a", EVENT)
    publishing = [asyncio.create_task(queue.publish("a", EVENT)) for _ in range(3)]
    await asyncio.sleep(0)
    await queue.close()
    await asyncio.gather(*publishing)
    for thread in set(threading.enumerate()) - before:
        thread.join(30)
        assert not thread.is_alive()
