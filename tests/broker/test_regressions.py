"""Defects that reviews found in other Python Raft libraries, and that must not be ours. Each test names one.

The defects of the protocol itself are in `tests/raft/test_regressions.py`; these are of the shell around it.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from raftmq.broker.base.limits import Limits
from raftmq.broker.cluster.reconciler import Reconciler
from raftmq.broker.partitions.appends import PartitionAppends
from raftmq.broker.peers.codec import FrameError, FrameType
from raftmq.broker.replica.engine import Engine
from raftmq.broker.replica.initial_state import founder_state
from raftmq.broker.replica.replica import Replica
from raftmq.raft.core import RaftCore
from raftmq.raft.entry import Entry, EntryKind, Proposal
from raftmq.raft.hard_state import HardState
from raftmq.raft.membership import Membership, MembershipChange, MembershipOp
from raftmq.storage.lmdb_log_store import LmdbLogStore
from raftmq.storage.log_store import ReplicaKey, Update
from raftmq.storage.writer_threads import WriterThreads

from tests.support.broker.engine_cluster import EngineCluster, MemoryTransport, next_progress, state_durable
from tests.support.broker.harness import batch, running

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("api", "assignors", "broker", "cli", "client", "fsm", "raft", "storage")


# ------------------------------------------------------------------------------------------ cancellation swallowed


async def test_a_cancelled_wait_is_cancelled_and_undoes_nothing() -> None:
    """aioraft-ng caught CancelledError with everything else: a cancelled call went on as if it had been answered."""
    async with running() as node:
        topic = await node.topic()
        node.hold_commits = True
        waiting = asyncio.create_task(node.append(topic, batch(2, sequence=0)))
        while node.partition(topic).replica.core.last_index == node.partition(topic).replica.core.commit_index:
            await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        node.release_commits()
        assert (await node.append(topic, batch(2, sequence=0))).base_offsets == [0], "it was written, and once"
        assert node.partition(topic).high_watermark == 2


async def test_a_cancelled_reader_leaves_the_others_of_its_round_their_answer() -> None:
    async with EngineCluster() as cluster:
        cluster.create_group(7)
        leader = await cluster.leader(7)
        first, second = (asyncio.create_task(leader.read_index()) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        assert await second >= 6
        assert first.cancelled()


async def test_a_background_loop_ends_when_it_is_cancelled() -> None:
    async with running() as node:
        task = asyncio.create_task(Reconciler(node, 3).run())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


# ------------------------------------------------------------------------------- handler unlocked across awaits


@pytest.mark.parametrize(
    "function",
    [
        RaftCore.step, RaftCore.propose, RaftCore.ready, RaftCore.append_done, RaftCore.apply_done,
        Engine.on_frame, Engine.on_message, Engine.on_completions, Replica.propose, Replica.apply, PartitionAppends.begin,
    ],
    ids=lambda function: function.__qualname__,
)  # fmt: skip
def test_what_changes_the_state_of_a_group_cannot_wait(function: object) -> None:
    """aioraft-ng handled AppendEntries in a coroutine without a lock, and chose an append's index before an await."""
    assert not inspect.iscoroutinefunction(function)
    assert not inspect.isasyncgenfunction(function)


async def test_appends_that_run_at_once_get_an_offset_each() -> None:
    async with running() as node:
        topic = await node.topic()
        node.hold_commits = True
        appends = [asyncio.create_task(node.append(topic, batch(3, producer=n))) for n in range(1, 101)]
        while node.partition(topic).replica.core.last_index < 100:
            await asyncio.sleep(0)
        node.release_commits()
        offsets = [(await append).base_offsets[0] for append in appends]
    assert sorted(offsets) == list(range(0, 300, 3))


# --------------------------------------------------------------------------------- whole snapshot in one message


async def test_a_snapshot_travels_in_bounded_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """aioraft-ng put a whole snapshot into one gRPC message: beyond 4 MiB it could not be sent at all."""
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


# ----------------------------------------------------------------------------- one connection shared by threads


class WatchedStore(LmdbLogStore):
    """Notes which thread writes which file."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, map_bytes=1 << 20)
        self.writing: dict[ReplicaKey, set[str]] = {}

    def append_batch(self, updates) -> None:
        for key, _ in updates:
            self.writing.setdefault(key, set()).add(threading.current_thread().name)
        super().append_batch(updates)


def test_each_file_is_written_by_one_thread_whoever_asks(tmp_path: Path) -> None:
    """aioraft-ng shared one SQLite connection among the threads of a pool."""
    store = WatchedStore(tmp_path)
    keys = [ReplicaKey(group_id, 1) for group_id in range(1, 7)]
    done: list[object] = []
    everything = threading.Event()
    count = len(keys) * 20

    def on_done(completions) -> None:
        done.extend(completions)
        if len(done) == count:
            everything.set()

    writers = WriterThreads(store, thread_count=3, on_done=on_done, on_error=lambda error: pytest.fail(str(error)))
    for key in keys:
        store.create(key, founder_state(Membership((1,))), ())
        store.open(key)

    def submit_all(key: ReplicaKey) -> None:
        for index in range(6, 26):
            entry = Entry(index, 6, EntryKind.DATA, index - 6, 1, 0, b"x")
            writers.submit(key, Update(hard_state=HardState(6, 0, 5), entries=(entry,)), object())

    with ThreadPoolExecutor(4) as askers:
        list(askers.map(submit_all, keys))
    assert everything.wait(30)
    writers.close()
    assert set(store.writing) == set(keys)
    assert all(len(threads) == 1 for threads in store.writing.values())
    assert len(set.union(*store.writing.values())) == 3, "and the files are spread over all of them"
    for key in keys:
        store.close(key)


# -------------------------------------------------------------------------------------------- pickle on the wire


class _Bomb:
    """Unpickled, it creates a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self):
        return (open, (str(self._path), "w"))


@pytest.mark.parametrize(
    "frame_type",
    [
        FrameType.MESSAGE, FrameType.HEARTBEATS, FrameType.HEARTBEAT_RESPONSES, FrameType.LEADERSHIP,
        FrameType.SNAPSHOT_BEGIN, FrameType.SNAPSHOT_END, FrameType.CLOCK_QUESTION, FrameType.CLOCK,
    ],
)  # fmt: skip
async def test_a_pickle_from_the_network_is_a_malformed_frame(frame_type: FrameType, tmp_path: Path) -> None:
    """PySyncObj unpickled what peers sent: whoever reached its port could run anything."""
    async with EngineCluster(1) as cluster:
        engine = cluster.nodes[1].engine
        replica = cluster.create_group(7, (1,))[1]
        before = tuple(replica.state_machine.rows())
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            payload = pickle.dumps(_Bomb(tmp_path / "executed"), protocol)
            with pytest.raises(FrameError):
                engine.on_frame(2, frame_type, memoryview(payload))
        assert tuple(replica.state_machine.rows()) == before
    assert not (tmp_path / "executed").exists()


def test_the_pickle_of_these_tests_does_execute_where_it_is_loaded(tmp_path: Path) -> None:
    """Else the test above could not fail."""
    pickle.loads(pickle.dumps(_Bomb(tmp_path / "executed"))).close()
    assert (tmp_path / "executed").exists()


def test_the_product_imports_nothing_that_executes_what_it_decodes() -> None:
    # What a worker pickles goes to the processes that it started itself, through their own pipes.
    allowed = ["client/worker/process_executor.py: pickle"]
    banned = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "jsonpickle"}
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for folder in PRODUCT
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        for name in imported(node)
        if name.split(".")[0] in banned
    ]
    assert found == allowed


def imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
