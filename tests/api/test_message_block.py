"""Blocks of messages from a broker to a consumer: round trips, golden bytes, damage, hostile claims."""

from __future__ import annotations

import struct
import tracemalloc

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from raftmq.batch_header import BatchFormatError, UnsupportedBatchVersionError
from raftmq.message_block import MessageBlock, pack_block, unpack_block
from raftmq.message_checks import MESSAGE_COUNT_MAX
from raftmq.queue_batch import MessageColumns, QueueBodies, check_body, encode, parse_fields, seal_queue_batch

from tests.support.api.messages import filled, message_columns

U32 = st.integers(0, 2**32 - 1)
SMALL = MessageBlock(
    sequences=[100, 107],
    lease_numbers=[1, 1],
    attempts=[1, 3],
    enqueued_ms=[5000, 5000],
    bodies=[b"abc", b"hi"],
    body_checksums=[11, 12],
    body_positions=[0, 7],
    codecs=[0, 1],
    lease_remaining_ms=[30_000, 30_000],
    priorities=[-5, 0],
    tenants=[b"acme", b""],
    ids=[b"id", None],
    keys=[b"k", b"k"],
    headers=[None, b"hh"],
)
TWO = MessageColumns([b"first", b"second"])


@st.composite
def blocks(draw: st.DrawFn) -> MessageBlock:
    """Draw a block of messages that a producer has sent in one batch."""
    messages = draw(message_columns())
    count = len(messages.bodies)
    fields = parse_fields(seal_queue_batch(encode(messages), message_count=count))

    def column(cell: st.SearchStrategy[int]) -> list[int]:
        return draw(st.lists(cell, min_size=count, max_size=count) | cell.map(lambda number: [number] * count))

    return MessageBlock(
        sequences=column(st.integers(0, 2**64 - 1)),
        lease_numbers=column(U32),
        attempts=column(U32),
        enqueued_ms=column(st.integers(0, 2**62)),
        bodies=messages.bodies,
        body_checksums=fields.body_checksums,
        body_positions=list(range(count)),
        codecs=messages.codecs,
        lease_remaining_ms=draw(st.none() | st.just([0] * count) | st.just(list(range(count)))),
        priorities=messages.priorities,
        tenants=messages.tenants,
        ids=messages.ids,
        keys=messages.keys,
        headers=messages.headers,
    )


@given(block=blocks())
@settings(max_examples=100, deadline=None)
def test_a_block_unpacks_to_the_messages_that_were_packed(block: MessageBlock) -> None:
    found = unpack_block(pack_block(block))

    for name in ("sequences", "lease_numbers", "attempts", "enqueued_ms", "body_checksums", "body_positions", "bodies"):
        assert list(getattr(found, name)) == list(getattr(block, name)), name
    count = len(block.sequences)
    defaults = {"codecs": 0, "priorities": 0, "tenants": b"", "ids": None, "keys": None, "headers": None}
    for name, default in defaults.items():
        assert filled(getattr(found, name), default, count) == filled(getattr(block, name), default, count), name
    if block.lease_remaining_ms is None:
        assert found.lease_remaining_ms is None
    else:
        assert list(found.lease_remaining_ms) == block.lease_remaining_ms
    for body, position, checksum in zip(found.bodies, found.body_positions, found.body_checksums, strict=True):
        check_body(body, position, checksum)


def test_the_bodies_of_a_block_are_slices_of_stored_batches() -> None:
    """A broker packs memoryviews, and the receiver gets memoryviews of the block."""
    batch = seal_queue_batch(encode(TWO), message_count=2)
    bodies = QueueBodies(batch)
    block = SMALL._replace(
        bodies=[bodies.body(1), bodies.body(0)],
        body_checksums=[bodies.checksum(1), bodies.checksum(0)],
        body_positions=[1, 0],
    )
    data = pack_block(block)
    found = unpack_block(data)
    assert [bytes(body) for body in found.bodies] == TWO.bodies[::-1]
    assert all(isinstance(body, memoryview) and body.obj is data for body in found.bodies)
    for at in range(2):
        check_body(found.bodies[at], found.body_positions[at], found.body_checksums[at])


