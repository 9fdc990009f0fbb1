"""The runtime that drains a transport."""

from harel.engine.worker.context import AsyncContext, Context
from harel.engine.worker.observer import Observer
from harel.engine.worker.policy import Again, Dead, Done, Held, Reject, RetryLater, RetryPolicy, Verdict
from harel.engine.worker.router import Router
from harel.engine.worker.worker import AsyncWorker, Worker, is_async_handler

__all__ = [
    "Again",
    "AsyncContext",
    "AsyncWorker",
    "Context",
    "Dead",
    "Done",
    "Held",
    "Observer",
    "Reject",
    "RetryLater",
    "RetryPolicy",
    "Router",
    "Verdict",
    "Worker",
    "is_async_handler",
]
