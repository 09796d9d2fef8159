"""`raftmq broker start` as an operator meets it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from raftmq.testing import LocalCluster

pytestmark = [pytest.mark.e2e]

ANY = ("--listen", "127.0.0.1:0", "--peer-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0")


def start(data_dir: Path, *arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "raftmq", "broker", "start", "--data-dir", str(data_dir), *ANY, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_broker_prints_one_line_when_it_serves_and_ends_with_0_on_sigterm(tmp_path: Path) -> None:
    with start(tmp_path, "--bootstrap") as broker:
        assert broker.stdout is not None
        ready = json.loads(broker.stdout.readline())
        assert ready["event"] == "broker_ready"
        assert ready["node_id"] == 1
        assert ready["cluster_id"]
        for kind in ("client", "peer", "http"):
            host, port = ready[f"{kind}_address"].rsplit(":", 1)
            assert host == "127.0.0.1"
            assert int(port) > 0
        broker.terminate()
        rest, _ = broker.communicate(timeout=40)
        assert rest == ""
        assert broker.returncode == 0


def test_two_brokers_on_one_directory_are_refused(tmp_path: Path) -> None:
    with start(tmp_path, "--bootstrap") as first:
        assert first.stdout is not None
        first.stdout.readline()
        with start(tmp_path) as second:
            _, said = second.communicate(timeout=30)
        assert second.returncode == 4
        assert "another broker" in said
        assert "Traceback" not in said
        first.kill()


def test_an_empty_directory_needs_bootstrap_or_join(tmp_path: Path) -> None:
    with start(tmp_path) as broker:
        _, said = broker.communicate(timeout=30)
    assert broker.returncode == 2
    assert list(tmp_path.iterdir()) == []
    assert "--bootstrap" in said
    assert "--join" in said
    assert "Traceback" not in said


def test_a_data_directory_of_another_cluster_than_its_seeds_is_refused_in_words(tmp_path: Path) -> None:
    with start(tmp_path / "a", "--bootstrap") as first:
        assert first.stdout is not None
        mine = json.loads(first.stdout.readline())["cluster_id"]
        first.kill()
    with start(tmp_path / "b", "--bootstrap") as other:
        assert other.stdout is not None
        ready = json.loads(other.stdout.readline())
        with start(tmp_path / "a", "--join", ready["client_address"]) as refused:
            _, said = refused.communicate(timeout=40)
        other.kill()
    assert refused.returncode == 4
    (sentence,) = [line for line in said.splitlines() if line.startswith("raftmq: ")]
    assert mine in sentence
    assert ready["cluster_id"] in sentence
    assert ready["client_address"] in sentence
    assert "Traceback" not in said


def test_a_cluster_of_one_keeps_its_records_over_a_restart(tmp_path: Path) -> None:
    raftmq = [sys.executable, "-m", "raftmq"]
    with LocalCluster(brokers=1, directory=tmp_path) as cluster:
        servers = ("--bootstrap-servers", cluster.bootstrap_servers)
        subprocess.run([*raftmq, "topic", "create", "kept", *servers], check=True, capture_output=True)
        subprocess.run([*raftmq, "produce", "kept", *servers], input=b"a\nb\n", check=True, capture_output=True)
        cluster.kill(1)
        cluster.restart(1)
        read = subprocess.run(
            [*raftmq, "consume", "kept", "--from-beginning", "-n", "2", *servers],
            check=True,
            capture_output=True,
            timeout=60,
        )
    assert read.stdout == b"a\nb\n"
