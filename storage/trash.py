"""The folder of retired files, which are deleted after a grace period, so that a mistake can be noticed."""

from __future__ import annotations

import itertools
import os
import stat
import time
from contextlib import suppress
from pathlib import Path

from raftmq.storage.durable_files import make_directory, replace_file, sync_directory
from raftmq.storage.lmdb_env import lock_path


class Trash:
    """The trash of one data directory."""

    def __init__(self, folder: Path) -> None:
        """Create the folder."""
        self._folder = folder
        make_directory(folder)

    def put(self, path: Path) -> None:
        """Move a closed file here, durable on return. Does nothing if there is no file: it was moved before a crash."""
        if not path.exists():
            return
        make_directory(self._folder)  # an operator who needed space may have removed it with its content
        os.utime(path)  # its age in the trash counts from now
        targets = (self._folder / f"{path.name}.{number}" for number in itertools.count())
        replace_file(path, next(target for target in targets if not target.exists()))
        lock_path(path).unlink(missing_ok=True)

    def empty(self, grace_seconds: float, now_seconds: float | None = None) -> int:
        """Delete the files that were put here at least `grace_seconds` before now (seconds since the epoch). Return their number.

        A directory in the trash stays, since a person made it. A file that cannot be deleted does not prevent the deletion of
        others. At the end OSError is raised for the first such file.
        """
        failure: OSError | None = None
        limit = (time.time() if now_seconds is None else now_seconds) - grace_seconds
        count = 0
        with suppress(FileNotFoundError, NotADirectoryError):  # an operator may also empty or remove the trash
            for path in sorted(self._folder.iterdir()):
                try:
                    count += _delete_if_old(path, limit)
                except OSError as error:
                    failure = failure or error
            if count:
                sync_directory(self._folder)
        if failure is not None:
            raise failure
        return count


def _delete_if_old(path: Path, limit: float) -> bool:
    """Delete a file or link last changed at or before `limit` (seconds since the epoch). Return whether it was deleted."""
    try:
        status = path.lstat()
        if stat.S_ISDIR(status.st_mode) or status.st_mtime > limit:
            return False
        path.unlink()
    except FileNotFoundError:  # somebody else deleted it first
        return False
    return True
