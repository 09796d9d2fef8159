"""Regressions found by review: what the shell around the cores must survive, each named by what went wrong."""

import asyncio
import dataclasses
import threading
from types import SimpleNamespace

import pytest
from raftmq.broker.base.limits import Limits
from raftmq.broker.peers.codec import FrameType, encode_snapshot_begin, encode_snapshot_rows
from raftmq.broker.replica.disk import Idle
from raftmq.broker.replica.initial_state import founder_state
from raftmq.raft.core import RaftCore
from raftmq.raft.entry import Entry, EntryKind, LogPosition
from raftmq.raft.membership import Membership
from raftmq.raft.messages import AppendRequest, InstallSnapshot, ReadIndexResponse, SnapshotMeta
from raftmq.raft.ready import Role
from raftmq.storage.errors import StorageFullError
from raftmq.storage.log_store import ReplicaKey

from tests.broker.engine_cluster import EngineCluster, data, next_progress

GROUP = 7


def entry(index, *, term=6, payload=b"x"):
    """A record of the test's imaginary leader: the log starts at index 5, offset 0."""
    return Entry(index, term, EntryKind.DATA, index - 6, 1, 0, payload)


def snapshot(index, rows, *, state_index=None, members=(1, 2, 3)):
    meta = SnapshotMeta(LogPosition(index, 6, index - 5, 0), state_index or index, Membership(members))
    return InstallSnapshot(2, 1, 6, meta, rows)


async def until(condition):
    """Turn the loop until the condition holds: for what nobody announces."""
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0)


async def test_groups_without_a_quorum_do_not_keep_the_campaign_gate_for_ever():
    """Each place at the gate was held by a pre-candidate that nobody answered, and no group could ask again."""
    async with EngineCluster(limits=Limits(campaigns_max=2)) as cluster:
        for node_id in cluster.nodes:
            cluster.isolate(node_id)
        for group_id in range(1, 9):
            cluster.create_group(group_id)
        engines = [node.engine for node in cluster.nodes.values()]

        def has_asked_or_waits(replica):
            return not replica.is_dirty and (replica.core.role is Role.PRE_CANDIDATE or replica.core.campaign_due)

        # everybody has timed out and nothing is on its way: whoever is a candidate then was not answered
        async with asyncio.timeout(10):
            while not all(has_asked_or_waits(g) for e in engines for g in e.replicas.values()):
                await asyncio.sleep(0)
        cluster.heal()
        async with asyncio.timeout(10):
            await asyncio.gather(*(cluster.leader(group_id) for group_id in range(1, 9)))


async def test_a_derived_write_never_makes_a_commit_index_durable_beyond_the_log():
    """The core may have taken in committed entries that no write holds yet; a crash after that write was fatal."""
    async with EngineCluster() as cluster:
        replica = cluster.nodes[1].add(GROUP, founder_state(Membership((1, 2, 3))))
        node = cluster.nodes[1]
        request = AppendRequest(2, 1, 6, 5, 5, (entry(6), entry(7)), 7)
        updates = []
        submit = node.writers.submit
        node.writers.submit = lambda key, update, token: (updates.append(update), submit(key, update, token))
        await until(lambda: not replica.is_dirty)
        replica.core.step(request)
        node.engine.commits.flush_state(replica)
        assert updates[0].entries == ()
        assert updates[0].hard_state.commit_index <= 5
        await until(lambda: isinstance(replica.disk, Idle))
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


async def test_an_install_never_makes_a_commit_index_durable_beyond_the_snapshot():
    async with EngineCluster() as cluster:
        replica = cluster.nodes[1].add(GROUP, founder_state(Membership((1, 2, 3))))
        node = cluster.nodes[1]
        states = []
        install = node.store.install
        node.store.install = lambda key, hard_state, meta, rows: (
            states.append(hard_state),
            install(key, hard_state, meta, rows),
        )
        rows = list(replica.state_machine.rows())
        replica.core.step(snapshot(20, rows))
        replica.core.step(AppendRequest(2, 1, 6, 20, 6, (entry(21), entry(22)), 22))
        node.engine.mark_dirty(replica)
        await until(lambda: states)
        assert states[0].commit_index == 20


