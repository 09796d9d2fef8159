"""Receive snapshots from other nodes.

Rows go to disk until the snapshot is complete and the core sees it: frames into a spool, or rows of a large state into the file that will
replace the replica's. Only a few chunks are in memory. `snapshot_sender` is the other side.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final

import structlog
from raftmq.broker.base.limits import Limits
from raftmq.broker.base.log_throttle import LogThrottle
from raftmq.broker.peers.codec import (
    FrameError,
    FrameType,
    Parts,
    SnapshotBegin,
    SnapshotResume,
    decode_snapshot_begin,
    decode_snapshot_end,
    encode_snapshot_resume,
    snapshot_stream_of,
)
from raftmq.broker.replica.parked_snapshots import ParkedSnapshots
from raftmq.broker.replica.snapshot_rows import ReceivedRows, SnapshotRows, StagedRows
from raftmq.storage.snapshot_spool import SnapshotSpools
from raftmq.types import GroupId, NodeId

log = structlog.get_logger(__name__)

CHUNK_BYTES: Final = 256
"""Memory of a queued frame beside its bytes."""
STREAM_BYTES: Final = 4096
"""Memory of a stream without members and rows."""
STOOD_STILL_SECONDS: Final = 10.0
"""A stream without a frame for this long is evicted when another one needs its budget."""
MEMBER_BYTES_FACTOR: Final = 5
"""A replica id has 8 bytes on the wire, but 32 and a reference in a tuple here."""


def memory_spools(limits: Limits) -> SnapshotSpools:
    """Return spools without a disk, for the simulator and tests."""
    return SnapshotSpools(
        None, memory_bytes=limits.snapshot_spool_memory_bytes, files_max=limits.snapshot_spool_files_max
    )


class _Incoming:
    """An incomplete stream."""

    __slots__ = ("begin", "count", "is_finished", "is_lost", "is_writing", "moved_at", "queue", "rows", "size")

    def __init__(self, begin: SnapshotBegin, rows: ReceivedRows) -> None:
        self.begin = begin
        self.rows = rows
        self.is_finished = not isinstance(rows, StagedRows)
        """Whether all rows are on disk, as far as they must be before the core sees the snapshot."""
        self.is_lost = False
        """Whether the stream was interrupted while a frame was being written. Its rows are parked afterwards."""
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
    """Keeps the rows of streams until they are complete. Each peer has one stream for a group, the newest.

    Threads write rows to disk, so a snapshot may be as large as the disk. The bytes that are not spooled yet are bounded. A peer
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
        stage: Callable[[SnapshotBegin], StagedRows | None] = lambda begin: None,
        resume: Callable[[NodeId, Parts], None] = lambda node_id, body: None,
        parked: ParkedSnapshots | None = None,
    ) -> None:
        """Take what the receiver calls.

        Args:
            loop: The event loop.
            threads: Write the rows.
            limits: Bounds of memory.
            spools: Budget of files and disk space.
            on_whole: Called with each complete snapshot.
            hold: Pauses and resumes reading a peer's snapshots.
            stage: Returns a file for the rows of a snapshot, or None if they are to be spooled.
            resume: Sends a SNAPSHOT_RESUME frame.
            parked: Keeps interrupted snapshots. None: they start again.
        """
        self._loop = loop
        self._threads = threads
        self._bytes_max = limits.snapshot_memory_bytes_max
        self._unwritten_bytes_max = limits.snapshot_unwritten_bytes_max
        self._spools = spools
        self._on_whole = on_whole
        self._hold = hold
        self._stage = stage
        self._resume = resume
        self._parked = parked
        self.resumed_total = 0
        """Streams that went on where an earlier one was interrupted."""
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
            self._interrupt(key)

    def forget_group(self, group_id: GroupId) -> None:
        """Drop the interrupted snapshot of a group whose replica has gone."""
        if self._parked is not None:
            self._parked.forget(group_id)

    def drop_parked(self) -> None:
        """Drop all interrupted snapshots, because the disk is short."""
        if self._parked is not None:
            self._parked.clear()

    def _begin(self, node_id: NodeId, begin: SnapshotBegin, wire_bytes: int) -> None:
        before = self._by_group.get((node_id, begin.group_id))
        if before is not None:
            self._interrupt(before)
        key = (node_id, begin.stream_id)
        self._drop(key)  # a stream of another group has this id: it was not finished and never will be
        self._incoming[key] = _Incoming(begin, self._rows_for(node_id, begin))
        self._by_group[node_id, begin.group_id] = key
        self._count(key, STREAM_BYTES + MEMBER_BYTES_FACTOR * wire_bytes)

    def _rows_for(self, node_id: NodeId, begin: SnapshotBegin) -> ReceivedRows:
        """Return the rows of an earlier stream of the same snapshot, or no rows yet."""
        parked = self._parked.take(begin) if self._parked is not None else None
        if parked is not None:
            self.resumed_total += 1
            log.info("snapshot_resumed", group_id=begin.group_id, peer_id=node_id, rows=len(parked))
            resume = SnapshotResume(begin.stream_id, begin.snapshot_id, len(parked), parked.last_key)
            self._resume(node_id, encode_snapshot_resume(resume))
            return parked
        staged = self._stage(begin)
        return SnapshotRows(self._spools.new()) if staged is None else staged

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
        elif incoming.count is not None and not incoming.is_finished:
            assert isinstance(incoming.rows, StagedRows)
            incoming.is_finished = incoming.is_writing = True
            self.bytes_held += CHUNK_BYTES
            future = self._loop.run_in_executor(self._threads, incoming.rows.finish)
            future.add_done_callback(lambda done: self._on_kept(key, incoming, 0, 0, done))
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
            if incoming.is_lost and error is None and not done.cancelled():
                self._park(incoming)
            return
        if error is not None:
            self._fail(key, error)
            return
        self._count(key, incoming.rows.memory_bytes - before)
        if self._incoming.get(key) is incoming:
            self._go_on(key, incoming)

    def _interrupt(self, key: tuple[NodeId, int]) -> None:
        """Drop a stream that may be resumed."""
        incoming = self._drop(key)
        if incoming is not None:
            incoming.is_lost = incoming.is_writing
            if not incoming.is_writing:
                self._park(incoming)

    def _park(self, incoming: _Incoming) -> None:
        if self._parked is not None and isinstance(incoming.rows, StagedRows):
            self._parked.put(incoming.begin, incoming.rows)

    def _finish(self, key: tuple[NodeId, int], incoming: _Incoming) -> None:
        self._drop(key)
        self.forget_group(incoming.begin.group_id)
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
            dropped = self._incoming[longest]
            self._interrupt(longest)
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
