"""Fencing tokens, ``{worker_id}:{uuid}``."""

from __future__ import annotations

from uuid import uuid4

__all__ = ["new_token", "token_stem", "worker_of"]


def new_token(worker_id: str) -> str:
    """Make the token of one lease."""
    return f"{worker_id}:{uuid4()}"


def token_stem(worker_id: str) -> str:
    """Make the beginning that the tokens of one claim share.

    The server completes it with twelve hexadecimal digits that number the leases of the claim, which
    makes a UUID of it; the 74 random bits before them are new on every claim.
    """
    return new_token(worker_id)[:-12]


def worker_of(token: str) -> str:
    """Say whose token it is."""
    return token.rpartition(":")[0]
