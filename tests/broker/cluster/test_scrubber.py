"""The scrubber reads everything back at its rate, breaks damaged replicas, and skips removed ones."""

import asyncio
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from raftmq.broker.base.limits import MIB, Limits, Timing
from raftmq.broker.cluster.replica_files import create_replica
from raftmq.broker.cluster.scrubber import Scrubber
from raftmq.broker.replica.initial_state import founder_state
from raftmq.raft.entry import Entry, EntryKind
from raftmq.raft.hard_state import HardState
from raftmq.raft.membership import Membership
from raftmq.storage.lmdb_log_store import LmdbLogStore
from raftmq.storage.log_store import ReplicaKey, Update
from raftmq.storage.registry import Registry
from raftmq.storage.writer_threads import WriterThreads
from raftmq.types import GroupId, LogIndex, ReplicaId, Term

from tests.support.broker.waiting import until

KEYS = [ReplicaKey(GroupId(number), ReplicaId(1)) for number in (7, 8, 9)]
ROWS = 1000


class Parts:
    """A scrubber over real files, with the parts of a node that it needs."""

    def __init__(self, directory: Path, suspects: list[ReplicaKey] = []) -> None:  # noqa: B006 -- not changed
        self.registry = Registry(directory / "node.mdb", suspects=suspects)
        self.store = LmdbLogStore(directory, map_bytes=1 << 26)
        self.writers = WriterThreads(
            self.store, thread_count=1, on_done=lambda _: None, on_error=lambda error: self.fatal.append(error)
        )
        self.readers = ThreadPoolExecutor(2)
        self.fatal: list[BaseException] = []
        self.broken: dict[int, Exception] = {}
        self.loop = asyncio.get_running_loop()
        self.replicas: dict[int, Any] = {}
        for key in KEYS:
            if not self.registry.has_replica(key):
                create_replica(self.store, self.registry, key, founder_state(Membership((1,))))
            self.store.open(key)
            self.replicas[key.group_id] = SimpleNamespace(key=key, group_id=key.group_id, is_closed=False)
        self.chance = random.Random(1)

    shuffle = lambda self, items: self.chance.shuffle(items)  # noqa: E731
    now_ms = lambda self: 5000  # noqa: E731

    async def in_thread(self, function: Any, *arguments: object) -> Any:
        return await self.loop.run_in_executor(self.readers, function, *arguments)

    async def on_writer(self, key: ReplicaKey, function: Any) -> Any:
        return await asyncio.wrap_future(self.writers.run(key, function))

    def break_replica(self, replica: Any, error: Exception) -> None:
        replica.is_closed = True
        self.broken[replica.group_id] = error

    def scrubber(self, limits: Limits | None = None, **timing: float) -> Scrubber:
        rate = limits.scrub_bytes_per_second if limits is not None else 1 << 40
        return Scrubber(self, self.store, self.readers, self.registry, self, rate, replace(Timing(), **timing))

    def close(self) -> None:
        self.writers.close()
        self.readers.shutdown()
        for key in self.store.open_replicas():
            self.store.close(key)
        self.registry.close(is_clean=True)
        assert not self.fatal


@pytest.fixture
async def parts(tmp_path: Path) -> Any:
    made = Parts(tmp_path)
    for key in KEYS:
        entries = tuple(Entry(6 + n, 6, EntryKind.DATA, n, 1, 0, b"row %d" % n * 30) for n in range(ROWS))
        made.store.append_batch(
            [(key, Update(hard_state=HardState(Term(6), ReplicaId(0), LogIndex(5)), entries=entries))]
        )
    yield made
    made.close()


def flip(store: LmdbLogStore, key: ReplicaKey, part: bytes) -> None:
    with store.path(key).open("r+b", buffering=0) as file:
        content = file.read()
        at = content.index(part)
        file.seek(at)
        file.write(bytes([content[at] ^ 1]))


async def test_a_pass_reads_every_row_and_moves_the_clean_points(parts: Parts) -> None:
    scrubber = parts.scrubber()
    await scrubber.one_pass()
    assert (scrubber.passes_total, scrubber.damaged_total, scrubber.last_pass_ms) == (1, 0, 5000)
    files = sum(parts.store.file_bytes(key) for key in KEYS)
    assert scrubber.bytes_total >= files + len(KEYS) * ROWS * 200
    for key in KEYS:
        parts.store.close(key)
        parts.store.open(key)
        assert parts.store._replica(key).scanned.rows_checked == 0


async def test_damage_breaks_its_group_and_the_others_are_read(parts: Parts) -> None:
    flip(parts.store, KEYS[1], b"row 400row")
    scrubber = parts.scrubber()
    await scrubber.one_pass()
    assert set(parts.broken) == {8}
    assert "does not match its checksum" in str(parts.broken[8])
    assert (scrubber.passes_total, scrubber.damaged_total) == (1, 1)
    assert parts.store._replica(KEYS[0]).verified_index == parts.store._replica(KEYS[2]).verified_index == ROWS + 5


async def test_replicas_removed_during_a_pass_are_skipped(parts: Parts) -> None:
    parts.store.close(KEYS[0])
    parts.replicas[9].is_closed = True
    scrubber = parts.scrubber()
    await scrubber.one_pass()
    assert (scrubber.passes_total, scrubber.damaged_total, parts.broken) == (1, 0, {})


async def test_the_rate_is_kept_and_a_file_is_swapped_in_between(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is held between slices: a writer that needs the file exclusively gets it immediately."""
    slept: list[float] = []
    sleep = asyncio.sleep

    async def noted(seconds: float) -> None:
        slept.append(seconds)
        with parts.store._replica(KEYS[0]).gate.alone():
            pass
        await sleep(0)

    monkeypatch.setattr("raftmq.broker.cluster.scrubber.asyncio.sleep", noted)
    scrubber = parts.scrubber(replace(Limits(), scrub_bytes_per_second=MIB))
    await scrubber.one_pass()
    rows = len(KEYS) * ROWS
    assert sum(slept) == pytest.approx((scrubber.bytes_total + rows * 300) / MIB, rel=0.01)
    assert max(slept) <= 0.5


async def test_passes_begin_at_most_once_in_their_time(parts: Parts) -> None:
    scrubber = parts.scrubber(scrub_pass_seconds=0.3)
    began_at = parts.loop.time()
    task = asyncio.create_task(scrubber.run())
    await until(lambda: scrubber.passes_total >= 3)
    assert parts.loop.time() - began_at >= 2 * 0.3
    task.cancel()


@pytest.fixture
async def suspecting(tmp_path: Path) -> Any:
    first = Parts(tmp_path)
    first.registry.mark_open(KEYS)
    first.writers.close()
    first.registry.close(is_clean=False)
    for key in KEYS:
        first.store.close(key)
    made = Parts(tmp_path, [KEYS[1]])
    yield made
    made.close()


async def test_a_while_without_a_fault_ends_every_suspicion(suspecting: Parts) -> None:
    assert suspecting.registry.needs_verification(KEYS[1])
    scrubber = suspecting.scrubber(suspicion_seconds=0.2, scrub_pass_seconds=1000.0)
    began_at = suspecting.loop.time()
    task = asyncio.create_task(scrubber.run())
    await until(lambda: not suspecting.registry.needs_verification(KEYS[1]))
    assert suspecting.loop.time() - began_at >= 0.2
    task.cancel()
