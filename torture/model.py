"""The state machines of ``tests/model`` with a large budget: every answer of every backend beside the model's."""

from __future__ import annotations

import contextlib
import functools
import io
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.errors import HypothesisException
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test
from hypothesis.statistics import collector

from harel.engine.transport import InMemoryTransport
from tests.backends import BACKENDS, Backend
from tests.model.spec import Spec
from tests.model.test_loosely import Loosely
from tests.model.test_side_by_side import SideBySide, lacking
from torture.part import Options, Report, table

__all__ = ["Budget", "Tally", "budget_of", "explore", "machine_for", "run"]

FULL_S = 12.0
"""For how long, in seconds, one flavour of one backend is asked; a few runs that have begun end."""
MOST_RUNS = 10_000
A_FEW = 10
"""So many runs have one seed; after them the time is looked at."""


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """How much is tried on one backend.

    Attributes
    ----------
    runs : int
        How many runs at most, each on an empty queue.
    steps : int
        How many steps a run has at most.
    seconds : float
        After so many no further run begins.
    shorten : bool
        Whether what breaks is made as short as can be before it is shown.
    """

    runs: int
    steps: int
    seconds: float
    shorten: bool = True


class Tally(msgspec.Struct, kw_only=True):
    """What was done to one backend.

    Attributes
    ----------
    runs, steps : int
        Until something broke.
    invalid : int
        Runs that Hypothesis gave up, as it had used up its choices.
    rules : Counter
        How often each rule was done.
    seconds : float
    failure : str or None
        What broke, and the steps that lead there.
    """

    runs: int = 0
    steps: int = 0
    invalid: int = 0
    rules: Counter[str] = msgspec.field(default_factory=Counter)
    seconds: float = 0.0
    failure: str | None = None


def run(options: Options) -> Report:
    """Explore each backend, sync and async, and the one in memory beside the specification."""
    wanted = {"memory", *options.backends}
    tallies = {
        backend.name: explore(machine_for(backend, options), budget_of(options), options.seed)
        for backend in BACKENDS
        if backend.name.partition("-")[0] in wanted
    }
    failures = [f"{name}, {tally.failure}" for name, tally in tallies.items() if tally.failure]
    return Report(title="Every answer beside a model", text=_text(tallies, options), failures=failures)


def budget_of(options: Options) -> Budget:
    """Return what a size of the torture allows."""
    if options.size == "full":
        return Budget(runs=MOST_RUNS, steps=150, seconds=FULL_S)
    return Budget(runs=10, steps=60, seconds=5.0)


def machine_for(backend: Backend, options: Options) -> Callable[[], RuleBasedStateMachine]:
    """Return what makes the state machine of a backend: the strict one, or the one for those that promise less."""
    folder = options.folder / backend.name
    folder.mkdir(parents=True)
    if lacking(backend, folder):
        return functools.partial(Loosely, backend)
    return functools.partial(SideBySide, backend, Spec if backend.name.startswith("memory") else InMemoryTransport)


