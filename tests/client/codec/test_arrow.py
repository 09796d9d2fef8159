"""Batches that are encoded from Arrow columns are those that are encoded from Python values, byte by byte."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from raftmq.batch_header import CODEC_LZ4, CODEC_NONE
from raftmq.client.codec.arrow import encode_arrow
from raftmq.client.codec.batch import encode_body
from raftmq.errors import UnsupportedCompressionError

HEADERS = pa.list_(pa.struct([("key", pa.binary()), ("value", pa.binary())]))
cells = st.none() | st.binary(max_size=5)
times = st.integers(-9, 9) | st.sampled_from([-(2**63), 2**63 - 1, 2**32 - 1, 2**32])
headers = st.lists(st.tuples(st.text(max_size=2), cells), max_size=2)


@given(
    records=st.lists(st.tuples(cells, cells, times, headers), min_size=1, max_size=40),
    has_keys=st.booleans(),
    has_times=st.booleans(),
    has_headers=st.booleans(),
    skipped=st.integers(0, 39),
    codec=st.sampled_from([CODEC_NONE, CODEC_LZ4]),
)
def test_slices_of_columns_are_encoded_as_their_values_are(records, has_keys, has_times, has_headers, skipped, codec):
    values, keys, times_ms, pairs = map(list, zip(*records, strict=True))
    rest = slice(min(skipped, len(records) - 1), None)
    packed = [[(name.encode(), value) for name, value in each] or None for each in pairs]
    columnar = encode_arrow(
        pa.array(values, pa.binary())[rest],
        pa.array(keys, pa.binary())[rest] if has_keys else None,
        pa.array(times_ms, pa.int64())[rest] if has_times else 5,
        pa.array(packed, HEADERS)[rest] if has_headers else None,
        codec,
    )
    expected = encode_body(
        values[rest],
        keys[rest] if has_keys else None,
        times_ms[rest] if has_times else 5,
        [tuple(each) for each in pairs][rest] if has_headers else None,
        codec,
    )
    assert columnar == expected


def test_bytes_behind_a_null_are_not_encoded():
    buffers = [
        pa.py_buffer(b"\x05"),
        pa.py_buffer(pa.array([0, 1, 2, 3], pa.int32()).buffers()[1]),
        pa.py_buffer(b"abc"),
    ]
    column = pa.Array.from_buffers(pa.binary(), 3, buffers)
    assert encode_arrow(column, None, 0) == encode_body([b"a", None, b"c"], None, 0)


def test_an_unknown_codec_is_refused():
    with pytest.raises(UnsupportedCompressionError):
        encode_arrow(pa.array([b"a"]), None, 0, codec=99)
