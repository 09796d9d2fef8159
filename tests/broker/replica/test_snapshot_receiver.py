"""Snapshot streams are collected on disk, within a bounded amount of memory."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from raftmq.broker.base.limits import Limits
from raftmq.broker.peers import codec
from raftmq.broker.peers.codec import FrameError, FrameType, encode_snapshot_begin, encode_snapshot_rows
from raftmq.broker.replica import snapshot_receiver
from raftmq.broker.replica.snapshot_receiver import STREAM_BYTES, SnapshotReceiver
from raftmq.broker.replica.snapshot_rows import SnapshotRows
from raftmq.raft.entry import EntryKind, LogPosition, Proposal
from raftmq.raft.membership import Membership, MembershipChange, MembershipOp
from raftmq.raft.messages import InstallSnapshot, SnapshotMeta
from raftmq.storage.snapshot_spool import SnapshotSpool, SnapshotSpools, SpoolError

from tests.support.broker.engine_cluster import EngineCluster, MemoryTransport, next_progress, state_durable
from tests.support.broker.harness import batch
from tests.support.broker.imaginary_leader import snapshot
from tests.support.broker.waiting import turn_until

MIB = 1024 * 1024


class Receiver:
    """A receiver with its own threads and directory, and its results."""

    def __init__(
        self, directory: Path | None, *, files_max: int = 8, spare_bytes: int = 1 << 40, **limits: int
    ) -> None:
        self.threads = ThreadPoolExecutor(2)
        self.whole: dict[tuple[int, int], list[tuple[bytes, bytes]]] = {}
        self.messages: list[SnapshotRows] = []
        self.is_held: dict[int, bool] = {}
        self.spools = SnapshotSpools(
            directory, memory_bytes=1000, files_max=files_max, disk_bytes_min=MIB, spare_bytes=lambda: spare_bytes
        )
        self.receiver = SnapshotReceiver(
            asyncio.get_running_loop(),
            self.threads,
            Limits(**limits),
            self.spools,
            self._on_whole,
            self.is_held.__setitem__,
        )

    def _on_whole(self, node_id: int, begin: codec.SnapshotBegin) -> None:
        rows = begin.message.data
        assert isinstance(rows, SnapshotRows)
        self.messages.append(rows)
        self.whole[node_id, begin.group_id] = list(rows)

    def begin(self, node_id: int, stream_id: int, group_id: int, membership: Membership | None = None) -> None:
        meta = SnapshotMeta(LogPosition(5, 1, 0, 0), 5, membership or Membership((1, 2)))
        parts = codec.encode_snapshot_begin(stream_id, group_id, InstallSnapshot(1, 2, 3, meta, []))
        self.receiver.on_frame(node_id, FrameType.SNAPSHOT_BEGIN, memoryview(b"".join(parts)))

    def rows(self, node_id: int, stream_id: int, *items: tuple[bytes, bytes]) -> None:
        parts = codec.encode_snapshot_rows(stream_id, list(items))
        self.receiver.on_frame(node_id, FrameType.SNAPSHOT_ROWS, memoryview(b"".join(parts)))

    def end(self, node_id: int, stream_id: int, count: int) -> None:
        parts = codec.encode_snapshot_end(stream_id, count)
        self.receiver.on_frame(node_id, FrameType.SNAPSHOT_END, memoryview(b"".join(parts)))

    async def settle(self) -> None:
        """Wait until nothing is being written."""
        async with asyncio.timeout(10):
            while self.receiver._unwritten:
                await asyncio.sleep(0.001)
            await asyncio.sleep(0)


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Callable[..., Receiver]]:
    made: list[Receiver] = []

    def receiver(*, on_disk: bool = True, **limits: int) -> Receiver:
        made.append(Receiver(tmp_path if on_disk else None, **limits))
        return made[-1]

    yield receiver
    for one in made:
        one.threads.shutdown()


Make = Callable[..., Receiver]


@pytest.mark.parametrize("on_disk", [True, False])
async def test_a_complete_stream_releases_its_budget(make: Make, on_disk: bool) -> None:
    one = make(on_disk=on_disk)
    rows = [(b"a", b"1"), (b"b", bytes(5000)), (b"c", b""), (b"d", bytes(700))]
    one.begin(2, 1, 7)
    one.rows(2, 1, rows[0])
    one.rows(2, 1, *rows[1:3])
    one.rows(2, 1, rows[3])
    one.end(2, 1, 4)
    await one.settle()
    assert one.whole == {(2, 7): rows}
    assert list(one.messages[0]) == rows, "they can be read again"
    assert one.receiver.bytes_held == 0
    assert one.spools.files == (1 if on_disk else 0)
    one.messages.clear()
    gc.collect()
    assert (one.spools.files, one.spools.disk_bytes) == (0, 0), "a message that the core dropped leaves nothing behind"
    one.end(2, 1, 4)
    assert len(one.whole) == 1


async def test_a_snapshot_larger_than_the_memory_for_snapshots_arrives(make: Make) -> None:
    """The disk, not the memory, bounds the size of a snapshot."""
    one = make(snapshot_memory_bytes_max=2 * MIB, snapshot_unwritten_bytes_max=MIB // 2)
    chunk = [(b"key-%06d" % number, bytes(250)) for number in range(1000)]
    one.begin(2, 1, 7)
    tracemalloc.start()
    try:
        for _ in range(40):
            one.rows(2, 1, *chunk)
            while one.is_held.get(2):
                await asyncio.sleep(0.001)
        one.receiver._on_whole = lambda node_id, begin: one.messages.append(begin.message.data)
        one.end(2, 1, 40_000)
        await one.settle()
        count = sum(1 for _ in one.messages[0])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == 40_000
    assert one.spools.disk_bytes > 10 * MIB
    assert peak < 6 * MIB


async def test_a_peer_that_sends_faster_than_the_disk_writes_is_paused(make: Make) -> None:
    one = make(snapshot_unwritten_bytes_max=MIB)
    may_write = threading.Event()
    for _ in range(2):
        one.threads.submit(may_write.wait)
    one.begin(2, 1, 7)
    one.rows(2, 1, (b"k", bytes(MIB // 2)))
    assert one.is_held == {}
    one.rows(2, 1, (b"l", bytes(MIB)))
    assert one.is_held == {2: True}
    may_write.set()
    await one.settle()
    assert one.is_held == {2: False}


async def test_a_paused_peer_is_resumed_when_its_control_channel_ends(make: Make) -> None:
    one = make(snapshot_unwritten_bytes_max=MIB)
    may_write = threading.Event()
    for _ in range(2):
        one.threads.submit(may_write.wait)
    try:
        one.begin(2, 1, 7)
        one.rows(2, 1, (b"k", bytes(MIB // 2)))
        one.rows(2, 1, (b"l", bytes(MIB)))
        assert one.is_held == {2: True}
        one.receiver.forget_peer(2)  # the control channel ended, but the paused connection is still there
        assert one.is_held == {2: False}
    finally:
        may_write.set()
    await one.settle()
    one.begin(2, 2, 7)
    one.rows(2, 2, (b"k", b"v"))
    one.end(2, 2, 1)
    async with asyncio.timeout(10):
        while not one.whole:
            await asyncio.sleep(0.001)
    assert one.whole == {(2, 7): [(b"k", b"v")]}


async def test_a_stream_id_reused_by_another_group_releases_its_budget(make: Make) -> None:
    """If it stayed counted, no snapshot could arrive after enough of them."""
    one = make(snapshot_memory_bytes_max=8 * MIB)
    for group_id in range(20):
        one.begin(2, 1, group_id)
        one.rows(2, 1, (b"k", bytes(MIB // 4)))
    await one.settle()
    one.begin(3, 1, 7)
    one.rows(3, 1, (b"k", bytes(MIB // 3)))
    one.end(3, 1, 1)
    await one.settle()
    assert list(one.whole) == [(3, 7)]
    one.receiver.forget_peer(2)
    assert one.receiver.bytes_held == 0


async def test_a_new_stream_of_a_group_replaces_the_previous_one(make: Make) -> None:
    one = make()
    one.begin(2, 1, 7)
    one.rows(2, 1, (b"old", b""))
    one.begin(2, 2, 7)
    one.end(2, 1, 1)
    one.rows(2, 2, (b"new", b""))
    one.end(2, 2, 1)
    await one.settle()
    assert one.whole == {(2, 7): [(b"new", b"")]}
    assert one.receiver.bytes_held == 0


async def test_two_senders_of_a_group_are_not_mixed(make: Make) -> None:
    one = make()
    for node_id in (2, 3):
        one.begin(node_id, 1, 7)
    for node_id in (2, 3, 2, 3):
        one.rows(node_id, 1, (b"%d" % node_id, bytes(900)))
    for node_id in (2, 3):
        one.end(node_id, 1, 2)
    await one.settle()
    assert one.whole == {(node_id, 7): [(b"%d" % node_id, bytes(900))] * 2 for node_id in (2, 3)}


async def test_a_wrong_count_and_malformed_rows_end_a_stream(make: Make) -> None:
    one = make()
    one.begin(2, 1, 7)
    one.rows(2, 1, (b"k", b"v"))
    one.end(2, 1, 2)
    one.begin(2, 2, 8)
    malformed = codec._COUNTER.pack(2) + b"\xff" * 30
    one.receiver.on_frame(2, FrameType.SNAPSHOT_ROWS, memoryview(malformed))
    one.end(2, 2, 0)
    await one.settle()
    assert one.whole == {}
    assert one.receiver.bytes_held == 0
    with pytest.raises(FrameError):
        one.receiver.on_frame(2, FrameType.SNAPSHOT_ROWS, memoryview(b"short"))


async def test_a_complete_stream_survives_its_connection(make: Make) -> None:
    one = make()
    for stream_id in (1, 2):
        one.begin(2, stream_id, 6 + stream_id)
        one.rows(2, stream_id, (b"k", b"v"))
    one.end(2, 1, 1)
    one.receiver.forget_peer(2)
    await one.settle()
    assert list(one.whole) == [(2, 7)]


async def test_the_longest_idle_stream_is_evicted(make: Make) -> None:
    """If the stream that needs the memory were dropped, half a snapshot would block all others."""
    one = make(on_disk=False, snapshot_memory_bytes_max=MIB)
    for node_id in (2, 3, 4):
        one.begin(node_id, 1, 7)
        one.rows(node_id, 1, (b"k", bytes(MIB // 4)))
    await one.settle()
    one.rows(2, 1, (b"l", b""))
    one.rows(4, 1, (b"l", bytes(MIB // 2 - 20_000)))
    await one.settle()
    for node_id, count in ((3, 1), (2, 2), (4, 2)):
        one.end(node_id, 1, count)
    await one.settle()
    assert sorted(one.whole) == [(2, 7), (4, 7)]


async def test_an_idle_stream_does_not_block_a_spool_file(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_receiver, "STOOD_STILL_SECONDS", 0.02)
    one = make(files_max=1)
    one.begin(2, 1, 7)
    one.rows(2, 1, (b"k", bytes(5000)))
    await one.settle()
    await asyncio.sleep(0.05)
    for stream_id in (1, 2):  # the first attempt finds no file and frees one
        one.begin(3, stream_id, 7)
        one.rows(3, stream_id, (b"k", bytes(5000)))
        one.end(3, stream_id, 1)
        await one.settle()
        gc.collect()
    assert list(one.whole) == [(3, 7)]


async def test_a_full_disk_refuses_a_snapshot_and_keeps_nothing_of_it(make: Make) -> None:
    one = make(spare_bytes=100)
    for stream_id, size in ((1, MIB // 2), (2, 2 * MIB)):
        one.begin(2, stream_id, stream_id)
        one.rows(2, stream_id, (b"k", bytes(size)))
        one.end(2, stream_id, 1)
        await one.settle()
    assert list(one.whole) == [(2, 1)], "a small snapshot is accepted however full the disk is"
    one.messages.clear()
    gc.collect()
    assert (one.spools.files, one.spools.disk_bytes) == (0, 0)


def test_spooled_rows_damaged_on_disk_are_detected(tmp_path: Path) -> None:
    spool = SnapshotSpools(tmp_path, memory_bytes=0, files_max=1).new()
    spool.append(b"one")
    spool.append(b"another")
    assert list(spool.chunks()) == [b"one", b"another"]
    assert list(tmp_path.iterdir()) == [], "a killed process leaves nothing behind"
    assert spool._file is not None
    os.pwrite(spool._file.number, b"X", 8)
    with pytest.raises(SpoolError, match="does not read back"):
        list(spool.chunks())


def _numbers() -> Iterator[int]:
    yield from range(120)


async def test_streams_without_rows_are_bounded_too(make: Make) -> None:
    """A BEGIN without rows counted nothing, however many members it named."""
    one = make(snapshot_memory_bytes_max=4 * MIB)
    members = Membership(tuple(range(1000, 3000)))
    gc.collect()
    tracemalloc.start()
    try:
        for number in _numbers():
            one.begin(2, number, number, members)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 5 * MIB
    few = make(snapshot_memory_bytes_max=4 * MIB)
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(2000):
            few.begin(2, number, number)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 5 * MIB
    assert len(few.receiver._incoming) <= 4 * MIB // STREAM_BYTES
    assert len(few.receiver._by_group) == len(few.receiver._incoming)


def test_a_spool_ended_by_the_collector_does_not_block_another_write(tmp_path: Path) -> None:
    """The collector may end it on any thread, also on one that is just counting the bytes that it writes."""
    lost: list[SnapshotSpool] = []

    def spare_bytes() -> int:
        lost.clear()  # as the collector does
        return 1 << 40

    spools = SnapshotSpools(tmp_path, memory_bytes=100, files_max=8, spare_bytes=spare_bytes)
    one = spools.new()
    one.append(bytes(1000))
    lost.append(one)
    del one
    kept = spools.new()
    writing = threading.Thread(target=kept.append, args=(bytes(2000),), daemon=True)
    writing.start()
    writing.join(timeout=5)
    assert not writing.is_alive()
    assert spools.files == 1
    assert 2000 < spools.disk_bytes < 3000
    kept.close()
    assert (spools.files, spools.disk_bytes) == (0, 0)


async def test_snapshots_of_a_lost_peer_release_their_memory():
    async with EngineCluster(limits=Limits(snapshot_memory_bytes_max=14_000)) as cluster:
        engine = cluster.nodes[1].engine

        def frames(node_id, stream_id):
            begin = encode_snapshot_begin(stream_id, stream_id, snapshot(20, []))
            rows = encode_snapshot_rows(stream_id, [(b"k", b"v" * 6000)])
            for frame_type, parts in ((FrameType.SNAPSHOT_BEGIN, begin), (FrameType.SNAPSHOT_ROWS, rows)):
                engine.on_frame(node_id, frame_type, memoryview(b"".join(map(bytes, parts))))

        frames(2, 1)
        engine.on_peer_down(2)
        await turn_until(lambda: engine.receiver.bytes_held == 0)
        frames(3, 2)
        assert list(engine.receiver._incoming) == [(3, 2)]
        engine.on_snapshots_lost(3)
        await turn_until(lambda: engine.receiver.bytes_held == 0)


async def test_a_snapshot_travels_in_bounded_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """aioraft-ng sent a whole snapshot in one gRPC message, which failed beyond 4 MiB."""
    limits = Limits(snapshot_chunk_bytes=1000)
    sizes: list[int] = []
    send = MemoryTransport.send

    def recording(self, node_id, channel, frame_type, body):
        if frame_type is FrameType.SNAPSHOT_ROWS:
            sizes.append(sum(len(part) for part in body))
        return send(self, node_id, channel, frame_type, body)

    monkeypatch.setattr(MemoryTransport, "send", recording)
    async with EngineCluster(4, limits=limits) as cluster:
        cluster.create_group(7)
        leader = await cluster.leader(7)
        for producer in range(1, 201):  # a row of state each
            leader.propose([Proposal(EntryKind.DATA, batch(1, producer=producer), 1)])
        await leader.propose([Proposal(EntryKind.DATA, batch(1, producer=201), 1)])[1]
        await state_durable(cluster.nodes[leader.replica_id].engine, leader)
        joiner = cluster.add_empty(7, 4)
        await leader.propose_membership(MembershipChange(((MembershipOp.ADD_LEARNER, 4),)))
        while joiner.state_machine.next_offset < 201:
            await next_progress([joiner])
        assert tuple(joiner.state_machine.rows()) == tuple(leader.state_machine.rows())
    assert len(sizes) > 5
    largest_row = 200
    assert max(sizes) <= limits.snapshot_chunk_bytes + largest_row
