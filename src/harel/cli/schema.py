"""``harel schema``: the DDL, for a migration tool."""

from __future__ import annotations

import importlib
from typing import Annotated

import typer

from harel.cli.failure import Failure
from harel.cli.output import say
from harel.config import BACKENDS

__all__ = ["schema"]

_NAMES = tuple(backend.name for backend in BACKENDS)


def schema(
    backend: Annotated[str, typer.Argument(metavar="BACKEND", help=f"One of {', '.join(_NAMES)}.", show_default=False)],
    name: Annotated[
        str | None,
        typer.Option(
            "--prefix",
            "--schema",
            metavar="NAME",
            help="What the names of the tables begin with; for PostgreSQL, the schema that they are in.",
            show_default="transport; public",
        ),
    ] = None,
) -> None:
    """Print the statements that make a backend's tables, for a migration tool.

    Workers then open the queue with the option create_schema=false.
    """
    if backend not in _NAMES:
        raise Failure(f"There is no backend {backend!r}; it is one of {', '.join(_NAMES)}.")
    schema_ddl = getattr(importlib.import_module(f"harel.engine.queue.{backend}.ops"), "schema_ddl", None)
    if schema_ddl is None:
        raise Failure(f"The backend {backend!r} has no schema: there is nothing to make.")
    say((schema_ddl() if name is None else schema_ddl(name)).rstrip())
