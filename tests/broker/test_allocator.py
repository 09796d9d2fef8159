"""The allocator's settings: a file that is opened takes little memory, and a large batch reuses memory that was freed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FILES = 40
"""So many that their lists of pages fill a heap of glibc, 64 MiB."""
OPENED_KIB_MAX = 100
"""Limit for each file that is opened first. With a top pad of 16 MiB, glibc writes zeros into LMDB's list of 2 MiB (measured: 277 KiB)."""
REOPENED_KIB_MAX = 800
"""Limit for each file that is opened after others were closed. Their lists of 1 MiB left room for a list of 2 MiB (measured: 665 KiB, with a
top pad of 16 MiB 945)."""
BATCH_KIB = 1200
"""A batch above 1 MiB. The default of `max.batch.bytes` permits 1,028 KiB, and a topic may permit more."""
FAULTS_MAX = 50
"""Limit of page faults for each batch. A batch that is mapped takes 300."""
FILES_PROGRAM = f"""
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
BATCHES = 20
BATCHES_PROGRAM = f"""
import resource

from raftmq.broker.main import _tune_allocator


def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


_tune_allocator()
batch = b"x" * {BATCH_KIB * 1024}
del batch
before = faults()
for _ in range({BATCHES}):
    batch = b"x" * {BATCH_KIB * 1024}
    del batch
print((faults() - before) // {BATCHES})
"""


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator")


def printed(program: str, *arguments: str) -> list[int]:
    """Run a program in a process of its own. Return the numbers that it prints."""
    ended = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=60, check=True
    )
    return [int(number) for number in ended.stdout.split()]


def test_an_open_file_takes_little_memory_also_after_others_were_closed(tmp_path: Path) -> None:
    opened, reopened = printed(FILES_PROGRAM, str(tmp_path))
    assert opened < OPENED_KIB_MAX
    assert reopened < REOPENED_KIB_MAX


def test_a_large_batch_takes_memory_that_an_earlier_one_has_freed() -> None:
    """Each page of a block that is mapped costs a page fault: 1,440 for a record of 1,200 KiB, and half of the rate."""
    (faults,) = printed(BATCHES_PROGRAM)
    assert faults < FAULTS_MAX
