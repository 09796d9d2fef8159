"""Peer frames carry every message unchanged, and malformed ones are refused."""

import pickle
import random
import struct
from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from raftmq.broker.peers import codec
from raftmq.broker.peers.codec import FrameError, FrameType, HeartbeatColumns
from raftmq.raft.entry import Entry, EntryKind, LogPosition
from raftmq.raft.membership import Membership
from raftmq.raft.messages import (
    AppendRequest,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    InstallSnapshot,
    ReadIndexRequest,
    ReadIndexResponse,
    SnapshotMeta,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)

from tests.support.broker.engine_cluster import EngineCluster

NUMBER = st.integers(0, codec.NUMBER_MAX)
U64 = st.integers(0, 2**64 - 1)
BOOL = st.booleans()
ENTRY = st.builds(
    Entry,
    NUMBER,
    NUMBER,
    st.sampled_from(EntryKind),
    NUMBER,
    st.integers(0, 2**32 - 1),
    st.integers(-(2**62), 2**62),
    st.binary(max_size=80),
)
MESSAGE = st.one_of(
    st.builds(VoteRequest, NUMBER, NUMBER, NUMBER, U64, NUMBER, NUMBER, NUMBER, NUMBER, BOOL, BOOL),
    st.builds(VoteResponse, NUMBER, NUMBER, NUMBER, U64, BOOL, BOOL, NUMBER, NUMBER),
    st.builds(AppendRequest, NUMBER, NUMBER, NUMBER, NUMBER, NUMBER, st.lists(ENTRY, max_size=4).map(tuple), NUMBER),
    st.builds(AppendResponse, NUMBER, NUMBER, NUMBER, NUMBER, BOOL, NUMBER, NUMBER),
    st.builds(Heartbeat, NUMBER, NUMBER, NUMBER, NUMBER, U64),
    st.builds(HeartbeatResponse, NUMBER, NUMBER, NUMBER, U64),
    st.builds(TimeoutNow, NUMBER, NUMBER, NUMBER),
    st.builds(ReadIndexRequest, NUMBER, NUMBER, NUMBER, U64),
    st.builds(ReadIndexResponse, NUMBER, NUMBER, NUMBER, U64, NUMBER),
)


def joined(parts: codec.Parts) -> memoryview:
    return memoryview(b"".join(bytes(part) for part in parts))


@given(group_id=NUMBER, message=MESSAGE)
def test_every_message_survives_the_wire(group_id, message):
    assert codec.decode_message(joined(codec.encode_message(group_id, message))) == (group_id, message)


@given(message=MESSAGE, cut=st.integers(1, 60))
def test_a_truncated_message_is_refused(message, cut):
    data = joined(codec.encode_message(7, message))
    with pytest.raises(FrameError):
        codec.decode_message(data[: max(0, len(data) - cut)])


@given(data=st.binary(max_size=300))
def test_random_bytes_are_refused_or_decoded_and_never_crash(data):
    for decode in (
        codec.decode_message,
        codec.decode_heartbeats,
        codec.decode_leadership,
        codec.decode_snapshot_begin,
        codec.decode_snapshot_rows,
        codec.decode_snapshot_end,
        codec.decode_snapshot_resume,
    ):
        try:
            decode(memoryview(data))
        except FrameError:
            continue


def test_an_entry_that_claims_more_than_its_frame_is_refused():
    message = AppendRequest(1, 2, 3, 4, 5, (Entry(5, 3, EntryKind.DATA, 0, 1, 0, b"x" * 50),), 4)
    data = bytearray(joined(codec.encode_message(7, message)))
    size_at = data.index(b"x" * 50) - 4
    struct.pack_into("<I", data, size_at, 2**31)

    with pytest.raises(FrameError):
        codec.decode_message(memoryview(data))


TOO_HIGH = codec.NUMBER_MAX + 1


@pytest.mark.parametrize(
    "message",
    [
        TimeoutNow(1, 2, TOO_HIGH),
        TimeoutNow(TOO_HIGH, 2, 1),
        VoteRequest(1, 2, 3, 9, 4, TOO_HIGH, 4, 3, False, False),
        VoteResponse(1, 2, 3, 9, False, True, TOO_HIGH, 3),
        AppendRequest(1, 2, 3, 4, 3, (), TOO_HIGH),
        AppendRequest(1, 2, 3, 4, 3, (Entry(5, TOO_HIGH, EntryKind.DATA, 0, 1, 0, b""),), 4),
        AppendResponse(1, 2, 3, 4, True, TOO_HIGH, 3),
        Heartbeat(1, 2, 3, TOO_HIGH, 1),
        ReadIndexResponse(1, 2, 3, 4, TOO_HIGH),
    ],
)
def test_an_impossible_number_is_refused(message):
    """A replica that was told to stand for election in term 2**64 - 1 ended its broker, because the next term does not fit 64 bits."""
    with pytest.raises(FrameError, match="above the limit"):
        codec.decode_message(joined(codec.encode_message(7, message)))


