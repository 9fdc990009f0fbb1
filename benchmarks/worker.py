"""The process of one contender: reads a JSON object a line, does it, answers with one.

It runs in the contender's own environment, as ``python -m benchmarks.worker KEY`` from the root of the repository.
"""

from __future__ import annotations

import cProfile
import json
import os
import pstats
import resource
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.contenders import CONTENDERS, Contender, Queue
from benchmarks.flood import flood
from benchmarks.workloads import WORKLOADS, claim_times, drain, fill, messages_for

__all__ = ["LEAST_PUBLISHED", "ranked", "serve"]

LEAST_PUBLISHED = 500
"""A round publishes at least so many: fewer take too short a time to be measured."""


class Worker:
    """Carries out what it is told; the names of its methods are the commands."""

    def __init__(self, contender: Contender) -> None:
        self._contender = contender
        self._queue: Queue | None = None
        self._taken: list[str] = []

    @property
    def queue(self) -> Queue:
        assert self._queue is not None, "tell it to open first"
        return self._queue

    def fill(self, place: str, groups: int, messages: int, urgent: int = 0) -> dict[str, Any]:
        """Fill a queue with so many groups and messages, and close it."""
        self.open(place)
        self._fill(groups, messages, urgent)
        return self.close()

    def open(self, place: str) -> dict[str, Any]:
        """Open the queue that lies there."""
        self._queue = self._contender.open(place)
        return {}

    def round(self, workload: str, count: int) -> dict[str, Any]:
        """Do a round; return by figure the seconds that a message took, and those of a processor.

        The marks let whoever watches the system calls tell its halves apart.
        """
        chosen = WORKLOADS[workload]
        publishes = "publish" in chosen.figures
        _mark()
        taken, groups = chosen.take(self.queue, count)
        _mark()
        messages = messages_for(self.queue, groups, max(count, LEAST_PUBLISHED if publishes else 0))
        _mark()
        given = chosen.give(self.queue, messages)
        _mark()
        halves = {chosen.figures[-1]: (taken, count)} | ({"publish": (given, len(messages))} if publishes else {})
        return {
            figure: {"seconds": half.seconds / size, "client_s": half.client_s / size}
            for figure, (half, size) in halves.items()
        }

    def take(self, workload: str, count: int) -> dict[str, Any]:
        """Do the first half of a round."""
        self._taken = WORKLOADS[workload].take(self.queue, count)[1]
        return {}

    def give(self, workload: str, count: int, groups: int = 0) -> dict[str, Any]:
        """Do the second half, to the groups taken, or to the first so many that ``fill`` made."""
        names = [f"order-{number:07}" for number in range(groups)] or self._taken
        WORKLOADS[workload].give(self.queue, messages_for(self.queue, names, count))
        return {}

    def drain(self, batch: int) -> dict[str, Any]:
        """Claim and ack until there is nothing; return how many messages that were, and the seconds."""
        return drain(self.queue, batch)

    def flood(self, url: str, **how: Any) -> dict[str, Any]:
        """Serve old groups while new ones come; see ``flood.py``."""
        return flood(url, **how)

    def load(self, count: int) -> dict[str, Any]:
        """Claim, settle and put back; return the seconds that each claim took."""
        seconds, groups = claim_times(self.queue, count, 0)
        self.queue.publish_many(messages_for(self.queue, groups, count))
        return {"seconds": seconds}

    def profile(self, workload: str, count: int) -> dict[str, Any]:
        """Do a round under cProfile; return the functions that had the most time of their own."""
        chosen = WORKLOADS[workload]
        self.queue.profiler = taking = cProfile.Profile()
        _, groups = chosen.take(self.queue, count)
        messages = messages_for(self.queue, groups, count)
        self.queue.profiler = giving = cProfile.Profile()
        chosen.give(self.queue, messages)
        self.queue.profiler = None
        return {"claim+ack": ranked(taking), "publish": ranked(giving)}

    def grow(self, groups: int, messages: int, urgent: int = 0) -> dict[str, Any]:
        """Fill an open queue; return by how many bytes the process grew."""
        before = _resident_bytes()
        self._fill(groups, messages, urgent)
        return {"bytes": _resident_bytes() - before}

    def _fill(self, groups: int, messages: int, urgent: int = 0) -> None:
        fill(self.queue, groups, messages, urgent=urgent, batches=self._contender.batches)

    def count_groups(self) -> dict[str, Any]:
        return {"groups": self.queue.count_groups()}

    def close(self) -> dict[str, Any]:
        self.queue.close()
        return {}


def _mark() -> None:
    os.getppid()


def _resident_bytes() -> int:
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def ranked(profile: cProfile.Profile) -> list[dict[str, Any]]:
    """Return the functions, those first that had the most time of their own."""
    stats: dict[Any, tuple[int, int, float, float, Any]] = vars(pstats.Stats(profile))["stats"]
    total = sum(own for _, _, own, _, _ in stats.values())
    ranked = sorted(stats.items(), key=lambda item: -item[1][2])
    return [
        {
            "file": "" if file == "~" else f"{Path(file).parent.name}/{Path(file).name}",
            "function": name if file == "~" else f"{name} (line {line})",
            "calls": calls,
            "share": own / total,
            "with_callees": whole / total,
        }
        for (file, line, name), (_, calls, own, whole, _) in ranked
    ]


def serve(commands: object) -> None:
    """Carry out commands, the methods of this object, until there are no more."""
    # What a contender prints must not come between the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        arguments = json.loads(line)
        command: Callable[..., dict[str, Any]] = getattr(commands, arguments.pop("do"))
        try:
            answer = command(**arguments)
        except Exception:  # noqa: BLE001  # told to the parent, which ends the run
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), file=answers, flush=True)


def main() -> None:
    (contender,) = (each for each in CONTENDERS if each.key == sys.argv[1])
    serve(Worker(contender))


if __name__ == "__main__":
    main()
