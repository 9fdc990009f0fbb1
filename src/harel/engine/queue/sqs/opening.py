"""Which queues there are to be, and how they are found or made."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from harel.engine.queue.op import Op
from harel.engine.queue.sqs.asking import Answer, Asker, Call
from harel.engine.queue.sqs.refusals import Refused, explained
from harel.errors import ConfigError, shown

__all__ = ["Names", "find", "open_queues"]

FIFO = ".fifo"
_DEAD = "-dead"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,70}")  # SQS takes 80 in all, and the name of the dead letters' is the longer one

_LONGEST_RETENTION_S = 14 * 86_400

_ATTRIBUTES = {
    "FifoQueue": "true",
    # High throughput: groups do not share one limit, nor one window of deduplication ids.
    "DeduplicationScope": "messageGroup",
    "FifoThroughputLimit": "perMessageGroupId",
    # What is older SQS deletes, settled or not.
    "MessageRetentionPeriod": str(_LONGEST_RETENTION_S),
}


class Names(msgspec.Struct, frozen=True, kw_only=True):
    """Which queue, and which one for its dead letters.

    Attributes
    ----------
    queue_name : str
        With its ``.fifo``.
    queue_url : str or None
        Where it is known; then nothing is looked up or created.
    dead_letter_url : str or None
        ``None`` is the queue of this one's name with ``-dead``.
    max_attempts : int or None
        After how many receives SQS itself moves a message to the dead letters.
    create_queue : bool
        Whether to create what is missing.
    """

    queue_name: str
    queue_url: str | None = None
    dead_letter_url: str | None = None
    max_attempts: int | None = None
    create_queue: bool = True

    @property
    def dead_letter_name(self) -> str:
        """The name of the queue of dead letters."""
        return f"{self.queue_name.removesuffix(FIFO)}{_DEAD}{FIFO}"

    @classmethod
    def of_name(cls, queue_name: str, *, max_attempts: int | None, create_queue: bool) -> Names:
        """Take a queue's name, with or without ``.fifo``.

        Raises
        ------
        ConfigError
        """
        stem = queue_name.removesuffix(FIFO) if isinstance(queue_name, str) else ""
        if not _NAME.fullmatch(stem):
            raise ConfigError(
                f"{shown(queue_name)} is not the name of a queue (STM_SQS_QUEUE); it takes 1 to 70 letters, digits, "
                "hyphens and underscores, and .fifo after them."
            )
        number = isinstance(max_attempts, int) and not isinstance(max_attempts, bool)
        if max_attempts is not None and not (number and 1 <= max_attempts <= 1_000):
            raise ConfigError(f"max_attempts is an int from 1 to 1,000, not {shown(max_attempts)}.")
        return cls(queue_name=stem + FIFO, max_attempts=max_attempts, create_queue=create_queue)

    @classmethod
    def of_url(cls, queue_url: str, dead_letter_url: str | None) -> Names:
        """Take the URLs that SQS gave.

        Raises
        ------
        ConfigError
        """
        urls = (
            {"queue_url": queue_url}
            if dead_letter_url is None
            else {"queue_url": queue_url, "dead_letter_url": dead_letter_url}
        )
        for name, url in urls.items():
            if not (isinstance(url, str) and "://" in url and url.endswith(FIFO)):
                raise ConfigError(
                    f"{name} is the URL of a FIFO queue, https://sqs.<region>.amazonaws.com/<account>/<name>.fifo, "
                    f"not {shown(url)}. The order of groups needs a FIFO queue."
                )
        return cls(queue_name=queue_url.rpartition("/")[2], queue_url=queue_url, dead_letter_url=dead_letter_url)


def find(asker: Asker, name: str) -> Op[str | None]:
    """Return a queue's URL, or ``None`` when there is none of this name."""
    (answer,) = yield from asker.ask_all([Call("get_queue_url", {"QueueName": name})])
    if isinstance(answer, Answer):
        return str(answer.reply["QueueUrl"])
    if isinstance(answer, Refused) and answer.is_missing:
        return None
    raise explained(answer, asker.where)


def open_queues(asker: Asker, names: Names) -> Op[tuple[str, str | None]]:
    """Find the queue and the one for its dead letters, and create what is missing.

    Returns
    -------
    tuple of str and (str or None)
        Their URLs; ``None`` where there is no queue for dead letters and none is to be created.
    """
    dead_letter_url = yield from _found_or_made(asker, names, names.dead_letter_name, {})
    policy: dict[str, Any] = {}
    if names.max_attempts is not None:
        if dead_letter_url is None:
            raise _missing(asker, names.dead_letter_name, "max_attempts needs it")
        attributes = yield from _attributes(asker, dead_letter_url, "QueueArn")
        policy = {"deadLetterTargetArn": attributes["QueueArn"], "maxReceiveCount": names.max_attempts}
    more = {"RedrivePolicy": json.dumps(policy)} if policy else {}
    queue_url = yield from _found_or_made(asker, names, names.queue_name, more)
    if queue_url is None:
        raise _missing(asker, names.queue_name, "create_queue is False")
    if policy:
        yield from _have_policy(asker, names, queue_url, policy)
    return queue_url, dead_letter_url


def _found_or_made(asker: Asker, names: Names, name: str, more: dict[str, str]) -> Op[str | None]:
    url = yield from find(asker, name)
    if url is not None or not names.create_queue:
        return url
    call = Call("create_queue", {"QueueName": name, "Attributes": {**_ATTRIBUTES, **more}})
    (answer,) = yield from asker.ask_all([call])
    if isinstance(answer, Answer):
        asker.made_a_queue = True
        return str(answer.reply["QueueUrl"])
    if isinstance(answer, Refused) and answer.code in ("QueueAlreadyExists", "QueueNameExists"):
        # Somebody else was quicker, with attributes of theirs.
        return (yield from find(asker, name))
    raise explained(answer, asker.where)


def _have_policy(asker: Asker, names: Names, queue_url: str, policy: dict[str, Any]) -> Op[None]:
    attributes = yield from _attributes(asker, queue_url, "RedrivePolicy")
    text = attributes.get("RedrivePolicy")
    if not text:
        new = {"RedrivePolicy": json.dumps(policy)}
        yield from asker.ask("set_queue_attributes", QueueUrl=queue_url, Attributes=new)
        return
    found = json.loads(text)
    if int(found.get("maxReceiveCount", 0)) != names.max_attempts:
        raise ConfigError(
            f"The queue {names.queue_name} moves a message to its dead letters after "
            f"{found.get('maxReceiveCount')} attempts, and max_attempts is {names.max_attempts}; change one of them."
        )


def _attributes(asker: Asker, queue_url: str, name: str) -> Op[dict[str, str]]:
    answer = yield from asker.ask("get_queue_attributes", QueueUrl=queue_url, AttributeNames=[name])
    return dict(answer.reply.get("Attributes", {}))


def _missing(asker: Asker, name: str, why: str) -> ConfigError:
    return ConfigError(f"{asker.where} has no queue {name}, and {why}. Create it, or see that the region is right.")
