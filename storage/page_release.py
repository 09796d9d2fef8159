"""Returns the free pages of a live file to the volume by making holes in the file: nothing is copied or moved.

LMDB keeps the pages that deletions free for its own later writes and never shrinks a file. Holes are made only in pages that LMDB
itself could write next: pages on the last commit's free list that are used neither by a reader's view nor by the commit before the
last. LMDB never reads such a page before it writes it, and the write fills the hole again.
"""

from __future__ import annotations

import ctypes
import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import lmdb
from raftmq.storage.free_list import FreeList, FreeListError, read_free_list, runs

RELEASE_SECONDS = 0.05
"""Maximum duration of one call, since the commits of other replicas wait for it."""
HELD_BYTES_MIN = 256 * 1024
"""If the last commit alone freed at least this many bytes, the file is committed again, since only then they may be released."""

_KEEP_SIZE = 0x01
_PUNCH_HOLE = 0x02
_UNSUPPORTED = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


class HolesUnsupportedError(Exception):
    """The file system, the operating system or this version of LMDB does not allow holes. Compaction is the alternative."""


class FileSpace(NamedTuple):
    """The space that a replica's file takes, and the part of it in use."""

    allocated_bytes: int
    """Bytes of the volume that the file takes."""
    used_bytes: int
    """Bytes of the pages in use."""

    @property
    def idle_bytes(self) -> int:
        """The bytes that could be returned to the volume."""
        return max(0, self.allocated_bytes - self.used_bytes)


class Released(NamedTuple):
    """The result of one release."""

    volume_bytes: int
    """Bytes returned to the volume."""
    is_complete: bool
    """False if more pages can be released by another call."""


def allocated_bytes(path: Path) -> int:
    """Return the bytes of the volume that a file takes. 0 if there is no file."""
    try:
        return bytes_on_volume(path.stat())
    except FileNotFoundError:
        return 0


def bytes_on_volume(found: os.stat_result) -> int:
    """Return the bytes of the volume that a file takes, which are none for holes."""
    return found.st_blocks * 512


class PageRelease:
    """The free pages of one open file. Used by the replica's writer alone, with no transaction open."""

    def __init__(self, path: Path, environment: lmdb.Environment, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._environment = environment
        self._clock = clock
        self._next_transaction_id = 0
        """The record at which the last call ran out of time, or 0."""

    def release(self, used_pages: int, commit_again: Callable[[], int]) -> Released:
        """Turn free pages into holes, as many as `RELEASE_SECONDS` allow. `commit_again` commits and returns the number of used pages.

        Raises:
            HolesUnsupportedError: Holes are not possible. Nothing was done.
        """
        before = allocated_bytes(self._path)
        # LMDB's locks are on another file, so closing this descriptor drops none
        descriptor = os.open(self._path, os.O_RDWR)
        try:
            free_list = self._read(descriptor, used_pages)
            if self._is_held_by_last_commit(free_list):
                free_list = self._read(descriptor, commit_again())
            is_complete = self._punch(descriptor, free_list)
        except FreeListError as error:
            raise HolesUnsupportedError(f"the free list of {self._path.name} cannot be used: {error}") from error
        except OSError as error:
            if error.errno in _UNSUPPORTED:
                raise HolesUnsupportedError(f"{self._path.name}: {error}") from error
            raise
        finally:
            os.close(descriptor)
        return Released(max(0, before - allocated_bytes(self._path)), is_complete)

    def _read(self, descriptor: int, used_pages: int) -> FreeList:
        free_list = read_free_list(descriptor)
        info = self._environment.info()
        if (free_list.transaction_id, free_list.page_count) != (info["last_txnid"], info["last_pgno"] + 1):
            raise FreeListError(
                f"the file is at commit {free_list.transaction_id}, but LMDB is at {info['last_txnid']}"
            )
        free_list.check(used_pages)
        return free_list

    def _oldest(self, free_list: FreeList) -> int:
        """Return the oldest commit that a reader may still see. Pages freed before it are not in use."""
        return min([free_list.transaction_id, *reader_transactions(self._environment)])

    def _is_held_by_last_commit(self, free_list: FreeList) -> bool:
        if not free_list.records or self._oldest(free_list) < free_list.transaction_id:
            return False
        last = free_list.records[-1]
        is_last = last.transaction_id == free_list.transaction_id
        return is_last and last.page_count * free_list.page_bytes >= HELD_BYTES_MIN

    def _punch(self, descriptor: int, free_list: FreeList) -> bool:
        """Make holes until the time is up. Return whether all releasable pages were handled."""
        end_at = self._clock() + RELEASE_SECONDS
        oldest = self._oldest(free_list)
        for record in free_list.records:
            if not self._next_transaction_id <= record.transaction_id < oldest:
                continue
            for first, count in runs(descriptor, free_list, record):
                # only new holes count against the time, so that each call makes progress beyond the holes of earlier ones
                is_new = make_hole(descriptor, first * free_list.page_bytes, count * free_list.page_bytes)
                if is_new and self._clock() >= end_at:
                    self._next_transaction_id = record.transaction_id
                    return False
        self._next_transaction_id = 0
        return True


def reader_transactions(environment: lmdb.Environment) -> list[int]:
    """Return the commits that the open read transactions of all processes see."""
    rows = (line.split() for line in environment.readers().splitlines()[1:])
    return [int(row[2]) for row in rows if len(row) == 3 and row[2] != "-"]


def make_hole(descriptor: int, start: int, length: int) -> bool:
    """Return a part of a file to the volume. It reads as zeros afterwards. Return False if it was a hole already."""
    try:
        if os.lseek(descriptor, start, os.SEEK_DATA) >= start + length:
            return False
    except OSError as error:
        if error.errno == errno.ENXIO:  # a hole up to the file's end
            return False
        raise
    if _FALLOCATE is None:
        raise OSError(errno.ENOSYS, "no fallocate")
    if _FALLOCATE(descriptor, _KEEP_SIZE | _PUNCH_HOLE, start, length):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return True


def _find_fallocate() -> Callable[[int, int, int, int], int] | None:
    function = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)
    if function is None:
        return None
    function.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    function.restype = ctypes.c_int
    found: Callable[[int, int, int, int], int] = function
    return found


_FALLOCATE = _find_fallocate()
