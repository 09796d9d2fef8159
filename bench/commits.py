"""Measure transactions of many rows on a writer thread while the event loop is busy.

Usage: python -m bench --only commits, or python -m bench.commits. Figures are milliseconds for one transaction, the median of many. The
files are in memory where the system has such a volume, to exclude the disk. The loop echoes to twenty connections over sockets, which
keeps a processor busy. `_disturbed` is the same without `LoopPause`. `stall` is the longest time for which the loop was blocked.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import uvloop
from raftmq.broker.base.loop_pause import LoopPause
from raftmq.broker.main import SWITCH_INTERVAL_SECONDS
from raftmq.raft.core import RestoredState
from raftmq.raft.entry import GENESIS, Entry, EntryKind
from raftmq.raft.hard_state import HardState
from raftmq.raft.membership import Membership
from raftmq.storage.lmdb_env import Undisturbed, disturbed
from raftmq.storage.lmdb_log_store import LmdbLogStore
from raftmq.storage.log_store import ReplicaKey, Update
from raftmq.types import GroupId, LogIndex, ReplicaId

from bench.busy_loop import busy_loop
from bench.workloads import Figure

SIZES = (35, 100, 400, 1000)
"""Numbers of entries in one transaction."""
DELETED = 256
"""Number of rows in a slice that is deleted after a truncation point was set."""
ROUNDS = 40
PAYLOAD_BYTES = 100
KEY = ReplicaKey(GroupId(1), ReplicaId(1))
IN_MEMORY = Path("/dev/shm")


class StoreWrites:
    """Run transactions on one replica's file, as a writer thread does."""

    def __init__(self, directory: Path, undisturbed: Undisturbed) -> None:
        self._store = LmdbLogStore(directory, map_bytes=1 << 32, undisturbed=undisturbed)
        self._last = GENESIS
        hard_state = HardState(GENESIS.term, ReplicaId(0), GENESIS.index)
        membership = Membership(voters=(KEY.replica_id,))
        state = RestoredState(hard_state, GENESIS, GENESIS.index, GENESIS.next_offset, 0, (), membership, GENESIS.index)
        self._store.create(KEY, state, [])
        self._store.open(KEY)

    def append(self, count: int) -> float:
        """Return the milliseconds for one transaction of `count` entries."""
        last = self._last
        entries = tuple(
            Entry(LogIndex(last.index + n), last.term, EntryKind.COMMAND, last.next_offset, 0, 0, bytes(PAYLOAD_BYTES))
            for n in range(1, count + 1)
        )
        self._last = replace(last, index=entries[-1].index)
        return _milliseconds(lambda: self._store.append_batch([(KEY, Update(None, entries))]))

    def delete(self, count: int) -> float:
        """Return the milliseconds for deleting `count` truncated rows."""
        self.append(count)
        self._store.append_batch([(KEY, Update(truncation=self._last, state_index=self._last.index))])
        found = _milliseconds(lambda: self._store.delete_truncated(KEY, count))
        assert not self._store.has_truncated_rows(KEY)
        return found

    def close(self) -> None:
        self._store.close(KEY)


def _milliseconds(write: Callable[[], object]) -> float:
    started = time.perf_counter()
    write()
    return (time.perf_counter() - started) * 1000


def _all(writes: StoreWrites) -> dict[str, float]:
    """Measure deletions, then appends, because a deleted slice must have no rows before it."""
    found = {f"delete_{DELETED}": statistics.median(writes.delete(DELETED) for _ in range(ROUNDS))}
    return found | {f"append_{size}": statistics.median(writes.append(size) for _ in range(ROUNDS)) for size in SIZES}


def _directory() -> str | None:
    return str(IN_MEMORY) if IN_MEMORY.is_dir() else None


async def _measure() -> dict[str, float]:
    loop = asyncio.get_running_loop()
    found: dict[str, float] = {}
    async with busy_loop() as busy:
        for name, undisturbed in (("", LoopPause(loop)), ("_disturbed", disturbed)):
            with tempfile.TemporaryDirectory(dir=_directory()) as directory:
                writes = StoreWrites(Path(directory), undisturbed)
                busy.take_stall_seconds()
                try:
                    figures = await asyncio.to_thread(_all, writes)
                finally:
                    writes.close()
            found |= {f"{figure}{name}": value for figure, value in figures.items()}
            found[f"stall{name}"] = busy.take_stall_seconds() * 1000
    return found


def bench_commits() -> dict[str, float]:
    """Run everything on a loop of the broker's kind."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_measure())
    finally:
        sys.setswitchinterval(before)


def figures() -> tuple[Figure, ...]:
    """Return the figures, which have no targets."""
    names = (*(f"append_{size}" for size in SIZES), f"delete_{DELETED}", "stall")
    return tuple(Figure(f"{name}{kind}", "ms", False) for kind in ("", "_disturbed") for name in names)


if __name__ == "__main__":
    for name, value in bench_commits().items():
        print(f"{name:<24} {value:>10,.3f}")
