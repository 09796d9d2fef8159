"""Keeps the received part of a snapshot until it is complete: a little in memory, the rest in a file without a name.

The system deletes such a file with its last descriptor, so that a killed process leaves nothing on disk. Bytes are checked when
they are read again. This module must not interpret them.
"""

from __future__ import annotations

import errno
import os
import struct
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from crc32c import crc32c

_FRAME: Final = struct.Struct("<II")
"""Length and checksum of a chunk."""


class SpoolError(Exception):
    """A chunk cannot be stored, or cannot be read again."""


class SnapshotSpools:
    """Creates spools, and counts their files and bytes on disk."""

    def __init__(
        self,
        directory: Path | None,
        *,
        memory_bytes: int,
        files_max: int,
        disk_bytes_min: int = 0,
        spare_bytes: Callable[[], int] | None = None,
    ) -> None:
        """Set the bounds.

        Args:
            directory: Directory of the files. None keeps everything in memory, as in the simulator.
            memory_bytes: Bytes that one spool keeps in memory before it begins a file.
            files_max: Maximum number of open files. Each takes a descriptor.
            disk_bytes_min: Bytes that all spools may have on disk however full the volume is: a replica that lags must be repaired.
            spare_bytes: Returns the bytes of the volume that spools may still take. None: no limit.
        """
        self.directory = directory
        self.memory_bytes = memory_bytes
        self._files_max = files_max
        self._disk_bytes_min = disk_bytes_min
        self._spare_bytes = spare_bytes
        self._changing = threading.RLock()
        """Reentrant: while a thread holds it, the garbage collector may run there and close an abandoned spool."""
        self.disk_bytes = 0
        """Bytes of all spools on disk."""
        self.files = 0
        """Open files of all spools."""

    def new(self) -> SnapshotSpool:
        """Create an empty spool."""
        return SnapshotSpool(self)

    def take_files(self, count: int) -> None:
        """Count files that are about to be opened. Raises `SpoolError` if they are too many."""
        with self._changing:
            if self.files + count > self._files_max:
                raise SpoolError(f"snapshots that are being received use {self.files} files, which is the limit")
            self.files += count

    def open_file(self) -> int:
        """Open a file without a name. Raises `SpoolError`."""
        self.take_files(1)
        try:
            with tempfile.TemporaryFile(dir=self.directory) as file:
                return os.dup(file.fileno())
        except OSError as error:
            self.release(1, 0)
            raise SpoolError(f"cannot open a file for a snapshot: {error.strerror}") from error

    def has_room(self, size: int) -> bool:
        """Return whether the volume has room for so many bytes beside its reserve. It asks the volume, so it may block."""
        return self._spare_bytes is None or self._spare_bytes() >= size

    def take(self, size: int) -> None:
        """Reserve room for bytes that are about to be written. Raises `SpoolError` if the disk has none."""
        with self._changing:
            total = self.disk_bytes + size
            if total > self._disk_bytes_min and not self.has_room(size):
                raise SpoolError(f"no room on the disk for {total} bytes of snapshots")
            self.disk_bytes += size

    def release(self, files: int, size: int) -> None:
        """Release files that are closed, and the room for their bytes."""
        with self._changing:
            self.files -= files
            self.disk_bytes -= size


class _File:
    """The file of a spool. It is an object of its own because a finalizer closes it after the spool has been collected."""

    __slots__ = ("number", "size")

    def __init__(self, number: int) -> None:
        self.number = number
        self.size = 0


class SnapshotSpool:
    """Chunks of bytes in the order of their arrival. Used by one thread at a time, and closed with its last reference."""

    def __init__(self, spools: SnapshotSpools) -> None:
        self._spools = spools
        self._chunks: list[bytes] = []
        self.memory_bytes = 0
        """Bytes in memory."""
        self._file: _File | None = None
        self._end: weakref.finalize[..., SnapshotSpool] | None = None

    def append(self, chunk: bytes) -> None:
        """Store a chunk. Blocks on the disk. Raises `SpoolError`."""
        self._chunks.append(chunk)
        self.memory_bytes += len(chunk)
        if self._spools.directory is not None and self.memory_bytes > self._spools.memory_bytes:
            self._write_out()

    def _write_out(self) -> None:
        if self._file is None:
            self._file = _File(self._spools.open_file())
            self._end = weakref.finalize(self, _close, self._spools, self._file)
        data = b"".join(part for chunk in self._chunks for part in (_FRAME.pack(len(chunk), crc32c(chunk)), chunk))
        self._spools.take(len(data))
        at, self._file.size = self._file.size, self._file.size + len(data)
        self._chunks.clear()
        self.memory_bytes = 0
        view = memoryview(data)
        try:
            while view:
                written = os.pwrite(self._file.number, view, at)
                view, at = view[written:], at + written
        except OSError as error:
            what = "no room on the disk" if error.errno in (errno.ENOSPC, errno.EDQUOT) else str(error.strerror)
            raise SpoolError(f"a snapshot cannot be written: {what}") from error

    def chunks(self) -> Iterator[bytes]:
        """Read all chunks from the start. Raises `SpoolError` if the disk does not return the bytes that were written."""
        at, file = 0, self._file
        while file is not None and at < file.size:
            try:
                head = os.pread(file.number, _FRAME.size, at)
                length, checksum = _FRAME.unpack(head) if len(head) == _FRAME.size else (0, 0)
                chunk = os.pread(file.number, length, at + _FRAME.size)
            except OSError as error:  # of no file of a replica, so that it must not end the process
                raise SpoolError(f"the stored part of a snapshot cannot be read: {error.strerror}") from error
            if len(chunk) != length or crc32c(chunk) != checksum or not length:
                raise SpoolError("the stored part of a snapshot does not read back as it was written")
            yield chunk
            at += _FRAME.size + length
        yield from self._chunks

    def close(self) -> None:
        """Drop all chunks. Safe to call again."""
        self._chunks.clear()
        self.memory_bytes = 0
        self._file = None
        if self._end is not None:
            self._end()


def _close(spools: SnapshotSpools, file: _File) -> None:
    os.close(file.number)
    spools.release(1, file.size)
