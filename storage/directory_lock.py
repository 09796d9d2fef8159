"""The lock of a data directory. Two brokers on one directory would destroy its files, and would vote twice.

It is a flock on the file `lock`, which contains the process id of the broker. The kernel releases it when the process ends.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from raftmq.storage.errors import DirectoryInUseError

LOCK_FILE = "lock"


class DirectoryLock:
    """Keeps everybody else off a data directory until it is closed."""

    def __init__(self, data_dir: Path) -> None:
        """Lock a directory that exists.

        Raises:
            DirectoryInUseError: Somebody else holds the lock, who may belong to this process.
            OSError: The file cannot be opened or locked.
        """
        self._descriptor = os.open(data_dir / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._write_process_id()
        except BaseException as error:
            self.close()
            if isinstance(error, BlockingIOError):
                raise DirectoryInUseError(
                    f"data directory {data_dir} is in use by another process (a broker or raftmq doctor)"
                ) from error
            raise

    def close(self) -> None:
        """Release the lock. Does nothing if it is released."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _write_process_id(self) -> None:
        """Write the number, which is for human readers. A full volume is checked later in a start, when the ballast is released."""
        os.ftruncate(self._descriptor, 0)
        try:
            os.write(self._descriptor, str(os.getpid()).encode())
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise


@contextmanager
def kept_from_brokers(data_dir: Path) -> Iterator[None]:
    """Let no broker start on the directory within the block, and leave nothing in it. Other readers may do the same.

    Raises:
        DirectoryInUseError: A broker holds the lock.
        OSError: The file cannot be opened or locked. A copy of a directory may have no such file.
    """
    with ExitStack() as held:
        with suppress(FileNotFoundError):
            # without a wait for a writer, if it is a named pipe
            descriptor = os.open(data_dir / LOCK_FILE, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            held.callback(os.close, descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                process_id = os.read(descriptor, 20).decode(errors="replace").strip()
                raise DirectoryInUseError(
                    f"{data_dir} is in use by a running broker{f' (process {process_id})' if process_id else ''}: stop it first"
                ) from None
        yield
