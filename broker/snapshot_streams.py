"""Snapshots on their way: rows read from one transaction in a thread, sent in chunks on a channel of their own, and put
together on the other side before the core sees them.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from itertools import count
from typing import Final

import structlog
from raftmq.broker.group import Group
from raftmq.broker.limits import Limits
from raftmq.broker.peer_codec import (
    FrameError,
    FrameType,
    Parts,
    SnapshotBegin,
    decode_snapshot_begin,
    decode_snapshot_end,
    decode_snapshot_rows,
    encode_snapshot_begin,
    encode_snapshot_end,
    encode_snapshot_rows,
)
from raftmq.broker.peer_protocol import Channel, Transport
from raftmq.fsm.state_machine import StateMachine
from raftmq.raft.messages import InstallSnapshot, SnapshotMeta
from raftmq.storage.errors import DamagedReplicaError, LogRangeError, ReplicaClosedError, StorageUnavailableError
from raftmq.storage.log_store import LogStore
from raftmq.storage.row_stream import ClosableRows
from raftmq.types import METADATA_GROUP_ID, GroupId, NodeId, ReplicaId

log = structlog.get_logger(__name__)

Row = tuple[bytes, bytes]

ROW_BYTES: Final = 136
"""Of a row beside its key and value: two `bytes`, a tuple, a place in a list."""
STREAM_BYTES: Final = 2048
"""Of a stream without members and rows."""
MEMBER_BYTES_FACTOR: Final = 5
"""A replica id has 8 bytes on the wire; here 32 and a place in a tuple."""


class SnapshotSender:
    """Streams snapshots, a bounded number at once."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        transport: Transport,
        store: LogStore,
        readers: Executor,
        limits: Limits,
        on_streamed: Callable[[Group[StateMachine], ReplicaId, bool], None],
        on_damage: Callable[[Group[StateMachine], Exception], None],
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
        """Snapshots being sent now."""
        return len(self._tasks)

    def is_full(self, group_id: GroupId) -> bool:
        """Whether a new stream would have to wait (metadata never does)."""
        return group_id != METADATA_GROUP_ID and len(self._tasks) >= self._limits.snapshot_streams_max

    def start(self, group: Group[StateMachine], node_id: NodeId, message: InstallSnapshot) -> None:
        """Stream the group's durable state to a replica on `node_id`; `on_streamed` tells how it ended."""
        task = self._loop.create_task(self._run(group, node_id, message))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, group: Group[StateMachine], node_id: NodeId, message: InstallSnapshot) -> None:
        is_sent = False
        try:
            is_sent = await self._stream(group, node_id, message)
        except DamagedReplicaError as error:
            self._on_damage(group, error)
        except (LogRangeError, ReplicaClosedError, StorageUnavailableError) as error:
            log.info("snapshot_not_sent", group_id=group.group_id, reason=str(error))
        finally:
            self._on_streamed(group, message.target, is_sent)

    async def _stream(self, group: Group[StateMachine], node_id: NodeId, message: InstallSnapshot) -> bool:
        state_index, membership, rows = await self._loop.run_in_executor(self._readers, self._store.snapshot, group.key)
        try:
            return await self._stream_rows(
                group, node_id, message, SnapshotMeta(group.log_start, state_index, membership), rows
            )
        finally:
            rows.close()  # an open read transaction keeps every page that is freed after it

    async def _stream_rows(
        self,
        group: Group[StateMachine],
        node_id: NodeId,
        message: InstallSnapshot,
        meta: SnapshotMeta,
        rows: ClosableRows,
    ) -> bool:
        state_index = meta.state_index
        if group.group_id == METADATA_GROUP_ID:
            position_at_state = group.position_of(state_index)
            if position_at_state is None:
                return False
            meta = dataclasses.replace(meta, position=position_at_state)
        stream_id = next(self._ids)
        begin = dataclasses.replace(message, meta=meta, data=None)
        if not await self._send(
            node_id, FrameType.SNAPSHOT_BEGIN, encode_snapshot_begin(stream_id, group.group_id, begin)
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
            "snapshot_sent", group_id=group.group_id, peer_id=node_id, index=meta.position.index,
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


class _Assembly:
    __slots__ = ("begin", "rows", "size")

    def __init__(self, begin: SnapshotBegin, size: int) -> None:
        self.begin = begin
        self.rows: list[Row] = []
        self.size = size
        """What it holds in memory, which for small rows is many times what came over the wire."""


class SnapshotReceiver:
    """Puts streams together; per peer one stream a group, the newest wins. Bounded in bytes over all of them: the stream
    that has stood still for longest makes room, so that one that nobody finishes is not in the way of others.

    Invariant: `bytes_held` is the sum of the sizes of the streams that are held.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.bytes_held = 0
        """Of all unfinished streams."""
        self._assemblies: dict[tuple[NodeId, int], _Assembly] = {}
        """In the order of their last frame."""
        self._by_group: dict[tuple[NodeId, GroupId], tuple[NodeId, int]] = {}
        """The one stream of a peer and a group: a flood of beginnings must not look through all of them each time."""

    def on_frame(self, node_id: NodeId, frame_type: FrameType, body: memoryview) -> SnapshotBegin | None:
        """Take a frame in; the whole snapshot when this was its last."""
        if frame_type is FrameType.SNAPSHOT_BEGIN:
            self._begin(node_id, decode_snapshot_begin(body), len(body))
            return None
        if frame_type is FrameType.SNAPSHOT_ROWS:
            stream_id, rows = decode_snapshot_rows(body)
            self._extend((node_id, stream_id), rows, len(body))
            return None
        stream_id, row_count = decode_snapshot_end(body)
        assembly = self._drop((node_id, stream_id))
        if assembly is None:
            return None
        if row_count != len(assembly.rows):
            raise FrameError(f"a snapshot of {row_count} rows came with {len(assembly.rows)}")
        message = dataclasses.replace(assembly.begin.message, data=assembly.rows)
        return assembly.begin._replace(message=message)

    def forget_peer(self, node_id: NodeId) -> None:
        """The peer's connection is gone: its unfinished streams will not be finished."""
        for key in [key for key in self._assemblies if key[0] == node_id]:
            self._drop(key)

    def _begin(self, node_id: NodeId, begin: SnapshotBegin, wire_bytes: int) -> None:
        before = self._by_group.get((node_id, begin.group_id))
        if before is not None:
            self._drop(before)
        key = (node_id, begin.stream_id)
        self._drop(key)  # a stream of another group has the id: it was not finished and never will be
        self._assemblies[key] = _Assembly(begin, 0)
        self._by_group[node_id, begin.group_id] = key
        self._hold(key, STREAM_BYTES + MEMBER_BYTES_FACTOR * wire_bytes)

    def _extend(self, key: tuple[NodeId, int], rows: list[Row], wire_bytes: int) -> None:
        assembly = self._assemblies.pop(key, None)
        if assembly is None:
            return
        self._assemblies[key] = assembly  # at the end
        assembly.rows.extend(rows)
        self._hold(key, wire_bytes + ROW_BYTES * len(rows))

    def _hold(self, key: tuple[NodeId, int], size: int) -> None:
        """Count what a stream took, and make room for it."""
        self._assemblies[key].size += size
        self.bytes_held += size
        while self.bytes_held > self._bytes_max:
            longest = next(iter(self._assemblies))
            dropped = self._drop(longest)
            assert dropped is not None
            log.warning(
                "snapshot_dropped", peer_id=longest[0], group_id=dropped.begin.group_id,
                reason="too large" if longest == key else "stood still, and another needs the room",
            )  # fmt: skip

    def _drop(self, key: tuple[NodeId, int]) -> _Assembly | None:
        assembly = self._assemblies.pop(key, None)
        if assembly is not None:
            self.bytes_held -= assembly.size
            del self._by_group[key[0], assembly.begin.group_id]
        return assembly
