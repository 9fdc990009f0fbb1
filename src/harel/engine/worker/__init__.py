"""The runtime that drains a transport."""

from harel.engine.worker.context import AsyncContext, Context
from harel.engine.worker.worker import AsyncWorker, Worker, is_async_handler

__all__ = ["AsyncContext", "AsyncWorker", "Context", "Worker", "is_async_handler"]
