"""Keeps a node's disk from filling up: LMDB reports a full disk as an I/O error, which would end the process.

Appends stop when the free space minus the bytes in flight falls below the reserve. A ballast file occupies space that is
released then for the remaining necessary writes (votes, hard state, trims), if need be before any file is opened.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from raftmq.storage.durable_files import sync_directory

GIB = 1024**3
MIB = 1024**2

BALLAST_BYTES = 64 * MIB
"""Enough for about a hundred small commits of each of a hundred replicas. The reserve itself is never allocated."""

SHORT_FRACTION = 4
"""The disk counts as short when the spare bytes are less than the reserve divided by this number."""

START_BYTES = 2 * MIB
START_BYTES_PER_REPLICA = 16 * 1024
"""Bytes that a start writes for each replica before it can look at the disk: LMDB's lock file and one commit. `START_BYTES` covers the
registry's first commit. Without room for them LMDB reports "I/O error", or a signal kills the process."""


NEW_SUFFIX = ".new"
COPY_SUFFIX = ".copy"
"""Parts of the names of files that belong to one process: new files without their names, arriving snapshots, and copies."""
TIMES_SUFFIX = ".times"
"""The end of the name of the file with the bounds for searches by time, which lies beside a replica's log."""


def remove_leftovers(groups: Path) -> int:
    """Remove the files of an earlier process that no later one uses. Return their number."""
    leftovers = [path for suffix in (NEW_SUFFIX, COPY_SUFFIX) for path in groups.glob(f"*{suffix}*")]
    times = (path for path in groups.glob(f"*{TIMES_SUFFIX}") if not path.with_suffix(".mdb").exists())
    leftovers.extend(times)  # a crash ended the retirement of their replicas
    for path in leftovers:
        path.unlink()
    return len(leftovers)


class VolumeFullError(Exception):
    """The volume has too little space for a start. Nothing was opened."""


def start_bytes(directory: Path) -> int:
    """Return how many bytes must be free for a broker to start in a data directory."""
    return START_BYTES + START_BYTES_PER_REPLICA * sum(1 for _ in (directory / "groups").glob("*.mdb"))


