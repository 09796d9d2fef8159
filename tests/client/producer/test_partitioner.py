"""Known answers of other clients: a change here would send a key to another partition than before."""

from __future__ import annotations

import pytest
from raftmq.client.producer.partitioner import crc32_partition, murmur2, murmur2_partition

LIBRDKAFKA_KEYS = [b"", b"23456", b"this is another string with more length to it perhaps", b"hejsan"]


@pytest.mark.parametrize(
    ("key", "crc"), list(zip(LIBRDKAFKA_KEYS, [0x0, 0xB1B451D7, 0xB0150DF7, 0xD077037E], strict=True))
)
def test_crc32_agrees_with_librdkafka(key: bytes, crc: int):
    """Source: librdkafka tests/0048-partitioner.c, "consistent"."""
    for count in (1, 7, 17, 100):
        assert crc32_partition(key, count) == crc % count


@pytest.mark.parametrize(
    ("key", "positive"), list(zip(LIBRDKAFKA_KEYS, [0x106E08D9, 0x058D780F, 0x4F7703DA, 0x5EC19395], strict=True))
)
def test_murmur2_agrees_with_librdkafka(key: bytes, positive: int):
    """Source: librdkafka tests/0048-partitioner.c, "murmur2" (made with the Java client)."""
    for count in (1, 7, 17, 100):
        assert murmur2_partition(key, count) == positive % count


@pytest.mark.parametrize(
    ("key", "signed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_agrees_with_the_java_client(key: bytes, signed: int):
    """Source: Kafka UtilsTest.testMurmur2."""
    assert murmur2(key) == signed & 0xFFFFFFFF
