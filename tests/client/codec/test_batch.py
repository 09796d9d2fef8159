from __future__ import annotations

import struct

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from raftmq.batch_header import HEADER_BYTES, BatchFormatError, BatchTooLargeError, parse_header, seal, validate
from raftmq.client.codec.arrow import binary_array, timestamp_array
from raftmq.client.codec.batch import compress, decode_columns, decode_records, decompress, encode_body
from raftmq.client.codec.codecs import CODECS
from raftmq.errors import UnsupportedCompressionError
from raftmq.types import Record

CODEC_NUMBERS = sorted(set(CODECS.values()))
cells = st.none() | st.binary(max_size=40)
headers = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=8)), max_size=3).map(tuple)


@st.composite
def batches(draw: st.DrawFn):
    count = draw(st.integers(1, 40))

    def column(cell: st.SearchStrategy):
        return draw(st.lists(cell, min_size=count, max_size=count))

    shape = draw(st.sampled_from([cells, st.none(), st.binary(max_size=40)]))
    keys = draw(st.sampled_from([None, cells, st.binary(max_size=4)]))
    times = draw(
        st.sampled_from([st.integers(0, 2**41), st.just(7), st.integers(-(2**62), 2**62), st.integers(5, 900)])
    )
    return (
        column(shape),
        None if keys is None else column(keys),
        column(times),
        column(headers) if draw(st.booleans()) else None,
        draw(st.sampled_from(CODEC_NUMBERS)),
    )


def slow_records(values, keys, timestamps, header_tuples) -> list[Record]:
    """Predict the result of decoding without bytes: the slow twin."""
    return [
        Record(
            "t",
            3,
            100 + i,
            timestamps[i],
            None if keys is None else keys[i],
            values[i],
            () if header_tuples is None else header_tuples[i],
        )
        for i in range(len(values))
    ]


@given(batches())
@settings(max_examples=100, deadline=None)
def test_a_batch_decodes_to_what_was_encoded(batch):
    values, keys, timestamps, header_tuples, codec = batch
    encoded = encode_body(values, keys, timestamps, header_tuples, codec)
    data = encoded.seal(producer_id=2**64 - 1, producer_epoch=2**64 - 1, first_sequence=2**64 - len(values))

    header = validate(data, 1 << 20)
    assert decode_records(data, header, "t", 3, 100) == slow_records(values, keys, timestamps, header_tuples)
    assert (header.base_timestamp_ms, header.max_timestamp_ms) == (min(timestamps), max(timestamps))
    assert (header.producer_id, header.producer_epoch, header.last_sequence) == (2**64 - 1,) * 3


@given(batches())
@settings(max_examples=50, deadline=None)
def test_arrow_columns_equal_the_lists(batch):
    values, keys, timestamps, header_tuples, codec = batch
    data = encode_body(values, keys, [abs(t) for t in timestamps], header_tuples, codec).seal()
    columns = decode_columns(data)
    for column, expected in ((columns.values, values), (columns.keys, keys or [None] * len(values))):
        array = binary_array(column)
        array.validate(full=True)
        assert array.to_pylist() == expected == column.to_list()
    assert timestamp_array(columns).to_pylist() == [abs(t) for t in timestamps]


def test_an_uncompressed_column_reaches_arrow_without_a_copy():
    data = encode_body([b"abc", b"defgh"], None, 1).seal()
    array = binary_array(decode_columns(data).values)
    blob = array.buffers()[2]
    assert blob.address == pa.py_buffer(data).address + data.index(b"abcdefgh")


@given(batches(), st.data())
@settings(max_examples=100, deadline=None)
def test_a_damaged_body_raises_only_batch_format_errors(batch, data):
    """Another program may write a batch with a valid CRC around any body."""
    values, keys, timestamps, header_tuples, codec = batch
    encoded = encode_body(values, keys, timestamps, header_tuples, codec)
    body = bytearray(encoded.body)
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del body[data.draw(st.integers(0, len(body))) :]
    forged = seal(
        bytes(body),
        record_count=data.draw(st.just(len(values)) | st.integers(1, 1 << 20)),
        raw_body_bytes=data.draw(st.just(encoded.raw_body_bytes) | st.integers(0, 1 << 16)),
        base_timestamp_ms=0,
        max_timestamp_ms=0,
        codec=codec,
    )
    try:
        decoded = decode_records(forged, parse_header(forged), "t", 0, 0)
    except BatchFormatError:
        return
    assert len(decoded) == parse_header(forged).record_count


@pytest.mark.parametrize("codec", [number for number in CODEC_NUMBERS if number])
def test_a_decompression_bomb_is_refused_before_it_is_decompressed(codec: int):
    raw = bytes(32 << 20)
    packed = compress(raw, codec)
    with pytest.raises(BatchTooLargeError):
        decompress(memoryview(packed), codec, len(raw), bytes_max=1 << 20)
    with pytest.raises(BatchFormatError):  # the claim is small, the content is not
        decompress(memoryview(packed), codec, 1 << 10)


def test_a_forged_record_count_costs_nothing():
    """With all cells null and a constant timestamp, 8 bytes claim four billion records."""
    body = encode_body([None], None, 0).body
    forged = seal(body, record_count=2**32 - 1, raw_body_bytes=len(body), base_timestamp_ms=0, max_timestamp_ms=0)
    with pytest.raises(BatchFormatError):
        decode_columns(forged)


def test_a_claim_of_too_many_headers_is_refused():
    encoded = encode_body([b"v"], None, 0, [(("a", b"b"),)])
    body = bytearray(encoded.body)
    at = body.index(struct.pack("<I", 1), 24)  # the header count, behind the prelude, the length and the value
    struct.pack_into("<I", body, at, 2**32 - 1)
    forged = seal(bytes(body), record_count=1, raw_body_bytes=len(body), base_timestamp_ms=0, max_timestamp_ms=0)
    with pytest.raises(BatchFormatError):
        decode_columns(forged)


def test_an_unknown_codec_is_named():
    body = encode_body([b"v"], None, 0).body
    forged = seal(body, record_count=1, raw_body_bytes=len(body), base_timestamp_ms=0, max_timestamp_ms=0, codec=9)
    with pytest.raises(UnsupportedCompressionError):
        decode_columns(forged)


@pytest.mark.parametrize("value", ["text", 5, [b"x"]])
def test_values_of_other_types_are_refused(value: object):
    with pytest.raises(TypeError):
        encode_body([value], None, 0)


def test_the_format_is_frozen():
    """These are the bytes of release 0.1. If this fails, old data cannot be read. Do not change it: add a version."""
    encoded = encode_body([b"ab", None, b""], [None, b"k", None], [1000, 1001, 1003], [(), (("h", b"x"),), ()])
    assert encoded.body.hex() == (
        "0202010100000000"  # some null, some null, u32 deltas, headers
        "00000000010000000300000000000000"  # deltas 0, 1, 3
        "0500000000000000"  # values 0 and 2 are present
        "02000000000000000000000000000000"  # their lengths
        "6162000000000000"
        "0200000000000000"  # key 1 is present
        "00000000010000000000000000000000"
        "6b00000000000000"
        "00000000010000000000000000000000"  # header counts
        "01000000000000006800000000000000"  # names: lengths, blob
        "0100000000000000"  # header values: none null
        "01000000000000007800000000000000"
    )
    assert len(encoded.seal()) == HEADER_BYTES + len(encoded.body)
