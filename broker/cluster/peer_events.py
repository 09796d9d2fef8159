"""Pass the events of the peer transport to the parts of the node that they concern.

This module knows every such part and decides nothing. The transport gets it last, when all these parts exist.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog
from raftmq.broker.base.supervisor import Supervisor, Work
from raftmq.broker.cluster.peer_directory import PeerDirectory
from raftmq.broker.peers.codec import FrameError, FrameType
from raftmq.broker.peers.protocol import Channel, Hello
from raftmq.broker.replica.engine import Engine
from raftmq.types import NodeId

log = structlog.get_logger(__name__)


class PeerEvents:
    """One node's `PeerHandler`."""

    def __init__(
        self,
        engine: Engine,
        peers: PeerDirectory,
        supervisor: Supervisor,
        on_stale_directory: Callable[[str], None],
    ) -> None:
        """Take `on_stale_directory`, which is called with the reason if a peer permanently refuses this node's data directory."""
        self._engine = engine
        self._peers = peers
        self._supervisor = supervisor
        self._on_stale_directory = on_stale_directory

    # ------------------------------------------------------------------------------------------------ greetings

    def hello(self, target: NodeId, channel: Channel) -> Hello:
        """See `PeerHandler`."""
        return self._peers.hello(target, channel)

    def refusal(self, hello: Hello) -> str | None:
        """See `PeerHandler`."""
        return self._peers.refusal(hello)

    def is_current(self, hello: Hello) -> bool:
        """See `PeerHandler`."""
        return self._peers.is_current(hello)

    def contradiction(self, hello: Hello) -> str | None:
        """See `PeerHandler`."""
        return self._peers.contradiction(hello)

    def remember(self, hello: Hello) -> asyncio.Future[object] | None:
        """See `PeerHandler`."""
        is_new = not self._peers.boots.is_of_latest_process(hello)
        remembered = self._peers.boots.remember(hello)
        if is_new:
            self._engine.clocks.on_process_started()
        return remembered

    def on_other_cluster(self, address: str, said: str) -> None:
        """See `PeerHandler`."""
        self._peers.other_clusters.record(address, said)

    def on_stale(self, node_id: NodeId, reason: str) -> None:
        """See `PeerHandler`."""
        self._on_stale_directory(f"broker {node_id} says: {reason}")

    # ------------------------------------------------------------------------------------------------ frames and links

    def on_frame(self, node_id: NodeId, frame_type: FrameType, body: memoryview) -> None:
        """See `PeerHandler`."""
        try:
            self._engine.on_frame(node_id, frame_type, body)
        except FrameError:
            raise
        except Exception as error:  # noqa: BLE001 -- as if the frame had been lost: the connection is all groups'
            self._supervisor.record_failure(Work.PEERS, error)

    def on_peer_up(self, node_id: NodeId) -> None:
        """See `PeerHandler`."""
        log.info("peer_connected", peer_id=node_id)
        self._peers.on_peer_up(node_id)
        self._engine.on_peer_up(node_id)

    def on_peer_down(self, node_id: NodeId) -> None:
        """See `PeerHandler`."""
        log.info("peer_disconnected", peer_id=node_id)
        self._engine.on_peer_down(node_id)

    def on_peer_refused(self, node_id: NodeId) -> None:
        """See `PeerHandler`."""
        self._engine.campaigns.on_peer_refused(node_id)

    def on_snapshots_lost(self, node_id: NodeId) -> None:
        """See `PeerHandler`."""
        self._engine.on_snapshots_lost(node_id)

    def record_failure(self, work: Work, error: BaseException) -> None:
        """See `PeerHandler`."""
        self._supervisor.record_failure(work, error)
