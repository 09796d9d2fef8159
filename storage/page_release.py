"""Gives the free pages of a live file back to the volume, where they are, as holes: nothing is copied, nothing moves.

LMDB keeps the pages that deletions free for its own later writes and never shrinks a file. A hole is made only where LMDB itself
could write next: in pages that the last commit's free list names and that no reader's view, and not the commit before the last,
still uses. LMDB never reads such a page before it writes it, and its writing fills the hole again.
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
"""One call's work: other replicas' commits wait behind it."""
HELD_BYTES_MIN = 256 * 1024
"""Freed by the last commit alone, above which an idle file is committed once more, since only then they may go."""

_KEEP_SIZE = 0x01
_PUNCH_HOLE = 0x02
_UNSUPPORTED = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


class HolesUnsupportedError(Exception):
    """The file system (or the operating system, or this LMDB) does not let us: compaction is the other way."""


class FileSpace(NamedTuple):
    """What a replica's file takes, and what of it is in use."""

    allocated_bytes: int
    """Of the volume."""
    used_bytes: int
    """Pages that hold something."""

    @property
    def idle_bytes(self) -> int:
        """What the volume could have back."""
        return max(0, self.allocated_bytes - self.used_bytes)


class Released(NamedTuple):
    """What one call gave back."""

    volume_bytes: int
    is_complete: bool
    """False: there is more, call again."""


def allocated_bytes(path: Path) -> int:
    """What a file takes of its volume: a hole takes nothing. 0 when there is no file."""
    try:
        return path.stat().st_blocks * 512
    except FileNotFoundError:
        return 0


class PageRelease:
    """The free pages of one open file. Used by the replica's writer alone, with no transaction open."""

    def __init__(self, path: Path, environment: lmdb.Environment, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._environment = environment
        self._clock = clock
        self._next_transaction_id = 0
        """Of the record that a call had no time for."""

    def release(self, used_pages: int, commit_again: Callable[[], int]) -> Released:
        """Make holes of free pages, as many as `RELEASE_SECONDS` allow. `commit_again` returns the used pages after it.

        Raises:
            HolesUnsupportedError: nothing was done.
        """
        before = allocated_bytes(self._path)
        descriptor = os.open(self._path, os.O_RDWR)  # the locks are on another file: closing this one ends none
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
            raise FreeListError(f"the file is at commit {free_list.transaction_id}, LMDB at {info['last_txnid']}")
        free_list.check(used_pages)
        return free_list

    def _oldest(self, free_list: FreeList) -> int:
        """The oldest commit that a reader may still look at: pages freed before it are not in use."""
        return min([free_list.transaction_id, *reader_transactions(self._environment)])

    def _is_held_by_last_commit(self, free_list: FreeList) -> bool:
        if not free_list.records or self._oldest(free_list) < free_list.transaction_id:
            return False
        last = free_list.records[-1]
        is_last = last.transaction_id == free_list.transaction_id
        return is_last and last.page_count * free_list.page_bytes >= HELD_BYTES_MIN

    def _punch(self, descriptor: int, free_list: FreeList) -> bool:
        """Whether all that may go has gone."""
        end_at = self._clock() + RELEASE_SECONDS
        oldest = self._oldest(free_list)
        for record in free_list.records:
            if not self._next_transaction_id <= record.transaction_id < oldest:
                continue
            for first, count in runs(descriptor, free_list, record):
                # only new holes count: those of earlier calls are passed by, so that each call gets on
                is_new = make_hole(descriptor, first * free_list.page_bytes, count * free_list.page_bytes)
                if is_new and self._clock() >= end_at:
                    self._next_transaction_id = record.transaction_id
                    return False
        self._next_transaction_id = 0
        return True


def reader_transactions(environment: lmdb.Environment) -> list[int]:
    """The commits that open read transactions see, of this process and of others."""
    rows = (line.split() for line in environment.readers().splitlines()[1:])
    return [int(row[2]) for row in rows if len(row) == 3 and row[2] != "-"]


def make_hole(descriptor: int, start: int, length: int) -> bool:
    """Give a part of a file back to the volume: it reads as zeros. False when it was a hole already."""
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
