"""A transport that fails to open leaves nothing open: nobody has it in hand to close it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import harel
from harel import config
from harel.engine.queue.op import Op
from tests.backends import URLS


def _fails_half_way(transport: Any) -> Any:
    """Have the server go away when everything is connected and made ready."""
    prepare = transport._ops.prepare

    def half_way() -> Op[None]:
        yield from prepare()
        raise harel.TransportUnavailable("The server went away.")

    transport._ops.prepare = half_way
    return transport


@pytest.mark.parametrize("queue", URLS)
async def test_connect_async_closes_what_it_cannot_open(
    queue: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    make = config._make

    def make_that_fails(*args: Any, **kwargs: Any) -> Any:
        made.append(_fails_half_way(make(*args, **kwargs)))
        return made[0]

    monkeypatch.setattr(config, "_make", make_that_fails)
    before = asyncio.all_tasks()
    with pytest.raises(harel.TransportUnavailable):
        await harel.connect_async(URLS[queue](tmp_path))
    assert asyncio.all_tasks() <= before
    assert repr(made[0]).endswith(", closed>")


async def test_a_block_that_is_not_entered_closes_its_transport(tmp_path: Path) -> None:
    transport = _fails_half_way(await harel.connect_async(f"sqlite:///{tmp_path}/queue.db"))
    transport._opened = False
    with pytest.raises(harel.TransportUnavailable):
        async with transport:
            pass
    assert repr(transport).endswith(", closed>")
