"""What holds for every command: its help, its errors, its exit status."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import harel as package
from harel import Transport
from harel.cli import look
from harel.engine.transport import SqliteTransport
from tests.cli.conftest import Harel

COMMANDS = (
    ("publish", "g", "kind"),
    ("worker", "json:dumps"),
    ("stats",),
    ("groups",),
    ("peek", "g"),
    ("dead",),
    ("hold", "g"),
    ("release", "g"),
    ("purge", "g", "--yes"),
    ("redrive", "1"),
    ("demo",),
)
every_command = pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])


def test_version(harel: Harel) -> None:
    assert harel("--version").succeeded() == f"harel {package.__version__}\n"


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",)])
def test_help_names_every_command(harel: Harel, arguments: tuple[str, ...]) -> None:
    shown = harel(*arguments).succeeded()
    for name, *_ in (*COMMANDS, ("schema",)):
        assert f" {name} " in shown


@every_command
def test_each_command_has_help(harel: Harel, command: tuple[str, ...]) -> None:
    assert "--transport" in harel(command[0], "--help").succeeded()


@every_command
def test_a_queue_in_memory_is_refused(harel: Harel, command: tuple[str, ...]) -> None:
    """Whatever a command did to it would be gone when the command ends."""
    sentence = harel(*command, "--transport", "memory://").failed()
    assert sentence.startswith("A queue in memory lives in one process")


@every_command
@pytest.mark.parametrize("url", ["nosuch://u:secret@host/x?password=secret", "sqlite://u:secret@host/x?a=secret"])
def test_an_unusable_url_is_a_sentence_without_its_password(harel: Harel, command: tuple[str, ...], url: str) -> None:
    sentence = harel(*command, "--transport", url).failed()
    assert "u:***@host/x" in sentence
    assert "secret" not in sentence


@every_command
def test_a_bad_setting_names_its_variable(
    harel: Harel, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STM_TRANSPORT_BACKEND", "paper")
    if command[0] == "demo":
        pytest.skip("the demo makes its own queue unless it is given one")
    assert harel(*command).failed().startswith("STM_TRANSPORT_BACKEND is 'paper'")


def test_the_environment_says_which_queue(harel: Harel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STM_TRANSPORT_DB", "other.db")
    harel("publish", "g", "kind").succeeded()
    assert (tmp_path / "other.db").exists()
    assert not (tmp_path / "harel.db").exists()


def test_the_option_wins_over_the_environment(harel: Harel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STM_TRANSPORT_BACKEND", "paper")
    harel("publish", "g", "kind", "--transport", "sqlite:///named.db").succeeded()
    assert (tmp_path / "named.db").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("statz",), "No such command 'statz'"),
        (("stats", "--jsn"), "--jsn"),
        (("peek",), "Missing argument 'GROUP'"),
        (("groups", "--state", "lost"), "'lost' is not one of"),
        (("groups", "--limit", "many"), "Invalid value for '--limit'"),
        (("--nosuch",), "--nosuch"),
    ],
)
def test_a_usage_error_is_a_sentence_that_says_where_help_is(
    harel: Harel, arguments: tuple[str, ...], said: str
) -> None:
    sentence = harel(*arguments).failed()
    assert said in sentence
    assert sentence.endswith("--help'.")


def test_a_file_that_is_no_queue_is_a_sentence(harel: Harel, tmp_path: Path) -> None:
    (tmp_path / "harel.db").write_text("This is a letter to my aunt, and long enough not to look like a new file." * 20)
    assert harel("stats").failed() == "harel.db is not a SQLite database."


def test_a_fault_of_harels_own_is_a_sentence(harel: Harel, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: str | None) -> Transport:
        raise RuntimeError("line one\nline two")

    monkeypatch.setattr(look, "open_queue", fail)
    assert harel("stats").failed().startswith("Unexpected RuntimeError: line one line two.")


def test_an_error_of_the_system_is_a_sentence(harel: Harel, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: str | None) -> Transport:
        raise PermissionError(13, "Permission denied", "/secret/place")

    monkeypatch.setattr(look, "open_queue", fail)
    assert harel("stats").failed() == "/secret/place: Permission denied."


@pytest.mark.parametrize(
    ("command", "capability", "said"),
    [
        (("stats",), "stats", "count its messages and groups"),
        (("groups",), "groups", "list its groups"),
        (("peek", "g"), "peek", "show the messages of a group"),
        (("dead",), "dead_letters", "list its dead letters"),
        (("redrive", "1"), "dead_letters", "list and redrive its dead letters"),
        (("redrive", "--all"), "dead_letters", "list and redrive its dead letters"),
        (("hold", "g"), "hold", "hold a group back"),
        (("release", "g"), "hold", "hold a group back"),
        (("purge", "g", "--yes"), "purge", "delete the messages of a group"),
    ],
)
def test_what_a_backend_cannot_do_is_a_sentence_that_says_what(
    harel: Harel, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], capability: str, said: str
) -> None:
    with SqliteTransport("harel.db") as queue:
        less = msgspec.structs.replace(queue.capabilities, **{capability: False})
    monkeypatch.setattr(SqliteTransport, "capabilities", property(lambda self: less))
    sentence = harel(*command).failed()
    assert sentence == f"The backend of this queue cannot {said} (its capabilities say {capability}=False)."


def test_what_a_terminal_would_obey_is_escaped_in_errors(harel: Harel) -> None:
    assert harel("publish", "--file", "a\x1b[2J\nb").failed() == r"a\x1b[2J b: No such file or directory."


def test_schema_prints_what_makes_the_tables(harel: Harel, tmp_path: Path) -> None:
    import sqlite3

    from harel.engine.transport import SqliteTransport

    printed = harel("schema", "sqlite", "--prefix", "shop").succeeded()
    connection = sqlite3.connect(tmp_path / "made.db")
    connection.executescript(printed)
    connection.close()
    with SqliteTransport(tmp_path / "made.db", prefix="shop", create_schema=False) as transport:
        assert transport.stats().groups == 0


def test_schema_prints_postgresqls_tables_in_the_schema_that_is_named(harel: Harel) -> None:
    assert 'CREATE TABLE IF NOT EXISTS "public".transport_groups' in harel("schema", "postgres").succeeded()
    printed = harel("schema", "postgres", "--schema", "shop").succeeded()
    assert 'CREATE SCHEMA IF NOT EXISTS "shop"' in printed
    assert '"public"' not in printed


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("paper",), "There is no backend 'paper'; it is one of memory, sqlite"),
        (("memory",), "The backend 'memory' has no schema"),
        (("sqlite", "--prefix", "a; DROP"), "prefix"),
    ],
)
def test_schema_refuses(harel: Harel, arguments: tuple[str, ...], said: str) -> None:
    assert said in harel("schema", *arguments).failed()
