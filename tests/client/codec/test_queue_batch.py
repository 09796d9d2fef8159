"""The SDK's side of queue topics: values to batches, and blocks to values."""

from __future__ import annotations

import struct
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from raftmq.batch_header import CODEC_LZ4, CODEC_NONE, CODEC_ZSTD, BatchFormatError
from raftmq.client.codec.batch import compress
from raftmq.client.codec.codecs import CODECS
from raftmq.client.codec.queue_batch import (
    COMPRESS_BYTES_MIN,
    DamagedMessage,
    ReceivedMessage,
    TimeColumns,
    compress_body,
    decode_messages,
    decompress_body,
    encode_messages,
    tail_of_messages,
)
from raftmq.errors import InvalidArgumentError, RecordTooLargeError, UnsupportedCompressionError
from raftmq.message_block import MessageBlock, pack_block, unpack_block
from raftmq.message_checks import MESSAGE_BYTES_MAX, TIME_AFTER, TIME_AT, TIME_NONE, BatchLimits, Times
from raftmq.queue_batch import QueueBodies, validate_queue

from tests.support.api.messages import tenant, texts

MIB = 1 << 20
COMPRESSING = sorted(set(CODECS.values()) - {CODEC_NONE})
JSON = b'{"name": "value"}' * 100


def delivered(batch: bytes, first_sequence: int = 100, lease_number: int = 3) -> MessageBlock:
    """Return the block that a broker sends for all messages of a batch, unpacked by the receiver."""
    _, fields = validate_queue(batch, 8 * MIB, BatchLimits(4 * MIB))
    bodies = QueueBodies(batch)
    count = bodies.count
    block = MessageBlock(
        sequences=range(first_sequence, first_sequence + count),
        lease_numbers=[lease_number] * count,
        attempts=[2] * count,
        enqueued_ms=[5000] * count,
        bodies=[bodies.body(position) for position in range(count)],
        body_checksums=fields.body_checksums,
        body_positions=range(count),
        codecs=fields.codecs,
        lease_remaining_ms=[30_000] * count,
        priorities=fields.priorities,
        tenants=fields.tenants.to_list(),
        ids=fields.ids,
        keys=fields.keys,
        headers=fields.headers,
    )
    return unpack_block(pack_block(block))


def decoded(batch: bytes) -> list[ReceivedMessage | DamagedMessage]:
    block = delivered(batch)
    return decode_messages(block, range(len(block.sequences)))


@given(data=st.data(), codec=st.sampled_from([CODEC_NONE, *COMPRESSING]))
@settings(max_examples=100, deadline=None)
def test_a_consumer_receives_what_was_put(data, codec):
    count = data.draw(st.integers(1, 8))

    def column(cell):
        return data.draw(st.none() | st.lists(cell, min_size=count, max_size=count))

    bodies = st.binary(max_size=20) | st.sampled_from([b"x" * COMPRESS_BYTES_MIN, JSON])
    values = data.draw(st.lists(bodies, min_size=count, max_size=count))
    keys, tenants, ids = (
        column(st.none() | st.binary(min_size=1, max_size=5)),
        column(tenant),
        column(st.none() | texts),
    )
    priorities = column(st.integers(-5, 5))
    pairs = st.lists(st.tuples(texts, st.none() | st.binary(max_size=5)), max_size=2).map(tuple)
    headers = column(pairs)

    encoded = encode_messages(
        values, keys=keys, tenants=tenants, priorities=priorities, ids=ids, headers=headers, codec=codec
    )
    received = decoded(encoded.seal(7, 8, 9))

    assert received == [
        ReceivedMessage(
            100 + at,
            3,
            2,
            5000,
            30_000,
            priorities[at] if priorities else 0,
            tenants[at] if tenants else "",
            ids[at] if ids else None,
            keys[at] if keys else None,
            headers[at] if headers else (),
            values[at],
        )
        for at in range(count)
    ]


