"""``harel worker``: which handler, with which settings, and how it ends."""

from __future__ import annotations

import inspect
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from harel import Event, RetryPolicy, Transport, Worker
from harel.cli import work
from tests.cli.conftest import COMMAND, Harel

HANDLERS = """
import os, signal

def note(event, attempt):
    with open("handled", "a") as file:
        print(event.payload["n"], attempt, file=file)
    if event.payload["n"] == 3:
        os.kill(os.getpid(), signal.SIGTERM)

def plain(event):
    note(event, "-")

async def waiting(event, context):
    note(event, context.attempt)

class Shop:
    async def handle(self, event):
        note(event, "-")

shop = Shop()

def failing(event):
    note(event, "-")
    raise ValueError("out of stock")

number = 5
"""


@pytest.fixture(autouse=True)
def handlers(tmp_path: Path) -> None:
    """Put a module of handlers into the current folder."""
    (tmp_path / "shop_handlers.py").write_text(HANDLERS)


@pytest.fixture
def three(queue: Transport) -> Transport:
    for n in (1, 2, 3):
        queue.publish("g", Event("k", {"n": n}))
    return queue


@pytest.mark.parametrize(
    ("handler", "attempt"), [("plain", "-"), ("waiting", "1"), ("shop.handle", "-")], ids=["sync", "async", "method"]
)
def test_handles_messages_in_order_and_ends_with_sigterm(
    process: Harel, three: Transport, tmp_path: Path, handler: str, attempt: str
) -> None:
    """The handler of the last message sends the signal, and still has its message settled."""
    outcome = process("worker", f"shop_handlers:{handler}", "--worker-id", "w-1")
    assert (outcome.status, outcome.out) == (0, "")
    first, *rest = outcome.err.splitlines()
    assert first == f"w-1 works for sqlite:///harel.db with shop_handlers:{handler}; Ctrl-C stops it."
    assert [line for line in rest if " INFO w-1 harel.worker: SIGTERM: " not in line] == []
    assert (tmp_path / "handled").read_text().split("\n") == [*(f"{n} {attempt}" for n in (1, 2, 3)), ""]
    assert three.stats().groups == 0


@pytest.mark.parametrize("handler", ["plain", "waiting"])
def test_ctrl_c_ends_an_idle_worker_without_a_traceback(queue: Transport, handler: str) -> None:
    with subprocess.Popen(
        [*COMMAND, "worker", f"shop_handlers:{handler}"], stderr=subprocess.PIPE, text=True
    ) as command:
        assert command.stderr is not None
        assert command.stderr.readline().endswith("Ctrl-C stops it.\n")
        command.send_signal(signal.SIGINT)
        rest = command.stderr.read()
        status = command.wait(timeout=60)
    assert "Traceback" not in rest
    assert status in {0, 130}  # 130 if it came before the worker listened for it


def test_a_stop_that_comes_before_the_worker_stops_it_all_the_same() -> None:
    """Such as a signal while the queue is being opened."""
    stopped: list[str] = []
    early, late = work.Stopper(), work.Stopper()
    with early.on_signals():
        os.kill(os.getpid(), signal.SIGTERM)
    early.passes_to(lambda: stopped.append("early"))
    late.passes_to(lambda: stopped.append("late"))
    assert stopped == ["early"]
    late()
    assert stopped == ["early", "late"]


def test_what_fails_for_good_goes_to_the_dead_letters(process: Harel, three: Transport) -> None:
    outcome = process("worker", "shop_handlers:failing", "--max-attempts", "1")
    assert outcome.status == 0
    reasons = [letter.reason.splitlines()[0] for letter in three.dead_letters()]
    assert reasons == ["Failed once; the last error was ValueError: out of stock"] * 3


class Told:
    """Stands in for a worker, and keeps what it was told."""

    options: dict[str, Any]

    def __init__(self, transport: Any, handler: Any, **options: Any) -> None:
        type(self).options = options

    def run(self) -> None:
        pass

    def stop(self) -> None:
        pass


