"""``harel worker``: run a handler over a queue."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer

from harel.cli.failure import Failure
from harel.cli.options import TransportUrl, open_queue, url_of
from harel.cli.output import note
from harel.config import Environment, connect_async, redacted

__all__ = ["load", "worker"]

_WORKER_VARIABLES = ("STM_WORKER_ID", "STM_VISIBILITY", "STM_CONCURRENCY")


def worker(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:HANDLER",
            help="A function that takes (event) or (event, context); async or not. The current folder is importable.",
            show_default=False,
        ),
    ],
    transport: TransportUrl = None,
    concurrency: Annotated[
        int | None, typer.Option(metavar="N", help="How many groups at once.", show_default="STM_CONCURRENCY, or 16")
    ] = None,
    visibility: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="How long a lease lasts; it is renewed while a handler runs.",
            show_default="STM_VISIBILITY, or 30",
        ),
    ] = None,
    max_attempts: Annotated[
        int, typer.Option(metavar="N", help="After this many a message goes to the dead letters.")
    ] = 5,
    worker_id: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Who claims.", show_default="STM_WORKER_ID, or host and process"),
    ] = None,
    high_ratio: Annotated[
        float,
        typer.Option(metavar="SHARE", help="0 to 1: the share of claims that ask for a priority first."),
    ] = 0.0,
    priority_threshold: Annotated[int, typer.Option(metavar="0..4", help="The least priority that they ask for.")] = 1,
) -> None:
    """Handle messages until SIGTERM or Ctrl-C; then finish what is held, and leave."""
    settings = Environment.read({name: os.environ[name] for name in _WORKER_VARIABLES if name in os.environ})
    options = {
        "worker_id": settings.worker_id if worker_id is None else worker_id,
        "visibility": settings.visibility if visibility is None else visibility,
        "concurrency": settings.concurrency if concurrency is None else concurrency,
        "max_attempts": max_attempts,
        "high_ratio": high_ratio,
        "priority_threshold": priority_threshold,
    }
    handler = load(target)
    url = url_of(transport)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    announce = f"{options['worker_id']} works for {redacted(url)} with {target}; Ctrl-C stops it."
    from harel.engine.worker import is_async_handler

    if is_async_handler(handler):
        with open_queue(url):
            pass  # what is wrong with it is said here
        asyncio.run(_work_async(url, handler, options, announce))
    else:
        _work(url, handler, options, announce)


def load(target: str) -> Callable[..., Any]:
    """Import a handler.

    Parameters
    ----------
    target : str
        ``module:name``; the name may have dots.
    """
    name, colon, path = target.partition(":")
    if not name or not colon or not path:
        raise Failure(f"A handler is named MODULE:HANDLER, such as shop.events:handle, not {target!r}.")
    handler: Any = _module(name)
    for part in path.split("."):
        try:
            handler = getattr(handler, part)
        except AttributeError:
            raise Failure(f"The module {name} has no {path!r}.") from None
    if not callable(handler):
        raise Failure(f"{target} is not callable; a handler is a function that takes (event) or (event, context).")
    return handler  # type: ignore[no-any-return]


def _module(name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and f"{name}.".startswith(f"{error.name}."):
            raise Failure(f"There is no module {name!r}, neither installed nor in {here}.") from error
        raise Failure(f"The module {name} needs {error.name!r}, which is not installed.") from error
    except (Exception, SystemExit) as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        raise Failure(
            f"The module {name} cannot be imported: {type(error).__name__}: {error} "
            f"({last.filename}, line {last.lineno})."
        ) from error


@contextmanager
def _signals_stop(stop: Callable[[], None]) -> Iterator[None]:
    """Let a signal stop the worker also before it has begun and after it has ended."""
    before = {number: signal.signal(number, lambda *_: stop()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _work(url: str, handler: Callable[..., Any], options: dict[str, Any], announce: str) -> None:
    from harel.engine.worker import Worker

    with open_queue(url) as queue:
        runner = Worker(queue, handler, **options)
        with _signals_stop(runner.stop):
            note(announce)
            runner.run()


async def _work_async(url: str, handler: Callable[..., Any], options: dict[str, Any], announce: str) -> None:
    from harel.engine.worker import AsyncWorker

    queue = await connect_async(url)
    try:
        runner = AsyncWorker(queue, handler, **options)
        with _signals_stop(runner.stop):
            note(announce)
            await runner.run()
    finally:
        await queue.close()
