"""The worker's log: every record says which worker, and of which message, in fields of its own."""

from __future__ import annotations

import logging
from typing import Any

from harel.engine.queue.contract import Lease

__all__ = ["WorkerLog", "logger", "which"]

logger: logging.Logger = logging.getLogger("harel.worker")


class WorkerLog:
    """Writes to the logger ``harel.worker``.

    Each record carries ``worker``, ``group``, ``seq`` and ``attempt``, for a formatter that shows fields; the last
    three are ``None`` in one that is not about a message.

    Parameters
    ----------
    worker_id : str
    """

    def __init__(self, worker_id: str) -> None:
        self._worker_id = worker_id

    def __call__(
        self, level: int, text: str, *args: Any, lease: Lease | None = None, error: BaseException | None = None
    ) -> None:
        """Log a sentence.

        Parameters
        ----------
        level : int
        text : str
            With ``%`` places for ``args``.
        lease : Lease, optional
            The message that it is about.
        error : BaseException, optional
            What is shown with its traceback.
        """
        fields: dict[str, Any] = {"worker": self._worker_id, "group": None, "seq": None, "attempt": None}
        if lease is not None:
            fields |= {"group": lease.group_id, "seq": lease.seq, "attempt": lease.attempt}
        logger.log(level, text, *args, extra=fields, exc_info=error)


def which(lease: Lease) -> str:
    """Name a message to a person."""
    return f"group {lease.group_id!r}, seq {lease.seq}, attempt {lease.attempt}"
