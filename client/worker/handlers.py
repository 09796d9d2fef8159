"""`Handlers`: chooses the handler of a record's topic, deserializes keys and values, and calls it.

Must not know where handlers run. It is pickled and sent to processes, so it holds nothing but functions.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Mapping
from dataclasses import dataclass
from typing import Generic

import msgspec
from raftmq.errors import DeserializationError, InvalidArgumentError
from raftmq.types import KeyT_co, QueueRecord, Record, ValueT_co


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of a record, passed to handlers that take a second argument."""

    number: int = 1
    """The attempt's number, from 1. Counting restarts when the record moves to another worker."""
    number_max: int | None = None
    """The number of the last attempt, after which the record is given up. None: no limit."""

    @property
    def is_last(self) -> bool:
        """Return whether the record is given up if this attempt fails."""
        return self.number_max is not None and self.number >= self.number_max


FIRST = Attempt()

Handler = (
    Callable[[QueueRecord[KeyT_co, ValueT_co]], Awaitable[object]]
    | Callable[[QueueRecord[KeyT_co, ValueT_co]], object]
    | Callable[[QueueRecord[KeyT_co, ValueT_co], Attempt], Awaitable[object]]
    | Callable[[QueueRecord[KeyT_co, ValueT_co], Attempt], object]
)
"""Takes a record and, if it has a second parameter, the attempt. Its return value is ignored.

A handler of log topics gets a `Record`, of which `QueueRecord` is a subtype, so both kinds of handlers have this type. The attempt succeeds
when the handler returns and fails when it raises.
"""
_AnyHandler = Callable[..., object]


class Handlers(Generic[KeyT_co, ValueT_co]):
    """Calls the handler of a record's topic.

    Args:
        handler: one handler for all topics, or a mapping with one for each topic.
        key_deserializer: applied to keys that are not None, before the handler is called.
        value_deserializer: applied to values that are not None, before the handler is called.

    Raises:
        InvalidArgumentError: a handler is no function of a record, or async and plain functions are mixed.
    """

    def __init__(
        self,
        handler: Handler[KeyT_co, ValueT_co] | Mapping[str, Handler[KeyT_co, ValueT_co]],
        key_deserializer: Callable[[bytes], KeyT_co] | None = None,
        value_deserializer: Callable[[bytes], ValueT_co] | None = None,
    ) -> None:
        by_topic: dict[str | None, _AnyHandler] = {}
        if isinstance(handler, Mapping):
            by_topic.update(handler)
        else:
            by_topic[None] = handler
        if not by_topic:
            raise InvalidArgumentError(
                "a handler is a function or a mapping from each topic to a function; this mapping is empty"
            )
        self._by_topic = {topic: (one, _takes_attempt(one)) for topic, one in by_topic.items()}
        kinds = {_is_async(one) for one in by_topic.values()}
        if len(kinds) > 1:
            raise InvalidArgumentError("a worker's handlers must be either all async functions or all plain functions")
        self.is_async = kinds.pop()
        for name, deserializer in (("key_deserializer", key_deserializer), ("value_deserializer", value_deserializer)):
            if deserializer is not None and not callable(deserializer):
                raise InvalidArgumentError(f"{name} must be a function of bytes, not {deserializer!r}")
        self._key_deserializer = key_deserializer
        self._value_deserializer = value_deserializer

    @property
    def topics(self) -> frozenset[str] | None:
        """Return the topics that have a handler of their own, or None if one handler serves all topics."""
        return None if None in self._by_topic else frozenset(topic for topic in self._by_topic if topic is not None)

    def __call__(self, record: Record, attempt: Attempt) -> object:
        """Call the handler. An async handler's awaitable is returned.

        Raises the handler's exception, or `DeserializationError`.
        """
        handler, takes_attempt = self._by_topic.get(record.topic) or self._by_topic[None]
        if self._key_deserializer is not None or self._value_deserializer is not None:
            record = self._deserialized(record)
        return handler(record, attempt) if takes_attempt else handler(record)

    def _deserialized(self, record: Record) -> Record:
        keys, values = self._key_deserializer, self._value_deserializer
        what = "key"
        try:
            if keys is not None and record.key is not None:
                record = msgspec.structs.replace(record, key=keys(record.key))  # the user's own type
            what = "value"
            if values is not None and record.value is not None:
                record = msgspec.structs.replace(record, value=values(record.value))
        except Exception as error:
            raise DeserializationError(f"the {what}_deserializer failed: {type(error).__name__}: {error}") from error
        return record


def check_has_run(result: object) -> None:
    """Check that the handler's code ran, given its return value.

    A coroutine or a generator means that the handler's code never ran: its record would be lost. A plain function returns one if it only calls
    an async function, for example a decorator that does not support async functions.

    Raises:
        InvalidArgumentError: the handler did not run, and never will.
    """
    if not isinstance(result, Coroutine | Generator | AsyncGenerator):  # not their types: compiled modules have others
        return
    if isinstance(result, Coroutine):
        result.close()  # suppresses Python's warning that it was never awaited: the error below says it better
    raise InvalidArgumentError(
        f"the handler returned the {type(result).__name__} {getattr(result, '__qualname__', '')!r}, whose code does not run by itself: "
        "make the handler an async function that awaits it (or a plain function without yield)"
    )


def _is_async(handler: _AnyHandler) -> bool:
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004


def _takes_attempt(handler: object) -> bool:
    """Return whether a handler also needs the attempt.

    A callable without a signature (some built-in functions) gets the record alone.
    """
    if not callable(handler):
        raise InvalidArgumentError(f"a handler must be a function of a record, not {handler!r}")
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):
        return False
    for count in (1, 2):
        try:
            signature.bind(*[None] * count)
        except TypeError:
            continue
        return count == 2
    raise InvalidArgumentError(
        f"a handler must take a record and, optionally, the attempt; {handler!r} takes {signature}"
    )
