"""A FIFO queue partitioned into groups, on the database that you already run.

At most one message of a group is in flight at any moment, and a group's messages come in order.
"""

from harel.config import connect, connect_async, connect_async_from_env, connect_from_env
from harel.engine.queue.contract import (
    AsyncBound,
    AsyncTransport,
    Bound,
    Capabilities,
    DeadLetter,
    GroupInfo,
    Lease,
    QueueStats,
    StoredMessage,
    Transport,
)
from harel.engine.worker import (
    AsyncContext,
    AsyncWorker,
    Context,
    Observer,
    Reject,
    RetryLater,
    RetryPolicy,
    Router,
    Worker,
)
from harel.errors import (
    ConfigError,
    HarelError,
    InvalidArgument,
    InvalidMessage,
    LeaseLost,
    NotSupported,
    PartlyPublished,
    SchemaMismatch,
    TransportUnavailable,
)
from harel.events import Event, Message

__version__ = "1.0.0"

__all__ = [
    "AsyncBound",
    "AsyncContext",
    "AsyncTransport",
    "AsyncWorker",
    "Bound",
    "Capabilities",
    "ConfigError",
    "Context",
    "DeadLetter",
    "Event",
    "GroupInfo",
    "HarelError",
    "InvalidArgument",
    "InvalidMessage",
    "Lease",
    "LeaseLost",
    "Message",
    "NotSupported",
    "Observer",
    "PartlyPublished",
    "QueueStats",
    "Reject",
    "RetryLater",
    "RetryPolicy",
    "Router",
    "SchemaMismatch",
    "StoredMessage",
    "Transport",
    "TransportUnavailable",
    "Worker",
    "connect",
    "connect_async",
    "connect_async_from_env",
    "connect_from_env",
]
