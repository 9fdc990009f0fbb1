"""Every error that harel raises: one base, a few kinds, the driver's own as ``__cause__``."""

from __future__ import annotations

import reprlib

__all__ = [
    "ConfigError",
    "HarelError",
    "InvalidArgument",
    "InvalidMessage",
    "LeaseLost",
    "NotSupported",
    "PartlyPublished",
    "SchemaMismatch",
    "TransportUnavailable",
    "shown",
]


class HarelError(Exception):
    """The base of every error that harel raises; catch it to catch them all."""


class ConfigError(HarelError):
    """A URL, a setting or an installation is not usable; the message says which and what it takes."""


class InvalidArgument(HarelError, ValueError):
    """A call was wrong in itself. Nothing was sent and nothing changed."""


class NotSupported(HarelError):
    """The backend cannot do this; see :attr:`Transport.capabilities`."""


class TransportUnavailable(HarelError):
    """The server or file could not be reached in time. The same call may be tried again."""


class PartlyPublished(HarelError):
    """A batch ended in the middle, on a backend whose batches are not all or nothing.

    Parameters
    ----------
    published : int
        How many messages, from the front, are stored. Of the next one it is not known; its ``__cause__`` says why.
    """

    def __init__(self, published: int, whole: int) -> None:
        self.published: int = published
        super().__init__(
            f"Of {whole:,} messages the first {published:,} were published, and then it failed; "
            "publish the others again, from there on."
        )


class LeaseLost(HarelError):
    """A lease is not this worker's any more, and the transaction that was to settle it must not commit."""


class SchemaMismatch(HarelError):
    """The schema in the database is missing, or newer than this version of harel knows."""


class InvalidMessage(HarelError):
    """A stored message cannot be decoded. Its holder may still settle it, usually by ``reject``."""


def shown(value: object) -> str:
    """Return what a caller passed as an error may show it: short, whatever it is."""
    try:
        return reprlib.repr(value)
    except Exception:  # noqa: BLE001 - an int of too many digits, or a __repr__ of the caller's
        return f"a {type(value).__name__} that cannot be shown"