def explore(make: Callable[[], RuleBasedStateMachine], budget: Budget, seed_of_all: int) -> Tally:
    """Let Hypothesis do what it likes to a state machine, within a budget, and count.

    Parameters
    ----------
    make : callable
        Makes the machine, each time on an empty queue: a class, or a partial of one.
    budget : Budget
    seed_of_all : int
        The same seed makes the same runs, as far as the time reaches: the first few have this seed, and each few that
        follow the one above.
    """
    tally, found = Tally(), _Found()
    machine = _counting(make, tally, found)
    began = time.monotonic()
    for place in range(0, budget.runs, A_FEW):
        few = min(A_FEW, budget.runs - place)
        tally.failure = _explored(machine, few, budget, seed_of_all + place // A_FEW, tally)
        tally.seconds = time.monotonic() - began
        if tally.failure or tally.seconds >= budget.seconds:
            break
    return tally


def _explored(
    machine: Callable[[], RuleBasedStateMachine], runs: int, budget: Budget, its_seed: int, tally: Tally
) -> str | None:
    """Explore with one seed; return what broke."""
    chosen = settings(
        max_examples=runs,
        stateful_step_count=budget.steps,
        deadline=None,
        database=None,
        print_blob=False,
        report_multiple_bugs=False,
        phases=[Phase.generate, Phase.shrink] if budget.shorten else [Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    printed = io.StringIO()
    figures: list[dict[str, Any]] = []
    try:
        with contextlib.redirect_stdout(printed), collector.with_value(figures.append):  # type: ignore[arg-type]
            run_state_machine_as_test(_seeded(lambda: machine(), its_seed), settings=chosen)
    except Exception as error:
        return f"seed {its_seed}: {_told(error, printed.getvalue())}"
    finally:
        cases = [case for figure in figures for case in figure.get("generate-phase", {}).get("test-cases", [])]
        tally.invalid += sum(case["status"] in ("invalid", "overrun") for case in cases)
    return None


def _seeded(made: Any, its_seed: int) -> Any:
    """Give a factory of machines its seed, where Hypothesis looks for it."""
    return seed(its_seed)(made)


class _Found(msgspec.Struct):
    """Whether something broke already."""

    something: bool = False


def _counting(make: Callable[[], Any], tally: Tally, found: _Found) -> Callable[[], RuleBasedStateMachine]:
    """Return what makes the same machine, whose steps are counted."""
    kind: Any = make.func if isinstance(make, functools.partial) else make
    given = make.args if isinstance(make, functools.partial) else ()

    class Counted(kind):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(*given)
            tally.runs += not found.something
            self._times: dict[str, float] = {}
            for rule in self.rules:
                tally.rules.setdefault(rule.function.__name__, 0)

        def check_invariants(self, settings: Any, output: Any, times: Any) -> None:
            # It is called after each step, whose rule is the one that has taken more time than before.
            for label, seconds in list(times.items()):
                name = label.removeprefix("execute:rule:")
                if name != label and seconds != self._times.get(label) and not found.something:
                    tally.steps += 1
                    tally.rules[name] = tally.rules.get(name, 0) + 1
                self._times[label] = seconds
            super().check_invariants(settings, output, times)

        def teardown(self) -> None:
            broken = sys.exc_info()[1]
            found.something |= isinstance(broken, Exception) and not isinstance(broken, HypothesisException)
            try:
                super().teardown()
            except Exception:
                found.something = True
                raise

    Counted.__name__ = kind.__name__
    return Counted


def _told(error: BaseException, printed: str) -> str:
    """Say what broke, and with the steps that lead there."""
    what = "".join(traceback.format_exception_only(error)).strip()
    notes = [note for note in getattr(error, "__notes__", []) if note not in what]
    return "\n".join(part for part in (what, *notes, printed.strip()) if part)


def _text(tallies: dict[str, Tally], options: Options) -> str:
    rows: list[tuple[object, ...]] = [
        (name, f"{tally.runs:,}", f"{tally.steps:,}", f"{tally.invalid:,}", f"{tally.seconds:.0f}")
        for name, tally in tallies.items()
    ]
    counts = table(("backend", "runs", "steps", "runs that came to nothing", "seconds"), rows)
    names = list(dict.fromkeys(rule for tally in tallies.values() for rule in tally.rules))
    hits: list[tuple[object, ...]] = [
        (rule, *(f"{tally.rules[rule]:,}" if rule in tally.rules else "" for tally in tallies.values()))
        for rule in names
    ]
    return (
        f"The seed was {options.seed}. The backend in memory is compared with the specification, the others with the "
        "backend in memory; of SQS, which leaves more open, each answer has to be one that keeps the promises.\n\n"
        f"{counts}\n\nHow often each rule was done:\n\n{table(('rule', *tallies), hits)}"
    )
