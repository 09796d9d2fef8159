"""Peer connections over real loopback sockets."""

import asyncio
import contextlib

import pytest
from raftmq.broker.limits import Limits, Timing
from raftmq.broker.peer_codec import WIRE_VERSION, FrameType, frame
from raftmq.broker.peer_transport import Channel, Hello, PeerTransport

TIMING = Timing(reconnect_min_seconds=0.01, reconnect_max_seconds=0.05, handshake_timeout_seconds=0.3)


class Recorder:
    """A PeerHandler that writes down what it is told."""

    def __init__(self, node_id, cluster_id="c"):
        self.node_id = node_id
        self.cluster_id = cluster_id
        self.frames = asyncio.Queue()
        self.events = asyncio.Queue()

    def hello(self, target, channel):
        return Hello(WIRE_VERSION, self.cluster_id, self.node_id, f"uuid-{self.node_id}", target, channel)

    def refusal(self, hello):
        return None if hello.cluster_id == self.cluster_id else "another cluster"

    def on_frame(self, node_id, frame_type, body):
        self.frames.put_nowait((node_id, frame_type, bytes(body)))

    def on_peer_up(self, node_id):
        self.events.put_nowait(("up", node_id))

    def on_peer_down(self, node_id):
        self.events.put_nowait(("down", node_id))

    def on_peer_refused(self, node_id):
        self.events.put_nowait(("refused", node_id))


@contextlib.asynccontextmanager
async def transport(node_id, cluster_id="c", limits=None):
    recorder = Recorder(node_id, cluster_id)
    peer = PeerTransport(asyncio.get_running_loop(), recorder, limits or Limits(), TIMING, lambda: 0.5)
    port = await peer.listen("127.0.0.1", 0)
    try:
        yield peer, recorder, f"127.0.0.1:{port}"
    finally:
        await peer.close()


async def test_frames_arrive_in_order_on_each_channel():
    async with transport(1) as (one, events, _), transport(2) as (_, two, address):
        one.set_peers({2: address})
        assert await events.events.get() == ("up", 2)
        for number in range(50):
            assert one.send(2, Channel.CONTROL, FrameType.MESSAGE, [b"%d" % number, b"x" * number])
        one.flush()
        got = [await two.frames.get() for _ in range(50)]
    assert got == [(1, FrameType.MESSAGE, b"%d" % n + b"x" * n) for n in range(50)]


async def test_a_frame_larger_than_the_read_buffer_arrives_whole():
    async with transport(1) as (one, events, _), transport(2) as (_, two, address):
        one.set_peers({2: address})
        await events.events.get()
        payload = bytes(range(256)) * 8192
        for _ in range(3):
            while not one.send(2, Channel.APPEND, FrameType.MESSAGE, [payload]):  # noqa: ASYNC110
                await asyncio.sleep(0)
            one.flush()
            assert (await two.frames.get())[2] == payload


async def test_a_process_that_is_gone_is_reported_as_refused():
    async with transport(1) as (one, events, _):
        async with transport(2) as (_, _, address):
            one.set_peers({2: address})
            assert await events.events.get() == ("up", 2)
        seen = [await events.events.get(), await events.events.get()]
    assert seen == [("down", 2), ("refused", 2)]


async def test_a_node_of_another_cluster_is_not_connected():
    async with transport(1, "mine") as (one, events, _), transport(2, "other") as (_, two, address):
        one.set_peers({2: address})
        await asyncio.wait_for(_until_refused_twice(two), 5)
        assert events.events.empty()
        assert not one.is_connected(2)
        assert not one.send(2, Channel.CONTROL, FrameType.MESSAGE, [b"x"])


async def _until_refused_twice(recorder):
    seen = 0
    original = recorder.refusal
    done = asyncio.Event()

    def counting(hello):
        nonlocal seen
        seen += 1
        if seen == 2:
            done.set()
        return original(hello)

    recorder.refusal = counting
    await done.wait()


@pytest.mark.parametrize(
    "garbage",
    [
        b"\xff" * 64,
        b"GET / HTTP/1.1\r\n\r\n",
        b"".join(bytes(p) for p in frame(FrameType.MESSAGE, [b"not a hello"])),
        b"".join(bytes(p) for p in frame(FrameType.HELLO, [b"\xc1\xc1"])),
        bytes(frame(FrameType.HELLO, [b"x"])[0])[:-1] + b"\x00x",
    ],
)
async def test_garbage_closes_the_connection_and_nothing_else(garbage):
    async with transport(1) as (one, _, address):
        host, port = address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(garbage)
        assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()
        async with transport(2) as (two, events, _):
            two.set_peers({1: address})
            assert await events.events.get() == ("up", 1)
        assert one.is_connected(2) is False


async def test_a_silent_connection_is_closed_after_the_handshake_time():
    async with transport(1) as (_, _, address):
        host, port = address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()


async def test_a_full_outbox_drops_instead_of_waiting():
    """A peer that does not read must cost a bounded number of bytes."""
    limits = Limits(peer_outbox_bytes_max=100_000)
    async with transport(1, limits=limits) as (one, events, _), transport(2) as (_, two, address):
        one.set_peers({2: address})
        await events.events.get()
        sent = 0
        while one.send(2, Channel.APPEND, FrameType.MESSAGE, [b"x" * 1000]):
            sent += 1
            assert sent < 1000
        assert 90 <= sent <= 100
        one.flush()
        for _ in range(sent):
            await two.frames.get()
        assert one.send(2, Channel.APPEND, FrameType.MESSAGE, [b"x" * 1000])


async def test_a_connection_that_just_broke_takes_nothing_and_raises_nothing():
    """uvloop's transports raise when written to between their end and `connection_lost`: a pass that met one lost the
    rest of its groups, which then stood still for ever."""
    async with transport(1) as (one, events, _), transport(2) as (_, _, address):
        one.set_peers({2: address})
        assert await events.events.get() == ("up", 2)
        link = one._links[2, Channel.CONTROL]
        assert one.send(2, Channel.CONTROL, FrameType.MESSAGE, [b"queued before the end"])
        link.protocol.transport.abort()

        assert not one.send(2, Channel.CONTROL, FrameType.MESSAGE, [b"after it"])
        assert not one.is_connected(2)
        one.flush()
        assert await events.events.get() == ("down", 2)
