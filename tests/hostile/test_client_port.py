"""Attack the client port of a real broker, over gRPC and over handwritten HTTP/2."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import select
import time
from collections import Counter
from random import Random

import grpc
import grpc.aio
import pytest
from google.protobuf.message import DecodeError
from google.rpc import status_pb2
from raftmq.broker.grpc_port.admission_interceptor import UNARY_CALLS_MAX, WATCHES_MAX
from raftmq.proto import queue_pb2 as pb
from raftmq.proto import queue_pb2_grpc as pb_grpc

from tests.hostile.conftest import LIMITS, Victim
from tests.support.hostile import http2
from tests.support.hostile.attackers import HalfUploader, closed_count, connections, dial, wait_closed
from tests.support.hostile.fuzzing import BOUNDARIES, FRAMES, SEED, hostile, is_whole_run, mutated
from tests.support.hostile.requests import RPC_NAMES, queue_requests
from tests.support.hostile.samples import append_request, hello_frame, opaque_batch, poll_request

pytestmark = pytest.mark.e2e

MIB = 1024 * 1024
APPEND = "/raftmq.v1.Log/Append"
POLL = "/raftmq.v1.Log/Poll"
WIRE_CASES = 3_000
WIRE_CONCURRENCY = 64


@contextlib.asynccontextmanager
async def channel_to(address):
    """Open a channel with its own connection, since channels to one address share one by default."""
    async with grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        yield channel


def detail_of(error: grpc.aio.AioRpcError) -> pb.ErrorDetail | None:
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            detail = pb.ErrorDetail()
            assert status_pb2.Status.FromString(value).details[0].Unpack(detail)
            return detail
    return None


# ------------------------------------------------------------------------------------------------------------- messages


async def test_mutated_requests_over_the_wire_are_answered_or_refused_by_name(victim, siege):
    requests = queue_requests(victim.topic_id)
    requests.pop("delete_records")  # the slow readers of other tests need the records
    samples = {name: [message.SerializeToString() for message in messages] for name, messages in requests.items()}
    outcomes: Counter[str] = Counter()
    numbers = iter(range(WIRE_CASES))

    async def send(channel, number: int) -> None:
        rng = Random(SEED << 32 | number)
        name = rng.choice(list(samples))
        data = hostile(rng, samples[name])
        if name == "append" and _writes_to(victim.neighbour_topic_id, data):
            return
        FRAMES["client port"] += 1
        try:
            await channel.unary_unary(RPC_NAMES[name])(data, timeout=1.0)
        except grpc.aio.AioRpcError as error:
            status, detail = error.code(), detail_of(error)
        else:
            outcomes["answered"] += 1
            return
        if status is grpc.StatusCode.DEADLINE_EXCEEDED and detail is None:
            outcomes["waited"] += 1  # the deadline ended a wait for a revision or records that never come
            return
        assert detail is not None, f"case {number} (HOSTILE_SEED={SEED}): {status} without a detail"
        assert detail.code not in (pb.OK, pb.INTERNAL), f"case {number} (HOSTILE_SEED={SEED}): {detail}"
        outcomes[pb.ErrorCode.Name(detail.code)] += 1

    async def work(channel) -> None:
        for number in numbers:
            await send(channel, number)

    async with siege("requests of 300 bytes", 64 * MIB), channel_to(victim.client_address) as channel:
        await asyncio.gather(*(work(channel) for _ in range(WIRE_CONCURRENCY)))
    if is_whole_run():
        assert outcomes["answered"] > 100
        assert outcomes["INVALID_ARGUMENT"] > 100


def _writes_to(topic_id: int, data: bytes) -> bool:
    """Return whether a mutation turned an append to another topic into one to this topic."""
    try:
        return any(part.topic_id == topic_id for part in pb.AppendRequest.FromString(data).partitions)
    except DecodeError:
        return False


STREAM_CASES = 4_000


def _stream_request(rng: Random, number: int, victim: Victim, samples: list[bytes]) -> bytes:
    """Return a hostile append with a valid correlation id and a short timeout."""
    request = pb.AppendRequest()
    while True:
        if rng.random() < 0.5:
            data = hostile(rng, samples)
            with contextlib.suppress(DecodeError):
                request.ParseFromString(data)
                if not _writes_to(victim.neighbour_topic_id, data):
                    break
        else:  # a valid message and a valid batch with false claims
            batch = opaque_batch(
                rng.choice((1, 2, 2**20 + 1, 2**32 - 1)),
                producer=rng.choice((0, 901, 902)),
                epoch=rng.choice((0, 1, 2**32)),
                sequence=rng.choice((0, 1, 2, *BOUNDARIES)),
                body=rng.randbytes(rng.choice((0, 5, 100))),
            )
            request.CopyFrom(append_request(victim.topic_id, batch, partition=rng.choice((0, 0, 0, 1, 2**32 - 1))))
            break
    request.correlation_id = number
    request.metadata_revision = 0
    request.timeout_ms = rng.choice((1000, 2**32 - 1))
    return request.SerializeToString()


async def test_each_hostile_request_on_a_stream_gets_its_answer(victim, siege):
    """Batches with false claims, with repeated, old or future sequences, and with old epochs are written or refused with their own code.

    The stream continues after a refusal. Only bytes that are no message end it, with a reason.
    """
    requests = [message.SerializeToString() for message in queue_requests(victim.topic_id)["append"]]
    outcomes: Counter[str] = Counter()
    missing = set(range(STREAM_CASES))

    async with siege("requests of 300 bytes", 64 * MIB), channel_to(victim.client_address) as channel:
        call = channel.stream_stream("/raftmq.v1.Log/AppendStream")()

        async def write() -> None:
            for number in range(STREAM_CASES):
                await call.write(_stream_request(Random(SEED << 32 | number), number, victim, requests))
                FRAMES["client port"] += 1
            await call.done_writing()

        writing = asyncio.create_task(write())
        async with asyncio.timeout(60):
            while (raw := await call.read()) is not grpc.aio.EOF:
                answer = pb.AppendResponse.FromString(raw)
                missing.remove(answer.correlation_id)
                codes = [part.error.code for part in answer.partitions] or [answer.error.code]
                assert pb.INTERNAL not in codes, f"case {answer.correlation_id} (HOSTILE_SEED={SEED}): {answer}"
                outcomes.update({pb.ErrorCode.Name(code) for code in codes})
            await writing
        assert not missing

        for garbage in (b"\xff", b"\x0a\xff\xff\xff\xff\x0f", b"\x22\x05abc"):
            broken = channel.stream_stream("/raftmq.v1.Log/AppendStream")()
            await broken.write(garbage)
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await broken.read()
            detail = detail_of(raised.value)
            assert detail is not None
            assert detail.code == pb.INVALID_ARGUMENT
    if is_whole_run():
        assert min(outcomes[name] for name in STREAM_REFUSALS) > 3, outcomes


STREAM_REFUSALS = (
    "OK",
    "CORRUPT_BATCH",
    "RECORD_TOO_LARGE",
    "OUT_OF_ORDER_SEQUENCE",
    "PRODUCER_FENCED",
    "SEQUENCE_OVERLAP",
    "UNKNOWN_PARTITION",
)


async def test_other_protocols_are_closed(victim, siege):
    """The attack opens 20 connections each with the protocols of the HTTP and peer ports, TLS and noise."""
    openings = (
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /raftmq.v1.Log/Append HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n\0\0\0\0\0",
        hello_frame(cluster_id=victim.cluster_id),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
        b"\xff" * 1000,
    )
    async with siege("100 connections", 32 * MIB):
        with contextlib.ExitStack() as stack:
            socks = [
                sock
                for opening in openings
                for sock in stack.enter_context(connections(victim.client_address, 20, opening))
            ]
            assert await asyncio.to_thread(wait_closed, socks, len(socks), 20) == len(socks)


async def test_mutated_http2_ends_only_its_connection(victim, siege):
    """The attack mutates HTTP/2 frames and gRPC's framing on 300 connections with 10 calls each."""
    calls = [
        http2.unary(2 * number + 1, RPC_NAMES[name], message.SerializeToString())
        for number, (name, messages) in enumerate(queue_requests(victim.topic_id).items())
        for message in messages[:1]
    ]
    oddities = [
        http2.call_headers(1, APPEND) + http2.data(1, http2.message(b"", 2**32 - 1)),
        http2.call_headers(1, APPEND) + http2.data(1, http2.message(b"x" * 100, 50), is_last=True),
        http2.call_headers(1, APPEND) + http2.data(1, http2.message(b"", is_compressed=1), is_last=True),
        http2.call_headers(1, "/no.such/Method") + http2.data(1, http2.message(b""), is_last=True),
        http2.call_headers(0, APPEND),
        http2.frame(http2.WINDOW_UPDATE, 0, 0, b"\x7f\xff\xff\xff") * 2,
        http2.frame(http2.SETTINGS, 0, 0, b"\0" * 5),
        http2.frame(http2.CONTINUATION, 0, 1, b"x" * 100) * 50,
        http2.frame(http2.PING, 0, 0, b"x" * 8) * 1000,
        http2.frame(http2.RST_STREAM, 0, 1, b"\0\0\0\0"),
        (http2.call_headers(1, POLL) + http2.frame(http2.RST_STREAM, 0, 1, b"\0\0\0\x08")) * 50,
    ]

    def attack() -> None:
        for number in range(300):
            rng = Random(SEED << 32 | number)
            opening = http2.greeting()
            stream = b"".join(
                mutated(rng, rng.choice(calls)) if rng.random() < 0.7 else rng.choice(oddities) for _ in range(10)
            )
            if rng.random() < 0.2:
                opening = mutated(rng, opening)
            with contextlib.suppress(OSError), dial(victim.client_address) as sock:
                sock.sendall(opening + stream)
            FRAMES["client port"] += 1

    async with siege("300 short connections", 64 * MIB):
        await asyncio.to_thread(attack)


