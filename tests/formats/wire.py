"""The frames between brokers, and how each is read and written again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from raftmq.broker.peers import codec
from raftmq.broker.peers import request_frames as requests
from raftmq.broker.peers.codec import FrameType, Parts, frame
from raftmq.broker.peers.protocol import Channel, Hello, decode_hello
from raftmq.types import NodeId

from tests.support.hostile.samples import joined, peer_frames

BOOT = 7


def hello_of(
    node_id: int, target: int, oldest: int = codec.WIRE_VERSION_MIN, newest: int = codec.WIRE_VERSION
) -> Hello:
    """Return the description of a broker of the cluster "c" that speaks these wire versions."""
    address, marks = f"host-{node_id}:9401", b"mark" * BOOT
    return Hello(
        oldest,
        "c",
        node_id,
        f"uuid-{node_id}",
        NodeId(target),
        Channel.CONTROL,
        BOOT,
        address,
        marks,
        wire_version_max=newest,
    )


def handshake() -> dict[str, Any]:
    """Return the two frames of a handshake between brokers 2 and 1, and the fields of a description."""
    frames = (FrameType.HELLO, hello_of(2, 1)), (FrameType.WELCOME, hello_of(1, 2))
    hello, welcome = (joined(frame(kind, [msgspec.msgpack.encode(one)])).hex() for kind, one in frames)
    return {"fields": list(Hello.__struct_fields__), "hello": hello, "welcome": welcome}


def frames() -> list[list[str]]:
    """Return a body of each type of frame that follows a handshake."""
    more: list[tuple[FrameType, Parts]] = [
        (FrameType.REQUEST, requests.encode_request(5, 1_000, "/raftmq.v1.Admin/CreateTopic", "ann", b"message")),
        (FrameType.RESPONSE, requests.encode_response(5, requests.ResponseStatus.ERROR, b"detail")),
        (FrameType.CANCEL, requests.encode_cancel(5)),
    ]
    bodies = [*peer_frames(), *((kind, joined(parts)) for kind, parts in more)]
    return [[kind.name, body.hex()] for kind, body in bodies if kind is not FrameType.HELLO]


def _beats(body: memoryview) -> Parts:
    columns = codec.HeartbeatColumns()
    for row in zip(*codec.decode_heartbeats(body), strict=True):
        columns.add(*row)
    return columns.encode()


AGAIN: dict[FrameType, Callable[[memoryview], Parts]] = {
    FrameType.HELLO: lambda body: [msgspec.msgpack.encode(decode_hello(body))],
    FrameType.MESSAGE: lambda body: codec.encode_message(*codec.decode_message(body)),
    FrameType.HEARTBEATS: _beats,
    FrameType.HEARTBEAT_RESPONSES: _beats,
    FrameType.LEADERSHIP: lambda body: codec.encode_leadership(codec.decode_leadership(body)),
    FrameType.SNAPSHOT_BEGIN: lambda body: codec.encode_snapshot_begin(*codec.decode_snapshot_begin(body)),
    FrameType.SNAPSHOT_ROWS: lambda body: codec.encode_snapshot_rows(*codec.decode_snapshot_rows(body)),
    FrameType.SNAPSHOT_END: lambda body: codec.encode_snapshot_end(*codec.decode_snapshot_end(body)),
    FrameType.SNAPSHOT_RESUME: lambda body: codec.encode_snapshot_resume(codec.decode_snapshot_resume(body)),
    FrameType.CLOCK_QUESTION: lambda body: codec.encode_clock_question(codec.decode_clock_question(body)),
    FrameType.CLOCK: lambda body: codec.encode_clock(*codec.decode_clock(body)),
    FrameType.REQUEST: lambda body: requests.encode_request(*requests.decode_request(body)),
    FrameType.RESPONSE: lambda body: requests.encode_response(*requests.decode_response(body)),
    FrameType.CANCEL: lambda body: requests.encode_cancel(requests.decode_cancel(body)),
}
"""Reads the body of a frame and writes it again."""
