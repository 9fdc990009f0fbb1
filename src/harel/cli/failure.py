"""How a command ends early: with a sentence and an exit status."""

from __future__ import annotations

__all__ = ["GAVE_UP", "INTERRUPTED", "NO", "PIPE_CLOSED", "WRONG", "Failure"]

NO = 1
"""The command was carried out, and the answer is no."""
WRONG = 2
"""The command could not be carried out."""
GAVE_UP = 75
"""What a worker process says to the one that started it: the queue cannot be reached, and that for too long."""
INTERRUPTED = 130
PIPE_CLOSED = 141
"""What a shell reports for a program that a closed pipe ended."""


class Failure(Exception):
    """What a person is to read, and the exit status."""

    def __init__(self, sentence: str, status: int = WRONG) -> None:
        super().__init__(sentence)
        self.status = status
