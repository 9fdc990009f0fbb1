"""What pymongo raises, as errors of ours."""

from __future__ import annotations

from bson.errors import BSONError
from pymongo.errors import (
    BulkWriteError,
    ConfigurationError,
    ConnectionFailure,
    ExecutionTimeout,
    InvalidOperation,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
    WaitQueueTimeoutError,
    WriteConcernError,
)

from harel.errors import ConfigError, HarelError, InvalidArgument, TransportUnavailable

__all__ = ["FAILED", "TRANSIENT", "UNKNOWN_COMMIT", "TransactionConflict", "explained"]

TRANSIENT = "TransientTransactionError"
"""pymongo's label of an error after which the transaction may succeed if it is begun anew."""
UNKNOWN_COMMIT = "UnknownTransactionCommitResult"
"""And of one after which the commit may be asked for again."""

FAILED = (PyMongoError, BSONError)
"""What pymongo raises when an operation fails."""

_REFUSED_RIGHTS = (13, 18, 8000)
"""Unauthorized, AuthenticationFailed, and Atlas's own."""
_PASSING = (6, 7, 50, 64, 89, 91, 112, 134, 189, 262, 9001, 10058, 10107, 11600, 11602, 13388, 13435, 13436)
"""Codes of what the same call, later, may not meet: no primary, a server that shuts down, a time limit."""


class TransactionConflict(TransportUnavailable, PyMongoError):
    """A transaction cannot commit, and may if it is begun anew: another one wrote the same, or the server changed.

    It has pymongo's label, so that ``session.with_transaction`` does that.
    """

    def __init__(self, message: str) -> None:
        PyMongoError.__init__(self, message, [TRANSIENT])


def explained(error: BaseException, address: str) -> HarelError:
    """Return a driver's error as one of ours.

    Parameters
    ----------
    error : BaseException
    address : str
        The server's, without a password.
    """
    # Behind the first part pymongo tells how it sees every server.
    text = str(error).partition(", Timeout: ")[0].partition(", full error: ")[0].rstrip(".")
    if isinstance(error, PyMongoError) and error.has_error_label(TRANSIENT):
        return TransactionConflict(f"The transaction at {address} cannot commit; begin it anew: {text}.")
    if isinstance(error, ServerSelectionTimeoutError | WaitQueueTimeoutError):
        return TransportUnavailable(f"{address} cannot be reached: {text or 'no connection in time'}.")
    if isinstance(error, ConnectionFailure):
        return _lost(address, text)
    if isinstance(error, OperationFailure):
        return _refused(error, address, text)
    if isinstance(error, ConfigurationError):
        return ConfigError(f"pymongo cannot connect to {address} like this: {text}.")
    if isinstance(error, InvalidOperation) and "close" in text:
        return InvalidArgument("This transport's client is closed; open a new one.")
    return HarelError(f"The request to {address} failed in the driver: {text}.")


def _refused(error: OperationFailure, address: str, text: str) -> HarelError:
    if error.code in _REFUSED_RIGHTS:
        return ConfigError(
            f"{address} refused the user name, the password or the right to do this: {text}. The user needs readWrite "
            "on the queue's database, and names its own with authSource."
        )
    unconfirmed = isinstance(error, BulkWriteError) and bool(error.details.get("writeConcernErrors"))
    if (
        unconfirmed
        or isinstance(error, WriteConcernError | ExecutionTimeout)
        or error.code in _PASSING
        or error.has_error_label("RetryableWriteError")
    ):
        return _lost(address, text)
    return HarelError(f"{address} refused an operation: {text}.")


def _lost(address: str, text: str) -> HarelError:
    return TransportUnavailable(
        f"The answer of {address} was lost: {text or 'none came in time'}. The operation may have happened or not."
    )