async def test_messages_that_are_too_large_or_compressed_are_refused_without_decompression(victim, siege):
    """gRPC limits only the compressed size: 60 KiB of zeros grew to 60 MiB in the broker, and 4 MiB would grow to 4 GiB."""
    bomb = gzip.compress(bytes(64 * MIB), 9)
    assert len(bomb) < MIB

    async with siege("one message", 2 * LIMITS.grpc_message_bytes_max), channel_to(victim.client_address) as channel:
        call = channel.unary_unary(APPEND)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await call(bytes(LIMITS.grpc_message_bytes_max + 1), timeout=10)
        assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED

        def explode() -> bytes:
            with dial(victim.client_address) as sock:
                sock.sendall(
                    http2.greeting()
                    + http2.call_headers(1, APPEND, ((b"grpc-encoding", b"gzip"),))
                    + http2.data(1, http2.message(bomb, is_compressed=1)[: 60 * 1024], is_last=False)
                )
                return sock.recv(65536)

        assert await asyncio.to_thread(explode)
        small_bomb = gzip.compress(bytes(32 * MIB), 9)
        assert len(small_bomb) < 60_000
        compressed = http2.message(small_bomb, is_compressed=1)
        status = await asyncio.to_thread(_status_of, victim.client_address, compressed)
        assert str(grpc.StatusCode.INVALID_ARGUMENT.value[0]).encode() == status


