"""The metadata state machine: the meaning of each command, and the agreement of views and indexes with the rows."""

import random
import time

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from raftmq.fsm import codes
from raftmq.fsm import metadata_commands as mc
from raftmq.fsm.metadata import Metadata
from raftmq.fsm.metadata_views import BalancingView, PartitionView, RecoveryView, ReplicaView
from raftmq.fsm.producer_ids import NAMED_PRODUCER_BIT
from raftmq.fsm.producer_names import NAMED_PRODUCERS_MAX, USED_TIME_ERROR_MS, USED_TIME_STEP_MS
from raftmq.fsm.topic_kinds import TOPIC_KINDS
from raftmq.types import LogIndex

from tests.support.fsm import histories
from tests.support.fsm.harness import MetadataLog
from tests.support.fsm.histories import HOUR_MS, register


class Cluster(MetadataLog):
    """A cluster of three nodes."""

    def __init__(self, nodes: int = 3) -> None:
        super().__init__(nodes)

    def create(self, name: str = "t", *plans: tuple[int, ...]) -> int:
        result = self.run(mc.CreateTopic(name, "log", 3, {}, tuple(map(mc.PartitionPlan, plans or ((1, 2, 3),)))))
        assert isinstance(result, mc.TopicCreated)
        return result.topic_id

    def partition(self, group_id: int = 1) -> PartitionView:
        partition = self.state.partition(group_id)
        assert partition is not None
        return partition


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


# -------------------------------------------------------------------------------------------------------------- forming


def test_a_cluster_forms_once() -> None:
    cluster = Cluster(nodes=0)
    assert cluster.code(register("u1")) == codes.NOT_FORMED
    assert cluster.code(mc.AllocateProducerIds(1)) == codes.NOT_FORMED
    formed = cluster.run(mc.InitializeCluster("c1", 1))
    assert isinstance(formed, mc.Done)
    assert cluster.run(mc.InitializeCluster("c1", 1)) == formed, "its proposer may repeat it"
    assert cluster.code(mc.InitializeCluster("c2", 1)) == codes.CLUSTER_ALREADY_FORMED
    assert cluster.state.cluster_id == "c1"
    assert cluster.state.metadata_voters == (1,)


@pytest.mark.parametrize("cluster_id", ["", "x" * 250])
def test_a_cluster_needs_a_usable_id(cluster_id: str) -> None:
    assert Cluster(nodes=0).code(mc.InitializeCluster(cluster_id, 1)) == codes.INVALID_ARGUMENT


def test_the_bootstrapping_node_has_metadata_replica_1_even_if_it_registers_late() -> None:
    cluster = Cluster(nodes=0)
    cluster.run(mc.InitializeCluster("c1", 1, "boot"))
    joined = cluster.run(register("joiner"))
    booted = cluster.run(register("boot"))
    assert isinstance(joined, mc.NodeRegistered)
    assert isinstance(booted, mc.NodeRegistered)
    assert (joined.node_id, joined.metadata_replica_id) == (1, 2)
    assert (booted.node_id, booted.metadata_replica_id) == (2, 1)


# -------------------------------------------------------------------------------------------------------- feature level


def upgrade(cluster: Cluster, *uuids: str) -> None:
    for uuid in uuids:
        assert cluster.code(register(uuid, feature_level_max=3)) is None


def test_the_level_rises_as_far_as_every_node_allows(cluster: Cluster) -> None:
    upgrade(cluster, "u1", "u2")
    assert cluster.state.feature_level_max == 1
    assert cluster.code(mc.RaiseFeatureLevel(2)) == codes.UNSUPPORTED_VERSION
    cluster.run(register("u3", feature_level_max=2))
    assert cluster.state.feature_level_max == 2
    assert cluster.code(mc.RaiseFeatureLevel(3)) == codes.UNSUPPORTED_VERSION
    raised = cluster.run(mc.RaiseFeatureLevel(2))
    assert raised == mc.Done(cluster.state.revision)
    assert cluster.state.feature_level == 2
    assert cluster.run(mc.RaiseFeatureLevel(2)) == raised, "its proposer may repeat it"


def test_the_level_never_falls(cluster: Cluster) -> None:
    upgrade(cluster, "u1", "u2", "u3")
    cluster.run(mc.RaiseFeatureLevel(3))
    assert cluster.code(mc.RaiseFeatureLevel(2)) == codes.FAILED_PRECONDITION
    assert cluster.code(mc.RaiseFeatureLevel(-1)) == codes.FAILED_PRECONDITION


def test_a_refusal_names_the_nodes_that_are_behind(cluster: Cluster) -> None:
    upgrade(cluster, "u2")
    refused = cluster.run(mc.RaiseFeatureLevel(2))
    assert isinstance(refused, mc.Rejected)
    assert "broker 1 (1), broker 3 (1): upgrade these brokers first" in refused.message


def test_a_removed_node_does_not_hold_the_level_down(cluster: Cluster) -> None:
    upgrade(cluster, "u1", "u2")
    cluster.run(mc.RemoveNode(3))
    assert cluster.code(mc.RaiseFeatureLevel(3)) is None


def test_a_cluster_without_nodes_keeps_its_level() -> None:
    """The node that forms it could not register any more."""
    cluster = Cluster(nodes=0)
    cluster.run(mc.InitializeCluster("c1", 1))
    assert cluster.code(mc.RaiseFeatureLevel(2)) == codes.UNSUPPORTED_VERSION


def test_no_node_below_the_level_joins_or_comes_back(cluster: Cluster) -> None:
    upgrade(cluster, "u1", "u2", "u3")
    cluster.run(mc.RaiseFeatureLevel(3))
    for older in (register("u4", feature_level_max=2), register("u2", feature_level_max=2)):
        assert cluster.code(older) == codes.UNSUPPORTED_VERSION
    node = cluster.state.node(2)
    assert node is not None
    assert node.feature_level_max == 3
    assert cluster.code(register("u4", feature_level_max=4)) is None


def test_the_level_survives_a_snapshot(cluster: Cluster) -> None:
    upgrade(cluster, "u1", "u2", "u3")
    cluster.run(mc.RaiseFeatureLevel(2))
    restored = Metadata()
    restored.restore(cluster.state.rows(), cluster.state.applied_index)
    assert restored.feature_level == 2


# ---------------------------------------------------------------------------------------------------------------- nodes


def test_the_same_uuid_keeps_node_id_and_replica_and_updates_addresses(cluster: Cluster) -> None:
    before = cluster.state.node(2)
    result = cluster.run(register("u2", 7, client_address="elsewhere:1"))
    after = cluster.state.node(2)
    assert before is not None
    assert after is not None
    assert isinstance(result, mc.NodeRegistered)
    assert (result.node_id, result.metadata_replica_id) == (2, 2)
    assert after.client_address == "elsewhere:1"
    assert (after.uuid, after.metadata_replica_id) == (before.uuid, before.metadata_replica_id)
    assert cluster.state.node(7) is None


def test_announcing_nothing_new_changes_nothing(cluster: Cluster) -> None:
    cluster.state.take_dirty_rows()
    revision = cluster.state.revision
    result = cluster.run(register("u2"))
    assert isinstance(result, mc.NodeRegistered)
    assert result.revision == cluster.state.revision == revision
    assert cluster.state.take_dirty_rows() == ()


def test_free_node_ids_skip_taken_ones(cluster: Cluster) -> None:
    cluster.run(register("u9", 4))
    result = cluster.run(register("u10"))
    assert isinstance(result, mc.NodeRegistered)
    assert result.node_id == 5


