"""Stream snapshots to other nodes.

The rows come from a copy of the state file, if there is one, or from one read transaction of the file itself. A thread reads them, and
they are sent in chunks on a channel of their own. No more than a few chunks are in memory.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from functools import partial
from itertools import count

import structlog
from raftmq.broker.base.limits import Limits, Timing
from raftmq.broker.peers.codec import (
    NOT_RESUMABLE,
    FrameType,
    Parts,
    SnapshotResume,
    encode_snapshot_begin,
    encode_snapshot_end,
    encode_snapshot_rows,
)
from raftmq.broker.peers.protocol import Channel, Transport
from raftmq.broker.replica.copy_pace import CopyPace
from raftmq.broker.replica.replica import Replica
from raftmq.broker.replica.snapshot_copies import SharedCopy, SnapshotCopies
from raftmq.fsm.state_machine import StateMachine
from raftmq.raft.messages import InstallSnapshot, SnapshotMeta
from raftmq.storage.errors import (
    DamagedReplicaError,
    LogRangeError,
    MissingReplicaError,
    ReplicaClosedError,
    StorageUnavailableError,
)
from raftmq.storage.log_store import LogStore
from raftmq.storage.row_stream import ClosableRows
from raftmq.types import METADATA_GROUP_ID, NodeId, ReplicaId

log = structlog.get_logger(__name__)

Row = tuple[bytes, bytes]


class _Outgoing:
    """A stream that is being sent."""

    __slots__ = ("copy", "ends_at", "message", "meta", "node_id", "resume_from", "rows", "sent")

    def __init__(
        self,
        node_id: NodeId,
        message: InstallSnapshot,
        meta: SnapshotMeta,
        rows: ClosableRows,
        ends_at: float,
        copy: SharedCopy | None,
    ) -> None:
        self.node_id = node_id
        self.message = message
        """The core's message, which the stream carries out."""
        self.meta = meta
        self.rows = rows
        self.ends_at = ends_at
        """Loop time at which the stream is given up."""
        self.copy = copy
        self.sent = 0
        """Rows that the receiver has or will have when the last frame has arrived."""
        self.resume_from: tuple[int, bytes] | None = None
        """The number of rows that the receiver has, and the key of the last one, if it has just said so."""


