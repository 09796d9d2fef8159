"""Snapshots of states that are larger than memory: from a copied file into a new one, resumed after an interruption."""

import asyncio
import dataclasses
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager

import pytest
from raftmq.broker.base.limits import Limits
from raftmq.broker.peers.codec import FrameType, encode_snapshot_rows
from raftmq.broker.replica import outgoing_snapshots, snapshot_rows, snapshot_sender
from raftmq.broker.replica.initial_state import founder_state, joiner_state
from raftmq.broker.replica.snapshot_rows import StagedRows
from raftmq.fsm.queue.partition import QueuePartition
from raftmq.proto import queue_pb2 as pb
from raftmq.queue_batch import encode, seal_queue_batch
from raftmq.raft.entry import GENESIS, EntryKind, Proposal
from raftmq.raft.membership import Membership, MembershipChange, MembershipOp
from raftmq.raft.progress import ProgressState
from raftmq.storage.memory_log_store import MemoryStagedState
from raftmq.storage.snapshot_spool import SnapshotSpools, SpoolError
from raftmq.storage.staged_state import LmdbStagedState
from raftmq.storage.state_store import location_key

from tests.support.broker.engine_cluster import SLOW_TIMING, EngineCluster, MemoryTransport, state_durable
from tests.support.broker.waiting import until
from tests.support.fsm.queue.host import messages
from tests.support.storage.log_builder import lmdb_store

GROUP = 7
LIMITS = Limits(snapshot_chunk_bytes=4000, snapshot_copy_bytes_min=0)


@asynccontextmanager
async def queue_cluster(tmp_path, limits=LIMITS, timing=SLOW_TIMING):
    """Run a queue with one voter over real files, and a second node without a replica of it."""
    with ExitStack() as stores:

        def make_store(node_id):
            return stores.enter_context(lmdb_store(tmp_path / str(node_id), map_bytes=1 << 30))

        async with EngineCluster(2, limits, timing=timing, make_store=make_store) as cluster:
            cluster.nodes[1].add_queue(GROUP, founder_state(Membership((1,))))
            yield cluster


async def enqueue(cluster, count, batches=1):
    """Enqueue messages with the leader, and write its state back."""
    leader = await cluster.leader(GROUP, among=[1])
    payload = seal_queue_batch(encode(messages(count)), message_count=count)
    for _ in range(batches):
        if leader.refusal_of_writes() is not None:
            await state_durable(cluster.nodes[1].engine, leader)
        await leader.propose([Proposal(EntryKind.DATA, payload, count)])[1]
    await state_durable(cluster.nodes[1].engine, leader)
    return leader


async def add_learner(cluster, leader):
    joiner = cluster.nodes[2].add_queue(GROUP, joiner_state())
    await leader.propose_membership(MembershipChange(((MembershipOp.ADD_LEARNER, 2),)))
    return joiner


def rows_of(cluster, node_id):
    node = cluster.nodes[node_id]
    return list(node.store.state_rows(node.engine.replicas[GROUP].key))


def files_beside(tmp_path, node_id):
    groups = tmp_path / str(node_id) / "groups"
    return sorted(path.name for path in groups.iterdir() if ".new" in path.name or ".copy" in path.name)


async def caught_up(joiner, leader):
    await until(lambda: joiner.state_machine.applied_index >= leader.state_machine.applied_index)


async def test_a_queue_s_snapshot_travels_from_a_copy_into_a_new_file(tmp_path):
    async with queue_cluster(tmp_path) as cluster:
        leader = await enqueue(cluster, 500)
        joiner = await add_learner(cluster, leader)
        await caught_up(joiner, leader)
        sender, receiver = cluster.nodes[1].engine, cluster.nodes[2].engine
        assert (sender.snapshots.copies.made_total, receiver.snapshots.installed_total) == (1, 1)
        assert rows_of(cluster, 1) == rows_of(cluster, 2)
        assert sum(1 for _ in rows_of(cluster, 2)) > 500
        await until(lambda: not files_beside(tmp_path, 2))
        await until(lambda: len(files_beside(tmp_path, 1)) == 1)
        sender.return_snapshot_space(is_short=False)
        assert sender.snapshots.copies.count == 1
        sender.return_snapshot_space(is_short=True)
        await until(lambda: not files_beside(tmp_path, 1))


