"""Stream snapshots between nodes.

The sender reads rows from one transaction, in a thread, and sends them in chunks on a channel of their own. The receiver spools
the frames to disk until the snapshot is complete and the core sees it. Neither side holds more than a few chunks in memory.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from itertools import count
from typing import Final

import structlog
from raftmq.broker.base.limits import Limits
from raftmq.broker.base.log_throttle import LogThrottle
from raftmq.broker.peers.codec import (
    FrameError,
    FrameType,
    Parts,
    SnapshotBegin,
    decode_snapshot_begin,
    decode_snapshot_end,
    encode_snapshot_begin,
    encode_snapshot_end,
    encode_snapshot_rows,
    snapshot_stream_of,
)
from raftmq.broker.peers.protocol import Channel, Transport
from raftmq.broker.replica.replica import Replica
from raftmq.broker.replica.snapshot_rows import SnapshotRows
from raftmq.fsm.state_machine import StateMachine
from raftmq.raft.messages import InstallSnapshot, SnapshotMeta
from raftmq.storage.errors import DamagedReplicaError, LogRangeError, ReplicaClosedError, StorageUnavailableError
from raftmq.storage.log_store import LogStore
from raftmq.storage.row_stream import ClosableRows
from raftmq.storage.snapshot_spool import SnapshotSpools
from raftmq.types import METADATA_GROUP_ID, GroupId, NodeId, ReplicaId

log = structlog.get_logger(__name__)

Row = tuple[bytes, bytes]

CHUNK_BYTES: Final = 256
"""Memory of a queued frame beside its bytes."""
STREAM_BYTES: Final = 4096
"""Memory of a stream without members and rows."""
STOOD_STILL_SECONDS: Final = 10.0
"""A stream without a frame for this long is evicted when another one needs its budget."""
MEMBER_BYTES_FACTOR: Final = 5
"""A replica id has 8 bytes on the wire, but 32 and a reference in a tuple here."""


class SnapshotSender:
    """Streams a bounded number of snapshots simultaneously."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        transport: Transport,
        store: LogStore,
        readers: Executor,
        limits: Limits,
        on_streamed: Callable[[Replica[StateMachine], ReplicaId, bool], None],
        on_damage: Callable[[Replica[StateMachine], Exception], None],
    ) -> None:
        self._loop = loop
        self._transport = transport
        self._store = store
        self._readers = readers
        self._limits = limits
        self._on_streamed = on_streamed
        self._on_damage = on_damage
        self._ids = count(1)
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def streams(self) -> int:
        """Return the number of snapshots that are being sent."""
        return len(self._tasks)

    def is_full(self, group_id: GroupId) -> bool:
        """Return whether a new stream would have to wait (metadata never does)."""
        return group_id != METADATA_GROUP_ID and len(self._tasks) >= self._limits.snapshot_streams_max

    def start(self, replica: Replica[StateMachine], node_id: NodeId, message: InstallSnapshot) -> None:
        """Stream the group's durable state to a replica on `node_id`. `on_streamed` reports how it ended."""
        task = self._loop.create_task(self._run(replica, node_id, message))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, replica: Replica[StateMachine], node_id: NodeId, message: InstallSnapshot) -> None:
        is_sent = False
        try:
            is_sent = await self._stream(replica, node_id, message)
        except DamagedReplicaError as error:
            self._on_damage(replica, error)
        except (LogRangeError, ReplicaClosedError, StorageUnavailableError) as error:
            log.info("snapshot_not_sent", group_id=replica.group_id, reason=str(error))
        finally:
            self._on_streamed(replica, message.target, is_sent)

    async def _stream(self, replica: Replica[StateMachine], node_id: NodeId, message: InstallSnapshot) -> bool:
        stored = await self._loop.run_in_executor(self._readers, self._store.snapshot, replica.key)
        try:
            meta = SnapshotMeta(stored.position, stored.state_index, stored.membership)
            return await self._stream_rows(replica, node_id, message, meta, stored.rows)
        finally:
            stored.rows.close()  # an open read transaction retains every page that is freed after it

    async def _stream_rows(
        self,
        replica: Replica[StateMachine],
        node_id: NodeId,
        message: InstallSnapshot,
        meta: SnapshotMeta,
        rows: ClosableRows,
    ) -> bool:
        state_index = meta.state_index
        if replica.group_id == METADATA_GROUP_ID:
            position_at_state = await replica.find_position(state_index)
            if position_at_state is None:
                return False
            meta = dataclasses.replace(meta, position=position_at_state)
        stream_id = next(self._ids)
        begin = dataclasses.replace(message, meta=meta, data=None)
        if not await self._send(
            node_id, FrameType.SNAPSHOT_BEGIN, encode_snapshot_begin(stream_id, replica.group_id, begin)
        ):
            return False
        total = 0
        while True:
            chunk = await self._loop.run_in_executor(self._readers, _take, rows, self._limits.snapshot_chunk_bytes)
            if not chunk:
                break
            total += len(chunk)
            if not await self._send(node_id, FrameType.SNAPSHOT_ROWS, encode_snapshot_rows(stream_id, chunk)):
                return False
        log.info(
            "snapshot_sent", group_id=replica.group_id, peer_id=node_id, index=meta.position.index,
            state_index=state_index, rows=total,
        )  # fmt: skip
        return await self._send(node_id, FrameType.SNAPSHOT_END, encode_snapshot_end(stream_id, total))

    async def _send(self, node_id: NodeId, frame_type: FrameType, body: Parts) -> bool:
        if not await self._transport.drained(node_id, Channel.SNAPSHOT):
            return False
        is_queued = self._transport.send(node_id, Channel.SNAPSHOT, frame_type, body)
        self._transport.flush()
        return is_queued


