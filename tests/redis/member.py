"""One process of a history on Redis: the parts of ``tests.history.member``, on this backend.

Run as a program with a :class:`~tests.history.member.Part` in JSON as its argument.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from harel.engine.aio_transport import AsyncRedisTransport
from harel.engine.queue.op import arun, run
from harel.engine.transport import RedisTransport
from harel.testing.history import Recorder, Recording
from tests.history.member import STRANDS, Fate, Mortal, Part, Steps, publish, work
from tests.servers.redis import prefix_in, redis_url


class MortalSync(RedisTransport):
    """Dies before its nth statement goes out, or when it went out and its answer is not read."""

    fate: Fate

    def _send(self, request: Any) -> Any:
        self.fate.step("statement")
        reply = super()._send(request)
        self.fate.step("statement")
        return reply


class MortalAsync(AsyncRedisTransport):
    """The same for asyncio."""

    fate: Fate

    async def _send(self, request: Any) -> Any:
        self.fate.step("statement")
        reply = await super()._send(request)
        self.fate.step("statement")
        return reply


def main(part: Part) -> None:
    """Do the part."""
    MortalSync.fate = MortalAsync.fate = fate = Fate(part.dies_at)
    recorder = Recorder(part.record, f"{part.name}/{os.getpid()}")
    strand_of = publish if part.role == "publish" else work
    if part.flavour == "sync":
        with (
            MortalSync.from_url(redis_url(), prefix=prefix_in(Path(part.folder))) as transport,
            ThreadPoolExecutor(STRANDS) as threads,
        ):
            recording = Recording(Mortal(transport, fate), recorder)
            list(threads.map(lambda strand: run(strand_of(part, recording, strand), _call), range(STRANDS)))
    else:
        asyncio.run(_main_async(part, strand_of, fate, recorder))
    recorder.close()


async def _main_async(part: Part, strand_of: Callable[..., Steps], fate: Fate, recorder: Recorder) -> None:
    async with MortalAsync.from_url(redis_url(), prefix=prefix_in(Path(part.folder))) as transport:
        recording = Recording(Mortal(transport, fate), recorder)
        await asyncio.gather(*(arun(strand_of(part, recording, strand), _call) for strand in range(STRANDS)))


def _call(request: Callable[[], Any]) -> Any:
    return request()


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=Part))
