"""The .sql and .lua files of a backend, as package data: an operation a file, named as the method."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Mapping
from importlib.resources import files

import msgspec

from harel.errors import ConfigError, shown

__all__ = ["LuaScript", "check_identifier", "check_timeout", "load_lua", "load_sql"]

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}")
_LONGEST_WAIT_S = 1_000_000.0
"""Sockets take no timeout of more than 2**31 milliseconds."""
_DEFINED = re.compile(r"\Alocal (?:function )?(\w+(?:, \w+)*)")
_PLACE = re.compile(r"\{([a-z_]+)\}")
_LUA_PLACE = re.compile(r"\$([a-z_]+)")


def check_identifier(option: str, name: str) -> str:
    """Return a name that may become part of a statement.

    Raises
    ------
    ConfigError
        Unless it is 1 to 40 letters, digits and underscores, and no digit comes first.
    """
    # A subclass, as an enumeration's member, may write itself differently than it reads.
    plain = str.__str__(name) if issubclass(type(name), str) else ""
    if not _IDENTIFIER.fullmatch(plain):
        raise ConfigError(
            f"{option} is 1 to 40 ASCII letters, digits, underscores, no digit first; it is {shown(name)}."
        )
    return plain


def check_timeout(option: str, seconds: float) -> float:
    """Return a number of seconds that every driver can wait.

    Raises
    ------
    ConfigError
        Unless it is above 0 and at most a million.
    """
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0.0 < seconds <= _LONGEST_WAIT_S:
        raise ConfigError(f"{option} is a number of seconds above 0, at most a million, not {shown(seconds)}.")
    return seconds


def load_sql(package: str, name: str, words: Mapping[str, str]) -> tuple[str, ...]:
    """Load the statements of one file.

    Parameters
    ----------
    package : str
        The package with the file.
    name : str
        The file's name without ``.sql``.
    words : mapping of str to str
        What takes the place of each ``{word}``: checked identifiers and our own expressions, never
        anything that a caller passes.

    Returns
    -------
    tuple of str
        The statements, without comments. In the file each ends with a semicolon at the end of a line.
    """
    code = _PLACE.sub(lambda place: words[place[1]], _code(package, f"{name}.sql"))
    statements = re.split(r";[ \t]*(?:\n|$)", code)
    return tuple(statement.strip() for statement in statements if statement.strip())


class LuaScript(msgspec.Struct, frozen=True):
    """A script, and the hash by which a server that has it knows it."""

    name: str
    text: bytes
    sha: bytes


def load_lua(package: str, name: str, words: Mapping[str, str]) -> LuaScript:
    """Load one script, behind those parts of the package's ``prelude.lua`` that it uses.

    A part ends at an empty line, and uses what other parts before it define. What a script does not use is left out,
    because the server would make its functions at every call.

    Parameters
    ----------
    package : str
        The package with the file.
    name : str
        The file's name without ``.lua``.
    words : mapping of str to str
        What takes the place of each ``$word``, never anything that a caller passes.
    """
    code = _code(package, f"{name}.lua")
    for part in reversed(re.split(r"\n{2,}", _code(package, "prelude.lua").strip())):
        defined = re.split(r",\s*", _DEFINED.findall(part)[0])
        if any(re.search(rf"\b{word}\b", code) for word in defined):
            code = f"{part}\n{code}"
    text = _LUA_PLACE.sub(lambda place: words[place[1]], code).encode()
    # The server chose the hash; it keeps no secret.
    return LuaScript(name, text, hashlib.sha1(text, usedforsecurity=False).hexdigest().encode())


@functools.cache
def _code(package: str, file: str) -> str:
    """Read a file without its comments, once a process."""
    text = files(package).joinpath(file).read_text(encoding="utf-8")
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("--"))
