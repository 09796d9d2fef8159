"""Check that the servers of a peer system leave no process and no directory."""

import os
import sys
from pathlib import Path

import pytest

from bench.servers import ServerError, Servers, free_ports

LISTENER = """
import os, pathlib, socket, sys
pathlib.Path("pid").write_text(str(os.getpid()))
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    server.accept()[0].close()
"""


def test_the_context_ends_every_process_and_removes_the_directory() -> None:
    (port,) = free_ports(1)
    with Servers("test") as servers:
        servers.start("one", [sys.executable, "-c", LISTENER, str(port)])
        servers.wait_listening([port], 60)
        directory = servers.directory
        pid = int((directory / "pid").read_text())
        assert Path(directory / "one.log").exists()
    assert not directory.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_server_that_ends_is_reported_with_its_last_lines() -> None:
    (port,) = free_ports(1)
    with Servers("test") as servers:
        servers.start("one", [sys.executable, "-c", "print('no licence'); raise SystemExit(3)"])
        with pytest.raises(ServerError, match=r"one ended with code 3\nno licence"):
            servers.wait_listening([port], 60)


def test_free_ports_are_distinct() -> None:
    assert len(set(free_ports(20))) == 20


def test_a_server_that_ignores_sigterm_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.servers.STOP_SECONDS", 0.2)
    (port,) = free_ports(1)
    with Servers("test") as servers:
        stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + LISTENER
        servers.start("one", [sys.executable, "-c", stubborn, str(port)])
        servers.wait_listening([port], 60)
        pid = int((servers.directory / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
