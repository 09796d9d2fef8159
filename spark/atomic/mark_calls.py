"""Execute the steps of `batch_marks` on a cluster. Must not decide which batches are visible."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from raftmq.client.producer.sequenced_append import SequencedAppender
from raftmq.errors import RaftMQError
from raftmq.spark.atomic.batch_marks import NAME_PREFIX, Answer, Ask, Change, FindEnds, OpenBatch

if TYPE_CHECKING:
    from raftmq.client.connection.resolver import Resolver

T = TypeVar("T")

WAIT_SECONDS: Final = 0.2
"""Pause between looks at the marks while a batch waits. Each look asks a majority of the metadata's brokers."""


class _Connection(Protocol):
    """Give access to one cluster."""

    @property
    def resolver(self) -> Resolver: ...
    def run(self, coroutine_of: Callable[[], Coroutine[object, object, T]]) -> T: ...
    def ends(self, topic: str, topic_id: int, count: int) -> tuple[int, ...]: ...


def run_marks(
    connection: _Connection,
    topic: str,
    topic_id: int,
    steps: Generator[Ask, Answer, T],
    timeout_seconds: float,
) -> T:
    """Execute the requests of the steps until they end, and return their result.

    Args:
        connection: The cluster.
        topic: The topic whose marks are used.
        topic_id: Its incarnation.
        steps: The steps.
        timeout_seconds: Time limit of one request. Ends of partitions that cannot be found are asked for again until then.

    Raises:
        BatchStillOpenError: as `batch_marks.open_batch`.
        UnknownTopicError: this incarnation of the topic does not exist.
        RaftMQError: a partition has no leader, or no broker answered, until the time limit.
    """
    appender = SequencedAppender(connection.resolver, delivery_timeout_seconds=timeout_seconds)
    name = f"{NAME_PREFIX}{topic_id}"
    try:
        ask = next(steps)
        while True:
            match ask:
                case Change(stamp, replaces):
                    found = connection.run(partial(appender.claim, name, 0, stamp, replaces))
                    answer = Answer(found.stamp, found.time_ms)
                case FindEnds(count):
                    answer = Answer(ends=_find_ends(partial(connection.ends, topic, topic_id, count), timeout_seconds))
                case _:
                    time.sleep(WAIT_SECONDS)
                    answer = Answer()
            ask = steps.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result


def _find_ends(ends: Callable[[], tuple[int, ...]], timeout_seconds: float) -> tuple[int, ...]:
    """Ask for the ends until all partitions have answered: a batch all of whose rows are written must not fail when leaders change."""
    deadline = time.monotonic() + timeout_seconds
    while True:
        try:
            return ends()
        except RaftMQError as error:
            if not error.retriable or time.monotonic() + WAIT_SECONDS >= deadline:
                raise
        time.sleep(WAIT_SECONDS)


def describe(batch: OpenBatch) -> str:
    """Return words that name an open batch."""
    since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(batch.since_ms / 1000))
    return f"batch {batch.epoch} of writer {batch.writer.shown!r}, which was opened at {since},"
