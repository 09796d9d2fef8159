"""Provide valid messages of every kind, from which fuzzing derives hostile ones."""

from __future__ import annotations

import msgspec
from raftmq.batch_header import CODEC_GZIP, CODEC_LZ4, CODEC_NONE, CODEC_SNAPPY, CODEC_ZSTD, seal
from raftmq.broker.peers import codec
from raftmq.broker.peers.codec import WIRE_VERSION, FrameType, HeartbeatColumns, Parts, frame
from raftmq.broker.peers.protocol import Channel
from raftmq.client.codec.batch import encode_body
from raftmq.client.codec.queue_batch import EncodedMessages, TimeColumns, encode_messages
from raftmq.message_block import MessageBlock, pack_block
from raftmq.proto import queue_pb2 as pb
from raftmq.queue_batch import QueueBodies, parse_fields
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

CODEC_NUMBERS = (CODEC_NONE, CODEC_LZ4, CODEC_ZSTD, CODEC_SNAPPY, CODEC_GZIP)


def joined(parts: Parts) -> bytes:
    return b"".join(bytes(part) for part in parts)


def opaque_batch(
    count: int = 1, *, producer: int = 0, epoch: int = 0, sequence: int = 0, body: bytes = b"opaque"
) -> bytes:
    """Return a batch as brokers see it, with an opaque body."""
    return seal(
        body,
        record_count=count,
        raw_body_bytes=len(body),
        base_timestamp_ms=1,
        max_timestamp_ms=2,
        producer_id=producer,
        producer_epoch=epoch,
        first_sequence=sequence,
    )


def record_bodies() -> list[tuple[int, int, bytes]]:
    """Return codec, record count and uncompressed body of batches of every shape."""
    bodies = []
    for number in CODEC_NUMBERS:
        for values, keys, times, headers in (
            ([b"value-%d" % i for i in range(20)], None, 7, None),
            ([None, b"x", b"", b"y" * 300], [b"k", None, b"", b"k"], [5, 6, 7, 2**40], None),
            ([b"h"] * 3, [b"k"] * 3, [1, 2, 3], [(("name", b"v"), ("n2", None)), (), (("é", b""),)]),
            ([None] * 9, None, 3, None),
        ):
            encoded = encode_body(values, keys, times, headers, CODEC_NONE)
            bodies.append((number, encoded.record_count, encoded.body))
    return bodies


def queue_messages() -> list[EncodedMessages]:
    """Return messages of a queue topic with every column and codec."""
    values = [b"zero", b"one" * 300, b""]
    rich = [
        encode_messages(
            values,
            keys=[b"k", None, b"k"],
            tenants=["acme.eu", "", "acme"],
            priorities=[-1, 0, 1],
            due=TimeColumns([5, None, None], [None, 7, None]),
            expiry=TimeColumns([9, 9, 9]),
            ids=["a", None, "é"],
            headers=[(("name", b"v"), ("n2", None)), (), ()],
            replaces=[True, False, False],
            codec=number,
        )
        for number in CODEC_NUMBERS
    ]
    return [encode_messages([b"hi"]), encode_messages([b"x"] * 50), *rich]


