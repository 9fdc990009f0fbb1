"""What looks on while a worker works: metrics and traces are made of this."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from harel.engine.queue.contract import Lease
from harel.engine.worker.policy import Verdict
from harel.events import Event

__all__ = ["Observer"]


class Observer:
    """Sees what becomes of each message. Every method does nothing unless a subclass says otherwise.

    All are called on the worker's event loop, but for what :meth:`handling` returns; none may block.
    """

    def began(self, lease: Lease) -> None:
        """See that a message was claimed, and that its handler is about to be called."""

    def handling(self, lease: Lease, event: Event) -> AbstractContextManager[object]:  # noqa: ARG002
        """Return what the handler's call is put inside of; it is entered and left where the handler runs.

        That is a thread for a sync handler. It sees the handler's exception, and may not swallow it.
        """
        return nullcontext()

    def settled(self, lease: Lease, verdict: Verdict, handled_s: float, error: BaseException | None) -> None:
        """See that a message was settled.

        Parameters
        ----------
        lease : Lease
        verdict : Done, Again, Dead or Held
            What became of it.
        handled_s : float
            For how many seconds its handler ran.
        error : BaseException or None
            What the handler raised.
        """

    def lost(self, lease: Lease, handled_s: float) -> None:
        """See that a lease was lost, so that what its handler did is not settled."""

    def unreachable(self, error: Exception) -> None:
        """See that the queue cannot be reached."""

    def reachable(self) -> None:
        """See that the queue can be reached again."""
