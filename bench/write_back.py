"""Measure the commits of a log while the replica's state is written back beside it, and the cost of the rows of a write-back.

Usage: python -m bench --only write_back, or python -m bench.write_back. The event loop echoes to twenty connections, which keeps a
processor busy, and submits one entry after the other. `commit_*` are the milliseconds from the submission to the loop's callback, alone
and beside write-backs of 50,000 rows. The files are in memory where the system has such a volume, to exclude the disk. `row_*` are
microseconds per row of a write-back on the disk and beside an idle loop, in a state of 100,000 or 1,000,000 rows, with keys after all
others, at random places, or of delayed messages with random due times within a day, and `written_*` the bytes that LMDB writes for one row.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import uvloop
from raftmq.broker.base.loop_pause import LoopPause
from raftmq.broker.main import SWITCH_INTERVAL_SECONDS
from raftmq.fsm.queue.message import DELAYED, Message
from raftmq.fsm.queue.rows import home_key
from raftmq.raft.core import RestoredState
from raftmq.raft.entry import GENESIS, Entry, EntryKind
from raftmq.raft.hard_state import HardState
from raftmq.raft.membership import Membership
from raftmq.storage.lmdb_env import Undisturbed, disturbed
from raftmq.storage.lmdb_log_store import LmdbLogStore
from raftmq.storage.log_store import ReplicaKey, StateRow, Update
from raftmq.storage.state_store import StateWrite
from raftmq.storage.writer_threads import Completion, WriterThreads
from raftmq.types import GroupId, LogIndex, ReplicaId

from bench.busy_loop import BusyLoop, busy_loop
from bench.workloads import Figure

ROWS = 50_000
"""Rows of one write-back: as many as 20,000 delayed messages of 2.5 rows each change in a second."""
ALONE_SECONDS = 4.0
WRITES = 8
STATES = (100_000, 1_000_000)
PAYLOAD_BYTES = 100
VALUE_BYTES = 60
ORDERS = ("next", "random", "delayed")
DUE_WITHIN_MS = 24 * 60 * 60 * 1000
KEY = ReplicaKey(GroupId(1), ReplicaId(1))
_MEMORY = Path("/dev/shm")
IN_MEMORY = _MEMORY if _MEMORY.is_dir() else None


@contextmanager
def _new_store(undisturbed: Undisturbed, volume: Path | None = None) -> Iterator[LmdbLogStore]:
    with tempfile.TemporaryDirectory(dir=volume) as directory:
        store = LmdbLogStore(Path(directory), map_bytes=1 << 36, undisturbed=undisturbed)
        hard_state = HardState(GENESIS.term, ReplicaId(0), GENESIS.index)
        membership = Membership(voters=(KEY.replica_id,))
        state = RestoredState(hard_state, GENESIS, GENESIS.index, GENESIS.next_offset, 0, (), membership, GENESIS.index)
        store.create_with_state_file(KEY, state)
        store.open(KEY)
        try:
            yield store
        finally:
            store.close(KEY)


class _Rows:
    """Makes rows of new messages: 5 bytes of table and generation, and a place in this order."""

    def __init__(self, order: str) -> None:
        self._order = order
        self._random = random.Random(1)
        self._sequence = 0

    def take(self, count: int) -> tuple[StateRow, ...]:
        return tuple((self._key(), bytes(VALUE_BYTES)) for _ in range(count))

    def _key(self) -> bytes:
        self._sequence += 1
        if self._order == "delayed":
            message = Message(self._sequence, DELAYED, 0, 0, self._random.randrange(DUE_WITHIN_MS), 0, 0)
            return home_key(0, message)
        place = self._random.getrandbits(40) if self._order == "random" else self._sequence
        return struct.pack(">BIQQ", 0x11, 0, place, self._sequence)


# ------------------------------------------------------------------------------------------------------- commits


class _Commits:
    """Submits one entry after the other, and measures each."""

    def __init__(self, loop: asyncio.AbstractEventLoop, store: LmdbLogStore) -> None:
        self._loop = loop
        self._last = GENESIS
        self._submitted_at = 0.0
        self._is_over: asyncio.Event = asyncio.Event()
        self._until: asyncio.Future[None] = loop.create_future()
        self.seconds: list[float] = []
        self._writers = WriterThreads(store, 1, on_done=self._on_done, on_error=_raise)

    def _on_done(self, completions: list[Completion]) -> None:
        self._loop.call_soon_threadsafe(self._on_acknowledged, len(completions))

    def _on_acknowledged(self, count: int) -> None:
        assert count == 1
        now = time.perf_counter()
        self.seconds.append(now - self._submitted_at)
        if not self._until.done():
            self._submit()
        else:
            self._is_over.set()

    def _submit(self) -> None:
        last = self._last
        index = LogIndex(last.index + 1)
        entry = Entry(index, last.term, EntryKind.COMMAND, last.next_offset, 0, 0, bytes(PAYLOAD_BYTES))
        self._last = replace(last, index=index)
        self._submitted_at = time.perf_counter()
        self._writers.submit(KEY, Update(None, (entry,)), None)

    async def run(self, until: asyncio.Future[None]) -> list[float]:
        """Commit until this is done. Return the seconds of each commit."""
        self.seconds = []
        self._is_over.clear()
        self._until = until
        self._submit()
        await self._is_over.wait()
        return self.seconds

    def close(self) -> None:
        self._writers.close()


def _raise(error: BaseException) -> None:
    raise error


def _percentile(seconds: list[float], part: float) -> float:
    return sorted(seconds)[min(len(seconds) - 1, int(part * len(seconds)))] * 1000


async def _commits(busy: BusyLoop) -> dict[str, float]:
    """Measure commits alone, then beside write-backs."""
    loop = asyncio.get_running_loop()
    with _new_store(LoopPause(loop), IN_MEMORY) as store:
        commits, writer = _Commits(loop, store), WriterThreads(store, 1, on_done=lambda _: None, on_error=_raise)
        rows = _Rows("random")
        await asyncio.to_thread(store.write_state, KEY, StateWrite(GENESIS.index, rows.take(STATES[0])))
        busy.take_stall_seconds()
        alone = await commits.run(loop.create_task(asyncio.sleep(ALONE_SECONDS)))
        found = {"stall_alone": busy.take_stall_seconds() * 1000}
        beside: list[float] = []
        stalls: list[float] = []
        for _ in range(WRITES):
            write = StateWrite(GENESIS.index, rows.take(ROWS))
            busy.take_stall_seconds()
            writing = writer.run(KEY, partial(store.write_state, KEY, write))
            beside += await commits.run(asyncio.wrap_future(writing))
            stalls.append(busy.take_stall_seconds())
        commits.close()
        writer.close()
    found["stall_beside"] = max(stalls) * 1000
    for name, seconds in (("alone", alone), ("beside", beside)):
        found[f"commit_{name}_p50"] = _percentile(seconds, 0.5)
        found[f"commit_{name}_p99"] = _percentile(seconds, 0.99)
    return found


def _rows() -> dict[str, float]:
    found: dict[str, float] = {}
    for order in ORDERS:
        with _new_store(disturbed) as store:
            rows, held = _Rows(order), 0
            for size in STATES:
                while held < size:
                    store.write_state(KEY, StateWrite(GENESIS.index, rows.take(ROWS)))
                    held += ROWS
                costs = [_cost(store, rows.take(ROWS)) for _ in range(3)]
                found[f"row_{order}_{size}"] = statistics.median(seconds for seconds, _ in costs) / ROWS * 1e6
                found[f"written_{order}_{size}"] = statistics.median(size for _, size in costs) / ROWS
    return found


def _cost(store: LmdbLogStore, rows: tuple[StateRow, ...]) -> tuple[float, int]:
    """Return the seconds and the written bytes of a write-back."""
    before, started = _written_bytes(), time.perf_counter()
    store.write_state(KEY, StateWrite(GENESIS.index, rows))
    return time.perf_counter() - started, _written_bytes() - before


def _written_bytes() -> int:
    """Return the bytes that this process has passed to the system. The file system may write more."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["wchar"])


async def _measure() -> dict[str, float]:
    async with busy_loop() as busy:
        found = await _commits(busy)
    return found | await asyncio.to_thread(_rows)


def bench_write_back() -> dict[str, float]:
    """Run everything on a loop of the broker's kind."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_measure())
    finally:
        sys.setswitchinterval(before)


def figures() -> tuple[Figure, ...]:
    """Return the figures. Only the acknowledgement beside a write-back has a target."""
    names = ("commit_alone_p50", "commit_alone_p99", "commit_beside_p50", "stall_alone", "stall_beside")
    rows = [f"{order}_{size}" for order in ORDERS for size in STATES]
    return (
        Figure("commit_beside_p99", "ms", False, 12.0),
        *(Figure(name, "ms", False) for name in names),
        *(Figure(f"row_{row}", "µs", False) for row in rows),
        *(Figure(f"written_{row}", "B", False) for row in rows),
    )


if __name__ == "__main__":
    for name, value in bench_write_back().items():
        print(f"{name:<24} {value:>10,.3f}")
