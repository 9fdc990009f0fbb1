"""What redis-py raises, as errors of ours."""

from __future__ import annotations

from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    MaxConnectionsError,
    MovedError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
    ResponseError,
    TryAgainError,
)

from harel.errors import ConfigError, HarelError, TransportUnavailable

__all__ = ["FAILED", "explained"]

FAILED = (RedisError, RedisClusterException, OSError)
"""What redis-py raises when an operation fails."""

_PASSING = (ClusterDownError, MasterDownError, OutOfMemoryError, ReadOnlyError, TryAgainError)
_PASSING_CODES = ("BUSY", "LOADING", "MASTERDOWN", "MISCONF", "NOREPLICAS", "OOM", "READONLY")
"""What the same call, later, may not meet: errors that redis-py has kinds for, and codes in the text of others."""


def explained(error: BaseException, address: str, *, sent: bool) -> HarelError:
    """Return a driver's error as one of ours.

    Parameters
    ----------
    error : BaseException
    address : str
        The server's, without a password.
    sent : bool
        Whether an operation was on its way, so that it may have happened.
    """
    text = str(error).rstrip(".")
    if isinstance(error, ResponseError):
        return _refused(error, address, text)
    if isinstance(error, AuthenticationError | AuthorizationError):
        return ConfigError(f"{address} refused the user name or the password: {text}.")
    if sent and not isinstance(error, BusyLoadingError | MaxConnectionsError):
        return TransportUnavailable(
            f"The answer of {address} was lost: {text or 'none came in time'}. The operation may have happened or not."
        )
    return TransportUnavailable(f"{address} cannot be reached: {text or 'no connection in time'}.")


def _refused(error: ResponseError, address: str, text: str) -> HarelError:
    if isinstance(error, NoPermissionError):
        return ConfigError(
            f"{address} does not let this user do that: {text}. It needs the keys and the channel that begin with the "
            "prefix in braces, and the commands of the scripts, EVALSHA and EVAL among them."
        )
    if isinstance(error, MovedError):
        return ConfigError(f"{address} is a node of a cluster; build the transport on a redis.RedisCluster.")
    if (
        isinstance(error, _PASSING)
        or text.startswith(_PASSING_CODES)
        or any(f"-{code} " in text for code in _PASSING_CODES)
    ):
        return TransportUnavailable(f"{address} does not do this just now: {text}.")
    return HarelError(f"{address} refused an operation: {text}.")
