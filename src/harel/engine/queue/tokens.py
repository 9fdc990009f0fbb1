"""Fencing tokens, ``{worker_id}:{uuid}``."""

from __future__ import annotations

import os

__all__ = ["new_token", "token_stem", "worker_of"]


def new_token(worker_id: str) -> str:
    """Make the token of one lease."""
    return f"{worker_id}:{_uuid4()}"


def token_stem(worker_id: str) -> str:
    """Make the beginning that the tokens of one claim share.

    The server completes it with twelve hexadecimal digits that number the leases of the claim, which
    makes a UUID of it; the 74 random bits before them are new on every claim.
    """
    return new_token(worker_id)[:-12]


def worker_of(token: str) -> str:
    """Say whose token it is."""
    return token.rpartition(":")[0]


def _uuid4() -> str:
    """Return a random UUID as text; ``uuid.uuid4`` takes three times as long, and every claim makes one."""
    digits = os.urandom(16).hex()
    variant = "89ab"[int(digits[16], 16) & 3]
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"
