"""The memory of Spark's Python workers."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from raftmq.spark.base.worker_garbage import REUSED

PROGRAM = """
import resource
from raftmq.spark.base.worker_memory import keep_freed_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

keep_freed_memory()
for _ in range(2):
    before = faults()
    requests = [bytes(bytearray(b"x") * (3 << 20)) for _ in range(4)]
    del requests
print(faults() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator")
def test_a_worker_takes_the_memory_of_its_next_requests_without_page_faults():
    def faults(more: dict[str, str]) -> int:
        found = subprocess.run(
            [sys.executable, "-c", PROGRAM], env=os.environ | more, check=True, capture_output=True, text=True
        )
        return int(found.stdout)

    assert faults({REUSED: "1"}) < 500
    assert faults({}) > 3000  # nothing changes in other processes
