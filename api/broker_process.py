"""A broker process: its command line, its files, its ready line, its end. `LocalCluster` has several.

Must not know the cluster: which broker bootstraps, which ones join, and whether they found each other.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from raftmq.cluster_addresses import Addresses

LOG_TAIL_LINES = 40
"""Lines of a broker's log shown in an error: enough for a start-up failure with its traceback."""
DEBUG_VARIABLE = "RAFTMQ_DEBUG"
"""Environment variable that makes a broker log the traceback of an unexpected error."""


class LocalClusterError(RuntimeError):
    """A broker did not start, or died, or the cluster did not form. The message ends with the last lines of the log."""


class BrokerProcess:
    """One broker: its command line, its process, its files. Used by one thread at a time."""

    def __init__(self, broker_id: int, directory: Path, command: Sequence[str]) -> None:
        self.broker_id = broker_id
        self.data_dir = directory / f"broker-{broker_id}"
        self.log_path = directory / f"broker-{broker_id}.log"
        self.client_address = ""
        self.peer_address = ""
        self.http_address = ""
        self.process: subprocess.Popen[bytes] | None = None
        self.is_paused = False
        self._command = tuple(command)
        self._ready = threading.Event()
        """Set when the ready line of this start is read, or when standard output ends without one."""
        self._is_serving = False
        """Whether the ready line was read."""
        self._reader: threading.Thread | None = None

    @property
    def is_running(self) -> bool:
        """Return whether the process exists (a paused one does)."""
        return self.process is not None and self.process.poll() is None

    @property
    def addresses(self) -> Addresses:
        """Return the addresses on which it listens, or will listen."""
        return Addresses(self.client_address, self.peer_address, self.http_address)

    @addresses.setter
    def addresses(self, addresses: Addresses) -> None:
        self.client_address, self.peer_address, self.http_address = addresses

    def start(self, formation: Sequence[str]) -> int:
        """Start the process and return its pid. `wait_ready` waits until it serves."""
        arguments = [
            *self._command,
            *("broker", "start", "--broker-id", str(self.broker_id), "--data-dir", str(self.data_dir)),
            *("--host", f"local-{self.broker_id}"),  # its own host label: replicas of a partition spread over hosts
            *("--listen", self.client_address),
            *("--peer-listen", self.peer_address),
            *("--http-listen", self.http_address),
            *formation,
        ]
        self._ready = threading.Event()
        self._is_serving = False
        self.is_paused = False
        with self.log_path.open("ab") as log:
            # Its own session: Ctrl-C in a terminal reaches only the owner, which then stops the brokers in order.
            self.process = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                # Neither a raftmq.toml in the directory of the tests nor RAFTMQ_* variables of the developer may configure these brokers.
                cwd=self.log_path.parent,
                env={
                    name: value
                    for name, value in os.environ.items()
                    if not name.startswith("RAFTMQ_") or name == DEBUG_VARIABLE
                },
            )
        assert self.process.stdout is not None
        self._reader = threading.Thread(
            target=self._read_output,
            args=(self.process.stdout, self._ready),
            name=f"broker-{self.broker_id}-output",
            daemon=True,
        )
        self._reader.start()
        return self.process.pid

    def _read_output(self, output: IO[bytes], ready: threading.Event) -> None:
        """Drain standard output, so that the broker never blocks on it, and find the ready line in it."""
        with output:
            for line in output:
                try:
                    event = json.loads(line)
                except ValueError:
                    continue
                if isinstance(event, dict) and event.get("event") == "broker_ready":
                    self.client_address = event["client_address"]
                    self.peer_address = event["peer_address"]
                    self.http_address = event["http_address"]
                    self._is_serving = ready is self._ready
                    ready.set()
        ready.set()

    def wait_ready(self, timeout_seconds: float) -> None:
        """Wait for the ready line. Raises `LocalClusterError` when the broker exits first or the time limit passes."""
        in_time = self._ready.wait(timeout_seconds)
        process = self.process
        assert process is not None
        if in_time and self._is_serving and process.poll() is None:
            return
        if not in_time:
            raise LocalClusterError(
                f"broker {self.broker_id} was not ready within {timeout_seconds:.0f} s\n{self.log_tail()}"
            )
        code = process.wait()
        raise LocalClusterError(
            f"broker {self.broker_id} exited with code {code} before it was ready\n{self.log_tail()}"
        )

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal. Raises `LocalClusterError` when the process is not running."""
        if not self.is_running or self.process is None:
            raise LocalClusterError(f"broker {self.broker_id} is not running")
        self.process.send_signal(number)

    def wait_end(self, timeout_seconds: float | None = None) -> int:
        """Wait until the process has ended and its output is read. Return its exit code (negative: the signal)."""
        assert self.process is not None
        code = self.process.wait(timeout_seconds)
        if self._reader is not None:
            self._reader.join(5)
        return code

    def kill(self) -> None:
        """Send SIGKILL, even to a paused process, and reap it. Does nothing if it has already ended."""
        if self.process is not None:
            if self.process.poll() is None:
                self.process.kill()
            self.wait_end()

    def log_text(self) -> str:
        """Return everything that it has logged, over all its starts."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def log_tail(self) -> str:
        """Return the last lines of the log, for an error."""
        lines = self.log_text().splitlines()[-LOG_TAIL_LINES:]
        return f"--- last lines of the log of broker {self.broker_id} ---\n" + "\n".join(lines or ["(empty)"])
