"""Fuzz every decoder of bytes from outside: it returns a value or raises its typed refusal, within memory in proportion to the input.

Most of the hostile frames are here, because a call takes only microseconds.
"""

from __future__ import annotations

import asyncio
import struct
import tracemalloc
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, NamedTuple

import cramjam
import pytest
from crc32c import crc32c
from raftmq.batch_header import (
    CODEC_GZIP,
    CODEC_LZ4,
    CODEC_SNAPPY,
    CODEC_ZSTD,
    FIRING_MAGIC,
    HEADER_BYTES,
    RAW_BODY_BYTES_MAX,
    RECORD_COUNT_MAX,
    BatchFormatError,
    BatchTooLargeError,
    seal,
    validate,
)
from raftmq.broker.base.limits import Limits, Timing
from raftmq.broker.peers import codec, request_frames
from raftmq.broker.peers.codec import FRAME_HEADER, FrameError, FrameType, frame
from raftmq.broker.peers.protocol import Hello, decode_hello
from raftmq.broker.peers.transport import PeerTransport, _Inbound
from raftmq.client.codec.batch import compress, decode_columns, decode_records
from raftmq.client.codec.queue_batch import DamagedMessage, decode_messages
from raftmq.columns import PRELUDE
from raftmq.errors import UnsupportedCompressionError
from raftmq.message_block import unpack_block
from raftmq.message_checks import MESSAGE_COUNT_MAX
from raftmq.queue_batch import (
    QueueBodies,
    encode_firing,
    parse_fields,
    parse_firing,
    seal_queue_batch,
    validate_queue,
)

from tests.support.hostile import samples
from tests.support.hostile.fuzzing import BOUNDARIES, fuzz, hostile, is_whole_run, mutated
from tests.support.hostile.peers import Peer
from tests.support.hostile.samples import joined

MIB = 1024 * 1024


class Subject(NamedTuple):
    decode: Callable[[memoryview], Any]
    encode: Callable[[Any], bytes]
    samples: list[bytes]
    cases: int


SUBJECTS = {
    "message": Subject(
        codec.decode_message, lambda value: joined(codec.encode_message(*value)), samples.raft_messages(), 24_000
    ),
    "heartbeats": Subject(
        codec.decode_heartbeats, lambda columns: b"".join(c.tobytes() for c in columns), [samples.heartbeats()], 4_000
    ),
    "leadership": Subject(
        codec.decode_leadership, lambda rows: joined(codec.encode_leadership(rows)), [samples.leadership()], 4_000
    ),
    "snapshot-begin": Subject(
        codec.decode_snapshot_begin,
        lambda value: joined(codec.encode_snapshot_begin(*value)),
        [samples.snapshot_begin()],
        8_000,
    ),
    "snapshot-rows": Subject(
        codec.decode_snapshot_rows,
        lambda value: joined(codec.encode_snapshot_rows(*value)),
        [samples.snapshot_rows(), samples.snapshot_rows()[:8]],
        8_000,
    ),
    "snapshot-end": Subject(
        codec.decode_snapshot_end,
        lambda value: joined(codec.encode_snapshot_end(*value)),
        [samples.snapshot_end()],
        2_000,
    ),
    "request": Subject(
        request_frames.decode_request,
        lambda value: joined(request_frames.encode_request(*value)),
        [joined(request_frames.encode_request(3, 500, "/raftmq.v1.Admin/ListTopics", "alice", b"message"))],
        2_000,
    ),
    "response": Subject(
        request_frames.decode_response,
        lambda value: joined(request_frames.encode_response(*value)),
        [joined(request_frames.encode_response(3, request_frames.ResponseStatus.ERROR, b"detail"))],
        1_000,
    ),
    "cancel": Subject(
        request_frames.decode_cancel, lambda value: joined(request_frames.encode_cancel(value)), [bytes(8)], 500
    ),
    "snapshot-resume": Subject(
        codec.decode_snapshot_resume,
        lambda value: joined(codec.encode_snapshot_resume(value)),
        [samples.snapshot_resume()],
        2_000,
    ),
}


def _outcome(subject: Subject, data: bytes) -> str:
    try:
        value = subject.decode(memoryview(data))
    except FrameError:
        return "refused"
    # an accepted value encodes to the same bytes, except for flags other than 0 and 1
    again = subject.encode(value)
    assert len(again) == len(data), f"{len(data) - len(again)} bytes were ignored"
    assert subject.decode(memoryview(again)) == value
    return "taken"


