"""Rows survive encoding and decoding, and any other bytes are refused."""

from __future__ import annotations

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from raftmq.raft.entry import Entry, EntryKind, LogPosition
from raftmq.raft.hard_state import HardState
from raftmq.raft.membership import Membership
from raftmq.storage.checksum import CHECKSUM, is_intact, seal
from raftmq.storage.entry_codec import (
    HEADER_BYTES,
    ROW_OVERHEAD_BYTES,
    CodecError,
    decode_entry,
    decode_key,
    decode_row,
    decode_row_fields,
    encode_entry,
    encode_key,
    header_of,
)
from raftmq.storage.replica_codec import (
    CommitNote,
    Identity,
    ReplicaMeta,
    decode_identity,
    decode_meta,
    decode_note,
    encode_identity,
    encode_meta,
)
from raftmq.types import GroupId, LogIndex, Offset, ReplicaId, Term

U64 = st.integers(0, 2**64 - 1)
ENTRIES = st.builds(
    Entry,
    index=U64.map(LogIndex),
    term=U64.map(Term),
    kind=st.sampled_from(EntryKind),
    base_offset=st.integers(0, 2**63).map(Offset),
    record_count=st.integers(0, 2**32 - 1),
    append_time_ms=st.integers(-(2**63), 2**63 - 1),
    payload=st.binary(max_size=300),
)
IDS = st.lists(U64.map(ReplicaId), max_size=5).map(tuple)
METAS = st.builds(
    ReplicaMeta,
    st.builds(HardState, U64.map(Term), U64.map(ReplicaId), U64.map(LogIndex)),
    st.builds(LogPosition, U64.map(LogIndex), U64.map(Term), U64.map(Offset), st.integers(-(2**63), 2**63 - 1)),
    U64.map(LogIndex),
    U64.map(Offset),
    st.integers(-(2**63), 2**63 - 1),
    U64.map(LogIndex),
    st.builds(Membership, IDS, IDS, IDS, IDS, st.booleans(), U64),
)


@given(ENTRIES)
def test_an_entry_survives_encoding_and_decoding(entry: Entry) -> None:
    encoded = encode_entry(entry)
    assert len(encoded) == len(entry.payload) + ROW_OVERHEAD_BYTES
    assert decode_entry(encoded) == entry == decode_row(entry.index, memoryview(encoded))
    header = header_of(decode_row_fields(entry.index, encoded))
    assert (header.index, header.term, header.kind, header.base_offset) == (
        entry.index,
        entry.term,
        entry.kind,
        entry.base_offset,
    )
    assert (header.record_count, header.append_time_ms) == (entry.record_count, entry.append_time_ms)
    assert header.payload_bytes == len(entry.payload)


@given(ENTRIES, st.data())
def test_any_changed_bit_is_detected(entry: Entry, data: st.DataObject) -> None:
    encoded = bytearray(encode_entry(entry))
    bit = data.draw(st.integers(0, len(encoded) * 8 - 1))
    encoded[bit // 8] ^= 1 << (bit % 8)
    with pytest.raises(CodecError):
        decode_entry(encoded)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_a_codec_error(buffer: bytes) -> None:
    with pytest.raises(CodecError):
        decode_entry(buffer)


@given(ENTRIES, st.integers(1, 60))
def test_a_cut_off_entry_is_a_codec_error(entry: Entry, cut: int) -> None:
    encoded = encode_entry(entry)
    with pytest.raises(CodecError):
        decode_entry(encoded[: -min(cut, len(encoded))])


@given(ENTRIES, U64)
def test_a_row_under_another_index_is_a_codec_error(entry: Entry, other: int) -> None:
    if other != entry.index:
        with pytest.raises(CodecError, match="holds entry"):
            decode_row(other, encode_entry(entry))


def test_an_unknown_kind_with_a_right_checksum_is_a_codec_error() -> None:
    entry = Entry(LogIndex(6), Term(5), EntryKind.EMPTY, Offset(0), 0, 0, b"")
    encoded = bytearray(encode_entry(entry))
    encoded[HEADER_BYTES - 4] = 77
    body = bytes(encoded[:-4])
    with pytest.raises(CodecError, match="kind=77"):
        decode_entry(seal(encode_key(6), body))


@given(U64, U64)
def test_keys_sort_like_their_indexes(a: int, b: int) -> None:
    assert (encode_key(a) < encode_key(b)) == (a < b)
    assert decode_key(encode_key(a)) == a


def test_a_key_of_another_length_is_a_codec_error() -> None:
    with pytest.raises(CodecError):
        decode_key(b"short")


@given(st.binary(max_size=50), st.binary(max_size=300))
def test_the_residue_check_agrees_with_comparing_checksums(key: bytes, body: bytes) -> None:
    value = seal(key, body)
    assert value == body + CHECKSUM.pack(crc32c(key + body))
    assert is_intact(key, value)
    assert not is_intact(key + b"x", value)
    assert not is_intact(key, value[:3])


@given(METAS)
def test_a_meta_row_survives_encoding_and_decoding(meta: ReplicaMeta) -> None:
    note = CommitNote(17, 2**40)
    encoded = encode_meta(meta, note)
    assert (decode_meta(encoded), decode_note(encoded)) == (meta, note)


@given(METAS, st.data())
def test_any_changed_bit_of_a_meta_row_is_detected(meta: ReplicaMeta, data: st.DataObject) -> None:
    encoded = bytearray(encode_meta(meta, CommitNote(3, 4)))
    bit = data.draw(st.integers(0, len(encoded) * 8 - 1))
    encoded[bit // 8] ^= 1 << (bit % 8)
    with pytest.raises(CodecError):
        decode_meta(encoded)


def test_an_identity_survives_encoding_and_decoding() -> None:
    identity = Identity(3, GroupId(2**40), ReplicaId(9))
    assert decode_identity(encode_identity(identity)) == identity
    with pytest.raises(CodecError):
        decode_identity(encode_identity(identity)[:-1])
