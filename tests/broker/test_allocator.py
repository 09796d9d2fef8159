"""The allocator's settings: a file that is opened takes little memory, also after many were closed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FILES = 40
"""So many that their lists of pages fill a heap of glibc, 64 MiB."""
KIB_MAX = 100
"""Limit for each open file. With other settings glibc writes zeros into LMDB's list of 2 MiB, of every file or of some."""
PROGRAM = f"""
import sys
import threading
from pathlib import Path

from raftmq.broker.main import _tune_allocator
from raftmq.storage.lmdb_env import open_databases, open_environment


def anonymous_kib():
    with open("/proc/self/smaps_rollup") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("Anonymous:"))


def open_all(is_new):
    before = anonymous_kib()
    files = [open_environment(Path(sys.argv[1]) / f"{{n}}.mdb", 1 << 30, is_new=is_new) for n in range({FILES})]
    for file in files:
        open_databases(file, is_new=is_new)
    grown.append((anonymous_kib() - before) // {FILES})
    for file in files:
        file.close()


def run():  # on a thread, as in a broker: its heap is another than the one of the main thread
    open_all(is_new=True)
    open_all(is_new=False)


grown = []
_tune_allocator()
thread = threading.Thread(target=run)
thread.start()
thread.join()
print(*grown)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator")
def test_an_open_file_takes_little_memory_also_after_others_were_closed(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, timeout=60, check=True
    )

    opened, reopened = map(int, ended.stdout.split())
    assert opened < KIB_MAX
    assert reopened < KIB_MAX
