"""The data port of a real broker under attack: frames that lie, floods, and clients that stand still or vanish."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator
from random import Random

import grpc
import pytest
from raftmq import sync
from raftmq.broker.data_port.connection import CALLS_MAX
from raftmq.frames import DATA_METHODS, FrameType, frame_header
from raftmq.proto import queue_pb2 as pb
from raftmq.proto import queue_pb2_grpc as pb_grpc

from tests.hostile.conftest import LIMITS
from tests.support.hostile.attackers import MIB, closed_count, connections, dial, wait_closed
from tests.support.hostile.data import (
    APPEND_NUMBER,
    POLL_NUMBER,
    STREAM_NUMBER,
    DataTarget,
    call,
    cancel,
    further,
    read_frame,
)
from tests.support.hostile.fuzzing import FRAMES, SEED, hostile, is_whole_run, mutated
from tests.support.hostile.requests import queue_requests, stream_requests
from tests.support.hostile.samples import append_request, opaque_batch, poll_request

pytestmark = pytest.mark.e2e

NEVER = 2**40
"""A metadata revision that does not come: a request that names it waits until its deadline."""
CONNECTION_BYTES = 256 * 1024
"""Of a connection: its buffers, in both directions."""
CALL_BYTES = 8 * 1024
"""Of a call that waits: its request, and how it is to be answered."""


@pytest.fixture
def target(victim) -> Iterator[DataTarget]:
    found = DataTarget(victim.client_address)
    yield found
    found.close()


@pytest.fixture(scope="module")
def queue_topic_id(victim) -> int:
    """Return the id of a queue topic with a message."""
    with sync.Admin(bootstrap_servers=victim.cluster.bootstrap_servers) as admin:
        admin.create_topic("attacked-queue", kind="queue", partitions=1)
    with sync.Queue("attacked-queue", bootstrap_servers=victim.cluster.bootstrap_servers) as queue:
        queue.put(b"x")
    with grpc.insecure_channel(victim.client_address) as channel:
        stub = pb_grpc.AdminStub(channel)
        return int(stub.DescribeTopic(pb.DescribeTopicRequest(name="attacked-queue"), timeout=10).topic.topic_id)


def _writes_to(topic_id: int, data: bytes) -> bool:
    """Whether an append to another topic became one to this."""
    with contextlib.suppress(Exception):
        return any(part.topic_id == topic_id for part in pb.AppendRequest.FromString(data).partitions)
    return False


# --------------------------------------------------------------------------------------------------------------- messages


async def test_each_hostile_request_gets_its_answer_on_its_connection(victim, target, siege):
    """Malformed, false and unfinished requests: refused or answered under the number of their frame, once."""
    count = 6_000
    samples = {
        number: [message.SerializeToString() for message in queue_requests(victim.topic_id)[name]]
        for number, name in ((APPEND_NUMBER, "append"), (POLL_NUMBER, "poll"))
    }
    outcomes: Counter[str] = Counter()

    def attack() -> None:
        with target.dial() as sock:
            sock.settimeout(60)
            missing = set()
            for number in range(1, count + 1):
                rng = Random(SEED << 32 | number)
                method = rng.choice((APPEND_NUMBER, POLL_NUMBER))
                data = hostile(rng, samples[method])
                if _writes_to(victim.neighbour_topic_id, data):
                    continue
                missing.add(number)
                sock.sendall(call(rng.choice((method, method, method, len(DATA_METHODS), 255)), data, number, 300))
                FRAMES["data port"] += 1
                while len(missing) > 200:
                    take(sock, missing)
            while missing:
                take(sock, missing)

    def take(sock: socket.socket, missing: set[int]) -> None:
        frame = read_frame(sock)
        assert frame is not None, f"the connection was closed (HOSTILE_SEED={SEED})"
        frame_type, correlation_id, body = frame
        missing.remove(correlation_id)
        name = "answered"
        if frame_type is FrameType.ERROR:
            detail = pb.ErrorDetail.FromString(body)
            assert detail.code not in (pb.OK, pb.INTERNAL), f"case {correlation_id} (HOSTILE_SEED={SEED}): {detail}"
            name = pb.ErrorCode.Name(detail.code)
        outcomes[name] += 1

    async with siege("200 requests of 300 bytes", 64 * MIB):
        await asyncio.to_thread(attack)
    if is_whole_run():
        assert min(outcomes[name] for name in ("answered", "INVALID_ARGUMENT", "UNSUPPORTED_VERSION")) > 50, outcomes


async def test_mutated_frames_end_a_connection_and_nothing_else(victim, target, siege, queue_topic_id):
    """Headers that claim anything, ids that go back, frames of brokers, another protocol: 600 connections."""
    number = 1
    calls = []
    for method, name in ((APPEND_NUMBER, "append"), (POLL_NUMBER, "poll")):
        for request in queue_requests(victim.topic_id)[name]:
            calls.append(call(method, request, number, 300))
            number += 1
    opening, *others = stream_requests(queue_topic_id)
    calls += [call(STREAM_NUMBER, opening, number, 300), *(further(request, number) for request in others)]
    oddities = [
        frame_header(FrameType.CALL, 2**32 - 1, 50),
        frame_header(FrameType.CALL, LIMITS.grpc_message_bytes_max, 50),
        frame_header(FrameType.CALL, LIMITS.grpc_message_bytes_max + 1, 50),
        frame_header(FrameType.GOODBYE, 0),
        frame_header(FrameType.ANSWER, 0, 1),
        cancel(1) * 1000,
        call(APPEND_NUMBER, b"", 2**64 - 1),
        further(b"", 60),
        frame_header(FrameType.RESPONSE, 0, 1),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
        bytes(1000),
    ]

    def attack() -> None:
        for case in range(600):
            rng = Random(SEED << 32 | case)
            hello = target.hello() if rng.random() < 0.8 else mutated(rng, target.hello(b"t" * 16))
            pieces = [mutated(rng, one) if rng.random() < 0.3 else one for one in calls]
            pieces.insert(rng.randrange(len(pieces) + 1), rng.choice(oddities))
            if any(_writes_to(victim.neighbour_topic_id, piece[20:]) for piece in pieces):
                continue
            with contextlib.suppress(OSError), dial(target.address) as sock:
                sock.sendall(hello + b"".join(pieces))
                if rng.random() < 0.3:
                    sock.shutdown(socket.SHUT_WR)
                    sock.recv(100)
            FRAMES["data port"] += len(pieces)

    async with siege("600 connections of mutated frames", 64 * MIB):
        await asyncio.to_thread(attack)


async def test_connections_are_reset_at_each_moment(victim, target, siege):
    """After any byte of a HELLO, of calls under way, of cancellations, with answers unread."""

    def attack() -> None:
        for case in range(400):
            rng = Random(SEED << 32 | case)
            stream = bytearray(target.hello())
            for number in range(1, 30):
                stream += call(APPEND_NUMBER, append_request(victim.topic_id, opaque_batch(body=bytes(2000))), number)
                poll = poll_request(victim.topic_id, rng.choice((0, 10**9)), max_wait_ms=rng.choice((0, 60_000)))
                stream += call(POLL_NUMBER, poll, number + 1000 if number % 7 == 6 else number)
                if rng.random() < 0.5:
                    stream += cancel(number)
            FRAMES["data port"] += 29
            with contextlib.suppress(OSError), dial(target.address) as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
                sock.sendall(stream[: rng.randrange(len(stream))])
                if rng.random() < 0.3:
                    sock.settimeout(0.01)
                    sock.recv(1)

    async with siege("400 short connections", 64 * MIB):
        await asyncio.to_thread(attack)


async def test_hostile_requests_of_streams_end_their_streams_alone(victim, target, siege, queue_topic_id):
    """4,000 streams on one connection, with requests that are malformed, false, or too late. Each stream ends at most once."""
    samples = [message.SerializeToString() for message in stream_requests(queue_topic_id)]
    outcomes: Counter[str] = Counter()
    last = 4_000

    def attack() -> None:
        with target.dial() as sock:
            sock.settimeout(60)
            reader = threading.Thread(target=read, args=(sock,))
            reader.start()
            for number in range(1, last):
                rng = Random(SEED << 32 | number)
                stream = call(STREAM_NUMBER, samples[0] if rng.random() < 0.5 else hostile(rng, samples), number, 300)
                for _ in range(rng.randrange(4)):
                    data = rng.choice(samples) if rng.random() < 0.5 else hostile(rng, samples)
                    stream += further(data, rng.choice((number, number, number, max(1, number - 3))))
                sock.sendall(stream + (cancel(number - 400) if number > 400 else b""))
                FRAMES["data port"] += 3
            sock.sendall(b"".join(cancel(number) for number in range(last - 400, last)))
            sock.sendall(call(STREAM_NUMBER, samples[0], last) + further(samples[-1], last))
            reader.join(60)
            assert not reader.is_alive(), "the honest stream was not ended"

    def read(sock: socket.socket) -> None:
        ended = set()
        while last not in ended:
            frame = read_frame(sock)
            assert frame is not None, f"the connection was closed (HOSTILE_SEED={SEED})"
            frame_type, correlation_id, body = frame
            assert correlation_id not in ended, f"stream {correlation_id} goes on after its end (HOSTILE_SEED={SEED})"
            if frame_type is not FrameType.RESPONSE:
                ended.add(correlation_id)
            if frame_type is FrameType.ERROR:
                detail = pb.ErrorDetail.FromString(body)
                assert detail.code not in (pb.OK, pb.INTERNAL), f"case {correlation_id} (HOSTILE_SEED={SEED}): {detail}"
                outcomes[pb.ErrorCode.Name(detail.code)] += 1
            else:
                outcomes[frame_type.name] += 1

    async with siege("512 streams", 64 * MIB):
        await asyncio.to_thread(attack)
    if is_whole_run():
        assert min(outcomes[name] for name in ("ANSWER", "RESPONSE", "INVALID_ARGUMENT")) > 50, outcomes


# ----------------------------------------------------------------------------------------------------------------- floods


async def test_floods_of_greetings_take_no_memory(victim, target, siege):
    """2,000 connections that are refused or say garbage, one after the other, and nothing of which is kept."""
    refused = target.hello(b"no token")
    openings = (refused, target.hello(version=99), bytes(64), frame_header(FrameType.HELLO, 1025), refused[:-1])

    def attack() -> None:
        for number in range(2000):
            with contextlib.suppress(OSError), dial(target.address) as sock:
                sock.sendall(openings[number % len(openings)])
                if number % len(openings) != len(openings) - 1:
                    sock.recv(1000)
            FRAMES["data port"] += 1

    async with siege("2,000 short connections", 64 * MIB):
        await asyncio.to_thread(attack)


async def test_thousands_of_connections_without_a_hello_cost_little_and_are_closed(victim, target, siege):
    async with siege("2,000 connections", 2000 * CONNECTION_BYTES):
        with connections(target.address, 2000) as silent:
            closed = await asyncio.to_thread(wait_closed, silent, len(silent), LIMITS.client_handshake_seconds + 15)
            assert closed == len(silent)


@pytest.mark.long
async def test_a_token_more_than_there_are_voids_the_oldest(victim, target, siege):
    first = target.token()

    def attack() -> None:
        for _ in range(4200):
            target.token()

    async with siege("tokens", 16 * MIB):
        await asyncio.to_thread(attack)
        with dial(target.address) as sock:
            sock.sendall(target.hello(first))
            frame = await asyncio.to_thread(read_frame, sock)
            assert frame is not None
            assert pb.ErrorDetail.FromString(frame[2]).code == pb.PERMISSION_DENIED


async def test_calls_and_their_cancellations_leave_nothing(victim, target, siege):
    """35,000 polls that were cancelled, most of them before they began. The connection serves on."""
    request = poll_request(victim.topic_id, 10**9, max_wait_ms=60_000)
    request.metadata_revision = NEVER

    def attack() -> None:
        with target.dial() as sock:
            sock.settimeout(60)
            for first in range(1, 35_000, 500):
                numbers = range(first, first + 500)
                sock.sendall(b"".join(call(POLL_NUMBER, request, number) + cancel(number) for number in numbers))
                FRAMES["data port"] += 1000
            sock.sendall(cancel(1) * 100_000)
            sock.sendall(call(APPEND_NUMBER, append_request(victim.topic_id, opaque_batch()), 60_000))
            answer = read_frame(sock)
            assert answer is not None
            assert answer[:2] == (FrameType.ANSWER, 60_000)

    async with siege("one connection", 32 * MIB):
        await asyncio.to_thread(attack)


async def test_calls_whose_answers_are_not_read_are_bounded(victim, target, siege):
    """Appends whose refusals are many times their size: 20 connections."""
    many = pb.AppendRequest(
        partitions=[pb.PartitionAppend(topic_id=victim.topic_id, partition=10**6)] * 2000
    ).SerializeToString()

    def attack() -> None:
        with target.connections(20, receive_buffer=4096) as socks:
            for sock in socks:
                sock.setblocking(False)
            streams = {
                sock: b"".join(call(APPEND_NUMBER, many, number, 1000) for number in range(1, 200)) for sock in socks
            }
            end = time.monotonic() + 4
            while time.monotonic() < end:
                _, writable, _ = select.select((), [sock for sock in socks if streams[sock]], (), 0.1)
                for sock in writable:
                    count = sock.send(streams[sock][: 1 << 16])
                    streams[sock] = streams[sock][count:]
        FRAMES["data port"] += 20 * 199

    async with siege("requests of data connections", LIMITS.receiving_bytes_max + 20 * 2 * MIB):
        await asyncio.to_thread(attack)


@pytest.mark.long
async def test_cheap_requests_that_cost_much_do_not_hold_up_others(victim, target, siege):
    """12 KiB are refused in 2,000 words. One read brought two MiB of them, 170 requests, and the loop stood still until all were answered."""
    part = pb.PartitionAppend(topic_id=victim.topic_id, partition=0, batches=[b""])
    many = pb.AppendRequest(partitions=[part] * 2000).SerializeToString()

    def seconds_alone() -> float:
        """Return the time of one such request, the median of seven."""
        found = []
        with target.dial() as sock:
            for number in range(1, 8):
                began = time.monotonic()
                sock.sendall(call(APPEND_NUMBER, many, number))
                assert read_frame(sock) is not None
                found.append(time.monotonic() - began)
        return sorted(found)[3]

    def attack() -> None:
        with target.dial() as sock:
            sock.settimeout(60)
            for number in range(1, 400):
                sock.sendall(call(APPEND_NUMBER, many, number))
                if number > 200:
                    assert read_frame(sock) is not None
            FRAMES["data port"] += 399

    async with siege("one connection", 32 * MIB) as neighbour:
        alone = await asyncio.to_thread(seconds_alone)
        before = len(neighbour.acknowledged_seconds)
        await asyncio.to_thread(attack)
        during = neighbour.acknowledged_seconds[before:]
    assert during
    assert max(during) < max(1.0, 60 * alone), "an append waited for many requests of somebody else"


# ----------------------------------------------------------------------------------------------------------- slow clients


async def test_half_sent_requests_are_bounded_and_the_slowest_make_room(victim, target, siege):
    """200 connections that keep the end of 4 MiB back."""
    size = LIMITS.grpc_message_bytes_max
    frame = frame_header(FrameType.CALL, size, 1, APPEND_NUMBER) + bytes(size - 4096)
    sound = append_request(victim.topic_id, opaque_batch(body=bytes(MIB - 64)))

    def attack() -> tuple[int, int]:
        sent = 0
        with target.connections(200) as socks:
            streams = dict.fromkeys(socks, memoryview(frame))
            for sock in socks:
                sock.setblocking(False)
            end = time.monotonic() + 4
            while time.monotonic() < end:
                _, writable, _ = select.select((), [sock for sock in socks if streams[sock]], (), 0.1)
                for sock in writable:
                    with contextlib.suppress(OSError):
                        count = sock.send(streams[sock][: 1 << 18])
                        streams[sock] = streams[sock][count:]
                        sent += count
                        continue
                    streams[sock] = memoryview(b"")
            FRAMES["data port"] += len(socks)
            with target.dial() as honest:
                honest.settimeout(30)
                honest.sendall(call(APPEND_NUMBER, sound, 1))
                answer = read_frame(honest)
                assert answer is not None
                assert answer[0] is FrameType.ANSWER
            return sent, closed_count(socks)

    # twice: the allocator keeps what calls before have left in pieces
    async with siege("receiving_bytes_max", LIMITS.receiving_bytes_max * 2):
        sent, closed = await asyncio.to_thread(attack)
    assert sent > LIMITS.receiving_bytes_max // 2
    assert closed > 0


@pytest.mark.parametrize("is_stream", [False, True], ids=["appends", "stream"])
async def test_requests_that_wait_for_what_never_comes_are_bounded_in_bytes(victim, target, siege, is_stream):
    """Each connection could have 1,024 requests of 4 MiB wait for a revision: with three of them the broker had been killed."""
    stuck = append_request(victim.topic_id, opaque_batch(body=bytes(3 * MIB)))
    stuck.metadata_revision, stuck.timeout_ms = NEVER, 2**32 - 1
    frames = [call(APPEND_NUMBER, stuck, number, 60_000) for number in range(1, 100)]
    if is_stream:
        opening = pb.QueueStreamRequest(open=pb.QueueStreamOpen(topic_id=victim.topic_id, metadata_revision=NEVER))
        chained = pb.QueueStreamRequest(acks=[pb.PartitionAck(topic_id=victim.topic_id, put=bytes(3 * MIB))])
        frames = [call(STREAM_NUMBER, opening, 1, 60_000), *[further(chained, 1)] * 98]

    def attack() -> None:
        with target.connections(3) as socks:
            streams = {sock: memoryview(b"".join(frames)) for sock in socks}
            for sock in socks:
                sock.setblocking(False)
            end = time.monotonic() + 20
            while any(streams.values()) and time.monotonic() < end:
                readable, writable, _ = select.select(socks, [sock for sock in socks if streams[sock]], (), 0.1)
                for sock in readable:
                    with contextlib.suppress(OSError):
                        sock.recv(1 << 16)
                for sock in writable:
                    with contextlib.suppress(OSError):
                        streams[sock] = streams[sock][sock.send(streams[sock][: 1 << 18]) :]
                        continue
                    streams[sock] = memoryview(b"")
            FRAMES["data port"] += 3 * 99

    async with siege("receiving_bytes_max", LIMITS.receiving_bytes_max * 2):
        await asyncio.to_thread(attack)


@pytest.mark.long
async def test_answers_that_nobody_reads_are_bounded_and_their_connections_are_cut(victim, target, siege):
    """200 connections with 50 polls of 3 MiB each, which may come from disk. A client that reads gets equally large answers in that time."""
    request = poll_request(victim.topic_id, 0)
    request.max_bytes = request.partitions[0].max_bytes = LIMITS.poll_bytes_max
    polls = b"".join(call(POLL_NUMBER, request, number, 30_000) for number in range(1, 51))

    def attack() -> int:
        with target.connections(200, receive_buffer=4096) as socks:
            for sock in socks:
                sock.sendall(polls)
                FRAMES["data port"] += 50
            answered, end = 0, time.monotonic() + 60
            while answered < 20 and time.monotonic() < end:
                with target.dial() as honest:
                    honest.settimeout(30)
                    honest.sendall(call(POLL_NUMBER, request, 1, 20_000))
                    frame = read_frame(honest)
                    if frame is not None and frame[0] is FrameType.ANSWER:
                        assert len(frame[2]) > 2 * MIB
                        answered += 1
            assert answered == 20
            return wait_closed(socks, 1, 10)

    being_made = 3 * LIMITS.cold_polls_max * LIMITS.poll_bytes_max  # entries, message and bytes
    waiting = 200 * 50 * CALL_BYTES
    async with siege("unsent_bytes_max", LIMITS.unsent_bytes_max * 2 + being_made + waiting):  # twice: as above
        cut = await asyncio.to_thread(attack)
    assert cut > 0


async def test_polls_that_wait_take_no_place_of_appends(victim, target, siege):
    """As many as a connection may have, on eight connections."""
    request = poll_request(victim.topic_id, 10**12, max_wait_ms=60_000)
    request.metadata_revision = NEVER
    polls = b"".join(call(POLL_NUMBER, request, number, 120_000) for number in range(1, CALLS_MAX + 100))

    async with siege("8,192 calls", 8 * CALLS_MAX * CALL_BYTES):
        with target.connections(8) as socks:
            for sock in socks:
                await asyncio.to_thread(sock.sendall, polls)
                FRAMES["data port"] += CALLS_MAX
            with target.dial() as honest:
                for number in range(1, 20):
                    honest.sendall(call(APPEND_NUMBER, append_request(victim.topic_id, opaque_batch()), number))
                    answer = await asyncio.to_thread(read_frame, honest)
                    assert answer is not None
                    assert answer[:2] == (FrameType.ANSWER, number)