def test_a_node_id_held_by_another_uuid_is_refused(cluster: Cluster) -> None:
    assert cluster.code(register("other", 2)) == codes.BROKER_ID_TAKEN


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (register("", 0), codes.INVALID_ARGUMENT),
        (register("x" * 250, 0), codes.INVALID_ARGUMENT),
        (register("u9", -1), codes.INVALID_ARGUMENT),
        (register("u9", 2**31), codes.INVALID_ARGUMENT),
        (register("u9", 0, replaces_lost=True), codes.INVALID_ARGUMENT),
        (register("u9", 0, feature_level_max=0), codes.UNSUPPORTED_VERSION),
        (mc.RemoveNode(9), codes.UNKNOWN_BROKER),
        (mc.RemoveNode(1), codes.CONFLICT),
    ],
)
def test_impossible_node_commands_are_refused(cluster: Cluster, command: mc.MetadataCommand, code: int) -> None:
    assert cluster.code(command) == code


def test_one_command_replaces_all_replicas_of_a_lost_disk(cluster: Cluster) -> None:
    """A new uuid under the old node id marks every replica of the old uuid as lost, including its metadata voter."""
    cluster.run(mc.SetMetadataMembership((1, 2, 3), cluster.state.revision))
    cluster.create("t", (1, 2, 3), (3, 1), (2,))
    old = cluster.partition(1)
    result = cluster.run(register("u2-new", 2, replaces_lost=True))

    assert isinstance(result, mc.NodeRegistered)
    new_replica = result.metadata_replica_id
    assert result.node_id == 2
    assert new_replica > 9, "replica ids are never reused"
    assert cluster.state.metadata_voters == (1, 3, new_replica)
    assert cluster.state.metadata_retiring == (ReplicaView(2, 2, is_lost=True),)
    assert cluster.state.replica_node(0, 2) is None
    assert cluster.state.replica_node(0, new_replica) == 2
    new = cluster.partition(1)
    assert [replica.node_id for replica in new.replicas] == [1, 2, 3]
    assert (new.replicas[0], new.replicas[2]) == (old.replicas[0], old.replicas[2])
    assert new.replicas[1].replica_id > new_replica
    assert new.retiring == (ReplicaView(old.replicas[1].replica_id, 2, is_lost=True),)
    assert new.creation_replicas == old.creation_replicas
    assert cluster.state.replica_node(1, old.replicas[1].replica_id) is None
    assert cluster.state.is_replica_retired(1, old.replicas[1].replica_id)
    assert cluster.partition(2).retiring == ()
    assert len({r.replica_id for g in (1, 2, 3) for r in cluster.partition(g).replicas}) == 6
    assert [partition.group_id for partition in cluster.state.partitions_of_node(2)] == [1, 3]
    assert cluster.code(register("u2")) == codes.BROKER_REMOVED, "the lost disk is found again"
    assert cluster.state.node_by_uuid("u2") is None
    assert isinstance(cluster.run(register("u2-new", 2, replaces_lost=True)), mc.NodeRegistered), "a repeat"
    assert cluster.state.metadata_voters == (1, 3, new_replica)


def test_a_replica_row_without_a_seat_has_a_seat_of_its_own() -> None:
    replica = msgspec.msgpack.decode(msgspec.msgpack.encode([4, 2, True]), type=ReplicaView)
    assert replica == ReplicaView(4, 2, is_lost=True)
    assert replica.seat == 4


def test_a_retiring_replica_on_a_lost_disk_is_lost_too(cluster: Cluster) -> None:
    cluster.create("t", (1, 2))
    cluster.run(mc.SetReplicas(1, (1, 3), cluster.state.revision))
    cluster.run(register("new", 2, replaces_lost=True))
    partition = cluster.partition()
    assert [replica.node_id for replica in partition.replicas] == [1, 3]
    assert [replica.is_lost for replica in partition.retiring] == [True]


def test_a_damaged_replica_is_replaced_on_its_node(cluster: Cluster) -> None:
    cluster.create("t", (1, 2, 3))
    old = cluster.partition()
    damaged = old.replicas[0]
    command = mc.ReplaceReplica(1, damaged.replica_id)
    assert isinstance(cluster.run(command), mc.Done)
    new = cluster.partition()
    assert [replica.node_id for replica in new.replicas] == [1, 2, 3], "its place, so the preferred leader, stays"
    assert new.replicas[0].replica_id > max(replica.replica_id for replica in old.replicas)
    assert new.replicas[1:] == old.replicas[1:]
    assert new.retiring == (ReplicaView(damaged.replica_id, 1, is_lost=True),)
    assert cluster.state.is_replica_retired(1, damaged.replica_id), "its file may be deleted immediately"
    assert isinstance(cluster.run(command), mc.Done)
    assert cluster.partition() == new, "reported twice, replaced once"
    assert isinstance(cluster.run(mc.RemoveReplica(1, damaged.replica_id)), mc.Done)
    assert isinstance(cluster.run(command), mc.Done)
    assert cluster.partition().replicas == new.replicas
    assert cluster.code(mc.ReplaceReplica(99, 1)) == codes.UNKNOWN_PARTITION


def test_a_damaged_replica_that_is_retiring_is_lost_and_not_replaced(cluster: Cluster) -> None:
    cluster.create("t", (1, 2))
    retiring = cluster.partition().replicas[1]
    cluster.run(mc.SetReplicas(1, (1, 3), cluster.state.revision))
    replicas = cluster.partition().replicas
    cluster.run(mc.ReplaceReplica(1, retiring.replica_id))
    assert cluster.partition().replicas == replicas
    assert cluster.partition().retiring == (ReplicaView(retiring.replica_id, 2, is_lost=True),)


def test_a_damaged_metadata_replica_is_replaced_and_its_voter_too(cluster: Cluster) -> None:
    cluster.run(mc.SetMetadataMembership((1, 2, 3), cluster.state.revision))
    assert isinstance(cluster.run(mc.ReplaceReplica(0, 2)), mc.Done)
    node = cluster.state.node(2)
    assert node is not None
    assert node.metadata_replica_id > 3
    assert node.uuid == "u2", "the node stays who it is"
    assert cluster.state.metadata_voters == (1, 3, node.metadata_replica_id)
    assert cluster.state.metadata_retiring == (ReplicaView(2, 2, is_lost=True),)
    assert cluster.state.metadata_membership_revision == cluster.state.revision
    assert isinstance(cluster.run(mc.ReplaceReplica(0, 2)), mc.Done)
    assert cluster.state.node(2) == node, "reported twice, replaced once"


def test_a_removed_uuid_is_refused_permanently(cluster: Cluster) -> None:
    assert isinstance(cluster.run(mc.RemoveNode(3)), mc.Done)
    assert cluster.code(register("u3")) == codes.BROKER_REMOVED
    assert cluster.code(register("u3", 9)) == codes.BROKER_REMOVED
    assert cluster.code(mc.RemoveNode(3)) == codes.UNKNOWN_BROKER
    assert [node.node_id for node in cluster.state.nodes()] == [1, 2]
    assert cluster.state.is_uuid_retired("u3")
    fresh = cluster.run(register("u4"))
    assert isinstance(fresh, mc.NodeRegistered)
    assert fresh.node_id == 4, "a removed node's id is given out by wish only"
    wished = cluster.run(register("u5", 3))
    assert isinstance(wished, mc.NodeRegistered)
    assert wished.node_id == 3


