"""The order of restarts, and what they make unavailable."""

from dataclasses import replace

from raftmq.cli.restart_plan import Interruption, interruption_of, restart_plan
from raftmq.client.admin.descriptions import PartitionDescription, TopicDescription

from tests.cli.test_cluster_health import broker, cluster


def topic(*replicas: tuple[int, ...]) -> TopicDescription:
    partitions = tuple(PartitionDescription(number, number, brokers) for number, brokers in enumerate(replicas))
    return TopicDescription("t", 1, "log", 3, {}, partitions)


def test_the_metadata_leader_is_restarted_last_and_each_rack_together() -> None:
    racks = {1: "b", 2: "a", 3: "b", 4: "a", 5: "a"}
    brokers = [replace(broker(n), rack=rack, is_metadata_voter=n in (1, 2, 4)) for n, rack in racks.items()]
    described = replace(cluster(*brokers), metadata_leader_broker_id=2)
    plan = restart_plan(described, [])
    assert [one.broker_id for one in plan] == [5, 4, 3, 1, 2]
    assert [one.metadata for one in plan] == ["learner", "voter", "learner", "voter", "leader"]


def test_partitions_without_a_majority_during_a_restart_are_counted() -> None:
    """With two replicas both are needed."""
    described = cluster(broker(1), broker(2), broker(3))
    plan = restart_plan(described, [topic((1, 2, 3), (1,), (2, 1)), topic((3, 2))])
    assert {one.broker_id: one.unavailable_partitions for one in plan} == {1: 2, 2: 2, 3: 1}
    assert not any(one.is_metadata_unavailable for one in plan)


def test_two_voters_are_both_needed() -> None:
    plan = restart_plan(cluster(broker(1), broker(2)), [])
    assert all(one.is_metadata_unavailable for one in plan)


def test_what_a_restart_interrupts_is_counted_once() -> None:
    three = cluster(broker(1), broker(2), broker(3))
    topics = [topic((1, 2, 3), (1,), (2, 1)), topic((3, 2))]
    assert interruption_of(three, topics) == Interruption(3, metadata=False)
    assert not interruption_of(three, [topic((1, 2, 3))])
    assert interruption_of(cluster(broker(1)), []) == Interruption(0, metadata=True)
