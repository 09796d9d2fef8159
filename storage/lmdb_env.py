"""Opens LMDB files in the only allowed way, and translates LMDB's errors.

Every live file is opened with the default flags. NOSYNC and NOMETASYNC are forbidden, because a crash may undo the last
commit, which may be an acknowledged append or a vote. WRITEMAP is forbidden, because a full disk would become a signal that
kills the process. The same file is never opened twice in a process: its fcntl locks would vanish with the first close.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

import lmdb
from raftmq.storage.errors import CommitFailedError, DamagedReplicaError, StorageFullError, StorageUnavailableError

if TYPE_CHECKING:
    from lmdb import Cursor, _Database
    from raftmq.storage.log_store import ReplicaKey

DAMAGE_ERRORS = (
    lmdb.CorruptedError,
    lmdb.PageNotFoundError,
    lmdb.InvalidError,
    lmdb.VersionMismatchError,
    lmdb.NotFoundError,
    lmdb.IncompatibleError,
    lmdb.CursorFullError,
)
"""LMDB's errors for damaged pages (NotFound: a database is missing). Any other error of a read comes from the operating system or
from a limit, and is no reason to give up a healthy replica."""

_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_NOT_PERMITTED = (errno.EACCES, errno.EPERM, errno.EROFS)

_SPARE_TRANSACTIONS = 4
"""Read transactions kept for reuse per file, as many as the broker has reader threads."""
_UNDISTURBED_ROWS_MAX = 512
"""Rows written in one undisturbed block, which takes 0.6 ms. A transaction may have thousands, and other threads run between blocks."""

Undisturbed = Callable[[int], AbstractContextManager[None]]
"""Returns a context for writing this number of rows, in which other threads cannot take the GIL at each row."""


def disturbed(_rows: int) -> AbstractContextManager[None]:
    """Return a context without effect: an `Undisturbed` for places where no other thread is busy."""
    return nullcontext()


class Databases(NamedTuple):
    """The three databases of a log's file."""

    log: _Database
    meta: _Database
    state: _Database


class StateDatabases(NamedTuple):
    """The two databases of a state file."""

    rows: _Database
    meta: _Database


def open_environment(path: Path, map_bytes: int, *, is_new: bool = False) -> lmdb.Environment:
    """Open a replica's file. Commits to an `is_new` file do not sync, since it has no meaning until it is synced and renamed."""
    return lmdb.open(
        str(path),
        map_size=map_bytes,
        subdir=False,
        create=is_new,
        sync=not is_new,
        max_dbs=len(Databases._fields),
        max_spare_txns=_SPARE_TRANSACTIONS,
    )


def open_databases(environment: lmdb.Environment, *, is_new: bool = False) -> Databases:
    """Return the handles of a replica's databases."""
    with environment.begin(write=True) as transaction:
        return Databases(
            environment.open_db(b"log", transaction, create=is_new),
            environment.open_db(b"meta", transaction, create=is_new),
            environment.open_db(b"state", transaction, create=is_new),
        )


def open_state_databases(environment: lmdb.Environment, *, is_new: bool = False) -> StateDatabases:
    """Return the handles of a state file's databases."""
    with environment.begin(write=True) as transaction:
        return StateDatabases(
            environment.open_db(b"rows", transaction, create=is_new),
            environment.open_db(b"meta", transaction, create=is_new),
        )


def put_rows(
    cursor: Cursor[bytes], rows: Sequence[tuple[bytes, bytes]], undisturbed: Undisturbed, *, append: bool = False
) -> int:
    """Put rows into the cursor's database and return how many were new. With `append` the keys must be sorted and follow the last one."""
    added = 0
    for first in range(0, len(rows), _UNDISTURBED_ROWS_MAX):
        part = rows[first : first + _UNDISTURBED_ROWS_MAX]
        with undisturbed(len(part)):
            added += cursor.putmulti(part, append=append)[1]
    return added


def lock_path(path: Path) -> Path:
    """Return the path of LMDB's lock file. It holds the reader table, which is worthless after the data file is closed."""
    return path.with_name(path.name + "-lock")


def remove_environment(path: Path) -> None:
    """Remove a closed file and its lock file, if they exist."""
    path.unlink(missing_ok=True)
    lock_path(path).unlink(missing_ok=True)


def is_volume_full(error: BaseException) -> bool:
    """Return whether the error means that the volume is full. LMDB passes the operating system's error code on."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return isinstance(error, lmdb.DiskError) or "No space left" in str(error)


def is_out_of_resources(error: BaseException) -> bool:
    """Return whether the operating system has no descriptor or memory for an opening."""
    return _is_one_of(error, _OUT_OF_RESOURCES)


def _is_one_of(error: BaseException, numbers: tuple[int, ...]) -> bool:
    """Return whether the error is one of these of the operating system. LMDB's error has the system's text, but no number."""
    if isinstance(error, OSError):
        return error.errno in numbers
    return isinstance(error, lmdb.Error) and any(os.strerror(number) in str(error) for number in numbers)


class reading:  # noqa: N801 -- a context like those of contextlib, but entered for every look at a file
    """Translate LMDB's errors of a read."""

    __slots__ = ("_key",)

    def __init__(self, key: ReplicaKey) -> None:
        self._key = key

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        translate(self._key, error)


def translate(key: ReplicaKey, error: BaseException | None) -> None:
    """Translate an error of LMDB to one of the replica. Other errors are left to the caller."""
    if isinstance(error, DAMAGE_ERRORS):
        raise DamagedReplicaError(key, f"unreadable: {error}") from error
    if isinstance(error, lmdb.Error):
        raise StorageUnavailableError(key, f"cannot be read now: {error}") from error


class committing:  # noqa: N801 -- as above: entered for every write
    """Translate LMDB's errors of a transaction on a live file.

    A full map is detected when pages are allocated, before anything is written: the transaction was aborted and may be tried
    again. Damage is detected in pages that are read in order to change them, or the free list, also before anything is written: only this
    replica is concerned, and ending the process would not help, since the next one would meet the same page. A full volume is
    detected while pages or the meta page are written: the outcome is unknown, as after any other error.
    """

    __slots__ = ("_key",)

    def __init__(self, key: ReplicaKey) -> None:
        self._key = key

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, lmdb.MapFullError):
            raise StorageFullError(self._key, f"the file's map is full: {error}") from error
        if isinstance(error, DAMAGE_ERRORS):
            raise DamagedReplicaError(self._key, f"cannot be changed: {error}") from error
        if isinstance(error, lmdb.Error):
            raise CommitFailedError(self._key, f"commit failed: {error}") from error


@contextmanager
def building(key: ReplicaKey, temporary: Path) -> Iterator[None]:
    """Translate errors of building a new file beside the live one, and remove the new file. Nothing was applied.

    A directory in which no file may be created concerns the new replicas only: others write to files that are open.
    """
    try:
        yield
    except BaseException as error:
        remove_environment(temporary)
        if isinstance(error, lmdb.MapFullError) or is_volume_full(error):
            raise StorageFullError(key, f"no room for a new file: {error}") from error
        if is_out_of_resources(error):
            raise StorageUnavailableError(key, f"a new file cannot be opened now: {error}") from error
        if _is_one_of(error, _NOT_PERMITTED):
            raise StorageUnavailableError(key, f"a new file is not permitted: {error}") from error
        if isinstance(error, (lmdb.Error, OSError)):
            raise CommitFailedError(key, f"a new file could not be written: {error}") from error
        raise
