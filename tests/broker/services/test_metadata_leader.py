"""Refusals of changes while the metadata group has no leader."""

import pytest
from raftmq.broker.base.request_error import RequestError
from raftmq.proto import queue_pb2 as pb
from raftmq.types import METADATA_GROUP_ID, NodeId

from tests.support.broker.harness import Harness, running


async def refusal(node: Harness) -> RequestError:
    """Return the refusal of an order."""
    with pytest.raises(RequestError) as caught:
        await node.balancing.set_balancing(pb.SetBalancingRequest(auto_balance=True), node.call())
    return caught.value


async def test_a_long_time_without_a_leader_is_named_with_its_remedies() -> None:
    """An election ends by itself. A lost majority does not, and its operator must find the guide."""
    async with running() as node:
        node.lose_leadership(METADATA_GROUP_ID)
        election = await refusal(node)
        assert (election.code, str(election)) == (pb.NO_LEADER, "the metadata group has no leader at the moment")
        since = node.metadata.leaderless_since
        assert since is not None
        node.metadata.leaderless_since = since - 60
        outage = await refusal(node)
        assert (outage.code, outage.detail.retriable) == (pb.NO_LEADER, True)
        assert "no metadata leader for 60 s" in str(outage)
        assert "raftmq recover metadata" in str(outage)


async def test_a_dead_leader_that_the_table_still_names_is_not_asked() -> None:
    """A dead leader withdraws nothing. Each order was refused because it cannot be reached, and nobody was told of the outage."""
    async with running() as node:
        node.lose_leadership(METADATA_GROUP_ID, to=NodeId(2))
        node.leaderless.add(METADATA_GROUP_ID)
        since = node.metadata.leaderless_since
        assert since is not None
        node.metadata.leaderless_since = since - 60
        outage = await refusal(node)
        assert (outage.code, outage.detail.retriable) == (pb.NO_LEADER, True)
        assert "no metadata leader for 60 s" in str(outage)
