"""A replica with a clock of its own stamps every entry with it (`broker/replica/entry_clock.py`)."""

import asyncio
import itertools

from raftmq.broker.base.clock import WallClock
from raftmq.broker.replica.entry_clock import EntryClock
from raftmq.raft.entry import EntryKind
from raftmq.raft.membership import MembershipChange, MembershipOp
from raftmq.types import ReplicaId

from tests.support.broker.engine_cluster import SLOW_TIMING, EngineCluster, data, next_progress

FAR_MS = 2_000_000_000_000
"""Far after the present, so that no other clock gives such a time."""


class CountingClock:
    """Never gives the same time twice, nor the same as another one of the cluster."""

    def __init__(self, times):
        self._times = times
        self.given = []
        self.received = []
        self.doubts = 0

    def now_ms(self) -> int:
        time_ms: int = next(self._times)
        self.given.append(time_ms)
        return time_ms

    def on_received(self, append_time_ms: int) -> None:
        self.received.append(append_time_ms)

    def on_doubted(self) -> None:
        self.doubts += 1


def counting_clocks(replicas):
    """Give each replica a clock, and collect the entries that it applies."""
    times = itertools.count(FAR_MS)
    clocks: dict[int, CountingClock] = {}
    applied = {}
    for node_id, replica in replicas.items():
        clocks[node_id] = CountingClock(times)
        clock: EntryClock = clocks[node_id]
        replica.use_clock(clock)
        applied[node_id] = []
        replica.applier.listeners.append(lambda entry, _, node_id=node_id: applied[node_id].append(entry))
    return clocks, applied


async def test_every_entry_is_stamped_by_the_clock_of_its_replica():
    """Records, commands, changes of membership, the no-op of an election, and the end of a joint configuration."""
    async with EngineCluster(timing=SLOW_TIMING) as cluster:
        clocks, applied = counting_clocks(cluster.create_group(7))
        leader = await cluster.leader(7)
        await leader.propose([data(0), data(1)])[1]
        others = [ReplicaId(number) for number in (1, 2, 3) if number != leader.replica_id]
        await leader.propose_membership(MembershipChange(tuple((MembershipOp.REMOVE, other) for other in others)))
        while leader.core.membership.is_joint or len(leader.core.membership.voters) > 1:
            await next_progress([leader])
        entries = applied[leader.replica_id]
    assert [entry.kind for entry in entries] == [
        EntryKind.EMPTY,
        EntryKind.DATA,
        EntryKind.DATA,
        EntryKind.MEMBERSHIP,
        EntryKind.MEMBERSHIP,
    ]
    assert len({entry.append_time_ms for entry in entries}) == 4, "one time for each proposal"
    assert {entry.append_time_ms for entry in entries} <= set(clocks[leader.replica_id].given)


async def test_a_follower_learns_the_append_times_and_the_leader_hears_only_its_own():
    async with EngineCluster(timing=SLOW_TIMING) as cluster:
        replicas = cluster.create_group(7)
        clocks, applied = counting_clocks(replicas)
        leader = await cluster.leader(7)
        await leader.propose([data(0)])[1]
        last_ms = applied[leader.replica_id][-1].append_time_ms
        followers = [replica for replica in replicas.values() if replica is not leader]
        for follower in followers:
            while not applied[follower.replica_id] or applied[follower.replica_id][-1].append_time_ms != last_ms:
                await next_progress([follower])
            assert clocks[follower.replica_id].received[-1] == last_ms
            assert not clocks[follower.replica_id].given
        assert not clocks[leader.replica_id].received


async def test_a_restored_replica_tells_its_clock_the_append_time_of_its_new_log():
    """Entries may arrive while the snapshot is being written, so the clock can have heard of later times already."""
    async with EngineCluster(2) as cluster:
        cluster.create_group(7, (1,))
        leader = await cluster.leader(7)
        for number in range(20):
            await leader.propose([data(number)])[1]
        joiner = cluster.add_empty(7, 2)
        clocks, _ = counting_clocks({2: joiner})
        told = []
        joiner.restored_listeners.append(
            lambda: told.append((clocks[2].received[-1:], [joiner.core.log.append_time_ms]))
        )
        await leader.propose_membership(MembershipChange(((MembershipOp.ADD_LEARNER, 2),)))
        while joiner.state_machine.next_offset < 20:
            await next_progress([joiner])
        assert told
        assert all(received == expected for received, expected in told)