@pytest.mark.parametrize("column", range(5))
def test_an_impossible_number_is_refused_in_columns_too(column):
    row = [1, 2, 3, 4, 5, 2**64 - 1]
    heartbeats = HeartbeatColumns()
    heartbeats.add(*row)
    codec.decode_heartbeats(joined(heartbeats.encode()))
    row[column] = TOO_HIGH
    heartbeats.add(*row)
    with pytest.raises(FrameError, match="above the limit"):
        codec.decode_heartbeats(joined(heartbeats.encode()))
    with pytest.raises(FrameError, match="above the limit"):
        codec.decode_leadership(joined(codec.encode_leadership([(1, 2, 3), (1, TOO_HIGH, 3)])))


@pytest.mark.parametrize(
    "changes",
    [
        {"position": LogPosition(TOO_HIGH, 1, 1, 1)},
        {"position": LogPosition(1, 1, TOO_HIGH, 1)},
        {"state_index": TOO_HIGH},
        {"membership": Membership((1, TOO_HIGH))},
        {"membership": Membership((1,), (), (), (TOO_HIGH,))},
    ],
)
def test_an_impossible_number_is_refused_in_a_snapshot_too(changes):
    valid = {"position": LogPosition(5, 1, 3, 1), "state_index": 5, "membership": Membership((1, 2))}
    for fields in (valid, valid | changes):
        parts = codec.encode_snapshot_begin(1, 7, InstallSnapshot(1, 2, 3, SnapshotMeta(**fields), []))
        if fields == valid:
            codec.decode_snapshot_begin(joined(parts))
            continue
        with pytest.raises(FrameError, match="above the limit"):
            codec.decode_snapshot_begin(joined(parts))


def test_heartbeats_are_columns_that_survive_the_wire():
    heartbeats = HeartbeatColumns()
    rows = [tuple(random.Random(i).randrange(codec.NUMBER_MAX) for _ in range(6)) for i in range(100)]
    for row in rows:
        heartbeats.add(*row)

    columns = codec.decode_heartbeats(joined(heartbeats.encode()))

    assert list(zip(*columns, strict=True)) == rows


def test_leadership_rows_survive_the_wire():
    rows = [(1, 2, 3), (codec.NUMBER_MAX, 5, 0)]
    assert codec.decode_leadership(joined(codec.encode_leadership(rows))) == rows


def test_a_snapshot_begin_survives_the_wire():
    meta = SnapshotMeta(LogPosition(9, 4, 77, 123), 12, Membership((1, 2, 3), (4,), (1, 2), (2,), True, 55))
    message = InstallSnapshot(1, 4, 6, meta, [])

    begin = codec.decode_snapshot_begin(joined(codec.encode_snapshot_begin(3, 8, message)))

    assert (begin.stream_id, begin.group_id) == (3, 8)
    assert begin.message == message
    assert begin.message.data == []


@given(rows=st.lists(st.tuples(st.binary(max_size=20), st.binary(max_size=60))))
def test_snapshot_rows_survive_the_wire(rows):
    assert codec.decode_snapshot_rows(joined(codec.encode_snapshot_rows(5, rows))) == (5, rows)


def test_a_frame_carries_length_type_and_checksum():
    data = joined(codec.frame(FrameType.HEARTBEATS, [b"ab", b"cd"]))
    length, frame_type, crc = codec.FRAME_HEADER.unpack_from(data)
    assert (length, frame_type) == (4, FrameType.HEARTBEATS)
    assert crc == crc32c(b"abcd")


class _Bomb:
    """An object that creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self):
        return (open, (str(self._path), "w"))


@pytest.mark.parametrize(
    "frame_type",
    [
        FrameType.MESSAGE, FrameType.HEARTBEATS, FrameType.HEARTBEAT_RESPONSES, FrameType.LEADERSHIP,
        FrameType.SNAPSHOT_BEGIN, FrameType.SNAPSHOT_END, FrameType.CLOCK_QUESTION, FrameType.CLOCK,
    ],
)  # fmt: skip
async def test_a_pickle_from_the_network_is_a_malformed_frame(frame_type: FrameType, tmp_path: Path) -> None:
    """PySyncObj unpickled messages of peers, so every process that reached its port could run any code."""
    async with EngineCluster(1) as cluster:
        engine = cluster.nodes[1].engine
        replica = cluster.create_group(7, (1,))[1]
        before = tuple(replica.state_machine.rows())
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            payload = pickle.dumps(_Bomb(tmp_path / "executed"), protocol)
            with pytest.raises(FrameError):
                engine.on_frame(2, frame_type, memoryview(payload))
        assert tuple(replica.state_machine.rows()) == before
    assert not (tmp_path / "executed").exists()


def test_the_pickle_of_these_tests_does_execute_where_it_is_loaded(tmp_path: Path) -> None:
    """Otherwise the test above could not fail."""
    pickle.loads(pickle.dumps(_Bomb(tmp_path / "executed"))).close()
    assert (tmp_path / "executed").exists()
