"""The core five, harmed at every message; ``make torture PARTS=crash_points`` harms all operations, sync and async.

A failure is a sentence with the backend, the operation, the place and the seed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harel.errors import TransportUnavailable
from torture.crash_bench import Link
from torture.crash_points import Trial, bench_of
from torture.crash_scenes import CORE

pytestmark = pytest.mark.timeout(600)  # on a machine that has much else to do

MOST = {"postgres": 6}
"""A connection to PostgreSQL takes long to make."""


@pytest.mark.parametrize("backend", ["sqlite", "redis", "postgres", "mongo", "rqlite"])
def test_a_break_anywhere_breaks_no_promise(backend: str, tmp_path: Path) -> None:
    trial = Trial(backend, "sync", tmp_path, seed=1)
    assert trial.try_all(CORE, most=MOST.get(backend, 24)) == []
    assert {row[1] for row in trial.rows} == set(CORE)


def _harmed_by(change: Callable[[Any], None]) -> Callable[..., Link]:
    """Return what makes a bench whose harmed transport has a fault."""

    def make(*args: Any) -> Link:
        bench: Link = bench_of(*args)
        change(bench.harmed)
        return bench

    return make


def _publish_again_when_a_reply_is_lost(queue: Any) -> None:
    publish = queue.publish

    def publish_again(*args: Any) -> None:
        try:
            publish(*args)
        except TransportUnavailable:
            publish(*args)

    queue.publish = publish_again


def _say_true_whatever_comes(queue: Any) -> None:
    ack = queue.ack

    def say_true(lease: Any) -> bool:
        try:
            return bool(ack(lease))
        except TransportUnavailable:
            return True

    queue.ack = say_true


def _claim_for_ever(queue: Any) -> None:
    claim = queue.claim
    queue.claim = lambda worker_id, visibility: claim(worker_id, 100 * visibility)


def _let_the_drivers_error_out(queue: Any) -> None:
    nack = queue.nack

    def let_out(lease: Any) -> Any:
        try:
            return nack(lease)
        except TransportUnavailable as error:
            raise ConnectionError("it broke") from error

    queue.nack = let_out


@pytest.mark.parametrize(
    ("change", "operation", "complaint"),
    [
        (_publish_again_when_a_reply_is_lost, "publish to a new group", "it returned, and then there is"),
        (_say_true_whatever_comes, "ack", "it returned, and then there is"),
        (_claim_for_ever, "claim", "undisturbed"),
        (_let_the_drivers_error_out, "nack", "it raised ConnectionError"),
    ],
)
def test_a_fault_is_found(change: Callable[[Any], None], operation: str, complaint: str, tmp_path: Path) -> None:
    trial = Trial("redis", "sync", tmp_path, 1, _harmed_by(change))
    if complaint == "undisturbed":  # it is there without any harm
        with pytest.raises(AssertionError, match="left that no claim reaches after a visibility"):
            trial.try_all([operation])
    else:
        assert complaint in trial.try_all([operation])[0]
