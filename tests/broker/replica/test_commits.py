"""One replica's writes make its state durable, one in flight at a time."""

import asyncio
import threading
from types import SimpleNamespace

import pytest
from raftmq.broker.replica.disk import Idle
from raftmq.broker.replica.initial_state import founder_state
from raftmq.errors import InvariantError
from raftmq.raft.core import RaftCore
from raftmq.raft.entry import Entry, EntryKind
from raftmq.raft.membership import Membership, MembershipChange, MembershipOp, encode_change
from raftmq.raft.messages import AppendRequest, VoteRequest
from raftmq.storage.errors import DamagedReplicaError
from raftmq.storage.log_store import ReplicaKey

from tests.support.broker.engine_cluster import SLOW_TIMING, EngineCluster, data
from tests.support.broker.imaginary_leader import entry, snapshot
from tests.support.broker.waiting import turn_until, until

GROUP = 7


async def truncatable(cluster):
    """Return a node and a group that it leads: the state is durable, and no entry is in memory."""
    cluster.create_group(GROUP, (1,))
    leader = await cluster.leader(GROUP)
    node = cluster.nodes[1]
    for number in range(10):
        await leader.propose([data(number)])[1]
    node.engine.commits.flush_state(leader)
    await turn_until(lambda: leader.durable_state_index >= leader.core.applied_index)
    leader.log.clear()
    return node, leader


async def test_a_derived_write_never_makes_a_commit_index_durable_beyond_the_log():
    """The core may hold committed entries that are in no write yet. A crash after such a write was fatal."""
    async with EngineCluster() as cluster:
        replica = cluster.nodes[1].add(GROUP, founder_state(Membership((1, 2, 3))))
        node = cluster.nodes[1]
        request = AppendRequest(2, 1, 6, 5, 5, (entry(6), entry(7)), 7)
        updates = []
        submit = node.writers.submit
        node.writers.submit = lambda key, update, token: (updates.append(update), submit(key, update, token))
        await turn_until(lambda: not replica.is_dirty)
        replica.core.step(request)
        node.engine.commits.flush_state(replica)
        assert updates[0].entries == ()
        assert updates[0].hard_state.commit_index <= 5
        await turn_until(lambda: isinstance(replica.disk, Idle))
        key = ReplicaKey(GROUP, 1)
        node.store.close(key)
        restored = node.store.open(key)
        RaftCore(
            1,
            restored,
            SimpleNamespace(header=lambda i: node.store.header(key, i)),
            node.engine._random,
            node.engine._settings,
        )


@pytest.mark.parametrize("flushes", [1, 2])
async def test_a_replica_that_ends_in_a_pass_writes_nothing_and_gives_its_budget_back(flushes: int):
    """A pass flushes twice: between a core's work and its write, and between the write's preparation and its submission."""
    async with EngineCluster() as cluster:
        replica = cluster.nodes[1].add(GROUP, founder_state(Membership((1, 2, 3))))
        node = cluster.nodes[1]
        await turn_until(lambda: not replica.is_dirty)
        flush, submit, left, updates = node.engine._transport.flush, node.writers.submit, [flushes], []

        def flush_and_remove() -> None:
            flush()
            left[0] -= 1
            if left[0] == 0:
                node.engine.remove_group(GROUP)

        node.engine._transport.flush = flush_and_remove
        node.writers.submit = lambda key, update, token: (updates.append(update), submit(key, update, token))
        node.engine.on_message(2, GROUP, AppendRequest(2, 1, 6, 5, 5, (entry(6), entry(7)), 5))
        assert node.engine.inbound_bytes > 0
        node.engine._pass()
        assert replica.is_closed
        assert isinstance(replica.disk, Idle) == (flushes == 1)
        assert (updates, node.engine.inbound_bytes) == ([], 0)


async def test_a_second_write_of_a_replica_is_a_defect():
    async with EngineCluster() as cluster:
        replica = cluster.nodes[1].add(GROUP, founder_state(Membership((1, 2, 3))))
        await turn_until(lambda: not replica.is_dirty)
        replica.begin_write()
        for begin in (replica.begin_write, replica.begin_install):
            with pytest.raises(InvariantError, match="one_write_in_flight"):
                begin()


async def test_derived_state_is_not_written_between_a_snapshot_and_its_installation():
    """The core had already applied the snapshot, the state machine had not. The write combined one's membership with the other's state."""
    async with EngineCluster() as cluster:
        replica = cluster.nodes[1].add(GROUP, founder_state(Membership((1, 2, 3))))
        node = cluster.nodes[1]
        await turn_until(lambda: not replica.is_dirty)
        replica.core.step(snapshot(20, list(replica.state_machine.rows()), members=(1, 2)))
        node.engine.commits.flush_state(replica)
        assert isinstance(replica.disk, Idle)


