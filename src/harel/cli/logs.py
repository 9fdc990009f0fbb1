"""What a worker process logs: lines for people, or an object a line for programs."""

from __future__ import annotations

import json
import logging
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

from harel.engine.queue.contract import Lease
from harel.engine.worker.observer import Observer
from harel.events import Event

__all__ = ["HandledNow", "LogFormat", "log_to_stderr"]

LogFormat: TypeAlias = Literal["text", "json"]

_TEXT = "%(asctime)s %(levelname)s {worker} %(name)s: %(message)s"
_WHICH = ("group", "seq", "attempt")
_handled_now: ContextVar[Lease | None] = ContextVar("harel_handled_now", default=None)


def log_to_stderr(kind: LogFormat, worker: str) -> None:
    """Have what is logged written to standard error, from INFO on.

    Parameters
    ----------
    kind : str
        ``"json"`` replaces whatever was configured; ``"text"`` leaves it.
    worker : str
        Whose log it is.
    """
    stream = logging.StreamHandler(sys.stderr)
    if kind == "json":
        stream.setFormatter(_Objects(worker))
        logging.captureWarnings(True)
    else:
        stream.setFormatter(logging.Formatter(_TEXT.format(worker=worker.replace("%", "%%"))))
    logging.basicConfig(level=logging.INFO, handlers=[stream], force=kind == "json")


class HandledNow(Observer):
    """Lets what a handler logs say for which message it was."""

    @contextmanager
    def handling(self, lease: Lease, event: Event) -> Iterator[None]:  # noqa: ARG002
        before = _handled_now.set(lease)
        try:
            yield
        finally:
            _handled_now.reset(before)


class _Objects(logging.Formatter):
    """One JSON object a line: ``time``, ``level``, ``logger``, ``message``, ``worker``, and what else is known.

    That is ``group``, ``seq`` and ``attempt`` of the message that is being handled or settled; ``error`` and
    ``traceback`` of an exception.
    """

    def __init__(self, worker: str) -> None:
        super().__init__()
        self._worker = worker

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "worker": self._worker,
            **_which_message(record),
        }
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            fields["error"] = "".join(traceback.format_exception_only(error)).rstrip("\n")
            fields["traceback"] = "".join(traceback.format_exception(error))
        return json.dumps(fields)  # ASCII alone: no line of it can hold what ends a line


def _which_message(record: logging.LogRecord) -> dict[str, Any]:
    lease = _handled_now.get()
    if lease is not None:
        return {"group": lease.group_id, "seq": lease.seq, "attempt": lease.attempt}
    told = {name: getattr(record, name, None) for name in _WHICH}  # the worker's own records have them
    return {name: value for name, value in told.items() if value is not None}
