"""Answers that break off, as their drivers tell of it: what was done has been done, and is never called not sent."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from harel import Event, connect, connect_async
from tests.backends import URLS
from torture.proxy import Harm, Proxy

pytestmark = pytest.mark.timeout(300)

CUTS = [("before", True), ("before", False), ("half", True), ("half", False)]


@pytest.mark.parametrize(("how", "with_reset"), CUTS, ids=lambda value: str(value))
@pytest.mark.parametrize("flavour", ["sync", "async"])
def test_a_give_back_and_a_claim_whose_answer_is_cut_are_what_they_were(
    flavour: str, how: Any, with_reset: bool, tmp_path: Path
) -> None:
    url = URLS["sqs"](tmp_path)
    with Proxy(url) as proxy:

        async def play() -> None:
            async with await connect_async(proxy.url_for(url)) as queue:
                await _give_back(queue, lambda: proxy.do(Harm("reply", 1, how, with_reset=with_reset)))

        if flavour == "async":
            asyncio.run(play())
            return
        with connect(proxy.url_for(url)) as queue:
            asyncio.run(_give_back(_Awaitable(queue), lambda: proxy.do(Harm("reply", 1, how, with_reset=with_reset))))


async def _give_back(queue: Any, cut: Callable[[], None]) -> None:
    await queue.publish("g", Event("k", id="m"))
    cut()
    lease = await queue.claim("w", 30.0)
    assert lease is not None
    assert lease.event.id == "m"
    cut()
    assert await queue.nack(lease) is True
    assert (await queue.claim("w", 30.0)).event.id == "m"


class _Awaitable:
    """A sync transport, whose methods are awaited."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def call(*args: Any) -> Any:
            return getattr(self._queue, name)(*args)

        return call
