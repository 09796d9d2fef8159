"""Every command of the README runs as shown."""

import os
import re
import subprocess
import sys
from contextlib import ExitStack, closing
from pathlib import Path
from threading import Timer

import pytest
from raftmq.cluster_addresses import Addresses, HeldPorts

ROOT = Path(__file__).resolve().parents[2]


def readme_commands() -> list[str]:
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    lines = [line.split(" #")[0].strip() for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [line for line in lines if line and not line.startswith("make ")]


BROKERS = 3
FIRST_BROKER = {
    "RAFTMQ_LISTEN": "127.0.0.1:9400",
    "RAFTMQ_PEER_LISTEN": "127.0.0.1:9401",
    "RAFTMQ_HTTP_LISTEN": "127.0.0.1:9402",
}
READY_SECONDS = 60
HEALTH_FINDING = 6
"""The exit code of `cluster status` if one more failure would cause an outage."""


def test_the_readme_starts_three_brokers_and_consumes() -> None:
    assert sum(command.startswith("raftmq broker start") for command in readme_commands()) == BROKERS
    assert any("raftmq consume" in command for command in readme_commands())


def with_held_ports(commands: list[str], ports: HeldPorts) -> tuple[list[str], dict[str, str]]:
    """Return the commands with ports of their own, and the variables that move the first broker from its default ports."""
    usual = sorted({*re.findall(r"127\.0\.0\.1:\d+", "\n".join(commands)), *FIRST_BROKER.values()})
    held = {address: ports.hold(Addresses()).client for address in usual}
    moved = [re.sub(r"127\.0\.0\.1:\d+", lambda found: held[found[0]], command) for command in commands]
    return moved, {name: held[address] for name, address in FIRST_BROKER.items()}


@pytest.mark.e2e
def test_every_command_runs_in_the_given_order(tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with ExitStack() as running:
        commands, addresses = with_held_ports(readme_commands(), running.enter_context(closing(HeldPorts())))
        environment = {k: v for k, v in os.environ.items() if not k.startswith("RAFTMQ_")} | {"PATH": path} | addresses
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
