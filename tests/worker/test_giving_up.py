"""What a worker asks for when it gives a message up, and in which order."""

from __future__ import annotations

from harel import AsyncWorker, Event, RetryPolicy
from tests.worker.driving import Watched


async def test_a_group_is_held_before_its_message_is_given_back() -> None:
    """Or another worker could claim it in between, and handle what was to wait for a person."""

    async def handle(event: Event) -> None:
        raise RuntimeError("no luck")

    policy = RetryPolicy(on_exhausted="hold", give_up_on=(RuntimeError,))
    async with Watched() as queue:
        await queue.publish("a", Event("placed"))
        assert await AsyncWorker(queue, handle, retry=policy).step()
        assert [name for name, _ in queue.calls] == ["claim", "extend", "hold", "nack"]
        assert (await queue.groups())[0].state == "held"
