"""Keeps a node's disk from filling up: LMDB reports a full disk as an I/O error, which would end the process.

Appends stop when free space minus what is in flight falls below the reserve. A ballast file holds space that is
released for what must still be written then (votes, hard state, trims), before any file is opened if need be.
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
"""Some hundred small commits for each of a hundred replicas; the reserve proper is never allocated."""

SHORT_FRACTION = 4
"""The disk counts as short when less than this part of the reserve is spare."""

START_BYTES = 2 * MIB
START_BYTES_PER_REPLICA = 16 * 1024
"""What a start writes before it can look at the disk: the registry's first commit, and of each replica LMDB's lock file and one
commit. Where there is no room for it LMDB says "I/O error", or a signal ends the process."""


class VolumeFullError(Exception):
    """A start would fail for want of space. Nothing was opened."""


def start_bytes(directory: Path) -> int:
    """What must be free for a broker to start in a data directory."""
    return START_BYTES + START_BYTES_PER_REPLICA * sum(1 for _ in (directory / "groups").glob("*.mdb"))


def default_reserve_bytes(volume_bytes: int) -> int:
    """min(max(2 GiB, 3 %), 20 %): enough on a big volume to act, and a small one stays usable."""
    return min(max(2 * GIB, volume_bytes * 3 // 100), volume_bytes * 20 // 100)


def megabytes(size: int) -> str:
    """A size for people."""
    return f"{size / 1e6:,.1f} MB"


class DiskReserve:
    """One volume's reserve. Probes are injectable; `has_room` may be called from any thread."""

    def __init__(
        self,
        directory: Path | str,
        reserve_bytes: int | None = None,
        *,
        ballast_bytes: int = BALLAST_BYTES,
        free_bytes: Callable[[], int] | None = None,
        volume_bytes: Callable[[], int] | None = None,
    ) -> None:
        """Touch nothing yet. `reserve_bytes=None` is `default_reserve_bytes` of the volume."""
        self._directory = Path(directory)
        self._ballast = self._directory / "ballast"
        self._ballast_bytes = ballast_bytes
        self._probe_free = free_bytes or (lambda: shutil.disk_usage(self._directory).free)
        self._probe_volume = volume_bytes or (lambda: shutil.disk_usage(self._directory).total)
        self._reserve_bytes = reserve_bytes

    @property
    def reserve_bytes(self) -> int:
        """Free bytes below which no append is taken."""
        if self._reserve_bytes is None:
            self._reserve_bytes = default_reserve_bytes(self._probe_volume())
        return self._reserve_bytes

    def free_bytes(self) -> int:
        """Bytes this process could still write on the volume."""
        return self._probe_free()

    def has_room(self, bytes_in_flight: int) -> bool:
        """Whether appends may go on, with so many bytes taken and not yet written.

        Space that a released ballast left is not room: it must come back first, so a full disk does not look free again.
        """
        return self.spare_bytes() >= bytes_in_flight

    def usable_bytes(self) -> int:
        """Free bytes less those that the ballast takes back when there is room for it: what is compared with the reserve."""
        owed_bytes = 0 if self.has_ballast else self._ballast_bytes
        return max(0, self.free_bytes() - owed_bytes)

    def spare_bytes(self) -> int:
        """What may still be written before appends stop; negative below the reserve."""
        return self.usable_bytes() - self.reserve_bytes

    def is_short(self) -> bool:
        """Whether the reserve is near or reached, so that free pages should go back to the volume."""
        return self.spare_bytes() < self.reserve_bytes // SHORT_FRACTION

    def has_room_for_entries(self, bytes_in_flight: int) -> bool:
        """Whether entries that a leader has taken may be written. They may when appends are no longer proposed.

        The commands that make room come after them in the log: a replica that refused them would never learn of a trim.
        """
        return self.free_bytes() - bytes_in_flight >= self.reserve_bytes // 2

    def copy_bytes(self) -> int:
        """How many bytes a compaction may write. It gives back more than that, so it may use half of what is free."""
        return max(self.spare_bytes(), self.free_bytes() // 2)

    def prepare_opening(self) -> None:
        """Before any file is opened: on a full volume even that may have to write, so the ballast goes.

        Raises:
            VolumeFullError: There is still no room for what a start writes.
        """
        if self.free_bytes() < self.reserve_bytes:
            self.release_ballast()
        free, needed = self.free_bytes(), self._start_bytes()
        if free < needed:
            raise VolumeFullError(
                f"the disk is full: the volume of {self._directory} has {megabytes(free)} free, and the broker needs "
                f"{megabytes(needed)} to start: free some there (not in the data directory), or make the volume larger"
            )

    def _start_bytes(self) -> int:
        return start_bytes(self._directory)

    @property
    def has_ballast(self) -> bool:
        """Whether the ballast file is there, whole."""
        try:
            return self._ballast.stat().st_size >= self._ballast_bytes
        except FileNotFoundError:
            return False

    def create_ballast(self) -> bool:
        """Allocate the ballast, durably, when the reserve is free beside it. False when there is no room for it.

        Also the way to restore it after a release: call it again now and then.
        """
        if self.has_ballast:
            return True
        if self.free_bytes() - self._ballast_bytes < self.reserve_bytes:
            return False
        self._ballast.unlink(missing_ok=True)  # a crash may have left a part of it
        descriptor = os.open(self._ballast, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, self._ballast_bytes)
            os.fsync(descriptor)
        except OSError:
            self._ballast.unlink(missing_ok=True)
            return False
        finally:
            os.close(descriptor)
        sync_directory(self._directory)
        return True

    def release_ballast(self) -> bool:
        """Give the ballast's space back to the volume; False when there was none."""
        if not self._ballast.exists():
            return False
        self._ballast.unlink()
        sync_directory(self._directory)
        return True