def _status_of(address: str, message: bytes) -> bytes:
    """Return the grpc-status of an Append whose only message is these bytes, declared as gzip."""
    with dial(address) as sock:
        headers = http2.call_headers(1, APPEND, ((b"grpc-encoding", b"gzip"),))
        sock.sendall(http2.greeting() + headers + http2.data(1, message, is_last=True))
        received = b""
        while b"grpc-status" not in received or b"grpc-message" not in received:
            received += sock.recv(65536)
        at = received.index(b"grpc-status") + len(b"grpc-status")
        return received[at + 1 : at + 1 + received[at]]


async def test_false_batches_are_refused_and_repeated_batches_are_written_once(victim):
    """Each refusal has its own code, and the log has none of the refused batches."""
    async with channel_to(victim.client_address) as channel:
        queue = pb_grpc.LogStub(channel)
        admin = pb_grpc.AdminStub(channel)
        topic = (
            await admin.CreateTopic(
                pb.CreateTopicRequest(name=f"lies-{time.monotonic_ns()}", partitions=1, timeout_ms=20_000), timeout=30
            )
        ).topic

        async def append(*batches: bytes):
            async with asyncio.timeout(30):
                while True:
                    answer = await queue.Append(append_request(topic.topic_id, *batches), timeout=10)
                    error = answer.partitions[0].error
                    if error.code != pb.NO_LEADER:  # a new leader must first complete a round of heartbeats
                        return answer.partitions[0]
                    await asyncio.sleep(error.retry_after_ms / 1000)

        good = opaque_batch(3, producer=900, epoch=2, sequence=0)
        first = await append(good)
        assert list(first.base_offsets) == [0], first
        again = [await append(good) for _ in range(100)]
        assert {tuple(result.base_offsets) for result in again} == {(0,)}

        broken = bytearray(good)
        broken[-1] ^= 1
        wrong_count = opaque_batch(2**20 + 1)
        for expected, batch in (
            (pb.CORRUPT_BATCH, bytes(broken)),
            (pb.CORRUPT_BATCH, good[:-1]),
            (pb.CORRUPT_BATCH, good + b"x"),
            (pb.CORRUPT_BATCH, b""),
            (pb.RECORD_TOO_LARGE, wrong_count),
            (pb.RECORD_TOO_LARGE, opaque_batch(body=bytes(2 * MIB))),
            (pb.OUT_OF_ORDER_SEQUENCE, opaque_batch(1, producer=900, epoch=2, sequence=7)),
            (pb.SEQUENCE_OVERLAP, opaque_batch(3, producer=900, epoch=2, sequence=2)),
            (pb.PRODUCER_FENCED, opaque_batch(1, producer=900, epoch=1, sequence=3)),
        ):
            result = await append(batch)
            assert pb.ErrorCode.Name(result.error.code) == pb.ErrorCode.Name(expected)
            assert not result.base_offsets
        old = opaque_batch(1, producer=900, epoch=2, sequence=1)
        assert list((await append(old)).base_offsets) == [1], "a part of the batch that was written has its offset"

        offsets = await queue.ListOffsets(
            pb.ListOffsetsRequest(partitions=[pb.PartitionTime(topic_id=topic.topic_id, time_ms=-1)]), timeout=10
        )
        assert offsets.partitions[0].offset == 3


