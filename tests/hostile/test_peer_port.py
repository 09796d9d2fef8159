"""Attack the peer port of a real broker, with and without the cluster's id."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections import Counter
from collections.abc import Iterator
from random import Random

import grpc
import pytest
from crc32c import crc32c
from raftmq.broker.base.limits import Limits, Timing
from raftmq.broker.peers import codec
from raftmq.broker.peers.codec import FRAME_HEADER, WIRE_VERSION, FrameType, frame
from raftmq.broker.peers.protocol import Channel
from raftmq.broker.peers.transport import PeerTransport
from raftmq.proto import queue_pb2 as pb
from raftmq.proto import queue_pb2_grpc as pb_grpc
from raftmq.types import NodeId

from tests.hostile.conftest import LIMITS
from tests.support.hostile import samples
from tests.support.hostile.attackers import connections, dial, wait_closed
from tests.support.hostile.fuzzing import FRAMES, SEED, is_whole_run, mutated
from tests.support.hostile.peers import Peer
from tests.support.hostile.samples import joined

pytestmark = pytest.mark.e2e

MIB = 1024 * 1024
CONNECTIONS = 500
FRAMES_PER_CONNECTION = 200
NOBODY = 10**6
"""No group and no replica has this id."""


def hello(victim, **changes: object) -> bytes:
    """Return the HELLO of a node that the metadata do not know: the broker accepts it, since it may be joining."""
    return samples.hello_frame(**{"cluster_id": victim.cluster_id, "target_node_id": 1, "node_id": 77} | changes)


def read_frames(sock: socket.socket) -> Iterator[tuple[int, bytes]]:
    """Yield whole frames until the other side closes."""
    buffer = b""
    with contextlib.suppress(ConnectionError):
        while received := sock.recv(65536):
            buffer += received
            while len(buffer) >= FRAME_HEADER.size:
                length, kind, crc = FRAME_HEADER.unpack_from(buffer)
                if len(buffer) < FRAME_HEADER.size + length:
                    break
                body = buffer[FRAME_HEADER.size : FRAME_HEADER.size + length]
                assert crc32c(body) == crc
                yield kind, body
                buffer = buffer[FRAME_HEADER.size + length :]


def answer_to(address: str, data: bytes) -> list[tuple[int, bytes]]:
    """Send data and return the frames received until the connection is closed."""
    with dial(address) as sock:
        sock.sendall(data)
        return list(read_frames(sock))


async def test_a_stranger_is_refused_with_the_reason(victim):
    address = victim.peer_address
    for changes, reason in (
        ({"cluster_id": "another"}, "belongs to cluster"),
        ({"cluster_id": "x" * 4000}, "belongs to cluster"),
        ({"target_node_id": 2}, "this is broker 1"),
        ({"wire_version": WIRE_VERSION + 1}, "no common wire version"),
        ({"node_id": 1, "uuid": "somebody else's"}, "no other broker's id"),
        ({"channel": 4}, "no channel"),
        ({"channel": -1}, "no channel"),
        ({"channel": 2**63}, "no channel"),
    ):
        ((kind, body),) = await asyncio.to_thread(answer_to, address, hello(victim, **changes))
        assert kind == FrameType.REFUSED
        assert reason in body.decode()


async def test_other_protocols_and_invalid_hellos_are_closed_without_an_answer(victim):
    address = victim.peer_address
    for data in (
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        FRAME_HEADER.pack(8 << 30 & 0xFFFFFFFF, FrameType.HELLO, 0) + bytes(100),
        FRAME_HEADER.pack(2**32 - 1, FrameType.HELLO, 0),
        joined(frame(FrameType.MESSAGE, [samples.raft_messages()[0]])),
        joined(frame(FrameType.HELLO, [b"\xc1" * 20])),
        joined(frame(FrameType.HELLO, [b"\xa1\xff" * 20])),
        joined(frame(FrameType.HELLO, [b"\x91" * 4000])),
        hello(victim)[:-1] + b"\0",
    ):
        assert await asyncio.to_thread(answer_to, address, data) == []


async def test_false_frames_of_a_peer_end_only_its_connection(victim, siege):
    """After a valid handshake the peer sends frames for groups and replicas that do not exist, from a false source, in any order.

    Most connections also have one frame that is mutated or has a false length, type or checksum. The broker ignores all bytes after it.
    """
    address = victim.peer_address
    frames = samples.peer_frames(group_id=NOBODY, source=NOBODY, target=NOBODY)
    outcomes: Counter[str] = Counter()

    def converse(number: int) -> None:
        rng = Random(SEED << 32 | number)
        stream = bytearray(hello(victim, channel=rng.choice(tuple(Channel))))
        count = 0
        lies = rng.random() < 0.7
        for _ in range(FRAMES_PER_CONNECTION):
            frame_type, body = rng.choice(frames)
            kind, length, crc = int(frame_type), len(body), crc32c(body)
            is_lie = lies and rng.random() < 0.02
            if is_lie:
                match rng.randrange(4):
                    case 0:
                        length = rng.choice((length + 1, 2**31, 2**32 - 1))
                    case 1:
                        crc ^= 1 << rng.randrange(32)
                    case 2:
                        kind = rng.choice((0, 4, 9, 17, 255))
                    case _:
                        body = mutated(rng, body)
                        length, crc = len(body), crc32c(body)
            stream += FRAME_HEADER.pack(length, kind, crc) + body
            count += 1
            if is_lie:
                break  # the connection ends here
        stream += rng.randbytes(
            rng.choice((0, 5, 500))
        )  # bytes that are no frame, or that follow the end of the connection
        with dial(address) as sock:
            with contextlib.suppress(OSError):  # it may be closed by now
                sock.sendall(stream)
                sock.shutdown(socket.SHUT_WR)
            answers = list(read_frames(sock))
        assert [kind for kind, _ in answers] in ([], [FrameType.WELCOME]), f"connection {number} (HOSTILE_SEED={SEED})"
        FRAMES["peer port"] += count
        outcomes["welcomed" if answers else "closed"] += 1

    def attack() -> None:
        for number in range(CONNECTIONS):
            converse(number)

    async with siege("frames of 2 KiB", 32 * MIB):
        await asyncio.to_thread(attack)
    if is_whole_run():
        assert outcomes["welcomed"] > CONNECTIONS // 4
    log = victim.cluster.logs(1)
    assert log.count("peer_frame_refused") < CONNECTIONS // 4, "peers that send garbage must not fill the log"


async def test_claims_of_large_frames_take_no_memory(victim, siege):
    """After a handshake 200 peers announce 8 MiB each in nine bytes. Buffers of these sizes would take 1.6 GiB."""
    claim = FRAME_HEADER.pack(LIMITS.frame_bytes_max, FrameType.MESSAGE, 0)
    address = victim.peer_address
    async with siege("claims", 64 * MIB):
        with contextlib.ExitStack() as stack:
            for number in range(200):
                sock = stack.enter_context(dial(address))
                sock.sendall(hello(victim, node_id=1000 + number, channel=1) + claim)
                assert next(read_frames(sock))[0] == FrameType.WELCOME


async def test_large_frames_that_never_end_are_bounded_over_all_peers(victim, siege):
    """60 peers send 7 of 8 MiB and stop. The broker closes the connections that exceed the buffers of all peers together."""
    address = victim.peer_address
    body = bytes(7 * MIB)

    def send(sock: socket.socket, number: int) -> None:
        sock.sendall(hello(victim, node_id=2000 + number, channel=1))
        with contextlib.suppress(OSError):
            sock.sendall(FRAME_HEADER.pack(LIMITS.frame_bytes_max, FrameType.MESSAGE, 0) + body)

    async with siege("peer_read_buffer_bytes_max", LIMITS.peer_read_buffer_bytes_max * 3 // 2):
        with connections(address, 60) as socks:
            for number, sock in enumerate(socks):
                await asyncio.to_thread(send, sock, number)
            closed = await asyncio.to_thread(
                wait_closed, socks, 60 - LIMITS.peer_read_buffer_bytes_max // (7 * MIB), 10
            )
    assert closed >= 60 - LIMITS.peer_read_buffer_bytes_max // (7 * MIB)


async def test_thousands_of_connections_leave_room_for_a_peer(victim, siege):
    """1,024 silent connections, each with a buffer of 256 KiB, once locked out every peer."""
    address = victim.peer_address
    half = hello(victim)[:20]
    async with siege("handshakes of 4 KiB", 64 * MIB):
        with connections(address, 2000) as silent, connections(address, 200, half) as half_open:
            with dial(address) as sock:  # while all of these are open
                sock.sendall(hello(victim, channel=2))
                assert next(read_frames(sock))[0] == FrameType.WELCOME
            everybody = silent + half_open
            closed = await asyncio.to_thread(wait_closed, everybody, len(everybody), 15)
            assert closed == len(everybody), "silent connections must end after the handshake timeout"


async def test_a_node_that_connects_again_replaces_its_connection(victim):
    """Otherwise one node could hold all connections."""
    address = victim.peer_address
    with dial(address) as first, dial(address) as second:
        greeting = hello(victim, node_id=88)
        first.sendall(greeting)
        assert next(read_frames(first))[0] == FrameType.WELCOME
        second.sendall(greeting)
        assert next(read_frames(second))[0] == FrameType.WELCOME
        assert await asyncio.to_thread(wait_closed, [first], 1, 5) == 1
        second.sendall(joined(frame(FrameType.HEARTBEATS, [struct.pack("<6Q", NOBODY, 1, 1, 1, 1, 1)])))
        assert await asyncio.to_thread(wait_closed, [second], 1, 0.2) == 0


async def test_messages_with_impossible_terms_do_not_reach_a_replica(victim, siege):
    """A TimeoutNow with the term 2**64 - 1 for an existing replica ended the process, because the next term did not fit."""
    address = victim.peer_address
    high = 2**64 - 1

    def tell(kind: FrameType, body: bytes) -> None:
        with dial(address) as sock:
            sock.sendall(hello(victim) + joined(frame(kind, [body])))
            assert [kind for kind, _ in read_frames(sock)] == [FrameType.WELCOME]  # then the broker closes

    async with siege("frames of 1 KiB", 64 * MIB):
        for group_id, replica_id in ((0, 1), (1, 2), (2, 3)):
            for body in samples.raft_messages(group_id, source=NOBODY, target=replica_id, term=high):
                await asyncio.to_thread(tell, FrameType.MESSAGE, body)
            columns = samples.heartbeats(group_id, source=NOBODY, target=replica_id, term=high)
            await asyncio.to_thread(tell, FrameType.HEARTBEATS, columns)


async def test_replayed_messages_of_an_old_leader_depose_no_leader(victim, siege):
    """Every kind of message with an old term goes to existing replicas three times."""
    address = victim.peer_address
    with grpc.insecure_channel(victim.client_address) as channel:
        before = _leaders(channel)
        assert len(before) >= 2

        def replay() -> None:
            stream = hello(victim, channel=1)
            for group_id, replica_id in [(0, 1), *((group_id, group_id + 1) for group_id in before)]:
                for term in (0, 1):
                    bodies = samples.raft_messages(group_id, source=replica_id, target=replica_id, term=term)
                    stream += b"".join(joined(frame(FrameType.MESSAGE, [body])) for body in bodies) * 3
                    FRAMES["peer port"] += 3 * len(bodies)
            with dial(address) as sock:
                sock.sendall(stream)
                answers = read_frames(sock)
                assert next(answers)[0] == FrameType.WELCOME  # an earlier shutdown would end the handshake
                sock.shutdown(socket.SHUT_WR)
                assert list(answers) == []

        async with siege("frames of 1 KiB", 32 * MIB):
            for _ in range(20):
                await asyncio.to_thread(replay)
        assert _leaders(channel) == before


def _leaders(channel: grpc.Channel) -> dict[int, tuple[int, int]]:
    """Return the leader and the term of each data group."""
    admin = pb_grpc.AdminStub(channel)
    topics = admin.ListTopics(pb.ListTopicsRequest(), timeout=10).topics
    return {
        leader.group_id: (leader.broker_id, leader.leader_epoch)
        for topic in topics
        for leader in admin.DescribeTopic(pb.DescribeTopicRequest(name=topic.name), timeout=10).leaders
    }


async def test_an_unfinished_snapshot_is_dropped_with_its_connection(victim, siege):
    """12 unknown nodes each sent 16 MiB of a snapshot and disconnected, and the broker kept everything."""
    address = victim.peer_address
    rows = joined(codec.encode_snapshot_rows(1, [(b"k%d" % i, bytes(256 * 1024)) for i in range(16)]))

    def leave_half(number: int) -> None:
        with dial(address) as sock:
            sock.sendall(hello(victim, node_id=3000 + number, channel=2))
            sock.sendall(joined(frame(FrameType.SNAPSHOT_BEGIN, [samples.snapshot_begin(NOBODY, stream_id=1)])))
            for _ in range(4):
                sock.sendall(joined(frame(FrameType.SNAPSHOT_ROWS, [rows])))
            sock.shutdown(socket.SHUT_WR)
            assert [kind for kind, _ in read_frames(sock)] == [FrameType.WELCOME]
        FRAMES["peer port"] += 5

    async with siege("two peers' read buffers and one stream", 2 * LIMITS.frame_bytes_max + 16 * MIB):
        for number in range(12):
            await asyncio.to_thread(leave_half, number)


async def test_a_peer_that_does_not_read_takes_no_more_than_its_outbox(victim):
    """The listener answers WELCOME and then reads nothing that the broker sends."""
    limits = Limits(peer_outbox_bytes_max=MIB)
    loop = asyncio.get_running_loop()
    welcomed = asyncio.Event()
    held: list[asyncio.StreamWriter] = []

    async def welcome_and_sleep(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held.append(writer)
        await reader.readexactly(FRAME_HEADER.size)
        writer.transport.pause_reading()  # type: ignore[attr-defined]  # a transport that reads, too
        writer.writelines(frame(FrameType.WELCOME, [samples.hello(node_id=2)]))

    class Sender(Peer):
        def on_peer_up(self, node_id: int) -> None:
            welcomed.set()

    server = await asyncio.start_server(welcome_and_sleep, "127.0.0.1", 0)
    transport = PeerTransport(loop, limits, Timing(), lambda: 0.5)
    transport.attach(Sender())
    try:
        transport.set_peers({NodeId(2): f"127.0.0.1:{server.sockets[0].getsockname()[1]}"})
        async with asyncio.timeout(10):
            await welcomed.wait()
            while len(held) < len(Channel):  # the test closes only connections accepted by now
                await asyncio.sleep(0.001)
        sent = 0
        for _ in range(1000):
            while transport.send(NodeId(2), Channel.CONTROL, FrameType.MESSAGE, [bytes(64 * 1024)]):
                sent += 1
                transport.flush()
            unsent = transport._links[NodeId(2), Channel.CONTROL].protocol.transport.get_write_buffer_size()
            assert unsent <= limits.peer_outbox_bytes_max
            await asyncio.sleep(0)
        assert sent > 0
        assert sent * 64 * 1024 < 64 * MIB, "only socket buffers and the outbox may hold bytes"
        assert not transport.send(NodeId(2), Channel.CONTROL, FrameType.MESSAGE, [bytes(64 * 1024)])
    finally:
        await transport.close()
        for writer in held:
            writer.close()
        server.close()
