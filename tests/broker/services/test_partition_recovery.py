"""The service for partitions without a majority, on one node."""

from __future__ import annotations

import pytest
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.services.partition_recovery import _is_covered
from raftmq.fsm.feature_levels import FEATURE_LEVEL, METADATA_LEVELS
from raftmq.fsm.metadata_commands import Done, RaiseFeatureLevel, RecoverPartition, SetReplicas
from raftmq.proto import peer_pb2 as peer_pb
from raftmq.proto import queue_pb2 as pb

from tests.support.broker.harness import Harness, running


async def served_topic(node: Harness, *, level: int = FEATURE_LEVEL) -> None:
    if level > 1:
        await node.register(1, "uuid-1", feature_level_max=level)
        await node._metadata(RaiseFeatureLevel(level))
    await node.topic("flights")


async def refusal(node: Harness, **fields: object) -> RequestError:
    request = pb.RecoverPartitionRequest(**{"topic": "flights", "keep_broker_id": 1, "unsafe": True} | fields)
    with pytest.raises(RequestError) as raised:
        await node.recovery.recover_partition(request, node.call())
    return raised.value


async def test_a_recovery_needs_its_feature_level() -> None:
    needed = METADATA_LEVELS[RecoverPartition]
    async with running() as node:
        await served_topic(node, level=needed - 1)
        refused = await refusal(node)
        assert refused.code == pb.UNSUPPORTED_VERSION
        assert f"needs feature level {needed}, and the cluster is at {needed - 1}" in str(refused)


async def test_a_recovery_must_be_meant_and_fit() -> None:
    async with running() as node:
        await served_topic(node)
        cases: list[tuple[dict[str, object], int, str]] = [
            ({"unsafe": False}, pb.INVALID_ARGUMENT, "may lose acknowledged records"),
            (
                {"keep_broker_id": 2},
                pb.FAILED_PRECONDITION,
                r"broker 2 has no replica of partition flights/0 that could be kept: name another one (broker 1)",
            ),
            ({"partition": 9}, pb.UNKNOWN_PARTITION, "none is 9"),
            ({"topic": "none"}, pb.UNKNOWN_TOPIC, "none"),
            ({"group_id": 99}, pb.FAILED_PRECONDITION, "no longer served by group 99"),
            ({}, pb.FAILED_PRECONDITION, "partition flights/0 has a leader on broker 1"),
        ]
        for fields, code, words in cases:
            refused = await refusal(node, **fields)
            assert (refused.code, words in str(refused)) == (code, True), str(refused)
        assert node.metadata.state_machine.recoveries() == ()


async def test_a_partition_that_changed_during_the_decision_is_not_recovered(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as node:
        await served_topic(node)
        metadata = node.metadata.state_machine
        (topic,) = metadata.topics()
        (group_id,) = topic.group_ids

        async def changed(*_: object) -> None:
            assert isinstance(
                await node._metadata(SetReplicas(group_id, (1,), metadata.revision, is_pinned=True)), Done
            )

        monkeypatch.setattr(node.recovery, "_require_lost", changed)
        refused = await refusal(node)
        assert (refused.code, metadata.recoveries()) == (pb.CONFLICT, ())


async def test_replicas_say_what_they_hold() -> None:
    async with running() as node:
        await served_topic(node)
        (topic,) = node.metadata.state_machine.topics()
        request = peer_pb.DescribeReplicasRequest(group_ids=[topic.group_ids[0], 77])
        answer = await node.recovery.describe_replicas(request, node.call())
        (one,) = answer.replicas
        replica = node.partitions[topic.group_ids[0]].replica
        assert (one.group_id, one.replica.replica_id) == tuple(replica.key)
        assert (one.replica.condition, one.replica.last_index) == (pb.SERVED, replica.core.last_index)
        assert one.replica.last_term == replica.core.log.last_term > 0
        assert (await node.recovery.list_lost_partitions(pb.ListLostPartitionsRequest(), node.call())).count == 0


@pytest.mark.parametrize(
    ("other", "kept", "is_covered"),
    [
        ((1, 205), (2, 155), True),
        ((2, 155), (1, 205), False),
        ((2, 155), (2, 155), True),
        ((2, 156), (2, 155), False),
        ((0, 100), (2, 155), False),
        ((2, 100), (0, 155), False),
    ],
)
def test_only_a_log_that_may_have_other_acknowledged_records_counts_as_a_loss(
    other: tuple[int, int], kept: tuple[int, int], *, is_covered: bool
) -> None:
    """The end of a leader that was cut off is no loss. A broker of an older version reports no last term."""
    theirs, mine = (pb.ReplicaKnowledge(last_term=term, last_index=index) for term, index in (other, kept))
    assert _is_covered(theirs, mine) is is_covered
    assert not _is_covered(mine, mine), "its own end counts"
