"""Permanent loss of a broker: after `raftmq cluster remove --force` the other brokers rebuild its replicas.

To prove that the new replicas are complete, another broker is killed afterwards: nothing works without them.
"""

import asyncio
import json
import shutil
import urllib.error
import urllib.request

import pytest
from raftmq import Admin, Producer, errors
from raftmq.broker.base.limits import Limits
from raftmq.client.admin.descriptions import ClusterDescription
from raftmq.testing import LocalCluster

from tests.support.e2e.helpers import cluster_with_topic, eventually, gauge
from tests.support.e2e.raftmq_command import answer, assert_one_sentence, raftmq
from tests.support.e2e.workload import Workload

pytestmark = [pytest.mark.e2e]

TOPIC = "removal"
PARTITIONS = 30
"""Enough partitions that each of up to five brokers holds more replicas than are rebuilt at a time."""
REBUILDING_MAX = Limits().rebuilding_max
UNDER_REPLICATED = "raftmq_under_replicated_partitions"


def gauges(cluster: LocalCluster, name: str) -> float:
    return sum(gauge(cluster, broker_id, name) for broker_id in cluster.broker_ids if cluster.is_running(broker_id))


def is_whole(cluster: LocalCluster) -> bool:
    """Return whether every partition has a leader and as many connected voters as its topic wants."""
    return gauges(cluster, UNDER_REPLICATED) == 0 and gauges(cluster, "raftmq_groups_led") == PARTITIONS + 1


async def replica_brokers(cluster: LocalCluster) -> list[set[int]]:
    async with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        return [set(partition.replica_brokers) for partition in (await admin.describe_topic(TOPIC)).partitions]


def replaced_at_once(cluster: LocalCluster) -> list[int]:
    """Return the number of replicas that each plan replaced, as the brokers logged it."""
    lines = [line for broker_id in cluster.broker_ids for line in cluster.logs(broker_id).splitlines()]
    return [json.loads(line)["replicas"] for line in lines if '"replicas_replaced"' in line]


async def described(cluster: LocalCluster) -> ClusterDescription:
    async with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        return await admin.describe_cluster()


async def wait_seen_down(cluster: LocalCluster, broker_id: int) -> None:
    """Wait until the metadata leader has noticed that the broker is not connected."""
    async with asyncio.timeout(30):
        while True:
            cluster_now = await described(cluster)
            leader = cluster_now.metadata_leader_broker_id
            seen = {broker.broker_id: broker.is_connected for broker in cluster_now.brokers}
            if (
                leader not in (0, broker_id)
                and cluster_now.answering_broker_id == leader
                and not seen.get(broker_id, False)
            ):
                return
            await asyncio.sleep(0.1)


async def wait_metadata_voters(cluster: LocalCluster, count: int) -> None:
    async with asyncio.timeout(30):
        while sum(broker.is_metadata_voter for broker in (await described(cluster)).brokers) != count:
            await asyncio.sleep(0.1)


def remove(cluster: LocalCluster, *arguments: str) -> object:
    return answer(cluster, "cluster", "remove", *arguments, "--yes")


@pytest.mark.long
@pytest.mark.parametrize("victim", [1, 3])
async def test_a_dead_broker_is_removed_and_its_replicas_are_rebuilt_on_the_others(victim: int) -> None:
    """Broker 1 bootstrapped the cluster. Broker 3 is an ordinary one."""
    async with cluster_with_topic(TOPIC, PARTITIONS, brokers=4) as cluster:
        held = sum(victim in brokers for brokers in await replica_brokers(cluster))
        assert REBUILDING_MAX < held < PARTITIONS
        async with Workload(cluster.bootstrap_servers, TOPIC, PARTITIONS) as workload:
            await workload.wait_progress()
            running = await asyncio.to_thread(raftmq, cluster, "cluster", "remove", str(victim), "--force", "--yes")
            assert_one_sentence(running, 4, f"broker {victim} is running", "stop it first")
            cluster.kill(victim)
            await wait_seen_down(cluster, victim)
            unforced = await asyncio.to_thread(raftmq, cluster, "cluster", "remove", str(victim), "--yes")
            assert_one_sentence(unforced, 4, f"holds {held} partition replicas", "--force")

            said = await asyncio.to_thread(remove, cluster, str(victim), "--force")
            assert said == {
                "broker_id": victim, "replica_count": held, "without_majority_count": 0, "without_majority": []
            }  # fmt: skip
            await eventually(lambda: is_whole(cluster))
            brokers = await replica_brokers(cluster)
            assert all(len(one) == 3 and victim not in one for one in brokers)
            now = await described(cluster)
            assert victim not in [broker.broker_id for broker in now.brokers]
            await wait_metadata_voters(cluster, 3)
            plans = replaced_at_once(cluster)
            assert sum(plans) == held
            assert max(plans) <= REBUILDING_MAX, "throttled"

            again = await asyncio.to_thread(raftmq, cluster, "cluster", "remove", str(victim), "--force", "--yes")
            assert_one_sentence(again, 4, f"broker {victim} was already removed")
            await check_refused(cluster, victim)

            cluster.kill(next(broker_id for broker_id in cluster.broker_ids if broker_id != victim))
            await workload.wait_progress()
            await workload.check()


