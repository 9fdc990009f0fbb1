"""Mutations: harel is broken on purpose, in one small way at a time, and the tests have to notice each.

Each is a file in ``tests/mutations``, a patch that says what it breaks and which tests are to notice. All runs are of
copies of the project, whose tests have passed there unbroken.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from tests.servers.mongo import mongo_url
from tests.servers.postgres import postgres_url
from tests.servers.redis import redis_url
from tests.servers.rqlite import rqlite_url
from tests.servers.sqs import sqs_url
from torture.mutation_patches import BadMutation, Mutation, load
from torture.mutation_probe import ANSWER, Answer
from torture.part import SHARED, Options, Report, table

__all__ = ["MUTATIONS", "SHORT", "Outcome", "Trial", "run", "try_out"]

ROOT = Path(__file__).parents[1]

MUTATIONS = ROOT / "tests" / "mutations"

SHORT = (
    "checked/priority-of-five",
    "memory/unfenced-ack",
    "postgres/head-looked-for-before-the-lock",
    "redis/hold-lost-by-an-extend",
    "sqlite/attempts-not-reset",
    "worker/lost-lease-not-cancelled",
)
"""Those of a short run."""

_COPIED = ("src", "tests", "torture")
_AT_ONCE = 2
_HANGS_AFTER_S = 30
"""A test of broken code that takes longer has noticed."""
_PATIENCE_S = 600.0
"""A run that takes longer is stopped, and has noticed nothing."""

_SERVERS: dict[str, Callable[[], str]] = {
    "redis": redis_url,
    "postgres": postgres_url,
    "mongo": mongo_url,
    "rqlite": rqlite_url,
    "sqs": sqs_url,
}

Word: TypeAlias = Literal["caught", "survived", "wrong", "not tried"]


class Outcome(msgspec.Struct, frozen=True):
    """What became of a mutation.

    Attributes
    ----------
    mutation : Mutation
    word : str
        ``"caught"``; ``"survived"``: the tests passed all the same; ``"wrong"``: it says nothing about the tests,
        since the patch does not fit, or the code does not even compile; ``"not tried"``: its tests are skipped on the
        servers that are there.
    why : str
        The test that caught it, or what is the matter.
    said : str
        What that test said.
    took_s : float
    """

    mutation: Mutation
    word: Word
    why: str
    said: str = ""
    took_s: float = 0.0


class Tree:
    """A copy of the project in which one run after another takes place.

    Parameters
    ----------
    folder : Path
        Where; it must not be there yet.
    root : Path
        The project.
    """

    def __init__(self, folder: Path, root: Path) -> None:
        self.folder = folder
        self._number = 0
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.db*")
        for name in _COPIED:
            shutil.copytree(root / name, folder / name, ignore=ignored)
        shutil.copy2(root / "pyproject.toml", folder)

    @contextmanager
    def broken(self, mutation: Mutation) -> Iterator[None]:
        """Break files, and mend them again.

        Their times change too, by which Python tells that what it compiled of them is out of date.
        """
        before = {}
        for path, text in mutation.applied_to(self.folder).items():
            file = self.folder / path
            before[file] = file.read_bytes(), file.stat()
            file.write_text(text, encoding="utf-8", newline="")
            os.utime(file, (before[file][1].st_atime, before[file][1].st_mtime + 1_000.0))
        try:
            yield
        finally:
            for file, (whole, status) in before.items():
                file.write_bytes(whole)
                os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))

    def test(self, tests: Sequence[str], *, is_broken: bool = False) -> Answer | str:
        """Run tests on the copy; return what became of them, or why that cannot be said."""
        self._number += 1
        answer = self.folder / f"answer-{self._number}.json"
        scratch = self.folder / f"run-{self._number}"
        scratch.mkdir()
        plugins = ["-p", "no:cacheprovider", "-p", "pytest_timeout", "-p", "torture.mutation_probe"]
        options = ["-q", *plugins, f"--basetemp={scratch / 'tests'}"]
        if is_broken:
            options += ["--exitfirst", f"--timeout={_HANGS_AFTER_S}"]
        command = [sys.executable, "-m", "pytest", *options, *tests]
        with (scratch / "output").open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self._environment(answer, is_broken=is_broken),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            status = _waited_for(process)
        if status is None:
            return f"the run did not end within {_PATIENCE_S:g} s"
        if status not in (0, 1) or not answer.exists():
            return f"pytest ended with status {status}: {_last_lines(scratch / 'output')}"
        found = msgspec.json.decode(answer.read_bytes(), type=Answer)
        shutil.rmtree(scratch)
        if Path(found.code).parent != self.folder / "src" / "harel":
            return f"the code that ran is that of {found.code}"
        return found

    def _environment(self, answer: Path, *, is_broken: bool) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        inherited["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # what a run does not use takes a third of its time
        path = os.pathsep.join([str(self.folder / "src"), str(self.folder)])
        # A broken module is never kept compiled, so that no other run can meet it.
        kept = {"PYTHONDONTWRITEBYTECODE": "1"} if is_broken else {}
        return {**inherited, **kept, "PYTHONPATH": path, ANSWER: str(answer)}


def try_out(mutations: Sequence[Mutation], folder: Path, *, root: Path = ROOT) -> list[Outcome]:
    """Try mutations, each on its tests.

    Parameters
    ----------
    mutations : sequence of Mutation
    folder : Path
        An empty one, for copies of the project.
    root : Path
        The project.

    Returns
    -------
    list of Outcome
        In the order of the mutations.
    """
    for server in sorted({mutation.part for mutation in mutations} & _SERVERS.keys()):
        _SERVERS[server]()  # one for all the runs, which find it by the environment
    lanes = _lanes(mutations)
    trees = [Tree(folder / f"tree-{number}", root) for number in range(len(lanes))]
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        outcomes = [outcome for lane in threads.map(_try_in, trees, lanes) for outcome in lane]
    by_name = {outcome.mutation.name: outcome for outcome in outcomes}
    return [by_name[mutation.name] for mutation in mutations]


def _lanes(mutations: Sequence[Mutation]) -> list[list[Mutation]]:
    """Share the mutations out; those of one part come one after the other, for they share a server."""
    parts: dict[str, list[Mutation]] = {}
    for mutation in mutations:
        parts.setdefault(mutation.part, []).append(mutation)
    lanes: list[list[Mutation]] = [[] for _ in range(_AT_ONCE)]
    for part in sorted(parts.values(), key=len, reverse=True):
        min(lanes, key=len).extend(part)
    return [lane for lane in lanes if lane]


def _try_in(tree: Tree, mutations: Sequence[Mutation]) -> list[Outcome]:
    tests = dict.fromkeys(test for mutation in mutations for test in mutation.tests)
    unbroken = Unbroken(tree.test(list(tests)))
    return [Trial(mutation, unbroken).outcome(tree) for mutation in mutations]


class Unbroken:
    """What became of tests on the code as it is.

    Parameters
    ----------
    answer : Answer or str
    """

    def __init__(self, answer: Answer | str) -> None:
        told = Answer() if isinstance(answer, str) else answer
        self._trouble = [answer] if isinstance(answer, str) else told.uncollected
        self._failed = {failure.test: failure.error for failure in told.failed}
        self._passed = told.passed
        self._skipped = told.skipped

    def objection(self, tests: Iterable[str]) -> tuple[Word, str] | None:
        """Say why a mutation cannot be tried on these, if it cannot."""
        for test in tests:
            failed = [each for each in self._failed if _is_of(each, test)]
            if failed:
                return "wrong", f"{failed[0]} fails on the code as it is: {self._failed[failed[0]]}"
            if not any(_is_of(each, test) for each in self._passed):
                if any(_is_of(each, test) for each in self._skipped):
                    return "not tried", f"{test} is skipped on the servers that are there"
                return "wrong", f"there is no test {test} ({'; '.join(self._trouble) or 'it did not run'})"
        return None


class Trial:
    """One mutation, to be tried.

    Parameters
    ----------
    mutation : Mutation
    unbroken : Unbroken
        What its tests do on the code as it is.
    """

    def __init__(self, mutation: Mutation, unbroken: Unbroken) -> None:
        self._mutation = mutation
        self._unbroken = unbroken

    def outcome(self, tree: Tree) -> Outcome:
        """Break the tree, run the tests, and mend the tree."""
        began = time.monotonic()
        objection = self._unbroken.objection(self._mutation.tests)
        if objection is not None:
            return self._outcome(*objection)
        try:
            with tree.broken(self._mutation):
                answer = tree.test(self._mutation.tests, is_broken=True)
        except BadMutation as error:
            return self._outcome("wrong", str(error))
        return msgspec.structs.replace(self._judged(answer), took_s=time.monotonic() - began)

    def _judged(self, answer: Answer | str) -> Outcome:
        if isinstance(answer, str):
            return self._outcome("wrong", answer)
        if answer.uncollected:
            return self._outcome("wrong", f"the tests cannot be read: {answer.uncollected[0]}")
        if not answer.failed:
            return self._outcome("survived", f"{len(answer.passed)} tests pass all the same")
        first = answer.failed[0]
        if first.nonsense:
            return self._outcome("wrong", f"the code does not compile: {first.error}")
        return self._outcome("caught", first.test, first.error)

    def _outcome(self, word: Word, why: str, said: str = "") -> Outcome:
        return Outcome(self._mutation, word, why, said)


def run(options: Options) -> Report:
    """Try the mutations, all or a few, of the backends that are named and of all that is no backend."""
    wanted = [
        mutation
        for mutation in load(MUTATIONS)
        if (mutation.part not in SHARED or mutation.part in options.backends)
        and (options.size == "full" or mutation.name in SHORT)
    ]
    return report(try_out(wanted, options.folder))


def report(outcomes: Sequence[Outcome]) -> Report:
    """Say what became of mutations."""
    caught = sum(outcome.word == "caught" for outcome in outcomes)
    left_out = sum(outcome.word == "not tried" for outcome in outcomes)
    text = f"harel was broken in {len(outcomes)} ways, one at a time; the tests noticed {caught}."
    if left_out:
        text += f" {left_out} could not be tried on the servers that are there."
    rows: list[tuple[object, ...]] = [
        (
            outcome.mutation.name,
            outcome.mutation.broken,
            outcome.mutation.promise,
            f"`{outcome.why}`" if outcome.word == "caught" else f"**{outcome.word}**: {outcome.why}",
            f"{outcome.took_s:.1f}",
        )
        for outcome in outcomes
    ]
    heads = ("Mutation", "What is broken", "What that breaks", "Caught by", "Seconds")
    failures = [
        f"{outcome.mutation.name} {outcome.word}: {outcome.why}.\n{outcome.mutation.broken}"
        for outcome in outcomes
        if outcome.word in ("survived", "wrong")
    ]
    return Report(title="Broken variants", text=f"{text}\n\n{table(heads, rows)}", failures=failures)


def _is_of(test: str, named: str) -> bool:
    """Whether this test is the one that was named, or that with some parameters."""
    return test == named or test.startswith((f"{named}[", f"{named}::"))


def _last_lines(output: Path) -> str:
    return " / ".join(output.read_text(errors="replace").strip().splitlines()[-5:])


def _waited_for(process: subprocess.Popen[bytes]) -> int | None:
    """Return a run's status; end one that takes too long, with all that it has started."""
    try:
        return process.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