async def test_derived_state_is_not_written_between_a_snapshot_and_its_installation():
    """The core stood on the snapshot, the machine did not: the write paired one's membership with the other's state."""
    async with EngineCluster() as cluster:
        replica = cluster.nodes[1].add(GROUP, founder_state(Membership((1, 2, 3))))
        node = cluster.nodes[1]
        await until(lambda: not replica.is_dirty)
        replica.core.step(snapshot(20, list(replica.state_machine.rows()), members=(1, 2)))
        node.engine.commits.flush_state(replica)
        assert isinstance(replica.disk, Idle)


async def test_one_write_is_in_flight_when_a_snapshot_needs_the_membership_durable():
    """Asking the core for work began a write from within; the work it then gave became a second one at once."""
    async with EngineCluster() as cluster:
        cluster.create_group(GROUP)
        leader = await cluster.leader(GROUP)
        engine = cluster.nodes[leader.replica_id].engine
        lagging = next(replica for replica in (1, 2, 3) if replica != leader.replica_id)
        await leader.propose([data(0)])[1]
        await until(lambda: leader.core.match_index(lagging) == leader.core.last_index)
        cluster.isolate(lagging)
        for number in range(10):
            await leader.propose([data(number)])[1]
        engine.commits.flush_state(leader)
        await until(lambda: leader.durable_state_index >= leader.core.applied_index)
        await engine.commits.truncate(leader, leader.durable_state_index)
        await until(lambda: leader.log_start.index > 15 and isinstance(leader.disk, Idle))
        leader.core.progress[lagging].become_probe()
        leader.core.progress[lagging].is_recently_active = True
        leader.durable_membership = Membership((1, 2))  # as when a change was applied during the last write
        writers = cluster.nodes[leader.replica_id].writers
        submitted = []
        submit = writers.submit
        writers.submit = lambda key, update, token: (submitted.append(update), submit(key, update, token))
        done = leader.propose([data(0)])[1]
        await until(lambda: not leader.is_dirty)
        assert len(submitted) == 1
        await done


async def test_deleting_rows_of_a_retired_replica_does_not_end_the_process():
    """A topic was deleted between two slices of a truncation."""
    async with EngineCluster(1) as cluster:
        cluster.create_group(GROUP, (1,))
        leader = await cluster.leader(GROUP)
        node = cluster.nodes[1]
        node.engine.remove_group(GROUP)
        await asyncio.wrap_future(node.writers.run(leader.key, lambda: node.store.retire(leader.key)))
        node.engine.commits._log_trimmer.delete(leader)
        await node.engine.commits.truncate(leader, leader.core.applied_index)
        await asyncio.wrap_future(node.writers.run(leader.key, lambda: None))
        await asyncio.sleep(0)
        assert cluster.fatal == []


async def test_rows_that_cannot_be_deleted_for_lack_of_space_do_not_end_the_process():
    async with EngineCluster(1) as cluster:
        cluster.create_group(GROUP, (1,))
        leader = await cluster.leader(GROUP)
        node = cluster.nodes[1]

        def full(key, rows_max):
            raise StorageFullError(key, "no room")

        node.store.delete_truncated = full
        node.engine.commits._log_trimmer.delete(leader)
        await asyncio.wrap_future(node.writers.run(leader.key, lambda: None))
        await asyncio.sleep(0)
        assert cluster.fatal == []
        await leader.propose([data(0)])[1]