async def test_appends_are_throttled_while_the_disk_is_behind_with_rows(tmp_path, monkeypatch):
    async with queue_cluster(tmp_path) as cluster:
        leader = await enqueue(cluster, 1)
        assert leader.refusal_of_writes() is None
        monkeypatch.setattr(cluster.nodes[1].engine.write_backs, "is_behind", lambda replica: replica is leader)
        refusal = leader.refusal_of_writes()
        assert refusal is not None
        assert (refusal.code, refusal.detail.retry_after_ms > 0) == (pb.THROTTLED, True)


async def test_an_interrupted_snapshot_goes_on_where_it_ended(tmp_path, monkeypatch):
    """Half of it is on the receiver's disk when the connection is lost. The other half follows on the next one."""
    sent, is_lost = [], []
    send = MemoryTransport.send

    def losing(self, node_id, channel, frame_type, body):
        if frame_type is FrameType.SNAPSHOT_ROWS:
            sent.append(len(body))
            if len(sent) > 10 and not is_lost:
                is_lost.append(True)
                self.cluster.nodes[node_id].engine.on_snapshots_lost(self.node_id)
                return False
        return send(self, node_id, channel, frame_type, body)

    monkeypatch.setattr(MemoryTransport, "send", losing)
    async with queue_cluster(tmp_path) as cluster:
        leader = await enqueue(cluster, 1000)
        joiner = await add_learner(cluster, leader)
        await caught_up(joiner, leader)
        receiver = cluster.nodes[2].engine.receiver
        assert is_lost
        assert receiver.resumed_total == 1
        assert leader.outgoing_snapshots.streamed_rows(2) >= sum(1 for _ in rows_of(cluster, 1)), (
            "a resumed one goes on beyond the rows that were sent before, so that it is not taken for stuck"
        )
        assert cluster.nodes[1].engine.snapshots.copies.made_total == 1
        assert rows_of(cluster, 1) == rows_of(cluster, 2)
        await until(lambda: not files_beside(tmp_path, 2))


async def test_without_room_for_a_copy_the_snapshot_comes_from_the_file(tmp_path):
    async with queue_cluster(tmp_path) as cluster:
        leader = await enqueue(cluster, 300)
        copies = cluster.nodes[1].engine.snapshots.copies
        copies._space = SnapshotSpools(None, memory_bytes=0, files_max=9, spare_bytes=lambda: 0)
        joiner = await add_learner(cluster, leader)
        await caught_up(joiner, leader)
        assert copies.made_total == 0
        assert files_beside(tmp_path, 1) == []
        assert rows_of(cluster, 1) == rows_of(cluster, 2)


async def test_a_snapshot_from_the_file_itself_is_given_up_after_its_time(tmp_path):
    """Its read transaction keeps every page that is freed in the meantime."""
    timing = dataclasses.replace(SLOW_TIMING, snapshot_read_seconds=0.0)
    async with queue_cluster(tmp_path, timing=timing) as cluster:
        leader = await enqueue(cluster, 300)
        engine = cluster.nodes[1].engine
        room = SnapshotSpools(None, memory_bytes=0, files_max=9, spare_bytes=lambda: 0)
        engine.snapshots.copies._space = room
        joiner = await add_learner(cluster, leader)
        await until(lambda: leader.outgoing_snapshots.are_in_progress)
        await until(lambda: not leader.outgoing_snapshots.are_in_progress)
        assert engine.snapshots.sent_total == 0
        state = cluster.nodes[1].store._state(leader.key)
        assert not state._streams, "no transaction stays open"
        room._spare_bytes = lambda: 1 << 40
        await caught_up(joiner, leader)


