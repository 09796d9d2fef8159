"""Provide threads for blocking work, one bounded pool for each kind, so that clients' reads do not delay repair.

These threads must not write logs: the writers do.
"""

from __future__ import annotations

from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass

from raftmq.broker.base.limits import Limits


@dataclass(frozen=True, slots=True)
class ThreadPools:
    """The pools of a node."""

    clients: Executor
    """Cold reads of clients, and lookups of offsets and times."""
    catch_up: Executor
    """Reads of entries that are no longer in memory, for followers that are behind."""
    snapshots: Executor
    """Rows of snapshots that are sent, and of one that is restored."""
    upkeep: Executor
    """Writes of the registry, quarantine, the trash, and checks of files."""
    rows: Executor
    """Rows of derived states that are needed to apply entries."""
    disk: Executor
    """Looks at the free space. It has one thread, for which nothing else waits: a disk that syncs slowly may be about to fill up."""
    write_back: Executor
    """Writes of derived states that are larger than memory. It has one thread, so the writes of a file are in order."""

    @classmethod
    def of(cls, limits: Limits) -> ThreadPools:
        """Create the pools. Their threads start with the first work."""
        return cls(
            ThreadPoolExecutor(limits.client_reader_threads, thread_name_prefix="raftmq-reader"),
            ThreadPoolExecutor(limits.catch_up_threads, thread_name_prefix="raftmq-catch-up"),
            ThreadPoolExecutor(limits.snapshot_threads, thread_name_prefix="raftmq-snapshot"),
            ThreadPoolExecutor(limits.upkeep_threads, thread_name_prefix="raftmq-upkeep"),
            ThreadPoolExecutor(limits.row_threads, thread_name_prefix="raftmq-rows"),
            ThreadPoolExecutor(1, thread_name_prefix="raftmq-disk"),
            ThreadPoolExecutor(1, thread_name_prefix="raftmq-write-back"),
        )

    @classmethod
    def shared(cls, executor: Executor) -> ThreadPools:
        """Use one executor for all kinds of work, in the simulator and in tests."""
        return cls(executor, executor, executor, executor, executor, executor, executor)

    def shutdown(self) -> None:
        """Wait for running and queued work, and end the threads."""
        for pool in (self.clients, self.catch_up, self.snapshots, self.upkeep, self.rows, self.disk, self.write_back):
            pool.shutdown()
