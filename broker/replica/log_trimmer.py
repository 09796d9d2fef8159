"""Delete the rows below a truncation point, a slice per transaction, on the replica's writer.

The time does not matter, because rows below the point are no longer part of the log. So a lack of space only delays it.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Future

import structlog
from raftmq.broker.replica.engine_host import EngineHost
from raftmq.broker.replica.replica import Replica
from raftmq.broker.replica.writers import Writers
from raftmq.fsm.state_machine import StateMachine
from raftmq.storage.errors import CommitFailedError, StorageFullError, StorageUnavailableError
from raftmq.storage.log_store import LogStore

log = structlog.get_logger(__name__)

_ROWS_PER_SLICE = 256
"""Rows deleted per transaction. They bound the latency of the commits that wait for it."""


class LogTrimmer:
    """Deletes the truncated rows of one node's replicas."""

    def __init__(self, loop: asyncio.AbstractEventLoop, host: EngineHost, store: LogStore, writers: Writers) -> None:
        self._loop = loop
        self._host = host
        self._store = store
        self._writers = writers
        self._is_closed = False

    def delete(self, replica: Replica[StateMachine]) -> None:
        """Start deleting the rows below the replica's durable truncation point."""
        if replica.is_closed:
            return
        future = self._writers.run(replica.key, lambda: self._store.delete_truncated(replica.key, _ROWS_PER_SLICE))

        def report(done: Future[bool]) -> None:
            if not self._is_closed:
                self._loop.call_soon_threadsafe(self._on_slice_deleted, replica, done)

        future.add_done_callback(report)

    def _on_slice_deleted(self, replica: Replica[StateMachine], done: Future[bool]) -> None:
        error = done.exception()
        if error is None:
            if done.result():
                self.delete(replica)
        elif isinstance(error, CommitFailedError) or not isinstance(error, Exception):
            self._host.on_fatal(error)
        elif replica.is_closed or isinstance(error, StorageFullError | StorageUnavailableError):
            # the rows are below the truncation point, so harmless: the next truncation deletes them
            log.info("truncated_rows_left", group_id=replica.group_id, reason=str(error))
        else:
            self._host.break_replica(replica, error)

    def close(self) -> None:
        """Report nothing more, because the loop will not run for long."""
        self._is_closed = True
