"""Raising the feature level is refused while a broker does not support it, and permits the commands of the level."""

from __future__ import annotations

import pytest
from raftmq.broker.base.request_error import RETRIABLE_CODES, RequestError
from raftmq.fsm import feature_levels
from raftmq.fsm import metadata_commands as mc
from raftmq.fsm.metadata_commands import RemoveNode
from raftmq.proto import peer_pb2 as peer_pb
from raftmq.proto import queue_pb2 as pb
from raftmq.types import METADATA_GROUP_ID, NodeId

from tests.support.broker.harness import Harness, running


async def raise_level(node: Harness, level: int = 0) -> pb.RaiseFeatureLevelResponse:
    return await node.feature_levels.raise_feature_level(pb.RaiseFeatureLevelRequest(level=level), node.call())


async def refusal(node: Harness, level: int) -> RequestError:
    last = node.metadata.core.last_index
    with pytest.raises(RequestError) as caught:
        await raise_level(node, level)
    assert node.metadata.core.last_index == last, "refused before anything was proposed"
    assert caught.value.code not in RETRIABLE_CODES
    return caught.value


async def upgraded(node: Harness) -> None:
    """Restart both nodes of a cluster at level 1 with programs of level 3 and 2."""
    await node.register(1, "uuid-1", feature_level_max=3)
    await node.register(2, "uuid-2", feature_level_max=2)


async def test_without_a_number_the_level_rises_to_the_highest_that_every_broker_supports():
    async with running() as node:
        await upgraded(node)
        answer = await raise_level(node)
        assert answer.level == node.metadata.state_machine.feature_level == 2
        assert answer.metadata_revision == node.metadata.state_machine.revision
        assert (await raise_level(node)).level == 2, "a repeat"


async def test_a_level_above_a_broker_is_refused_with_its_number():
    async with running() as node:
        await upgraded(node)
        refused = await refusal(node, 3)
        assert refused.code == pb.UNSUPPORTED_VERSION
        assert "feature level 3 is above the highest level of broker 2 (2)" in str(refused)
        await node._metadata(RemoveNode(2))
        assert (await raise_level(node)).level == 3


async def test_a_lower_level_is_refused():
    async with running() as node:
        await upgraded(node)
        await raise_level(node)
        assert (await refusal(node, 1)).code == pb.FAILED_PRECONDITION


async def test_a_command_of_a_level_is_proposed_once_the_cluster_is_at_it(monkeypatch):
    monkeypatch.setattr(feature_levels, "METADATA_LEVELS", {**feature_levels.METADATA_LEVELS, mc.CreateTopic: 2})
    async with running() as node:
        await upgraded(node)
        with pytest.raises(RequestError, match="needs feature level 2, but the cluster is at 1"):
            await node.topic()
        await raise_level(node)
        assert (await node.topic()).name in {topic.name for topic in node.metadata.state_machine.topics()}


async def test_a_broker_below_the_level_is_not_admitted():
    async with running() as node:
        await upgraded(node)
        await raise_level(node)
        older = peer_pb.RegisterBrokerRequest(
            uuid="uuid-9", client_address="a:1", peer_address="a:2", version="1", feature_level_max=1
        )
        with pytest.raises(RequestError, match="supports only 1: start a newer version") as refused:
            await node.nodes.register_node(older, node.call())
        assert refused.value.code == pb.UNSUPPORTED_VERSION


async def test_the_description_of_the_cluster_has_the_levels():
    async with running() as node:
        await upgraded(node)
        answer = await node.admin.describe_cluster(pb.DescribeClusterRequest(), node.call())
        assert (answer.feature_level, answer.feature_level_max) == (1, 2)
        assert [one.feature_level_max for one in answer.brokers] == [3, 2]


async def test_another_node_forwards_the_request():
    async with running() as node:
        await upgraded(node)
        node.lose_leadership(METADATA_GROUP_ID, NodeId(2))
        node.forwarder.answer = pb.RaiseFeatureLevelResponse(level=2)
        assert (await raise_level(node)).level == 2
        ((node_id, path, _),) = node.forwarder.calls
        assert (node_id, path) == (2, "/raftmq.v1.Admin/RaiseFeatureLevel")
