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


def default_reserve_bytes(volume_bytes: int) -> int:
    """min(max(2 GiB, 3 %), 20 %): enough on a big volume to act, and a small one stays usable."""
    return min(max(2 * GIB, volume_bytes * 3 // 100), volume_bytes * 20 // 100)


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

    def spare_bytes(self) -> int:
        """What may still be written before appends stop; negative below the reserve."""
        owed_bytes = 0 if self.has_ballast else self._ballast_bytes
        return self.free_bytes() - owed_bytes - self.reserve_bytes

    def prepare_opening(self) -> None:
        """Before any file is opened: on a full volume even that may have to write, so the ballast goes."""
        if self.free_bytes() < self.reserve_bytes:
            self.release_ballast()

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
