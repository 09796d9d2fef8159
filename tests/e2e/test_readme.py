"""Every command of the README runs as shown."""

import os
import re
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from threading import Timer

import pytest

ROOT = Path(__file__).resolve().parents[2]


def readme_commands() -> list[str]:
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    lines = [line.split(" #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line and not line.startswith("make ")]


BROKERS = 3
READY_SECONDS = 60
HEALTH_FINDING = 6
"""The exit code of `cluster status` if one more failure would cause an outage."""


def test_the_readme_starts_three_brokers_and_consumes() -> None:
    assert sum(command.startswith("raftmq broker start") for command in readme_commands()) == BROKERS
    assert any("raftmq consume" in command for command in readme_commands())


def with_free_ports(commands: list[str]) -> tuple[list[str], dict[str, str]]:
    """Return the commands with free ports, and the variables that move the first broker from its default ports."""
    with ExitStack() as held:
        taken: dict[str, str] = {}
        for port in sorted({*re.findall(r"127\.0\.0\.1:(\d+)", "\n".join(commands)), "9400", "9401", "9402"}):
            probe = held.enter_context(socket.socket())
            probe.bind(("127.0.0.1", 0))
            taken[port] = str(probe.getsockname()[1])
    moved = [re.sub(r"(127\.0\.0\.1):(\d+)", lambda m: f"{m[1]}:{taken[m[2]]}", command) for command in commands]
    names = {"RAFTMQ_LISTEN": "9400", "RAFTMQ_PEER_LISTEN": "9401", "RAFTMQ_HTTP_LISTEN": "9402"}
    return moved, {name: f"127.0.0.1:{taken[port]}" for name, port in names.items()}


@pytest.mark.e2e
def test_every_command_runs_in_the_given_order(tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    commands, addresses = with_free_ports(readme_commands())
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAFTMQ_")} | {"PATH": path} | addresses
    with ExitStack() as running:
        said = ""
        for command in commands:
            if command.startswith("raftmq broker start"):
                broker = subprocess.Popen(
                    command.split(),
                    cwd=tmp_path,
                    env=environment,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
                running.callback(end, broker)
                assert broker.stdout is not None
                patience = Timer(READY_SECONDS, broker.kill)
                patience.start()
                line = broker.stdout.readline()
                patience.cancel()
                assert '"broker_ready"' in line, f"{command}: {broker.communicate()[1]}"
                environment["RAFTMQ_BOOTSTRAP_SERVERS"] = addresses["RAFTMQ_LISTEN"]
                continue
            done = subprocess.run(
                command,
                shell=True,
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            if command == "raftmq cluster status" and done.returncode == HEALTH_FINDING:
                continue  # on a busy machine a broker that has just joined may lag for a second
            assert done.returncode == 0, f"{command}: {done.stderr}"
            said = done.stdout
    assert said == "hello\n"


def end(broker: "subprocess.Popen[str]") -> None:
    broker.terminate()
    try:
        broker.communicate(timeout=30)
    finally:
        broker.kill()