@pytest.mark.parametrize("name", SUBJECTS)
def test_a_peer_body_is_decoded_to_its_last_byte_or_refused(name):
    subject = SUBJECTS[name]
    outcomes = fuzz(name, subject.cases, lambda rng: _outcome(subject, hostile(rng, subject.samples)))
    if is_whole_run():
        assert outcomes["refused"] > 0
        assert outcomes["taken"] > 0, "no input passed the first check: the fuzzer does not reach the rest"


def test_a_hello_is_decoded_or_refused():
    valid = [samples.hello(), samples.hello(cluster_id="", uuid="é" * 30), samples.hello(node_id=2**64 - 1, channel=-1)]

    def case(rng: Random) -> str:
        data = hostile(rng, valid)
        try:
            value = decode_hello(memoryview(data))
        except FrameError:
            return "refused"
        assert isinstance(value, Hello)
        return "taken"

    outcomes = fuzz("test_a_hello_is_decoded_or_refused", 8_000, case)
    if is_whole_run():
        assert min(outcomes["refused"], outcomes["taken"]) > 0


# --------------------------------------------------------------------------------------------------------------- frames


class Wire(asyncio.Transport):
    """One end of a socket that records writes and refuses them after the close, as uvloop does."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.is_closed = False

    def write(self, data):
        if self.is_closed:
            raise RuntimeError("written to after its end")
        self.written += bytes(data)

    def writelines(self, parts):
        for part in parts:
            self.write(part)

    def close(self):
        self.is_closed = True

    abort = close

    def is_closing(self):
        return self.is_closed

    def get_extra_info(self, name, default=None):
        return ("127.0.0.1", 1) if name == "peername" else default


def _feed(protocol: _Inbound, wire: Wire, data: bytes, rng: Random | None = None) -> None:
    """Deliver data like a socket: at most the size of the protocol's buffer at a time, until the close."""
    at = 0
    while at < len(data) and not wire.is_closed:
        room = protocol.get_buffer(-1)
        assert len(room) > 0
        size = min(len(room), len(data) - at, rng.randint(1, 4096) if rng is not None else len(data))
        room[:size] = data[at : at + size]
        protocol.buffer_updated(size)
        at += size


def _raw_frame(rng: Random, frame_type: int, body: bytes) -> bytes:
    """Return a frame whose header is mostly correct."""
    length, crc = len(body), crc32c(body)
    match rng.randrange(12):
        case 0:
            length = rng.choice(BOUNDARIES) & 0xFFFFFFFF
        case 1:
            crc ^= 1 << rng.randrange(32)
        case 2:
            frame_type = rng.randrange(256)
    return FRAME_HEADER.pack(length, frame_type, crc) + body


@pytest.fixture
async def server():
    transport = PeerTransport(asyncio.get_running_loop(), Limits(), Timing(), lambda: 0.5)
    transport.attach(Peer())
    yield transport
    await transport.close()


async def test_a_connection_of_hostile_frames_is_served_or_closed(server):
    """Frames come before, instead of and after a handshake, in pieces of any size. The protocol must not raise."""
    bodies = [(int(kind), body) for kind, body in samples.peer_frames()]

    def case(rng: Random) -> str:
        protocol, wire = _Inbound(server), Wire()
        protocol.connection_made(wire)
        stream = b""
        greeting = samples.hello(
            cluster_id=rng.choice("cccd"),
            channel=rng.choice((0, 1, 2, 2, 3, -1, 2**40)),
            node_id=rng.choice((2, 3, -1)),
        )
        if rng.random() < 0.9:
            greeting = greeting if rng.random() < 0.8 else mutated(rng, greeting)
            stream += (
                _raw_frame(rng, FrameType.HELLO, greeting)
                if rng.random() < 0.2
                else joined(frame(FrameType.HELLO, [greeting]))
            )
        for _ in range(rng.randint(0, 6)):
            kind, body = rng.choice(bodies)
            stream += _raw_frame(rng, kind, body if rng.random() < 0.7 else mutated(rng, body))
        _feed(protocol, wire, stream, rng)
        protocol.connection_lost(None)
        return "closed" if wire.is_closed else "served"

    outcomes = fuzz("test_a_connection_of_hostile_frames_is_served_or_closed", 12_000, case)
    if is_whole_run():
        assert min(outcomes["closed"], outcomes["served"]) > 100
    assert server.handler.frames > 0 or not is_whole_run()


