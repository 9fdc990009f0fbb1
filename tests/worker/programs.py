"""Workers that are processes of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAM = """
import logging, sys, harel
logging.basicConfig(level=logging.INFO, format="%(message)s")

def handle(event):
    print("handling", event.payload["n"], flush=True)
    sys.stdin.readline()

with harel.connect(sys.argv[1]) as queue:
    harel.Worker(queue, handle, concurrency=1, visibility=float(sys.argv[2]), drain_timeout=float(sys.argv[3]),
                 retry=harel.RetryPolicy(max_attempts=3)).run()
print("finished", flush=True)
"""

ELSEWHERE_PROGRAM = (
    PROGRAM.replace("import logging, sys, harel", "import logging, signal, sys, harel")
    .replace(
        "def handle(event):", "def handle(event):\n    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})"
    )
    .replace("with harel.connect", "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})\nwith harel.connect")
)
"""No thread but the handler's takes a SIGTERM."""

ASYNC_PROGRAM = """
import asyncio, logging, sys, harel
logging.basicConfig(level=logging.INFO, format="%(message)s")

async def handle(event):
    print("handling", event.payload["n"], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)

async def main():
    async with await harel.connect_async(sys.argv[1]) as queue:
        await harel.AsyncWorker(queue, handle, concurrency=1, visibility=float(sys.argv[2]),
                                drain_timeout=float(sys.argv[3])).run()
    print("finished", flush=True)

asyncio.run(main())
"""

BLOCKING_PROGRAM = """
import asyncio, sys, time, harel

async def handle(event):
    print("handling", event.payload["n"], flush=True)
    while not worker._stopped:
        time.sleep(0.001)
    print("told", flush=True)
    while True:
        time.sleep(0.001)

async def main():
    global worker
    async with await harel.connect_async(sys.argv[1]) as queue:
        worker = harel.AsyncWorker(queue, handle)
        await worker.run()

asyncio.run(main())
"""


@contextmanager
def program(text: str, url: str, visibility: float = 30.0, drain: float = 30.0, *around: str) -> Iterator[Any]:
    """Run a worker program; nothing of it is left afterwards."""
    command = [*around, sys.executable, "-c", text, url, str(visibility), str(drain)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as it:
        try:
            yield it
        finally:
            it.kill()


def said(process: Any) -> str:
    """Return the next line of a program's log."""
    return str(process.stderr.readline())


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
