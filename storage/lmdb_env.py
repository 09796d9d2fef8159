"""Opens LMDB files the one way they may be opened here, and says what an LMDB error means.

Default flags for every live file: no NOSYNC, NOMETASYNC (a crash may undo the last commit: an acknowledged append or
vote) or WRITEMAP (a full disk is a signal that kills the process). The same file is never opened twice in a process:
its fcntl locks would vanish with the first close.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
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
"""What LMDB says about pages that are not what they should be (NotFound: a database is missing). Anything else a
read raises is the operating system's or a limit's doing, and no reason to give a healthy replica up."""

_SPARE_TRANSACTIONS = 4
"""Read transactions kept for reuse per file: as many as the broker has reader threads."""
_UNDISTURBED_ROWS_MAX = 512
"""Rows put in one undisturbed block, some 0.6 ms: a transaction may have thousands, and other threads have their turn between."""

Undisturbed = Callable[[int], AbstractContextManager[None]]
"""Makes a block in which so many rows are written, and other threads are kept from taking the GIL at each of them."""


def disturbed(_rows: int) -> AbstractContextManager[None]:
    """Keep nobody from anything: an `Undisturbed` for where no other thread is busy."""
    return nullcontext()


class Databases(NamedTuple):
    """The three databases of a replica's file."""

    log: _Database
    meta: _Database
    state: _Database


def open_environment(path: Path, map_bytes: int, *, is_new: bool = False) -> lmdb.Environment:
    """Open a replica's file. `is_new` is for a file that has no meaning until it is synced and renamed: commits do not sync."""
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
    """The handles of a replica's databases."""
    with environment.begin(write=True) as transaction:
        return Databases(
            environment.open_db(b"log", transaction, create=is_new),
            environment.open_db(b"meta", transaction, create=is_new),
            environment.open_db(b"state", transaction, create=is_new),
        )


def put_rows(
    cursor: Cursor[bytes], rows: Sequence[tuple[bytes, bytes]], undisturbed: Undisturbed, *, append: bool = False
) -> int:
    """Put rows into the cursor's database; how many were new. `append`: their keys are in order and follow the last one."""
    added = 0
    for first in range(0, len(rows), _UNDISTURBED_ROWS_MAX):
        part = rows[first : first + _UNDISTURBED_ROWS_MAX]
        with undisturbed(len(part)):
            added += cursor.putmulti(part, append=append)[1]
    return added


def lock_path(path: Path) -> Path:
    """LMDB's lock file of a data file: the reader table, worth nothing once the file is closed."""
    return path.with_name(path.name + "-lock")


def remove_environment(path: Path) -> None:
    """Remove a closed file and its lock file, as far as they are there."""
    path.unlink(missing_ok=True)
    lock_path(path).unlink(missing_ok=True)


def is_volume_full(error: BaseException) -> bool:
    """Whether an error says that the volume has no room (LMDB passes the operating system's error code on)."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return isinstance(error, lmdb.DiskError) or "No space left" in str(error)


@contextmanager
def reading(key: ReplicaKey) -> Iterator[None]:
    """Translate LMDB's errors of a read."""
    try:
        yield
    except DAMAGE_ERRORS as error:
        raise DamagedReplicaError(key, f"unreadable: {error}") from error
    except lmdb.Error as error:
        raise StorageUnavailableError(key, f"cannot be read now: {error}") from error


@contextmanager
def committing(key: ReplicaKey) -> Iterator[None]:
    """Translate LMDB's errors of a transaction on a live file.

    Map full comes from page allocation, before anything is written: the transaction was aborted and may be tried again.
    A full volume shows as a write error while pages or the meta page go out: the outcome is unknown, as of any other.
    """
    try:
        yield
    except lmdb.MapFullError as error:
        raise StorageFullError(key, f"the file's map is full: {error}") from error
    except lmdb.Error as error:
        raise CommitFailedError(key, f"commit failed: {error}") from error


@contextmanager
def building(key: ReplicaKey, temporary: Path) -> Iterator[None]:
    """Translate errors while a new file is built beside the live one, and remove it: nothing was applied."""
    try:
        yield
    except BaseException as error:
        remove_environment(temporary)
        if isinstance(error, lmdb.MapFullError) or is_volume_full(error):
            raise StorageFullError(key, f"no room for a new file: {error}") from error
        if isinstance(error, (lmdb.Error, OSError)):
            raise CommitFailedError(key, f"a new file could not be written: {error}") from error
        raise