def test_the_bytes_of_a_small_block_never_change() -> None:
    """Consumers and brokers of different versions exchange blocks."""
    columns = b"".join(
        (
            struct.pack("<2Q", 100, 107),
            struct.pack("<I", 1),
            struct.pack("<2I", 1, 3),
            struct.pack("<q", 5000),
            struct.pack("<2I", 3, 2),
            struct.pack("<2I", 11, 12),
            struct.pack("<2I", 0, 7),
            bytes([0, 1]),
            struct.pack("<Q", 30_000),
            struct.pack("<2i", -5, 0),
            struct.pack("<2H", 0, 1),
            b"\x02\x00",
            b"\x01",
            struct.pack("<2I", 0, 2),
            b"\x04\x00acme",
            b"id",
            b"k",
            b"hh",
        )
    )
    section = struct.pack("<III", 0b11111111111111, 0b01000100001010, len(columns)) + columns
    head = struct.pack("<II", crc32c(struct.pack("<I", 2) + section), 2)
    assert pack_block(SMALL) == head + section + b"abchi"


def test_every_truncation_of_a_block_is_refused() -> None:
    data = pack_block(SMALL)
    for size in range(len(data)):
        with pytest.raises(BatchFormatError):
            unpack_block(data[:size])
    with pytest.raises(BatchFormatError):
        unpack_block(data + b"?")


def test_every_flipped_bit_of_a_block_is_refused_or_found_by_the_bodys_checksum() -> None:
    fields = parse_fields(seal_queue_batch(encode(TWO), message_count=2))
    block = SMALL._replace(bodies=TWO.bodies, body_checksums=fields.body_checksums, body_positions=[0, 1], codecs=None)
    data = bytearray(pack_block(block))
    body_bits = sum(map(len, TWO.bodies)) * 8
    for bit in range(len(data) * 8):
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BatchFormatError):
            found = unpack_block(bytes(data))
            assert bit >= len(data) * 8 - body_bits, "only a body has a checksum of its own"
            for body, position, checksum in zip(found.bodies, found.body_positions, found.body_checksums, strict=True):
                check_body(body, position, checksum)
        data[bit // 8] ^= 1 << bit % 8


def resealed(section: bytes, count: int) -> bytes:
    """Return a block whose checksum is right."""
    return struct.pack("<II", crc32c(struct.pack("<I", count) + section), count) + section


def test_columns_of_a_newer_broker_are_refused_with_their_error() -> None:
    section = pack_block(SMALL)[8:]
    (present,) = struct.unpack_from("<I", section)
    with pytest.raises(UnsupportedBatchVersionError):
        unpack_block(resealed(struct.pack("<I", present | 1 << 14) + section[4:], 2))


@pytest.mark.parametrize("count", [0, MESSAGE_COUNT_MAX, MESSAGE_COUNT_MAX + 1, 2**32 - 1])
def test_a_false_count_is_refused_without_allocating_for_it(count: int) -> None:
    section = struct.pack("<III", 0b1111111, 0b0011110, 40) + bytes(40)
    data = struct.pack("<II", crc32c(struct.pack("<I", count) + section), count) + section

    def refuse() -> None:
        with pytest.raises(BatchFormatError):
            unpack_block(data)

    refuse()
    tracemalloc.start()
    try:
        refuse()
        assert tracemalloc.get_traced_memory()[1] < 64 * 1024
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("length", [2, 4, 2**32 - 1])
def test_bodies_that_do_not_fill_the_block_are_refused(length: int) -> None:
    data = pack_block(SMALL._replace(codecs=None))
    section = bytearray(data[8:])
    at = bytes(section).index(struct.pack("<2I", 3, 2))
    struct.pack_into("<I", section, at, length)
    columns_end = len(section) - 5
    crc = crc32c(struct.pack("<I", 2) + bytes(section[:columns_end]))
    with pytest.raises(BatchFormatError, match="bodies claim"):
        unpack_block(struct.pack("<II", crc, 2) + bytes(section))
