"""Run the ``raftmq`` command against a cluster."""

from __future__ import annotations

import fcntl
import json
import os
import select
import subprocess
import sys
import termios
import threading
from typing import Any

from raftmq.cli.input_lines import READ_BYTES
from raftmq.testing import LocalCluster

from tests.support.cli.runner import run_here

RAFTMQ = (sys.executable, "-m", "raftmq")
HANDLE_SIGNALS = ("consume", "produce", "queue")
"""Commands that only the main thread can run."""


def environment_of(cluster: LocalCluster) -> dict[str, str]:
    return os.environ | {"RAFTMQ_BOOTSTRAP_SERVERS": cluster.bootstrap_servers, "COLUMNS": "200"}


def raftmq(cluster: LocalCluster, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run a command to its end.

    It runs in this process, which saves half a second. Two kinds run in a process of their own: those that handle signals, unless this is the
    main thread, and those with so much input that the thread that reads it may outlive a refusal.
    """
    environment = environment_of(cluster)
    may_handle_signals = threading.current_thread() is threading.main_thread()
    if len(stdin) <= READ_BYTES and (may_handle_signals or arguments[0] not in HANDLE_SIGNALS):
        return run_here(*arguments, stdin=stdin, environment=environment)
    return subprocess.run(
        [*RAFTMQ, *arguments], input=stdin, capture_output=True, check=False, timeout=60, env=environment
    )


def started(cluster: LocalCluster, *arguments: str) -> subprocess.Popen[bytes]:
    """Start a command, with pipes."""
    return subprocess.Popen(
        [*RAFTMQ, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment_of(cluster),
    )


def completions(cluster: LocalCluster, words: str) -> list[str]:
    """Return the words that a shell offers for an unfinished line."""
    asked = {
        "_RAFTMQ_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
        "_TYPER_COMPLETE_ARGS": words,
    }
    done = subprocess.run(
        RAFTMQ, capture_output=True, check=True, timeout=60, env=environment_of(cluster) | asked, text=True
    )
    assert done.stderr == ""
    return done.stdout.split()


class Terminal:
    """A command whose standard streams are a terminal, as for a person."""

    def __init__(self, cluster: LocalCluster | None, *arguments: str) -> None:
        own, streams = os.openpty()
        self._terminal = own
        self._shown = b""
        self._process = subprocess.Popen(
            [*RAFTMQ, *arguments],
            stdin=streams,
            stdout=streams,
            stderr=streams,
            start_new_session=True,
            preexec_fn=_control_terminal,
            env=os.environ if cluster is None else environment_of(cluster),
        )
        os.close(streams)

    def read_until(self, text: str) -> str:
        """Return all output once it has this text. Fail if the command ends before."""
        while text.encode() not in self._shown:
            assert self._read(), self._shown
        return self._shown.decode()

    def type(self, keys: str) -> None:
        """Press keys. ``\\x03`` is Ctrl-C, ``\\x04`` Ctrl-D."""
        os.write(self._terminal, keys.encode())

    def type_until_end(self, key: str) -> None:
        """Press a key, and press it again if the command goes on for 10 seconds.

        Python may see a Ctrl-C only at the next key: the signal may arrive after the question is displayed and before the read begins.
        """
        self.type(key)
        while True:
            if not select.select([self._terminal], [], [], 10)[0]:
                self.type(key)
            elif not self._read():
                return

    def end(self) -> tuple[int, str]:
        """Wait for the end of the command, and return its exit code and all of its output, with plain ends of lines."""
        while self._read():
            pass
        os.close(self._terminal)
        return self._process.wait(60), self._shown.decode().replace("\r\n", "\n")

    def _read(self) -> bool:
        try:
            data = os.read(self._terminal, READ_BYTES)
        except OSError:  # Linux reports the end of the last process so
            data = b""
        self._shown += data
        return bool(data)


def _control_terminal() -> None:
    """Make standard input the controlling terminal of this session, so that Ctrl-C becomes a signal."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def answer(cluster: LocalCluster, *arguments: str) -> object:
    """Run a command and return its JSON output."""
    done = raftmq(cluster, *arguments, "--output", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def lines_of(cluster: LocalCluster, *arguments: str) -> list[dict[str, Any]]:
    """Run `consume` and return the JSON objects that it prints."""
    done = raftmq(cluster, "consume", *arguments, "--exit-at-end", "--output", "json")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def doctor(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Run `raftmq doctor`, which needs no cluster."""
    return subprocess.run([*RAFTMQ, "doctor", *arguments], capture_output=True, timeout=120, check=False)


def assert_one_sentence(done: subprocess.CompletedProcess[bytes], code: int, *words: str) -> None:
    """Check the exit code, and that the only output is one sentence on standard error with these words."""
    said = done.stderr.decode()
    assert done.returncode == code, said
    assert said.startswith("raftmq: "), said
    assert said.count("\n") == 1, said
    assert "Traceback" not in said
    assert done.stdout == b""
    for word in words:
        assert word in said, said
