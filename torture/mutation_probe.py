"""A plugin of pytest's for the run of a broken variant: writes down what became of the tests, and whose code ran."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import harel

__all__ = ["ANSWER", "Answer", "Failure"]

ANSWER = "HAREL_MUTATION_ANSWER"
"""Names the variable that says where the answer is written."""

_NO_TESTS_WORD = (ImportError, SyntaxError, NameError)
_NONSENSE = (
    "syntax error",
    "SyntaxError",
    "Error compiling script",
    "no such column",
    "no such table",
    "UndefinedColumn",
)


class Failure(msgspec.Struct):
    """A test that failed.

    Attributes
    ----------
    test : str
        Its id.
    error : str
        The first line of what was raised.
    nonsense : bool
        Whether that only says that the code does not compile, be it Python, SQL or Lua.
    """

    test: str
    error: str
    nonsense: bool


class Answer(msgspec.Struct):
    """What became of a run.

    Attributes
    ----------
    code : str
        Where the package ``harel`` was taken from.
    passed, skipped : list of str
        Ids of tests.
    failed : list of Failure
    uncollected : list of str
        Files that could not be read, with their errors.
    """

    code: str = ""
    passed: list[str] = []
    skipped: list[str] = []
    failed: list[Failure] = []
    uncollected: list[str] = []


_answer = Answer(code=harel.__file__)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note what became of a test."""
    report = yield
    if report.failed:
        assert call.excinfo is not None
        error = call.excinfo.value
        line = (str(error).strip().splitlines() or [""])[0]
        nonsense = any(_is_nonsense(each) for each in _chain(error))
        _answer.failed.append(Failure(item.nodeid, f"{type(error).__name__}: {line}", nonsense))
    elif report.skipped:
        _answer.skipped.append(item.nodeid)
    elif report.when == "call":
        _answer.passed.append(item.nodeid)
    return report


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Note what could not be read."""
    if report.failed:
        _answer.uncollected.append(f"{report.nodeid}: {report.longreprtext.strip().splitlines()[-1]}")


def pytest_unconfigure() -> None:
    """Write it down."""
    Path(os.environ[ANSWER]).write_bytes(msgspec.json.encode(_answer))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _is_nonsense(error: BaseException) -> bool:
    said = f"{type(error).__name__}: {error}"
    return isinstance(error, _NO_TESTS_WORD) or any(words in said for words in _NONSENSE)
