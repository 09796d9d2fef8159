"""New replicas that cannot come up are named with their reason and the remedy. Those that are being copied, or wait for their turn, are not."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from raftmq.broker.cluster.stuck_replicas import Evidence, StuckReplica, stuck_replicas
from raftmq.fsm import metadata_commands as mc
from raftmq.fsm.feature_levels import FEATURE_LEVEL
from raftmq.storage.log_store import ReplicaKey
from raftmq.types import GroupId, ReplicaId

from tests.support.fsm.harness import MetadataLog
from tests.support.fsm.histories import register

TOPIC, GROUP = 1, 1


@pytest.fixture
def metadata() -> MetadataLog:
    """Return the metadata of four brokers and a topic whose only partition is on brokers 1 and 2."""
    log = MetadataLog(0)
    log.run(mc.InitializeCluster("c1", 1, "u1"))
    for number in range(1, 5):
        log.run(register(f"u{number}", feature_level_max=FEATURE_LEVEL, partitions_max=10))
    log.run(mc.RaiseFeatureLevel(FEATURE_LEVEL))
    log.run(mc.CreateTopic("t", "log", 2, {}, (mc.PartitionPlan((1, 2)),)))
    return log


def wish(metadata: MetadataLog, *node_ids: int) -> ReplicaKey:
    """Wish for these brokers. Return the newest replica."""
    metadata.run(mc.SetReplicationFactor(TOPIC, len(node_ids)))
    metadata.run(mc.SetReplicas(GROUP, node_ids, metadata.state.revision))
    partition = metadata.state.partition(GROUP)
    assert partition is not None
    assert [one.node_id for one in partition.replicas] == list(node_ids)
    return ReplicaKey(GroupId(GROUP), ReplicaId(max(one.replica_id for one in partition.replicas)))


def stuck(
    metadata: MetadataLog,
    *,
    down: tuple[int, ...] = (),
    leader: int = 1,
    not_ready: Mapping[int, str] | None = None,
    not_served: Mapping[ReplicaKey, str] | None = None,
    without_progress: Mapping[ReplicaKey, str] | None = None,
) -> list[StuckReplica]:
    evidence = Evidence(
        lambda node_id: node_id not in down,
        lambda group_id: leader,
        10,
        not_ready or {},
        not_served or {},
        without_progress or {},
    )
    return list(stuck_replicas(metadata.state, evidence))


def test_a_whole_partition_and_a_replica_that_is_being_copied_are_not_stuck(metadata: MetadataLog) -> None:
    assert stuck(metadata, down=(2,)) == []
    wish(metadata, 1, 2, 3)
    assert stuck(metadata) == []


def test_a_further_replica_on_a_dead_broker_is_stuck(metadata: MetadataLog) -> None:
    wish(metadata, 1, 2, 3)
    (found,) = stuck(metadata, down=(3,))
    assert (found.partition.group_id, found.node_id, found.reason) == (GROUP, 3, "broker 3 is not connected")
    assert found.advice == "start broker 3, or if it is gone for good: raftmq cluster remove 3 --force"


def test_the_new_replica_of_a_move_and_of_a_repair_is_stuck_too(metadata: MetadataLog) -> None:
    wish(metadata, 1, 3)
    assert [one.node_id for one in stuck(metadata, down=(3,))] == [3]
    metadata.run(mc.CreateTopic("other", "log", 2, {}, (mc.PartitionPlan((1, 2)),)))
    (_, damaged) = metadata.state.partition(2).replicas
    metadata.run(mc.ReplaceReplica(2, damaged.replica_id))
    assert [(one.partition.group_id, one.node_id) for one in stuck(metadata, down=(2,))] == [(2, 2)]


def test_the_reason_of_the_broker_itself_is_given(metadata: MetadataLog) -> None:
    key = wish(metadata, 1, 2, 3)
    (found,) = stuck(metadata, not_ready={3: "disk_reserve: 5 MB are free"})
    assert found.reason == "broker 3 is not ready: disk_reserve: 5 MB are free"
    assert "/readyz of broker 3" in found.advice
    (found,) = stuck(metadata, not_ready={3: "starting"}, not_served={key: "unavailable: no space"})
    assert found.reason == "broker 3 does not serve it: unavailable: no space"
    (found,) = stuck(metadata, without_progress={key: "no progress for 180 s"})
    assert found.reason == "no progress for 180 s"


def test_without_a_leader_there_is_nothing_to_copy_from(metadata: MetadataLog) -> None:
    wish(metadata, 1, 2, 3)
    for found in (stuck(metadata, leader=0), stuck(metadata, down=(1,))):
        assert [one.node_id for one in found] == [0]
        assert found[0].reason.startswith("no replica leads the partition")


def test_a_partition_that_lost_all_its_replicas_is_not_expected_to_come_back(metadata: MetadataLog) -> None:
    """The advice was to start the brokers of its other replicas, of which there are none."""
    metadata.run(mc.CreateTopic("single", "log", 1, {}, (mc.PartitionPlan((4,)),)))
    metadata.run(mc.RemoveNode(4, is_forced=True))
    (found,) = stuck(metadata, leader=0)
    assert (found.partition.group_id, found.node_id) == (2, 0)
    assert found.reason == "the partition has lost all its replicas, so there is none to copy from"
    assert found.advice.startswith("copy the records of the topic's other partitions, then delete the topic")


def test_a_replica_that_only_waits_for_its_turn_is_not_stuck(metadata: MetadataLog) -> None:
    metadata.run(mc.SetReplicationFactor(TOPIC, 3))
    assert stuck(metadata) == []
    assert stuck(metadata, down=(3,)) == [], "broker 4 can take it"


def test_a_replica_that_no_broker_can_take_names_the_reason_of_each(metadata: MetadataLog) -> None:
    metadata.run(mc.SetReplicationFactor(TOPIC, 3))
    (found,) = stuck(metadata, down=(3, 4))
    assert found.node_id == 0
    assert found.reason == "no other broker can take it: broker 3 is not connected, broker 4 is not connected"
    assert found.advice == (
        "start or add a broker, or lower the replication factor: raftmq topic alter t --replication-factor 2"
    )
    metadata.run(mc.CreateTopic("full", "log", 1, {}, tuple(mc.PartitionPlan((4,)) for _ in range(10))))
    metadata.run(mc.SetNodeState(3, "draining"))
    (found,) = stuck(metadata)
    assert found.reason.endswith("broker 3 is being drained, broker 4 accepts no more than 10 replicas")


def test_a_replica_that_needs_another_broker_says_so(metadata: MetadataLog) -> None:
    metadata.run(mc.SetReplicationFactor(TOPIC, 3))
    for number in (3, 4):
        assert isinstance(metadata.run(mc.RemoveNode(number)), mc.Done)
    (found,) = stuck(metadata)
    assert found.reason == "every broker holds a replica of the partition already"


def test_a_broker_whose_old_replica_is_being_removed_can_take_one_afterwards(metadata: MetadataLog) -> None:
    """Replicas on all four brokers were wanted while one of them was still leaving another: "every broker holds one" was false advice."""
    for number in (3, 4):
        assert isinstance(metadata.run(mc.RemoveNode(number)), mc.Done)
    metadata.run(register("u5", feature_level_max=FEATURE_LEVEL, partitions_max=10))
    node_id = max(node.node_id for node in metadata.state.nodes())
    wish(metadata, 1, node_id)
    metadata.run(mc.SetReplicationFactor(TOPIC, 3))
    partition = metadata.state.partition(GROUP)
    assert partition is not None
    assert [gone.node_id for gone in partition.retiring] == [2]
    assert stuck(metadata) == []
    (found,) = stuck(metadata, down=(2,))
    assert found.reason == "no other broker can take it: broker 2 is not connected"
