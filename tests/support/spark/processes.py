"""Find Spark's processes by their parents, so that tests kill only their own processes."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

END_SECONDS = 30


def kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def parents() -> dict[int, int]:
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:  # it ended
                continue
    return found


def descendants(root: int) -> list[int]:
    by_parent: dict[int, list[int]] = {}
    for pid, parent in parents().items():
        by_parent.setdefault(parent, []).append(pid)
    found, todo = [], [root]
    while todo:
        children = by_parent.get(todo.pop(), [])
        found += children
        todo += children
    return found


def executor_pids(root: int) -> list[int]:
    """Return the executor JVMs below a worker of a standalone cluster."""
    return [pid for pid in descendants(root) if b"CoarseGrainedExecutorBackend" in b" ".join(arguments_of(pid))]


def arguments_of(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:  # it ended
        return []


def end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Terminate the processes, wait half a minute for each, and then kill those that remain with their children."""
    below = [pid for process in processes for pid in descendants(process.pid)]
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for pid in below:
        if b"spark" in b" ".join(arguments_of(pid)):  # another process may have got the pid in the meantime
            kill(pid)
