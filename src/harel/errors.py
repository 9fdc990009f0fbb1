"""Every error that harel raises: one base, a few kinds, the driver's own as ``__cause__``."""

from __future__ import annotations

__all__ = [
    "ConfigError",
    "HarelError",
    "InvalidArgument",
    "InvalidMessage",
    "NotSupported",
    "SchemaMismatch",
    "TransportUnavailable",
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


class SchemaMismatch(HarelError):
    """The schema in the database is missing, or newer than this version of harel knows."""


class InvalidMessage(HarelError):
    """A stored message cannot be decoded. Its holder may still settle it, usually by ``reject``."""