async def check_refused(cluster: LocalCluster, victim: int) -> None:
    """Check that the victim, restarted on its data, reports its removal on /readyz and in its log."""
    await asyncio.to_thread(cluster.restart, victim, wait=False)
    await eventually(lambda: "removed_from_cluster" in cluster.logs(victim))

    with pytest.raises(urllib.error.HTTPError) as refusal:
        await asyncio.to_thread(urllib.request.urlopen, f"http://{cluster.http_address(victim)}/readyz", timeout=5)
    with refusal.value as said:
        assert said.code == 503
        assert "removed" in said.read().decode()
    assert f"this uuid was broker {victim} and is removed" in cluster.logs(victim)
    cluster.kill(victim)


@pytest.mark.long
async def test_with_too_few_brokers_left_the_cluster_works_and_logs_that_replicas_lack_a_broker() -> None:
    """Two of three brokers remain. The third replicas have no place until the removed broker returns with an empty disk."""
    victim = 3
    async with (
        cluster_with_topic(TOPIC, PARTITIONS, brokers=3) as cluster,
        Workload(cluster.bootstrap_servers, TOPIC, PARTITIONS) as workload,
    ):
        await workload.wait_progress()
        cluster.kill(victim)
        await wait_seen_down(cluster, victim)
        await asyncio.to_thread(remove, cluster, str(victim), "--force")
        await eventually(lambda: "replicas_without_broker" in cluster.logs(1) + cluster.logs(2))
        await workload.wait_progress()
        await eventually(lambda: gauges(cluster, UNDER_REPLICATED) == PARTITIONS)
        assert all(brokers == {1, 2} for brokers in await replica_brokers(cluster))

        await asyncio.to_thread(empty_and_join, cluster, victim)
        await eventually(lambda: is_whole(cluster))
        assert all(len(brokers) == 3 for brokers in await replica_brokers(cluster))
        said = (cluster.logs(1) + cluster.logs(2)).count("replicas_without_broker")
        assert said <= 2, "each metadata leader logs it at most once a minute"
        cluster.kill(2)
        await workload.wait_progress()
        await workload.check()


def empty_and_join(cluster: LocalCluster, broker_id: int) -> None:
    """Start the machine of a removed broker with an empty disk. The cluster treats it as a new broker."""
    shutil.rmtree(cluster.data_dir(broker_id))
    cluster.restart(broker_id)


@pytest.mark.long
async def test_rebuilding_continues_after_the_metadata_leader_is_killed() -> None:
    victim = 4
    async with (
        cluster_with_topic(TOPIC, PARTITIONS, brokers=5) as cluster,
        Workload(cluster.bootstrap_servers, TOPIC, PARTITIONS) as workload,
    ):
        await workload.wait_progress()
        cluster.kill(victim)
        await wait_seen_down(cluster, victim)
        await asyncio.to_thread(remove, cluster, str(victim), "--force")
        for _ in range(2):
            leader = (await described(cluster)).metadata_leader_broker_id
            cluster.kill(leader)
            await asyncio.to_thread(cluster.restart, leader)
        await eventually(lambda: is_whole(cluster))
        assert all(len(brokers) == 3 and victim not in brokers for brokers in await replica_brokers(cluster))
        assert max(replaced_at_once(cluster)) <= REBUILDING_MAX
        await workload.check()


@pytest.mark.long
async def test_a_partition_without_a_majority_is_named_and_the_others_accept_records() -> None:
    async with LocalCluster(brokers=3) as cluster, Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        await admin.create_topic("single", partitions=3, replication_factor=1)
        homes = {p.replica_brokers[0]: p.partition for p in (await admin.describe_topic("single")).partitions}
        assert len(homes) == 3
        victim = 3
        cluster.kill(victim)
        await wait_seen_down(cluster, victim)
        done = await asyncio.to_thread(
            raftmq, cluster, "cluster", "remove", str(victim), "--force", "--yes", "-o", "json"
        )
        assert json.loads(done.stdout)["without_majority"] == [{"topic": "single", "partition": homes[victim]}]
        with pytest.raises(errors.UnknownBrokerError):
            await admin.remove_broker(victim, force=True)
        async with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
            for broker_id in (1, 2):
                await producer.send_and_wait("single", b"x", partition=homes[broker_id])
        async with asyncio.timeout(60):
            while (await admin.describe_cluster()).partitions_without_leader != 1:
                await asyncio.sleep(0.1)
        left = {p.partition: p.replica_brokers for p in (await admin.describe_topic("single")).partitions}
        assert left == {homes[1]: (1,), homes[2]: (2,), homes[victim]: ()}, "the lost partition does not reappear empty"
