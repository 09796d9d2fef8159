"""Run services of docker-compose.yml without a container engine: their commands, environment, volumes and health checks as the file has them.

Each process has a mount namespace of its own, in which the names of the services are loopback addresses, the volumes are where the container
has them, and all else is read-only. It is no container: processes, users and the network are those of the machine.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.support.plain_yaml import parse

ROOT = Path(__file__).parents[2]
COMPOSE = parse((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
BROKERS = ("one", "two", "three")
DOCKERFILE = (ROOT / "Dockerfile").read_text()
_ENTER = 'while [ "$1" != -- ]; do eval "$1"; shift; done; shift; exec "$@"'
_WAIT_SECONDS = 120.0


def of_image(instruction: str) -> list[str]:
    """Return the words of the image's last ENTRYPOINT or CMD."""
    words: list[str] = json.loads(re.findall(rf"^{instruction} (\[.*\])$", DOCKERFILE, re.MULTILINE)[-1])
    return words


def image_environment() -> dict[str, str]:
    """Return the variables of the image but PATH."""
    pairs = re.findall(r"^ENV (.*)$", DOCKERFILE, re.MULTILINE)[-1].split()
    return {name: value for name, _, value in (pair.partition("=") for pair in pairs) if name != "PATH"}


def words_of(service: str) -> list[str]:
    """Return the command line of a service."""
    if "entrypoint" in SERVICES[service]:
        return [*SERVICES[service]["entrypoint"], *SERVICES[service].get("command", [])]
    return [*of_image("ENTRYPOINT"), *SERVICES[service].get("command", of_image("CMD"))]


def seconds(text: str) -> float:
    return float(text[:-1]) * {"s": 1, "m": 60}[text[-1]]


class Compose:
    """The running services, with their volumes and outputs in a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._hosts = directory / "hosts"
        names = "".join(f"127.0.{number}.1 {name}\n" for number, name in enumerate(BROKERS, 101))
        self._hosts.write_text(f"127.0.0.1 localhost\n{names}")

    def volume(self, name: str) -> Path:
        """Return the directory of a named volume."""
        folder = self._directory / f"volume-{name}"
        folder.mkdir(exist_ok=True)
        return folder

    def _mounts(self, service: str) -> list[str]:
        commands = [f"mount --bind {self._hosts} /etc/hosts"]
        for volume in SERVICES[service].get("volumes", []):
            source, target, *mode = volume.split(":")
            folder = (ROOT / source).resolve() if source.startswith(".") else self.volume(source)
            parent = str(Path(target).parent)
            commands.append(f"mount --bind {folder} {self._directory}/mnt")  # the tmpfs may hide its place
            commands.append(f"mount -t tmpfs tmpfs {parent} && mkdir -p {target}")
            commands.append(f"mount --move {self._directory}/mnt {target}")
            commands += [f"mount -o remount,bind,ro {target}"] if mode == ["ro"] else []
        if SERVICES[service].get("read_only") == "true":
            commands.append("mount -o remount,bind,ro /")
        return commands

    def popen(self, service: str, words: list[str], output: int | Any) -> subprocess.Popen[bytes]:
        """Start a command in the place of a service."""
        (self._directory / "mnt").mkdir(exist_ok=True)
        if words[0] == "tini" and shutil.which("tini") is None:
            words = words[words.index("--") + 1 :]
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = image_environment() | SERVICES[service].get("environment", {}) | {"PATH": path}
        return subprocess.Popen(
            ["unshare", "--mount", "sh", "-ec", _ENTER, "sh", *self._mounts(service), "--", *words],
            env=environment,
            cwd="/",
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def start(self, *services: str) -> None:
        """Start services, without waiting for anything."""
        for service in services:
            with (self._directory / f"{service}.log").open("ab") as output:
                self._running[service] = self.popen(service, words_of(service), output)

    def log(self, service: str) -> str:
        """Return the output of a service."""
        return (self._directory / f"{service}.log").read_text()

    def run(self, service: str) -> str:
        """Run a one-shot service to its end and return its output. It must succeed."""
        process = self.popen(service, words_of(service), subprocess.PIPE)
        output, _ = process.communicate(timeout=_WAIT_SECONDS)
        assert process.returncode == 0, output.decode()
        return output.decode()

    def is_healthy(self, service: str) -> bool:
        """Run the health check of a service once."""
        kind, *words = SERVICES[service]["healthcheck"]["test"]
        assert kind == "CMD"
        return self.popen(service, words, subprocess.DEVNULL).wait(_WAIT_SECONDS) == 0

    def wait_healthy(self, *services: str) -> None:
        """Wait until the health checks of services succeed."""
        for service in services:
            end = time.monotonic() + _WAIT_SECONDS
            while not self.is_healthy(service):
                assert self._running[service].poll() is None, self.log(service)
                assert time.monotonic() < end, self.log(service)
                time.sleep(0.2)

    def wait_logged(self, service: str, text: str, *, times: int = 1) -> None:
        """Wait until the output of a service contains a text so often."""
        end = time.monotonic() + _WAIT_SECONDS
        while self.log(service).count(text) < times:
            assert time.monotonic() < end, self.log(service)
            time.sleep(0.1)

    def stop(self, service: str) -> int:
        """Stop a service as the engine does, and return its exit code. It must end within its grace period."""
        process = self._running.pop(service)
        process.send_signal(signal.SIGTERM)
        return process.wait(seconds(SERVICES[service].get("stop_grace_period", "10s")))

    def close(self) -> None:
        """Kill everything that still runs."""
        for process in self._running.values():
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