def message_blocks() -> list[tuple[bytes, int]]:
    """Return blocks of these messages, as a broker sends them, and the bytes in front of each block's bodies."""
    blocks = []
    for messages in queue_messages():
        bodies = QueueBodies(messages.seal())
        fields = parse_fields(messages.seal())
        count = bodies.count
        block = pack_block(
            MessageBlock(
                sequences=range(7, 7 + count),
                lease_numbers=[1] * count,
                attempts=range(count),
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
        )
        blocks.append((block, len(block) - sum(fields.body_lengths)))
    return blocks


# ---------------------------------------------------------------------------------------------------------------- peers


def raft_messages(group_id: int = 7, source: int = 1, target: int = 2, term: int = 3) -> list[bytes]:
    """Return a MESSAGE body of each kind, with appends of several shapes."""
    entries = tuple(
        Entry(5 + i, term, kind, 10 + i, int(kind is EntryKind.DATA), 1_700_000_000_000, b"payload" * i)
        for i, kind in enumerate((EntryKind.DATA, EntryKind.COMMAND, EntryKind.DATA, EntryKind.EMPTY))
    )
    messages = (
        AppendRequest(source, target, term, 4, 3, entries, 4),
        AppendRequest(source, target, term, 4, 3, (), 4),
        AppendRequest(source, target, term, 4, 3, entries[:1] * 30, 4),
        AppendResponse(source, target, term, 5, True, 4, 2),
        VoteRequest(source, target, term, 1 << 62, 5, 3, 4, 3, True, False),
        VoteResponse(source, target, term, 1 << 62, True, True, 4, 3),
        Heartbeat(source, target, term, 4, 9),
        HeartbeatResponse(source, target, term, 9),
        TimeoutNow(source, target, term),
        ReadIndexRequest(source, target, term, 11),
        ReadIndexResponse(source, target, term, 11, 4),
    )
    return [joined(codec.encode_message(group_id, message)) for message in messages]


def heartbeats(group_id: int = 7, source: int = 1, target: int = 2, term: int = 3) -> bytes:
    columns = HeartbeatColumns()
    for i in range(12):
        columns.add(group_id + i, source, target, term, 4 + i, 9 + i)
    return joined(columns.encode())


def leadership() -> bytes:
    return joined(codec.encode_leadership([(7 + i, 3, 1 + i % 3) for i in range(12)]))


def snapshot_begin(group_id: int = 7, stream_id: int = 3) -> bytes:
    meta = SnapshotMeta(LogPosition(9, 4, 77, 123), 12, Membership((1, 2, 3), (4,), (1, 2), (2,), True, 55))
    return joined(codec.encode_snapshot_begin(stream_id, group_id, InstallSnapshot(1, 2, 6, meta, [])))


def snapshot_rows(stream_id: int = 3) -> bytes:
    return joined(codec.encode_snapshot_rows(stream_id, [(b"key-%d" % i, b"v" * i) for i in range(12)]))


def snapshot_end(stream_id: int = 3, count: int = 12) -> bytes:
    return joined(codec.encode_snapshot_end(stream_id, count))


def hello(**changes: object) -> bytes:
    fields: dict[str, object] = {
        "wire_version": WIRE_VERSION,
        "cluster_id": "c",
        "node_id": 9,
        "uuid": "uuid-9",
        "target_node_id": 1,
        "channel": int(Channel.CONTROL),
        "boot": 1,
        "marks": b"mark",
    }
    return msgspec.msgpack.encode(fields | changes)


def hello_frame(**changes: object) -> bytes:
    return joined(frame(FrameType.HELLO, [hello(**changes)]))


def snapshot_resume() -> bytes:
    """Return the body of a SNAPSHOT_RESUME frame of a stream that nobody sends."""
    return joined(codec.encode_snapshot_resume(codec.SnapshotResume(1, 3, 2, b"key")))


def peer_frames(group_id: int = 7, source: int = 1, target: int = 2, term: int = 3) -> list[tuple[FrameType, bytes]]:
    """Return type and body of every frame that follows a handshake."""
    return [
        *((FrameType.MESSAGE, body) for body in raft_messages(group_id, source, target, term)),
        (FrameType.HEARTBEATS, heartbeats(group_id, source, target, term)),
        (FrameType.HEARTBEAT_RESPONSES, heartbeats(group_id, source, target, term)),
        (FrameType.LEADERSHIP, leadership()),
        (FrameType.SNAPSHOT_BEGIN, snapshot_begin(group_id)),
        (FrameType.SNAPSHOT_ROWS, snapshot_rows()),
        (FrameType.SNAPSHOT_END, snapshot_end()),
        (FrameType.SNAPSHOT_RESUME, snapshot_resume()),
        (FrameType.CLOCK_QUESTION, joined(codec.encode_clock_question(1))),
        (FrameType.CLOCK, joined(codec.encode_clock(1, 1_700_000_000_000))),
        (FrameType.HELLO, hello()),
    ]


# -------------------------------------------------------------------------------------------------------------- clients


def append_request(topic_id: int, *batches: bytes, partition: int = 0) -> pb.AppendRequest:
    part = pb.PartitionAppend(topic_id=topic_id, partition=partition, batches=batches)
    return pb.AppendRequest(correlation_id=4, timeout_ms=5000, partitions=[part])


def poll_request(topic_id: int, offset: int, max_wait_ms: int = 0) -> pb.PollRequest:
    part = pb.PartitionPoll(topic_id=topic_id, partition=0, offset=offset, max_bytes=1 << 20)
    return pb.PollRequest(max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=1 << 20, partitions=[part])
