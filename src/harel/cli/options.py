"""The options that commands share, and the queue that they name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Annotated, TypeAlias

import typer

from harel.config import Environment, connect
from harel.engine.queue.contract import Transport
from harel.errors import ConfigError, NotSupported

__all__ = ["Json", "Limit", "TransportUrl", "must_be_able", "open_queue", "url_of"]

TransportUrl: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--transport",
        metavar="URL",
        help="The queue, such as sqlite:///harel.db. Unless given, the STM_* variables say which.",
        show_default=False,
    ),
]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON, one document a line, for programs.")]
Limit: TypeAlias = Annotated[int, typer.Option("--limit", metavar="N", help="How many at most.")]


def url_of(transport: str | None) -> str:
    """Return the URL that was given, or the one of the environment."""
    return Environment.read().url if transport is None else transport


@contextmanager
def open_queue(transport: str | None) -> Iterator[Transport]:
    """Open the queue that a command is about, and close it afterwards.

    Raises
    ------
    ConfigError
        Also for a queue that only this process could see: it would be empty, and gone with the command.
    """
    with closing(connect(url_of(transport))) as queue:
        if not queue.capabilities.shared:
            raise ConfigError(
                "A queue in memory lives in one process and ends with this command; "
                "name one that others can open, such as sqlite:///harel.db."
            )
        yield queue


def must_be_able(queue: Transport, capability: str, to_do: str) -> None:
    """Raise unless a queue's backend can do what a command is about.

    Raises
    ------
    NotSupported
        Says what it cannot do.
    """
    if not getattr(queue.capabilities, capability):
        raise NotSupported(f"The backend of this queue cannot {to_do} (its capabilities say {capability}=False).")
