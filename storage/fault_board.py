"""Records which replica files a process reads, so that the next start knows which of them may have killed it.

Reading a page that the disk cannot return raises SIGBUS, and reading a damaged page may raise SIGSEGV or LMDB's own SIGABRT. No
Python code runs after such a signal. Two small files in the data directory inform the next start:

- `fault`: Python's fault handler writes to it on such a signal and on no other exit. A kill, a power failure or a lack of memory
  leaves it empty, since they say nothing about a file.
- `reading`: it has a slot for each thread with the replica that the thread touched last.

Neither is synced: a process's writes survive its death, and after a power failure no file is suspected.
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
"""Number of threads that touch files: writers, readers, the loop and the default executor. Further threads share slots."""
_FAULT_BYTES_MAX = 16 * 1024
_SLOT = struct.Struct("<QQ?7x")


class Fault(NamedTuple):
    """The memory fault that killed the previous process while it read files."""

    suspects: frozenset[ReplicaKey]
    """The replicas whose files its threads touched last."""
    trace: str
    """The output of Python's fault handler: the kind of fault, and the stacks."""


def last_fault(directory: Path) -> Fault | None:
    """Return the fault that killed the previous process of a data directory, or None if it ended in another way."""
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
    """The slot of the current thread."""

    number: int | None = None
    key: ReplicaKey | None = None


class FaultBoard:
    """The two files of a running process. If they cannot be written, no file is suspected later, and nothing else changes."""

    def __init__(self, directory: Path) -> None:
        """Replace the files of the previous process by new ones."""
        self._place = _Place()
        self._numbers = itertools.count()
        self._fault_path = directory / FAULT_FILE
        self._descriptor: int | None = None
        with suppress(OSError):
            self._fault_path.unlink(missing_ok=True)
            self._descriptor = os.open(directory / READING_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            os.pwrite(self._descriptor, bytes(SLOTS * _SLOT.size), 0)

    def catch_faults(self) -> None:
        """Record this process's faults from now on. Call it once, since a process has one fault handler."""
        with suppress(OSError):
            self._fault_file = self._fault_path.open("wb", buffering=0)
            faulthandler.enable(self._fault_file, all_threads=True)

    def touch(self, key: ReplicaKey) -> None:
        """Record that this thread is about to read a file of the replica."""
        place = self._place
        if place.key == key or self._descriptor is None:
            return
        if place.number is None:
            place.number = next(self._numbers) % SLOTS
        place.key = key
        with suppress(OSError):
            os.pwrite(self._descriptor, _SLOT.pack(*key, True), place.number * _SLOT.size)

    def close(self) -> None:
        """Stop recording, since no more files are read."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
