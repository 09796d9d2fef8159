"""Checks an LMDB file in a child process: reading a damaged page through the map can raise SIGBUS, which no handler
of ours survives. Run as a program it checks one file and prints what it finds.

Prefers py-lmdb's own offline verifier (a byte walker that never maps the file); builds without it read every page
through cursors. Must not be used on a file that is being written.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import lmdb

CHECK_TIMEOUT_SECONDS = 3600.0
"""A 64 GiB file at disk speed; the verifier is pure Python."""

_EXIT_DAMAGED = 3


def verify_in_child(path: Path, *, timeout_seconds: float = CHECK_TIMEOUT_SECONDS) -> str | None:
    """None when the file is sound, else what is wrong with it. Blocks; the file must be closed or idle.

    Raises `subprocess.TimeoutExpired` and `OSError` when the check itself could not be made.
    """
    done = subprocess.run(
        [sys.executable, "-m", "raftmq.storage.file_check", str(path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_seconds,
    )
    if done.returncode == 0:
        return None
    if done.returncode < 0:
        return f"reading it ended a process with signal {-done.returncode}"
    if done.returncode == _EXIT_DAMAGED:
        return done.stdout.strip().splitlines()[0]
    raise OSError(f"the check of {path.name} failed: {done.stderr.strip()[-500:]}")


def find_problem(path: Path) -> str | None:
    """The check itself, in this process."""
    try:
        from lmdb.verify import VerifyError, verify
    except ImportError:
        return _read_every_page(path)
    try:
        problems: list[str] = verify(str(path), subdir=False)  # type: ignore[no-untyped-call]
    except VerifyError as error:
        return str(error)
    return problems[0] if problems else None


def _read_every_page(path: Path) -> str | None:
    try:
        with lmdb.open(str(path), subdir=False, readonly=True, lock=False, create=False, max_dbs=8) as environment:
            with environment.begin(buffers=True) as transaction:
                names = [bytes(name) for name in transaction.cursor().iternext(values=False)]
            for name in names:
                database = environment.open_db(name, create=False)
                with environment.begin(buffers=True) as transaction:
                    for key, value in transaction.cursor(database):
                        sum(key)
                        sum(value[::4096])
    except lmdb.Error as error:
        return str(error)
    return None


def main(path: str) -> int:
    """Exit code 0: sound; 3: damaged, described on standard output."""
    problem = find_problem(Path(path))
    if problem is None:
        return 0
    sys.stdout.write(problem + "\n")
    return _EXIT_DAMAGED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
