"""Processes that fork while they have a queue open."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from harel import Transport
from tests.redis.conftest import Twin

HERE = Path(__file__).parents[2]

FORKING = """
import os, sys
from harel import Event
from harel.engine.transport import RedisTransport

queue = RedisTransport.from_url(sys.argv[1], prefix=sys.argv[2], poll_interval=600.0)
queue.publish("g", Event("parents"))
assert queue.wait(0.0) and queue.claim("parent", 600.0)
assert not queue.wait(0.01)
child = os.fork()
if child == 0:
    for _ in range(20):
        queue.publish("childs", Event("k"))
    assert queue.stats().messages >= 21
    os._exit(0)
for _ in range(20):
    queue.publish("parents", Event("k"))
assert os.waitpid(child, 0)[1] == 0
assert queue.stats().messages == 41
queue.close()
"""


def test_a_fork_and_its_parent_do_not_share_a_connection(twin: Twin, queue: Transport) -> None:
    if twin.is_async:
        return
    done = subprocess.run(
        [sys.executable, "-c", FORKING, twin.url, twin.prefix], cwd=HERE, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert queue.stats().messages == 41
