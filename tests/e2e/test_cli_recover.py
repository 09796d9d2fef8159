"""`raftmq recover` at the data directory of one real broker: what it shows, asks, changes and refuses.

`tests/e2e/test_lost_majorities.py` recovers whole clusters.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from raftmq.testing import LocalCluster

from tests.support.e2e.raftmq_command import assert_one_sentence, doctor, lines_of, raftmq

pytestmark = [pytest.mark.e2e]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Yield a cluster whose only broker accepted a record and was stopped."""
    with LocalCluster(brokers=1, directory=tmp_path) as running:
        assert raftmq(running, "topic", "create", "t", "--partitions", "2").returncode == 0
        assert raftmq(running, "produce", "t", stdin=b"kept\n").returncode == 0
        running.stop(1)
        yield running


def stored(cluster: LocalCluster) -> dict[str, object]:
    """Return the metadata in the directory of the broker."""
    done = raftmq(cluster, "recover", "metadata", str(cluster.data_dir(1)), "-o", "json")
    assert done.returncode == 0, done.stderr
    shown: dict[str, object] = json.loads(done.stdout)
    return shown


def test_a_new_metadata_group_is_made_after_a_question(cluster: LocalCluster) -> None:
    directory = str(cluster.data_dir(1))
    before = stored(cluster)
    assert {key: before[key] for key in ("result", "broker_id", "voters", "other_brokers", "topic_count")} == {
        "result": "stored",
        "broker_id": 1,
        "voters": [1],
        "other_brokers": [],
        "topic_count": 1,
    }
    shown = raftmq(cluster, "recover", "metadata", directory).stdout.decode()
    assert f"broker 1 of cluster {before['cluster_id']}" in shown
    assert "with 1 topic and 2 partitions\nmetadata voters: 1, other brokers: none\n" in shown

    declined = raftmq(cluster, "recover", "metadata", directory, "--unsafe", stdin=b"n\n")
    assert declined.returncode == 130
    said = declined.stderr.decode()
    assert said.index("even acknowledged ones") < said.index("Make broker 1 the only metadata voter of a new cluster?")
    assert stored(cluster)["cluster_id"] == before["cluster_id"]

    done = raftmq(cluster, "recover", "metadata", directory, "--unsafe", stdin=b"y\n")
    assert done.returncode == 0, done.stderr
    cluster_id = stored(cluster)["cluster_id"]
    assert cluster_id != before["cluster_id"]
    first, second = done.stdout.decode().splitlines()
    assert first == f"broker 1 is the only metadata voter of the new cluster {cluster_id}: start it"
    assert second.startswith("on each other broker that survives (of none): raftmq recover rejoin")
    assert doctor(directory).returncode == 0
    cluster.restart(1)
    assert [line["value"] for line in lines_of(cluster, "t", "--from-beginning")] == ["kept"]


def test_a_broker_leaves_its_cluster_after_a_question(cluster: LocalCluster) -> None:
    directory, before = str(cluster.data_dir(1)), stored(cluster)
    shown = raftmq(cluster, "recover", "rejoin", directory)
    assert b"broker 1 of cluster" in shown.stdout
    declined = raftmq(cluster, "recover", "rejoin", directory, "--unsafe", stdin=b"n\n")
    assert declined.returncode == 130
    assert f"Let broker 1 leave cluster {before['cluster_id']}?" in declined.stderr.decode()
    done = raftmq(cluster, "recover", "rejoin", directory, "--unsafe", "--yes")
    assert done.stdout.decode() == (
        f"broker 1 left cluster {before['cluster_id']}: start it with --join and the peer address of the recovered broker, without "
        "--bootstrap\n"
    )
    for command in ("metadata", "rejoin"):
        again = raftmq(cluster, "recover", command, directory, "--unsafe", "--yes")
        assert_one_sentence(again, 4, "belongs to no cluster")


def test_a_broker_with_damaged_metadata_leaves_its_cluster(cluster: LocalCluster) -> None:
    directory, before = cluster.data_dir(1), stored(cluster)
    (file,) = (directory / "groups").glob("0-*.mdb")
    file.write_bytes(file.read_bytes()[:5000])
    refused = raftmq(cluster, "recover", "metadata", str(directory))
    assert_one_sentence(refused, 4, "the metadata replica of this broker cannot be used", "it has 5000 bytes")
    shown = raftmq(cluster, "recover", "rejoin", str(directory))
    first, second = shown.stdout.decode().splitlines()
    assert first == f"{directory}: broker 1 of cluster {before['cluster_id']}"
    assert second.startswith(
        "its metadata is lost: the metadata replica of this broker cannot be used: it has 5000 bytes"
    )
    done = raftmq(cluster, "recover", "rejoin", str(directory), "--unsafe", "--yes", "-o", "json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["result"], told["broker_id"], told["cluster_id"]) == ("left", 1, before["cluster_id"])
    assert "cannot be used" in told["problem"]


def test_the_directory_of_a_running_broker_is_refused(cluster: LocalCluster) -> None:
    cluster.restart(1)
    for command in ("metadata", "rejoin"):
        done = raftmq(cluster, "recover", command, str(cluster.data_dir(1)), "--unsafe", "--yes")
        assert_one_sentence(done, 4, "is in use by another process", "stop the broker first")


@pytest.mark.parametrize("command", ["metadata", "rejoin"])
def test_a_path_that_is_no_data_directory_is_a_usage_error_as_for_doctor(cluster: LocalCluster, command: str) -> None:
    above = str(cluster.data_dir(1).parent)
    done = raftmq(cluster, "recover", command, above, "--unsafe", "--yes")
    assert_one_sentence(done, 2, "is not a data directory: it contains no node.mdb; there is one in ")
    assert (done.returncode, done.stderr) == (doctor(above).returncode, doctor(above).stderr)
    assert_one_sentence(raftmq(cluster, "recover", command, f"{above}/none"), 2, "there is no directory")
