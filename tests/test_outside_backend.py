"""A backend from outside runs the whole suite with a few lines, and one that breaks the contract is found out."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import harel
from harel.testing import conformance

SUITE = """
import pytest
from harel.testing import Subject
from harel.testing.conformance import *

@pytest.fixture
def subject(tmp_path):
    with Subject(opener()) as subject:
        yield subject
"""

# Nothing of harel's own in it but the contract: what the suite needs of a transport is what the contract names.
OUTSIDE = """
from harel import Transport
from harel.engine.queue.memory.shared import SharedMemoryQueue
from harel.engine.transport import InMemoryTransport

class Outside(Transport):
    def __init__(self, inner):
        self.__inner = inner

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    capabilities = property(lambda self: self.__inner.capabilities)

    def forward(name):
        return lambda self, *args, **options: getattr(self.__inner, name)(*args, **options)

    for name in list(vars(Transport)):
        if not name.startswith("_") and name != "capabilities":
            locals()[name] = forward(name)

def opener():
    queues = []

    def open_it(*, clock, fresh_first=True):
        queues[:] = queues or [SharedMemoryQueue(clock, fresh_first)]
        return Outside(InMemoryTransport(queues[0]))

    return open_it
"""

# It claims by name from the last to the first, so a test that counts on a fair one without saying so fails; a lease
# that ran out is lost, the time goes by whole seconds, and seqs grow within a group alone.
LIMITED = """
import math
from harel import Capabilities
from harel.engine.queue.face import SyncFace
from harel.engine.queue.memory.ops import MemoryOps
from harel.engine.queue.memory.shared import SharedMemoryQueue
from harel.engine.transport import InMemoryTransport

class Little(SharedMemoryQueue):
    def _first(self, floor):
        ready = [group for group in self._groups.values() if group.number <= self._clock.now]
        return max(ready, key=lambda group: group.group_id, default=super()._first(floor))

    def _held_by(self, lease):
        group = super()._held_by(lease)
        return group if group is not None and group.number > self._clock.now else None

    def _lease(self, group, *known):
        lease = super()._lease(group, *known)
        lease.seq += sum(map(ord, group.group_id)) * 2**64
        return lease

class LimitedOps(MemoryOps):
    capabilities = Capabilities(
        shared=False, atomic_batches=False, priority=False, fair=False, peek=False, groups=False, hold=False,
        purge=False, dead_letters=False, stats=False, watch=False, late_settle=False, queue_seq=False,
        max_event_bytes=200_000, max_visibility_s=43_200.0, time_step_s=1.0,
    )

    def claim(self, worker_id, visibility, limit, min_priority):
        return super().claim(worker_id, math.ceil(visibility), limit, min_priority)

    def nack(self, lease, delay):
        return super().nack(lease, math.ceil(delay))

    def extend(self, leases, visibility):
        return super().extend(leases, math.ceil(visibility))

    def wait(self, timeout):
        yield from ()
        return False

class Limited(InMemoryTransport):
    def __init__(self, queue):
        self._shared = queue
        SyncFace.__init__(self, LimitedOps(queue))

def opener():
    queues = []

    def open_it(*, clock, fresh_first=True):
        queues[:] = queues or [Little(clock, fresh_first)]
        return Limited(queues[0])

    return open_it
"""

BROKEN = """
from harel.engine.queue.memory.shared import SharedMemoryQueue
from harel.engine.transport import InMemoryTransport

class Unfenced(SharedMemoryQueue):
    def _held_by(self, lease):
        return self._groups.get(lease.group_id)

def opener():
    queues = []

    def open_it(*, clock, fresh_first=True):
        queues[:] = queues or [Unfenced(clock, fresh_first)]
        return InMemoryTransport(queues[0])

    return open_it
"""


def _run(folder: Path, backend: str, *options: str) -> tuple[int, str]:
    """Run the suite on a backend in a process and folder of its own; return the exit status and what it wrote."""
    (folder / "test_mine.py").write_text(SUITE + backend)
    source = str(Path(harel.__file__).parent.parent)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-rs",
            "-W",
            "error",
            "-p",
            "no:cacheprovider",
            *options,
            "test_mine.py",
        ],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": source, "PYTEST_ADDOPTS": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def _count(what: str, output: str) -> int:
    found = re.search(rf"(\d+) {what}", output)
    return int(found[1]) if found else 0


def test_a_backend_from_outside_passes_with_the_contracts_methods_alone(tmp_path: Path) -> None:
    status, output = _run(tmp_path, OUTSIDE)
    assert status == 0, output
    assert _count("passed", output) > len(conformance.__all__) / 2
    assert "is False" not in output


def test_a_backend_that_can_do_little_passes_and_the_rest_is_skipped_by_name(tmp_path: Path) -> None:
    status, output = _run(tmp_path, LIMITED)
    assert status == 0, output
    assert _count("passed", output) > len(conformance.__all__) / 2
    lacks = ("priority", "fair", "peek", "groups", "hold", "purge", "dead_letters", "stats", "watch", "late_settle")
    for name in lacks:
        assert f"capabilities.{name} is False" in output
    assert "is True" not in output


def test_a_backend_that_breaks_a_promise_fails_and_the_failure_says_how(tmp_path: Path) -> None:
    status, output = _run(tmp_path, BROKEN, "-k", "promise_5", "--maxfail=3")
    assert status == 1, output
    assert _count("failed", output) == 3
    assert "assert True is False" in output  # so assertions of the shipped modules are rewritten


def test_the_suite_is_every_area_and_each_area_has_its_file() -> None:
    files = {path.stem.removeprefix("test_") for path in (Path(__file__).parent / "conformance").glob("test_*.py")}
    assert set(conformance.AREAS) <= files
    shipped = {path.stem for path in Path(conformance.__file__).parent.glob("*.py")}
    assert shipped == {*conformance.AREAS, "__init__", "kit"}
    assert len(conformance.__all__) == len(set(conformance.__all__))
    assert all(callable(getattr(conformance, name)) for name in conformance.__all__)


@pytest.mark.parametrize("module", ["harel", "harel.testing"])
def test_pytest_is_needed_by_the_suite_alone(module: str) -> None:
    code = f"import sys; sys.modules['pytest'] = None; import {module}"
    subprocess.run([sys.executable, "-c", code], check=True)