async def test_one_write_is_in_flight_when_a_snapshot_needs_the_membership_durable():
    """Asking the core for work started a write from within, and the work that it then returned started a second one immediately."""
    async with EngineCluster() as cluster:
        cluster.create_group(GROUP)
        leader = await cluster.leader(GROUP)
        engine = cluster.nodes[leader.replica_id].engine
        lagging = next(replica for replica in (1, 2, 3) if replica != leader.replica_id)
        await leader.propose([data(0)])[1]
        await turn_until(lambda: leader.core.match_index(lagging) == leader.core.last_index)
        cluster.isolate(lagging)
        for number in range(10):
            await leader.propose([data(number)])[1]
        engine.commits.flush_state(leader)
        await turn_until(lambda: leader.durable_state_index >= leader.core.applied_index)
        await engine.commits.truncate(leader, leader.durable_state_index)
        await turn_until(lambda: leader.log_start.index > 15 and isinstance(leader.disk, Idle))
        leader.core.progress[lagging].become_probe()
        leader.core.progress[lagging].record_heard()
        leader.durable_membership = Membership((1, 2))  # as when a change was applied during the last write
        writers = cluster.nodes[leader.replica_id].writers
        submitted = []
        submit = writers.submit
        writers.submit = lambda key, update, token: (submitted.append(update), submit(key, update, token))
        done = leader.propose([data(0)])[1]
        await turn_until(lambda: not leader.is_dirty)
        assert len(submitted) == 1
        await done


async def test_a_truncation_reads_a_header_that_is_not_in_memory_in_a_thread():
    """On the loop it would block everything while the file is being replaced."""
    async with EngineCluster(1) as cluster:
        node, leader = await truncatable(cluster)
        header, readers = node.store.header, []

        def watched(key, index):
            readers.append(threading.current_thread())
            return header(key, index)

        node.store.header = watched
        await node.engine.commits.truncate(leader, leader.durable_state_index)
        await turn_until(lambda: leader.log_start.index == leader.durable_state_index)
        assert readers
        assert threading.main_thread() not in readers


async def test_a_truncation_yields_to_changes_made_while_its_header_was_read():
    async with EngineCluster(1) as cluster:
        node, leader = await truncatable(cluster)
        index = leader.durable_state_index
        both = [node.engine.commits.truncate(leader, index - number) for number in (0, 3)]
        await asyncio.gather(*both)
        await turn_until(lambda: leader.log_start.index > 10 and isinstance(leader.disk, Idle))
        leader.log.clear()
        late = asyncio.create_task(node.engine.commits.truncate(leader, index))
        await asyncio.sleep(0)
        node.engine.remove_group(GROUP)
        await late
        assert leader.pending_truncation is None
        assert cluster.fatal == []


def fail(*arguments, **named):
    raise KeyError("planted")


async def test_a_defect_that_prevents_writing_state_stops_its_replica():
    """Rows that were taken from the machine and not written would be missing on disk, unnoticed."""
    async with EngineCluster(timing=SLOW_TIMING) as cluster:
        cluster.create_group(GROUP)
        leader = await cluster.leader(GROUP)
        await leader.propose([data(1)])[1]
        await until(lambda: isinstance(leader.disk, Idle))
        leader.state_machine.take_dirty_rows = fail
        cluster.nodes[leader.replica_id].engine.commits.flush_state(leader)
        await until(lambda: leader.is_closed)


async def test_damage_that_a_write_meets_stops_its_replica_alone(monkeypatch):
    async with EngineCluster() as cluster:
        replica = cluster.nodes[1].add(GROUP, founder_state(Membership((1, 2, 3))))
        node = cluster.nodes[1]
        await turn_until(lambda: not replica.is_dirty)
        damage = DamagedReplicaError(replica.key, "cannot be changed: MDB_PAGE_NOTFOUND")

        def damaged(updates):
            raise damage

        monkeypatch.setattr(node.store, "append_batch", damaged)
        entry = Entry(6, 6, EntryKind.EMPTY, 0, 0, 0, b"")
        node.engine.on_message(2, GROUP, AppendRequest(2, 1, 6, 5, 5, (entry,), 5))
        await turn_until(lambda: replica.is_closed)
        assert node.broken == [(GROUP, damage)]
        assert node.engine.inbound_bytes == 0


async def test_a_change_of_membership_stays_committed_on_disk_when_its_write_ends_in_a_later_term():
    """The core does not believe such a write. The next one, for the later term, named a lower commit index, and no further one was due."""
    async with EngineCluster() as cluster:
        replica = cluster.nodes[1].add(GROUP, founder_state(Membership((1, 2, 3))))
        node = cluster.nodes[1]
        key = ReplicaKey(GROUP, 1)
        await turn_until(lambda: not replica.is_dirty)
        submit, held = node.writers.submit, []
        node.writers.submit = lambda key, update, token: held.append((key, update, token))
        change = encode_change(MembershipChange(((MembershipOp.REMOVE, 3),)))
        leaving = Entry(6, 6, EntryKind.MEMBERSHIP, 0, 0, 0, change)
        seal = Entry(7, 6, EntryKind.EMPTY, 0, 0, 0, b"")
        node.engine.on_message(2, GROUP, AppendRequest(2, 1, 6, 5, 5, (leaving, seal), 6))
        await turn_until(lambda: held)
        assert held[0][1].hard_state.commit_index == 6
        # the leader hands over to 3, which campaigns before it has applied that it leaves
        node.engine.on_message(3, GROUP, VoteRequest(3, 1, 7, 1, 7, 6, 5, 5, is_pre_vote=False, is_transfer=True))
        assert replica.term == 7
        node.writers.submit = submit
        submit(*held[0])
        await turn_until(lambda: isinstance(replica.disk, Idle) and replica.core.membership.voters == (1, 2))
        for _ in range(20):
            await asyncio.sleep(0)
        await turn_until(lambda: isinstance(replica.disk, Idle) and not replica.is_dirty)
        node.store.close(key)
        assert node.store.open(key).hard_state.commit_index >= 6
