"""Checks an LMDB file in a child process, because reading a damaged page through the map can raise SIGBUS, which ends the
process. Run as a program this module checks one file and prints the problem that it finds.

It prefers py-lmdb's own offline verifier, which walks the bytes and never maps the file. Builds without that verifier read
every page through cursors. The file must not be written during the check.
"""

from __future__ import annotations

import errno
import re
import signal
import subprocess
import sys
from pathlib import Path

import lmdb

CHECK_TIMEOUT_SECONDS = 60.0
"""Longest time that a start waits for one file. The verifier is pure Python. A file that takes longer is opened unverified and scrubbed later."""

_EXIT_DAMAGED = 3
SIGNALS_OF_DAMAGE = (signal.SIGBUS, signal.SIGSEGV, signal.SIGABRT)
"""The signals that a damaged page causes in its reader. Any other signal came from outside and says nothing about the file."""
_LONG_ROW = re.compile(r"freeDB DB: overflow page \d+ header mp_pages (\d+) != OVPAGES\(\d+\)=(\d+)")


def verify_in_child(path: Path, *, timeout_seconds: float = CHECK_TIMEOUT_SECONDS) -> str | None:
    """Return None if the file is intact, or else its problem. Blocks. The file must be closed or idle.

    Raises `subprocess.TimeoutExpired` or `OSError` (see `CHECK_ERRORS`) if the check itself failed: no child process could be
    started, it ran out of memory, or somebody killed it. That is no reason to give up a replica.
    """
    done = subprocess.run(
        [sys.executable, "-P", "-m", "raftmq.storage.file_check", str(path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_seconds,
    )
    if done.returncode == 0:
        return None
    if -done.returncode in SIGNALS_OF_DAMAGE:
        return f"reading it ended a process with signal {-done.returncode}"
    if done.returncode == _EXIT_DAMAGED:
        return done.stdout.strip().splitlines()[0]
    said = done.stderr.strip()[-500:] or f"exit code {done.returncode}"
    raise OSError(f"the check of {path.name} failed: {said}")


CHECK_ERRORS = (OSError, subprocess.SubprocessError, MemoryError)
"""The errors that `verify_in_child` raises if it could not check the file."""


def walk_short_file(path: Path) -> str | None:
    """Return the problem of a file that is shorter than its pages, or None if the missing pages are not in use.

    Raises:
        OSError: The file cannot be checked now, and mapping it unchecked could kill the process.
    """
    try:
        return verify_in_child(path)
    except CHECK_ERRORS as error:
        if not has_walker():
            raise OSError(errno.EAGAIN, f"it is shorter than its pages and cannot be checked now: {error}") from error
        return find_problem(path)  # slow in this process, but as safe as in a child


def has_walker() -> bool:
    """Return whether this build of py-lmdb has the verifier that never maps the file."""
    try:
        import lmdb.verify  # noqa: F401
    except ImportError:
        return False
    return True


def find_problem(path: Path) -> str | None:
    """Check the file in this process. Return the first problem, or None."""
    try:
        from lmdb.verify import VerifyError, verify
    except ImportError:
        return _read_every_page(path)
    try:
        problems: list[str] = verify(str(path), subdir=False)  # type: ignore[no-untyped-call]
    except VerifyError as error:
        return str(error)
    except OSError as error:
        return problem_of_reading(error)
    problems = _without_long_rows(problems)
    return problems[0] if problems else None


def problem_of_reading(error: OSError) -> str:
    """Return the problem of a file with a place that the disk cannot return. Raises any other error: it says nothing about the file."""
    if error.errno != errno.EIO:
        raise error
    return f"unreadable: {error.strerror}"


def _without_long_rows(problems: list[str]) -> list[str]:
    """Drop the verifier's complaints about rows of the free list that LMDB shortened before its commit.

    Such a row keeps all its pages, which belong to it and are counted, but the verifier takes them for lost. If pages are really
    lost, the counts differ and the problem is kept.
    """
    spare = 0
    for match in filter(None, map(_LONG_ROW.fullmatch, problems)):
        spare += max(0, int(match[1]) - int(match[2]))
    if not spare:
        return problems
    count = re.compile(r"freeDB DB: walked (\d+) overflow pages, record says (\d+)")
    lost = re.compile(rf"{spare} page\(s\) are neither reachable nor in the freeDB -- a leak .*")

    def is_explained(problem: str) -> bool:
        if match := _LONG_ROW.fullmatch(problem):
            return int(match[1]) > int(match[2])
        if match := count.fullmatch(problem):
            return int(match[2]) - int(match[1]) == spare
        return lost.fullmatch(problem) is not None

    return [problem for problem in problems if not is_explained(problem)]


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
    """Check a file. Exit code 0: it is intact. Exit code 3: it is damaged, and standard output describes the damage."""
    problem = find_problem(Path(path))
    if problem is None:
        return 0
    sys.stdout.write(problem + "\n")
    return _EXIT_DAMAGED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