async def test_a_snapshot_that_finds_no_room_waits_for_it(monkeypatch):
    monkeypatch.setattr("raftmq.broker.replica.snapshots.SPACE_RETRY_SECONDS", 0.01)
    async with EngineCluster() as cluster:
        replica = cluster.nodes[1].add(GROUP, founder_state(Membership((1, 2, 3))))
        node = cluster.nodes[1]
        install = node.store.install
        refusals = [StorageFullError(replica.key, "no room")]

        def refuse_once(*arguments):
            if refusals:
                raise refusals.pop()
            install(*arguments)

        node.store.install = refuse_once
        replica.core.step(snapshot(20, list(replica.state_machine.rows())))
        node.engine.mark_dirty(replica)
        await until(
            lambda: cluster.fatal or (replica.log_start.index == 20 and isinstance(replica.disk, Idle) and not refusals)
        )
        assert cluster.fatal == []


async def test_a_defect_in_one_group_stops_it_and_no_other():
    """An unforeseen exception left the other dirty groups of the pass marked and never stepped again."""
    async with EngineCluster(1) as cluster:
        first = cluster.create_group(1, (1,))[1]
        cluster.create_group(2, (1,))
        await cluster.leader(1)
        second = await cluster.leader(2)

        def defect(entry):
            raise ZeroDivisionError

        first.state_machine.apply = defect
        doomed = first.propose([data(0)])[1]
        fine = second.propose([data(0)])[1]
        with pytest.raises(Exception, match="changed before"):
            await doomed
        await asyncio.wait_for(fine, 5)
        assert [group_id for group_id, _ in cluster.nodes[1].broken] == [1]


async def test_a_tick_that_fails_does_not_end_the_ticking():
    async with EngineCluster(1) as cluster:
        engine = cluster.nodes[1].engine
        calls = []

        def tick():
            calls.append(1)
            if len(calls) == 1:
                raise ZeroDivisionError

        seen = []
        cluster.loop.set_exception_handler(lambda loop, context: seen.append(context))
        engine._timers.arm(tick, 0.001)
        await until(lambda: len(calls) > 2)
        cluster.loop.set_exception_handler(None)
        assert len(seen) == 1


async def test_a_late_answer_to_a_read_of_before_a_restart_confirms_nothing():
    """Read ids began at 1 in each boot: a leader that answered read 1 of the last boot late answered that of this one."""
    async with EngineCluster() as cluster:
        replica = cluster.nodes[1].add(GROUP, founder_state(Membership((1, 2, 3))))
        replica.core.step(AppendRequest(2, 1, 6, 5, 5, (), 5))
        read = asyncio.ensure_future(replica.read_index())
        await until(lambda: replica.reads.unconfirmed)
        replica.core.step(ReadIndexResponse(2, 1, 6, 1, 5))
        cluster.nodes[1].engine.mark_dirty(replica)
        await until(lambda: not replica.is_dirty)
        assert replica.reads.unconfirmed
        read.cancel()


async def test_snapshots_of_a_lost_peer_give_their_memory_back():
    async with EngineCluster(limits=Limits(snapshot_memory_bytes_max=14_000)) as cluster:
        engine = cluster.nodes[1].engine

        def frames(node_id, stream_id):
            begin = encode_snapshot_begin(stream_id, stream_id, snapshot(20, []))
            rows = encode_snapshot_rows(stream_id, [(b"k", b"v" * 6000)])
            for frame_type, parts in ((FrameType.SNAPSHOT_BEGIN, begin), (FrameType.SNAPSHOT_ROWS, rows)):
                engine.on_frame(node_id, frame_type, memoryview(b"".join(map(bytes, parts))))

        frames(2, 1)
        engine.on_peer_down(2)
        await until(lambda: engine._receiver.bytes_held == 0)
        frames(3, 2)
        assert list(engine._receiver._incoming) == [(3, 2)]
        engine.on_snapshots_lost(3)
        await until(lambda: engine._receiver.bytes_held == 0)


async def test_inbound_bytes_that_the_core_throws_away_are_given_back():
    async with EngineCluster() as cluster:
        cluster.nodes[1].add(GROUP, founder_state(Membership((1, 2, 3))))
        engine = cluster.nodes[1].engine
        good = AppendRequest(2, 1, 6, 5, 5, (entry(6),), 5)
        engine.on_message(2, GROUP, good)
        await until(lambda: engine.inbound_bytes == 0)
        gap = dataclasses.replace(good, entries=(entry(6), entry(9, payload=b"y" * 100)))
        engine.on_message(2, GROUP, gap)
        await until(lambda: not engine.replicas[GROUP].is_dirty)
        assert engine.inbound_bytes == 0


