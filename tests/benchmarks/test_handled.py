"""The part of the benchmarks that goes from publish to handled: that it runs, and that it would see what is wrong."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from benchmarks import handled as handling_module
from benchmarks.contenders import CONTENDERS, OURS, PEER, Contender
from benchmarks.crews import Broken, Crew, Flowed, Load, OutOfOrder, Work, check_order, crew_of
from benchmarks.folders import Folders
from benchmarks.handled import (
    FEW_GROUPS,
    MANY_WORKERS,
    ONE_WORKER,
    PAUSES,
    PUBLISHED,
    SINGLES,
    Handled,
    Handling,
    Messages,
    measure_workers,
    profile_worker,
    runtimes_of,
)
from benchmarks.limits import SERVER_ALONE
from benchmarks.pictures import draw
from benchmarks.reasons import reasons
from benchmarks.report_beside import beside, steady, worse
from benchmarks.report_workers import worker_bound, workers
from benchmarks.results import Results
from benchmarks.targets import FEW_DEEP, MANY_SHALLOW, ONES, Measured, Verdict, judge

pytestmark = pytest.mark.timeout(600)  # it starts processes, on a machine that may be busy

Seen = tuple[float, int, int, float]


def at(*began: tuple[float, int, int]) -> list[Seen]:
    """Say what was seen of handlers that end as they begin."""
    return [(when, group, number, when) for when, group, number in began]


IN_ORDER = [(0.1, 0, 0), (0.2, 1, 0), (0.3, 0, 1), (0.4, 1, 1)]
LOAD = Load(groups=2, each=2)
WANTED = {0: 2, 1: 2}
SMALL = Messages(
    many=Load(8, 3),
    few=Load(2, 9),
    singles=Load(12, 1),
    paused=Load(8, 2),
    delays=4,
    pause_s=0.001,
    handler_ms=2.0,
    steady_s=0.1,
    peer_s=0.1,
)


def test_each_message_once_and_in_order_is_right() -> None:
    check_order("who", at(*IN_ORDER), LOAD)


@pytest.mark.parametrize(
    ("seen", "broken"),
    [
        pytest.param([*IN_ORDER[:2], (0.3, 0, 1)], Broken(lost=1), id="one missing at a group's end"),
        pytest.param([(0.1, 0, 0), (0.3, 0, 1)], Broken(lost=2), id="a group missing"),
        pytest.param([(0.1, 0, 1), (0.2, 1, 0), (0.3, 0, 0), (0.4, 1, 1)], Broken(late=1), id="two in the wrong order"),
        pytest.param([*IN_ORDER, (0.5, 1, 1)], Broken(twice=1), id="one twice"),
        pytest.param([*IN_ORDER, (0.5, 1, 0)], Broken(twice=1), id="one twice, much later"),
        pytest.param([*IN_ORDER, (0.5, 1, 2)], Broken(strange=1), id="one too many"),
        pytest.param([*IN_ORDER, (0.5, 2, 0)], Broken(strange=1), id="one of a group that there is not"),
    ],
)
def test_what_is_lost_or_doubled_or_out_of_order_is_seen(seen: list[tuple[float, int, int]], broken: Broken) -> None:
    assert Broken.found(at(*seen), WANTED) == broken
    with pytest.raises(OutOfOrder):
        check_order("who", at(*seen), LOAD)


def test_two_of_a_group_at_once_are_seen() -> None:
    one_by_one = [(0.1, 0, 0, 0.2), (0.1, 1, 0, 0.5), (0.2, 0, 1, 0.4), (0.5, 1, 1, 0.6)]
    check_order("who", one_by_one, LOAD)
    beside_each_other = [(0.1, 0, 0, 0.3), (0.1, 1, 0, 0.5), (0.2, 0, 1, 0.25), (0.5, 1, 1, 0.6)]
    assert Broken.found(beside_each_other, WANTED) == Broken(together=1)
    after_a_short_one = [(0.1, 0, 0, 0.9), (0.2, 0, 1, 0.3), (0.4, 0, 2, 0.5)]
    assert Broken.found(after_a_short_one, {0: 3}) == Broken(together=2)


def test_what_is_broken_is_said_in_words() -> None:
    assert not Broken()
    both = Broken(late=1_000) + Broken(late=203, together=4)
    assert str(both) == "1,203 out of order, 4 beside another of their group"


@pytest.mark.parametrize("backend", ["memory", "sqlite"])
def test_a_round_of_ours(backend: str, tmp_path: Path) -> None:
    handled, results = Handled(Handling(rounds=2, messages=SMALL)), _without_peers(backend)
    measure_workers(backend, handled, _folders(tmp_path), results, _quiet)
    counts = {ONE_WORKER: 24, MANY_WORKERS: 24, SINGLES: 12, FEW_GROUPS: 18, PAUSES: 16}
    for scene in counts if backend == "sqlite" else counts.keys() - {MANY_WORKERS}:
        cell = SMALL.cell(OURS, backend, scene)
        assert len(results.rates[cell]) == len(handled.gaps_s[cell]) == 2
        assert len(results.rates[replace(cell, figure=PUBLISHED)]) == 2
        assert results.counts[cell] == counts[scene]
        assert all(rate > 0 for rate in results.rates[cell])
        assert not handled.broken[cell]
    assert len(handled.delays_s[OURS, backend]) == 2 * SMALL.delays
    page = "\n".join(workers(backend, handled, results))
    assert "harel, 256 at once" in page
    assert "not installed" in page
    assert worker_bound(backend, handled, results).startswith(f"**The worker, {backend}**")
    first = "\n".join(beside([backend], handled, results, [f"beside-{backend}.svg"]))
    assert f"plots/beside-{backend}.svg" in first
    assert "| kept " in first
    if backend == "sqlite":
        assert "bare sqlite3" in first
        assert handled.steady[OURS, "sqlite"].messages > 0
        assert "harel" in "\n".join(steady(["sqlite"], handled))
        assert set(draw(Measured(["sqlite"], results, handled=handled))) == {"beside-sqlite.svg", "steady.svg"}


def test_uneven_groups_are_published_in_rounds_and_drained(tmp_path: Path) -> None:
    with crew_of(_ours("sqlite"), 4, _folders(tmp_path), None, _quiet) as crew:
        assert crew.drain([3, 1, 0, 5], 2, pause_ms=1.0).messages == 9
        flowed = crew.flow(3, 200, 0.1)
        assert len(flowed.delays_s) == 20
        assert not flowed.broken


def test_a_profile_names_functions(tmp_path: Path) -> None:
    found = profile_worker(_ours("memory"), Load(4, 2), _folders(tmp_path), _quiet)
    assert any("worker" in row["file"] for row in found["handled"])


def test_a_message_that_never_comes_ends_the_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process is told to expect more than there is, as if something had been lost."""
    monkeypatch.setenv("HAREL_BENCH_STUCK_S", "0.2")
    monkeypatch.setattr(Crew, "_publish", lambda *_: 0.1)
    with (
        crew_of(_ours("memory"), 4, _folders(tmp_path), None, _quiet) as crew,
        pytest.raises(RuntimeError, match="and then none for"),
    ):
        crew.drain([1, 1])


