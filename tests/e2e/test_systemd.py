"""The unit of deploy/systemd: systemd accepts it, and a broker that is started as it says reports what `Type=notify` and the watchdog want."""

from __future__ import annotations

import configparser
import os
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from raftmq.broker.base.limits import Timing
from raftmq.cli.exit_codes import ExitCode

pytestmark = [pytest.mark.e2e]

UNIT = Path(__file__).parents[2] / "deploy/systemd/raftmq.service"
PROGRAM = "/usr/local/lib/raftmq/bin/raftmq"


def service() -> configparser.SectionProxy:
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(UNIT.read_text())
    return unit["Service"]


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("there is no systemd-analyze on this machine")
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace(PROGRAM, str(Path(sys.executable).parent / "raftmq")))
    done = subprocess.run([analyze, "verify", "--man=no", str(copy)], capture_output=True, text=True, check=False)
    assert [line for line in done.stderr.splitlines() if UNIT.name in line] == []
    assert done.returncode == 0, done.stderr
    broken = tmp_path / "broken.service"
    broken.write_text(copy.read_text().replace("WatchdogSec=60", "WatchdogSec=often"))
    done = subprocess.run([analyze, "verify", "--man=no", str(broken)], capture_output=True, text=True, check=False)
    assert "often" in done.stderr, "the check finds a mistake"


def test_the_unit_fits_the_broker() -> None:
    unit = service()
    assert int(unit["TimeoutStopSec"]) > Timing().shutdown_seconds + 5
    # a SIGABRT says that a file was damaged (`storage/fault_board.py`): each one in use was checked before the next start opened it
    assert unit["WatchdogSignal"] == "SIGKILL"
    codes = {ExitCode(int(code)) for code in unit["RestartPreventExitStatus"].split()}
    assert codes == {ExitCode.USAGE, ExitCode.REJECTED, ExitCode.BAD_DATA}


def test_a_broker_that_the_unit_starts_reports_its_life(tmp_path: Path) -> None:
    unit = service()
    program, *arguments = shlex.split(unit["ExecStart"])
    assert program == PROGRAM
    configuration = tmp_path / "raftmq.toml"
    configuration.write_text(
        "bootstrap = true\n" + "".join(f'{port} = "127.0.0.1:0"\n' for port in ("listen", "peer_listen", "http_listen"))
    )
    arguments = [argument.replace("/etc/raftmq/raftmq.toml", str(configuration)) for argument in arguments]
    name, _, value = unit["Environment"].partition("=")
    data = value.replace("/var/lib/raftmq", str(tmp_path))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(60)
        environment = os.environ | {name: data, "NOTIFY_SOCKET": listener.getsockname(), "WATCHDOG_USEC": "300000"}
        with subprocess.Popen(
            [sys.executable, "-m", "raftmq", *arguments], env=environment, stdout=subprocess.DEVNULL
        ) as broker:
            assert listener.recv(4096).decode().startswith("READY=1\nSTATUS=broker 1 serves clients at 127.0.0.1:")
            assert {listener.recv(4096) for _ in range(3)} == {b"WATCHDOG=1"}
            broker.terminate()
            while (told := listener.recv(4096)) == b"WATCHDOG=1":
                continue
            assert told.startswith(b"STOPPING=1\n")
            assert broker.wait(60) == 0
    assert (Path(data) / "node.mdb").exists()
