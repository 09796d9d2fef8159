"""Exchange heartbeats per pair of nodes: one frame for all groups, answered by one frame.

Columns replace messages because a quiet node sends nothing else (under a millisecond for 5,000 groups). If a core does not accept a
heartbeat as quiet, it gets it as an ordinary message. Source: multi-Raft practice (CockroachDB, TiKV).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from raftmq.broker.peers.codec import FrameType, HeartbeatColumns
from raftmq.broker.peers.protocol import Channel, Transport
from raftmq.broker.replica.engine_host import EngineHost
from raftmq.broker.replica.replica import Replica
from raftmq.fsm.state_machine import StateMachine
from raftmq.raft.messages import Heartbeat, HeartbeatResponse
from raftmq.types import GroupId, LogIndex, NodeId, ReplicaId, Term


class Heartbeats:
    """Collects due heartbeats and processes those of other nodes."""

    def __init__(
        self, host: EngineHost, replicas: Mapping[GroupId, Replica[StateMachine]], transport: Transport
    ) -> None:
        self._host = host
        self._replicas = replicas
        self._transport = transport
        self._due: dict[NodeId, HeartbeatColumns] = {}

    def collect(self, replica: Replica[StateMachine]) -> None:
        """Collect a leader's due heartbeats. They are sent with the next `flush`."""
        core = replica.core
        replica.heartbeats = [
            (
                replica.node_of(target),
                (replica.group_id, core.replica_id, target, core.term, commit_index, counter),
            )
            for target, commit_index, counter in core.take_heartbeats()
        ]
        self.repeat(replica)

    def repeat(self, replica: Replica[StateMachine]) -> None:
        """Collect the heartbeats that a leader collected last once more."""
        for node_id, row in replica.heartbeats:
            heartbeats = self._due.get(node_id)
            if heartbeats is None:
                heartbeats = self._due[node_id] = HeartbeatColumns()
            heartbeats.add(*row)

    def flush(self) -> None:
        """Queue one frame per node. The caller flushes the transport."""
        if self._due:
            due, self._due = self._due, {}  # first, so that an unsendable frame does not block the next ones
            for node_id, heartbeats in due.items():
                self._transport.send(node_id, Channel.CONTROL, FrameType.HEARTBEATS, heartbeats.encode())

    def on_heartbeats(self, node_id: NodeId, columns: Sequence[Sequence[int]]) -> None:
        """Process a node's heartbeats of the groups that it leads. Quiet ones are answered immediately."""
        responses = HeartbeatColumns()
        replicas = self._replicas
        for group_id, source, target, term, commit_index, counter in zip(*columns, strict=True):
            replica = replicas.get(GroupId(group_id))
            if replica is None or replica.replica_id != target:
                continue
            core = replica.core
            try:
                is_quiet = core.on_quiet_heartbeat(ReplicaId(source), Term(term), LogIndex(commit_index))
            except Exception as error:  # noqa: BLE001 -- one group's defect must not affect the others in the frame
                self._host.break_replica(replica, error)
                continue
            if is_quiet:
                responses.add(group_id, target, source, term, 0, counter)
            else:
                replica.learn_node(ReplicaId(source), node_id)
                heartbeat = Heartbeat(ReplicaId(source), ReplicaId(target), Term(term), LogIndex(commit_index), counter)
                self._host.guarded(replica, core.step, heartbeat)
                self._host.mark_dirty(replica)
        if len(responses):
            self._transport.send(node_id, Channel.CONTROL, FrameType.HEARTBEAT_RESPONSES, responses.encode())
            self._transport.flush()

    def on_heartbeat_responses(self, columns: Sequence[Sequence[int]]) -> None:
        """Process a node's answers to this node's heartbeats."""
        replicas = self._replicas
        for group_id, source, target, term, _, counter in zip(*columns, strict=True):
            replica = replicas.get(GroupId(group_id))
            if replica is None or replica.replica_id != target:
                continue
            core = replica.core
            try:
                is_quiet = core.on_quiet_heartbeat_response(ReplicaId(source), Term(term), counter)
            except Exception as error:  # noqa: BLE001 -- as in `on_heartbeats`
                self._host.break_replica(replica, error)
                continue
            if not is_quiet:
                response = HeartbeatResponse(ReplicaId(source), ReplicaId(target), Term(term), counter)
                self._host.guarded(replica, core.step, response)
                self._host.mark_dirty(replica)