def test_a_node_in_use_is_removed_by_force_only(cluster: Cluster) -> None:
    cluster.run(mc.SetMetadataMembership((1, 3), cluster.state.revision))
    cluster.create("t", (1, 2))
    assert cluster.code(mc.RemoveNode(2)) == cluster.code(mc.RemoveNode(3)) == codes.CONFLICT
    assert isinstance(cluster.run(mc.RemoveNode(2, is_forced=True)), mc.Done)
    assert isinstance(cluster.run(mc.RemoveNode(3, is_forced=True)), mc.Done)
    assert cluster.state.metadata_voters == (1,)
    assert {replica.node_id for replica in cluster.state.metadata_retiring} == {2, 3}
    assert [replica.node_id for replica in cluster.partition().replicas] == [1]
    assert [replica.is_lost for replica in cluster.partition().retiring] == [True]
    assert cluster.code(mc.RemoveNode(1, is_forced=True)) == codes.CONFLICT, "the last metadata voter"


# -------------------------------------------------------------------------------------------------- metadata membership


def test_desired_metadata_voters_are_guarded_by_revision(cluster: Cluster) -> None:
    planned_at = cluster.state.revision
    assert isinstance(cluster.run(mc.SetMetadataMembership((3, 1, 2), planned_at)), mc.Done)
    assert cluster.state.metadata_voters == (1, 2, 3)
    assert cluster.code(mc.SetMetadataMembership((1,), planned_at)) == codes.CONFLICT
    planned_at = cluster.state.revision
    cluster.create()
    assert isinstance(cluster.run(mc.SetMetadataMembership((1,), planned_at)), mc.Done), "topics do not matter to it"
    planned_at = cluster.state.revision
    cluster.run(register("u4"))
    assert cluster.code(mc.SetMetadataMembership((1, 2), planned_at)) == codes.CONFLICT


@pytest.mark.parametrize(
    ("voters", "code"),
    [((), codes.INVALID_ARGUMENT), ((1, 1), codes.INVALID_ARGUMENT), ((1, 77), codes.UNKNOWN_BROKER)],
)
def test_impossible_metadata_voters_are_refused(cluster: Cluster, voters: tuple[int, ...], code: int) -> None:
    assert cluster.code(mc.SetMetadataMembership(voters, 10**6)) == code


def test_a_retired_metadata_replica_is_forgotten_once_it_left(cluster: Cluster) -> None:
    cluster.run(mc.RemoveNode(3))
    assert cluster.code(mc.RemoveReplica(0, 2)) == codes.CONFLICT
    assert isinstance(cluster.run(mc.RemoveReplica(0, 3)), mc.Done)
    assert cluster.state.metadata_retiring == ()


# --------------------------------------------------------------------------------------------------------------- topics


def test_a_topic_gets_new_groups_and_new_replicas(cluster: Cluster) -> None:
    topic_id = cluster.create("t", (1, 2, 3), (2, 3, 1))
    topic = cluster.state.topic_by_name("t")
    assert topic is not None
    assert (topic.topic_id, topic.group_ids) == (topic_id, (1, 2))
    assert cluster.state.topic(topic_id) == topic
    second = cluster.partition(2)
    assert second.replicas == second.creation_replicas
    assert second.replicas == (ReplicaView(7, 2), ReplicaView(8, 3), ReplicaView(9, 1))
    assert (second.topic_id, second.partition, second.retiring) == (topic_id, 1, ())


def test_a_topic_created_again_is_a_new_one(cluster: Cluster) -> None:
    first = cluster.create("t", (1,), (2,))
    assert isinstance(cluster.run(mc.DeleteTopic(first)), mc.Done)
    assert cluster.code(mc.DeleteTopic(first)) == codes.UNKNOWN_TOPIC
    assert cluster.state.partition(1) is None
    assert cluster.state.partitions_of_node(1) == ()
    second = cluster.create("t", (1,))
    topic = cluster.state.topic(second)
    assert topic is not None
    assert second > first
    assert topic.group_ids == (3,)
    assert cluster.state.is_replica_retired(1, 4)
    assert not cluster.state.is_replica_retired(3, 6)
    assert not cluster.state.is_replica_retired(99, 99), "not given out yet"


def test_an_assigned_group_id_without_a_partition_was_deleted(cluster: Cluster) -> None:
    """The leader of a deleted partition can be forgotten, but the leader of a partition not known yet must be kept."""
    first = cluster.create("t", (1,), (2,))
    cluster.run(mc.DeleteTopic(first))
    cluster.create("t", (1,))
    given = [group_id for group_id in range(10) if cluster.state.is_group_given_out(group_id)]
    assert given == [1, 2, 3]
    assert [group_id for group_id in given if cluster.state.partition(group_id) is None] == [1, 2]


@pytest.mark.parametrize(
    ("name", "plans", "code"),
    [
        ("t", [(1,)], codes.TOPIC_ALREADY_EXISTS),
        ("", [(1,)], codes.INVALID_TOPIC_NAME),
        ("bad/name", [(1,)], codes.INVALID_TOPIC_NAME),
        ("x" * 250, [(1,)], codes.INVALID_TOPIC_NAME),
        ("n", [], codes.INVALID_PARTITIONS),
        ("n", [(1,)] * 10_001, codes.TOO_MANY_PARTITIONS),
        ("n", [(1,), ()], codes.INVALID_REPLICATION_FACTOR),
        ("n", [(1, 1)], codes.INVALID_REPLICATION_FACTOR),
        ("n", [tuple(range(1, 11))], codes.INVALID_REPLICATION_FACTOR),
        ("n", [(1, 2), (1, 9)], codes.UNKNOWN_BROKER),
    ],
)
def test_impossible_topics_are_refused(cluster: Cluster, name: str, plans: list[tuple[int, ...]], code: int) -> None:
    cluster.create("t")
    assert cluster.code(mc.CreateTopic(name, "log", 3, {}, tuple(map(mc.PartitionPlan, plans)))) == code


@pytest.mark.parametrize("kind", sorted(TOPIC_KINDS))
def test_a_topic_keeps_its_kind(cluster: Cluster, kind: str) -> None:
    cluster.run(mc.CreateTopic("t", kind, 1, {}, (mc.PartitionPlan((1,)),)))
    topic = cluster.state.topic_by_name("t")
    assert topic is not None
    assert topic.kind == kind


def test_a_plan_on_a_removed_node_is_refused(cluster: Cluster) -> None:
    cluster.run(mc.RemoveNode(3))
    assert cluster.code(mc.CreateTopic("n", "log", 1, {}, (mc.PartitionPlan((3,)),))) == codes.UNKNOWN_BROKER


def test_partitions_are_added_once(cluster: Cluster) -> None:
    topic_id = cluster.create("t", (1,))
    more = mc.AddPartitions(topic_id, 1, (mc.PartitionPlan((2,)), mc.PartitionPlan((3,))))
    assert isinstance(cluster.run(more), mc.TopicCreated)
    assert cluster.code(more) == codes.CONFLICT
    topic = cluster.state.topic(topic_id)
    assert topic is not None
    assert topic.group_ids == (1, 2, 3)
    assert [cluster.partition(group).partition for group in topic.group_ids] == [0, 1, 2]
    assert cluster.code(mc.AddPartitions(9, 1, more.partitions)) == codes.UNKNOWN_TOPIC
    assert cluster.code(mc.AddPartitions(topic_id, 3, ())) == codes.INVALID_PARTITIONS


def test_configuration_is_merged_and_unset(cluster: Cluster) -> None:
    topic_id = cluster.create()
    cluster.run(mc.AlterTopicConfig(topic_id, {"a": "1", "b": "2"}))
    cluster.run(mc.AlterTopicConfig(topic_id, {"a": None, "c": "3", "none": None}))
    topic = cluster.state.topic(topic_id)
    assert topic is not None
    assert topic.config == {"b": "2", "c": "3"}
    assert cluster.code(mc.AlterTopicConfig(9, {})) == codes.UNKNOWN_TOPIC