async def test_a_receiver_that_accepts_nothing_ends_its_snapshot(tmp_path, monkeypatch):
    timing = dataclasses.replace(SLOW_TIMING, snapshot_stalled_seconds=0.01)
    stuck = asyncio.Event()
    drained = MemoryTransport.drained

    async def stalling(self, node_id, channel):
        if not stuck.is_set():
            await asyncio.get_running_loop().create_future()
        return await drained(self, node_id, channel)

    monkeypatch.setattr(MemoryTransport, "drained", stalling)
    async with queue_cluster(tmp_path, timing=timing) as cluster:
        leader = await enqueue(cluster, 300)
        joiner = await add_learner(cluster, leader)
        await until(lambda: leader.outgoing_snapshots.are_in_progress)
        await until(lambda: not leader.outgoing_snapshots.are_in_progress)
        assert cluster.nodes[1].engine.snapshots.sent_total == 0
        stuck.set()
        await caught_up(joiner, leader)


async def test_the_end_of_an_earlier_stream_is_not_taken_for_that_of_the_present_one(tmp_path, monkeypatch):
    """A leader began again in a later term. The end of each stream let the core begin another, which interrupted the one under way: a long
    snapshot that cannot be resumed never arrived.
    """
    monkeypatch.setattr(outgoing_snapshots, "PAUSE_SECONDS", 0.0)
    gates: dict[asyncio.Task[None], asyncio.Event] = {}
    drained = MemoryTransport.drained

    async def gated(self, node_id, channel):
        await gates.setdefault(asyncio.current_task(), asyncio.Event()).wait()
        return await drained(self, node_id, channel)

    monkeypatch.setattr(MemoryTransport, "drained", gated)
    async with queue_cluster(tmp_path) as cluster:
        leader = await enqueue(cluster, 300)
        joiner = await add_learner(cluster, leader)
        await until(lambda: len(gates) == 1)
        leader.core.step_down()
        cluster.nodes[1].engine.mark_dirty(leader)
        await until(lambda: len(gates) == 2)
        earlier, present = gates
        gates[earlier].set()
        await earlier
        assert leader.core.progress[2].state is ProgressState.SNAPSHOT
        assert leader.outgoing_snapshots.streamed_rows(2) == 0, "nobody takes its rows"
        gates[present].set()
        await caught_up(joiner, leader)
        assert len(gates) == 2
        assert not leader.outgoing_snapshots.hold_log(cluster.loop.time(), 60.0)


async def test_a_snapshot_is_known_to_wait_for_the_end_of_others(tmp_path):
    async with queue_cluster(tmp_path, limits=dataclasses.replace(LIMITS, snapshot_streams_max=0)) as cluster:
        leader = await enqueue(cluster, 10)
        await add_learner(cluster, leader)
        await until(lambda: leader.outgoing_snapshots.is_waiting(cluster.loop.time()))
        assert not leader.outgoing_snapshots.are_in_progress


async def test_a_snapshot_is_known_to_wait_for_the_pace(tmp_path):
    async with queue_cluster(tmp_path) as cluster:
        leader = await enqueue(cluster, 10)
        pace = cluster.nodes[1].engine.copy_pace
        pace.set_rate(1000)
        pace.spend(1 << 30)
        joiner = await add_learner(cluster, leader)
        await until(lambda: leader.outgoing_snapshots.is_waiting(cluster.loop.time()))
        pace.set_rate(0)
        await caught_up(joiner, leader)
        assert not leader.outgoing_snapshots.is_waiting(cluster.loop.time())


async def test_a_damaged_copy_quarantines_nobody(tmp_path, monkeypatch):
    """The file itself is intact, so the snapshot comes from there."""
    async with queue_cluster(tmp_path) as cluster:
        leader = await enqueue(cluster, 300)
        store = cluster.nodes[1].store
        copy_state = store.copy_state

        def damaged(key):
            copy = copy_state(key)
            content = copy.path.read_bytes()
            key, value = next(iter(copy.rows_from(location_key(0, 100))))
            assert content.count(key + value) == 1
            copy.path.write_bytes(content.replace(key + value, key + bytes(len(value))))
            return copy

        monkeypatch.setattr(store, "copy_state", damaged)
        joiner = await add_learner(cluster, leader)
        await caught_up(joiner, leader)
        assert cluster.nodes[1].broken == []
        assert rows_of(cluster, 1) == rows_of(cluster, 2)


