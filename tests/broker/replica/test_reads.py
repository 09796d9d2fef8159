"""Reads wait for a confirmation, and then for the entries."""

import asyncio
import dataclasses

import pytest
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.replica.initial_state import founder_state
from raftmq.broker.replica.reads import AskedRead, ConfirmedRead
from raftmq.broker.replica.recent_entries import RecentEntriesBudget
from raftmq.broker.replica.replica_log import RETRY_SECONDS, ReplicaLog
from raftmq.proto import queue_pb2 as pb
from raftmq.raft.membership import Membership, MembershipChange, MembershipOp
from raftmq.raft.messages import AppendRequest, ReadIndexResponse
from raftmq.storage.errors import StorageUnavailableError
from raftmq.storage.log_store import ReplicaKey
from raftmq.storage.memory_log_store import MemoryLogStore
from raftmq.types import METADATA_GROUP_ID, GroupId, LogIndex, ReplicaId

from tests.support.broker.engine_cluster import TIMING, EngineCluster, state_durable
from tests.support.broker.waiting import turn_until

GROUP = 7


async def asked(replica) -> tuple[asyncio.Future[LogIndex], int]:
    """Send a read of a follower to the leader. Return its future and its id."""
    read = asyncio.ensure_future(replica.read_index())
    while not replica.reads.unconfirmed:
        await asyncio.sleep(0)
    return read, next(iter(replica.reads.unconfirmed))


async def test_a_confirmed_read_whose_entries_never_arrive_expires():
    """It waited without end, because only reads without a confirmation expired."""
    async with EngineCluster() as cluster:
        replica = cluster.nodes[1].add(GROUP, founder_state(Membership((1, 2, 3))))
        replica.core.step(AppendRequest(2, 1, 6, 5, 5, (), 5))
        read, request_id = await asked(replica)
        replica.reads.on_confirmed(request_id, 50)
        replica.reads.expire(0.0)
        await asyncio.sleep(0)
        assert not read.done(), "it has not waited long enough"
        replica.reads.expire(cluster.loop.time() + 1)
        with pytest.raises(RequestError) as given_up:
            await asyncio.wait_for(read, 5)
    assert given_up.value.code == pb.NOT_READY
    assert given_up.value.detail.retriable


async def test_a_temporarily_unreadable_file_is_retried_after_a_pause(monkeypatch):
    """Without descriptors or memory the fetch failed, the core asked again, and so on without a pause."""
    key, pauses = ReplicaKey(GroupId(GROUP), ReplicaId(1)), []

    async def refused(*arguments):
        raise StorageUnavailableError(key, "no reader slots")

    async def pause(seconds):
        pauses.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", pause)
    loop = asyncio.get_running_loop()
    log = ReplicaLog(key, MemoryLogStore(), loop, refused, RecentEntriesBudget(1))
    told = loop.create_future()
    log.on_fetched = told.set_result
    assert log.entries(LogIndex(6), LogIndex(7), 100) is None
    assert await told is None
    assert pauses == [RETRY_SECONDS]


async def test_the_engine_expires_old_reads():
    async with EngineCluster() as cluster:
        replica = cluster.nodes[1].add(GROUP, founder_state(Membership((1, 2, 3))))
        cluster.isolate(1)
        replica.core.step(AppendRequest(2, 1, 6, 5, 5, (), 5))
        read, request_id = await asked(replica)
        replica.core.step(ReadIndexResponse(2, 1, 6, request_id, 50))
        cluster.nodes[1].engine.mark_dirty(replica)
        cluster.nodes[1].engine.timing = dataclasses.replace(TIMING, read_index_seconds=0.05)
        with pytest.raises(RequestError):
            await asyncio.wait_for(read, 5)


async def test_a_read_confirmed_during_a_snapshot_installation_is_answered_after_it():
    """A joining broker hung at its start: no message followed the metadata snapshot, so the read was never checked again."""
    async with EngineCluster(2) as cluster:
        cluster.create_group(METADATA_GROUP_ID, (1,))
        leader = await cluster.leader(METADATA_GROUP_ID, among=(1,))
        await leader.propose_membership(MembershipChange(((MembershipOp.ADD_LEARNER, 2),)))
        await state_durable(cluster.nodes[1].engine, leader)
        newcomer = cluster.add_empty(METADATA_GROUP_ID, 2)
        read = cluster.loop.create_future()
        asked = AskedRead(cluster.loop.time() + 3600, 0, read)
        newcomer.reads.confirmed.append(ConfirmedRead(LogIndex(6), asked))
        await asyncio.wait_for(read, 10)
        assert newcomer.log_start.index >= 6, "everything came with the snapshot, nothing after it"


async def test_a_late_answer_to_a_read_from_before_a_restart_confirms_nothing():
    """Read ids began at 1 in each boot, so a leader's late answer to read 1 of the last boot answered read 1 of the present one."""
    async with EngineCluster() as cluster:
        replica = cluster.nodes[1].add(GROUP, founder_state(Membership((1, 2, 3))))
        replica.core.step(AppendRequest(2, 1, 6, 5, 5, (), 5))
        read = asyncio.ensure_future(replica.read_index())
        await turn_until(lambda: replica.reads.unconfirmed)
        replica.core.step(ReadIndexResponse(2, 1, 6, 1, 5))
        cluster.nodes[1].engine.mark_dirty(replica)
        await turn_until(lambda: not replica.is_dirty)
        assert replica.reads.unconfirmed
        read.cancel()


async def test_a_cancelled_reader_does_not_affect_others_of_its_round() -> None:
    """aioraft-ng caught CancelledError together with everything else."""
    async with EngineCluster() as cluster:
        cluster.create_group(7)
        leader = await cluster.leader(7)
        first, second = (asyncio.create_task(leader.read_index()) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        assert await second >= 6
        assert first.cancelled()
