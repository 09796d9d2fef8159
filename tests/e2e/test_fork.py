"""Real forks: clients work in a child unless one is open in the parent, in which case they refuse immediately."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from raftmq import sync
from raftmq.testing import LocalCluster

ROOT = Path(__file__).resolve().parents[2]
CHILD_SECONDS = 60
"""Time after which SIGALRM ends a child that hangs."""

pytestmark = pytest.mark.e2e

PRELUDE = f"""
import asyncio, os, signal, sys
import raftmq
from raftmq import sync
from raftmq.errors import ForkedClientError

SERVERS = sys.argv[1]

def in_child(work):
    child = os.fork()
    if child == 0:
        signal.alarm({CHILD_SECONDS})
        try:
            work()
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, os.waitstatus_to_exitcode(status)

def use_sync():
    with sync.Producer(bootstrap_servers=SERVERS) as producer:
        offset = producer.send_and_wait("t", b"x").offset
    with sync.Consumer(bootstrap_servers=SERVERS, auto_offset_reset="earliest") as consumer:
        consumer.assign([raftmq.TopicPartition("t", 0)])
        assert next(consumer).offset == 0
    return offset

async def use_async():
    async with raftmq.Producer(bootstrap_servers=SERVERS) as producer:
        return (await producer.send_and_wait("t", b"x")).offset
"""

CLOSED_BEFORE = """
asyncio.run(use_async())
use_sync()
kept = sync.Producer(bootstrap_servers=SERVERS)
kept.send_and_wait("t", b"x")
member = sync.Consumer("t", group_id=f"g-{os.getpid()}", bootstrap_servers=SERVERS, auto_offset_reset="earliest")
next(member)
member.close()
kept.close()  # closed clients may live on
for _ in range(3):
    in_child(use_sync)
    in_child(lambda: asyncio.run(use_async()))
use_sync()  # and in the parent
in_child(lambda: in_child(use_sync))  # a grandchild
print("done")
"""

OPEN_AT_FORK = """
open_producer = sync.Producer(bootstrap_servers=SERVERS)
before = open_producer.send_and_wait("t", b"x").offset

def is_refused():
    for use in (open_producer.flush, use_sync, lambda: asyncio.run(use_async())):
        try:
            use()
        except ForkedClientError:
            continue
        raise AssertionError("a client was opened")

for _ in range(3):
    in_child(is_refused)
assert open_producer.send_and_wait("t", b"x").offset > before
open_producer.close()
in_child(use_sync)

def new_is_refused():
    try:
        use_sync()
    except ForkedClientError:
        return
    raise AssertionError("a client was opened")

made_early = raftmq.Producer(bootstrap_servers=SERVERS)
in_child(use_sync)  # it is not started, so nothing is open

async def start_late():
    async with made_early:
        in_child(new_is_refused)

asyncio.run(start_late())
in_child(use_sync)
print("done")
"""

POOL = """
import multiprocessing
import orders

with sync.Admin(bootstrap_servers=SERVERS) as admin:  # closed before the fork
    admin.create_topic("orders", if_not_exists=True)
with multiprocessing.get_context("fork").Pool(2) as pool:
    written = pool.starmap(orders.write_order, [(b"%d" % n, "c") for n in range(20)])
assert len(set(written)) == 20, written
in_child(lambda: orders.write_order(b"x", "c"))  # a pre-fork server
print("done")
"""


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with LocalCluster(brokers=1) as cluster:
        with sync.Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            admin.create_topic("t")
        yield cluster.bootstrap_servers


@pytest.mark.parametrize("program", [CLOSED_BEFORE, OPEN_AT_FORK, POOL], ids=["closed before", "open", "pool"])
def test_clients_work_in_a_child_unless_one_is_open_in_the_parent(program: str, servers: str, tmp_path: Path) -> None:
    guide = (ROOT / "docs/guides/forking.md").read_text()
    for name, text in re.findall(r"```python\n# file: (\S+)\n(.*?)```", guide, re.DOTALL):
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + program, servers],
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "RAFTMQ_BOOTSTRAP_SERVERS": servers},
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
