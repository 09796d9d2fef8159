"""Provide the node interface of a transport, for connections without a broker."""

from __future__ import annotations

from raftmq.broker.peers import codec
from raftmq.broker.peers.codec import FrameType
from raftmq.broker.peers.protocol import Channel, Hello
from raftmq.types import NodeId


class Peer:
    """A node that decodes every frame and accepts only the cluster `c`."""

    def __init__(self) -> None:
        self.frames = 0

    def hello(self, target: NodeId, channel: Channel) -> Hello:
        return Hello(codec.WIRE_VERSION, "c", 1, "uuid-1", target, int(channel))

    def contradiction(self, hello: Hello) -> str | None:
        return None

    def remember(self, hello: Hello) -> None:
        return None

    def on_other_cluster(self, address: str, said: str) -> None: ...

    def on_stale(self, node_id: NodeId, reason: str) -> None: ...

    def refusal(self, hello: Hello) -> str | None:
        return None if hello.cluster_id == "c" else "another cluster"

    def on_frame(self, node_id: NodeId, frame_type: FrameType, body: memoryview) -> None:
        self.frames += 1
        decode = {
            FrameType.MESSAGE: codec.decode_message,
            FrameType.HEARTBEATS: codec.decode_heartbeats,
            FrameType.HEARTBEAT_RESPONSES: codec.decode_heartbeats,
            FrameType.LEADERSHIP: codec.decode_leadership,
            FrameType.SNAPSHOT_BEGIN: codec.decode_snapshot_begin,
            FrameType.SNAPSHOT_ROWS: codec.decode_snapshot_rows,
            FrameType.SNAPSHOT_END: codec.decode_snapshot_end,
            FrameType.SNAPSHOT_RESUME: codec.decode_snapshot_resume,
            FrameType.CLOCK_QUESTION: codec.decode_clock_question,
            FrameType.CLOCK: codec.decode_clock,
        }.get(frame_type)
        if decode is not None:
            decode(body)

    def on_peer_up(self, node_id: NodeId) -> None:
        """Do nothing, since nothing waits for a peer."""

    def on_peer_down(self, node_id: NodeId) -> None:
        """Do nothing, since nothing needs the peer."""

    def on_peer_refused(self, node_id: NodeId) -> None:
        """Do nothing, since a refusal has no consequences."""

    def on_snapshots_lost(self, node_id: NodeId) -> None:
        """Do nothing, since no snapshot was kept."""