# ------------------------------------------------------------------------------------------------------------- replicas


def test_a_partition_that_moves_away_and_back_has_a_new_replica(cluster: Cluster) -> None:
    cluster.create("t", (1, 2))
    original = cluster.partition().replicas
    cluster.run(mc.SetReplicas(1, (3, 1), cluster.state.revision))
    moved = cluster.partition()
    assert [replica.node_id for replica in moved.replicas] == [3, 1]
    assert moved.replicas[1] == original[0]
    assert moved.retiring == (original[1],)
    assert cluster.state.replica_node(1, original[1].replica_id) == 2, "it must still be reached to be told"
    # otherwise its node would host the new replica instead of the old one, which still votes
    assert cluster.code(mc.SetReplicas(1, (1, 2), cluster.state.revision)) == codes.CONFLICT
    assert cluster.partition() == moved
    cluster.run(mc.RemoveReplica(1, original[1].replica_id))
    cluster.run(mc.SetReplicas(1, (1, 2), cluster.state.revision))
    back = cluster.partition()
    assert back.replicas[1].replica_id not in {replica.replica_id for replica in (*original, *moved.replicas)}
    assert cluster.code(mc.RemoveReplica(1, back.replicas[0].replica_id)) == codes.CONFLICT
    for replica in back.retiring:
        assert not cluster.state.is_replica_retired(1, replica.replica_id)
        assert isinstance(cluster.run(mc.RemoveReplica(1, replica.replica_id)), mc.Done)
        assert isinstance(cluster.run(mc.RemoveReplica(1, replica.replica_id)), mc.Done), "a repeat"
        assert cluster.state.is_replica_retired(1, replica.replica_id)
    assert cluster.partition().retiring == ()
    assert [partition.group_id for partition in cluster.state.partitions_of_node(3)] == []
    assert cluster.partition().creation_replicas == original


def test_desired_replicas_are_guarded_by_revision(cluster: Cluster) -> None:
    cluster.create("t", (1, 2), (1, 2))
    planned_at = cluster.state.revision
    cluster.run(mc.SetReplicas(2, (1,), planned_at))
    assert isinstance(cluster.run(mc.SetReplicas(1, (1,), planned_at)), mc.Done), "another partition changed"
    assert cluster.code(mc.SetReplicas(1, (1, 2), planned_at)) == codes.CONFLICT
    assert cluster.code(mc.SetReplicas(9, (1,), planned_at)) == codes.UNKNOWN_PARTITION
    assert cluster.code(mc.SetReplicas(1, (9,), 10**6)) == codes.UNKNOWN_BROKER
    assert cluster.code(mc.RemoveReplica(9, 1)) == codes.UNKNOWN_PARTITION


# --------------------------------------------------------------------------------------- draining, replication factors


def test_a_node_is_drained_and_taken_back(cluster: Cluster) -> None:
    drained = cluster.run(mc.SetNodeState(2, "draining"))
    assert drained == mc.Done(cluster.state.revision)
    assert cluster.run(mc.SetNodeState(2, "draining")) == drained, "its proposer may repeat it"
    assert [node.state for node in cluster.state.nodes()] == ["active", "draining", "active"]
    cluster.run(register("u2", rack="r9"))
    assert [node.state for node in cluster.state.nodes()] == ["active", "draining", "active"], "it announces its rack"
    cluster.run(mc.SetNodeState(2, "active"))
    assert [node.state for node in cluster.state.nodes()] == ["active"] * 3


def test_a_draining_node_whose_disk_was_replaced_goes_on_draining(cluster: Cluster) -> None:
    cluster.run(mc.SetNodeState(2, "draining"))
    cluster.run(register("u9", 2, replaces_lost=True))
    assert [(node.uuid, node.state) for node in cluster.state.nodes()][1] == ("u9", "draining")


def test_impossible_states_of_nodes_are_refused(cluster: Cluster) -> None:
    assert cluster.code(mc.SetNodeState(9, "draining")) == codes.UNKNOWN_BROKER
    assert cluster.code(mc.SetNodeState(1, "removed")) == codes.INVALID_ARGUMENT
    cluster.create("wide", (1, 2, 3))
    assert cluster.code(mc.SetNodeState(1, "draining")) == codes.CONFLICT, "its replicas would have no place"
    cluster.run(register("u4"))
    assert cluster.code(mc.SetNodeState(1, "draining")) is None
    assert cluster.code(mc.SetNodeState(2, "draining")) == codes.CONFLICT


def test_the_last_active_node_is_not_drained() -> None:
    cluster = Cluster(nodes=2)
    assert cluster.code(mc.SetNodeState(1, "draining")) is None
    assert cluster.code(mc.SetNodeState(2, "draining")) == codes.CONFLICT


def test_a_topic_gets_another_replication_factor(cluster: Cluster) -> None:
    topic_id = cluster.create("t", (1,))
    assert cluster.code(mc.SetReplicationFactor(topic_id, 2)) is None
    topic = cluster.state.topic(topic_id)
    assert topic is not None
    assert topic.replication_factor == 2
    assert [replica.node_id for replica in cluster.partition().replicas] == [1], "the controller adds replicas"
    for impossible in (0, 4, 10):
        assert cluster.code(mc.SetReplicationFactor(topic_id, impossible)) == codes.INVALID_REPLICATION_FACTOR
    assert cluster.code(mc.SetReplicationFactor(99, 1)) == codes.UNKNOWN_TOPIC
    cluster.run(mc.SetReplicationFactor(topic_id, 1))
    cluster.run(mc.SetNodeState(3, "draining"))
    assert cluster.code(mc.SetReplicationFactor(topic_id, 3)) == codes.INVALID_REPLICATION_FACTOR


def test_the_settings_of_balancing_keep_the_values_that_a_command_does_not_name(cluster: Cluster) -> None:
    assert cluster.state.balancing == BalancingView(auto_balance=True, moves_max=4, rebalance="")
    cluster.run(mc.SetBalancing(moves_max=2))
    cluster.run(mc.SetBalancing(auto_balance=False, rebalance="leaders"))
    assert cluster.state.balancing == BalancingView(auto_balance=False, moves_max=2, rebalance="leaders")
    before = cluster.state.revision
    for impossible in (mc.SetBalancing(moves_max=0), mc.SetBalancing(moves_max=1001), mc.SetBalancing(rebalance="all")):
        assert cluster.code(impossible) == codes.INVALID_ARGUMENT
    assert cluster.code(mc.SetBalancing(moves_max=2)) is None
    assert cluster.state.revision == before, "a repeated command changes nothing"


def test_settings_of_all_brokers_and_of_one_are_kept_apart(cluster: Cluster) -> None:
    cluster.run(mc.AlterConfig(0, {"a": "1", "b": "2"}))
    cluster.run(mc.AlterConfig(2, {"a": "9"}))
    cluster.run(mc.AlterConfig(0, {"b": None, "c": "3", "none": None}))
    assert cluster.state.config() == {"a": "1", "c": "3"}
    assert cluster.state.config(2) == {"a": "9"}
    assert cluster.state.config(1) == {}
    before, seen = cluster.state.revision, cluster.state.config()
    assert cluster.code(mc.AlterConfig(0, {"a": "1"})) is None
    assert cluster.state.revision == before, "a repeated command changes nothing"
    assert cluster.state.config() is seen, "readers compare identities"