async def test_a_stall_and_a_lost_leadership_are_reported_as_doubts():
    async with EngineCluster(timing=SLOW_TIMING) as cluster:
        clocks, _ = counting_clocks(cluster.create_group(7))
        leader = await cluster.leader(7)
        clock = clocks[leader.replica_id]
        before = clock.doubts
        cluster.nodes[leader.replica_id].engine._on_stall(100.0)
        assert clock.doubts == before + 1
        assert not leader.is_leader
        leader.core.step_down()
        cluster.nodes[leader.replica_id].engine.mark_dirty(leader)
        while clock.doubts == before + 1:
            await next_progress([leader])


class SleepingClock(WallClock):
    """The clocks of machines that are suspended together. Loop time does not notice it."""

    slept_ns = 0

    def now_ms(self):
        return super().now_ms() + self.slept_ns // 1_000_000

    def boottime_ns(self):
        return super().boottime_ns() + self.slept_ns


async def test_a_leader_that_was_suspended_answers_nothing_until_it_is_confirmed():
    """It read what waited in its sockets before any timer ended, and no timer was late: its successor's records were missing."""
    machine = SleepingClock()
    async with EngineCluster(timing=SLOW_TIMING, clock=machine) as cluster:
        clocks, _ = counting_clocks(cluster.create_group(7))
        leader = await cluster.leader(7)
        engine, clock = cluster.nodes[leader.replica_id].engine, clocks[leader.replica_id]
        stalls, doubts = engine.counters.stalls_total, clock.doubts
        machine.slept_ns += 400_000_000
        assert leader.is_leader, "a suspension that is no stall"
        machine.slept_ns += 3600 * 1_000_000_000
        assert not leader.is_leader
        assert (engine.counters.stalls_total, clock.doubts) == (stalls + 1, doubts + 1)
        while not leader.is_leader:
            await next_progress([leader])
        assert engine.counters.stalls_total == stalls + 1


async def test_a_tick_notices_a_suspension():
    machine = SleepingClock()
    async with EngineCluster(timing=SLOW_TIMING, clock=machine) as cluster:
        clocks, _ = counting_clocks(cluster.create_group(7))
        clock = clocks[(await cluster.leader(7)).replica_id]
        doubts = clock.doubts
        machine.slept_ns += 3600 * 1_000_000_000
        async with asyncio.timeout(10):
            while clock.doubts == doubts:
                await asyncio.sleep(0.01)


async def test_the_listeners_learn_that_a_doubted_leadership_was_confirmed():
    """Timers that ended during the doubt proposed nothing. Without new entries nothing else would set them again."""
    async with EngineCluster(timing=SLOW_TIMING) as cluster:
        cluster.create_group(7)
        leader = await cluster.leader(7)
        await leader.propose([data(0)])[1]
        seen: list[bool] = []
        confirmed = asyncio.Event()
        leader.progress_listeners += [lambda: seen.append(leader.is_leader), confirmed.set]
        index = leader.core.last_index
        cluster.nodes[leader.replica_id].engine._on_stall(100.0)
        assert not leader.is_leader
        async with asyncio.timeout(10):
            await confirmed.wait()
        assert (seen, leader.core.last_index) == ([True], index)


async def test_without_a_clock_of_its_own_a_no_op_repeats_the_last_append_time():
    """A node may win an election before it has compared its clock: a time far ahead would stay in the log."""
    async with EngineCluster(1) as cluster:
        replicas = cluster.create_group(7, (1,))
        entries = []
        replicas[1].applier.listeners.append(lambda entry, _: entries.append(entry))
        await cluster.leader(7)
    assert [(entry.kind, entry.append_time_ms) for entry in entries] == [(EntryKind.EMPTY, 0)]
