"""One message that a worker holds, from its claim to its settlement."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

from harel.engine.queue.contract import Lease
from harel.engine.worker.policy import Verdict

__all__ = ["Job", "Revoked"]

Revoked = Literal["lost", "stopped"]


class Job:
    """One message that a worker holds.

    Attributes
    ----------
    lease : Lease
    until : float
        To this moment of the worker's own clock, in seconds, the lease runs at least. The server may be late with its
        answers, so this counts from when it was asked.
    renew_at : float
        When the lease is to be renewed, by the same clock.
    began, handled_s : float
        When the handler was called, and for how many seconds it ran.
    task : asyncio.Task or None
        What the handler runs in, while it does.
    revoked : str or None
        Why its result does not count any more: the lease was ``"lost"``, or the worker ``"stopped"`` and gives the
        message back.
    verdict : Done, Again, Dead, Held or None
        What is to become of it, once that is known.
    error : BaseException or None
        What the handler raised.
    holds_group : bool
        Whether the group was held before this last attempt, and is to be released unless it failed.
    committed : bool
        Whether the message was settled in the handler's own transaction.
    asked : bool
        Whether a settlement was tried whose answer never came.
    settling : bool
        Whether it is being settled in the handler's own transaction: then the queue's word that its lease is gone does
        not say that it is lost.
    told_lost : bool
        Whether whoever renewed the lease during the handler's call heard that it was lost.
    """

    __slots__ = (
        "asked",
        "began",
        "committed",
        "error",
        "handled_s",
        "holds_group",
        "lease",
        "renew_at",
        "revoked",
        "settling",
        "task",
        "told_lost",
        "until",
        "verdict",
    )

    def __init__(self, lease: Lease, until: float, renew_at: float) -> None:
        self.lease = lease
        self.until = until
        self.renew_at = renew_at
        self.began = 0.0
        self.handled_s = 0.0
        self.task: asyncio.Task[Any] | None = None
        self.revoked: Revoked | None = None
        self.verdict: Verdict | None = None
        self.error: BaseException | None = None
        self.holds_group = False
        self.committed = False
        self.asked = False
        self.settling = False
        self.told_lost = False
