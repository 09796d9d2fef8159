"""The programs of docs/guides/queues.md run, here against fake brokers. tests/e2e/test_queue_guide.py runs them against real ones."""

from __future__ import annotations

import asyncio
import inspect
import re
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import raftmq
import raftmq.errors
from raftmq.fsm.topic_config import config_keys

from tests.support.client.fake_broker import FakeCluster
from tests.support.e2e.guide_programs import read_page

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs/guides/queues.md"
FILES = read_page(PAGE).files
NAMES = ROOT / "docs/guides/coming-from-queues.md"


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster() as cluster:
        cluster.create_queue("jobs")
        yield cluster


async def start(name: str, cluster: FakeCluster, folder: Path) -> asyncio.subprocess.Process:
    path = folder / name
    path.write_text(FILES[name])
    return await asyncio.create_subprocess_exec(
        sys.executable, path, cluster.bootstrap_servers, stdout=asyncio.subprocess.PIPE, cwd=ROOT
    )


async def run(name: str, cluster: FakeCluster, folder: Path) -> str:
    program = await start(name, cluster, folder)
    output, _ = await program.communicate()
    assert program.returncode == 0
    return output.decode()


async def test_the_programs_put_work_look_and_schedule(cluster: FakeCluster, tmp_path: Path) -> None:
    assert await run("put.py", cluster, tmp_path) == "put twice, enqueued once: True\nenqueued 3 mails\n"
    worked = await run("work.py", cluster, tmp_path)
    assert worked.splitlines()[0] == "did page the engineer"
    assert sorted(worked.splitlines()[1:]) == ["did mail 0", "did mail 2", "did resize 17"]
    chained = await run("chain.py", cluster, tmp_path)
    assert chained.split() == ["did", "download", "did", "resize", "did", "scan", "did", "publish"]
    looked = await run("look.py", cluster, tmp_path)
    assert looked.splitlines() == ["b'mail 1' rejected no such address", "ready 1 delayed 1 dead 0"]
    assert await run("schedule.py", cluster, tmp_path) == "['report', 'sweep']\n"
    await run("tasks.py", cluster, tmp_path)
    (fake,) = [partition.queue for partition in cluster.topics["jobs"].partitions]
    assert any(message.tenant == b"acme" for message in fake.messages.values())


async def test_the_worker_works_until_it_is_terminated(cluster: FakeCluster, tmp_path: Path) -> None:
    async with raftmq.Queue("jobs", bootstrap_servers=cluster.bootstrap_servers) as queue:
        await queue.put_many([b"no such job", b"too busy"])
        worker = await start("worker.py", cluster, tmp_path)
        assert worker.stdout is not None
        assert await worker.stdout.readline() == b"worked on too busy attempt 2\n"
        worker.send_signal(signal.SIGTERM)
        assert await worker.wait() == 0
        assert [message.error async for message in queue.browse("dead")] == ["raftmq.Reject: unknown job"]


def test_the_names_in_the_first_column_of_the_table_exist() -> None:
    (table,) = re.findall(r"\| RaftMQ \| Celery .*?\n\n|\| RaftMQ \| Celery .*\Z", NAMES.read_text(), re.DOTALL)
    names = re.findall(r"^\| .*?\|", table, re.MULTILINE)
    words = {name for cell in names[2:] for name in re.findall(r"`([\w.]+)", cell)}
    settings = {word for word in words if "." in word and not word.startswith("Message.")}
    assert settings <= config_keys("queue").keys()
    owners = (raftmq, raftmq.errors, raftmq.Queue, raftmq.Message)
    parameters = {
        name
        for call in (raftmq.Queue.put, raftmq.Queue.get, raftmq.Worker)
        for name in inspect.signature(call).parameters
    }
    calls = {word.removeprefix("Message.") for word in words - settings}
    assert calls >= {"put", "get", "ack", "release", "redrive", "delay_ms", "not_before"}
    for name in calls - parameters:
        assert any(hasattr(owner, name) for owner in owners), name
