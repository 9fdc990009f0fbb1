"""The part of the benchmarks that goes from publish to handled: that it runs, and that it would see what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.contenders import CONTENDERS, OURS, PEER
from benchmarks.folders import Folders
from benchmarks.handled import (
    FEW_GROUPS,
    MANY_WORKERS,
    ONE_WORKER,
    Handled,
    Handling,
    Load,
    Messages,
    OutOfOrder,
    check_order,
    measure_workers,
    profile_worker,
)
from benchmarks.report_workers import worker_bound, workers
from benchmarks.results import Results
from benchmarks.targets import FEW_DEEP, MANY_SHALLOW, Measured, Verdict, judge

pytestmark = pytest.mark.timeout(600)  # it starts processes, on a machine that may be busy

IN_ORDER = [(0.1, 0, 0), (0.2, 1, 0), (0.3, 0, 1), (0.4, 1, 1)]
LOAD = Load(groups=2, each=2)
SMALL = Messages(
    many=Load(8, 3),
    few=Load(2, 9),
    few_for_peer=Load(2, 2),
    many_for_peer={"memory": 1, "sqlite": 1},
    delays=4,
    pause_s=0.001,
)


def test_each_message_once_and_in_order_is_right() -> None:
    check_order("who", IN_ORDER, LOAD)


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param([*IN_ORDER[:2], (0.3, 0, 1)], id="one missing at a group's end"),
        pytest.param([(0.1, 0, 0), (0.3, 0, 1)], id="a group missing"),
        pytest.param([(0.1, 0, 1), (0.2, 1, 0), (0.3, 0, 0), (0.4, 1, 1)], id="two in the wrong order"),
        pytest.param([*IN_ORDER, (0.5, 1, 1)], id="one twice"),
        pytest.param([*IN_ORDER, (0.5, 1, 2)], id="one too many"),
        pytest.param([*IN_ORDER, (0.5, 2, 0)], id="one of a group that there is not"),
    ],
)
def test_what_is_lost_or_doubled_or_out_of_order_is_seen(seen: list[tuple[float, int, int]]) -> None:
    with pytest.raises(OutOfOrder):
        check_order("who", seen, LOAD)


@pytest.mark.parametrize("backend", ["memory", "sqlite"])
def test_a_round_of_ours(backend: str, tmp_path: Path) -> None:
    handled, results = Handled(Handling(rounds=2, messages=SMALL)), _without_peer(backend)
    measure_workers(backend, handled, _folders(tmp_path), results, _quiet)
    scenes = (ONE_WORKER, FEW_GROUPS) if backend == "memory" else (ONE_WORKER, MANY_WORKERS, FEW_GROUPS)
    for scene in scenes:
        cell = SMALL.cell(OURS, backend, scene)
        assert len(results.rates[cell]) == len(handled.gaps_s[cell]) == 2
        assert results.counts[cell] == (18 if scene == FEW_GROUPS else 24)
        assert all(rate > 0 for rate in results.rates[cell])
    assert len(handled.delays_s[OURS, backend]) == 2 * SMALL.delays
    page = "\n".join(workers(backend, handled, results))
    assert "harel, 256 at once" in page
    assert "not installed" in page
    assert worker_bound(backend, handled, results).startswith(f"**The worker, {backend}**")


def test_a_profile_names_functions(tmp_path: Path) -> None:
    (ours,) = (each for each in CONTENDERS if each.key == "harel-memory")
    found = profile_worker(ours, Load(4, 2), Handling(1, SMALL), _folders(tmp_path), _quiet)
    assert any("worker" in row["file"] for row in found["handled"])


def test_a_message_that_never_comes_ends_the_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes are told to expect more than there is, as if something had been lost."""
    monkeypatch.setenv("HAREL_BENCH_STUCK_S", "0.2")
    handled = Handled(Handling(rounds=1, messages=SMALL))
    monkeypatch.setattr(Load, "messages", property(lambda load: load.groups * load.each + 1))
    with pytest.raises(RuntimeError, match="and then none for"):
        measure_workers("memory", handled, _folders(tmp_path), _without_peer("memory"), _quiet)


def test_targets_are_judged_by_the_middle_and_by_the_longest_gap() -> None:
    of_peer, rate, steady = _verdicts(ours=9_000.0, few=5_000.0, peer=500.0, gap_s=0.9)
    assert [of_peer.met, rate.met, steady.met] == [True, True, True]
    of_peer, rate, steady = _verdicts(ours=7_000.0, few=3_000.0, peer=500.0, gap_s=0.9)
    assert [of_peer.met, rate.met, steady.met] == [False, False, False]
    *_, steady = _verdicts(ours=9_000.0, few=9_000.0, peer=500.0, gap_s=1.1)
    assert steady.met is False


def test_other_loads_than_the_targets_are_not_judged() -> None:
    verdicts = _verdicts(ours=9_000.0, few=5_000.0, peer=500.0, gap_s=0.1, many=Load(10, 20))
    assert [verdict.met for verdict in verdicts] == [None, None, None]


def _verdicts(*, ours: float, few: float, peer: float, gap_s: float, many: Load = MANY_SHALLOW) -> list[Verdict]:
    messages = Messages(many, FEW_DEEP, Load(20, 50), {"postgres": 3}, 10, 0.02)
    handled, results = Handled(Handling(3, messages)), Results()
    for contender, scene, a_second in ((OURS, ONE_WORKER, ours), (OURS, FEW_GROUPS, few), (PEER, ONE_WORKER, peer)):
        cell = messages.cell(contender, "postgres", scene)
        results.rates[cell] = [a_second * 0.5, a_second, a_second * 2.0]
        handled.gaps_s[cell] = [0.001, gap_s, 0.002]
    measured = Measured(["postgres"], results, handled=handled, rates=False)
    return judge(measured)


def _folders(path: Path) -> Folders:
    return Folders(path, path, path)


def _without_peer(backend: str) -> Results:
    results = Results()
    results.missing[f"peer-{backend}"] = "the tests reach no network"
    return results


def _quiet(_: str) -> None: ...
