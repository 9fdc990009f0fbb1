"""The demo on every backend that several processes can open: a worker killed, every group in order, none lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from harel.cli import demo_run
from harel.cli.demo_run import Demo, take_flights
from tests.backends import BACKENDS, URLS
from tests.cli.conftest import Harel

SHARED = sorted({backend.name.rpartition("-")[0] for backend in BACKENDS} - {"memory"})
FLIGHTS = 120

every_backend = pytest.mark.parametrize("name", SHARED)


@every_backend
def test_a_worker_is_killed_and_everything_comes_in_order_all_the_same(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promises 1, 2, 3 and 6, by the record of what the processes did."""
    monkeypatch.setattr(demo_run, "_VISIBILITY_S", 5.0)  # no machine is so busy that a lease of the living runs out
    folder = tmp_path / "records"
    folder.mkdir()
    report = Demo(URLS[name](tmp_path), folder, workers=2, kill=True).run(take_flights(FLIGHTS))
    assert report.faults == []
    assert report.figures.events == FLIGHTS
    assert report.figures.killed in {1, 2}


@every_backend
def test_a_queue_that_is_not_empty_is_refused(name: str, harel: Harel, tmp_path: Path) -> None:
    url = URLS[name](tmp_path)
    harel("publish", "mine", "k", "--transport", url).succeeded()
    assert " is not empty (" in harel("demo", "--transport", url, "--flights", "5").failed()
