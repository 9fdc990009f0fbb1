"""``harel hold``, ``release``, ``purge`` and ``redrive``: what a person does to a queue."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Annotated, TypeAlias

import typer

from harel.cli.failure import NO, Failure
from harel.cli.options import Json, TransportUrl, must_be_able, open_queue
from harel.cli.output import print_json, say, shown
from harel.engine.queue.contract import Transport

__all__ = ["hold", "purge", "redrive", "release"]

_PAGE = 1_000

Group: TypeAlias = Annotated[str, typer.Argument(metavar="GROUP", help="Which group.", show_default=False)]


def hold(group: Group, transport: TransportUrl = None, as_json: Json = False) -> None:
    """Hold a group back: no worker gets it until `harel release`."""
    with open_queue(transport) as queue:
        must_be_able(queue, "hold", "hold a group back")
        held = queue.hold(group)
    if as_json:
        print_json({"group_id": group, "held": held})
    if not held:
        raise Failure(f"There is no group {group!r} to hold; a group exists while it has messages.", NO)
    if not as_json:
        say(f"Group {shown(group)} is held.")


def release(group: Group, transport: TransportUrl = None, as_json: Json = False) -> None:
    """End a hold."""
    with open_queue(transport) as queue:
        must_be_able(queue, "hold", "hold a group back")
        released = queue.release(group)
    if as_json:
        print_json({"group_id": group, "released": released})
    if not released:
        raise Failure(f"Group {group!r} is not held.", NO)
    if not as_json:
        say(f"Group {shown(group)} is released.")


def purge(
    group: Group,
    transport: TransportUrl = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Delete a group's messages, except one that a worker is handling."""
    if not yes:
        _confirm(group)
    with open_queue(transport) as queue:
        must_be_able(queue, "purge", "delete the messages of a group")
        count = queue.purge(group)
    if as_json:
        print_json({"group_id": group, "purged": count})
    if not count:
        raise Failure(f"Group {group!r} has no messages that can be deleted.", NO)
    if not as_json:
        say(f"{count:,} messages of group {shown(group)} are deleted.")


def redrive(
    seqs: Annotated[
        list[int] | None,
        typer.Argument(metavar="SEQ...", help="Which dead letters, by seq.", show_default=False),
    ] = None,
    transport: TransportUrl = None,
    everything: Annotated[bool, typer.Option("--all", help="All dead letters.")] = False,
    group: Annotated[
        str | None, typer.Option(metavar="GROUP", help="All dead letters of this group.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Put dead letters back, each as a new message at its group's tail."""
    if (bool(seqs), everything, group is not None).count(True) != 1:
        raise Failure("Say which dead letters to redrive: their SEQs, or --group GROUP, or --all.")
    with open_queue(transport) as queue:
        must_be_able(queue, "dead_letters", "list and redrive its dead letters")
        # Those that are there now: one that is rejected again meanwhile is not redriven without end.
        wanted = list(seqs or _seqs(queue, group))
        gone = []
        for seq in wanted:
            redriven = queue.redrive(seq)
            if not redriven:
                gone.append(seq)
            if as_json:
                print_json({"seq": seq, "redriven": redriven})
    if not as_json:
        say(f"{_count(len(wanted) - len(gone))} redriven.")
    if gone:
        raise Failure(f"There is no dead letter (any more) with the seq {', '.join(map(str, gone))}.", NO)


def _confirm(group: str) -> None:
    if not sys.stdin.isatty():
        raise Failure("Nobody is there to confirm this: add --yes to delete a group's messages without being asked.")
    if not typer.confirm(f"Delete all messages of group {shown(group)}?", err=True):
        raise Failure("Nothing was deleted.", NO)


def _seqs(queue: Transport, group: str | None) -> Iterator[int]:
    after = None
    while page := queue.dead_letters(group_id=group, limit=_PAGE, after=after):
        yield from (letter.seq for letter in page)
        after = page[-1].seq


def _count(number: int) -> str:
    return "1 dead letter" if number == 1 else f"{number:,} dead letters"
