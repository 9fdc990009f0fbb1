"""What a worker goes by, checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from harel.engine.worker.observer import Observer
from harel.engine.worker.policy import RetryPolicy, Share
from harel.engine.worker.timing import Timing

__all__ = ["Settings"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a loop goes by.

    Attributes
    ----------
    worker_id : str
    visibility : float
        Seconds that a lease lasts; while its handler runs it is renewed at a third of that.
    concurrency : int
        How many groups at once.
    retry : RetryPolicy
    share : Share
        Which claims ask for ``priority_threshold`` first.
    priority_threshold : int
    drain_timeout : float
        Seconds that handlers have to finish after a stop.
    give_up_after : float or None
        Seconds without the server after which the loop ends.
    observers : sequence of Observer
    handler : str
        The handler's name.
    keeps_leases : bool
        Whether a lease needs no renewing while its handler runs.
    claims_ahead : bool
        Whether claims go on beside handlers, so that it pays to claim for some slots while the others work.
    watches : bool
        Whether the transport's ``wait`` looks; otherwise a claim is the only look.
    wait_s : float
        How long a wait lasts at most.
    longest_delay_s : float
        What the transport takes at most.
    timing : Timing
    """

    worker_id: str
    visibility: float
    concurrency: int
    retry: RetryPolicy
    share: Share
    priority_threshold: int
    drain_timeout: float
    give_up_after: float | None
    observers: Sequence[Observer]
    handler: str
    keeps_leases: bool
    claims_ahead: bool
    watches: bool
    wait_s: float
    longest_delay_s: float
    timing: Timing = field(default_factory=Timing)
