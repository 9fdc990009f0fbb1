"""The broken variants fit the code as it is, the tests notice a chosen few, and nothing else is taken for a catch."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from torture.mutation_patches import BadMutation, Mutation, load, read_changes, read_mutation
from torture.mutations import MUTATIONS, SHORT, Outcome, report, try_out

ROOT = Path(__file__).parents[2]

CONFORMANCE = ROOT / "src" / "harel" / "testing" / "conformance"

ALL = load(MUTATIONS)

QUICK = "tests/conformance/test_basics.py::test_what_is_acked_is_gone[memory-sync]"

PLANTED = {
    "memory/the-same-thing-said-otherwise": (
        QUICK,
        """--- a/src/harel/engine/queue/memory/state.py
+++ b/src/harel/engine/queue/memory/state.py
@@ -1 +1 @@
-        self._last_seq += 1
+        self._last_seq += 2
""",
    ),
    "memory/no-python": (
        QUICK,
        """--- a/src/harel/engine/queue/memory/state.py
+++ b/src/harel/engine/queue/memory/state.py
@@ -1 +1 @@
-        self._last_seq += 1
+        self._last_seq += = 1
""",
    ),
    "memory/elsewhere": (
        QUICK,
        """--- a/src/harel/engine/queue/memory/state.py
+++ b/src/harel/engine/queue/memory/state.py
@@ -1 +1 @@
-        self._last_seq += 17
+        self._last_seq += 1
""",
    ),
    "sqlite/no-sql": (
        "tests/conformance/test_basics.py::test_what_is_acked_is_gone[sqlite-sync]",
        """--- a/src/harel/engine/queue/sqlite/sql/claim.sql