def test_times_and_flags_reach_the_broker():
    encoded = encode_messages(
        [b""] * 3,
        due=TimeColumns(after_ms=[None, 5, None], at_ms=[None, None, 7]),
        expiry=TimeColumns(at_ms=[9, None, 9]),
        ids=["a", None, "b"],
        replaces=[True, False, False],
    )
    header, fields = validate_queue(encoded.seal(1, 2, 3, flags=0x100), MIB)
    assert header[3:5] == (0x100, 3)
    assert (header.producer_id, header.producer_epoch, header.first_sequence) == (1, 2, 3)
    assert fields.due == Times((TIME_NONE, TIME_AFTER, TIME_AT), (0, 5, 7))
    assert fields.expiry == Times((TIME_AT, TIME_NONE, TIME_AT), (9, 0, 9))
    assert fields.replaces == (1, 0, 0)


# ----------------------------------------------------------------------------------------------------------- compression


def test_the_tail_of_a_batch_is_its_last_messages_with_all_their_fields():
    """A message keeps its sequence and its fields, and its body the checksum for its new position."""
    full = encode_messages(
        [b"a" * 2000, b"b", b"c" * 2000, b""],
        keys=[b"k", None, b"l", None],
        tenants=["acme", "", "acme.eu", "acme"],
        priorities=[1, 2, -3, 0],
        due=TimeColumns([5, None, None, 7], [None, None, 1_700_000_000_000, None]),
        expiry=TimeColumns([None, 9, None, None]),
        ids=["i", None, "j", None],
        headers=[(), (("x", b"1"),), (("y", None),), ()],
        replaces=[True, False, True, False],
        codec=CODEC_LZ4,
    ).seal(7, 2, 10, flags=3 << 8)
    tail = tail_of_messages(full, 2)
    header, fields = validate_queue(tail, MIB)
    assert (header.producer_id, header.producer_epoch, header.first_sequence) == (7, 2, 12)
    assert (header.record_count, header.flags) == (2, 3 << 8)
    assert fields.due == Times((TIME_AT, TIME_AFTER), (1_700_000_000_000, 7))
    assert fields.expiry is None
    assert fields.replaces == (1, 0)
    assert decode_messages(delivered(tail, first_sequence=102), range(2)) == decoded(full)[2:]
    plain = encode_messages([b"a", b"b"]).seal(7, 0, 0)
    assert tail_of_messages(plain, 1) == encode_messages([b"b"]).seal(7, 0, 1)


@pytest.mark.parametrize("codec", COMPRESSING)
def test_only_values_that_become_smaller_are_compressed(codec):
    incompressible = bytes(range(256)) * 2
    assert len(compress_body(incompressible[:256], codec)) >= 256
    short = b"x" * (COMPRESS_BYTES_MIN - 1)
    values = [JSON, short, bytes(range(256))]
    batch = encode_messages(values, codec=codec).seal()
    bodies = QueueBodies(batch)
    assert list(bodies.codecs) == [codec, CODEC_NONE, CODEC_NONE]
    assert len(bodies.body(0)) < len(JSON) / 4
    assert struct.unpack_from("<I", bodies.body(0)) == (len(JSON),)
    assert [message.value for message in decoded(batch)] == values


def test_an_lz4_body_has_its_size_once():
    """The block format of the log's batches already begins with the raw size."""
    assert compress_body(JSON, CODEC_LZ4) == compress(JSON, CODEC_LZ4)
    assert compress_body(JSON, CODEC_ZSTD) == struct.pack("<I", len(JSON)) + compress(JSON, CODEC_ZSTD)


@pytest.mark.parametrize("codec", COMPRESSING)
def test_a_bomb_takes_no_more_than_its_claimed_size_and_the_limit(codec):
    bomb = compress_body(bytes(32 * MIB), codec)
    for claimed in (2**32 - 1, 32 * MIB, MESSAGE_BYTES_MAX + 1, MESSAGE_BYTES_MAX, 100):
        lie = struct.pack("<I", claimed) + bomb[4:]
        tracemalloc.start()
        try:
            with pytest.raises(BatchFormatError):
                decompress_body(lie, codec)
            assert tracemalloc.get_traced_memory()[1] <= MESSAGE_BYTES_MAX + MIB
        finally:
            tracemalloc.stop()