async def test_after_a_refusal_further_frames_are_ignored(server):
    """Frames in the same segment were once processed after a refusal.

    The answer to a second HELLO on the closing connection raised in uvloop, and a HELLO of the right cluster admitted the frames after it.
    """
    protocol, wire = _Inbound(server), Wire()
    protocol.connection_made(wire)
    wrong = samples.hello_frame(cluster_id="another")
    message = joined(frame(FrameType.MESSAGE, [samples.raft_messages()[0]]))

    _feed(protocol, wire, wrong + wrong + samples.hello_frame() + message)

    assert wire.is_closed
    assert wire.written == joined(frame(FrameType.REFUSED, [b"another cluster"]))
    assert server.handler.frames == 0


@pytest.mark.parametrize("channel", [4, -1, 255, 2**63])
async def test_a_hello_for_an_unknown_channel_is_refused(server, channel):
    protocol, wire = _Inbound(server), Wire()
    protocol.connection_made(wire)

    _feed(protocol, wire, samples.hello_frame(channel=channel))

    assert wire.is_closed
    assert wire.written[4] == FrameType.REFUSED


async def test_a_large_frame_takes_memory_only_as_it_arrives(server):
    """Nine bytes announce the largest frame: they alone once made the buffer 8 MiB."""
    protocol, wire = _Inbound(server), Wire()
    protocol.connection_made(wire)
    _feed(protocol, wire, samples.hello_frame())
    body = bytes(server.limits.frame_bytes_max - 100)

    tracemalloc.start()
    try:
        head = FRAME_HEADER.pack(len(body), FrameType.SNAPSHOT_END, crc32c(body))
        _feed(protocol, wire, head)
        claimed = tracemalloc.get_traced_memory()[1]
        _feed(protocol, wire, body)
    finally:
        tracemalloc.stop()

    assert claimed < MIB
    assert server.handler.frames == 1, "the announced length was correct"


# -------------------------------------------------------------------------------------------------------------- batches


def test_a_batch_is_valid_or_refused_by_the_broker():
    valid = [
        *(samples.opaque_batch(3, producer=5, epoch=1, sequence=sequence) for sequence in (0, 2**64 - 3)),
        samples.opaque_batch(1, body=b"x" * 500),
        samples.opaque_batch(RECORD_COUNT_MAX),
    ]

    def case(rng: Random) -> str:
        data = hostile(rng, valid)
        if len(data) >= HEADER_BYTES and rng.random() < 0.5:  # a valid CRC, so that the checks after it are reached
            head = data[: HEADER_BYTES - 4]
            data = head + struct.pack("<I", crc32c(data[HEADER_BYTES:], crc32c(head))) + data[HEADER_BYTES:]
        try:
            header = validate(data, MIB)
        except BatchFormatError as error:
            return type(error).__name__
        assert len(data) == HEADER_BYTES + header.body_bytes
        assert 1 <= header.record_count <= RECORD_COUNT_MAX
        assert header.raw_body_bytes <= RAW_BODY_BYTES_MAX
        assert header.last_sequence < 2**64
        return "taken"

    outcomes = fuzz("test_a_batch_is_valid_or_refused_by_the_broker", 16_000, case)
    if is_whole_run():
        assert set(outcomes) == {
            "taken", "BatchFormatError", "BatchTooLargeError", "UnsupportedBatchVersionError", "UnsupportedCodecError",
        }  # fmt: skip


def _sealed(rng: Random, number: int, count: int, raw: bytes, stored: bytes) -> bytes:
    claimed = len(raw)
    match rng.randrange(8):
        case 0:
            claimed = (claimed + rng.choice((-1, 1, 8, 1000))) & 0xFFFFFFFF
        case 1:
            count = rng.choice((1, count + 1, 2 * count, RECORD_COUNT_MAX, RECORD_COUNT_MAX + 1, 0))
        case 2:
            number = rng.randrange(256)
    return seal(
        stored,
        codec=number,
        record_count=count,
        raw_body_bytes=claimed,
        base_timestamp_ms=rng.choice((0, 2**63 - 1)),
        max_timestamp_ms=0,
    )


def _decoded(data: bytes) -> str:
    try:
        header = validate(data, 4 * MIB)
        records = decode_records(data, header, "t", 0, 100)
    except (BatchFormatError, UnsupportedCompressionError) as error:
        return type(error).__name__
    assert len(records) == header.record_count
    for record in records:
        assert record.value is None or isinstance(record.value, bytes)
        assert record.key is None or isinstance(record.key, bytes)
    return "taken"


