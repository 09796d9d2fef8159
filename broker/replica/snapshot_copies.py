"""Keep copies of state files, from which snapshots are streamed.

A copy serves all receivers that come while the log still continues it, and each of them may resume where its stream was interrupted.
It is deleted when it was idle for `Timing.snapshot_idle_seconds`, when a newer one replaces it, when the replica is closed, and when the
disk is short. A crash leaves it for the next start to delete. Everything here runs on the loop except the work on files.

Invariant: a copy is not deleted while a stream uses it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor

import structlog
from raftmq.broker.base.limits import Limits
from raftmq.broker.base.log_throttle import LogThrottle
from raftmq.broker.replica.replica import Replica
from raftmq.fsm.state_machine import StateMachine
from raftmq.storage.errors import StorageFullError, StorageUnavailableError
from raftmq.storage.log_store import ReplicaKey
from raftmq.storage.snapshot_spool import SnapshotSpools
from raftmq.storage.state_store import StateCopy, StateStore
from raftmq.types import ReplicaId

log = structlog.get_logger(__name__)

_COUNTER_BITS = 16


class SharedCopy:
    """A copy and its users."""

    __slots__ = ("copy", "idle_since", "is_newest", "key", "snapshot_id", "users")

    def __init__(self, key: ReplicaKey, copy: StateCopy, snapshot_id: int, now: float) -> None:
        self.key = key
        self.copy = copy
        self.snapshot_id = snapshot_id
        """Identifies the copy to receivers that resume."""
        self.users = 0
        """Streams that read the copy."""
        self.idle_since = now
        """Loop time at which the last user ended."""
        self.is_newest = True
        """Whether new streams may use it. Otherwise it is deleted with its last user."""

    def serves(self, replica: Replica[StateMachine], target: ReplicaId) -> bool:
        """Return whether the log still continues the copy, and the copy names the receiver as a member."""
        log_start = max(
            replica.log_start.index, replica.pending_truncation.index if replica.pending_truncation is not None else 0
        )
        return self.copy.position.index >= log_start and target in self.copy.membership.member_ids


class SnapshotCopies:
    """The copies of one engine's replicas."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        store: StateStore,
        threads: Executor,
        limits: Limits,
        space: SnapshotSpools,
        now_ms: Callable[[], int],
    ) -> None:
        """`space` knows the room on the volume, and `now_ms` is the wall clock."""
        self._loop = loop
        self._store = store
        self._threads = threads
        self._limits = limits
        self._space = space
        self._now_ms = now_ms
        self._copies: list[SharedCopy] = []
        """All copies on disk, the oldest first."""
        self._making = asyncio.Lock()
        """One copy is made at a time, so that streams and installations keep a thread."""
        self._distrusted: dict[ReplicaKey, float] = {}
        """Replicas whose copy could not be read back, with the loop time. They are streamed from their files."""
        self._refused_throttle = LogThrottle()
        self._is_closed = False
        self.made_total = 0
        """Copies made."""

    @property
    def count(self) -> int:
        """Return the number of copies on disk."""
        return len(self._copies)

    @property
    def disk_bytes(self) -> int:
        """Return the bytes that all copies take of the volume."""
        return sum(one.copy.file_bytes for one in self._copies)

    # ------------------------------------------------------------------------------------------------ use

    async def acquire(self, replica: Replica[StateMachine], target: ReplicaId) -> SharedCopy | None:
        """Return a copy of the replica's state for a stream to `target`, or None if the snapshot must be read from the file itself.

        The caller must `release` it. Raises `ReplicaClosedError`.
        """
        if not replica.is_disk_backed or replica.key in self._distrusted:
            return None
        async with self._making:
            shared = self._find(replica, target)
            if shared is None:
                shared = await self._make(replica)
        if shared is not None:
            shared.users += 1
        return shared

    def release(self, shared: SharedCopy) -> None:
        """End a use."""
        shared.users -= 1
        shared.idle_since = self._loop.time()
        if not shared.users and not shared.is_newest:
            self._delete(shared)

    def distrust(self, shared: SharedCopy) -> None:
        """Do not use a copy whose rows do not read back, nor others of its replica for a while: its file will show whether it is damaged."""
        self._distrusted[shared.key] = self._loop.time()
        self._replace(shared)

    def _find(self, replica: Replica[StateMachine], target: ReplicaId) -> SharedCopy | None:
        for shared in self._copies:
            if shared.key == replica.key and shared.is_newest:
                if shared.serves(replica, target):
                    return shared
                self._replace(shared)
                break
        return None

    async def _make(self, replica: Replica[StateMachine]) -> SharedCopy | None:
        try:
            copy = await self._copy(replica)
        except (StorageFullError, StorageUnavailableError) as error:
            if self._refused_throttle.is_due(replica.key):
                log.warning("snapshot_copy_refused", group_id=replica.group_id, reason=str(error))
            return None
        if copy is None:
            return None
        self.made_total += 1
        number = (self._now_ms() << _COUNTER_BITS) + self.made_total % (1 << _COUNTER_BITS)
        shared = SharedCopy(replica.key, copy, number, self._loop.time())
        self._copies.append(shared)
        # otherwise it is deleted after its first user, whose stream ends immediately
        shared.is_newest = not replica.is_closed and not self._is_closed
        log.info("snapshot_copied", group_id=replica.group_id, index=copy.state_index, bytes=copy.file_bytes)
        return shared

    async def _copy(self, replica: Replica[StateMachine]) -> StateCopy | None:
        """Make a copy in a thread, unless the state is so small that the file itself serves. Raises `StorageFullError` and others."""
        size, has_room = await self._loop.run_in_executor(self._threads, self._measure, replica.key)
        if size < self._limits.snapshot_copy_bytes_min or self._is_closed:
            return None
        if not has_room:
            raise StorageFullError(replica.key, f"no room for a copy of {size} bytes beside the reserve")
        if not self._has_place():
            raise StorageFullError(replica.key, f"{self.count} copies are in use, which is the limit")
        return await self._loop.run_in_executor(self._threads, self._store.copy_state, replica.key)

    def _measure(self, key: ReplicaKey) -> tuple[int, bool]:
        size = self._store.state_bytes(key)
        return size, self._space.has_room(size)

    def _has_place(self) -> bool:
        """Return whether there may be one more copy, after deleting the one that was idle longest if need be."""
        if len(self._copies) < self._limits.snapshot_copies_max:
            return True
        idle = [one for one in self._copies if not one.users]
        if idle:
            self._replace(min(idle, key=lambda one: one.idle_since))
        return bool(idle)

    # ------------------------------------------------------------------------------------------------ the end

    def forget(self, key: ReplicaKey) -> None:
        """Give up the copies of a replica that is closed."""
        self._distrusted.pop(key, None)
        for shared in [one for one in self._copies if one.key == key]:
            self._replace(shared)

    def drop_idle(self, idle_seconds: float) -> None:
        """Delete the copies that nobody has used for so long."""
        before = self._loop.time() - idle_seconds
        self._distrusted = {key: since for key, since in self._distrusted.items() if since > before}
        for shared in [one for one in self._copies if not one.users and one.idle_since <= before]:
            self._replace(shared)

    def close(self) -> None:
        """Make no more copies, and delete those that nobody uses."""
        self._is_closed = True
        for shared in list(self._copies):
            self._replace(shared)

    def _replace(self, shared: SharedCopy) -> None:
        """Give a copy to no more streams. Delete it when its last one has ended."""
        shared.is_newest = False
        if not shared.users:
            self._delete(shared)

    def _delete(self, shared: SharedCopy) -> None:
        if shared in self._copies:
            self._copies.remove(shared)
            try:
                self._threads.submit(shared.copy.close)
            except RuntimeError:  # the threads have ended with the process, and the next start deletes the file
                log.debug("snapshot_copy_left", group_id=shared.key.group_id)
