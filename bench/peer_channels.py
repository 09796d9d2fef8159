"""Measure the cost of a peer frame over gRPC streams and over framed TCP. ADR 0004 uses this measurement.

Sender and receiver share one process, one loop and a core, over loopback. So a figure is the sum of both sides' work per frame.

Usage: python -m bench.peer_channels
"""

import asyncio
import statistics
import time
from collections.abc import AsyncIterator

import grpc
import grpc.aio
import uvloop
from raftmq.broker.base.limits import Limits, Timing
from raftmq.broker.base.supervisor import Work
from raftmq.broker.peers.codec import WIRE_VERSION, FrameType
from raftmq.broker.peers.protocol import Channel, Hello
from raftmq.broker.peers.transport import PeerTransport
from raftmq.types import NodeId

ROUNDS = 5
PEER = NodeId(2)
CASES = ((200, 20_000), (512 * 1024, 300))
"""(bytes per frame, frames per round)."""


class _Handler:
    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.up = asyncio.Event()
        self.received = 0
        self.expected = 0
        self.done = asyncio.Event()

    def hello(self, target: int, channel: Channel) -> Hello:
        return Hello(WIRE_VERSION, "bench", self.node_id, f"u{self.node_id}", target, channel)

    def contradiction(self, hello: Hello) -> str | None:
        return None

    def remember(self, hello: Hello) -> None:
        return None

    def on_other_cluster(self, address: str, said: str) -> None: ...

    def on_stale(self, node_id: NodeId, reason: str) -> None: ...

    def refusal(self, hello: Hello) -> str | None:
        return None

    def is_current(self, hello: Hello) -> bool:
        return True

    def on_frame(self, node_id: int, frame_type: FrameType, body: memoryview) -> None:
        self.received += 1
        bytes(body)  # as a receiver of entries does
        if self.received == self.expected:
            self.done.set()

    def on_peer_up(self, node_id: int) -> None:
        self.up.set()

    def on_peer_down(self, node_id: int) -> None: ...

    def on_peer_refused(self, node_id: int) -> None: ...

    def on_snapshots_lost(self, node_id: int) -> None: ...

    def record_failure(self, work: Work, error: BaseException) -> None:
        raise error


async def framed_tcp(size: int, frames: int) -> float:
    loop = asyncio.get_running_loop()
    one, two = _Handler(1), _Handler(2)
    sender = PeerTransport(loop, Limits(), Timing(), lambda: 0.5)
    sender.attach(one)
    receiver = PeerTransport(loop, Limits(), Timing(), lambda: 0.5)
    receiver.attach(two)
    port = await receiver.listen("127.0.0.1", 0)
    sender.set_peers({PEER: f"127.0.0.1:{port}"})
    await one.up.wait()
    while not sender.send(PEER, Channel.APPEND, FrameType.MESSAGE, [b"warm"]):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    two.received, two.expected = -1, frames
    payload = bytes(size)
    started = time.perf_counter()
    sent = 0
    while sent < frames:
        if sender.send(PEER, Channel.APPEND, FrameType.MESSAGE, [payload]):
            sent += 1
            if sent % 16:
                continue
        sender.flush()
        await sender.drained(PEER, Channel.APPEND)
        await asyncio.sleep(0)
    sender.flush()
    await two.done.wait()
    elapsed = time.perf_counter() - started
    await sender.close()
    await receiver.close()
    return elapsed / frames


async def grpc_stream(size: int, frames: int) -> float:
    done = asyncio.Event()

    async def sink(requests: AsyncIterator[bytes], context: object) -> AsyncIterator[bytes]:
        received = 0
        async for _ in requests:
            received += 1
            if received == frames:
                done.set()
        yield b""

    server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1)])
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(sink)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Bench", {"Sink": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    payload = bytes(size)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call: grpc.aio.StreamStreamCall[bytes, bytes] = channel.stream_stream("/Bench/Sink")()
        started = time.perf_counter()
        for _ in range(frames):
            await call.write(payload)
        await done.wait()
        elapsed = time.perf_counter() - started
        call.cancel()
    await server.stop(None)
    return elapsed / frames


async def main() -> None:
    print(f"{'frame':>10} {'gRPC stream':>14} {'framed TCP':>14} {'ratio':>7}   (median µs per frame, both sides)")
    for size, frames in CASES:
        pairs = [(await grpc_stream(size, frames), await framed_tcp(size, frames)) for _ in range(ROUNDS)]
        rpc, tcp = (statistics.median(pair[i] for pair in pairs) * 1e6 for i in (0, 1))
        print(f"{size:>10} {rpc:>14.1f} {tcp:>14.1f} {statistics.median(a / b for a, b in pairs):>7.1f}")


if __name__ == "__main__":
    uvloop.run(main())