def test_the_options_reach_the_worker(harel: Harel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "Worker", Told)
    monkeypatch.setenv("STM_WORKER_ID", "from the environment")
    outcome = harel(
        *("worker", "shop_handlers:plain", "--concurrency", "3", "--visibility", "4.5", "--max-attempts", "7"),
        *("--worker-id", "w", "--high-ratio", "0.25", "--priority-threshold", "2", "--transactional"),
        *("--on-exhausted", "hold", "--backoff", "2", "--max-backoff", "9", "--jitter", "0.25"),
        *("--drain-timeout", "7.5", "--give-up-after", "60"),
    )
    assert outcome.status == 0
    assert Told.options == {
        "worker_id": "w",
        "concurrency": 3,
        "visibility": 4.5,
        "high_ratio": 0.25,
        "priority_threshold": 2,
        "transactional": True,
        "drain_timeout": 7.5,
        "give_up_after": 60.0,
        "retry": RetryPolicy(max_attempts=7, on_exhausted="hold", backoff=2.0, max_backoff=9.0, jitter=0.25),
        "observers": (),
    }


def test_the_variables_stand_in_for_options(harel: Harel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "Worker", Told)
    for name, value in (("STM_WORKER_ID", "w-9"), ("STM_VISIBILITY", "12"), ("STM_CONCURRENCY", "2")):
        monkeypatch.setenv(name, value)
    assert harel("worker", "shop_handlers:plain").status == 0
    assert Told.options == {
        "worker_id": "w-9",
        "concurrency": 2,
        "visibility": 12.0,
        "high_ratio": 0.0,
        "priority_threshold": 1,
        "transactional": False,
        "drain_timeout": 30.0,
        "give_up_after": None,
        "retry": RetryPolicy(),
        "observers": (),
    }


def test_what_is_not_given_is_what_a_worker_does_by_itself(harel: Harel, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command's defaults are the library's."""
    monkeypatch.setattr(work, "Worker", Told)
    assert harel("worker", "shop_handlers:plain").status == 0
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(Worker).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    told = {**Told.options, "worker_id": None, "retry": None}
    assert told == defaults
    assert Told.options["retry"] == RetryPolicy()


def test_passwords_are_not_announced(harel: Harel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "Worker", Told)
    outcome = harel("worker", "shop_handlers:plain", "--transport", "sqlite:///u:secret@file.db?busy_timeout=7")
    assert "works for sqlite:///u:***@file.db with" in outcome.err
    assert "secret" not in outcome.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("shop_handlers",), "A handler is named MODULE:HANDLER, such as shop.events:handle, not 'shop_handlers'."),
        ((":plain",), "A handler is named MODULE:HANDLER"),
        (("shop_handlers:",), "A handler is named MODULE:HANDLER"),
        (("no_such_module:plain",), "There is no module 'no_such_module', neither installed nor in "),
        (("os.no_such:plain",), "There is no module 'os.no_such', neither installed nor in "),
        (("shop_handlers:no_such",), "The module shop_handlers has no 'no_such'."),
        (("shop_handlers:shop.no_such",), "The module shop_handlers has no 'shop.no_such'."),
        (("shop_handlers:number",), "shop_handlers:number is not callable"),
        (("needs_more:f",), "The module needs_more needs 'no_such_driver', which is not installed."),
        (("broken:f",), "The module broken cannot be imported: ZeroDivisionError: division by zero ("),
        (("typo:f",), "The module typo cannot be imported: SyntaxError: "),
        (("leaves:f",), "The module leaves cannot be imported: SystemExit: 0 ("),
        (("shop_handlers:plain", "--concurrency", "0"), "concurrency must be an int of at least 1, not 0."),
        (("shop_handlers:waiting", "--high-ratio", "2"), "high_ratio must be from 0 to 1, not 2.0."),
        (("shop_handlers:plain", "--max-attempts", "0"), "max_attempts must be an int of at least 1, not 0."),
        (("shop_handlers:plain", "--priority-threshold", "9"), "priority_threshold must be from 0 to 4, not 9."),
        (("shop_handlers:note", "--visibility", "x"), "Invalid value for '--visibility'"),
    ],
)
def test_what_is_wrong_is_a_sentence(
    harel: Harel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], said: str
) -> None:
    for name, text in (
        ("needs_more", "import no_such_driver"),
        ("broken", "1 / 0"),
        ("typo", "def f(:"),
        ("leaves", "raise SystemExit(0)"),
    ):
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    assert harel("worker", *arguments).failed().startswith(said)


def test_a_bad_variable_is_a_sentence(harel: Harel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STM_VISIBILITY", "soon")
    assert harel("worker", "shop_handlers:plain").failed().startswith("STM_VISIBILITY is 'soon'; it takes")
