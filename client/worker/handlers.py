"""`Handlers`: the program's functions: which one takes a record, what it is given, and how keys and values are read.

Must not know where they run. It is pickled to processes as it is, so it holds nothing but functions.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Generic

import msgspec
from raftmq.errors import DeserializationError, InvalidArgumentError
from raftmq.types import KeyT_co, Record, ValueT_co


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try of a record, for a handler that takes it as its second argument."""

    number: int = 1
    """1: the first, of this worker. It begins anew when the record comes to another worker."""
    number_max: int | None = None
    """The last one, after which the record is given up; None: there is none."""

    @property
    def is_last(self) -> bool:
        """Whether the record is given up if this try fails."""
        return self.number_max is not None and self.number >= self.number_max


FIRST = Attempt()

Handler = (
    Callable[[Record[KeyT_co, ValueT_co]], Awaitable[object]]
    | Callable[[Record[KeyT_co, ValueT_co]], object]
    | Callable[[Record[KeyT_co, ValueT_co], Attempt], Awaitable[object]]
    | Callable[[Record[KeyT_co, ValueT_co], Attempt], object]
)
"""Takes a record, and the attempt if it wants it; what it returns is not looked at. It has succeeded when it returns, and failed when it raises."""
_AnyHandler = Callable[..., object]


class Handlers(Generic[KeyT_co, ValueT_co]):
    """Calls the handler of a record's topic.

    Args:
        handler: of all topics, or one for each.
        key_deserializer: applied to keys that are not None, before the handler is called.
        value_deserializer: the same for values.

    Raises:
        InvalidArgumentError: it is no function of a record; or some are async functions, and some are not.
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
                "a handler is a function, or a mapping from each topic to one; the mapping is empty"
            )
        self._by_topic = {topic: (one, _takes_attempt(one)) for topic, one in by_topic.items()}
        kinds = {_is_async(one) for one in by_topic.values()}
        if len(kinds) > 1:
            raise InvalidArgumentError("of a worker's handlers either all are async functions or none is")
        self.is_async = kinds.pop()
        for name, deserializer in (("key_deserializer", key_deserializer), ("value_deserializer", value_deserializer)):
            if deserializer is not None and not callable(deserializer):
                raise InvalidArgumentError(f"{name} must be a function of bytes, not {deserializer!r}")
        self._key_deserializer = key_deserializer
        self._value_deserializer = value_deserializer

    @property
    def topics(self) -> frozenset[str] | None:
        """Those that have a handler; None: all have the same."""
        return None if None in self._by_topic else frozenset(topic for topic in self._by_topic if topic is not None)

    def __call__(self, record: Record, attempt: Attempt) -> object:
        """Call the handler; of an async one the awaitable is returned. Raises what it raises, or `DeserializationError`."""
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
    """Look at what a handler returned. A coroutine or a generator is a handler whose code never ran: its record would be lost.

    A plain function that only calls an async one returns that, such as a decorator does that knows nothing of async functions.

    Raises:
        InvalidArgumentError: no record was worked on, and none will be.
    """
    if not isinstance(result, CoroutineType | GeneratorType | AsyncGeneratorType):
        return
    if isinstance(result, CoroutineType):
        result.close()  # Python would warn that nobody awaited it, which is said better here
    raise InvalidArgumentError(
        f"the handler returned the {type(result).__name__} {result.__qualname__!r}, whose code does not run by itself: "
        "make the handler an async function that awaits it (or a plain one without yield)"
    )


def _is_async(handler: _AnyHandler) -> bool:
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004


def _takes_attempt(handler: object) -> bool:
    """Whether it needs the attempt, too. What has no signature to look at (some built-in functions) takes the record alone."""
    if not callable(handler):
        raise InvalidArgumentError(f"a handler is a function of a record, not {handler!r}")
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
        f"a handler takes a record, and the attempt if it wants it; {handler!r} takes {signature}"
    )
