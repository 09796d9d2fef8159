"""The received part of an interrupted snapshot waits for the next stream of the same rows, and for no other one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Event

import pytest
from raftmq.broker.base.limits import Limits
from raftmq.broker.peers import codec
from raftmq.broker.peers.codec import FrameType, Parts, SnapshotBegin, SnapshotResume
from raftmq.broker.replica.parked_snapshots import PARKED_MAX, ParkedSnapshots
from raftmq.broker.replica.snapshot_receiver import SnapshotReceiver
from raftmq.broker.replica.snapshot_rows import STAGED_FILES, StagedRows
from raftmq.raft.entry import LogPosition
from raftmq.raft.membership import Membership
from raftmq.raft.messages import InstallSnapshot, SnapshotMeta
from raftmq.storage.errors import StorageFullError
from raftmq.storage.memory_log_store import MemoryStagedState
from raftmq.storage.row_stream import Row
from raftmq.storage.snapshot_spool import SnapshotSpools

from tests.support.broker.waiting import until
from tests.support.storage.log_builder import KEY

META = SnapshotMeta(LogPosition(5, 1, 0, 0), 5, Membership((1, 2)))


class Site:
    """A receiver of large states, with the resumptions that it asked for."""

    def __init__(self, idle_seconds: float = 600.0) -> None:
        self.threads = ThreadPoolExecutor(1)
        self.spools = SnapshotSpools(None, memory_bytes=0, files_max=48)
        self.whole: list[list[Row]] = []
        self.resumed: list[SnapshotResume] = []
        self.parked = ParkedSnapshots(asyncio.get_running_loop(), idle_seconds)
        self.put: Callable[[MemoryStagedState, list[Row]], None] = MemoryStagedState.put
        self.receiver = SnapshotReceiver(
            asyncio.get_running_loop(),
            self.threads,
            Limits(),
            self.spools,
            lambda node_id, begin: self.whole.append(list(begin.message.data)),  # type: ignore[call-overload]
            lambda node_id, is_held: None,
            lambda begin: StagedRows(self._stage, self.spools, self.threads.submit),
            self._on_resume,
            self.parked,
        )

    def _stage(self) -> MemoryStagedState:
        site = self

        class State(MemoryStagedState):
            def put(self, rows: list[Row]) -> None:  # type: ignore[override]
                site.put(self, rows)

        return State(META.position)

    def _on_resume(self, node_id: int, body: Parts) -> None:
        self.resumed.append(codec.decode_snapshot_resume(memoryview(b"".join(body))))

    def begin(
        self, stream_id: int, *, snapshot_id: int = 9, group_id: int = 7, node_id: int = 2, **message: object
    ) -> None:
        install = replace(InstallSnapshot(1, 2, 3, META, []), **message)
        parts = codec.encode_snapshot_begin(stream_id, group_id, install, snapshot_id)
        self.receiver.on_frame(node_id, FrameType.SNAPSHOT_BEGIN, memoryview(b"".join(parts)))

    def rows(self, stream_id: int, keys: bytes, *, node_id: int = 2) -> None:
        items = [(bytes([key]), b"value") for key in keys]
        parts = codec.encode_snapshot_rows(stream_id, items)
        self.receiver.on_frame(node_id, FrameType.SNAPSHOT_ROWS, memoryview(b"".join(parts)))

    async def end(self, stream_id: int, count: int, *, node_id: int = 2) -> None:
        parts = codec.encode_snapshot_end(stream_id, count)
        self.receiver.on_frame(node_id, FrameType.SNAPSHOT_END, memoryview(b"".join(parts)))
        await self.settle()

    async def settle(self) -> None:
        await until(lambda: not self.receiver._unwritten)
        await until(lambda: not any(one.is_writing for one in self.receiver._incoming.values()))

    async def interrupted(self, keys: bytes, *, group_id: int = 7) -> None:
        self.begin(1, group_id=group_id)
        self.rows(1, keys)
        await self.settle()
        self.receiver.forget_peer(2)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    site = Site()
    yield site
    site.receiver.drop_parked()
    site.threads.shutdown()


async def test_the_next_stream_of_the_snapshot_goes_on_after_the_last_row(site: Site) -> None:
    await site.interrupted(b"abc")
    site.begin(4)
    assert site.resumed == [SnapshotResume(4, 9, 3, b"c")]
    site.rows(4, b"ab")  # sent before the sender knew
    site.rows(4, b"cd")
    await site.end(4, 4)
    assert [[key for key, _ in rows] for rows in site.whole] == [[b"a", b"b", b"c", b"d"]]
    assert len(site.parked) == 0


async def test_a_sender_that_did_not_get_the_answer_sends_everything(site: Site) -> None:
    await site.interrupted(b"abc")
    site.begin(4)
    site.rows(4, b"abcd")
    await site.end(4, 4)
    assert [[key for key, _ in rows] for rows in site.whole] == [[b"a", b"b", b"c", b"d"]]


async def test_a_leader_of_a_later_term_goes_on_with_its_own_copy(site: Site) -> None:
    await site.interrupted(b"abc")
    site.begin(4, term=8)
    assert len(site.resumed) == 1


@pytest.mark.parametrize(
    "other",
    [
        {"snapshot_id": 10},
        {"source": 5},
        {"target": 6},
        {"meta": replace(META, state_index=6)},
        {"snapshot_id": 0},
    ],
)
async def test_another_snapshot_begins_from_its_first_row(site: Site, other: dict[str, object]) -> None:
    """Rows of two senders, or of two states, must not be mixed."""
    await site.interrupted(b"abc")
    site.begin(4, **other)
    assert site.resumed == []
    assert len(site.parked) == 0
    site.rows(4, b"cd")
    await site.end(4, 2)
    assert [[key for key, _ in rows] for rows in site.whole] == [[b"c", b"d"]]


async def test_a_snapshot_without_an_id_is_not_kept(site: Site) -> None:
    site.begin(1, snapshot_id=0)
    site.rows(1, b"abc")
    await site.settle()
    site.receiver.forget_peer(2)
    assert len(site.parked) == 0
    await until(lambda: site.spools.files == 0)


async def test_a_frame_that_is_being_written_when_the_connection_is_lost_counts(site: Site) -> None:
    may_write = Event()
    site.threads.submit(may_write.wait)
    site.begin(1)
    site.rows(1, b"abc")
    site.rows(1, b"d")
    site.receiver.forget_peer(2)
    assert len(site.parked) == 0
    may_write.set()
    await until(lambda: len(site.parked) == 1)
    site.begin(4)
    assert site.resumed == [SnapshotResume(4, 9, 3, b"c")]


async def test_a_stream_with_a_wrong_count_is_not_resumed(site: Site) -> None:
    await site.interrupted(b"abc")
    site.begin(4)
    site.rows(4, b"e")
    await site.end(4, 5)
    assert site.whole == []
    site.begin(5)
    assert len(site.resumed) == 1


async def test_rows_that_cannot_be_written_are_not_resumed(site: Site) -> None:
    def full(state: MemoryStagedState, rows: list[Row]) -> None:
        raise StorageFullError(KEY, "no room")

    site.put = full
    site.begin(1)
    site.rows(1, b"abc")
    await site.settle()
    site.receiver.forget_peer(2)
    assert len(site.parked) == 0
    await until(lambda: (site.spools.files, site.spools.disk_bytes) == (0, 0))


async def test_interrupted_snapshots_expire_and_return_their_files() -> None:
    site = Site(idle_seconds=0.01)
    await site.interrupted(b"abc")
    assert site.spools.files == STAGED_FILES
    await until(lambda: len(site.parked) == 0)
    await until(lambda: site.spools.files == 0)
    site.threads.shutdown()


async def test_interrupted_snapshots_are_bounded(site: Site) -> None:
    for group_id in range(PARKED_MAX + 3):
        await site.interrupted(b"abc", group_id=group_id)
    assert len(site.parked) == PARKED_MAX
    assert site.spools.files == PARKED_MAX * STAGED_FILES
    site.receiver.forget_group(PARKED_MAX + 2)
    assert len(site.parked) == PARKED_MAX - 1
    site.receiver.drop_parked()
    assert site.spools.files == 0


def test_a_snapshot_is_resumed_by_its_id_and_description() -> None:
    body = codec.encode_snapshot_begin(1, 7, InstallSnapshot(1, 2, 3, META, []), 9)
    begin = codec.decode_snapshot_begin(memoryview(b"".join(body)))
    assert isinstance(begin, SnapshotBegin)
    assert begin.snapshot_id == 9
