"""Functions that assign a key to a partition. They are part of the data's format: a change would separate the records of a key.

Source: librdkafka ``rd_kafka_msg_partitioner_consistent`` (CRC-32 of zlib); Kafka ``Utils.murmur2`` and ``toPositive``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Literal, Protocol
from zlib import crc32

from raftmq.errors import UnknownPartitionError


class Partitioner(Protocol):
    """A function of a key and the number of partitions. It must be deterministic, or the records of a key lose their order."""

    def __call__(self, key: bytes, partition_count: int, /) -> int:
        """Return a partition, from 0 to ``partition_count - 1``."""
        ...


PartitionerName = Literal["crc32", "murmur2"]


def crc32_partition(key: bytes, partition_count: int) -> int:
    """Return CRC-32 modulo the number of partitions, as librdkafka's ``consistent_random``. It runs at C speed in zlib.

    Never called for an empty key: as in librdkafka, a record with an empty key is treated as one without a key.
    """
    return crc32(key) % partition_count


def murmur2(data: bytes) -> int:
    """Return Kafka's murmur2 (seed 0x9747b28c) as an unsigned 32-bit number."""
    m = 0x5BD1E995
    mask = 0xFFFFFFFF
    length = len(data)
    h = 0x9747B28C ^ length
    whole = length & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        h = h * m & mask ^ k
    if whole != length:
        h = (h ^ int.from_bytes(data[whole:], "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15


def positive_murmur2(key: bytes) -> int:
    """Return murmur2 without its highest bit, as Kafka's `toPositive`."""
    return murmur2(key) & 0x7FFFFFFF


def murmur2_partition(key: bytes, partition_count: int) -> int:
    """Return the partition of a key as the Java client does by default."""
    return positive_murmur2(key) % partition_count


PARTITIONERS: dict[str, Partitioner] = {"crc32": crc32_partition, "murmur2": murmur2_partition}
"""Partitioners by name."""
KEY_HASHES: dict[str, Callable[[bytes], int]] = {"crc32": crc32, "murmur2": positive_murmur2}
"""The number of a key that, modulo the number of partitions, is its partition, by the partitioner's name."""


def checked(partitioner: Partitioner) -> Partitioner:
    """Wrap a caller's partitioner to check its results, because -1 would silently mean the last partition."""

    def partition_of(key: bytes, partition_count: int, /) -> int:
        number = operator.index(partitioner(key, partition_count))
        if not 0 <= number < partition_count:
            raise UnknownPartitionError(f"the partitioner chose {number} of partitions 0 to {partition_count - 1}")
        return number

    return partition_of