def test_settings_of_an_unknown_or_removed_broker_are_refused_and_forgotten(cluster: Cluster) -> None:
    cluster.run(mc.AlterConfig(3, {"a": "9"}))
    cluster.run(mc.RemoveNode(3, is_forced=True))
    assert cluster.state.config(3) == {}
    assert cluster.code(mc.AlterConfig(3, {"a": "9"})) == codes.UNKNOWN_BROKER
    assert cluster.code(mc.AlterConfig(77, {"a": "9"})) == codes.UNKNOWN_BROKER


def test_settings_survive_a_restart_and_a_snapshot(cluster: Cluster) -> None:
    cluster.run(mc.AlterConfig(0, {"a": "1"}))
    cluster.run(mc.AlterConfig(2, {"a": "9"}))
    cluster.run(mc.AlterConfig(1, {"a": "5"}))
    cluster.run(mc.AlterConfig(1, {"a": None}))
    copy = Metadata()
    copy.restore(cluster.state.rows(), cluster.state.applied_index)
    assert (copy.config(), copy.config(1), copy.config(2)) == ({"a": "1"}, {}, {"a": "9"})


def test_a_partition_is_unsettled_until_its_old_replica_is_removed(cluster: Cluster) -> None:
    cluster.create("t", (1, 2))
    assert cluster.state.unsettled_partitions() == ()
    wishes, layout = cluster.state.wishes_version, cluster.state.layout_version
    cluster.run(mc.SetReplicas(1, (1, 3), cluster.state.revision))
    assert [partition.group_id for partition in cluster.state.unsettled_partitions()] == [1]
    assert cluster.state.wishes_version == wishes, "a move changes no wish"
    assert cluster.state.layout_version > layout
    (gone,) = cluster.partition().retiring
    cluster.run(mc.RemoveReplica(1, gone.replica_id))
    assert cluster.state.unsettled_partitions() == ()


def newcomers(cluster: Cluster) -> list[bool]:
    return [replica.is_newcomer for replica in cluster.partition().replicas]


def test_replicas_without_a_predecessor_are_newcomers_until_they_vote(cluster: Cluster) -> None:
    upgrade(cluster, "u1", "u2", "u3")
    cluster.run(mc.RaiseFeatureLevel(3))
    cluster.create("t", (1,))
    assert newcomers(cluster) == [False]
    cluster.run(mc.SetReplicas(1, (1, 2), cluster.state.revision))
    assert newcomers(cluster) == [False, True]
    second = cluster.partition().replicas[1].replica_id
    admitted = cluster.run(mc.AdmitReplica(1, second))
    assert cluster.run(mc.AdmitReplica(1, second)) == admitted, "its proposer may repeat it"
    assert newcomers(cluster) == [False, False]
    cluster.run(mc.SetReplicas(1, (1, 3), cluster.state.revision))
    assert newcomers(cluster) == [False, False], "it takes the seat of the second"
    assert cluster.code(mc.AdmitReplica(9, 1)) == codes.UNKNOWN_PARTITION


def test_the_seat_of_a_replica_that_was_dropped_earlier_may_have_no_voter(cluster: Cluster) -> None:
    upgrade(cluster, "u1", "u2", "u3")
    cluster.run(mc.RaiseFeatureLevel(3))
    cluster.create("t", (1, 2))
    cluster.run(mc.SetReplicas(1, (1,), cluster.state.revision))
    cluster.run(mc.SetReplicas(1, (1, 3), cluster.state.revision))
    assert newcomers(cluster) == [False, True]
    assert cluster.partition().replicas[1].seat == cluster.partition().retiring[0].seat


def test_below_its_level_the_command_marks_no_newcomers(cluster: Cluster) -> None:
    """A broker of an earlier level applies the same entry without the mark."""
    upgrade(cluster, "u1", "u2", "u3")
    cluster.run(mc.RaiseFeatureLevel(2))
    cluster.create("t", (1,))
    cluster.run(mc.SetReplicas(1, (1, 2), cluster.state.revision))
    assert newcomers(cluster) == [False, False]


# ------------------------------------------------------------------------------------------------------------ producers


def test_blocks_of_producer_ids_never_overlap(cluster: Cluster) -> None:
    first, second = cluster.run(mc.AllocateProducerIds(1000)), cluster.run(mc.AllocateProducerIds(5))
    assert isinstance(first, mc.ProducerIdBlock)
    assert isinstance(second, mc.ProducerIdBlock)
    assert (first.first, second.first) == (1, 1001)
    assert cluster.code(mc.AllocateProducerIds(0)) == codes.INVALID_ARGUMENT
    assert cluster.code(mc.AllocateProducerIds(10**6 + 1)) == codes.INVALID_ARGUMENT


def named(cluster: Cluster, name: str, epoch: int | None = None) -> tuple[int, int]:
    result = cluster.run(mc.InitNamedProducer(name, epoch))
    assert isinstance(result, mc.ProducerInitialized)
    return result.producer_id, result.epoch


def pass_days(cluster: Cluster, days: int) -> None:
    """Let days pass with an entry every ten minutes, since the expiry clock follows no larger steps."""
    for _ in range(days * 24 * 6):
        cluster.log.time_ms += HOUR_MS // 6
        cluster.run(mc.AllocateProducerIds(1))


def test_a_name_without_epoch_fences_its_predecessor(cluster: Cluster) -> None:
    producer_id, epoch = named(cluster, "p")
    assert producer_id & NAMED_PRODUCER_BIT
    assert epoch == 0
    assert [named(cluster, "p"), named(cluster, "p")] == [(producer_id, 1), (producer_id, 2)]
    assert named(cluster, "q")[0] != producer_id


def test_a_name_with_epoch_confirms_raises_or_is_fenced(cluster: Cluster) -> None:
    producer_id, _ = named(cluster, "p", 7)
    assert named(cluster, "p", 7) == (producer_id, 7)
    assert named(cluster, "p", 9) == (producer_id, 9)
    assert cluster.code(mc.InitNamedProducer("p", 8)) == codes.PRODUCER_FENCED
    assert named(cluster, "p", 2**64 - 1) == (producer_id, 2**64 - 1)
    assert cluster.code(mc.InitNamedProducer("p", None)) == codes.INVALID_ARGUMENT
    assert cluster.code(mc.InitNamedProducer("", None)) == codes.INVALID_ARGUMENT
    assert cluster.code(mc.InitNamedProducer("p", -1)) == codes.INVALID_ARGUMENT


def restored(state: Metadata) -> Metadata:
    """Return another replica that begins with this one's rows."""
    other = Metadata()
    other.restore(state.rows(), state.applied_index)
    return other


def test_the_lowest_epoch_of_a_names_batches_survives_a_restart_and_ends_with_the_name(cluster: Cluster) -> None:
    job, _ = named(cluster, "job")
    exact, _ = named(cluster, "exact", 5)
    assert [cluster.state.batch_epoch_min(one) for one in (job, exact, 77)] == [0, 5, 0]
    named(cluster, "job")
    named(cluster, "exact", 6)
    named(cluster, "exact", 6)
    for machine in (cluster.state, restored(cluster.state)):
        assert [machine.batch_epoch_min(one) for one in (job, exact)] == [1 << 32, 6]
    named(cluster, "exact")  # the name is taken over by a producer that does not request an epoch
    assert named(cluster, "exact", 7) == (exact, 7)
    assert cluster.state.batch_epoch_min(exact) == 7 << 32
    pass_days(cluster, 15)
    named(cluster, "other")
    for machine in (cluster.state, restored(cluster.state)):
        assert machine.batch_epoch_min(job) == machine.batch_epoch_min(exact) == 0


