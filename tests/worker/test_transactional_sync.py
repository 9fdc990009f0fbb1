"""``transactional=True`` in sync code: a message is settled inside the transaction that its handler writes in."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from harel import Event, LeaseLost, RetryPolicy, Worker
from harel.engine.queue.contract import Capabilities, Lease
from harel.engine.transport import InMemoryTransport
from harel.testing import ManualClock


class Bound:
    """What is done in a transaction of :class:`Transacting`."""

    def __init__(self, queue: Transacting) -> None:
        self._queue = queue

    def ack(self, lease: Lease) -> None:
        if not self._queue.ack(lease):
            raise LeaseLost("it is another's")


class Transacting(InMemoryTransport):
    """A queue in memory that notes what is done to it between the beginning and the end of a transaction."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.log: list[str] = []
        super().__init__(clock=self.clock)

    @property
    def capabilities(self) -> Capabilities:
        return msgspec.structs.replace(super().capabilities, bind=True)

    def bind(self, connection: Any) -> Any:
        assert connection is self.log
        return Bound(self)

    def ack(self, lease: Lease) -> bool:
        self.log.append("ack")
        return super().ack(lease)

    def ack_many(self, leases: Any) -> list[bool]:
        self.log.append("ack_many")
        return super().ack_many(leases)

    @contextmanager
    def transaction(self) -> Iterator[list[str]]:
        self.log.append("begin")
        try:
            yield self.log
        except BaseException:
            self.log.append("rollback")
            raise
        self.log.append("commit")


@pytest.fixture
def queue() -> Iterator[Transacting]:
    with Transacting() as queue:
        queue.publish("a", Event("placed"))
        yield queue


def test_it_is_settled_before_the_commit_and_not_again(queue: Transacting) -> None:
    def handle(event: Event, context: Any) -> None:
        context.connection.append("handled")

    assert Worker(queue, handle, transactional=True).step()
    assert queue.log == ["begin", "handled", "ack", "commit"]
    assert queue.stats().messages == 0


def test_a_lost_lease_rolls_back_and_is_said(queue: Transacting, caplog: pytest.LogCaptureFixture) -> None:
    others: list[Lease | None] = []

    def handle(event: Event, context: Any) -> None:
        queue.clock.advance(31.0)
        others.append(queue.claim("other", 1_000.0))

    with caplog.at_level(logging.WARNING, "harel.worker"):
        assert Worker(queue, handle, transactional=True).step()
    assert queue.log == ["begin", "ack", "rollback"]
    assert len([record for record in caplog.records if "was lost" in record.getMessage()]) == 1
    (other,) = others
    assert other is not None
    assert queue.ack(other)


def test_a_handler_that_fails_settles_nothing(queue: Transacting) -> None:
    def handle(event: Event, context: Any) -> None:
        raise RuntimeError("no luck")

    assert Worker(queue, handle, transactional=True, retry=RetryPolicy(backoff=3.0)).step()
    assert queue.log == ["begin", "rollback"]
    assert queue.groups()[0].state == "parked"
