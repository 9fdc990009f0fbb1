"""Calls of SQS's API as requests, sent again where that may help."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias
from uuid import uuid4

import msgspec

from harel.engine.queue.op import Op, Sleep
from harel.engine.queue.sqs.refusals import Refused, Unanswered, explained

__all__ = ["Answer", "Asker", "Call", "Outcome", "Together"]

Reply: TypeAlias = dict[str, Any]

TRIES = 4
"""How often a call is sent at most."""

_FIRST_PAUSE_S = 0.1
_PAUSE_FOR_A_NEW_QUEUE_S = 0.5
_ATTEMPT_ID = "ReceiveRequestAttemptId"


class Call(msgspec.Struct, frozen=True):
    """One call of the API, named as the driver's method."""

    action: str
    params: dict[str, Any]


class Together(msgspec.Struct, frozen=True):
    """A request: make these calls, at the same time if there are several.

    The reply has for each what it returned, or the :class:`Refused` or :class:`Unanswered` that says why not.
    """

    calls: tuple[Call, ...]


class Answer(msgspec.Struct, frozen=True):
    """What a call returned."""

    reply: Reply
    again: bool = False
    """Whether it had been sent before, without an answer, and so may have happened before."""


class Outcome(msgspec.Struct, frozen=True):
    """What became of one entry of a batch."""

    answer: Answer
    failure: Refused | Unanswered | None


class Asker:
    """Makes requests of calls, and of the replies answers.

    Parameters
    ----------
    where : str
        The endpoint's host and port, for messages.
    patience_s : float
        For how long after it was first sent a call is sent again, in seconds.
    monotonic : callable
        Seconds.
    """

    def __init__(self, where: str, patience_s: float, monotonic: Callable[[], float]) -> None:
        self.where: str = where
        self._patience_s = patience_s
        self.monotonic: Callable[[], float] = monotonic
        self.made_a_queue: bool = False
        """A queue that was just created may be unknown for a second."""

    def ask(self, action: str, **params: Any) -> Op[Answer]:
        """Make a call, and raise what went wrong with it."""
        (answer,) = yield from self.ask_all([Call(action, params)])
        if isinstance(answer, Answer):
            return answer
        raise explained(answer, self.where)

    def ask_all(self, calls: Sequence[Call]) -> Op[list[Answer | Refused | Unanswered]]:
        """Make calls at the same time; return for each its answer, or why there is none."""
        begun = self.monotonic()
        waiting = dict(enumerate(calls))
        answers: dict[int, Answer | Refused | Unanswered] = {}
        doubtful: set[int] = set()
        for tries_left in reversed(range(TRIES)):
            results = yield Together(tuple(waiting.values()))
            for place, result in zip(list(waiting), results, strict=True):
                if isinstance(result, dict):
                    answers[place] = Answer(result, place in doubtful)
                else:
                    # What the first one received has run out meanwhile, and SQS says nothing of it again.
                    spent = place in doubtful and _is_spent(waiting[place], result)
                    if not spent:
                        answers[place] = result
                    if spent or self._is_worth_another(waiting[place], result):
                        waiting[place] = _again(waiting[place], result)
                        doubtful.update([place] if isinstance(result, Unanswered) and result.sent else [])
                        continue
                del waiting[place]
            if not waiting or not tries_left or self.monotonic() - begun > self._patience_s:
                break
            yield Sleep(self._pause(tries_left))
        return [answers[place] for place in range(len(calls))]

    def each(self, action: str, queue_url: str, entries: Sequence[Reply]) -> Op[list[Outcome]]:
        """Make a call of a batch; what of it is refused for the moment is sent again.

        Parameters
        ----------
        action : str
        queue_url : str
        entries : sequence of dict
            Without their ids.

        Returns
        -------
        list of Outcome
            In the order of the entries.
        """
        waiting = {str(place): entry for place, entry in enumerate(entries)}
        outcomes: dict[str, Outcome] = {}
        for tries_left in reversed(range(TRIES)):
            batch = [{"Id": name, **entry} for name, entry in waiting.items()]
            (answer,) = yield from self.ask_all([Call(action, {"QueueUrl": queue_url, "Entries": batch})])
            if not isinstance(answer, Answer):
                outcomes.update((name, Outcome(Answer({}), answer)) for name in waiting)
                break
            outcomes.update(_outcomes(answer, waiting))
            waiting = {
                name: entry
                for name, entry in waiting.items()
                if isinstance(failure := outcomes[name].failure, Refused) and failure.is_passing
            }
            if not waiting:
                break
            if tries_left:
                yield Sleep(self._pause(tries_left))
        return [outcomes[str(place)] for place in range(len(entries))]

    def _is_worth_another(self, call: Call, failure: Refused | Unanswered) -> bool:
        if isinstance(failure, Unanswered):
            return True
        is_new = self.made_a_queue and call.action != "get_queue_url"
        return failure.is_passing or (failure.is_missing and is_new)

    def _pause(self, tries_left: int) -> float:
        if self.made_a_queue:
            return _PAUSE_FOR_A_NEW_QUEUE_S
        longest: float = _FIRST_PAUSE_S * 2 ** (TRIES - 1 - tries_left)
        return random.uniform(longest / 2, longest)


def _is_spent(call: Call, failure: Refused | Unanswered) -> bool:
    return _ATTEMPT_ID in call.params and isinstance(failure, Refused) and failure.is_lost


def _again(call: Call, failure: Refused | Unanswered) -> Call:
    """Return the call to be sent again. A receive that was refused needs a new id: the old one is spent."""
    if isinstance(failure, Refused) and _ATTEMPT_ID in call.params:
        return Call(call.action, {**call.params, _ATTEMPT_ID: uuid4().hex})
    return call


def _outcomes(answer: Answer, entries: dict[str, Reply]) -> dict[str, Outcome]:
    done = {each["Id"] for each in answer.reply.get("Successful", ())}
    refusals = {
        each["Id"]: Refused(each.get("Code", ""), each.get("Message", ""), 400 if each.get("SenderFault") else 500)
        for each in answer.reply.get("Failed", ())
    }
    silence = Refused("InternalError", "The answer does not say what became of it")
    return {name: Outcome(answer, None if name in done else refusals.get(name, silence)) for name in entries}