def test_a_repeated_stamp_gets_the_same_epoch(cluster: Cluster) -> None:
    """A repeated request, however late, must not fence its sender."""

    def given(stamp: bytes) -> int:
        result = cluster.run(mc.InitNamedProducer("p", None, stamp))
        assert isinstance(result, mc.ProducerInitialized)
        return result.epoch

    assert [given(stamp) for stamp in (b"a", b"a", b"b", b"b", b"", b"", b"b")] == [0, 0, 1, 1, 2, 3, 4]
    assert named(cluster, "p", 4)[1] == 4
    assert given(b"b") == 4, "confirming the epoch kept its stamp"


def test_an_epochs_stamp_is_replaced_only_by_a_producer_that_knows_it(cluster: Cluster) -> None:
    def stamped(epoch: int, stamp: bytes, replaces: bytes | None = None) -> bytes:
        result = cluster.run(mc.InitNamedProducer("p", epoch, stamp, replaces))
        assert isinstance(result, mc.ProducerInitialized)
        return result.stamp

    assert stamped(1, b"first") == b"first"
    assert stamped(1, b"second") == b"first"
    assert stamped(1, b"second", b"other") == b"first"
    assert stamped(1, b"second", b"first") == b"second"
    assert stamped(1, b"second", b"first") == b"second"  # repeated after a lost answer
    assert stamped(1, b"") == b"second"
    assert stamped(2, b"", b"second") == b""  # an epoch begins with the stamp of its first user
    assert stamped(2, b"late") == b""
    assert named(cluster, "p")[1] == 3
    assert stamped(3, b"x") == b""
    assert cluster.code(mc.InitNamedProducer("p", 4, bytes(4097))) == codes.INVALID_ARGUMENT


def test_a_second_stamp_is_claimed_only_by_the_one_who_has_the_first(cluster: Cluster) -> None:
    def claimed(stamp: bytes, then: mc.StampClaim) -> tuple[bytes, bytes | int | None]:
        result = cluster.run(mc.InitNamedProducer("task", 1, stamp, then=then))
        assert isinstance(result, mc.ProducerInitialized)
        second = result.then
        if second is None:
            return result.stamp, None
        return result.stamp, second.code if isinstance(second, mc.Rejected) else second.stamp

    assert claimed(b"mine", mc.StampClaim("all", 1, b"1")) == (b"mine", b"1")
    assert claimed(b"other", mc.StampClaim("all", 1, b"2", b"1")) == (b"mine", None)
    assert claimed(b"mine", mc.StampClaim("all", 1, b"2", b"0")) == (b"mine", b"1")
    assert claimed(b"mine", mc.StampClaim("all", 1, b"2", b"1")) == (b"mine", b"2")
    assert claimed(b"mine", mc.StampClaim("all", 1, b"2", b"1")) == (b"mine", b"2"), "repeated after a lost answer"
    assert claimed(b"mine", mc.StampClaim("all", 0, b"3", b"2")) == (b"mine", codes.PRODUCER_FENCED)
    assert claimed(b"mine", mc.StampClaim("", 1)) == (b"mine", codes.INVALID_ARGUMENT)
    assert cluster.code(mc.InitNamedProducer("task", 0, b"mine", then=mc.StampClaim("all", 1, b"4", b"2"))) == (
        codes.PRODUCER_FENCED
    )
    assert claimed(b"mine", mc.StampClaim("all", 1)) == (b"mine", b"2")


def test_a_second_stamp_gets_more_bits_if_its_first_part_is_still_the_claims(cluster: Cluster) -> None:
    def claimed(then: mc.StampClaim) -> bytes:
        result = cluster.run(mc.InitNamedProducer("task", 1, b"mine", then=then))
        assert isinstance(result, mc.ProducerInitialized)
        assert isinstance(result.then, mc.ProducerInitialized)
        return result.then.stamp

    assert claimed(mc.StampClaim("all", 1, b"head\x01")) == b"head\x01"
    assert claimed(mc.StampClaim("all", 1, b"head\x04", b"head", 4)) == b"head\x05"
    assert claimed(mc.StampClaim("all", 1, b"head\x04", b"head", 4)) == b"head\x05", "repeated after a lost answer"
    assert claimed(mc.StampClaim("all", 1, b"head\x00\x80", b"", 4)) == b"head\x05\x80"
    assert claimed(mc.StampClaim("all", 1, b"head\x02", None, 4)) == b"head\x07\x80"
    assert claimed(mc.StampClaim("all", 1, b"heat\x08", b"heat", 4)) == b"head\x07\x80"
    assert claimed(mc.StampClaim("all", 1, b"head\x08", b"head\x01", 0)) == b"head\x07\x80"
    assert claimed(mc.StampClaim("all", 1, b"head", b"head", 4)) == b"head\x07\x80"
    assert claimed(mc.StampClaim("all", 1, b"heat\x08", b"head\x07\x80", 4)) == b"heat\x08", "it replaces the stamp"
    assert claimed(mc.StampClaim("all", 2, b"head\x10", None, 4)) == b"head\x10", "a new epoch has its first stamp"
    cluster.run(mc.InitNamedProducer("empty", 1))
    assert claimed(mc.StampClaim("empty", 1, b"\x01", None, 1)) == b""
    assert (
        claimed(mc.StampClaim("empty", 1, b"\x01", None, 2)) == claimed(mc.StampClaim("empty", 1, b"", None, -1)) == b""
    )


@given(st.binary(max_size=6), st.binary(max_size=6), st.integers(0, 6))
def test_bits_are_added_to_a_stamp_as_bit_by_bit(present: bytes, added: bytes, shared: int) -> None:
    cluster = Cluster()
    cluster.run(mc.InitNamedProducer("all", 1, present))
    shared = min(shared, len(added))
    then = mc.StampClaim("all", 1, added, None, shared)
    result = cluster.run(mc.InitNamedProducer("task", 1, b"mine", then=then))
    assert isinstance(result, mc.ProducerInitialized)
    assert isinstance(result.then, mc.ProducerInitialized)
    expected = present
    if shared and present[:shared] == added[:shared]:
        expected = bytes(
            (present[at] if at < len(present) else 0) | (added[at] if at < len(added) else 0)
            for at in range(max(len(present), len(added)))
        )
    assert result.then.stamp == expected


def test_a_name_expires_14_days_after_its_last_use(cluster: Cluster) -> None:
    used_id, _ = named(cluster, "used", 5)
    idle_id, _ = named(cluster, "idle", 5)
    pass_days(cluster, 10)
    named(cluster, "used", 5)
    pass_days(cluster, 4)
    assert named(cluster, "used", 5) == (used_id, 5)
    reborn_id, epoch = named(cluster, "idle")
    assert reborn_id not in (idle_id, used_id)
    assert epoch == 0


