"""Exchange heartbeats per pair of nodes: one frame for all groups, answered by one frame.

Columns replace messages because a quiet node sends nothing else (under a millisecond for 5,000 groups). If a core does not accept a
heartbeat as quiet, it gets it as an ordinary message. A quiet cluster sends equal frames: one that is equal to the frame before it is not
decoded if nothing happened to any core in between. Source: multi-Raft practice (CockroachDB, TiKV).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from raftmq.broker.peers.codec import FrameType, HeartbeatColumns, Parts, decode_heartbeats
from raftmq.broker.peers.protocol import Channel, Transport
from raftmq.broker.replica.engine_host import EngineHost
from raftmq.broker.replica.replica import Replica
from raftmq.fsm.state_machine import StateMachine
from raftmq.raft.messages import Heartbeat, HeartbeatResponse
from raftmq.raft.ticks import Ticks
from raftmq.types import GroupId, LogIndex, NodeId, ReplicaId, Term


class _QuietFrame:
    """A frame whose heartbeats, or responses, were all quiet. While no core changes, an equal frame has the same effect."""

    __slots__ = ("changes", "data", "repeats", "response")

    def __init__(self, data: bytes, changes: int) -> None:
        self.data = data
        """The frame's body."""
        self.changes = changes
        """`Ticks.changes` when it was processed."""
        self.repeats: list[Callable[[], None]] = []
        """Repeat its effect on each core."""
        self.response: Parts = []
        """The body of the frame that answers it. Empty: none does."""


class Heartbeats:
    """Collects due heartbeats and processes those of other nodes."""

    def __init__(
        self,
        host: EngineHost,
        replicas: Mapping[GroupId, Replica[StateMachine]],
        transport: Transport,
        ticks: Ticks,
    ) -> None:
        """Take the logical time of the partitions. Frames with another group's heartbeat are never quiet."""
        self._host = host
        self._replicas = replicas
        self._transport = transport
        self._due: dict[NodeId, HeartbeatColumns] = {}
        self._ticks = ticks
        self._quiet: dict[tuple[NodeId, FrameType], _QuietFrame] = {}
        """The last quiet frame of each node and type."""

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

    def on_heartbeats(self, node_id: NodeId, body: memoryview) -> None:
        """Process a node's heartbeats of the groups that it leads. Quiet ones are answered immediately.

        Raises:
            FrameError: The frame cannot be decoded.
        """
        key, data = (node_id, FrameType.HEARTBEATS), bytes(body)
        frame = self._repeat(key, data)
        if frame is None:
            frame = _QuietFrame(data, self._ticks.changes)
            responses = HeartbeatColumns()
            has_others = False
            for group_id, source, target, term, commit_index, counter in zip(*decode_heartbeats(body), strict=True):
                replica = self._replicas.get(GroupId(group_id))
                if replica is None or replica.replica_id != target:
                    continue
                core = replica.core
                has_others |= core.ticks is not self._ticks
                try:
                    is_quiet = core.on_quiet_heartbeat(ReplicaId(source), Term(term), LogIndex(commit_index))
                except Exception as error:  # noqa: BLE001 -- one group's defect must not affect the others in the frame
                    self._host.break_replica(replica, error)
                    continue
                if is_quiet:
                    responses.add(group_id, target, source, term, 0, counter)
                    frame.repeats.append(core.repeat_quiet_heartbeat)
                else:
                    replica.learn_node(ReplicaId(source), node_id)
                    heartbeat = Heartbeat(
                        ReplicaId(source), ReplicaId(target), Term(term), LogIndex(commit_index), counter
                    )
                    self._host.guarded(replica, core.step, heartbeat)
                    self._host.mark_dirty(replica)
            if len(responses):
                frame.response = responses.encode()
            if frame.changes == self._ticks.changes and not has_others:
                self._quiet[key] = frame
        if frame.response:
            self._transport.send(node_id, Channel.CONTROL, FrameType.HEARTBEAT_RESPONSES, frame.response)
            self._transport.flush()

    def on_heartbeat_responses(self, node_id: NodeId, body: memoryview) -> None:
        """Process a node's answers to this node's heartbeats.

        Raises:
            FrameError: The frame cannot be decoded.
        """
        key, data = (node_id, FrameType.HEARTBEAT_RESPONSES), bytes(body)
        if self._repeat(key, data) is not None:
            return
        frame = _QuietFrame(data, self._ticks.changes)
        has_others = False
        for group_id, source, target, term, _, counter in zip(*decode_heartbeats(body), strict=True):
            replica = self._replicas.get(GroupId(group_id))
            if replica is None or replica.replica_id != target:
                continue
            core = replica.core
            has_others |= core.ticks is not self._ticks
            try:
                is_quiet = core.on_quiet_heartbeat_response(ReplicaId(source), Term(term), counter)
            except Exception as error:  # noqa: BLE001 -- as in `on_heartbeats`
                self._host.break_replica(replica, error)
                continue
            if is_quiet:
                frame.repeats.append(core.progress[ReplicaId(source)].record_heard)
            else:
                response = HeartbeatResponse(ReplicaId(source), ReplicaId(target), Term(term), counter)
                self._host.guarded(replica, core.step, response)
                self._host.mark_dirty(replica)
        if frame.changes == self._ticks.changes and not has_others:
            self._quiet[key] = frame

    def _repeat(self, key: tuple[NodeId, FrameType], data: bytes) -> _QuietFrame | None:
        """Process a frame that is equal to a quiet one, if no core changed since. Return None, and do nothing, if it is not."""
        frame = self._quiet.get(key)
        if frame is None or frame.changes != self._ticks.changes or frame.data != data:
            return None
        for repeat in frame.repeats:
            repeat()
        return frame
