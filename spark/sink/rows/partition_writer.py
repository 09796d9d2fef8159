"""Write a task's sorted rows: cut each partition's rows into batches with consecutive sequences, and send the batches.

While a request is in flight the next one is encoded. A partition has at most one in flight, so its order holds. Must not choose the
producer's identity, nor sort, nor know the kind of the topics. Invariant: the n-th row of a partition has sequence n, however the rows
are cut.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Iterator, Sized
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, Protocol, TypeVar

from raftmq.client.base import settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from raftmq.client.connection.resolver import TopicInfo
    from raftmq.client.producer.sequenced_append import SequencedAppender

RowsT = TypeVar("RowsT", contravariant=True)
"""One row, or several rows."""
PieceT = TypeVar("PieceT", bound=Sized)
"""The rows of one batch. Its length is their number."""

BATCH_BYTES_MAX: Final = 512 * settings.KIB
"""Size of a batch's rows before compression, unless a single row is larger. Equal to the SDK's producer."""
REQUESTS_IN_FLIGHT_MAX: Final = 4
"""Requests of one task in flight, each to another partition and of at most 3.5 MiB."""


class Identity(NamedTuple):
    """Identify the producer under which a task writes."""

    producer_id: int
    epoch: int


class Starter(Protocol):
    """Run coroutines in the background."""

    def start(self, coroutine_of: Callable[[], Coroutine[object, object, list[int]]]) -> Future[list[int]]:
        """Start the coroutine and return immediately."""
        ...


class Batches(Protocol[RowsT, PieceT]):
    """Make batches of the rows of one partition."""

    def cut(self, rows: Iterator[RowsT], bytes_max: int) -> Iterator[PieceT]:
        """Cut rows into pieces of at most `bytes_max` bytes. A larger row is a piece of its own.

        A replay may be cut differently, because a batch that overlaps with written rows is cut again. The limit of bytes makes a batch
        fit a request.
        """
        ...

    def seal(self, rows: PieceT, identity: Identity, first_sequence: int) -> bytes:
        """Return the batch of a piece."""
        ...


class PartitionWriter(Generic[RowsT, PieceT]):
    """Write all rows of one task. Use once."""

    def __init__(
        self, starter: Starter, appender: SequencedAppender, identity: Identity, batches: Batches[RowsT, PieceT]
    ) -> None:
        self._starter = starter
        self._appender = appender
        self._identity = identity
        self._batches = batches
        self._in_flight: dict[tuple[str, int], Future[list[int]]] = {}

    def write(
        self, groups: Iterable[tuple[str, int, Iterator[RowsT]]], topic_of: Callable[[str], TopicInfo]
    ) -> dict[str, int]:
        """Write the rows of each topic and partition. Return the number of rows per topic when all are acknowledged.

        Raises the errors of `SequencedAppender.append`. Rows that were sent before an error may be written.
        """
        written: dict[str, int] = {}
        try:
            for name, partition, group in groups:
                topic = topic_of(name)
                bytes_max = min(BATCH_BYTES_MAX, topic.batch_bytes_max - settings.BATCH_FRAME_BYTES)
                gathered: list[bytes] = []
                gathered_bytes = sequence = 0
                for batch_rows in self._batches.cut(group, bytes_max):
                    batch = self._batches.seal(batch_rows, self._identity, sequence)
                    sequence += len(batch_rows)
                    is_full = len(gathered) == settings.REQUEST_BATCHES_MAX
                    if is_full or (gathered and gathered_bytes + len(batch) > settings.REQUEST_BYTES_MAX):
                        self._send(topic, partition, gathered)
                        gathered, gathered_bytes = [], 0
                    gathered.append(batch)
                    gathered_bytes += len(batch)
                self._send(topic, partition, gathered)
                written[topic.name] = written.get(topic.name, 0) + sequence
            for future in self._in_flight.values():
                future.result()
        finally:
            for future in self._in_flight.values():
                future.cancel()
        return written

    def _send(self, topic: TopicInfo, partition: int, batches: list[bytes]) -> None:
        key = (topic.name, partition)
        before = self._in_flight.pop(key, None)
        if before is not None:
            before.result()
        while len(self._in_flight) >= REQUESTS_IN_FLIGHT_MAX:
            done, _ = wait(self._in_flight.values(), return_when=FIRST_COMPLETED)
            for name in [name for name, future in self._in_flight.items() if future in done]:
                self._in_flight.pop(name).result()
        self._in_flight[key] = self._starter.start(lambda: self._appender.append(topic, partition, batches))
