"""Brokers of two versions: the level rises after the last upgrade, and older programs are kept out from then on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from raftmq import Admin, Queue
from raftmq.broker.base.readiness import Reason
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.cluster.leadership_drain import drain_leadership
from raftmq.broker.environment import NodeEnvironment
from raftmq.broker.node import Node
from raftmq.errors import UnsupportedVersionError
from raftmq.fsm.feature_levels import FEATURE_LEVEL
from raftmq.fsm.metadata import Metadata
from raftmq.fsm.topic_kinds import QUEUE, TOPIC_KINDS
from raftmq.proto import queue_pb2 as pb

from tests.support.broker.whole_nodes import WAIT_SECONDS, Nodes, until
from tests.support.formats import with_a_later_field


class OlderProgram(NodeEnvironment):
    def feature_level(self) -> int:
        return 1


async def raise_level(node: Node) -> int:
    async with Admin(bootstrap_servers=node.addresses.client) as admin:
        return await admin.raise_feature_level(2)


async def upgraded(node: Node, level: int) -> None:
    """Wait until the node knows that every broker's program supports the level."""
    metadata = node.view.metadata
    async with asyncio.timeout(WAIT_SECONDS):
        while metadata.state_machine.feature_level_max < level:  # until the broker has announced its version
            await asyncio.shield(metadata.wait_progress())


async def test_the_level_rises_once_the_last_broker_is_upgraded(nodes: Nodes):
    one = await nodes.serve("one", OlderProgram, bootstrap=True)
    assert one.view.metadata.state_machine.feature_level == 1, "the founder's level"
    two = await nodes.serve("two", join=[one.addresses.peer])
    with pytest.raises(UnsupportedVersionError, match=r"broker 1 \(1\): upgrade these brokers first"):
        await raise_level(two)
    await nodes.stop(one)
    await nodes.serve("one")
    await upgraded(two, 2)
    assert await raise_level(two) == 2


async def test_an_older_program_falls_silent_and_names_the_remedy(nodes: Nodes):
    one = await nodes.serve("one", bootstrap=True)
    assert one.view.metadata.state_machine.feature_level == FEATURE_LEVEL
    two = await nodes.serve("two", join=[one.addresses.peer])
    await nodes.stop(two)
    older = nodes.begin("two", OlderProgram)
    (why,) = await until(older, Reason.UNSUPPORTED_FORMAT)
    assert (
        why.message
        == f"the cluster is at feature level {FEATURE_LEVEL}, and this version knows 1: start a newer version of the broker"
    )
    assert older.engine.replicas == {}
    await nodes.stop(older)
    await nodes.serve("two")


@pytest.mark.parametrize("phase", ["leadership_drain", "ports"])
async def test_an_older_program_falls_silent_while_it_stops(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    """Its leaderships are handed over for seconds, in which it may learn that the cluster has a later level."""
    one = await nodes.serve("one", bootstrap=True)
    older = await nodes.serve("two", join=[one.addresses.peer])
    seen: list[tuple[Reason, bool, int]] = []

    def learn() -> None:
        older._feature_level = FEATURE_LEVEL - 1
        older._on_metadata_changed()
        assert older.standing.silence is not None
        seen.append((older.standing.silence.reason, older.standing.is_stopping, len(older.engine.replicas)))

    if phase == "ports":
        stop = older._ports._stop_client_ports

        async def stop_and_learn(grace_seconds: float) -> None:
            learn()
            await stop(grace_seconds)

        monkeypatch.setattr(older._ports, "_stop_client_ports", stop_and_learn)
    else:

        async def drain_and_learn(*arguments: Any) -> None:
            learn()
            await drain_leadership(*arguments)

        monkeypatch.setattr("raftmq.broker.node.drain_leadership", drain_and_learn)
    await nodes.stop(older)
    assert seen == [(Reason.UNSUPPORTED_FORMAT, True, 0)]


async def test_a_program_that_cannot_read_the_metadata_falls_silent_and_keeps_it(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
):
    with monkeypatch.context() as newer:
        newer.setattr(Metadata, "take_dirty_rows", with_a_later_field(Metadata.take_dirty_rows))
        await nodes.stop(await nodes.serve("one", bootstrap=True))
    older = nodes.begin("one")
    (why,) = await until(older, Reason.UNSUPPORTED_FORMAT)
    assert "a newer version wrote it" in why.message
    assert not older.registry.quarantined()
    assert not nodes._running[older].done(), "it is not restarted again and again"


async def test_an_older_program_may_not_join(nodes: Nodes):
    one = await nodes.serve("one", bootstrap=True)
    refused = await nodes.failure(nodes.begin("two", OlderProgram, join=[one.addresses.peer]))
    assert isinstance(refused, RequestError)
    assert refused.code == pb.UNSUPPORTED_VERSION
    assert "supports only 1: start a newer version of the broker" in str(refused)


async def test_queue_topics_wait_for_the_last_upgrade_and_the_raised_level(nodes: Nodes):
    """A mixed cluster refuses them and names the remedy. Afterwards they work, and an older program may not join any more."""
    one = await nodes.serve("one", OlderProgram, bootstrap=True)
    two = await nodes.serve("two", join=[one.addresses.peer])
    level = TOPIC_KINDS[QUEUE]
    needed = f"needs feature level {level}, but the cluster is at 1: upgrade every broker, then raise the level"
    async with Admin(bootstrap_servers=two.addresses.client) as admin:
        with pytest.raises(UnsupportedVersionError, match=rf"{needed} \(raftmq cluster raise-level\)"):
            await admin.create_topic("jobs", kind=QUEUE)
        with pytest.raises(UnsupportedVersionError, match="upgrade these brokers first"):
            await admin.raise_feature_level(level)
        assert await admin.list_topics() == []
        await nodes.stop(one)
        await nodes.serve("one")
        await upgraded(two, level)
        with pytest.raises(UnsupportedVersionError, match=needed):
            await admin.create_topic("jobs", kind=QUEUE)
        assert await admin.raise_feature_level(level) == level
        await admin.create_topic("jobs", partitions=1, replication_factor=2, kind=QUEUE)
    async with Queue("jobs", bootstrap_servers=two.addresses.client) as queue:
        await queue.put(b"work")
        message = await queue.get(wait_ms=WAIT_SECONDS * 1000)
        assert message is not None
        assert message.value == b"work"
        await message.ack()
        assert (await queue.stats()).accepted_total == 1
    refused = await nodes.failure(nodes.begin("three", OlderProgram, join=[two.addresses.peer]))
    assert isinstance(refused, RequestError)
    assert refused.code == pb.UNSUPPORTED_VERSION
    assert f"the cluster is at feature level {level}" in str(refused)
