"""Brokers of two versions: the level rises after the last upgrade, and older programs are kept out from then on."""

from __future__ import annotations

import asyncio

import pytest
from raftmq import Admin
from raftmq.broker.base.readiness import Reason
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.environment import NodeEnvironment
from raftmq.broker.node import Node
from raftmq.errors import UnsupportedVersionError
from raftmq.proto import queue_pb2 as pb

from tests.support.broker.whole_nodes import WAIT_SECONDS, Nodes, until


class OlderProgram(NodeEnvironment):
    def feature_level(self) -> int:
        return 1


async def raise_level(node: Node) -> int:
    async with Admin(bootstrap_servers=node.addresses.client) as admin:
        return await admin.raise_feature_level(2)


async def test_the_level_rises_once_the_last_broker_is_upgraded(nodes: Nodes):
    one = await nodes.serve("one", OlderProgram, bootstrap=True)
    assert one.view.metadata.state_machine.feature_level == 1, "the founder's level"
    two = await nodes.serve("two", join=[one.addresses.client])
    with pytest.raises(UnsupportedVersionError, match=r"broker 1 \(1\): upgrade these brokers first"):
        await raise_level(two)
    await nodes.stop(one)
    await nodes.serve("one")
    metadata = two.view.metadata
    async with asyncio.timeout(WAIT_SECONDS):
        while metadata.state_machine.feature_level_max < 2:  # until the broker has announced its version
            await asyncio.shield(metadata.wait_progress())
    assert await raise_level(two) == 2


async def test_an_older_program_falls_silent_and_names_the_remedy(nodes: Nodes):
    one = await nodes.serve("one", bootstrap=True)
    assert one.view.metadata.state_machine.feature_level == 2
    two = await nodes.serve("two", join=[one.addresses.client])
    await nodes.stop(two)
    older = nodes.begin("two", OlderProgram)
    (why,) = await until(older, Reason.UNSUPPORTED_FORMAT)
    assert (
        why.message
        == "the cluster is at feature level 2, and this version knows 1: start a newer version of the broker"
    )
    assert older.engine.replicas == {}
    await nodes.stop(older)
    await nodes.serve("two")


async def test_an_older_program_may_not_join(nodes: Nodes):
    one = await nodes.serve("one", bootstrap=True)
    refused = await nodes.failure(nodes.begin("two", OlderProgram, join=[one.addresses.client]))
    assert isinstance(refused, RequestError)
    assert refused.code == pb.UNSUPPORTED_VERSION
    assert "supports only 1: start a newer version of the broker" in str(refused)
