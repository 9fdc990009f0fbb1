"""Why a target that was not reached was not: what stands in the way, and what it would cost to take it away."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.targets import Verdict

__all__ = ["reasons"]

_REASONS = (
    (
        "no slower a message than",
        "Few groups",
        (
            "A group's next message is not delivered before the one before it is settled for good (promise 2). "
            "With 20 groups no more than 20 messages are in flight, so what a claim, an ack and its sync cost is "
            "spread over 20 messages where many groups spread it over hundreds. Several messages of a group in "
            "one lease would be quicker, and would deliver the second before the first is settled; to deliver it "
            "before the ack is on the disk would, after a power cut, deliver the first again behind it. Neither "
            "is done."
        ),
    ),
    (
        "times pg-boss",
        "PostgreSQL beside pg-boss",
        (
            "Both cores are busy, the server's with harel's functions for the larger part: a message is deleted "
            "and its group's row moved to the back of the line, index and all, one by one and in order; pg-boss "
            "completes a batch with one statement, and keeps the rows for later to delete."
        ),
    ),
    (
        "publishing in batches ahead of",
        "PostgreSQL, publishing in batches",
        (
            "A publish locks or makes the row of each group's name before its messages are numbered; promises 2, "
            "4 and 9 rest on that. graphile-worker's insert knows nothing of groups."
        ),
    ),
    (
        "of what the server sustains alone",
        "Four processes",
        (
            "Four workers in Python and their server share two cores, while the server alone has them to itself "
            "but for a client in C that does next to nothing."
        ),
    ),
    (
        "in batches at least",
        "Batches beside a bare driver",
        (
            "Each event is checked and encoded, each reply made a lease. The bare driver sends what was made "
            "before the time ran."
        ),
    ),
    (
        "of harel 0.9.0 one by one",
        "One by one beside harel 0.9.0",
        (
            "Both take one round trip an operation, and on PostgreSQL wait for one sync; what remains to be won "
            "is within the server's function calls."
        ),
    ),
    (
        "groups costs at most",
        "Claims where groups are many",
        ("The order of the heap is the same; the memory that it walks no longer fits the processor's caches."),
    ),
)
"""What a target's words contain, what it is about, and why it may not be reached."""


def reasons(verdicts: Sequence[Verdict]) -> list[str]:
    """Say why targets were not reached, one reason for all that are of a kind."""
    missed = [verdict.target for verdict in verdicts if verdict.met is False]
    said = [f"- **{about}**: {why}" for words, about, why in _REASONS if any(words in target for target in missed)]
    return ["**Not met, and why**:", "\n".join(said)] if said else []
