"""The pub/sub subscriptions with which waits listen, for both twins."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from harel.engine.queue.op import Op
from harel.engine.transport.redis_errors import FAILED

__all__ = ["MOST_EARS", "Ear", "Ears"]

MOST_EARS = 16
"""How many waits of one transport listen at once, each on a connection of its own; one more rests on its polling."""

_SUBSCRIBED_WITHIN_S = 5.0
_DRAINED_AT_ONCE = 1_000
_LOST = (*FAILED, RuntimeError)
"""What redis-py raises for a subscription whose connection broke, or was closed by another thread."""


class Ear:
    """One wait's subscription; ``None`` while it is lost."""

    def __init__(self, channel: bytes) -> None:
        self.channel = channel
        self.subscription: Any = None


class Ears:
    """The subscriptions of a transport's waits.

    Written once for both twins, as operations whose requests are calls to make, and to await in the async twin. One
    that is not needed is unsubscribed and kept for the next wait: left subscribed, it would pile up what nobody reads.

    Parameters
    ----------
    client : redis.Redis or another
    sleep : callable
        Takes seconds; returns something to await in the async twin.
    """

    def __init__(self, client: Any, sleep: Callable[[float], Any]) -> None:
        self._client = client
        self._sleep = sleep
        self._idle: list[Any] = []
        self._open: set[Ear] = set()
        self._pid = os.getpid()
        self._closed = False

    def listen(self, channel: bytes) -> Op[Ear | None]:
        """Subscribe; return when the subscription stands. ``None`` when there are too many."""
        if self._pid != os.getpid():  # what a fork copied is the parent's
            self._pid, self._idle, self._open = os.getpid(), [], set()
        if len(self._open) >= MOST_EARS:
            return None
        ear = Ear(channel)
        self._open.add(ear)
        try:
            yield from self._subscribe(ear)
        except BaseException:
            self._open.discard(ear)
            raise
        return ear

    def hear(self, ear: Ear | None, seconds: float) -> Op[float]:
        """Pause until something is heard, or the subscription is lost or had again; return for how long it was."""
        began = time.monotonic()
        if ear is not None and ear.subscription is not None:
            yield from self._read(ear, seconds)
        elif ear is None or not (yield from self._subscribe(ear)):
            yield partial(self._sleep, seconds)
        return time.monotonic() - began

    def hush(self, ear: Ear | None) -> Op[None]:
        """Stop listening."""
        if ear is None:
            return
        self._open.discard(ear)
        subscription, ear.subscription = ear.subscription, None
        if subscription is None:
            return
        try:
            yield partial(subscription.unsubscribe, ear.channel)
        except BaseException as error:
            yield from _drop(subscription)
            if not isinstance(error, _LOST):
                raise
        else:
            self._idle.append(subscription)
            if self._closed:
                yield from self.close()

    def close(self) -> Op[None]:
        """Drop every subscription that is idle, and wake who listens to one: it then finds the transport closed."""
        self._closed = True
        while self._idle:
            yield from _drop(self._idle.pop())
        for ear in list(self._open):
            yield from _cut(ear.subscription)

    def _subscribe(self, ear: Ear) -> Op[bool]:
        while not self._closed and hasattr(self._client, "pubsub"):  # an old redis-py's async cluster has none
            try:
                subscription, is_new = self._idle.pop(), False
            except IndexError:
                subscription, is_new = self._client.pubsub(), True
            try:
                yield partial(subscription.subscribe, ear.channel)
                confirmed = yield from _confirmed(subscription)
            except BaseException as error:
                yield from _drop(subscription)
                if not isinstance(error, _LOST):
                    raise
                confirmed = False
            if confirmed:
                ear.subscription = subscription
                if not self._closed:
                    return True
                ear.subscription = None  # closed meanwhile, and too early for close to find it
                yield from _drop(subscription)
                return False
            if is_new:
                break
        return False

    def _read(self, ear: Ear, seconds: float) -> Op[None]:
        subscription = ear.subscription
        try:
            message = yield partial(subscription.get_message, timeout=seconds)
            left = _DRAINED_AT_ONCE
            while message is not None and left:
                message = yield partial(subscription.get_message, timeout=0.0)
                left -= 1
        except Exception as error:
            ear.subscription = None
            yield from _drop(subscription)
            if not (self._closed or isinstance(error, _LOST)):  # what is closed meanwhile may fail in any way
                raise


def _confirmed(subscription: Any) -> Op[bool]:
    """Read what came before, until the subscription stands."""
    deadline = time.monotonic() + _SUBSCRIBED_WITHIN_S
    while (left := deadline - time.monotonic()) > 0.0:
        message = yield partial(subscription.get_message, timeout=left)
        if message is not None and message["type"] == "subscribe":
            return True
    return False


def _cut(subscription: Any) -> Op[None]:
    """Take a subscription's connection from under it.

    Closing it is for who listens: a sync one that another thread closes would go on waiting to be subscribed.
    """
    connection = getattr(subscription, "connection", None)
    if connection is not None:
        with suppress(*_LOST):
            yield partial(connection.disconnect, **({"nowait": True} if hasattr(subscription, "aclose") else {}))


def _drop(subscription: Any) -> Op[None]:
    with suppress(*_LOST):
        yield subscription.aclose if hasattr(subscription, "aclose") else subscription.close
