from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raftmq.batch_header import BatchFormatError
from raftmq.errors import InvalidArgumentError
from raftmq.message_headers import NAME_BYTES_MAX, decode_headers, encode_headers

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
pairs = st.lists(st.tuples(names, st.none() | st.binary(max_size=8)), max_size=5).map(tuple)


@given(pairs)
def test_headers_decode_to_what_was_encoded(headers):
    data = encode_headers(headers)
    assert (data is None) == (headers == ())
    assert decode_headers(data or b"") == headers


def test_the_bytes_of_headers_never_change():
    expected = struct.pack("<Hi", 2, 3) + "é".encode() + b"abc" + struct.pack("<Hi", 1, -1) + b"n"
    assert encode_headers((("é", b"abc"), ("n", None))) == expected


def test_the_longest_name_fits():
    headers = (("n" * NAME_BYTES_MAX, b""),)
    assert decode_headers(encode_headers(headers)) == headers
    with pytest.raises(InvalidArgumentError):
        encode_headers((("n" * (NAME_BYTES_MAX + 1), b""),))


def test_headers_that_are_cut_off_are_refused_or_fewer():
    """The end of headers is the end of their bytes, so only a cut between two headers is one."""
    data = encode_headers((("a", b"bc"), ("d", None)))
    for size in range(len(data)):
        if size in (0, 9):
            assert len(decode_headers(data[:size])) == size // 9
            continue
        with pytest.raises(BatchFormatError):
            decode_headers(data[:size])


@pytest.mark.parametrize("lengths", [(0, -2), (0, 2**31 - 1), (65_535, 0), (1, 0), (0, 1)])
def test_lengths_that_lie_are_refused(lengths):
    with pytest.raises(BatchFormatError):
        decode_headers(struct.pack("<Hi", *lengths))


def test_a_name_that_is_not_text_is_refused():
    with pytest.raises(BatchFormatError, match="UTF-8"):
        decode_headers(struct.pack("<Hi", 1, 0) + b"\xff")
