"""`raftmq broker start` from an operator's view: the ready line, refusals, and restarts on existing or damaged data."""

import json
import subprocess
from pathlib import Path

import pytest
from raftmq.testing import LocalCluster

from tests.support.e2e.raftmq_command import RAFTMQ, assert_one_sentence, doctor, raftmq

pytestmark = [pytest.mark.e2e]

ANY = ("--listen", "127.0.0.1:0", "--peer-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0")


def start_command(data_dir: Path, *arguments: str) -> list[str]:
    return [*RAFTMQ, "broker", "start", "--data-dir", str(data_dir), *ANY, *arguments]


def start(data_dir: Path, *arguments: str) -> "subprocess.Popen[str]":
    command = start_command(data_dir, *arguments)
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_broker_prints_one_line_when_it_is_ready_and_exits_with_0_on_sigterm(tmp_path: Path) -> None:
    with start(tmp_path, "--bootstrap") as broker:
        assert broker.stdout is not None
        ready = json.loads(broker.stdout.readline())
        assert ready["event"] == "broker_ready"
        assert ready["broker_id"] == 1
        assert ready["cluster_id"]
        for kind in ("client", "peer", "http"):
            host, port = ready[f"{kind}_address"].rsplit(":", 1)
            assert host == "127.0.0.1"
            assert int(port) > 0
        broker.terminate()
        rest, _ = broker.communicate(timeout=40)
        assert rest == ""
        assert broker.returncode == 0


def test_a_second_broker_on_the_same_directory_is_refused(tmp_path: Path) -> None:
    with start(tmp_path, "--bootstrap") as first:
        assert first.stdout is not None
        first.stdout.readline()
        with start(tmp_path) as second:
            _, said = second.communicate(timeout=30)
        first.kill()  # before anything fails: the block waits for its end
    assert second.returncode == 4
    assert said == f"raftmq: data directory {tmp_path} is in use by another process (a broker or raftmq doctor)\n"


def test_an_empty_directory_needs_bootstrap_or_join(tmp_path: Path) -> None:
    with start(tmp_path) as broker:
        _, said = broker.communicate(timeout=30)
    assert broker.returncode == 2
    assert list(tmp_path.iterdir()) == []
    assert "--bootstrap" in said
    assert "--join" in said
    assert "Traceback" not in said


def write_two_records(cluster: LocalCluster, topic: str) -> None:
    assert raftmq(cluster, "topic", "create", topic).returncode == 0
    assert raftmq(cluster, "produce", topic, stdin=b"a\nb\n").returncode == 0


def read_two_records(cluster: LocalCluster, topic: str) -> bytes:
    read = raftmq(cluster, "consume", topic, "--from-beginning", "-n", "2")
    assert read.returncode == 0, read.stderr
    return read.stdout


def files_in(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.glob("*.mdb")}


@pytest.mark.long
def test_a_broker_whose_registry_is_lost_refuses_to_start_and_keeps_its_replicas(tmp_path: Path) -> None:
    """The replicas of a new cluster would have the same ids as the existing ones and overwrite their files.

    The first refused start leaves an empty registry, which the second start must not mistake for a new broker's.
    """
    with LocalCluster(brokers=1, directory=tmp_path) as cluster:
        write_two_records(cluster, "kept")
        cluster.stop(1)
        data_dir = cluster.data_dir(1)
        registry, groups = data_dir / "node.mdb", data_dir / "groups"
        content, replicas = registry.read_bytes(), files_in(groups)
        assert len(replicas) > 1
        registry.unlink()
        for arguments in ((), ("--bootstrap",), ("--join", "127.0.0.1:1")):
            check_refused(data_dir, len(replicas), *arguments)
        registry.write_bytes(b"")
        check_refused(data_dir, len(replicas), "--bootstrap")
        told = doctor(str(data_dir))
        assert told.returncode == 6
        assert b"damage: node.mdb: has no broker identity, although the broker has replicas" in told.stdout
        assert files_in(groups) == replicas
        registry.write_bytes(content)
        cluster.restart(1)
        assert read_two_records(cluster, "kept") == b"a\nb\n"


def check_refused(data_dir: Path, file_count: int, *arguments: str) -> None:
    refused = subprocess.run(start_command(data_dir, *arguments), capture_output=True, timeout=30, check=False)
    words = ("raftmq: node.mdb was lost", f"files of {file_count} replicas", "a copy of node.mdb")
    assert_one_sentence(refused, 6, *words)


@pytest.mark.long
def test_replicas_missing_from_an_older_copy_of_the_registry_are_kept(tmp_path: Path) -> None:
    """They have voted and acknowledged records, which an empty replica with the same id would deny.

    With their own registry they are complete again.
    """
    with LocalCluster(brokers=1, directory=tmp_path) as cluster:
        write_two_records(cluster, "old")
        cluster.stop(1)
        data_dir = cluster.data_dir(1)
        registry, groups = data_dir / "node.mdb", data_dir / "groups"
        older = registry.read_bytes()
        cluster.restart(1)
        before = set(files_in(groups))
        write_two_records(cluster, "new")
        cluster.stop(1)
        newer, replicas = registry.read_bytes(), files_in(groups)
        unknown = set(replicas) - before
        assert unknown
        registry.write_bytes(older)
        cluster.restart(1)
        assert read_two_records(cluster, "old") == b"a\nb\n"
        cluster.stop(1)
        said = cluster.logs(1)
        assert said.count("the registry does not know its file: it was written to") == len(unknown)
        now = files_in(groups)
        assert {name: now[name] for name in unknown} == {name: replicas[name] for name in unknown}
        registry.write_bytes(newer)
        cluster.restart(1)
        assert read_two_records(cluster, "new") == b"a\nb\n"


@pytest.mark.long
def test_joining_another_cluster_with_an_existing_data_directory_names_both_clusters(tmp_path: Path) -> None:
    with start(tmp_path / "a", "--bootstrap") as first:
        assert first.stdout is not None
        mine = json.loads(first.stdout.readline())["cluster_id"]
        first.kill()
    with start(tmp_path / "b", "--bootstrap") as other:
        assert other.stdout is not None
        ready = json.loads(other.stdout.readline())
        with start(tmp_path / "a", "--join", ready["peer_address"]) as refused:
            _, said = refused.communicate(timeout=40)
        other.kill()
    assert refused.returncode == 4
    (sentence,) = [line for line in said.splitlines() if line.startswith("raftmq: ")]
    assert mine in sentence
    assert ready["cluster_id"] in sentence
    assert ready["peer_address"] in sentence
    assert "Traceback" not in said


def test_a_cluster_of_one_keeps_its_records_over_a_restart(tmp_path: Path) -> None:
    with LocalCluster(brokers=1, directory=tmp_path) as cluster:
        write_two_records(cluster, "kept")
        cluster.kill(1)
        cluster.restart(1)
        assert read_two_records(cluster, "kept") == b"a\nb\n"
