"""The command's wiring, and how whatever goes wrong becomes a sentence and an exit status."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

import harel
from harel.cli import demo, look, operate, publish, schema, worker
from harel.cli.failure import INTERRUPTED, PIPE_CLOSED, WRONG, Failure
from harel.cli.output import note, say, shown
from harel.errors import HarelError

__all__ = ["app", "main", "run"]

# Typer carries its own copy of click in some versions; this is ClickException, whichever it is.
_UsageProblem: type[Any] = typer.BadParameter.__mro__[2]


class _Group(TyperGroup):
    """Ends in silence when the reader of its output is gone."""

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            _drop_output()
            raise typer.Exit(PIPE_CLOSED) from None
        return result


app = typer.Typer(
    name="harel",
    cls=_Group,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_WORK, _LOOK, _OPERATE, _MORE = "Work", "Look", "Operate", "More"
app.command(rich_help_panel=_WORK)(publish.publish)
app.command(rich_help_panel=_WORK)(worker.worker)
app.command(rich_help_panel=_LOOK)(look.stats)
app.command(rich_help_panel=_LOOK)(look.groups)
app.command(rich_help_panel=_LOOK)(look.peek)
app.command(rich_help_panel=_LOOK)(look.dead)
app.command(rich_help_panel=_OPERATE)(operate.hold)
app.command(rich_help_panel=_OPERATE)(operate.release)
app.command(rich_help_panel=_OPERATE)(operate.purge)
app.command(rich_help_panel=_OPERATE)(operate.redrive)
app.command(rich_help_panel=_MORE)(schema.schema)
app.command(rich_help_panel=_MORE)(demo.demo)


def _print_version(wanted: bool) -> None:
    if wanted:
        say(f"harel {harel.__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _harel(
    context: typer.Context,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Work a FIFO queue partitioned into groups: one message of a group in flight, in order, none lost.

    Which queue: --transport URL on every command, or the STM_* variables.
    Exit status: 0, 1 when the answer is no, 2 when the command could not be carried out.
    """
    if context.invoked_subcommand is None:
        say(context.get_help())


def main() -> NoReturn:
    """Run the command with the arguments of this process, and leave."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    status = run(sys.argv[1:])
    try:
        sys.stdout.flush()
    except OSError:
        _drop_output()
    sys.exit(status)


def run(arguments: Sequence[str]) -> int:
    """Run the command and return its exit status. What goes wrong is said on standard error.

    Parameters
    ----------
    arguments : sequence of str
        Without the name of the program.
    """
    try:
        status = typer.main.get_command(app).main(list(arguments), prog_name="harel", standalone_mode=False)
    except Failure as failure:
        return _fail(str(failure), failure.status)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except HarelError as error:
        return _fail(str(error))
    except _UsageProblem as problem:
        return _fail(_usage(problem))
    except OSError as error:
        return _fail(_explained(error))
    except Exception as error:
        if sys.flags.dev_mode:
            raise
        return _fail(
            f"Unexpected {type(error).__name__}: {error}. This is a fault in harel; "
            "`python -X dev -m harel.cli` with the same arguments shows where."
        )
    return status if isinstance(status, int) else 0


def _fail(sentence: str, status: int = WRONG) -> int:
    note(f"harel: {shown(' '.join(sentence.splitlines()))}")
    return status


def _usage(problem: Any) -> str:
    context = getattr(problem, "ctx", None)
    hint = f" Try '{context.command_path} --help'." if context else ""
    return f"{problem.format_message().rstrip('.')}.{hint}"


def _explained(error: OSError) -> str:
    what = error.strerror or str(error)
    return f"{error.filename}: {what}." if error.filename else f"{what}."


def _drop_output() -> None:
    """Let what is still buffered go nowhere, so that Python's own flush at the end does not complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
