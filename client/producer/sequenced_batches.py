"""Cuts records into batches with consecutive sequences of one producer, for `SequencedAppender`.

Must not choose the producer, the epoch or the first sequence: callers do. The cuts may differ between attempts: a batch that overlaps with
records written before is cut again (`sequenced_append.tail_of`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from raftmq.batch_header import CODEC_NONE
from raftmq.client.base import settings
from raftmq.client.codec.batch import Headers, encode_body
from raftmq.client.codec.cells import headers_bytes
from raftmq.client.connection.resolver import TopicInfo


class Cells(NamedTuple):
    """A serialized record to write."""

    value: bytes | None
    key: bytes | None
    timestamp_ms: int
    headers: Headers
    size: int
    """Bytes with overhead, as the producer counts them."""


def cells_of(value: bytes | None, key: bytes | None, timestamp_ms: int, headers: Headers = ()) -> Cells:
    """Return a record with its size."""
    size = len(key or b"") + len(value or b"") + settings.RECORD_OVERHEAD_BYTES
    return Cells(value, key, timestamp_ms, headers, size + headers_bytes(headers) if headers else size)


def record_room(topic: TopicInfo) -> int:
    """Return the maximum size of a record, as `cells_of` counts it, that fits into a batch of the topic."""
    return topic.batch_bytes_max - settings.BATCH_FRAME_BYTES


def sequenced_batches(
    records: Sequence[Cells],
    producer_id: int,
    epoch: int,
    topic: TopicInfo,
    *,
    first_sequence: int = 0,
    codec: int = CODEC_NONE,
) -> list[bytes]:
    """Seal the records into batches that the topic accepts. The record with index n has the sequence `first_sequence + n`."""
    bytes_max = min(settings.EXACT_BATCH_BYTES_MAX, record_room(topic))
    batches: list[bytes] = []
    sequence = first_sequence
    for piece in _cut(records, bytes_max):
        values, keys, timestamps, headers, _ = zip(*piece, strict=True)
        body = encode_body(values, keys, timestamps, headers if any(headers) else None, codec)
        batches.append(body.seal(producer_id, epoch, sequence))
        sequence += len(piece)
    return batches


def _cut(records: Sequence[Cells], bytes_max: int) -> Iterator[Sequence[Cells]]:
    """Yield pieces of at most `bytes_max` bytes. A larger record is a piece of its own."""
    start = size = 0
    for number, record in enumerate(records):
        if number > start and size + record.size > bytes_max:
            yield records[start:number]
            start, size = number, 0
        size += record.size
    if start < len(records):
        yield records[start:]


def requests_of(batches: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Group batches into requests that brokers accept."""
    start = size = 0
    for number, batch in enumerate(batches):
        is_full = number - start == settings.REQUEST_BATCHES_MAX
        if number > start and (is_full or size + len(batch) > settings.REQUEST_BYTES_MAX):
            yield batches[start:number]
            start, size = number, 0
        size += len(batch)
    if start < len(batches):
        yield batches[start:]
