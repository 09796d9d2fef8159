"""Provide threads for blocking reads, one bounded pool for each kind of work, so that clients' reads do not delay repair.

These threads must not write replica files: the writers do.
"""

from __future__ import annotations

from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass

from raftmq.broker.base.limits import Limits


@dataclass(frozen=True, slots=True)
class ReaderPools:
    """The reader pools of a node."""

    clients: Executor
    """Cold reads of clients, and lookups of offsets and times."""
    catch_up: Executor
    """Reads of entries that are no longer in memory, for followers that are behind."""
    snapshots: Executor
    """Rows of snapshots that are sent, and of one that is restored."""
    upkeep: Executor
    """Writes of the registry, quarantine, the trash, and checks of files."""

    @classmethod
    def of(cls, limits: Limits) -> ReaderPools:
        """Create the pools. Their threads start with the first work."""
        return cls(
            ThreadPoolExecutor(limits.client_reader_threads, thread_name_prefix="raftmq-reader"),
            ThreadPoolExecutor(limits.catch_up_threads, thread_name_prefix="raftmq-catch-up"),
            ThreadPoolExecutor(limits.snapshot_threads, thread_name_prefix="raftmq-snapshot"),
            ThreadPoolExecutor(limits.upkeep_threads, thread_name_prefix="raftmq-upkeep"),
        )

    @classmethod
    def shared(cls, executor: Executor) -> ReaderPools:
        """Use one executor for all kinds of work, in the simulator and in tests."""
        return cls(executor, executor, executor, executor)

    def shutdown(self) -> None:
        """Wait for running and queued work, and end the threads."""
        for pool in (self.clients, self.catch_up, self.snapshots, self.upkeep):
            pool.shutdown()