# ----------------------------------------------------------------------------------------------------------- slow clients


async def test_half_sent_requests_are_bounded_and_the_slowest_are_evicted(victim, siege):
    """500 calls, each with 4 MiB but for its last bytes, took 2 GiB, without any limit."""
    message = http2.message(bytes(LIMITS.grpc_message_bytes_max - 4096), LIMITS.grpc_message_bytes_max - 64)
    uploaders: list[HalfUploader] = []

    def has_enough() -> bool:
        sent = sum(uploader.sent_bytes for uploader in uploaders)
        return sent > LIMITS.receiving_bytes_max // 2 and sum(len(uploader.statuses) for uploader in uploaders) >= 10

    def attack() -> None:
        uploaders.extend(HalfUploader(victim.client_address, APPEND, 100, message) for _ in range(5))
        began_at = time.monotonic()
        end = began_at + 3.5  # by then some admitted calls were evicted for others
        while time.monotonic() < end or (not has_enough() and time.monotonic() < began_at + 60):
            moved = [uploader.step() for uploader in uploaders]
            if not any(moved):
                select.select(uploaders, (), (), 0.05)

    try:
        async with (
            # twice the budget: the allocator keeps fragments of earlier calls
            siege("receiving_bytes_max", LIMITS.receiving_bytes_max * 2),
            channel_to(victim.client_address) as channel,
        ):
            await asyncio.to_thread(attack)
            refused = [status for uploader in uploaders for status in uploader.statuses.values()]
            # the half-sent calls have been idle for over a second, so a new call evicts one
            await channel.unary_unary(APPEND)(
                append_request(victim.topic_id, opaque_batch()).SerializeToString(), timeout=10
            )
    finally:
        for uploader in uploaders:
            uploader.close()
    assert sum(uploader.sent_bytes for uploader in uploaders) > LIMITS.receiving_bytes_max // 2
    assert len(refused) >= 10
    assert all(b"grpc-status" in status for status in refused)
    assert any(b"limit of bytes of incoming requests" in status for status in refused)


