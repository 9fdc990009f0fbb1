"""How many round trips each operation takes on every backend, sync and async.

It opens what ``tests/backends.py`` opens, stand-in servers among them, whose speed says nothing and is not measured.
It runs as ``python -m benchmarks.roundtrips`` in a process of its own, where drivers may be wrapped: see ``meters.py``.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.folders import ROOT
from benchmarks.meters import METERS, Meter, Trips

__all__ = ["BATCH", "CORE", "EXPECTED", "OPERATIONS", "Counted", "count_on", "count_round_trips"]

EXPECTED = tuple(f"{backend}-{twin}" for backend in METERS for twin in ("sync", "async"))
BATCH = 10
VISIBILITY_S = 30.0
_AT_MOST_S = 300
CORE = ("publish", "claim", "ack", "nack")
"""Of the core five those that send something."""
OPERATIONS = (
    "publish",
    "claim",
    "claim, nothing there",
    "ack",
    "nack",
    "extend",
    "reject",
    f"publish_many, {BATCH}",
    f"claim_many, {BATCH}",
    f"extend_many, {BATCH}",
    f"ack_many, {BATCH}",
)


@dataclass(frozen=True)
class Counted:
    """What the operations of one transport took, or why that is not known."""

    name: str
    """The backend and the twin, as ``tests/backends.py`` names it."""
    trips: dict[str, Trips]
    """By operation."""
    unavailable: str = ""


def count_round_trips() -> list[Counted]:
    """Count on every backend, in a process of its own that ends with the servers it started."""
    command = [sys.executable, "-m", "benchmarks.roundtrips"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=_AT_MOST_S)
    except subprocess.TimeoutExpired:
        return _unavailable(f"counting did not end within {_AT_MOST_S} s")
    if done.returncode:
        return _unavailable(f"counting ended with: {_last_line(done.stderr)}")
    found = [
        Counted(each["name"], {name: Trips(*trips) for name, trips in each["trips"].items()}, each["unavailable"])
        for each in json.loads(done.stdout)
    ]
    names = {each.name for each in found}
    return found + [Counted(name, {}, "tests/backends.py does not open it") for name in EXPECTED if name not in names]


def _unavailable(reason: str) -> list[Counted]:
    return [Counted(name, {}, reason) for name in EXPECTED]


def count_on(backend: Any) -> Counted:
    """Count on one backend."""
    try:
        with (
            METERS[backend.name.split("-")[0]]() as meter,
            tempfile.TemporaryDirectory() as folder,
            backend.subject(Path(folder)) as subject,
        ):
            return Counted(backend.name, _trips(subject.open(), meter))
    except Exception as error:  # noqa: BLE001  # whatever keeps it from being opened is told
        traceback.print_exc()
        return Counted(backend.name, {}, f"{type(error).__name__}: {_last_line(str(error))}")


def _trips(queue: Any, meter: Meter) -> dict[str, Trips]:
    """Do everything twice, the second time with connections made and statements prepared."""
    for turn in range(2):
        found: dict[str, Trips] = {}

        def counting(operation: str, do: Callable[[], Any], found: dict[str, Trips] = found) -> Any:
            before = meter.read()
            result = do()
            found[operation] = meter.read().since(before)
            return result

        _operate(queue, counting, turn)
    return {name: found[name] for name in OPERATIONS if name in found}


def _operate(queue: Any, counting: Callable[[str, Callable[[], Any]], Any], turn: int) -> None:
    from harel import Event, Message, NotSupported

    def event() -> Event:
        return Event(kind="order.shipped", payload={"order": turn})

    def claim() -> Any:
        return queue.claim("counter", VISIBILITY_S)

    groups = [f"order-{turn}-{number}" for number in range(BATCH)]
    counting("publish", lambda: queue.publish(groups[0], event()))
    lease = counting("claim", claim)
    counting("extend", lambda: queue.extend(lease, VISIBILITY_S))
    counting("nack", lambda: queue.nack(lease))
    again = claim()
    counting("ack", lambda: queue.ack(again))
    counting("claim, nothing there", claim)
    messages = [Message(group, event(), 0) for group in groups]
    counting(f"publish_many, {BATCH}", lambda: queue.publish_many(messages))
    leases = counting(f"claim_many, {BATCH}", lambda: queue.claim_many("counter", VISIBILITY_S, BATCH))
    if len(leases) != BATCH:
        raise RuntimeError(f"{len(leases)} of {BATCH} groups were claimed at once.")
    counting(f"extend_many, {BATCH}", lambda: queue.extend_many(leases, VISIBILITY_S))
    counting(f"ack_many, {BATCH}", lambda: queue.ack_many(leases))
    queue.publish(groups[0], event())
    poison = claim()
    try:
        counting("reject", lambda: queue.reject(poison, "to be counted"))
    except NotSupported:
        queue.ack(poison)


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["nothing said"])[-1]


def main() -> None:
    # What a backend prints must not come between.
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        backends = importlib.import_module("tests.backends").BACKENDS
    except ImportError as error:
        traceback.print_exc()
        found = _unavailable(f"tests/backends.py cannot be imported: {error}")
    else:
        found = [count_on(backend) for backend in backends]
    listed = [
        {
            "name": each.name,
            "trips": {name: (trips.trips, trips.statements) for name, trips in each.trips.items()},
            "unavailable": each.unavailable,
        }
        for each in found
    ]
    print(json.dumps(listed), file=answer, flush=True)


if __name__ == "__main__":
    main()
