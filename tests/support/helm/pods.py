"""Run the pods of the rendered chart without Kubernetes: their commands, environment, volumes and probes as the golden files have them.

Each process has a mount namespace of its own, in which the names of the pods that exist are loopback addresses, the volume is where the
container has it, and all else is read-only. Replaced are the fields of the downward API, the wildcard address on which a broker listens, and
the network: users and the network are those of the machine.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tests.support.helm.chart import Object, container, environment, job, pod, port_number, stateful_set, words
from tests.support.helm.render import NAMESPACE

_ENTER = 'while [ "$1" != -- ]; do eval "$1"; shift; done; shift; exec "$@"'
_WAIT_SECONDS = 180.0
_DOMAIN = f"{NAMESPACE}.svc.cluster.local"


def wait_until(condition: Callable[[], bool], said: Callable[[], str]) -> None:
    """Wait for a condition."""
    end = time.monotonic() + _WAIT_SECONDS
    while not condition():
        assert time.monotonic() < end, said()
        time.sleep(0.2)


class Pods:
    """The pods of a release, with their volumes and outputs in a directory."""

    def __init__(self, directory: Path, name: str) -> None:
        self.name = name
        """The set of values. A test upgrades the release by changing it."""
        self._directory = directory
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        (directory / "mnt").mkdir()
        self._publish()

    # ------------------------------------------------------------------------------------------------ names and volumes

    @staticmethod
    def address(number: int) -> str:
        """Return the address of a pod."""
        return f"127.0.{120 + number}.1"

    def _publish(self) -> None:
        """Give the pods that exist their names in DNS, and the service for clients one of them."""
        lines = ["127.0.0.1 localhost"]
        lines += [f"{self.address(number)} raftmq-{number}.raftmq-brokers.{_DOMAIN}" for number in self._running]
        lines += [f"{self.address(number)} raftmq.{_DOMAIN}" for number in list(self._running)[:1]]
        (self._directory / "hosts").write_text("\n".join(lines) + "\n")

    def volume(self, number: int) -> Path:
        """Return the directory of a pod's volume."""
        folder = self._directory / f"data-{number}"
        folder.mkdir(exist_ok=True)
        return folder

    def _mounts(self, specification: Object, volume: Path | None) -> list[str]:
        commands = [f"mount --bind {self._directory / 'hosts'} /etc/hosts"]
        if volume is not None:
            commands.append(f"mount --bind {volume} {self._directory}/mnt")  # the tmpfs below may hide its place
        for mount in container(specification)["volumeMounts"]:
            target = Path(mount["mountPath"])
            if mount["name"] == "data":
                commands.append(f"mount -t tmpfs tmpfs {target.parent} && mkdir -p {target}")
                commands.append(f"mount --move {self._directory}/mnt {target}")
        assert container(specification)["securityContext"]["readOnlyRootFilesystem"] is True
        return [*commands, "mount -o remount,bind,ro /"]

    def _popen(
        self, specification: Object, line: list[str], variables: dict[str, str], output: Any, volume: Path | None = None
    ) -> subprocess.Popen[bytes]:
        assert line[:2] == ["tini", "--"]  # here it would survive a kill that ends a container
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        return subprocess.Popen(
            ["unshare", "--mount", "sh", "-ec", _ENTER, "sh", *self._mounts(specification, volume), "--", *line[2:]],
            env=variables | {"PATH": path},
            cwd="/",
            stdin=subprocess.PIPE if output == subprocess.PIPE else subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    # ------------------------------------------------------------------------------------------------ brokers

    def start(self, *numbers: int) -> None:
        """Start pods, each on a node and in a zone of its own, without waiting for anything."""
        for number in numbers:
            one = pod(self.name, number, node=f"node-{number}", zone=f"zone-{number}")
            variables = {
                key: value.replace("0.0.0.0", self.address(number))
                for key, value in environment(self.name, one).items()
            }
            with (self._directory / f"{number}.log").open("ab") as output:
                line = words(container(one["spec"]))
                self._running[number] = self._popen(one["spec"], line, variables, output, self.volume(number))
        self._publish()

    def log(self, number: int) -> str:
        """Return the output of a pod."""
        return (self._directory / f"{number}.log").read_text()

    def wait_logged(self, number: int, text: str) -> None:
        """Wait until the output of a pod contains a text."""
        wait_until(lambda: text in self.log(number), lambda: self.log(number))

    def succeeds(self, number: int, probe: str) -> bool:
        """Run a probe of a pod once."""
        one = container(stateful_set(self.name)["spec"]["template"]["spec"])
        get = one[probe]["httpGet"]
        url = f"http://{self.address(number)}:{port_number(one, get['port'])}{get['path']}"
        try:
            with urllib.request.urlopen(url, timeout=one[probe]["timeoutSeconds"]) as answer:
                return 200 <= int(answer.status) < 400
        except urllib.error.HTTPError as refused:
            refused.close()
            return False
        except OSError:
            return False

    def wait_ready(self, *numbers: int) -> None:
        """Wait until the readiness probes of pods succeed."""
        for number in numbers:
            wait_until(partial(self.succeeds, number, "readinessProbe"), partial(self.log, number))

    def stop(self, number: int) -> int:
        """Stop a pod as Kubernetes does, and return its exit code. It must end within its grace period."""
        process = self._running[number]
        process.send_signal(signal.SIGTERM)
        code = process.wait(stateful_set(self.name)["spec"]["template"]["spec"]["terminationGracePeriodSeconds"])
        self._forget(number)
        return code

    def kill(self, number: int) -> None:
        """Kill a pod."""
        os.killpg(self._running[number].pid, signal.SIGKILL)
        self._running[number].wait()
        self._forget(number)

    def _forget(self, number: int) -> None:
        del self._running[number]
        self._publish()

    def close(self) -> None:
        """Kill everything that still runs."""
        for number in list(self._running):
            self.kill(number)

    # ------------------------------------------------------------------------------------------------ jobs and commands

    def begin_job(self, component: str) -> subprocess.Popen[bytes]:
        """Start the pod of a job."""
        specification = job(self.name, component)["spec"]["template"]["spec"]
        variables = environment(self.name, {"metadata": {}, "spec": specification})
        return self._popen(specification, words(container(specification)), variables, subprocess.PIPE)

    def run_job(self, component: str) -> tuple[int, str]:
        """Run the pod of a job to its end. Return its exit code and its output."""
        return ended(self.begin_job(component))

    def command(self, *line: str, given: str = "") -> tuple[int, str]:
        """Run `raftmq` as a client of the service in the Kubernetes cluster. Return the exit code and the output."""
        specification = job(self.name, "init")["spec"]["template"]["spec"]
        variables = {"RAFTMQ_BOOTSTRAP_SERVERS": f"raftmq.{_DOMAIN}:9400"}
        return ended(self._popen(specification, ["tini", "--", "raftmq", *line], variables, subprocess.PIPE), given)


def ended(process: subprocess.Popen[bytes], given: str = "") -> tuple[int, str]:
    """Wait for the end of a process. Return its exit code and its output."""
    output, _ = process.communicate(given.encode(), timeout=_WAIT_SECONDS)
    return process.returncode, output.decode()
