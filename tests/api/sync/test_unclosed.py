"""Clients that a program forgets to close."""

from __future__ import annotations

import subprocess
import sys

import pytest

FORGOTTEN = """
import asyncio, atexit
from raftmq import sync
from raftmq.client.base.loop_thread import LoopThread
from raftmq.sync import unclosed
from tests.support.client.fake_broker import FakeCluster, records_in

loop = LoopThread.get()
async def make():
    cluster = await FakeCluster().__aenter__()
    for name in ("good", "bad"):
        cluster.create_topic(name)
    cluster.append_hook = lambda broker, topic, *_: "swallow" if topic.name == "bad" else None
    return cluster
cluster = loop.run(make())
unclosed.EXIT_FLUSH_SECONDS = 0.5
settings = {"bootstrap_servers": cluster.bootstrap_servers, "linger_ms": 60_000}
atexit._clear()
atexit.register(lambda: print(sorted(value for _, value in records_in(cluster.topics["good"].partitions[0]))))
atexit.register(unclosed.close_at_exit)

def let_go():
    sync.Producer(**settings).send("good", b"let go")

let_go()
hopeless = [sync.Producer(**settings) for _ in range(3)]
for producer in hopeless:
    producer.send("bad", b"x")
kept = sync.Producer(**settings)
kept.send("good", b"kept")
"""


@pytest.mark.parametrize("options", [(), ("-W", "error::ResourceWarning")], ids=["", "warnings are errors"])
def test_records_of_an_unclosed_producer_are_written_at_exit(options: tuple[str, ...]):
    """This holds if the program dropped the producer, and if other producers cannot be flushed, which is reported."""
    command = [sys.executable, *options, "-c", FORGOTTEN]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[b'kept', b'let go']", done.stderr
    assert "TimeoutError" in done.stderr


LET_GO = """
import asyncio, atexit, gc
from raftmq import sync
from raftmq.client.base.loop_thread import LoopThread
from raftmq.sync import unclosed
from tests.support.client.fake_broker import FakeCluster

async def make():
    return await FakeCluster().__aenter__()
loop = LoopThread.get()
cluster = loop.run(make())
cluster.create_topic("t")
kept = [kind(bootstrap_servers=cluster.bootstrap_servers) for kind in (sync.Consumer, sync.Admin)]
for kind in (sync.Consumer, sync.Admin):
    kind(bootstrap_servers=cluster.bootstrap_servers)
    gc.collect()
closed = [kind(bootstrap_servers=cluster.bootstrap_servers) for kind in (sync.Consumer, sync.Admin)]
for client in closed:
    client.close()
inner = [client._client for client in kept]
atexit._clear()
atexit.register(lambda: print([client._is_open for client in inner]))
atexit.register(unclosed.close_at_exit)
print("end of the program", flush=True)
"""


def test_unclosed_consumers_and_admins_are_closed_at_exit_with_a_warning():
    command = [sys.executable, "-W", "always::ResourceWarning", "-c", LET_GO]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ["end of the program", "[False, False]"], done.stderr
    for kind in ("Consumer", "Admin"):
        text = f"ResourceWarning: a raftmq.sync.{kind} was not closed: use with, or close()"
        assert done.stderr.count(text) == 2, done.stderr