def test_a_batch_from_a_broker_decodes_or_is_refused_by_the_client():
    """Bodies are mutated before or after compression, and the CRC is always valid."""
    bodies = samples.record_bodies()

    def case(rng: Random) -> str:
        number, count, raw = rng.choice(bodies)
        if rng.random() < 0.6:
            raw = mutated(rng, raw)
            stored = compress(raw, number)
        else:
            stored = mutated(rng, compress(raw, number))
        return _decoded(_sealed(rng, number, count, raw, stored))

    outcomes = fuzz("test_a_batch_from_a_broker_decodes_or_is_refused_by_the_client", 10_000, case)
    if is_whole_run():
        assert outcomes["taken"] > 0
        assert outcomes["BatchFormatError"] > 1000


# ------------------------------------------------------------------------------------------------------ messages of queues


def test_a_message_batch_is_valid_or_refused_by_the_broker():
    """The CRC of each batch is right, as a hostile producer sets it. Accepted batches can be read on every replica."""
    valid = [(messages.body, messages.message_count) for messages in samples.queue_messages()]

    def case(rng: Random) -> str:
        body, count = rng.choice(valid)
        if rng.random() < 0.1:
            count = rng.choice((0, 1, count + 1, 2 * count, MESSAGE_COUNT_MAX + 1))
        batch = seal_queue_batch(mutated(rng, body), message_count=count)
        try:
            header, fields = validate_queue(batch, MIB)
        except BatchFormatError as error:
            return type(error).__name__
        assert header.record_count == fields.message_count == count
        assert parse_fields(batch) == fields
        bodies = QueueBodies(batch)
        for position in range(count):
            bodies.check_body(position)
        return "taken"

    outcomes = fuzz("test_a_message_batch_is_valid_or_refused_by_the_broker", 10_000, case)
    if is_whole_run():
        assert set(outcomes) == {
            "taken", "BatchFormatError", "BatchTooLargeError", "UnsupportedBatchVersionError", "UnsupportedCodecError",
        }  # fmt: skip


def test_a_firing_is_read_or_refused():
    message = samples.queue_messages()[0].body
    valid = encode_firing(b"daily", 3, 1000, 2000, message)[HEADER_BYTES:]

    def case(rng: Random) -> str:
        body = mutated(rng, valid)
        payload = seal(
            body, record_count=1, raw_body_bytes=len(body), base_timestamp_ms=0, max_timestamp_ms=0, magic=FIRING_MAGIC
        )
        try:
            firing = parse_firing(payload)
        except BatchFormatError:
            return "refused"
        assert firing.next_due_ms == -1 or firing.next_due_ms > firing.due_ms
        assert len(QueueBodies(payload).body(0)) == firing.fields.body_lengths[0]
        return "taken"

    outcomes = fuzz("test_a_firing_is_read_or_refused", 4_000, case)
    if is_whole_run():
        assert min(outcomes["refused"], outcomes["taken"]) > 0


def _resealed_block(rng: Random, block: bytes, columns_end: int) -> bytes:
    """Return a mutated block whose checksum is mostly right."""
    section, bodies = block[8:columns_end], block[columns_end:]
    count = int.from_bytes(block[4:8], "little")
    if rng.random() < 0.7:
        section = mutated(rng, section)
        size = len(section) - PRELUDE.size
        if size >= 0 and rng.random() < 0.8:  # the columns claim their real size, so that they are reached
            section = section[:8] + struct.pack("<I", size) + section[PRELUDE.size :]
    else:
        bodies = mutated(rng, bodies) if bodies else b"?"
    if rng.random() < 0.1:
        count = rng.choice((0, 1, count + 1, MESSAGE_COUNT_MAX, MESSAGE_COUNT_MAX + 1, 2**32 - 1))
    head = struct.pack("<I", count)
    return struct.pack("<I", crc32c(section, crc32c(head))) + head + section + bodies


def test_a_block_from_a_broker_decodes_or_is_refused_by_the_client():
    blocks = samples.message_blocks()

    def case(rng: Random) -> str:
        data = _resealed_block(rng, *rng.choice(blocks))
        try:
            block = unpack_block(data)
        except BatchFormatError:
            return "refused"
        found = decode_messages(block, range(len(block.sequences)))
        assert [message.sequence for message in found] == list(block.sequences)
        return "damaged" if any(isinstance(message, DamagedMessage) for message in found) else "taken"

    outcomes = fuzz("test_a_block_from_a_broker_decodes_or_is_refused_by_the_client", 8_000, case)
    if is_whole_run():
        assert min(outcomes["refused"], outcomes["damaged"], outcomes["taken"]) > 100


# --------------------------------------------------------------------------------------------------------------- memory


