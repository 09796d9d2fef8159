"""`raftmq dev`: a local cluster that one command starts and one key stops, and that `--data-dir` preserves."""

import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.e2e.raftmq_command import RAFTMQ, Terminal

pytestmark = [pytest.mark.e2e]


class Dev:
    """A running `raftmq dev --output json`."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        assert process.stdout is not None
        self.ready = json.loads(process.stdout.readline())
        self.pids = [
            int((Path(self.ready["directory"]) / f"broker-{broker['broker_id']}" / "lock").read_text())
            for broker in self.ready["brokers"]
        ]
        assert [broker["pid"] for broker in self.ready["brokers"]] == self.pids, (
            "the printed process ids are those of the brokers"
        )

    def run(self, *arguments: str, stdin: bytes = b"") -> bytes:
        environment = os.environ | {"RAFTMQ_BOOTSTRAP_SERVERS": self.ready["bootstrap_servers"]}
        done = subprocess.run(
            [*RAFTMQ, *arguments], input=stdin, capture_output=True, env=environment, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def identities(self) -> list[tuple[str, object]]:
        status = json.loads(self.run("cluster", "status", "--output", "json"))
        return [(status["cluster_id"], broker["id"]) for broker in status["brokers"]]

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(60)


def not_as_nohup() -> None:
    """Let SIGHUP end a process although nohup started the tests."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@contextmanager
def dev(tmp_path: Path, *arguments: str) -> Iterator[Dev]:
    process = subprocess.Popen(
        [*RAFTMQ, "dev", "--output", "json", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        preexec_fn=not_as_nohup,
    )
    with process:
        try:
            yield Dev(process)
        finally:
            process.kill()


def is_alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_every_broker_in_order_and_removes_temporary_data(
    number: signal.Signals, tmp_path: Path
) -> None:
    with dev(tmp_path, "--brokers", "1", "--port", "0") as running:
        directory = Path(running.ready["directory"])
        assert running.ready["is_temporary"]
        assert directory.parent == tmp_path
        log = directory / "broker-1.log"
        with log.open() as kept:  # an open file outlives its name
            assert running.end(number) == 0
            assert "broker_stopping" in kept.read()
        assert not any(map(is_alive, running.pids))
        assert list(tmp_path.iterdir()) == []
        assert running.process.stderr is not None
        assert running.process.stderr.read() == ""


def test_ctrl_c_during_the_start_leaves_no_files(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*RAFTMQ, "dev", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )
    with process:
        while process.poll() is None and not list(tmp_path.glob("*/broker-1/lock")):
            time.sleep(0.01)  # another process creates the file: there is no event to wait for
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert process.stdout is not None
        assert process.stderr is not None
        assert (process.stdout.read(), process.stderr.read()) == ("", "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_a_restart_with_data_dir_keeps_data_identities_and_ports_that_are_still_free(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with dev(tmp_path, "--data-dir", str(data), "--port", "0") as first:
        assert len(first.ready["brokers"]) == 3
        first.run("topic", "create", "kept", "--replication-factor", "3")
        first.run("produce", "kept", stdin=b"a\nb\n")
        identities = first.identities()
        assert first.end(signal.SIGINT) == 0
    host, port = first.ready["brokers"][1]["address"].rsplit(":", 1)
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind((host, int(port)))
        taken.listen()
        with dev(tmp_path, "--data-dir", str(data)) as second:
            old, new = ([broker["address"] for broker in run.ready["brokers"]] for run in (first, second))
            assert (new[0], new[2]) == (old[0], old[2])
            assert new[1] != old[1]
            assert second.run("consume", "kept", "--from-beginning", "--exit-at-end") == b"a\nb\n"
            assert second.identities() == identities
            assert second.end(signal.SIGTERM) == 0
    refused = subprocess.run(
        [*RAFTMQ, "dev", "--data-dir", str(data), "--brokers", "2"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr == f"raftmq: the cluster in {data} has 3 brokers, not 2\n"


@pytest.mark.long
def test_a_kept_cluster_can_grow(tmp_path: Path) -> None:
    data = ("--data-dir", str(tmp_path / "data"), "--port", "0")
    with dev(tmp_path, "--brokers", "1", *data) as first:
        identities = first.identities()
        assert first.end(signal.SIGTERM) == 0
    with dev(tmp_path, "--brokers", "2", *data) as second:
        assert second.identities() == [*identities, (identities[0][0], 2)]
        assert second.end(signal.SIGTERM) == 0


def test_brokers_that_cannot_find_each_other_are_not_started(tmp_path: Path) -> None:
    """Each broker knows only the others' addresses of the last run, so a majority must keep its addresses."""
    with socket.socket() as one, socket.socket() as two:
        addresses = {}
        for broker_id, taken in ((1, one), (2, two)):
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            peer = f"127.0.0.1:{taken.getsockname()[1]}"
            addresses[broker_id] = ["127.0.0.1:0", peer, "127.0.0.1:0"]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            addresses[3] = ["127.0.0.1:0", f"127.0.0.1:{free.getsockname()[1]}", "127.0.0.1:0"]
        (tmp_path / "cluster.json").write_text(json.dumps(addresses))
        done = subprocess.run(
            [*RAFTMQ, "dev", "--data-dir", str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
        )
    assert done.returncode == 1
    assert done.stderr == (
        f"raftmq: the brokers cannot find each other: other programs use {addresses[1][1]}, {addresses[2][1]}\n"
    )


def test_the_suggested_commands_write_and_read_a_first_record(tmp_path: Path) -> None:
    """The suggested lines are run exactly as printed."""
    process = subprocess.Popen(
        [*RAFTMQ, "dev", "--brokers", "1", "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )
    with process:
        assert process.stdout is not None
        said = ""
        for line in process.stdout:
            said += line
            if "--exit-at-end" in line:
                break
        suggested = "\n".join(re.findall(r"^  (.*(?:raftmq|export) .*)$", said, re.MULTILINE))
        path = f"{Path(RAFTMQ[0]).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            suggested,
            shell=True,
            capture_output=True,
            text=True,
            env=os.environ | {"PATH": path},
            timeout=60,
            check=False,
        )
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    assert "temporary: removed when the cluster stops" in said
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "hello"), done.stderr


def test_a_dead_broker_is_reported_and_the_death_of_the_last_one_ends_the_command(tmp_path: Path) -> None:
    with dev(tmp_path, "--brokers", "1", "--port", "0") as running:
        os.kill(running.pids[0], signal.SIGKILL)
        assert running.process.wait(60) == 1
        assert running.process.stderr is not None
        told, last = running.process.stderr.read().splitlines()
    assert told.startswith("raftmq: broker 1 has ended; see ")
    assert last == "raftmq: every broker has ended"
    assert list(tmp_path.iterdir()) == []


def test_a_person_is_told_that_brokers_start_and_stop(tmp_path: Path) -> None:
    running = Terminal(None, "dev", "--brokers", "1", "--port", "0", "--data-dir", str(tmp_path))
    assert running.read_until("--exit-at-end").startswith("starting 1 broker…")
    running.type("\x03")
    code, shown = running.end()
    assert code == 0
    assert shown.endswith("stopping; Ctrl-C again kills\n")