def _take(rows: Iterator[Row], bytes_max: int) -> list[Row]:
    chunk: list[Row] = []
    size = 0
    for row in rows:
        chunk.append(row)
        size += len(row[0]) + len(row[1]) + 8
        if size >= bytes_max:
            break
    return chunk


def memory_spools(limits: Limits) -> SnapshotSpools:
    """Return spools without a disk, for the simulator and tests."""
    return SnapshotSpools(
        None, memory_bytes=limits.snapshot_spool_memory_bytes, files_max=limits.snapshot_spool_files_max
    )


class _Incoming:
    """An incomplete stream."""

    __slots__ = ("begin", "count", "is_writing", "moved_at", "queue", "rows", "size")

    def __init__(self, begin: SnapshotBegin, rows: SnapshotRows) -> None:
        self.begin = begin
        self.rows = rows
        self.queue: deque[bytes] = deque()
        """Frames that are not spooled yet."""
        self.is_writing = False
        self.count: int | None = None
        """Number of rows according to the sender's END frame. None before it."""
        self.size = 0
        """Bytes held in memory, without the frame that is being written."""
        self.moved_at = 0.0
        """Loop time of the last frame."""


class SnapshotReceiver:
    """Assembles streams. Each peer has one stream for a group, the newest.

    Threads write rows to spools, so a snapshot may be as large as the disk. The bytes that are not spooled yet are bounded. A peer
    that sends rows faster than they are written is not read. When memory is short the longest-idle stream is evicted, so that
    an abandoned stream does not block others.

    Invariant: `bytes_held` is the sum of the sizes of the streams held and of the frames being written.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        threads: Executor,
        limits: Limits,
        spools: SnapshotSpools,
        on_whole: Callable[[NodeId, SnapshotBegin], None],
        hold: Callable[[NodeId, bool], None],
    ) -> None:
        """`on_whole` is called with each complete snapshot. `hold` pauses and resumes reading a peer's snapshots."""
        self._loop = loop
        self._threads = threads
        self._bytes_max = limits.snapshot_memory_bytes_max
        self._unwritten_bytes_max = limits.snapshot_unwritten_bytes_max
        self._spools = spools
        self._on_whole = on_whole
        self._hold = hold
        self.bytes_held = 0
        """Memory of all incomplete streams."""
        self._incoming: dict[tuple[NodeId, int], _Incoming] = {}
        """Streams in the order of their last frame."""
        self._by_group: dict[tuple[NodeId, GroupId], tuple[NodeId, int]] = {}
        """The stream of each peer and group, so that a flood of BEGIN frames need not search all streams each time."""
        self._unwritten: dict[NodeId, int] = {}
        """Bytes of each peer that are queued or being written."""
        self._held: set[NodeId] = set()
        """Peers whose snapshots are not read at present."""
        self._dropped_throttle = LogThrottle(1.0)

    def on_frame(self, node_id: NodeId, frame_type: FrameType, body: memoryview) -> None:
        """Process a frame. Raises `FrameError`."""
        if frame_type is FrameType.SNAPSHOT_BEGIN:
            self._begin(node_id, decode_snapshot_begin(body), len(body))
        elif frame_type is FrameType.SNAPSHOT_ROWS:
            self._extend((node_id, snapshot_stream_of(body)), body)
        else:
            stream_id, row_count = decode_snapshot_end(body)
            incoming = self._incoming.get((node_id, stream_id))
            if incoming is not None:
                incoming.count = row_count
                self._go_on((node_id, stream_id), incoming)

    def forget_peer(self, node_id: NodeId) -> None:
        """Drop the streams of a peer that lost a connection, except those whose rows have all arrived."""
        if node_id in self._held:  # its snapshot connection may still exist, and would never be read again
            self._held.remove(node_id)
            self._hold(node_id, False)
        for key in [key for key, incoming in self._incoming.items() if key[0] == node_id and incoming.count is None]:
            self._drop(key)

    def _begin(self, node_id: NodeId, begin: SnapshotBegin, wire_bytes: int) -> None:
        before = self._by_group.get((node_id, begin.group_id))
        if before is not None:
            self._drop(before)
        key = (node_id, begin.stream_id)
        self._drop(key)  # a stream of another group has this id: it was not finished and never will be
        self._incoming[key] = _Incoming(begin, SnapshotRows(self._spools.new()))
        self._by_group[node_id, begin.group_id] = key
        self._count(key, STREAM_BYTES + MEMBER_BYTES_FACTOR * wire_bytes)

    def _extend(self, key: tuple[NodeId, int], body: memoryview) -> None:
        incoming = self._incoming.pop(key, None)
        if incoming is None:
            return
        self._incoming[key] = incoming  # now the last in order
        if incoming.count is not None:
            raise FrameError("rows arrived after the end of their snapshot")
        incoming.queue.append(bytes(body))
        self._count_unwritten(key[0], len(body))
        self._count(key, len(body) + CHUNK_BYTES)
        if self._incoming.get(key) is incoming:
            self._go_on(key, incoming)

    def _go_on(self, key: tuple[NodeId, int], incoming: _Incoming) -> None:
        """Spool the next frame, or finish the stream."""
        if incoming.is_writing:
            return
        if incoming.queue:
            body = incoming.queue.popleft()
            incoming.size -= len(body) + CHUNK_BYTES  # `bytes_held` still counts it, until it is written
            incoming.is_writing = True
            before = incoming.rows.memory_bytes
            future = self._loop.run_in_executor(self._threads, incoming.rows.take, body)
            future.add_done_callback(lambda done: self._on_kept(key, incoming, len(body), before, done))
        elif incoming.count is not None:
            self._finish(key, incoming)

    def _on_kept(
        self, key: tuple[NodeId, int], incoming: _Incoming, size: int, before: int, done: asyncio.Future[None]
    ) -> None:
        incoming.is_writing = False
        self.bytes_held -= size + CHUNK_BYTES
        self._count_unwritten(key[0], -size)
        error = None if done.cancelled() else done.exception()
        if self._incoming.get(key) is not incoming:
            return
        if error is not None:
            self._fail(key, error)
            return
        self._count(key, incoming.rows.memory_bytes - before)
        if self._incoming.get(key) is incoming:
            self._go_on(key, incoming)

    def _finish(self, key: tuple[NodeId, int], incoming: _Incoming) -> None:
        self._drop(key)
        if incoming.count != len(incoming.rows):
            self._say_dropped(key, incoming, f"{incoming.count} rows were sent, but {len(incoming.rows)} arrived")
            return
        message = dataclasses.replace(incoming.begin.message, data=incoming.rows)
        self._on_whole(key[0], incoming.begin._replace(message=message))

    def _fail(self, key: tuple[NodeId, int], error: BaseException) -> None:
        """Drop a stream that cannot be spooled, and a long-idle one, which may hold the budget that this one needed."""
        dropped = self._drop(key)
        assert dropped is not None
        self._say_dropped(key, dropped, str(error))
        longest = next(iter(self._incoming.items()), None)
        if longest is not None and self._loop.time() - longest[1].moved_at > STOOD_STILL_SECONDS:
            self._drop(longest[0])
            self._say_dropped(*longest, "idle, and another stream needs its budget")

    def _count(self, key: tuple[NodeId, int], size: int) -> None:
        """Count bytes that a stream holds, and evict idle streams while all together hold too much."""
        incoming = self._incoming[key]
        incoming.size += size
        incoming.moved_at = self._loop.time()
        self.bytes_held += size
        while self.bytes_held > self._bytes_max and self._incoming:
            longest = next(iter(self._incoming))
            dropped = self._drop(longest)
            assert dropped is not None
            self._say_dropped(
                longest,
                dropped,
                "too many of its bytes are not written"
                if longest == key
                else "idle, and another stream needs its budget",
            )

    def _count_unwritten(self, node_id: NodeId, size: int) -> None:
        """Count bytes that a peer has sent and that are not spooled yet. Pause reading the peer while there are too many."""
        unwritten = self._unwritten[node_id] = self._unwritten.get(node_id, 0) + size
        if not unwritten:
            del self._unwritten[node_id]
        if unwritten > self._unwritten_bytes_max and node_id not in self._held:
            self._held.add(node_id)
            self._hold(node_id, True)
        elif unwritten <= self._unwritten_bytes_max // 4 and node_id in self._held:
            self._held.remove(node_id)
            self._hold(node_id, False)

    def _drop(self, key: tuple[NodeId, int]) -> _Incoming | None:
        incoming = self._incoming.pop(key, None)
        if incoming is not None:
            self.bytes_held -= incoming.size
            del self._by_group[key[0], incoming.begin.group_id]
            self._count_unwritten(key[0], -sum(map(len, incoming.queue)))
            incoming.queue.clear()
        return incoming

    def _say_dropped(self, key: tuple[NodeId, int], incoming: _Incoming, reason: str) -> None:
        if self._dropped_throttle.is_due((key[0], incoming.begin.group_id)):
            log.warning("snapshot_dropped", peer_id=key[0], group_id=incoming.begin.group_id, reason=reason)
