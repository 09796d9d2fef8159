"""Streams of snapshots put together, within a number of bytes."""

from __future__ import annotations

import gc
import tracemalloc

import pytest
from raftmq.broker import peer_codec as codec
from raftmq.broker.peer_codec import FrameError, FrameType
from raftmq.broker.snapshot_streams import ROW_BYTES, STREAM_BYTES, SnapshotReceiver
from raftmq.raft.entry import LogPosition
from raftmq.raft.membership import Membership
from raftmq.raft.messages import InstallSnapshot, SnapshotMeta

MIB = 1024 * 1024


def begin(receiver, node_id, stream_id, group_id, membership=None):
    meta = SnapshotMeta(LogPosition(5, 1, 0, 0), 5, membership or Membership((1, 2)))
    parts = codec.encode_snapshot_begin(stream_id, group_id, InstallSnapshot(1, 2, 3, meta, []))
    return receiver.on_frame(node_id, FrameType.SNAPSHOT_BEGIN, memoryview(b"".join(parts)))


def rows(receiver, node_id, stream_id, *items):
    parts = codec.encode_snapshot_rows(stream_id, list(items))
    return receiver.on_frame(node_id, FrameType.SNAPSHOT_ROWS, memoryview(b"".join(parts)))


def end(receiver, node_id, stream_id, count):
    parts = codec.encode_snapshot_end(stream_id, count)
    return receiver.on_frame(node_id, FrameType.SNAPSHOT_END, memoryview(b"".join(parts)))


def test_a_stream_comes_whole_and_gives_its_room_back():
    receiver = SnapshotReceiver(MIB)
    begin(receiver, 2, 1, 7)
    rows(receiver, 2, 1, (b"a", b"1"))
    rows(receiver, 2, 1, (b"b", b"2"), (b"c", b""))
    whole = end(receiver, 2, 1, 3)
    assert whole.group_id == 7
    assert whole.message.data == [(b"a", b"1"), (b"b", b"2"), (b"c", b"")]
    assert receiver.bytes_held == 0
    assert end(receiver, 2, 1, 3) is None


def test_a_stream_id_that_another_group_takes_over_gives_its_room_back():
    """It stayed counted for as long as the process lived, and with enough of it no snapshot came in any more."""
    receiver = SnapshotReceiver(MIB)
    for group_id in range(20):
        begin(receiver, 2, 1, group_id)
        rows(receiver, 2, 1, (b"k", bytes(MIB // 2)))
    begin(receiver, 3, 1, 7)
    rows(receiver, 3, 1, (b"k", bytes(MIB // 3)))
    assert end(receiver, 3, 1, 1) is not None
    receiver.forget_peer(2)
    assert receiver.bytes_held == 0


def test_a_new_stream_of_a_group_takes_the_place_of_the_one_before():
    receiver = SnapshotReceiver(MIB)
    begin(receiver, 2, 1, 7)
    rows(receiver, 2, 1, (b"old", b""))
    begin(receiver, 2, 2, 7)
    assert end(receiver, 2, 1, 1) is None
    rows(receiver, 2, 2, (b"new", b""))
    assert end(receiver, 2, 2, 1).message.data == [(b"new", b"")]
    assert receiver.bytes_held == 0


def test_a_count_that_is_wrong_is_refused_and_gives_its_room_back():
    receiver = SnapshotReceiver(MIB)
    begin(receiver, 2, 1, 7)
    rows(receiver, 2, 1, (b"k", b"v"))
    with pytest.raises(FrameError, match="of 2 rows came with 1"):
        end(receiver, 2, 1, 2)
    assert receiver.bytes_held == 0


def test_the_stream_that_stood_still_for_longest_makes_room():
    """The one that needed the room was dropped: whoever began half a snapshot kept all others out."""
    receiver = SnapshotReceiver(MIB)
    for node_id in (2, 3, 4):
        begin(receiver, node_id, 1, 7)
        rows(receiver, node_id, 1, (b"k", bytes(MIB // 4)))
    rows(receiver, 2, 1, (b"l", b""))
    rows(receiver, 4, 1, (b"l", bytes(MIB // 2 - 20_000)))
    assert end(receiver, 3, 1, 1) is None
    assert end(receiver, 2, 1, 2) is not None
    assert end(receiver, 4, 1, 2) is not None


def test_a_stream_that_is_too_large_by_itself_is_dropped():
    receiver = SnapshotReceiver(MIB)
    begin(receiver, 2, 1, 7)
    rows(receiver, 2, 1, (b"k", bytes(MIB)))
    assert receiver.bytes_held == 0
    assert end(receiver, 2, 1, 1) is None


def _peak(act) -> int:
    gc.collect()
    tracemalloc.start()
    try:
        act()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_rows_of_nothing_count_with_what_they_take_here():
    """A row without key and value has 8 bytes on the wire, and took ten times as much: 512 MiB allowed 5 GiB."""
    receiver = SnapshotReceiver(4 * MIB)
    chunk = [(b"", b"")] * 1000

    def attack() -> None:
        begin(receiver, 2, 1, 7)
        for _ in range(60):
            rows(receiver, 2, 1, *chunk)
            assert receiver.bytes_held <= 4 * MIB

    assert _peak(attack) < 4 * MIB + MIB // 2
    assert 4 * MIB // (ROW_BYTES + 8) < 60_000, "they were more than fit"


def test_rows_take_no_more_than_they_count():
    receiver = SnapshotReceiver(64 * MIB)

    def fill() -> None:
        begin(receiver, 2, 1, 7)
        for at in range(0, 20_000, 1000):
            rows(receiver, 2, 1, *((b"k%d" % i, b"v" * 20) for i in range(at, at + 1000)))

    assert _peak(fill) < receiver.bytes_held + MIB // 2


def test_streams_that_only_begin_are_bounded_too():
    """A BEGIN without rows counted nothing, whatever members it named."""
    receiver = SnapshotReceiver(4 * MIB)
    members = Membership(tuple(range(1000, 3000)))

    def attack() -> None:
        for number in range(200):
            begin(receiver, 2, number, number, members)

    assert _peak(attack) < 5 * MIB
    few = SnapshotReceiver(4 * MIB)
    for number in range(4000):
        begin(few, 2, number, number)
    assert len(few._assemblies) <= 4 * MIB // STREAM_BYTES
    assert len(few._by_group) == len(few._assemblies)
