"""The process of one contender: reads a JSON object a line, does it, answers with one.

It runs in the contender's own environment, as ``python -m benchmarks.worker KEY`` from the root of the repository.
"""

from __future__ import annotations

import cProfile
import json
import os
import pstats
import resource
import shutil
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.contenders import CONTENDERS, Contender, Queue
from benchmarks.workloads import WORKLOADS, fill, messages_for

__all__ = ["LEAST_PUBLISHED"]

LEAST_PUBLISHED = 500
"""A round publishes at least so many: fewer take too short a time to be measured."""


class Worker:
    """Carries out what it is told; the names of its methods are the commands."""

    def __init__(self, contender: Contender) -> None:
        self._contender = contender
        self._queue: Queue | None = None

    @property
    def queue(self) -> Queue:
        assert self._queue is not None, "tell it to open first"
        return self._queue

    def open(self, folder: str, scratch: str, groups: int, messages: int) -> dict[str, Any]:
        """Open a queue with so many groups and messages.

        One on disk is filled in ``scratch``, closed, copied and opened again: a peer without batches would spend
        minutes waiting for the disk, and all of them begin with a file that is settled.
        """
        Path(folder).mkdir(parents=True)
        if self._contender.on_disk and groups:
            first = Path(scratch)
            first.mkdir(parents=True)
            self._fill_and_close(first, groups, messages)
            shutil.copytree(first, folder, dirs_exist_ok=True)
            shutil.rmtree(first)
        self._queue = self._contender.open(Path(folder))
        if not self._contender.on_disk and groups:
            fill(self.queue, groups, messages, batches=self._contender.batches)
        return {}

    def _fill_and_close(self, folder: Path, groups: int, messages: int) -> None:
        queue = self._contender.open(folder)
        fill(queue, groups, messages, batches=self._contender.batches)
        queue.close()

    def round(self, workload: str, count: int) -> dict[str, Any]:
        """Do a round; the marks let whoever watches the system calls tell its halves apart."""
        chosen = WORKLOADS[workload]
        _mark()
        taken_s, groups = chosen.take(self.queue, count)
        _mark()
        messages = messages_for(self.queue, groups, max(count, LEAST_PUBLISHED))
        _mark()
        given_s = chosen.give(self.queue, messages)
        _mark()
        return {"claim+ack": count / taken_s, "publish": len(messages) / given_s, "taken_s": taken_s}

    def profile(self, workload: str, count: int) -> dict[str, Any]:
        """Do a round under cProfile; return the functions that had the most time of their own."""
        chosen = WORKLOADS[workload]
        self.queue.profiler = taking = cProfile.Profile()
        _, groups = chosen.take(self.queue, count)
        messages = messages_for(self.queue, groups, count)
        self.queue.profiler = giving = cProfile.Profile()
        chosen.give(self.queue, messages)
        self.queue.profiler = None
        return {"claim+ack": _ranked(taking), "publish": _ranked(giving)}

    def grow(self, groups: int, messages: int) -> dict[str, Any]:
        """Fill an open queue; return by how many bytes the process grew."""
        before = _resident_bytes()
        fill(self.queue, groups, messages, batches=self._contender.batches)
        return {"bytes": _resident_bytes() - before}

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


def _ranked(profile: cProfile.Profile) -> list[dict[str, Any]]:
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


def main() -> None:
    # What a contender prints must not come between the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    (contender,) = (each for each in CONTENDERS if each.key == sys.argv[1])
    worker = Worker(contender)
    for line in sys.stdin:
        arguments = json.loads(line)
        command: Callable[..., dict[str, Any]] = getattr(worker, arguments.pop("do"))
        try:
            answer = command(**arguments)
        except Exception:  # noqa: BLE001  # told to the parent, which ends the run
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
