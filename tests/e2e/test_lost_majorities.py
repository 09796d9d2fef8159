"""Two of three brokers are gone for good: an operator revives metadata and partitions from the third, as the guide says."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from raftmq.testing import LocalCluster

from tests.support.e2e.helpers import eventually, is_ready
from tests.support.e2e.raftmq_command import assert_one_sentence, doctor, lines_of, raftmq
from tests.support.e2e.stored_metadata import newest_metadata

pytestmark = [pytest.mark.e2e]

RECORDS = 50


def until(condition: Callable[[], bool]) -> None:
    asyncio.run(eventually(condition))


def write(cluster: LocalCluster) -> None:
    made = raftmq(cluster, "topic", "create", "orders", "--partitions", "1", "--replication-factor", "3")
    assert made.returncode == 0, made.stderr
    done = raftmq(cluster, "produce", "orders", stdin=b"".join(b"%d\n" % number for number in range(RECORDS)))
    assert done.returncode == 0, done.stderr
    until(
        lambda: raftmq(cluster, "cluster", "status").returncode == 0
    )  # the one that survives has the last record, too


def values(cluster: LocalCluster) -> list[str]:
    return [line["value"] for line in lines_of(cluster, "orders", "--from-beginning")]


@pytest.mark.long
def test_metadata_and_partitions_are_revived_from_the_last_broker(tmp_path: Path) -> None:
    with LocalCluster(brokers=3, directory=tmp_path) as cluster:
        write(cluster)
        directory = str(cluster.data_dir(3))
        assert_one_sentence(
            raftmq(cluster, "recover", "metadata", directory, "--unsafe", "-y"), 4, "stop the broker first"
        )
        for broker_id in (1, 2, 3):
            cluster.kill(broker_id)
        for broker_id in (1, 2):
            shutil.rmtree(cluster.data_dir(broker_id))
        asked = raftmq(cluster, "recover", "metadata", directory, "--unsafe")
        assert asked.returncode == 2
        assert b"changes of metadata that this broker lacks are lost" in asked.stderr
        recovered = raftmq(cluster, "recover", "metadata", directory, "--unsafe", "--yes")
        assert recovered.returncode == 0, recovered.stderr
        assert b"broker 3 is the only metadata voter of the new cluster" in recovered.stdout
        assert doctor(directory).returncode == 0, doctor(directory).stdout
        cluster.restart(3, wait=False)
        until(lambda: is_ready(cluster, 3))
        lost = raftmq(cluster, "cluster", "recover", "-o", "json")
        assert lost.returncode == 3, lost.stderr
        (partition,) = json.loads(lost.stdout)["partitions"]
        held = {one["broker_id"]: (one["condition"], one["log_end_offset"]) for one in partition["replicas"]}
        assert held == {1: ("unreachable", 0), 2: ("unreachable", 0), 3: ("served", RECORDS)}
        done = raftmq(cluster, "partition", "recover", "orders", "0", "--unsafe", "--keep", "3", "--yes")
        assert done.returncode == 0, done.stderr
        assert values(cluster) == [str(number) for number in range(RECORDS)]
        listed = raftmq(cluster, "cluster", "recover")
        assert listed.returncode == 0
        assert f"records from offset {RECORDS} on may be missing".encode() in listed.stdout
        cluster.stop(3)
        told = doctor(directory)
        assert told.returncode == 0
        assert b"partition orders/0 was recovered from its replica on broker 3" in told.stdout
        assert f"records from offset {RECORDS} on that were acknowledged before may be missing".encode() in told.stdout


@pytest.mark.long
def test_a_surviving_broker_joins_the_recovered_cluster_with_its_data(tmp_path: Path) -> None:
    with LocalCluster(brokers=3, directory=tmp_path) as cluster:
        write(cluster)
        for broker_id in (1, 2, 3):
            cluster.kill(broker_id)
        shutil.rmtree(cluster.data_dir(1))
        kept = newest_metadata(cluster, 2, 3)
        other = 5 - kept
        done = raftmq(cluster, "recover", "metadata", str(cluster.data_dir(kept)), "--unsafe", "--yes")
        assert done.returncode == 0, done.stderr
        cluster.restart(kept, wait=False)
        until(lambda: is_ready(cluster, kept))
        left = raftmq(cluster, "recover", "rejoin", str(cluster.data_dir(other)), "--unsafe", "--yes")
        assert left.returncode == 0, left.stderr
        cluster._launch(cluster._brokers[other], "--join", cluster._brokers[kept].peer_address)
        until(lambda: is_ready(cluster, other))
        until(lambda: raftmq(cluster, "cluster", "recover").returncode == 0)
        assert values(cluster) == [str(number) for number in range(RECORDS)]
        removed = raftmq(cluster, "cluster", "remove", "1", "--force", "--yes")
        assert removed.returncode == 0, removed.stderr