class SnapshotSender:
    """Streams a bounded number of snapshots simultaneously."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        transport: Transport,
        store: LogStore,
        readers: Executor,
        limits: Limits,
        timing: Timing,
        copies: SnapshotCopies,
        pace: CopyPace,
        on_streamed: Callable[[Replica[StateMachine], InstallSnapshot, bool], None],
        on_damage: Callable[[Replica[StateMachine], Exception], None],
    ) -> None:
        self._loop = loop
        self._transport = transport
        self._store = store
        self._readers = readers
        self._limits = limits
        self._timing = timing
        self._copies = copies
        self._pace = pace
        self._on_streamed = on_streamed
        self._on_damage = on_damage
        self._ids = count(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self._paced_tasks: set[asyncio.Task[None]] = set()
        """Those that began for planned moves."""
        self._outgoing: dict[int, _Outgoing] = {}
        """The streams by their ids."""

    @property
    def streams(self) -> int:
        """Return the number of snapshots that are being sent."""
        return len(self._tasks)

    def is_full(self, replica: Replica[StateMachine]) -> bool:
        """Return whether a new stream would have to wait. Metadata never does.

        Streams for planned moves use at most half of all slots, because at a low rate they last long, and repair comes first.
        """
        slots = self._limits.snapshot_streams_max
        learners = replica.core.membership.learners
        is_paced = bool(learners) and all(self._is_paced(replica, learner) for learner in learners)
        if is_paced and len(self._paced_tasks) >= max(1, slots // 2):
            return True
        return replica.group_id != METADATA_GROUP_ID and len(self._tasks) >= slots

    def _is_paced(self, replica: Replica[StateMachine], target: ReplicaId) -> bool:
        """Return whether the rows for this replica wait for the pace of planned moves."""
        return (
            self._pace.bytes_per_second > 0 and replica.group_id != METADATA_GROUP_ID and replica.core.is_paced(target)
        )

    def start(self, replica: Replica[StateMachine], node_id: NodeId, message: InstallSnapshot) -> None:
        """Stream the group's durable state to a replica on `node_id`. `on_streamed` reports how it ended."""
        task = self._loop.create_task(self._run(replica, node_id, message))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self._is_paced(replica, message.target):
            self._paced_tasks.add(task)
            task.add_done_callback(self._paced_tasks.discard)

    def on_resume(self, node_id: NodeId, resume: SnapshotResume) -> None:
        """Have a stream go on after the rows that its receiver has from an earlier one. Ignored if it has sent more than that."""
        outgoing = self._outgoing.get(resume.stream_id)
        if outgoing is None or outgoing.node_id != node_id or outgoing.copy is None:
            return
        if outgoing.copy.snapshot_id == resume.snapshot_id:
            outgoing.resume_from = (resume.row_count, resume.last_key)

    async def _run(self, replica: Replica[StateMachine], node_id: NodeId, message: InstallSnapshot) -> None:
        is_sent = False
        try:
            is_sent = await self._stream(replica, node_id, message)
        except DamagedReplicaError as error:
            self._on_damage(replica, error)
        except (LogRangeError, MissingReplicaError, ReplicaClosedError, StorageUnavailableError) as error:
            log.info("snapshot_not_sent", group_id=replica.group_id, reason=str(error))
        finally:
            self._on_streamed(replica, message, is_sent)

    async def _stream(self, replica: Replica[StateMachine], node_id: NodeId, message: InstallSnapshot) -> bool:
        shared = await self._copies.acquire(replica, message.target)
        if shared is None:
            return await self._stream_file(replica, node_id, message)
        copy = shared.copy
        meta = SnapshotMeta(copy.position, copy.state_index, copy.membership)
        try:
            rows = await self._loop.run_in_executor(self._readers, copy.rows_from, b"")
            outgoing = _Outgoing(node_id, message, meta, rows, float("inf"), shared)
            return await self._stream_rows(replica, outgoing)
        except DamagedReplicaError as error:
            self._copies.distrust(shared)
            raise StorageUnavailableError(replica.key, f"its copy cannot be read back: {error}") from error
        finally:
            self._copies.release(shared)

    async def _stream_file(self, replica: Replica[StateMachine], node_id: NodeId, message: InstallSnapshot) -> bool:
        """Stream from the replica's file, for a limited time: the open read transaction retains every page that is freed after it."""
        stored = await self._loop.run_in_executor(self._readers, self._store.snapshot, replica.key)
        meta = SnapshotMeta(stored.position, stored.state_index, stored.membership)
        ends_at = self._loop.time() + self._timing.snapshot_read_seconds
        outgoing = _Outgoing(node_id, message, meta, stored.rows, ends_at, None)
        return await self._stream_rows(replica, outgoing)

    async def _stream_rows(self, replica: Replica[StateMachine], outgoing: _Outgoing) -> bool:
        stream_id = next(self._ids)
        self._outgoing[stream_id] = outgoing
        try:
            return await self._begin(replica, outgoing, stream_id) and await self._send_rows(
                replica, outgoing, stream_id
            )
        finally:
            del self._outgoing[stream_id]
            outgoing.rows.close()

    async def _begin(self, replica: Replica[StateMachine], outgoing: _Outgoing, stream_id: int) -> bool:
        if replica.group_id == METADATA_GROUP_ID:
            position_at_state = await replica.find_position(outgoing.meta.state_index)
            if position_at_state is None:
                return False
            outgoing.meta = dataclasses.replace(outgoing.meta, position=position_at_state)
        begin = dataclasses.replace(outgoing.message, meta=outgoing.meta, data=None)
        snapshot_id = outgoing.copy.snapshot_id if outgoing.copy is not None else NOT_RESUMABLE
        body = encode_snapshot_begin(stream_id, replica.group_id, begin, snapshot_id)
        return await self._send(replica, outgoing, FrameType.SNAPSHOT_BEGIN, body)

    async def _send_rows(self, replica: Replica[StateMachine], outgoing: _Outgoing, stream_id: int) -> bool:
        streamed = 0
        while True:
            if outgoing.resume_from is not None:
                await self._skip(outgoing, *outgoing.resume_from)
            chunk = await self._loop.run_in_executor(
                self._readers, _take, outgoing.rows, self._limits.snapshot_chunk_bytes
            )
            if replica.is_closed:
                raise ReplicaClosedError(replica.key, "closed while its snapshot was sent")
            if not chunk:
                break
            size = sum(len(key) + len(value) for key, value in chunk)
            await self._await_turn(replica, outgoing, size)
            streamed += size
            outgoing.sent += len(chunk)
            replica.outgoing_snapshots.record_rows(outgoing.message.target, outgoing.sent, streamed)
            if not await self._send(replica, outgoing, FrameType.SNAPSHOT_ROWS, encode_snapshot_rows(stream_id, chunk)):
                return False
        log.info(
            "snapshot_sent", group_id=replica.group_id, peer_id=outgoing.node_id, index=outgoing.meta.position.index,
            state_index=outgoing.meta.state_index, rows=outgoing.sent,
        )  # fmt: skip
        return await self._send(
            replica, outgoing, FrameType.SNAPSHOT_END, encode_snapshot_end(stream_id, outgoing.sent)
        )

    async def _await_turn(self, replica: Replica[StateMachine], outgoing: _Outgoing, size: int) -> None:
        """Wait until the pace of planned moves permits these bytes. The wait does not count as time of the stream."""
        began_at = self._loop.time()
        while self._is_paced(replica, outgoing.message.target) and not self._pace.may_send():
            turn: asyncio.Future[None] = self._loop.create_future()
            self._pace.wait(outgoing, partial(_give, turn))
            try:
                with replica.outgoing_snapshots.paced():
                    await turn
            finally:
                self._pace.forget(outgoing)
            if replica.is_closed:
                raise ReplicaClosedError(replica.key, "closed while its snapshot was sent")
        outgoing.ends_at += self._loop.time() - began_at
        if replica.group_id != METADATA_GROUP_ID and replica.core.is_paced(outgoing.message.target):
            self._pace.spend(size)

    async def _skip(self, outgoing: _Outgoing, row_count: int, last_key: bytes) -> None:
        """Go on with the last row that the receiver has, which it counts once."""
        outgoing.resume_from = None
        if outgoing.copy is not None and row_count > outgoing.sent:
            outgoing.rows.close()
            rows_from = outgoing.copy.copy.rows_from
            outgoing.rows = await self._loop.run_in_executor(self._readers, rows_from, last_key)
            outgoing.sent = row_count - 1

    async def _send(
        self, replica: Replica[StateMachine], outgoing: _Outgoing, frame_type: FrameType, body: Parts
    ) -> bool:
        """Send a frame when the channel has room.

        Return False if the peer is gone, accepts nothing, or the time is over, or if a later stream has taken the place of this one.
        """
        try:
            if not await self._drained(outgoing):
                return False
        except TimeoutError:
            log.warning("snapshot_too_slow", peer_id=outgoing.node_id, rows=outgoing.sent)
            return False
        if not replica.outgoing_snapshots.is_newest(outgoing.message):
            return False
        is_queued = self._transport.send(outgoing.node_id, Channel.SNAPSHOT, frame_type, body)
        self._transport.flush()
        return is_queued

    async def _drained(self, outgoing: _Outgoing) -> bool:
        """Wait until the channel has room. Return False if it is down. Raises `TimeoutError`."""
        now = self._loop.time()
        if now >= outgoing.ends_at:
            raise TimeoutError
        async with asyncio.timeout_at(min(outgoing.ends_at, now + self._timing.snapshot_stalled_seconds)):
            return await self._transport.drained(outgoing.node_id, Channel.SNAPSHOT)


def _give(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_result(None)


def _take(rows: Iterator[Row], bytes_max: int) -> list[Row]:
    chunk: list[Row] = []
    size = 0
    for row in rows:
        chunk.append(row)
        size += len(row[0]) + len(row[1]) + 8
        if size >= bytes_max:
            break
    return chunk
