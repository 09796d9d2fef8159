"""The service for partitions without a majority, on one node."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace

import pytest
from raftmq.broker.base.limits import Timing
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.partitions.log import PartitionLog
from raftmq.broker.replica.disk import Installing, Writing
from raftmq.broker.replica.initial_state import founder_state
from raftmq.broker.services.partition_recovery import PartitionRecoveryService, _is_covered, _kept
from raftmq.fsm.feature_levels import FEATURE_LEVEL, METADATA_LEVELS
from raftmq.fsm.log_partition import LogPartition
from raftmq.fsm.metadata_commands import Done, RaiseFeatureLevel, RecoverPartition, SetReplicas
from raftmq.proto import peer_pb2 as peer_pb
from raftmq.proto import queue_pb2 as pb
from raftmq.raft.membership import Membership
from raftmq.raft.messages import AppendRequest
from raftmq.storage.memory_log_store import MemoryLogStore

from tests.support.broker.engine_cluster import EngineCluster, EngineNode
from tests.support.broker.harness import Harness, running
from tests.support.broker.imaginary_leader import entry, snapshot
from tests.support.broker.waiting import turn_until


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


class SlowStore(MemoryLogStore):
    """A store whose writes wait while `may_write` is clear."""

    def __init__(self) -> None:
        super().__init__()
        self.may_write = threading.Event()
        self.may_write.set()

    def append_batch(self, updates):
        self.may_write.wait(10)
        super().append_batch(updates)

    def install(self, key, hard_state, meta, rows):
        self.may_write.wait(10)
        super().install(key, hard_state, meta, rows)


class Follower:
    """A replica with records 0..4 on disk, whose disk is then slow, and the service that describes it."""

    def __init__(self, node: EngineNode, store: SlowStore) -> None:
        self.node, self.store = node, store
        self.replica = node.add(7, founder_state(Membership((1, 2, 3))))
        host = SimpleNamespace(
            loop=asyncio.get_running_loop(), timing=Timing(), is_clock_trusted=True, now_ms=lambda: 0, metadata=None
        )
        partitions = {7: PartitionLog(self.replica, host, node.store)}
        standing = SimpleNamespace(not_served=list)
        self._service = PartitionRecoveryService(
            SimpleNamespace(node_id=1, standing=standing), None, partitions, None, None, None
        )

    async def fill(self) -> None:
        """Append records 0..4 and make them durable. The disk is slow from then on."""
        self.step(self._append(6, 11))
        await turn_until(lambda: self.replica.state_machine.applied_index == 10)
        self.store.may_write.clear()

    def append_more(self) -> None:
        """Receive records 5..9, which are not written."""
        self.step(self._append(11, 16))

    def _append(self, start: int, end: int) -> AppendRequest:
        entries = tuple(entry(index, term=5) for index in range(start, end))
        return AppendRequest(2, 1, 5, start - 1, self.replica.core.log.last_term, entries, end - 1)

    def step(self, message) -> None:
        self.replica.step(message)
        self.node.engine.mark_dirty(self.replica)

    async def describe(self) -> pb.ReplicaKnowledge:
        answer = await self._service.describe_replicas(peer_pb.DescribeReplicasRequest(group_ids=[7]), None)
        (one,) = answer.replicas
        return one.replica


async def with_follower(check) -> None:
    store = SlowStore()
    async with EngineCluster(make_store=lambda node_id: store if node_id == 1 else None) as cluster:
        for other in (2, 3):
            cluster.isolate(other)
        follower = Follower(cluster.nodes[1], store)
        try:
            await follower.fill()
            await check(follower)
        finally:
            store.may_write.set()


async def test_a_replica_cannot_be_kept_while_its_disk_lacks_a_snapshot() -> None:
    """Its end counted, and a recovery kept the older file. Nobody was told of the records between."""

    async def check(follower: Follower) -> None:
        assert (await follower.describe()).condition == pb.SERVED
        follower.step(snapshot(30, list(LogPartition(30).rows())))
        for _ in range(2):
            known = await follower.describe()
            assert (known.condition, known.last_index, known.log_end_offset) == (pb.STARTING, 30, 25)
            with pytest.raises(RequestError, match=r"cannot be kept yet \(it has data from a leader that"):
                _kept("flights/0", None, {1: known}, 1)
            await turn_until(lambda: isinstance(follower.replica.disk, Installing))
        follower.store.may_write.set()
        await turn_until(lambda: follower.replica.state_machine.applied_index == 30)
        known = await follower.describe()
        assert (known.condition, known.last_index, known.log_end_offset) == (pb.SERVED, 30, 25)

    await with_follower(check)


async def test_a_replica_cannot_be_kept_while_its_disk_lacks_entries() -> None:
    async def check(follower: Follower) -> None:
        follower.append_more()
        for _ in range(2):
            known = await follower.describe()
            assert (known.condition, known.last_index, known.log_end_offset) == (pb.STARTING, 15, 10)
            await turn_until(lambda: isinstance(follower.replica.disk, Writing))
        follower.store.may_write.set()
        await turn_until(lambda: follower.replica.core.log.durable_index == 15)
        known = await follower.describe()
        assert (known.condition, known.last_index, known.log_end_offset) == (pb.SERVED, 15, 10)

    await with_follower(check)


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
