"""Every command of the README runs as it stands there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from raftmq.testing import LocalCluster

ROOT = Path(__file__).resolve().parents[2]


def readme_commands() -> list[str]:
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    lines = [line.split(" #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line and not line.startswith("make ")]


def test_there_are_commands_to_test() -> None:
    assert sum(command.startswith("raftmq broker start") for command in readme_commands()) == 2
    assert any("raftmq consume" in command for command in readme_commands())


def test_the_options_of_broker_start_exist() -> None:
    environment = os.environ | {"COLUMNS": "200"}
    shown = subprocess.run(
        [sys.executable, "-m", "raftmq", "broker", "start", "--help"],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    for command in readme_commands():
        if command.startswith("raftmq broker start"):
            assert set(re.findall(r"--[a-z-]+", command)) <= set(re.findall(r"--[a-z-]+", shown.stdout))


@pytest.mark.e2e
def test_the_other_commands_run_in_their_order() -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with LocalCluster(brokers=3) as cluster:
        environment = os.environ | {"RAFTMQ_BOOTSTRAP_SERVERS": cluster.bootstrap_servers, "PATH": path}
        said = ""
        for command in readme_commands():
            if not command.startswith("raftmq broker start"):
                done = subprocess.run(
                    command, shell=True, env=environment, capture_output=True, text=True, timeout=60, check=False
                )
                assert done.returncode == 0, f"{command}: {done.stderr}"
                said = done.stdout
    assert said == "hello\n"