def test_the_number_of_names_is_bounded(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    assert NAMED_PRODUCERS_MAX >= 10_000
    monkeypatch.setattr("raftmq.fsm.metadata_producers.NAMED_PRODUCERS_MAX", 2)
    named(cluster, "a")
    named(cluster, "b")
    assert cluster.code(mc.InitNamedProducer("c", None)) == codes.TOO_MANY_NAMES
    named(cluster, "a")
    cluster.run(mc.ForgetProducerNames(("b", "unknown"), cluster.state.expiry_now_ms))
    named(cluster, "c")


def test_forgetting_names_spares_those_that_were_used_later(cluster: Cluster) -> None:
    old_id, _ = named(cluster, "old", 5)
    named(cluster, "used", 5)
    pass_days(cluster, 2)
    until_ms = cluster.state.expiry_now_ms - 1
    named(cluster, "used", 5)
    assert [name for name, _, _ in cluster.state.unused_producer_names("", 1)] == ["old"]
    assert cluster.state.unused_producer_names("u", 1) == []
    cluster.run(mc.ForgetProducerNames(("used", "old"), until_ms))
    assert cluster.state.producer_name_count == 1
    assert cluster.state.batch_epoch_min(old_id) == 0
    assert named(cluster, "used", 5)[1] == 5
    assert named(cluster, "old", 0)[0] != old_id
    too_many = tuple(map(str, range(1001)))
    assert cluster.code(mc.ForgetProducerNames(too_many, until_ms)) == codes.INVALID_ARGUMENT


# -------------------------------------------------------------------------------------------------------------- views


def test_views_are_not_changed_by_later_commands(cluster: Cluster) -> None:
    topic_id = cluster.create("t", (1, 2))
    topic, partition = cluster.state.topic(topic_id), cluster.partition()
    assert topic is not None
    config = dict(topic.config)
    cluster.run(mc.AlterTopicConfig(topic_id, {"a": "1"}))
    cluster.run(mc.SetReplicas(1, (3,), cluster.state.revision))
    assert topic.config == config
    assert [replica.node_id for replica in partition.replicas] == [1, 2]


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32), length=st.integers(0, 100), is_restored=st.booleans())
def test_indexes_equal_a_scan_of_the_rows(seed: int, length: int, is_restored: bool) -> None:
    """The test also checks that a replica id is never in two places, and that ids below their counters were never assigned twice."""
    rng = random.Random(seed)
    entries = histories.metadata_history(rng, length)
    machine: Metadata
    if is_restored:
        machine = histories.snapshot_life(Metadata, entries, rng.randint(0, len(entries)))  # type: ignore[assignment]
    else:
        machine = histories.plain_life(Metadata, entries)[0]  # type: ignore[assignment]

    partitions = [machine.partition(group) for topic in machine.topics() for group in topic.group_ids]
    assert None not in partitions
    holders: dict[tuple[int, int], int] = {(0, n.metadata_replica_id): n.node_id for n in machine.nodes()}
    seen = [node.metadata_replica_id for node in machine.nodes()]
    by_node: dict[int, set[int]] = {}
    for partition in partitions:
        assert partition is not None
        topic = machine.topic(partition.topic_id)
        assert topic is not None
        assert topic.group_ids[partition.partition] == partition.group_id
        assert len({replica.node_id for replica in partition.replicas}) == len(partition.replicas)
        assert not any(replica.is_lost for replica in partition.replicas)
        for replica in (*partition.replicas, *partition.retiring):
            seen.append(replica.replica_id)
            if not replica.is_lost:
                holders[partition.group_id, replica.replica_id] = replica.node_id
                by_node.setdefault(replica.node_id, set()).add(partition.group_id)
    assert len(seen) == len(set(seen))
    for group_id in range(10):
        for replica_id in range(60):
            assert machine.replica_node(group_id, replica_id) == holders.get((group_id, replica_id))
    for node_id in range(10):
        groups = [partition.group_id for partition in machine.partitions_of_node(node_id)]
        assert groups == sorted(by_node.get(node_id, set()))
        assert machine.replica_count_of_node(node_id) == len(groups)
    for node in machine.nodes():
        assert machine.node_by_uuid(node.uuid) == node
        assert not machine.is_uuid_retired(node.uuid)
    for topic in machine.topics():
        assert machine.topic_by_name(topic.name) == topic
    assert {partition.group_id for partition in machine.short_partitions()} == {
        group_id
        for topic in machine.topics()
        for group_id in topic.group_ids
        if len(machine.partition(group_id).replicas) < topic.replication_factor
    }
    assert set(machine.metadata_voters) <= {replica.replica_id for replica in machine.metadata_replicas} | {1}
    assert machine.partition_count == len(partitions)
    assert machine.topic_count == len(machine.topics())
    assert machine.revision <= machine.applied_index


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32), length=st.integers(0, 60))
def test_a_reader_of_changes_misses_none(seed: int, length: int) -> None:
    """A reader that looks only at what changed since its last look, at random times, knows everything that a reader of everything knows."""
    rng = random.Random(seed)
    machine = Metadata()
    partitions: dict[int, object] = {}
    topics: dict[int, object] = {}
    seen_groups = seen_topics = -1
    for entry in histories.metadata_history(rng, length):
        machine.apply(entry)
        if rng.random() < 0.05:
            adopted = Metadata()
            adopted.restore(tuple(machine.rows()), machine.applied_index)
            machine.adopt(adopted)
        if rng.random() < 0.4:
            groups, changed_topics = machine.group_changes.after(seen_groups), machine.topic_changes.after(seen_topics)
            seen_groups, seen_topics = machine.group_changes.version, machine.topic_changes.version
            everything = {group_id for topic in machine.topics() for group_id in topic.group_ids}
            for group_id in everything | set(partitions) if groups is None else groups:
                partitions[group_id] = machine.partition(group_id)
            for topic_id in (
                {one.topic_id for one in machine.topics()} | set(topics) if changed_topics is None else changed_topics
            ):
                topics[topic_id] = machine.topic(topic_id)
            assert {key: one for key, one in partitions.items() if one} == {
                key: machine.partition(key) for key in everything
            }
            assert [one for _, one in sorted(topics.items()) if one] == list(machine.topics())


def test_a_change_of_a_recovered_group_is_also_one_of_the_group_that_it_replaced(cluster: Cluster) -> None:
    """A broker keeps the files of the old group until the new one has them, so it must look at both."""
    cluster.create("t", (1, 2, 3), (2, 3, 1))
    seen = cluster.state.group_changes.version
    assert isinstance(cluster.run(recover(cluster, cluster.partition(1).replicas[1].replica_id)), mc.Done)
    changed = cluster.state.group_changes.after(seen)
    assert changed is not None
    assert changed[0] == 1
    (recovery,) = cluster.state.recoveries()
    assert recovery.group_id in changed
    seen = cluster.state.group_changes.version
    assert isinstance(cluster.run(mc.SetReplicas(recovery.group_id, (2, 3), cluster.state.revision)), mc.Done)
    assert cluster.state.group_changes.after(seen) == [1, recovery.group_id]


def test_a_large_topic_is_applied_quickly() -> None:
    """1,000 partitions take a few milliseconds. A quadratic index would take seconds."""
    cluster = Cluster()
    plans = tuple(mc.PartitionPlan(((i % 3) + 1, ((i + 1) % 3) + 1, ((i + 2) % 3) + 1)) for i in range(4000))
    entry = cluster.log.metadata(mc.CreateTopic("t", "log", 3, {}, plans))
    started = time.process_time()
    cluster.state.apply(entry)
    assert len(cluster.state.take_dirty_rows()) > 4000
    assert time.process_time() - started < 2


# ----------------------------------------------------------------------------------------------------------- recoveries


def recover(cluster: Cluster, replica_id: int = 6, **changes: object) -> mc.RecoverPartition:
    fields = {
        "group_id": 1,
        "term": 20,
        "log_end_offset": 7,
        "known_end_offset": 9,
        "expected_revision": cluster.state.applied_index,
    }
    return mc.RecoverPartition(replica_id=replica_id, **(fields | changes))