def test_of_ours_what_is_left_in_the_queue_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with crew_of(_ours("memory"), 4, _folders(tmp_path), None, _quiet) as crew:
        (process,) = crew._processes
        ask = process.ask
        monkeypatch.setattr(process, "ask", lambda do, **how: {"messages": 3} if do == "waiting" else ask(do, **how))
        with pytest.raises(OutOfOrder, match="3 messages are left"):
            crew.drain([2, 2, 2, 2])


def test_what_is_abandoned_ends_with_what_it_started(tmp_path: Path) -> None:
    crew = Crew(_ours("memory"), 4, _folders(tmp_path), None)
    shim = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"
    with subprocess.Popen([sys.executable, "-c", shim], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"1\n"
        stopped = SimpleNamespace(_process=process)
        crew._processes = [cast("Any", stopped)]
        crew.abandon()
        assert process.stdout.read() == b""  # the other has ended too: it held this open


class Troubled(Crew):
    """A peer that breaks order, and cannot do what takes time."""

    opened = 0

    def open(self) -> None:
        Troubled.opened += 1

    def drain(self, sizes: Sequence[int], workers: int = 1, *, pause_ms: float = 0.0, **_: Any) -> Work:
        if pause_ms:
            raise RuntimeError("A troubled peer could not handle:\nTraceback\nNotImplementedError: It cannot wait.")
        return Work(sum(sizes), 1.0, 0.1, 0.5, 0.1, Broken(late=len(sizes)))

    def trickle(self, *_: Any) -> Flowed:
        return Flowed([0.1, 0.2], 10.0, Broken())

    def flow(self, *_: Any) -> Flowed:
        return Flowed([0.1, 0.2], 10.0, Broken(together=2))


def test_a_peer_that_breaks_order_stays_marked_and_one_that_cannot_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = Contender("troubled-sqlite", "Troubled 1.0", "sqlite", _no_queue, "peer", "", concurrency=3)
    none = Contender("other-sqlite", "Other 2.0", "sqlite", _no_queue, "peer", "", unable="It has no order.")

    @contextmanager
    def crews(contender: Contender, groups: int, folders: Folders, *_: Any) -> Iterator[Crew]:
        crew = Troubled(contender, groups, folders, None)
        crew.open()
        yield crew

    monkeypatch.setattr(handling_module, "runtimes_of", lambda _: [peer, none])
    monkeypatch.setattr("benchmarks.report_beside.runtimes_of", lambda _: [peer, none])
    monkeypatch.setattr(handling_module, "limits_of", lambda *_: iter(()))
    monkeypatch.setattr(handling_module, "crew_of", crews)
    handled, results = Handled(Handling(rounds=2, messages=SMALL)), Results()
    measure_workers("sqlite", handled, _folders(tmp_path), results, _quiet)
    cell = SMALL.cell("Troubled 1.0", "sqlite", ONE_WORKER)
    assert handled.broken[cell] == Broken(late=16)
    assert len(results.rates[cell]) == 2
    assert handled.failed == {replace(cell, workload=PAUSES): "NotImplementedError: It cannot wait."}
    assert Troubled.opened == 2  # at first, and after it could not
    first = "\n".join(beside(["sqlite"], handled, results, []))
    assert "**broken**: " in first
    assert "4 beside another of their group; cannot: handlers that take time" in first
    assert "cannot: It has no order." in first
    monkeypatch.setattr("benchmarks.pictures.runtimes_of", lambda _: [peer, none])
    pictures = draw(Measured(["sqlite"], results, handled=handled))
    assert pictures["beside-sqlite.svg"].count("breaks order") == 4
    assert pictures["beside-sqlite.svg"].count("cannot keep a group&#x27;s order") == 4
    assert "Troubled 1.0 at 10/s, median" in pictures["steady.svg"]


def test_where_a_peer_is_better_it_is_told() -> None:
    handled, results = Handled(Handling(3, SMALL)), Results()
    ours, peers = (SMALL.cell(name, "sqlite", ONE_WORKER) for name in (OURS, PEER))
    results.rates = {ours: [100.0, 100.0], peers: [150.0, 250.0]}
    page = "\n".join(worse(["sqlite"], handled, results, []))
    assert "sqlite, W1: 8 groups of 3, one process: harel 0.9.0 2.00 times as fast" in page
    results.rates[peers] = [100.0, 100.0]
    assert not worse(["sqlite"], handled, results, [])


def test_targets_are_judged_by_the_middle_and_by_the_longest_gap() -> None:
    assert _met(_verdicts(ours=9_000.0, few=9_000.0, peer=500.0, gap_s=0.9)) == [True, None, True, True]
    assert _met(_verdicts(ours=7_000.0, few=3_000.0, peer=500.0, gap_s=0.9)) == [False, None, False, False]
    *_, steady = _verdicts(ours=9_000.0, few=9_000.0, peer=500.0, gap_s=1.1)
    assert steady.met is False


def test_four_processes_are_held_against_the_server_alone() -> None:
    def met(alone: float) -> bool | None:
        verdicts = _verdicts(ours=9_000.0, few=9_000.0, peer=500.0, gap_s=0.1, alone=alone)
        (verdict,) = (each for each in verdicts if SERVER_ALONE["postgres"] in each.target)
        return verdict.met

    assert [met(12_000.0), met(13_000.0)] == [True, False]


def test_harel_is_held_against_the_fastest_of_the_peers() -> None:
    fast, slow = (
        each for each in runtimes_of("postgres") if each.key in ("graphile-postgres", "graphile-plain-postgres")
    )
    handled, results = _measured(ours=9_000.0, few=9_000.0, peer=500.0, gap_s=0.1)
    for each, rate in ((fast, 9_001.0), (slow, 10.0)):
        results.rates[handled.handling.messages.cell(each.name, "postgres", ONE_WORKER)] = [rate] * 3
    verdicts = judge(Measured(["postgres"], results, handled=handled, rates=False))
    (verdict,) = (each for each in verdicts if each.target == "postgres: W1 ahead of graphile")
    assert verdict.met is False
    assert fast.name in verdict.measured


def test_other_loads_than_the_targets_are_not_judged() -> None:
    verdicts = _verdicts(ours=9_000.0, few=5_000.0, peer=500.0, gap_s=0.1, many=Load(10, 20))
    assert all(verdict.met is None for verdict in verdicts)


def _met(verdicts: Sequence[Verdict]) -> list[bool | None]:
    """Say what was judged, and of what the server alone does that it was not."""
    return [verdict.met for verdict in verdicts if verdict.met is not None or "alone" in verdict.target]


def _measured(
    *, ours: float, few: float, peer: float, gap_s: float, many: Load = MANY_SHALLOW, alone: float = 0.0
) -> tuple[Handled, Results]:
    messages = replace(SMALL, many=many, few=FEW_DEEP, singles=ONES)
    handled, results = Handled(Handling(3, messages)), Results()
    rates = [(OURS, ONE_WORKER, ours), (OURS, FEW_GROUPS, few), (PEER, ONE_WORKER, peer)]
    if alone:
        rates += [(OURS, MANY_WORKERS, ours), (SERVER_ALONE["postgres"], MANY_WORKERS, alone)]
    for contender, scene, a_second in rates:
        cell = messages.cell(contender, "postgres", scene)
        results.rates[cell] = [a_second * 0.5, a_second, a_second * 2.0]
        handled.gaps_s[cell] = [0.001, gap_s, 0.002]
    return handled, results


def _verdicts(**figures: Any) -> list[Verdict]:
    handled, results = _measured(**figures)
    return judge(Measured(["postgres"], results, handled=handled, rates=False))


def _no_queue(_: str) -> Any:
    raise NotImplementedError


def _ours(backend: str) -> Contender:
    (ours,) = (each for each in CONTENDERS if each.key == f"harel-{backend}")
    return ours


def _folders(path: Path) -> Folders:
    return Folders(path, path, path)


def _without_peers(backend: str) -> Results:
    results = Results()
    results.missing |= {each.key: "the tests reach no network" for each in runtimes_of(backend) if each.role == "peer"}
    return results


def _quiet(_: str) -> None: ...


def test_what_is_not_reached_is_explained_once_and_what_is_reached_is_not() -> None:
    missed = [Verdict(f"{name}: 20 groups no slower a message than 1,000", "0.5", met=False) for name in ("a", "b")]
    assert "\n".join(reasons(missed)).count("**Few groups**") == 1
    assert reasons([Verdict(each.target, "1.0", met=met) for each in missed for met in (True, None)]) == []