def default_reserve_bytes(volume_bytes: int) -> int:
    """Return min(max(2 GiB, 3 %), 20 %): on a big volume it leaves room to act, and a small one stays usable."""
    return min(max(2 * GIB, volume_bytes * 3 // 100), volume_bytes * 20 // 100)


def megabytes(size: int) -> str:
    """Format a number of bytes in megabytes."""
    return f"{size / 1e6:,.1f} MB"


class DiskReserve:
    """The reserve of one volume. Its probes are injectable. Any thread may call `has_room`."""

    def __init__(
        self,
        directory: Path | str,
        reserve_bytes: int | None = None,
        *,
        ballast_bytes: int = BALLAST_BYTES,
        free_bytes: Callable[[], int] | None = None,
        volume_bytes: Callable[[], int] | None = None,
    ) -> None:
        """Set the sizes without touching the disk. A `reserve_bytes` of None means `default_reserve_bytes` of the volume."""
        self._directory = Path(directory)
        self._ballast = self._directory / "ballast"
        self._ballast_bytes = ballast_bytes
        self._probe_free = free_bytes or (lambda: shutil.disk_usage(self._directory).free)
        self._probe_volume = volume_bytes or (lambda: shutil.disk_usage(self._directory).total)
        self._configured_bytes = reserve_bytes
        """Written by `set_reserve` only, so that no other thread can undo a change."""
        self.ballast_error = ""
        """The reason why the last attempt of `create_ballast` failed although the volume has room. Empty if it did not."""
        self._default_bytes: int | None = None
        """`default_reserve_bytes` of the volume as soon as it was needed. Written by `reserve_bytes` only."""

    @property
    def reserve_bytes(self) -> int:
        """Free bytes below which no append is accepted."""
        configured = self._configured_bytes
        if configured is not None:
            return configured
        default = self._default_bytes
        if default is None:
            default = self._default_bytes = default_reserve_bytes(self._probe_volume())
        return default

    def set_reserve(self, reserve_bytes: int | None) -> None:
        """Change the reserve. None means `default_reserve_bytes` of the volume."""
        self._configured_bytes = reserve_bytes

    def free_bytes(self) -> int:
        """Return how many bytes this process could still write to the volume."""
        return self._probe_free()

    def has_room(self, bytes_in_flight: int) -> bool:
        """Return whether appends may go on while this many accepted bytes are not yet written.

        The space of a released ballast does not count as room. The ballast is restored first, so that a full disk does not
        look free again.
        """
        return self.spare_bytes() >= bytes_in_flight

    def usable_bytes(self) -> int:
        """Return the free bytes to compare with the reserve. The bytes of a released ballast are subtracted, since it will be restored."""
        owed_bytes = 0 if self.has_ballast else self._ballast_bytes
        return max(0, self.free_bytes() - owed_bytes)

    def spare_bytes(self) -> int:
        """Return how many bytes may still be written before appends stop. Negative below the reserve."""
        return self.usable_bytes() - self.reserve_bytes

    def is_short(self) -> bool:
        """Return whether the reserve is near or reached, so that free pages should be returned to the volume."""
        return self.spare_bytes() < self.reserve_bytes // SHORT_FRACTION

    def has_room_for_entries(self, bytes_in_flight: int) -> bool:
        """Return whether entries that a leader has accepted may be written. The limit is lower than that for new appends.

        The commands that free space come after these entries in the log: a replica that refused the entries would never
        learn of a trim.
        """
        return self.free_bytes() - bytes_in_flight >= self.reserve_bytes // 2

    def copy_bytes(self) -> int:
        """Return how many bytes a compaction may write. It frees more than it writes, so it may use half of the free bytes."""
        return max(self.spare_bytes(), self.free_bytes() // 2)

    def prepare_opening(self) -> None:
        """Make room on a full volume before any file is opened, since even opening a file may write.

        The leftovers of an earlier process are removed: a copy of a state may have filled the volume. Then the ballast is released. The
        caller holds the lock of the directory.

        Raises:
            VolumeFullError: There is still no room for the writes of a start.
        """
        if self.free_bytes() < self.reserve_bytes:
            remove_leftovers(self._directory / "groups")
        if self.free_bytes() < self.reserve_bytes:
            self.release_ballast()
        free, needed = self.free_bytes(), self._start_bytes()
        if free < needed:
            raise VolumeFullError(
                f"the disk is full: the volume of {self._directory} has {megabytes(free)} free, and the broker needs "
                f"{megabytes(needed)} to start: free some space there (not in the data directory), or enlarge the volume"
            )

    def _start_bytes(self) -> int:
        return start_bytes(self._directory)

    @property
    def has_ballast(self) -> bool:
        """Whether the complete ballast file exists."""
        try:
            return self._ballast.stat().st_size >= self._ballast_bytes
        except FileNotFoundError:
            return False

    def create_ballast(self) -> bool:
        """Allocate the ballast durably, if the reserve stays free beside it. Return False if there is no room, or on a `ballast_error`.

        Call it again now and then to restore the ballast after a release.
        """
        self.ballast_error = ""
        if self.has_ballast:
            return True
        if self.free_bytes() - self._ballast_bytes < self.reserve_bytes:
            return False
        self._ballast.unlink(missing_ok=True)  # a crash may have left an incomplete one
        try:
            self._allocate_ballast()
        except OSError as error:
            self._ballast.unlink(missing_ok=True)
            self.ballast_error = str(error)
            return False
        sync_directory(self._directory)
        return True

    def _allocate_ballast(self) -> None:
        descriptor = os.open(self._ballast, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, self._ballast_bytes)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def release_ballast(self) -> bool:
        """Return the ballast's space to the volume. Return False if there was no ballast."""
        if not self._ballast.exists():
            return False
        self._ballast.unlink()
        sync_directory(self._directory)
        return True
