"""What libSQL adds to the operations in SQLite's dialect: a replica's clock, its primary's address and its errors."""

from __future__ import annotations

import functools
import re
from urllib.parse import urlsplit

from harel.engine.queue.sqlite.ops import schema_ddl
from harel.errors import ConfigError

__all__ = ["PRIMARYS_CLOCK", "check_token", "place_values", "primary_of", "schema_ddl"]

PRIMARYS_CLOCK = "unixepoch('subsec')"
"""The clock of wherever a statement runs: what writes runs on the primary. In steps of a millisecond."""

_NAME = re.compile(r":([a-z_]+)")


def primary_of(sync_url: str) -> str:
    """Return a primary's address for messages, ``https://host:port``: no user, no password, no query.

    Raises
    ------
    ConfigError
        Unless it is a URL that the driver can use; the driver itself would end the process's thread.
    """
    try:
        parts = urlsplit(sync_url)
        host, port = parts.hostname, parts.port
    except (ValueError, TypeError, AttributeError):
        host = port = None
    if not host or parts.scheme not in ("libsql", "https", "http") or re.search(r"[^!-~]", sync_url):
        raise ConfigError("sync_url is the URL of a primary, such as libsql://name.turso.io or http://localhost:8080.")
    return f"{parts.scheme}://{host}" + (f":{port}" if port else "")


def check_token(auth_token: str) -> None:
    """Raise, without showing it, unless a token can be sent."""
    if re.search(r"[^!-~]", auth_token):
        raise ConfigError("auth_token holds a space or another character that no token has; copy it again.")


@functools.cache
def place_values(statement: str) -> tuple[str, ...]:
    """Return the names of a statement's values in the order of their places.

    SQLite numbers ``:names`` by their first appearance, which is how they are handed to a driver that takes
    values by their place alone.
    """
    return tuple(dict.fromkeys(_NAME.findall(statement)))
