"""In a group of different versions, a command that a broker cannot read stops its replica until an upgrade."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from raftmq.broker.base.request_error import RequestError
from raftmq.fsm import feature_levels
from raftmq.fsm import log_commands as lc
from raftmq.fsm import metadata_commands as mc
from raftmq.fsm.state_machine import UnsupportedCommandError
from raftmq.proto import queue_pb2 as pb
from raftmq.raft.entry import EntryKind, Proposal

from tests.support.broker.engine_cluster import EngineCluster, data, next_progress
from tests.support.broker.harness import running

GROUP = 7
TRIM = Proposal(EntryKind.COMMAND, lc.encode_command(lc.TrimLog(1)))


def downgrade(replica) -> None:
    """Make a replica's program a version without trimming."""
    apply = replica.state_machine.apply

    def older(entry):
        is_trim = entry.kind is EntryKind.COMMAND and isinstance(lc.decode_command(entry.payload), lc.TrimLog)
        return apply(dataclasses.replace(entry, payload=b"\x81\xa1t\xa6future") if is_trim else entry)

    replica.state_machine.apply = older


async def test_an_older_broker_stops_its_replica_and_continues_after_an_upgrade():
    """If it continued, its state would differ from its peers'."""
    async with EngineCluster() as cluster:
        replicas = cluster.create_group(GROUP)
        leader = await cluster.leader(GROUP)
        await leader.propose([data(0)])[1]
        await leader.propose([data(1)])[1]
        older = next(number for number, replica in replicas.items() if replica is not leader)
        downgrade(replicas[older])
        await leader.propose([TRIM])[1]
        await leader.propose([data(2)])[1]
        node = cluster.nodes[older]
        while not node.broken:
            await next_progress([replicas[older], leader])
        ((group_id, error),) = node.broken
        assert group_id == GROUP
        assert isinstance(error, UnsupportedCommandError)
        assert GROUP not in node.engine.replicas, "it is silent"
        assert replicas[older].state_machine.log_start_offset == 0, "the command was not applied"

        cluster.restart(older)  # with a program that reads the command
        upgraded = cluster.nodes[older].engine.replicas[GROUP]
        while upgraded.state_machine.next_offset < 3:
            await next_progress([upgraded, leader])
        rows = [
            tuple(node.engine.replicas[GROUP].state_machine.rows())
            for node in cluster.nodes.values()
            if node.engine.replicas[GROUP].state_machine.applied_index == upgraded.state_machine.applied_index
        ]
        assert len(rows) >= 2
        assert all(one == other for one, other in itertools.pairwise(rows))


async def test_a_command_above_the_clusters_level_is_not_proposed(monkeypatch):
    """An older broker would stop its replica as soon as the command is committed."""
    async with running() as node:
        topic = await node.topic()
        partition = node.partition(topic)
        monkeypatch.setattr(feature_levels, "LOG_LEVELS", {**feature_levels.LOG_LEVELS, lc.TrimLog: 2})
        levels = {**feature_levels.METADATA_LEVELS, mc.CreateTopic: 2}
        monkeypatch.setattr(feature_levels, "METADATA_LEVELS", levels)
        last = partition.replica.core.last_index
        with pytest.raises(RequestError, match="needs feature level 2, but the cluster is at 1") as refused:
            partition.replica.propose([TRIM])
        assert refused.value.code == pb.UNSUPPORTED_VERSION
        assert partition.replica.core.last_index == last
        with pytest.raises(RequestError, match="upgrade every broker, then raise the level"):
            await node.topic("another")
        assert node.metadata.state_machine.topic_by_name("another") is None


async def test_a_command_that_cannot_be_read_back_is_not_proposed():
    """Committed, it would stop every replica of its group."""
    async with running() as node:
        with pytest.raises(RequestError, match="cannot be decoded again"):
            node.metadata.propose([Proposal(EntryKind.COMMAND, b"\xc1")])