async def test_unread_answers_are_bounded_and_their_connections_are_cut(victim, siege):
    """500 polls with unread answers of 3 MiB took 3.3 GiB. A client that reads still gets answers of that size."""
    request = poll_request(victim.topic_id, 0)
    request.max_bytes = request.partitions[0].max_bytes = LIMITS.poll_bytes_max
    body = request.SerializeToString()

    def attack(socks) -> None:
        for sock in socks:
            sock.sendall(b"".join(http2.unary(2 * number + 1, POLL, body) for number in range(100)))

    async with (
        siege("unsent_bytes_max", LIMITS.unsent_bytes_max * 3 // 2),
        channel_to(victim.client_address) as channel,
    ):
        with connections(victim.client_address, 5, http2.greeting(initial_window_size=0)) as socks:
            await asyncio.to_thread(attack, socks)
            answers = [
                pb.PollResponse.FromString(await _until_answered(channel.unary_unary(POLL), body)) for _ in range(20)
            ]
            cut = await asyncio.to_thread(wait_closed, socks, 1, 10)
    assert all(len(answer.partitions[0].batches) == 3 for answer in answers)
    assert cut > 0
    assert "slow_reader_disconnected" in victim.cluster.logs(1)


async def _until_answered(call, body: bytes):
    """Retry like the SDK: after the delay in a THROTTLED answer, or immediately on a broken connection."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await call(body, timeout=30)
            except grpc.aio.AioRpcError as error:
                detail = detail_of(error)
                if detail is None and error.code() is grpc.StatusCode.UNAVAILABLE:
                    continue  # on a busy machine this client may be the slow reader
                if detail is None or detail.code != pb.THROTTLED or not detail.retriable:
                    raise
                await asyncio.sleep(detail.retry_after_ms / 1000)


async def test_the_broker_stops_reading_an_append_stream_with_unread_answers(victim, siege):
    """The queue of unread answers grew with every request."""
    request = append_request(victim.topic_id + 10**6, opaque_batch()).SerializeToString()  # refused without a write
    stream = http2.message(request) * (16 * MIB // len(request))

    def attack() -> int:
        client = HalfUploader(victim.client_address, "/raftmq.v1.Log/AppendStream", 1, stream, answer_window=0)
        with contextlib.closing(client):
            end = time.monotonic() + 2
            while time.monotonic() < end:
                if not client.step():
                    select.select((client,), (), (), 0.05)
            return client.sent_bytes

    async with siege("one stream", 32 * MIB):
        sent = await asyncio.to_thread(attack)
    assert sent < MIB, "the broker continued to read"


# ------------------------------------------------------------------------------------------------------------ too many


async def test_polls_beyond_the_parking_limit_are_throttled_and_other_calls_served(victim, siege):
    """4,096 polls took the slots of all calls: every other client got RESOURCE_EXHAUSTED without a reason."""
    places = min(LIMITS.parked_polls_max, LIMITS.concurrent_rpcs_max // 2)
    excess = 500
    body = poll_request(victim.topic_id, 0, max_wait_ms=60_000)
    refusals: list[pb.ErrorDetail | None] = []
    enough = asyncio.Event()

    async def park(channel) -> None:
        try:
            await channel.unary_unary(POLL)(parked, timeout=60)
        except grpc.aio.AioRpcError as error:
            refusals.append(detail_of(error))
            if len(refusals) >= excess:
                enough.set()

    async with siege("4096 parked polls of 32 KiB", places * 32 * 1024):  # noqa: SIM117 -- the polls must end before the siege
        async with channel_to(victim.client_address) as channel:
            body.partitions[0].offset = await _end_offset(channel, victim.topic_id)
            parked = body.SerializeToString()
            polls = [asyncio.create_task(park(channel)) for _ in range(places + excess)]
            try:
                await asyncio.wait_for(enough.wait(), 30)
                answer = await pb_grpc.AdminStub(channel).ListTopics(pb.ListTopicsRequest(), timeout=10)
                assert len(answer.topics) >= 2
            finally:
                for poll in polls:
                    poll.cancel()
                await asyncio.gather(*polls, return_exceptions=True)
    for detail in refusals:
        assert detail is not None
        assert detail.code == pb.THROTTLED
        assert detail.retriable
        assert detail.retry_after_ms > 0


async def _end_offset(channel, topic_id: int):
    request = pb.ListOffsetsRequest(partitions=[pb.PartitionTime(topic_id=topic_id, time_ms=-1)])
    return (await pb_grpc.LogStub(channel).ListOffsets(request, timeout=10)).partitions[0].offset


async def test_calls_that_wait_for_a_future_revision_leave_slots_for_others(victim, siege):
    """A revision that does not exist makes a call wait until its deadline, and thousands of such calls took all slots."""
    stuck = pb.ListTopicsRequest(metadata_revision=2**63).SerializeToString()
    count = UNARY_CALLS_MAX + 300

    async with siege("calls", count * 32 * 1024), channel_to(victim.client_address) as channel:
        call = channel.unary_unary("/raftmq.v1.Admin/ListTopics")
        waiting = [asyncio.ensure_future(call(stuck, timeout=60)) for _ in range(count)]
        try:
            done, _ = await asyncio.wait(waiting, timeout=5, return_when=asyncio.FIRST_COMPLETED)
            assert done, "no call beyond the limit was refused"
            async with asyncio.timeout(20):
                assert await _until_answered(call, b"")
            codes = {detail_of(task.exception()).code for task in waiting if task.done()}
            assert codes == {pb.THROTTLED}
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)


async def test_unread_watches_are_bounded_and_a_new_one_is_served(victim, siege):
    watch = b"".join(
        http2.unary(2 * number + 1, "/raftmq.v1.Topology/Watch", b"") for number in range(WATCHES_MAX // 2 + 200)
    )

    async with (
        siege("watches", 2 * WATCHES_MAX * 64 * 1024),
        channel_to(victim.client_address) as channel,
    ):
        with connections(victim.client_address, 2, http2.greeting() + watch):
            async with asyncio.timeout(30):
                while True:
                    stream = pb_grpc.TopologyStub(channel).Watch(pb.WatchRequest())
                    try:
                        first = await stream.read()
                    except grpc.aio.AioRpcError as error:
                        refusal = detail_of(error)
                    else:
                        break
                    assert refusal.code == pb.THROTTLED
                    await asyncio.sleep(refusal.retry_after_ms / 1000)
            assert first.is_full
            stream.cancel()


@pytest.mark.long
async def test_silent_connections_are_closed_and_idle_ones_take_little_memory(victim, siege):
    """The attack opens 2,000 connections that send nothing and 500 that stop after the HTTP/2 preface."""
    async with siege("2,500 connections of 64 KiB", 2500 * 64 * 1024):
        with (
            connections(victim.client_address, 2000) as silent,
            connections(victim.client_address, 500, http2.greeting()) as greeted,
        ):
            closed = await asyncio.to_thread(wait_closed, silent, len(silent), LIMITS.client_handshake_seconds + 15)
            assert closed == len(silent)
            assert closed_count(greeted) < len(greeted), "idle clients do not misbehave"