async def test_inbound_bytes_of_a_replica_that_a_defect_stops_are_given_back(monkeypatch):
    """A replica that is begun again and again, and stops each time, used up what the others may receive."""
    async with EngineCluster() as cluster:
        node = cluster.nodes[1]
        replica = node.add(GROUP, founder_state(Membership((1, 2, 3))))

        def defect(*_: object) -> None:
            raise ZeroDivisionError

        monkeypatch.setattr(node.engine.commits, "_update", defect)
        node.engine.on_message(2, GROUP, AppendRequest(2, 1, 6, 5, 5, (entry(6),), 5))
        await until(lambda: node.broken)
        assert replica.is_closed
        assert node.engine.inbound_bytes == 0


async def test_an_append_and_a_proposal_larger_than_their_budgets_fit_when_nothing_is_held():
    limits = Limits(inbound_append_bytes_max=1, uncommitted_bytes_max=1)
    async with EngineCluster(limits=limits) as cluster:
        replicas = cluster.create_group(GROUP)
        leader = await cluster.leader(GROUP)
        async with asyncio.timeout(5):
            await leader.propose([data(0)])[1]
            while any(replica.state_machine.next_offset < 1 for replica in replicas.values()):
                await next_progress(list(replicas.values()))


async def test_an_append_dropped_for_lack_of_budget_is_sent_again():
    async with EngineCluster() as cluster:
        replicas = cluster.create_group(GROUP)
        leader = await cluster.leader(GROUP)
        await leader.propose([data(0)])[1]
        follower = replicas[1 if leader.replica_id != 1 else 2]
        engine = cluster.nodes[follower.replica_id].engine
        engine.limits = Limits(inbound_append_bytes_max=1)
        engine._inbound.total += 1  # held by another group
        await leader.propose([data(1)])[1]
        await until(lambda: engine.counters.dropped_messages_total)
        engine._inbound.total -= 1
        engine.limits = Limits()
        async with asyncio.timeout(5):
            while follower.state_machine.next_offset < 2:
                await next_progress([follower])


async def truncatable(cluster):
    """Return a node and a group that it leads: the state is durable, and no entry is in memory."""
    cluster.create_group(GROUP, (1,))
    leader = await cluster.leader(GROUP)
    node = cluster.nodes[1]
    for number in range(10):
        await leader.propose([data(number)])[1]
    node.engine.commits.flush_state(leader)
    await until(lambda: leader.durable_state_index >= leader.core.applied_index)
    leader.log.clear()
    return node, leader


async def test_a_truncation_reads_a_header_that_is_not_in_memory_in_a_thread():
    """On the loop it would stall everything while the file is being replaced."""
    async with EngineCluster(1) as cluster:
        node, leader = await truncatable(cluster)
        header, readers = node.store.header, []

        def watched(key, index):
            readers.append(threading.current_thread())
            return header(key, index)

        node.store.header = watched
        await node.engine.commits.truncate(leader, leader.durable_state_index)
        await until(lambda: leader.log_start.index == leader.durable_state_index)
        assert readers
        assert threading.main_thread() not in readers


async def test_a_truncation_gives_way_to_what_happened_while_its_header_was_read():
    async with EngineCluster(1) as cluster:
        node, leader = await truncatable(cluster)
        index = leader.durable_state_index
        both = [node.engine.commits.truncate(leader, index - number) for number in (0, 3)]
        await asyncio.gather(*both)
        await until(lambda: leader.log_start.index > 10 and isinstance(leader.disk, Idle))
        leader.log.clear()
        late = asyncio.create_task(node.engine.commits.truncate(leader, index))
        await asyncio.sleep(0)
        node.engine.remove_group(GROUP)
        await late
        assert leader.pending_truncation is None
        assert cluster.fatal == []
