"""Return the space of deleted data to the volume: leftover rows, free pages of replica files, idle copies, and the trash.

Every `Timing.retention_check_seconds` it checks the files themselves, even if nothing is written or trimmed. A truncation deletes its rows
in slices, so its caller cannot know when their space is free. Files are processed one at a time, the one with most free space first.
Each call on a writer is short. This module decides nothing about data.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from functools import partial
from typing import NamedTuple

import structlog
from raftmq.broker.base.limits import Timing
from raftmq.broker.base.log_throttle import LogThrottle
from raftmq.broker.base.supervisor import Supervisor, Work
from raftmq.broker.cluster.replica_manager import ReplicaManager
from raftmq.broker.replica.engine import Engine
from raftmq.storage.errors import (
    CommitFailedError,
    DamagedReplicaError,
    MissingReplicaError,
    ReplicaClosedError,
    ReplicaStorageError,
)
from raftmq.storage.lmdb_log_store import LmdbLogStore
from raftmq.storage.log_store import ReplicaKey
from raftmq.storage.page_release import FileSpace
from raftmq.storage.state_store import FilePart

log = structlog.get_logger(__name__)

TRASH_GRACE_SECONDS = 600.0
"""Time for which a retired replica's file is kept while the disk has space, so that a mistake can be noticed."""
IDLE_BYTES_MIN = 4 * 1024 * 1024
"""Free pages that a file keeps for its own next appends, so that a steady stream of appends and trims makes few holes."""
IDLE_FRACTION = 8
"""A file may also keep this fraction (one part in eight) of its used bytes, if that is more."""
IDLE_BYTES_MIN_SHORT = 256 * 1024
"""Free pages that a file keeps while the disk is short."""
ROUND_SECONDS = 2.0
"""Time that one round spends on files. After it the trash is emptied, and the next round checks the files again."""


class FileLook(NamedTuple):
    """The state of one open file at the beginning of a round."""

    key: ReplicaKey
    space: FileSpace
    has_truncated_rows: bool
    part: FilePart = FilePart.LOG

    def is_due(self, *, is_short: bool) -> bool:
        """Return whether the file has enough free pages to be worth the work."""
        kept = max(IDLE_BYTES_MIN, self.space.used_bytes // IDLE_FRACTION)
        return self.space.idle_bytes >= (IDLE_BYTES_MIN_SHORT if is_short else kept)


def look_at(
    store: LmdbLogStore, keys: Iterable[ReplicaKey]
) -> tuple[list[FileLook], dict[ReplicaKey, MissingReplicaError]]:
    """Return every open file of `keys`, those with most free space first, and the keys whose files were removed.

    Blocks while a file is being replaced, so it must not run on the loop.
    """
    looks = []
    missing = {}
    for key in keys:
        try:
            looks += [_look_at(store, key, part) for part in store.parts(key)]
        except MissingReplicaError as error:
            missing[key] = error
        except ReplicaStorageError:  # closed in the meantime, or temporarily unreadable: the next round tries again
            continue
    return sorted(looks, key=lambda look: look.space.idle_bytes, reverse=True), missing


def _look_at(store: LmdbLogStore, key: ReplicaKey, part: FilePart) -> FileLook:
    space, has_truncated_rows = store.look(key, part)
    return FileLook(key, space, has_truncated_rows, part)


class SpaceReturn:
    """Returns space for all replicas of one node."""

    def __init__(
        self,
        engine: Engine,
        store: LmdbLogStore,
        readers: Executor,
        replicas: ReplicaManager,
        is_short: Callable[[], bool],
        timing: Timing,
        supervisor: Supervisor,
    ) -> None:
        """`is_short` returns whether the volume is near its reserve. It is called in a thread."""
        self._engine = engine
        self._store = store
        self._readers = readers
        self._replicas = replicas
        self._is_short = is_short
        self._timing = timing
        self._step = partial(supervisor.step, Work.SPACE_RETURN)
        self._throttle = LogThrottle()

    async def run(self) -> None:
        """Do a round every `Timing.retention_check_seconds`, until cancelled."""
        while True:
            await asyncio.sleep(self._timing.retention_check_seconds)
            await self.round()

    async def round(self) -> None:
        """Do one round. A step that fails, for one file or for all, does not prevent the others."""
        in_thread = partial(self._engine.loop.run_in_executor, self._readers)
        is_short = False
        looks: list[FileLook] = []
        missing: dict[ReplicaKey, MissingReplicaError] = {}
        with self._step():
            is_short = await in_thread(self._is_short)
        with self._step():
            keys = [replica.key for replica in self._engine.replicas.values()]
            looks, missing = await in_thread(look_at, self._store, keys)
        for key, error in missing.items():
            with self._step():
                self._on_removed(key, error)
        for look in looks:
            replica = self._engine.replicas.get(look.key.group_id)
            if look.has_truncated_rows and replica is not None and replica.key == look.key:
                with self._step():
                    self._engine.commits.delete_truncated_rows(replica)
        end_at = self._engine.loop.time() + ROUND_SECONDS
        for look in looks:
            if not look.is_due(is_short=is_short):
                continue
            with self._step():
                await self._reclaim(look.key, look.part, end_at)
            if self._engine.loop.time() >= end_at:
                break
        with self._step():
            self._engine.return_snapshot_space(is_short=is_short)
        # by a clock that is not in the majority, everything in the trash may seem to be old
        grace_seconds = TRASH_GRACE_SECONDS if self._engine.clocks.is_trusted else float("inf")
        with self._step():
            await in_thread(self._store.empty_trash, 0.0 if is_short else grace_seconds)

    async def _reclaim(self, key: ReplicaKey, part: FilePart, end_at: float) -> None:
        replica = self._engine.replicas.get(key.group_id)
        reclaim = partial(self._store.reclaim, key, part)
        try:
            while True:
                released = await self._replicas.on_file(key, part, self._readers, reclaim)
                self._engine.counters.space_returned_bytes_total += released.volume_bytes
                if released.is_complete or self._engine.loop.time() >= end_at:
                    break
        except ReplicaClosedError as error:  # closed in the meantime, or it could not be opened again
            if replica is not None and replica.key == key:
                self._engine.break_replica(replica, error)
            return
        except CommitFailedError:
            if part is FilePart.LOG:
                return  # the writer has already reported that the process must end
            raise
        except DamagedReplicaError as error:
            self._break(key, error)
        except (ReplicaStorageError, OSError) as error:
            if self._throttle.is_due(key):
                log.warning("space_return_postponed", group_id=key.group_id, reason=str(error))
        reason = self._store.why_without_holes(key, part)
        if reason is not None and self._throttle.is_due():
            log.warning("file_without_holes", group_id=key.group_id, reason=reason)

    def _on_removed(self, key: ReplicaKey, error: MissingReplicaError) -> None:
        """Have the group rebuild a replica whose file was removed. If there is no other voter, keep it: its open file is the only copy."""
        replica = self._engine.replicas.get(key.group_id)
        if replica is not None and replica.key == key and replica.core.membership.voters == (key.replica_id,):
            raise error
        self._break(key, error)

    def _break(self, key: ReplicaKey, error: ReplicaStorageError) -> None:
        replica = self._engine.replicas.get(key.group_id)
        if replica is not None and replica.key == key:
            self._engine.break_replica(replica, error)
