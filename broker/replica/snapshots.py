"""Handle the snapshots of groups: describe one, send it to a replica that is too far behind, and install one here.

While a snapshot is installed nothing else of its group moves. `snapshot_sender` and `snapshot_receiver` implement the streams. Source: Ongaro's thesis
5.1-5.3. A snapshot of a partition has two positions: the point after which its log starts, and the index of its derived state.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Collection
from concurrent.futures import Future
from typing import cast

import structlog
from raftmq.broker.base.limits import Limits, Timing
from raftmq.broker.base.log_throttle import LogThrottle
from raftmq.broker.peers.codec import decode_snapshot_resume
from raftmq.broker.peers.protocol import Transport
from raftmq.broker.replica.commits import Commits
from raftmq.broker.replica.copy_pace import CopyPace
from raftmq.broker.replica.disk import SPACE_RETRY_SECONDS
from raftmq.broker.replica.engine_host import EngineHost
from raftmq.broker.replica.outgoing_snapshots import PAUSE_SECONDS
from raftmq.broker.replica.replica import Replica
from raftmq.broker.replica.snapshot_copies import SnapshotCopies
from raftmq.broker.replica.snapshot_rows import Row, StagedRows, rows_to_restore
from raftmq.broker.replica.snapshot_sender import SnapshotSender
from raftmq.broker.replica.thread_pools import ThreadPools
from raftmq.broker.replica.write_backs import WriteBacks
from raftmq.broker.replica.writers import Writers
from raftmq.fsm.state_machine import StateMachine
from raftmq.raft.entry import LogPosition
from raftmq.raft.hard_state import HardState
from raftmq.raft.messages import InstallSnapshot, SnapshotMeta
from raftmq.raft.ready import AppendWork
from raftmq.storage.errors import (
    CommitFailedError,
    LogRangeError,
    StorageFullError,
    StorageUnavailableError,
)
from raftmq.storage.snapshot_spool import SnapshotSpools
from raftmq.storage.state_store import StateStore
from raftmq.types import METADATA_GROUP_ID, NO_NODE, LogIndex, NodeId

log = structlog.get_logger(__name__)


class Snapshots:
    """Sends and installs the snapshots of one engine's groups."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        host: EngineHost,
        commits: Commits,
        store: StateStore,
        readers: ThreadPools,
        writers: Writers,
        transport: Transport,
        limits: Limits,
        timing: Timing,
        write_backs: WriteBacks,
        space: SnapshotSpools,
        now_ms: Callable[[], int],
        pace: CopyPace,
    ) -> None:
        self._write_backs = write_backs
        self._loop = loop
        self._host = host
        self._commits = commits
        self._store = store
        self._threads = readers.snapshots
        self._writers = writers
        self._transport = transport
        self._space_throttle = LogThrottle()
        self.sent_total = 0
        """Snapshots that were streamed completely."""
        self.installed_total = 0
        """Snapshots that replaced a replica's state here."""
        self.copies = SnapshotCopies(loop, store, readers.snapshots, limits, space, now_ms)
        self._sender = SnapshotSender(
            loop,
            transport,
            store,
            readers.snapshots,
            limits,
            timing,
            self.copies,
            pace,
            self._on_streamed,
            host.break_replica,
        )

    @property
    def streams(self) -> int:
        """Return the number of snapshots that are being sent."""
        return self._sender.streams

    # ------------------------------------------------------------------------------------------------ sending

    def meta(self, replica: Replica[StateMachine]) -> SnapshotMeta | None:
        """Return the description of a snapshot that would be taken now. The stream replaces it by that of its transaction."""
        if self._sender.is_full(replica):
            replica.outgoing_snapshots.postpone(self._loop.time())
            return None
        if replica.durable_membership != replica.core.membership:
            # a snapshot must name its receiver as a member, so first make the change that added it durable. Not now: the
            # core is being asked for its work, and a write that starts in between would be a second one in flight
            self._loop.call_soon(self._host.guarded, replica, self._commits.flush_state, replica)
            return None
        position: LogPosition | None = replica.log_start
        state_index = replica.durable_state_index
        if replica.group_id == METADATA_GROUP_ID:
            try:
                position = replica.position_of(state_index)
            except (LogRangeError, StorageUnavailableError):
                position = None
        if position is None:
            return None
        return SnapshotMeta(position, state_index, replica.durable_membership)

    def send(self, replica: Replica[StateMachine], message: InstallSnapshot) -> None:
        """Stream the group's state to the replica that the message names. The core is told how it ended."""
        outgoing = replica.outgoing_snapshots
        outgoing.record_newest(message)
        node_id = replica.node_of(message.target)
        if node_id == NO_NODE or not self._transport.is_connected(node_id):
            replica.core.report_snapshot(message.target, is_sent=False)
            return
        outgoing.begin()
        if not outgoing.take_turn(message.target, self._loop.time()):
            self._loop.call_later(PAUSE_SECONDS, self._on_streamed, replica, message, False)
            return
        self._sender.start(replica, node_id, message)

    def _on_streamed(self, replica: Replica[StateMachine], message: InstallSnapshot, is_sent: bool) -> None:
        outgoing = replica.outgoing_snapshots
        outgoing.end()
        self.sent_total += is_sent
        if not outgoing.is_newest(message):
            # The core waits for the end of a later stream. Told of this one it would begin yet another, which would interrupt that one.
            return
        outgoing.record_end(message.target, self._loop.time(), is_resumable=replica.is_disk_backed and not is_sent)
        if not replica.is_closed:
            self._host.guarded(replica, replica.core.report_snapshot, message.target, is_sent)
            self._host.mark_dirty(replica)

    def on_resume(self, node_id: NodeId, body: memoryview) -> None:
        """Have a stream go on after the rows that its receiver has already. Raises `FrameError`."""
        self._sender.on_resume(node_id, decode_snapshot_resume(body))

    # ------------------------------------------------------------------------------------------------ installing

    def install(self, replica: Replica[StateMachine], work: AppendWork) -> None:
        """Replace the replica's file by a snapshot. Nothing else of the group moves until that is durable."""
        message = work.snapshot
        assert message is not None
        rows = cast("Collection[Row]", message.data)
        replica.begin_install()
        log.info(
            "snapshot_install_started", group_id=replica.group_id, replica_id=replica.replica_id,
            index=message.meta.position.index, rows=len(rows),
        )  # fmt: skip
        # a write-back of the old state must not reach the new file
        self._write_backs.when_idle(replica, lambda: self._restore(replica, work))

    def _restore(self, replica: Replica[StateMachine], work: AppendWork) -> None:
        """Decode the rows in a thread."""
        if replica.is_closed:
            return
        message = work.snapshot
        assert message is not None
        rows = cast("Collection[Row]", message.data)
        fresh = type(replica.state_machine)()
        restoring = self._threads.submit(lambda: fresh.restore(rows_to_restore(fresh, rows), message.meta.state_index))
        restoring.add_done_callback(
            lambda done: self._loop.call_soon_threadsafe(self._on_restored, replica, work, fresh, done)
        )

    def _on_restored(
        self, replica: Replica[StateMachine], work: AppendWork, fresh: StateMachine, done: Future[None]
    ) -> None:
        """Replace the replica's file after the rows were decoded. Until then it is unchanged."""
        if replica.is_closed:
            return
        error = done.exception()
        if error is not None:
            self._host.break_replica(replica, error if isinstance(error, Exception) else RuntimeError(repr(error)))
            return
        message = work.snapshot
        assert message is not None
        core, rows = replica.core, cast("Collection[Row]", message.data)
        # appends after the snapshot may have moved the commit index, but their entries are not in this write
        commit_index = LogIndex(min(core.commit_index, message.meta.position.index))
        hard_state = HardState(core.term, core.vote, commit_index)
        future = self._writers.run(replica.key, lambda: self._write(replica, hard_state, message.meta, rows))
        future.add_done_callback(
            lambda done: self._loop.call_soon_threadsafe(self._on_installed, replica, work, fresh, done)
        )

    def _write(
        self, replica: Replica[StateMachine], hard_state: HardState, meta: SnapshotMeta, rows: Collection[Row]
    ) -> None:
        """Replace the replica's files, on its writer."""
        if isinstance(rows, StagedRows):
            self._store.install_staged(replica.key, hard_state, meta, rows.state)
        else:
            self._store.install(replica.key, hard_state, meta, rows)

    def _on_installed(
        self, replica: Replica[StateMachine], work: AppendWork, fresh: StateMachine, done: Future[None]
    ) -> None:
        error = done.exception()
        if replica.is_closed and not isinstance(error, CommitFailedError):
            return
        if isinstance(error, StorageFullError):
            # the replica is unchanged: like any write it waits for space
            if self._space_throttle.is_due(replica.group_id):
                log.warning("snapshot_waits_for_space", group_id=replica.group_id, reason=str(error))
            self._loop.call_later(SPACE_RETRY_SECONDS, self._install_again, replica, work)
        elif isinstance(error, Exception) and not isinstance(error, CommitFailedError):
            self._host.break_replica(replica, error)
        elif error is not None:
            self._host.on_fatal(error)
        else:
            self._host.guarded(replica, self._on_durable, replica, work, fresh)

    def _install_again(self, replica: Replica[StateMachine], work: AppendWork) -> None:
        if not replica.is_closed:
            self.install(replica, work)

    def _on_durable(self, replica: Replica[StateMachine], work: AppendWork, fresh: StateMachine) -> None:
        assert work.snapshot is not None
        self.installed_total += 1
        replica.on_installed(work.snapshot.meta, fresh)
        if replica.is_closed:
            return  # by the new state: it is of a feature level that this program does not know, and the node has fallen silent
        rest = dataclasses.replace(work, snapshot=None)
        if rest.entries:
            self._commits.start(replica, rest, with_inbound=False)
        else:
            self._commits.finish(replica, rest)
        self._host.mark_dirty(replica)