+++ b/src/harel/engine/queue/sqlite/sql/claim.sql
@@ -1 +1 @@
-    attempts = attempts + 1,
+    attempts = attempts +,
""",
    ),
}
"""What must not count as noticed, each with its test."""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    planted = [
        Mutation(name, "It is planted.", "none", (test,), read_changes(diff)) for name, (test, diff) in PLANTED.items()
    ]
    chosen = [mutation for mutation in ALL if mutation.name in SHORT]
    tried = try_out([*chosen, *planted], tmp_path_factory.mktemp("mutations"))
    return {outcome.mutation.name: outcome for outcome in tried}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", SHORT)
def test_the_tests_notice(outcomes: dict[str, Outcome], name: str) -> None:
    assert outcomes[name].word == "caught", outcomes[name]


@pytest.mark.timeout(600)
def test_what_breaks_nothing_survives_and_is_a_failure_of_the_report(outcomes: dict[str, Outcome]) -> None:
    outcome = outcomes["memory/the-same-thing-said-otherwise"]
    assert (outcome.word, outcome.why) == ("survived", "1 tests pass all the same")
    (failure,) = report([outcome]).failures
    assert failure.startswith("memory/the-same-thing-said-otherwise survived")


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("memory/no-python", "pytest ended with status"),
        ("memory/elsewhere", "the lines of hunk 1 are not there"),
        ("sqlite/no-sql", "the code does not compile"),
    ],
)
def test_what_does_not_run_is_not_taken_for_a_catch(outcomes: dict[str, Outcome], name: str, why: str) -> None:
    outcome = outcomes[name]
    assert outcome.word == "wrong"
    assert why in outcome.why
    assert report([outcome]).failures


@pytest.mark.parametrize("mutation", ALL, ids=lambda mutation: mutation.name)
def test_it_fits_the_code_as_it_is(mutation: Mutation) -> None:
    for path, text in mutation.applied_to(ROOT).items():
        assert text != (ROOT / path).read_text(encoding="utf-8")


def test_there_are_many_and_each_says_something_else() -> None:
    assert len(ALL) >= 60
    assert len({(mutation.part, mutation.broken) for mutation in ALL}) == len(ALL)
    assert {mutation.name for mutation in ALL} >= set(SHORT)
    assert all(file.suffix in (".patch", ".py") for file in MUTATIONS.rglob("*.*") if "__pycache__" not in file.parts)


@pytest.mark.parametrize("mutation", ALL, ids=lambda mutation: mutation.name)
def test_the_tests_that_it_names_are_there(mutation: Mutation) -> None:
    """To ask pytest for them all would take longer than all of this file; what their parameters are, a run says."""
    for test in mutation.tests:
        file, _, name = test.partition("[")[0].partition("::")
        text = (ROOT / file).read_text(encoding="utf-8")
        if file.startswith("tests/conformance/"):
            text += (CONFORMANCE / Path(file).name.removeprefix("test_")).read_text(encoding="utf-8")
        for part in filter(None, name.split("::")):
            assert re.search(rf"^ *(async def|def|class) {part}\b", text, re.MULTILINE), f"{file} has no {part}"


# The applier

HEAD = "--- a/dir/file\n+++ b/dir/file\n"


def _applied(diff: str, text: str) -> str:
    (change,) = read_changes(HEAD + diff)
    return change.applied_to(text)


def test_lines_are_replaced_added_and_taken_away() -> None:
    text = "a\nb\nc\nd\ne\n"
    assert _applied("@@ -2 +2 @@\n-b\n+B\n", text) == "a\nB\nc\nd\ne\n"
    assert _applied("@@ -2,2 +2,3 @@\n b\n+new\n c\n", text) == "a\nb\nnew\nc\nd\ne\n"
    assert _applied("@@ -1,2 +1 @@\n-a\n b\n@@ -5 +4 @@\n-e\n+E\n", text) == "b\nc\nd\nE\n"


def test_a_hunk_goes_where_its_lines_are_whatever_its_number() -> None:
    assert _applied("@@ -900 +900 @@\n-b\n+B\n", "a\nb\n") == "a\nB\n"


def test_what_stays_is_kept_to_the_byte() -> None:
    assert _applied("@@ -2 +2 @@\n-b\n+B\n", "a \r\nb\n\tc") == "a \r\nB\n\tc"


@pytest.mark.parametrize(
    ("diff", "text", "says"),
    [
        ("@@ -1 +1 @@\n-b\n+B\n", "a\nc\n", "hunk 1 are not there"),
        ("@@ -1 +1 @@\n-b\n+B\n", "a\n b\n", "hunk 1 are not there"),
        ("@@ -1 +1 @@\n-b\n+B\n", "b\nb\n", "hunk 1 are there 2 times"),
        ("@@ -1 +1 @@\n-b\n+B\n", "a\nb", "hunk 1 are not there"),
        ("@@ -1,2 +1,2 @@\n a\n-b\n+B\n@@ -3 +3 @@\n-c\n+C\n", "c\na\nb\n", "hunk 2 comes before"),
        ("@@ -1,2 +1,2 @@\n a\n-b\n+B\n@@ -2,2 +2,2 @@\n b\n-c\n+C\n", "a\nb\nc\n", "hunk 2 comes before"),
    ],
)
def test_a_diff_that_does_not_fit_is_refused(diff: str, text: str, says: str) -> None:
    with pytest.raises(BadMutation, match=says):
        _applied(diff, text)


@pytest.mark.parametrize(
    ("diff", "says"),
    [
        ("", "changes nothing"),
        (HEAD, "changes nothing"),
        (f"{HEAD}@@ -1 +1 @@\n-a\n+a\n", "changes none"),
        (f"{HEAD}@@ -0,0 +1 @@\n+a\n", "by no line"),
        (f"{HEAD}@@ -1,2 +1,2 @@\n-a\n+b\n", "has 1 and 1 lines, not 2 and 2"),
        (f"{HEAD}@@ -1 +1 @@\n-a\n+b\n+c\n", "no line of a diff"),
        (f"{HEAD}@@ -1 +1 @@\n-a\n+b", "no line of a hunk"),
        (f"{HEAD}@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+b\n", "no line of a hunk"),
        (f"{HEAD}@@ -1 +1 @@\n-a\n+b\n{HEAD}@@ -1 +1 @@\n-c\n+d\n", "is there twice"),
        ("--- a/one\n+++ b/other\n@@ -1 +1 @@\n-a\n+b\n", "one file is changed at a time"),
        ("--- /dev/null\n+++ b/other\n@@ -1 +1 @@\n-a\n+b\n", "one file is changed at a time"),
        ("--- a/../file\n+++ b/../file\n@@ -1 +1 @@\n-a\n+b\n", "one file is changed at a time"),
        ("--- a/file", "one file is changed at a time"),
        ("@@ -1 +1 @@\n-a\n+b\n", "no line of a diff"),
        ("rename from a\n", "no line of a diff"),
    ],
)
def test_what_is_no_diff_of_files_that_stay_is_refused(diff: str, says: str) -> None:
    with pytest.raises(BadMutation, match=says):
        read_changes(diff)


@pytest.mark.parametrize(
    ("head", "says"),
    [
        ("Broken: x\nPromise: y\n", "names tests"),
        ("Broken: x\nTest: z\n", "which promise"),
        ("Promise: y\nTest: z\n", "what is broken"),
        ("Broken: x\nBroken: x\nPromise: y\nTest: z\n", "what is broken"),
        ("Broken: x\nPromise: \nTest: z\n", "the head has lines"),
        ("Broken: x\nPromise: y\nTests: z\n", "the head has lines"),
    ],
)
def test_a_head_says_what_is_broken_which_promise_and_which_tests(head: str, says: str) -> None:
    with pytest.raises(BadMutation, match=says):
        read_mutation("part/name", f"{head}\n{HEAD}@@ -1 +1 @@\n-a\n+b\n")