def test_a_recovered_partition_has_a_new_group_founded_by_the_kept_replica(cluster: Cluster) -> None:
    cluster.create("t", (1, 2, 3), (2, 3, 1))
    old, kept = cluster.partition(1), cluster.partition(1).replicas[1]
    command = recover(cluster, kept.replica_id)
    done = cluster.run(command)
    assert isinstance(done, mc.Done)
    (topic,) = cluster.state.topics()
    assert topic.group_ids == (3, 2), "the partition keeps its number and gets a group id that was never used"
    assert cluster.state.partition(1) is None
    new = cluster.partition(3)
    (founder,) = new.replicas
    assert new.creation_replicas == (founder,)
    assert founder.node_id == kept.node_id
    assert founder.replica_id > max(replica.replica_id for replica in cluster.partition(2).replicas)
    assert cluster.state.recoveries() == (
        RecoveryView(3, topic.topic_id, 0, 1, kept.replica_id, kept.node_id, 20, 7, 9, (1, 3), cluster.log.time_ms),
    )
    assert cluster.state.recovery(3) == cluster.state.recovery_from(1, kept.replica_id)
    assert all(cluster.state.is_replica_retired(1, replica.replica_id) for replica in old.replicas)
    assert [cluster.state.kept_end_offset(3, group_id) for group_id in (1, 3, 0)] == [7, None, None]
    assert cluster.state.kept_end_offset(2, 1) is None, "of another partition"
    assert cluster.state.kept_end_offset(1, 1) is None, "a group that serves nothing any more"
    assert cluster.run(command) == done, "its proposer may repeat it"
    assert cluster.code(recover(cluster, old.replicas[0].replica_id)) == codes.UNKNOWN_PARTITION


def test_two_recoveries_of_the_same_metadata_give_out_other_ids(cluster: Cluster) -> None:
    """A broker that was recovered by mistake joins the other new cluster with a directory that has ids of its own one."""
    rows = tuple(cluster.state.rows())
    voters = set[int]()
    for number in range(8):
        state = Metadata()
        state.restore(rows, cluster.state.applied_index)
        voter = state.found_again(f"{number:032x}", 1, LogIndex(cluster.state.applied_index + 1))
        assert voter is not None
        voters |= {voter + offset for offset in range(1000)}
    assert len(voters) == 8 * 1000


def test_a_recovery_of_the_metadata_outdates_every_lost_target_of_a_partition(cluster: Cluster) -> None:
    """A group that has carried out a lost target refuses all older ones. It never got the replicas that the recovered metadata wants."""
    cluster.create("t", (1, 2, 3), (2, 3, 1))
    index = LogIndex(cluster.state.applied_index + 1_000_000)
    assert cluster.state.found_again("f" * 32, 1, index) is not None
    assert [cluster.partition(group_id).revision for group_id in (1, 2)] == [index, index]


def test_a_recovery_is_refused_when_it_does_not_fit(cluster: Cluster) -> None:
    cluster.create()
    first = cluster.partition().replicas[1].replica_id
    assert cluster.code(recover(cluster, 99)) == codes.INVALID_ARGUMENT
    assert cluster.code(recover(cluster, first, term=0)) == codes.INVALID_ARGUMENT
    assert cluster.code(recover(cluster, first, expected_revision=1)) == codes.CONFLICT
    assert cluster.code(recover(cluster, first, group_id=9)) == codes.UNKNOWN_PARTITION
    cluster.run(mc.RemoveNode(2, is_forced=True))
    assert cluster.code(recover(cluster, first)) == codes.INVALID_ARGUMENT, "a lost replica has no data"
    assert cluster.state.recoveries() == ()


def test_the_latest_recoveries_of_a_partition_are_remembered_until_its_topic_is_deleted(cluster: Cluster) -> None:
    topic_id = cluster.create("t", (1,), (2,))
    cluster.create("other", (3,))
    cluster.run(recover(cluster, cluster.partition(2).replicas[0].replica_id, group_id=2))
    for _ in range(6):
        group_id = cluster.state.topic(topic_id).group_ids[0]
        cluster.run(recover(cluster, cluster.partition(group_id).replicas[0].replica_id, group_id=group_id))
    assert [one.partition for one in cluster.state.recoveries()] == [1, 0, 0, 0, 0]
    cluster.run(mc.DeleteTopic(topic_id))
    assert cluster.state.recoveries() == ()


def test_claims_that_are_answered_without_an_entry_have_the_answers_of_a_log_with_all_entries() -> None:
    rng = random.Random(8)
    every, some = Cluster(), Cluster()
    last, standing_count, lags = dict.fromkeys("abc", 0), 0, [0]
    for _ in range(4000):
        pause_ms = rng.choice([0, 1, 30_000, HOUR_MS // 7]) if rng.random() < 0.5 else 0
        every.log.time_ms += pause_ms
        some.log.time_ms = every.log.time_ms
        name = rng.choice("abc")
        epoch = rng.choice([None, 0, 1, 2, 3]) if rng.random() < 0.1 else last[name]
        stamps = (b"", b"1", b"2")
        command = mc.InitNamedProducer(name, epoch, rng.choice(stamps), rng.choice([None, *stamps]))
        expected = every.run(command)
        standing = some.state.standing_claim(command, some.log.time_ms)
        standing_count += standing is not None
        answer = standing or some.run(command)
        if isinstance(expected, mc.ProducerInitialized):
            last[name] = expected.epoch
            assert isinstance(answer, mc.ProducerInitialized)
            assert msgspec.structs.replace(answer, revision=expected.revision) == expected
        else:
            assert answer == expected
        assert every.state.expiry_now_ms - some.state.expiry_now_ms < USED_TIME_STEP_MS
        exact, noted = ([machine.state._tables.producer_names.get(each) for each in last] for machine in (every, some))
        for row, copy in zip(exact, noted, strict=True):
            assert (row is None) == (copy is None)
            if row is not None and copy is not None:
                assert msgspec.structs.replace(copy, used_time_ms=row.used_time_ms) == row
                lags.append(row.used_time_ms - copy.used_time_ms)
    assert 400 < standing_count < 3600
    assert min(lags) == 0
    assert USED_TIME_STEP_MS // 2 < max(lags) < USED_TIME_ERROR_MS


def test_a_claim_that_changes_anything_is_not_standing(cluster: Cluster) -> None:
    cluster.run(mc.InitNamedProducer("p", 1, b"1"))

    def standing(command: mc.InitNamedProducer, after_ms: int = 0) -> mc.ProducerInitialized | None:
        return cluster.state.standing_claim(command, cluster.log.time_ms + after_ms)

    same, then = mc.InitNamedProducer("p", 1, b"1"), mc.StampClaim("q", 1)
    assert standing(same) == standing(mc.InitNamedProducer("p", 1)) == standing(mc.InitNamedProducer("p", 1, b"2"))
    assert standing(mc.InitNamedProducer("p", 1, b"1", b"1")) is not None
    for command in (
        mc.InitNamedProducer("q", 1, b"1"),
        mc.InitNamedProducer("p", None, b"1"),
        mc.InitNamedProducer("p", 0, b"1"),
        mc.InitNamedProducer("p", 2, b"1"),
        mc.InitNamedProducer("p", 1, b"2", b"1"),
        mc.InitNamedProducer("p", 1, b"1", then=then),
        mc.InitNamedProducer("p", 1, bytes(4097)),
    ):
        assert standing(command) is None, command
    assert standing(same, USED_TIME_STEP_MS - 1) is not None
    assert standing(same, USED_TIME_STEP_MS) is None, "the expiry clock would stand still"
    cluster.log.time_ms += USED_TIME_STEP_MS
    cluster.run(mc.AllocateProducerIds(1))
    assert standing(same) is None, "the name's last use must be noted, or the name would expire"
