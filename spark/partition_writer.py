"""Writes a task's sorted rows: cuts them into batches under consecutive sequences, partition by partition, and sends those.

While a request is under way the next one is encoded; a partition has one under way at a time, so its order holds. Must not choose
the producer's identity, nor sort. Invariant: the n-th row of a partition has sequence n, whatever the batches.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from raftmq.client.base import settings
from raftmq.client.codec.batch import encode_body
from raftmq.spark.sink_columns import unpack_headers

if TYPE_CHECKING:
    from collections.abc import Callable

    from raftmq.client.connection.resolver import TopicInfo
    from raftmq.client.producer.sequenced_append import SequencedAppender
    from raftmq.spark.sink_columns import SinkRow

BATCH_BYTES_MAX: Final = 512 * settings.KIB
"""Of rows in a batch, before compression, unless one row alone has more: as the SDK's producer."""
REQUESTS_IN_FLIGHT_MAX: Final = 4
"""Of one task, each to another partition and of at most 3.5 MiB."""


class Identity(NamedTuple):
    """Under what a task writes."""

    producer_id: int
    epoch: int


class Starter(Protocol):
    """Runs a coroutine in the background."""

    def start(self, coroutine_of: Callable[[], Coroutine[object, object, list[int]]]) -> Future[list[int]]:
        """Start it and return at once."""
        ...


class PartitionWriter:
    """Writes all rows of one task. Use once."""

    def __init__(
        self,
        starter: Starter,
        appender: SequencedAppender,
        identity: Identity,
        *,
        codec: int,
        batch_records_max: int,
        timestamp_ms: int | None,
    ) -> None:
        """`timestamp_ms` is every record's; None: each row has its own."""
        self._starter = starter
        self._appender = appender
        self._identity = identity
        self._codec = codec
        self._batch_records_max = batch_records_max
        self._timestamp_ms = timestamp_ms
        self._in_flight: dict[tuple[str, int], Future[list[int]]] = {}

    def write(self, rows: Iterable[SinkRow], topic_of: Callable[[str], TopicInfo]) -> dict[str, int]:
        """Write rows sorted by topic and partition; returns when all are acknowledged, with the number of rows per topic.

        Raises what `SequencedAppender.append` does; what was sent before may be written.
        """
        written: dict[str, int] = {}
        try:
            for (topic_bytes, partition), group in groupby(rows, key=itemgetter(0, 1)):
                topic = topic_of(topic_bytes.decode())
                bytes_max = min(BATCH_BYTES_MAX, topic.batch_bytes_max - settings.BATCH_FRAME_BYTES)
                gathered: list[bytes] = []
                gathered_bytes = sequence = 0
                for batch_rows in _cut(group, self._batch_records_max, bytes_max):
                    batch = self._seal(batch_rows, sequence)
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

    def _seal(self, rows: list[SinkRow], first_sequence: int) -> bytes:
        _, _, _, has_keys, keys, has_values, values, headers, timestamps = zip(*rows, strict=True)
        body = encode_body(
            values if all(has_values) else [v if has else None for has, v in zip(has_values, values, strict=True)],
            None if not any(has_keys) else [k if has else None for has, k in zip(has_keys, keys, strict=True)],
            list(timestamps) if self._timestamp_ms is None else self._timestamp_ms,
            list(map(unpack_headers, headers)) if any(headers) else None,
            self._codec,
        )
        return body.seal(self._identity.producer_id, self._identity.epoch, first_sequence)

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


def _cut(rows: Iterator[SinkRow], records_max: int, bytes_max: int) -> Iterator[list[SinkRow]]:
    """Rows in pieces of at most so many, and so many bytes; a larger row is a piece of its own.

    Another cut would do as well, for a batch that overlaps with what is there is cut anew; by bytes, so that it fits a request.
    """
    piece: list[SinkRow] = []
    size = 0
    for row in rows:
        row_bytes = len(row[4]) + len(row[6]) + len(row[7]) + settings.RECORD_OVERHEAD_BYTES
        if piece and (len(piece) >= records_max or size + row_bytes > bytes_max):
            yield piece
            piece, size = [], 0
        piece.append(row)
        size += row_bytes
    if piece:
        yield piece
