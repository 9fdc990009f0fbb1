"""What the tests of the SQS backend share: both twins, on a queue of the test's own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from harel import Transport
from harel.engine.aio_transport import AsyncSqsTransport
from harel.engine.transport import SqsTransport
from harel.testing import Blocking
from tests.servers.sqs import REGION, administer, async_session, client, queue_in, sqs_url, sync_session


class Twin:
    """Opens transports of one flavour; the async ones come as :class:`Blocking`."""

    def __init__(self, folder: Path, *, is_async: bool) -> None:
        self.is_async = is_async
        self.queue = queue_in(folder)
        self.dead = self.queue.replace(".fifo", "-dead.fifo")
        self.kind: Any = AsyncSqsTransport if is_async else SqsTransport
        self.runner = asyncio.Runner()
        self._opened: list[Any] = []

    def open(self, name: str | None = None, session: Any = None, **options: Any) -> Transport:
        """Open by name; the machine's clock says what time it is."""
        session = session or (async_session() if self.is_async else sync_session())
        made = self.kind.create(name or self.queue, session, **{"endpoint_url": sqs_url(), "region": REGION, **options})
        return self.kept(made)

    def kept(self, made: Any) -> Transport:
        """Close it with the twin; open it now."""
        transport: Any = made
        if self.is_async:
            transport = Blocking(made, self.runner)
            self._opened.append(transport)
            transport.open()
        else:
            self._opened.append(made)
        return cast("Transport", transport)

    def goes_wrong(self, action: str, how: str, queue: str | None = None, **more: Any) -> None:
        """Make the next call of this action go wrong; see :class:`tests.servers.sqs_server.Rule`."""
        administer(queue or self.queue, rule={"action": action, "how": how, **more})

    def calls(self, queue: str | None = None) -> list[str]:
        """Return the calls that were made since this was last asked."""
        return administer(queue or self.queue, forget=True)

    def close(self) -> None:
        for transport in self._opened:
            transport.close()
        self.runner.close()


@pytest.fixture(params=[False, True], ids=["sqs-sync", "sqs-async"])
def twin(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Twin]:
    """Either flavour."""
    sqs_url()
    twin = Twin(tmp_path, is_async=request.param)
    yield twin
    twin.close()


@pytest.fixture
def queue(twin: Twin) -> Transport:
    """A transport on the twin's queue."""
    return twin.open()


class Onlooker:
    """Looks at queues with a plain client of boto3's."""

    def __init__(self) -> None:
        self.client = client()

    def messages_in(self, name: str, most: int = 10) -> list[dict[str, Any]]:
        """Take up to ten messages off a queue."""
        url = self.client.get_queue_url(QueueName=name)["QueueUrl"]
        reply = self.client.receive_message(
            QueueUrl=url, MaxNumberOfMessages=most, MessageSystemAttributeNames=["All"], MessageAttributeNames=["All"]
        )
        found: list[dict[str, Any]] = reply.get("Messages", [])
        return found

    def attributes_of(self, name: str) -> dict[str, Any]:
        url = self.client.get_queue_url(QueueName=name)["QueueUrl"]
        attributes: dict[str, Any] = self.client.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])[
            "Attributes"
        ]
        if "RedrivePolicy" in attributes:
            attributes["RedrivePolicy"] = json.loads(attributes["RedrivePolicy"])
        return attributes


@pytest.fixture
def onlooker() -> Iterator[Onlooker]:
    onlooker = Onlooker()
    yield onlooker
    onlooker.client.close()
