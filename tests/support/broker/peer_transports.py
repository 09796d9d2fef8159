"""Peer transports on real loopback sockets, without a node."""

import asyncio
import contextlib

from raftmq.broker.base.limits import Limits, Timing
from raftmq.broker.peers.codec import WIRE_VERSION, WIRE_VERSION_MIN
from raftmq.broker.peers.protocol import Hello
from raftmq.broker.peers.transport import PeerTransport

PASSES_OF_AN_ACCEPT = 6
TIMING = Timing(reconnect_min_seconds=0.01, reconnect_max_seconds=0.05, handshake_timeout_seconds=0.3)


class Recorder:
    """A PeerHandler that records its calls."""

    def __init__(self, node_id, cluster_id="c"):
        self.node_id = node_id
        self.cluster_id = cluster_id
        self.address = ""
        self.wire_versions = (WIRE_VERSION_MIN, WIRE_VERSION)
        self.frames = asyncio.Queue()
        self.events = asyncio.Queue()
        self.lost_snapshots = asyncio.Queue()
        self.stale = {}
        self.outdated = set()
        self.remembering = {}
        self.stale_said = asyncio.Queue()
        self.others_met = asyncio.Queue()
        self.boot, self.marks = 1, b"mark"

    def hello(self, target, channel):
        uuid = f"uuid-{self.node_id}"
        oldest, newest = self.wire_versions
        return Hello(
            oldest, self.cluster_id, self.node_id, uuid, target, channel, self.boot, self.address, self.marks, newest
        )

    def contradiction(self, hello):
        return self.stale.get(hello.uuid)

    def remember(self, hello):
        return self.remembering.get(hello.uuid)

    def on_other_cluster(self, address, said):
        self.others_met.put_nowait((address, said))

    def on_stale(self, node_id, reason):
        self.stale_said.put_nowait((node_id, reason))

    def refusal(self, hello):
        return None if hello.cluster_id == self.cluster_id else "another cluster"

    def is_current(self, hello):
        return hello.uuid not in self.outdated

    def on_frame(self, node_id, frame_type, body):
        self.frames.put_nowait((node_id, frame_type, bytes(body)))

    def on_peer_up(self, node_id):
        self.events.put_nowait(("up", node_id))

    def on_peer_down(self, node_id):
        self.events.put_nowait(("down", node_id))

    def on_peer_refused(self, node_id):
        self.events.put_nowait(("refused", node_id))

    def on_snapshots_lost(self, node_id):
        self.lost_snapshots.put_nowait(node_id)


@contextlib.asynccontextmanager
async def transport(node_id, cluster_id="c", limits=None, timing=TIMING):
    recorder = Recorder(node_id, cluster_id)
    peer = PeerTransport(asyncio.get_running_loop(), limits or Limits(), timing, lambda: 0.5)
    peer.attach(recorder)
    port = await peer.listen("127.0.0.1", 0)
    try:
        yield peer, recorder, f"127.0.0.1:{port}"
    finally:
        await peer.close()
        for _ in range(PASSES_OF_AN_ACCEPT):  # a peer's connection is accepted before the peer is closed in turn
            await asyncio.sleep(0)
