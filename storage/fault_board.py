"""Notes which replica files a process reads, so that the next start knows which of them may have ended it.

A page that the disk cannot give raises SIGBUS in its reader, and a damaged one may raise SIGSEGV or LMDB's own SIGABRT; no handler of ours
survives that. Two small files in the data directory tell the next start: `fault`, which Python's fault handler writes to in such a
death and no other (a kill, a power failure or a lack of memory says nothing of a file), and `reading`, a place for each thread with
the replica that it touched last. Neither is synced: what a process wrote outlives it, and after a power failure nobody is suspected.
"""

from __future__ import annotations

import faulthandler
import itertools
import os
import struct
import threading
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from raftmq.storage.log_store import ReplicaKey
from raftmq.types import GroupId, ReplicaId

FAULT_FILE = "fault"
READING_FILE = "reading"
SLOTS = 64
"""Threads that touch files: writers, readers, the loop and the default executor. Two share a place if there are more."""
_FAULT_BYTES_MAX = 16 * 1024
_SLOT = struct.Struct("<QQ?7x")


class Fault(NamedTuple):
    """How the process before this one died of what it read."""

    suspects: frozenset[ReplicaKey]
    """The replicas whose files its threads touched last."""
    trace: str
    """What Python's fault handler wrote: the kind of fault, and the stacks."""


def last_fault(directory: Path) -> Fault | None:
    """The fault that ended the last process of a data directory; None when it ended in another way."""
    try:
        with (directory / FAULT_FILE).open("rb") as file:
            trace = file.read(_FAULT_BYTES_MAX).decode(errors="replace")
        if not trace:
            return None
        board = (directory / READING_FILE).read_bytes()
    except OSError:
        return None
    whole = len(board) - len(board) % _SLOT.size
    return Fault(
        frozenset(
            ReplicaKey(GroupId(group_id), ReplicaId(replica_id))
            for group_id, replica_id, is_taken in _SLOT.iter_unpack(board[:whole])
            if is_taken
        ),
        trace,
    )


class _Place(threading.local):
    """The place of one thread."""

    number: int | None = None
    key: ReplicaKey | None = None


class FaultBoard:
    """The two files of a running process. Where they cannot be written no file is suspected later, and nothing else is different."""

    def __init__(self, directory: Path) -> None:
        """Begin new files in the place of the last process's."""
        self._place = _Place()
        self._numbers = itertools.count()
        self._fault_path = directory / FAULT_FILE
        self._descriptor: int | None = None
        with suppress(OSError):
            self._fault_path.unlink(missing_ok=True)
            self._descriptor = os.open(directory / READING_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            os.pwrite(self._descriptor, bytes(SLOTS * _SLOT.size), 0)

    def catch_faults(self) -> None:
        """Have this process's faults written down from now on. Once in a process, which has one handler."""
        with suppress(OSError):
            self._fault_file = self._fault_path.open("wb", buffering=0)
            faulthandler.enable(self._fault_file, all_threads=True)

    def touch(self, key: ReplicaKey) -> None:
        """Note that this thread is about to read a file of the replica."""
        place = self._place
        if place.key == key or self._descriptor is None:
            return
        if place.number is None:
            place.number = next(self._numbers) % SLOTS
        place.key = key
        with suppress(OSError):
            os.pwrite(self._descriptor, _SLOT.pack(*key, True), place.number * _SLOT.size)

    def close(self) -> None:
        """End the notes: nothing is read any more."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
