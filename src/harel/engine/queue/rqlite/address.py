"""Where a cluster is: its nodes' addresses, and who asks."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from harel.errors import ConfigError

__all__ = ["Address", "base_of"]

_PORT = 4001
_NODE = re.compile(r"(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>\d{1,5}))?")
_SCHEMES = {"rqlite": "http", "rqlites": "https"}
_TAKES = "rqlite://user:password@host:4001,other-host:4001, or rqlites:// for TLS"


@dataclass(frozen=True, slots=True)
class Address:
    """What a URL says.

    Attributes
    ----------
    bases : tuple of str
        The nodes, ``http://host:port`` each, in the URL's order.
    authorization : str or None
        The header for basic authentication.
    """

    scheme: str
    bases: tuple[str, ...]
    user: str | None = None
    authorization: str | None = field(default=None, repr=False)

    @classmethod
    def of(cls, url: str) -> Address:
        """Read a URL.

        Raises
        ------
        ConfigError
            When it is not one of rqlite's; the message shows nothing of it that may be a password.
        """
        scheme, separator, rest = url.partition("://")
        if not separator or scheme not in _SCHEMES:
            raise ConfigError(f"rqlite takes a URL such as {_TAKES}.")
        credentials, at, place = rest.rpartition("@")
        nodes, _, path = place.partition("/")
        if path or "?" in nodes or "#" in nodes:
            raise ConfigError(f"Behind the addresses of an rqlite URL nothing follows but options: {_TAKES}.")
        bases = tuple(f"{_SCHEMES[scheme]}://{_node(node)}" for node in nodes.split(","))
        if not at:
            return cls(scheme, bases)
        user, _, password = credentials.partition(":")
        pair = f"{unquote(user)}:{unquote(password)}".encode()
        return cls(scheme, bases, unquote(user), f"Basic {base64.b64encode(pair).decode()}")

    def __str__(self) -> str:
        """Return it without the password, the same whatever the order of the nodes."""
        return f"{self.scheme}://{','.join(sorted(base.partition('://')[2] for base in self.bases))}"


def base_of(location: str, asked: str) -> str | None:
    """Return the node to which a redirection leads, or ``None`` if it may not be followed.

    Parameters
    ----------
    location : str
        The header of the answer.
    asked : str
        The node that answered. What it was asked over TLS goes nowhere without TLS, and the other way round.
    """
    try:
        parts = urlsplit(location)
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    if not host or parts.scheme != asked.partition(":")[0]:
        return None
    shown = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{shown}" + (f":{port}" if port is not None else "")


def _node(text: str) -> str:
    match = _NODE.fullmatch(text)
    port = int(match["port"] or _PORT) if match else 0
    if match is None or not 0 < port < 65_536:
        # Without an @ that is not escaped, what cannot be read may be a piece of a password.
        raise ConfigError(
            "A host or port of this rqlite URL cannot be read. A password's special characters are written as %XX."
        )
    return f"{match['host']}:{port}"
