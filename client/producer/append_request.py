"""Serializes an `AppendRequest` with a single copy of its batches.

Building the message and then serializing it copies every batch two more times, which took a quarter of the producer's time on its event
loop at 100 MB/s. Protobuf still encodes the small fields, and a test compares the bytes with protobuf's own.

Source: the protocol buffers encoding (length-delimited fields: tag, length as varint, bytes).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from raftmq.proto import queue_pb2 as pb

_LENGTH_DELIMITED: Final = 2
_PARTITIONS_TAG: Final = bytes([pb.AppendRequest.PARTITIONS_FIELD_NUMBER << 3 | _LENGTH_DELIMITED])
_BATCHES_TAG: Final = bytes([pb.PartitionAppend.BATCHES_FIELD_NUMBER << 3 | _LENGTH_DELIMITED])


class PartitionBatches(NamedTuple):
    """The fields of a `PartitionAppend`."""

    topic_id: int
    partition: int
    batches: Sequence[bytes]


def serialize_append(
    correlation_id: int,
    metadata_revision: int,
    timeout_ms: int,
    partitions: Sequence[PartitionBatches],
    trace_contexts: bytes = b"",
) -> bytes:
    """Return the bytes of an `AppendRequest`."""
    head = pb.AppendRequest(
        correlation_id=correlation_id,
        metadata_revision=metadata_revision,
        timeout_ms=timeout_ms,
        trace_contexts=trace_contexts,
    ).SerializeToString()
    parts = [head]
    for topic_id, partition, batches in partitions:
        fields = pb.PartitionAppend(topic_id=topic_id, partition=partition).SerializeToString()
        framed = [fields]
        for batch in batches:
            framed += (_BATCHES_TAG, _varint(len(batch)), batch)
        parts += (_PARTITIONS_TAG, _varint(sum(map(len, framed))), *framed)
    return b"".join(parts)


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
