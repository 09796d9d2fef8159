"""The programs of docs/guides/queues.md run against real brokers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import raftmq
from raftmq.testing import LocalCluster

from tests.support.e2e.guide_programs import read_page

ROOT = Path(__file__).resolve().parents[2]
FILES = read_page(ROOT / "docs/guides/queues.md").files

pytestmark = pytest.mark.e2e


def run(name: str, servers: str, folder: Path) -> str:
    path = folder / name
    path.write_text(FILES[name])
    done = subprocess.run([sys.executable, path, servers], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_programs_put_work_look_and_schedule(tmp_path: Path) -> None:
    with LocalCluster(brokers=3) as cluster:
        servers = cluster.bootstrap_servers
        create(servers)
        assert run("put.py", servers, tmp_path) == "put twice, enqueued once: True\nenqueued 3 mails\n"
        worked = run("work.py", servers, tmp_path).splitlines()
        assert sorted(worked) == ["did mail 0", "did mail 2", "did page the engineer", "did resize 17"]
        chained = run("chain.py", servers, tmp_path).split()
        assert chained == ["did", "download", "did", "resize", "did", "scan", "did", "publish"]
        looked = run("look.py", servers, tmp_path).splitlines()
        assert looked == ["b'mail 1' rejected no such address", "ready 1 delayed 1 dead 0"]
        assert run("schedule.py", servers, tmp_path) == "['report', 'sweep']\n"
        run("tasks.py", servers, tmp_path)


def create(servers: str) -> None:
    """Create the topic of the page, as its command does."""
    with raftmq.sync.Admin(bootstrap_servers=servers) as admin:
        admin.create_topic("jobs", kind="queue")
