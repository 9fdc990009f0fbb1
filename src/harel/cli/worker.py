"""``harel worker``: run a handler over a queue, in this process or in several."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
import typer

from harel.cli.failure import WRONG, Failure
from harel.cli.handlers import load
from harel.cli.logs import LogFormat, log_to_stderr
from harel.cli.options import TransportUrl, url_of
from harel.cli.output import note
from harel.config import Environment, redacted
from harel.engine.worker.policy import OnExhausted
from harel.errors import HarelError

__all__ = ["worker"]

log: logging.Logger = logging.getLogger("harel.cli")

_VARIABLES = ("STM_WORKER_ID", "STM_VISIBILITY", "STM_CONCURRENCY")
_HIGHEST_PORT = 65_535

_CLAIMING, _FAILING, _ENDING, _WATCHING = "Claiming", "When handling fails", "How it ends", "Watching it"


def worker(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:HANDLER",
            help="A function that takes (event) or (event, context), async or not, or a harel.Router. "
            "The current folder is importable.",
            show_default=False,
        ),
    ],
    transport: TransportUrl = None,
    processes: Annotated[
        int, typer.Option(metavar="N", min=1, help="How many worker processes; one that dies is replaced.")
    ] = 1,
    transactional: Annotated[
        bool,
        typer.Option(
            "--transactional", help="Handle and settle each message in one transaction; see context.connection."
        ),
    ] = False,
    concurrency: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="How many groups at once, in each process.",
            show_default="STM_CONCURRENCY, or 16",
            rich_help_panel=_CLAIMING,
        ),
    ] = None,
    visibility: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="How long a lease lasts; it is renewed while a handler runs.",
            show_default="STM_VISIBILITY, or 30",
            rich_help_panel=_CLAIMING,
        ),
    ] = None,
    worker_id: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Who claims; of several processes each adds its number.",
            show_default="STM_WORKER_ID, or host and process",
            rich_help_panel=_CLAIMING,
        ),
    ] = None,
    high_ratio: Annotated[
        float,
        typer.Option(
            metavar="SHARE",
            help="0 to 1: the share of claims that ask for a priority first.",
            rich_help_panel=_CLAIMING,
        ),
    ] = 0.0,
    priority_threshold: Annotated[
        int, typer.Option(metavar="0..4", help="The least priority that they ask for.", rich_help_panel=_CLAIMING)
    ] = 1,
    max_attempts: Annotated[
        int,
        typer.Option(metavar="N", help="The failure of this attempt is final.", rich_help_panel=_FAILING),
    ] = 5,
    on_exhausted: Annotated[
        OnExhausted,
        typer.Option(
            help="Then: to the dead letters, and its group goes on; or hold the group, the message in front.",
            rich_help_panel=_FAILING,
        ),
    ] = "dead_letter",
    backoff: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            help="Before the second attempt; each further one waits twice as long.",
            rich_help_panel=_FAILING,
        ),
    ] = 1.0,
    max_backoff: Annotated[
        float, typer.Option(metavar="SECONDS", help="The longest wait.", rich_help_panel=_FAILING)
    ] = 300.0,
    jitter: Annotated[
        float,
        typer.Option(metavar="SHARE", help="0 to 1: the part of the wait that is random.", rich_help_panel=_FAILING),
    ] = 0.5,
    drain_timeout: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            help="After a signal, give back what is not finished by then.",
            rich_help_panel=_ENDING,
        ),
    ] = 30.0,
    give_up_after: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="End with status 2 when the queue was out of reach for so long.",
            show_default="never",
            rich_help_panel=_ENDING,
        ),
    ] = None,
    log_format: Annotated[
        LogFormat, typer.Option(help="Lines for people, or a JSON object a line.", rich_help_panel=_WATCHING)
    ] = "text",
    metrics_port: Annotated[
        int | None,
        typer.Option(
            metavar="PORT",
            min=0,
            max=_HIGHEST_PORT,
            help="Serve metrics for Prometheus; of several processes each on a port of its own, from this one up.",
            show_default="none",
            rich_help_panel=_WATCHING,
        ),
    ] = None,
    metrics_host: Annotated[
        str,
        typer.Option(metavar="ADDRESS", help="Where; 0.0.0.0 lets other machines ask.", rich_help_panel=_WATCHING),
    ] = "127.0.0.1",
    tracing: Annotated[
        bool, typer.Option("--tracing", help="Make spans with OpenTelemetry.", rich_help_panel=_WATCHING)
    ] = False,
    queue_name: Annotated[
        str, typer.Option(metavar="NAME", help="What metrics and traces call the queue.", rich_help_panel=_WATCHING)
    ] = "default",
) -> None:
    """Handle messages until SIGTERM or Ctrl-C; then finish what is held, and leave. A second signal ends it at once."""
    variables = Environment.read({name: os.environ[name] for name in _VARIABLES if name in os.environ})
    from harel.cli.work import WorkerSettings, try_out  # a worker takes longer to import than other commands to run

    settings = WorkerSettings(
        target=target,
        url=url_of(transport),
        options={
            "worker_id": variables.worker_id if worker_id is None else worker_id,
            "visibility": variables.visibility if visibility is None else visibility,
            "concurrency": variables.concurrency if concurrency is None else concurrency,
            "high_ratio": high_ratio,
            "priority_threshold": priority_threshold,
            "drain_timeout": drain_timeout,
            "give_up_after": give_up_after,
            "transactional": transactional,
        },
        retry={
            "max_attempts": max_attempts,
            "on_exhausted": on_exhausted,
            "backoff": backoff,
            "max_backoff": max_backoff,
            "jitter": jitter,
        },
        log_format=log_format,
        queue_name=queue_name,
        metrics_host=metrics_host,
        metrics_port=metrics_port,
        tracing=tracing,
    )
    if processes > 1 and metrics_port is not None and not 0 < metrics_port <= _HIGHEST_PORT + 1 - processes:
        raise Failure(
            f"{processes} processes serve metrics on as many ports, from --metrics-port up; "
            f"it takes one from 1 to {_HIGHEST_PORT + 1 - processes}, not {metrics_port}."
        )
    handler = load(target)
    try_out(settings, handler)
    log_to_stderr(log_format, settings.worker_id)
    _end(_work_here(settings, handler) if processes == 1 else _work_in_several(settings, processes))


def _work_here(settings: Any, handler: Callable[..., Any]) -> int:
    from harel.cli.work import Stopper, work

    stopper = Stopper()
    with stopper.on_signals():
        try:
            work(settings, handler, stopper, lambda: _announce(settings, ""))
        except HarelError as error:
            if settings.log_format == "text":
                raise
            log.error("%s", error)
            return WRONG
    return 0


def _work_in_several(settings: Any, count: int) -> int:
    from harel.cli.crew import Crew, MemberProcess, reap_orphans, signals_to

    def start(number: int) -> MemberProcess:
        options = {**settings.options, "worker_id": f"{settings.worker_id}-{number}"}
        port = settings.metrics_port
        return MemberProcess(
            msgspec.structs.replace(
                settings,
                options=options,
                metrics_port=None if port is None else port + number,
                queue_metrics=number == 0,
            )
        )

    crew = Crew(count, start, tidy=reap_orphans if os.getpid() == 1 else None)
    with signals_to(crew):
        _announce(settings, f" in {count} processes")
        return crew.run()


def _announce(settings: Any, where: str) -> None:
    sentence = f"{settings.worker_id} works for {redacted(settings.url)} with {settings.target}{where}"
    if settings.log_format == "json":
        log.info("%s.", sentence)
    else:
        note(f"{sentence}; Ctrl-C stops it.")


def _end(status: int) -> None:
    if status:
        raise typer.Exit(status)
