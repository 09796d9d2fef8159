"""Run the processes of a peer's cluster on loopback, with a temporary directory.

Must not know the peer. Invariant: after the context ends in any way, no process runs and the directory is removed. The guard of
`LocalCluster` ensures this even after SIGKILL of this process.
"""

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import raftmq.testing

from bench.workloads import Client

STOP_SECONDS = 10.0
LOG_TAIL_LINES = 20
POLL_SECONDS = 0.2


class ServerError(RuntimeError):
    """Raised when a server ended or did not get ready. The message of an ended one ends with its log's last lines."""


def free_ports(count: int) -> list[int]:
    """Return distinct ports of 127.0.0.1 that were free a moment ago."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _is_listening(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


class Servers:
    """Start processes, and end them with the context."""

    def __init__(self, name: str) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix=f"raftmq-bench-{name}-"))
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        guard = Path(raftmq.testing.__file__).with_name("cluster_guard.py")
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", str(guard), str(self.directory)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            self._tell_guard(f"-{process.pid}")  # reaped: another process may soon get its pid
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        self._guard.wait()
        shutil.rmtree(self.directory, ignore_errors=True)  # again, in case the guard was killed

    @property
    def pids(self) -> list[int]:
        """Return the process ids of the servers."""
        return [process.pid for process in self._processes.values()]

    def start(self, label: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """Start a server. Its output goes to LABEL.log in the directory."""
        with (self.directory / f"{label}.log").open("ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                env={**os.environ, **(environment or {})},
                start_new_session=True,  # Ctrl-C reaches the owner alone
            )
        self._processes[label] = process
        self._tell_guard(f"+{process.pid}")

    def wait_listening(self, ports: Sequence[int], timeout_seconds: float) -> None:
        """Wait until each port of 127.0.0.1 accepts connections."""
        deadline = time.monotonic() + timeout_seconds
        for port in ports:
            while not _is_listening(port):
                self.check_running()
                if time.monotonic() > deadline:
                    raise ServerError(f"no server listens on port {port} after {timeout_seconds:.0f} s")
                time.sleep(POLL_SECONDS)

    async def wait_serving(self, connect: Callable[[], Client], timeout_seconds: float) -> None:
        """Wait until a client can create a topic with the system's three replicas."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            self.check_running()
            try:
                async with connect() as client:
                    await client.create_topic("ready", 1)
                    await client.delete_topic("ready")
                    return
            except Exception:  # each client library has its own errors for a cluster that is not ready
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(POLL_SECONDS)

    def check_running(self) -> None:
        for label, process in self._processes.items():
            if process.poll() is not None:
                raise ServerError(f"{label} ended with code {process.returncode}\n{self.log_tail(label)}")

    def log_tail(self, label: str) -> str:
        lines = (self.directory / f"{label}.log").read_text(errors="replace").splitlines()
        return "\n".join(lines[-LOG_TAIL_LINES:])

    def _tell_guard(self, line: str) -> None:
        assert self._guard.stdin is not None
        self._guard.stdin.write(f"{line}\n".encode())
        self._guard.stdin.flush()