def test_an_unknown_codec_is_refused():
    with pytest.raises(UnsupportedCompressionError):
        encode_messages([JSON], codec=9)
    with pytest.raises(UnsupportedCompressionError):
        decompress_body(bytes(4), 9)


# --------------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"tenants": ["a", "b..c"]}, "position 1"),
        ({"tenants": ["a", "\ud800"]}, "surrogate"),
        ({"ids": ["a", ""]}, "position 1"),
        ({"ids": ["a", "\ud800"]}, "surrogate"),
        ({"keys": [b"", b"a"]}, "position 0"),
        ({"priorities": [0, 2**31]}, "position 1"),
        ({"due": TimeColumns(after_ms=[0, -1])}, "position 1"),
        ({"due": TimeColumns(at_ms=[0, 2**70])}, "position 1"),
        ({"due": TimeColumns([0, 1], [None, 1])}, "position 1.*both a relative and an absolute due time"),
        ({"expiry": TimeColumns([0, 1], [1, None])}, "position 0.*both a relative and an absolute expiry"),
        ({"replaces": [False, True]}, "position 1"),
    ],
)
def test_a_wrong_argument_is_refused(arguments, text):
    with pytest.raises(InvalidArgumentError, match=text):
        encode_messages([b"a", b"b"], **arguments)


@pytest.mark.parametrize(
    ("values", "arguments"),
    [
        ([], {}),
        ([b""] * 1001, {}),
        ([b"", bytes(MIB + 1)], {}),
        ([bytes(MESSAGE_BYTES_MAX + 1)], {"codec": CODEC_ZSTD}),
        ([b"", b""], {"headers": [(), (("n", bytes(20_000)),)]}),
        ([b"abc"], {"limits": BatchLimits(message_bytes_max=2)}),
    ],
)
def test_too_much_is_refused(values, arguments):
    with pytest.raises(RecordTooLargeError):
        encode_messages(values, **arguments)


def test_compression_makes_room_within_a_topics_limit():
    """The limit of a topic is about stored bytes. Only the limit for every message is about the value, too."""
    encode_messages([bytes(MESSAGE_BYTES_MAX)], codec=CODEC_ZSTD, limits=BatchLimits(message_bytes_max=4096))


# ----------------------------------------------------------------------------------------------------------------- damage


def test_a_damaged_message_does_not_hide_the_others():
    values = [b"zero", b"one", JSON, b"three", b"four"]
    block = delivered(
        encode_messages(values, ids=["a"] + ["b"] * 4, headers=[()] * 4 + [(("n", b"v"),)], codec=CODEC_ZSTD).seal()
    )
    bodies, ids, headers, codecs = list(block.bodies), list(block.ids), list(block.headers), list(block.codecs)
    bodies[1] = b"oNe"
    codecs[2] = 9
    ids[3] = b"\xff"
    headers[4] = b"?"
    damaged = block._replace(bodies=bodies, ids=ids, headers=headers, codecs=codecs)

    found = decode_messages(damaged, range(5))

    assert found[0].value == b"zero"
    assert [message[:2] for message in found[1:]] == [(101, 3), (102, 3), (103, 3), (104, 3)]
    reasons = [message.reason for message in found[1:]]
    assert "CRC32C" in reasons[0]
    assert "codec 9" in reasons[1]
    assert "utf-8" in reasons[2]
    assert "header" in reasons[3]


def test_a_caller_decodes_only_the_messages_that_it_returns():
    block = delivered(encode_messages([b"a", b"b", b"c"]).seal())
    assert [message.value for message in decode_messages(block, range(1, 2))] == [b"b"]