def _peak(act: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        act()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


BOMB = bytes(RAW_BODY_BYTES_MAX * 2)
"""Zeros that compress to a few bytes."""


@pytest.mark.parametrize(
    ("number", "stored"),
    [
        (CODEC_ZSTD, bytes(cramjam.zstd.compress(BOMB, level=1))),
        (CODEC_LZ4, bytes(cramjam.lz4.compress_block(BOMB, store_size=True))),
        (CODEC_SNAPPY, bytes(cramjam.snappy.compress_raw(BOMB))),
        (CODEC_GZIP, bytes(cramjam.gzip.compress(BOMB, level=1))),
    ],
)
@pytest.mark.parametrize("claimed", [len(BOMB), RAW_BODY_BYTES_MAX + 1, 64, 0, MIB])
def test_a_decompression_bomb_takes_no_more_than_its_claimed_size_and_the_limit(number, stored, claimed):
    data = seal(stored, codec=number, record_count=1, raw_body_bytes=claimed, base_timestamp_ms=0, max_timestamp_ms=0)

    def explode() -> None:
        with pytest.raises(BatchFormatError) as raised:
            decode_columns(data)
        assert (claimed > RAW_BODY_BYTES_MAX) == isinstance(raised.value, BatchTooLargeError)

    assert _peak(explode) <= (claimed if claimed <= RAW_BODY_BYTES_MAX else 0) + MIB


def test_a_batch_with_too_many_records_is_refused_before_they_are_created():
    """A few bytes may hold 2**20 empty records, the largest allowed count."""
    raw = bytes(8)  # all columns null, constant time
    data = seal(
        compress(raw, CODEC_ZSTD), codec=CODEC_ZSTD, record_count=RECORD_COUNT_MAX, raw_body_bytes=len(raw),
        base_timestamp_ms=0, max_timestamp_ms=0,
    )  # fmt: skip
    assert len(decode_records(data, validate(data, MIB), "t", 0, 100)) == RECORD_COUNT_MAX
    too_many = seal(
        compress(raw, CODEC_ZSTD), codec=CODEC_ZSTD, record_count=RECORD_COUNT_MAX + 1, raw_body_bytes=len(raw),
        base_timestamp_ms=0, max_timestamp_ms=0,
    )  # fmt: skip
    assert _peak(lambda: _decoded(too_many)) < MIB


LIES = {
    "entries": (
        codec.decode_message,
        struct.pack("<QBQQQ", 7, 3, 1, 2, 3) + struct.pack("<QQQI", 4, 3, 4, 2**32 - 1),
    ),
    "an entry": (
        codec.decode_message,
        struct.pack("<QBQQQ", 7, 3, 1, 2, 3)
        + struct.pack("<QQQI", 4, 3, 4, 1)
        + struct.pack("<QQBQIqI", 5, 3, 1, 0, 1, 0, 2**32 - 1),
    ),
    "members": (codec.decode_snapshot_begin, samples.snapshot_begin()[:97] + struct.pack("<I", 2**32 - 1)),
    "a row": (codec.decode_snapshot_rows, struct.pack("<QII", 1, 2**32 - 1, 2**32 - 1)),
}


@pytest.mark.parametrize("claim", LIES)
def test_a_false_count_is_refused_without_allocating_for_it(claim):
    decode, data = LIES[claim]

    def lie() -> None:
        with pytest.raises(FrameError):
            decode(memoryview(data))

    assert _peak(lie) < MIB


def test_fuzzed_messages_take_memory_in_proportion_to_their_size():
    """A cell of 8 bits becomes a Python object, and a constant column has one for all messages of its count."""
    generator = Random(6)
    bodies = [messages.body for messages in samples.queue_messages()]
    batches = [
        seal_queue_batch(hostile(generator, bodies), message_count=generator.choice((1, 3, 50, MESSAGE_COUNT_MAX)))
        for _ in range(900)
    ]

    def decode(data: bytes) -> None:
        try:
            validate_queue(data, MIB)
        except BatchFormatError:
            return

    decode(batches[0])
    for data in batches:
        assert _peak(partial(decode, data)) < 40 * len(data) + 80 * MESSAGE_COUNT_MAX


def test_fuzzed_peer_bodies_take_memory_in_proportion_to_their_size():
    """A decoded object takes a few hundred bytes for 8 on the wire (a row without key and value). No claim may take more."""
    generator = Random(5)
    bodies = [hostile(generator, subject.samples) for subject in SUBJECTS.values() for _ in range(150)]

    def decode_all(data: bytes) -> None:
        for subject in SUBJECTS.values():
            try:
                subject.decode(memoryview(data))
            except FrameError:
                continue

    decode_all(b"")
    for data in bodies:
        assert _peak(partial(decode_all, data)) < 40 * len(data) + 16_384
