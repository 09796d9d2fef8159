"""The demo verifies its records and jobs and leaves nothing, and the first program of the README prints the shown output."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from raftmq.sync import Admin
from raftmq.testing import LocalCluster

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.e2e]


def demo(tmp_path: Path, flights: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "examples.demo_flights", "--flights", str(flights)]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_the_demo_verifies_every_flight_and_job_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with demo(tmp_path, 30_000) as running:
        said, complained = running.communicate(timeout=180)
    assert running.returncode == 0, said + complained
    assert "records verified   30,000 of 30,000" in said
    assert said.count("kill -9 of broker") == 2
    assert "jobs verified      2,369 of 2,369" in said
    assert "2,111 done; dead letters: 219 rejected, 39 out of attempts" in said
    assert re.search(r"SIGKILL of worker 1 with 16 jobs in work: \d+ delivered again", said)
    assert complained == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("flights", "begin"),
    [pytest.param(300_000, "producing", marks=pytest.mark.long), (2_000, "  EV puts")],
    ids=["flights", "jobs"],
)
@pytest.mark.long
def test_ctrl_c_in_the_demo_leaves_nothing_behind(tmp_path: Path, flights: int, begin: str) -> None:
    """The workers have the same standard error, so its end is also theirs."""
    with demo(tmp_path, flights) as running:
        assert running.stdout is not None
        for line in running.stdout:
            if line.startswith(begin):
                break
        running.send_signal(signal.SIGINT)
        _, complained = running.communicate(timeout=60)
    assert running.returncode == 130, complained
    assert "Traceback" not in complained
    assert complained.endswith("interrupted; every broker is stopped and every file removed\n")
    assert list(tmp_path.iterdir()) == []


def test_the_first_program_of_the_readme_prints_the_shown_output() -> None:
    page = (ROOT / "README.md").read_text()
    shown = re.search(r"```python\n(.*?)```\n\n```text\n(.*?)```", page, re.DOTALL)
    assert shown is not None
    text, output = shown.groups()
    with LocalCluster(brokers=1) as cluster, Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topic("greetings")
        program = subprocess.run(
            [sys.executable, "-c", text.replace("localhost:9400", cluster.bootstrap_servers)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert program.returncode == 0, program.stderr
    assert program.stdout == output