@pytest.mark.slow
@pytest.mark.long
async def test_a_snapshot_of_many_messages_is_never_in_memory(tmp_path, monkeypatch):
    """Counts bytes of chunks and rows that are held at the same time, on both sides, and the rows that the machine reads."""
    limits = dataclasses.replace(LIMITS, snapshot_chunk_bytes=64 * 1024, snapshot_unwritten_bytes_max=512 * 1024)
    chunks, transactions, restored, held = [], [], [], []
    take, put, restore = snapshot_sender._take, LmdbStagedState.put, QueuePartition.restore

    def recording_take(rows, bytes_max):
        chunk = take(rows, bytes_max)
        chunks.append(sum(len(key) + len(value) for key, value in chunk))
        return chunk

    def recording_put(self, rows):
        transactions.append(sum(len(key) + len(value) for key, value in rows))
        put(self, rows)

    def counted(rows):
        for row in rows:
            restored.append(len(row[1]))
            yield row

    monkeypatch.setattr(snapshot_sender, "_take", recording_take)
    monkeypatch.setattr(LmdbStagedState, "put", recording_put)
    monkeypatch.setattr(QueuePartition, "restore", lambda self, rows, at: restore(self, counted(rows), at))
    async with queue_cluster(tmp_path, limits) as cluster:
        leader = await enqueue(cluster, 1000, batches=200)
        assert leader.state_machine.applied_index > 200
        receiver = cluster.nodes[2].engine.receiver
        count = receiver._count
        receiver._count = lambda key, size: (count(key, size), held.append(receiver.bytes_held))
        joiner = await add_learner(cluster, leader)
        restored.clear()
        await caught_up(joiner, leader)
        rows = sum(1 for _ in cluster.nodes[2].store.state_rows(joiner.key))
        assert rows > 200_000
        assert sum(transactions) > 10 << 20
        largest_row = 1000
        assert max(chunks) <= limits.snapshot_chunk_bytes + largest_row
        assert max(transactions) <= limits.snapshot_chunk_bytes + largest_row
        assert max(held) <= limits.snapshot_unwritten_bytes_max + 2 * limits.snapshot_chunk_bytes
        assert len(restored) < 100, "the machine reads the resident rows, and nothing for each message"


def test_a_frame_s_rows_are_kept_once(tmp_path):
    """Rows that come again after a resumption, or out of order, are not counted."""

    with ThreadPoolExecutor(1) as threads:
        spools = SnapshotSpools(None, memory_bytes=0, files_max=3)
        rows = StagedRows(lambda: MemoryStagedState(GENESIS), spools, threads.submit)
        for keys in (b"abc", b"bcd", b"da", b"e"):
            items = [(bytes([key]), b"value") for key in keys]
            rows.take(b"".join(map(bytes, encode_snapshot_rows(1, items))))
        assert (len(rows), rows.last_key, [key for key, _ in rows]) == (5, b"e", [b"a", b"b", b"c", b"d", b"e"])
        assert spools.files == snapshot_rows.STAGED_FILES
        assert spools.disk_bytes > 0
        del rows
        assert (spools.files, spools.disk_bytes) == (0, 0)


def test_rows_are_given_up_after_the_threads_have_ended():
    """At the end of the process the loop or the threads may be gone before the last reference is."""

    def run_soon(function):
        raise RuntimeError("Event loop is closed")

    states = []

    def stage():
        states.append(MemoryStagedState(GENESIS))
        return states[0]

    spools = SnapshotSpools(None, memory_bytes=0, files_max=3)
    rows = StagedRows(stage, spools, run_soon)
    rows.take(b"".join(map(bytes, encode_snapshot_rows(1, [(b"key", b"value")]))))
    assert [key for key, _ in rows] == [b"key"]
    del rows
    assert list(states[0].rows([(b"", None)])) == []
    assert spools.files == 0


def test_more_files_than_the_limit_are_refused_before_one_is_opened():
    opened = []

    def stage():
        opened.append(True)
        return MemoryStagedState(GENESIS)

    rows = StagedRows(stage, SnapshotSpools(None, memory_bytes=0, files_max=2), lambda function: None)
    with pytest.raises(SpoolError):
        rows.take(b"".join(map(bytes, encode_snapshot_rows(1, [(b"key", b"value")]))))
    assert opened == []
