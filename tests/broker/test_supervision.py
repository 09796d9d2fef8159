"""A defect in one loop, step or group of whole nodes is counted, logged and survived. A failed commit ends the process."""

import asyncio
import contextlib

import pytest
from raftmq.broker.base.supervisor import Work
from raftmq.broker.services.call import Call
from raftmq.fsm.metadata import Metadata
from raftmq.proto import queue_pb2 as pb
from raftmq.storage.errors import CommitFailedError

from tests.support.broker.waiting import until
from tests.support.broker.whole_nodes import WAIT_SECONDS


def fail(*arguments, **named):
    raise KeyError("planted")


async def create(node, name, partitions=1):
    request = pb.CreateTopicRequest(name=name, partitions=partitions)
    return (await node.grpc.admin.create_topic(request, Call(node.loop.time() + WAIT_SECONDS))).topic


@contextlib.contextmanager
def alive(node, monkeypatch):
    """Check that the node's process continues."""
    ended = []
    monkeypatch.setattr(node._parts, "end_process", lambda: ended.append(1))
    yield
    assert not ended


async def test_a_planners_defect_ends_no_process_and_prevents_no_other_step(nodes, monkeypatch):
    """Otherwise it would end each metadata leader, one after another."""
    node = await nodes.serve("one", bootstrap=True)
    with alive(node, monkeypatch):
        told = []

        async def tell(metadata):
            told.append(1)

        monkeypatch.setattr(node.reconciler, "_replace_missing", fail)
        monkeypatch.setattr(node.reconciler, "_maintain_partition", fail)
        monkeypatch.setattr(node.reconciler.damage, "tell_leaders", tell)
        await create(node, "flights")
        await until(lambda: node.supervisor.failures[Work.RECONCILER] >= 3 and told)
        await until(lambda: not node.standing.not_ready_reasons())
        (warning,) = [one for one in node.standing.warnings() if one.startswith("reconciler fails")]
        assert "planted" in warning


async def test_a_defect_in_each_loop_is_outlived(nodes, monkeypatch):
    node = await nodes.serve("one", bootstrap=True, retention_check_seconds=0.05)
    with alive(node, monkeypatch):
        monkeypatch.setattr(node.grpc.coordinator, "tick", fail)
        monkeypatch.setattr(node.upkeep.housekeeping, "round", fail)
        monkeypatch.setattr(node.upkeep.space_return, "round", fail)
        monkeypatch.setattr(node.disk_watch, "look", fail)
        monkeypatch.setattr(node._peers, "refresh", fail)
        node._metadata_changed.set()
        loops = {Work.COORDINATOR, Work.HOUSEKEEPING, Work.SPACE_RETURN, Work.DISK_WATCH, Work.METADATA_FOLLOWER}
        await until(lambda: node.supervisor.failing().keys() >= loops)
        monkeypatch.undo()
    with alive(node, monkeypatch):
        await create(node, "flights")  # it needs metadata to be followed again


async def test_one_partition_that_fails_starves_no_other(nodes, monkeypatch):
    node = await nodes.serve("one", bootstrap=True, retention_check_seconds=0.05)
    await create(node, "flights", 3)
    tended = set()
    first = min(node.partitions)

    async def tend(partition):
        if partition.replica.group_id == first:
            fail()
        tended.add(partition.replica.group_id)

    with alive(node, monkeypatch):
        monkeypatch.setattr(node.upkeep.housekeeping, "_maintain", tend)
        # a round under way may be past the first partition: its failure comes with the next one
        await until(lambda: tended == node.partitions.keys() - {first} and node.supervisor.failures[Work.HOUSEKEEPING])


async def test_a_directory_in_the_trash_is_harmless(nodes, monkeypatch):
    node = await nodes.serve("one", bootstrap=True, retention_check_seconds=0.05)
    trash = node.config.data_dir / "trash"
    trash.mkdir(exist_ok=True)
    (trash / "a-directory").mkdir()
    rounds = []
    empty = node.store.empty_trash

    def counted(grace_seconds):
        rounds.append(empty(-1.0))

    with alive(node, monkeypatch):
        monkeypatch.setattr(node.store, "empty_trash", counted)
        await until(lambda: len(rounds) > 2)
        assert not node.supervisor.failing()
    assert (trash / "a-directory").is_dir()


async def test_topology_updates_continue_after_a_defect(nodes, monkeypatch):
    """If the feed's task ended, watchers would hear of no further change."""
    node = await nodes.serve("one", bootstrap=True)
    feed = node.grpc.topology._feed
    feed.enter()
    monkeypatch.setattr("raftmq.broker.services.topology._DEFECT_SECONDS", 0.01)
    monkeypatch.setattr(feed, "_compare_topics", fail)
    await create(node, "flights")
    await until(lambda: node.supervisor.failures[Work.TOPOLOGY])
    number = feed.number
    monkeypatch.undo()
    await until(lambda: feed.number > number)
    feed.leave()


async def test_after_a_defect_no_client_gets_an_empty_table(nodes, monkeypatch):
    """It would forget every topic and the addresses of all brokers."""
    node = await nodes.serve("one", bootstrap=True)
    await create(node, "flights")
    feed = node.grpc.topology._feed
    feed.enter()
    await until(lambda: feed.full().topics)
    with monkeypatch.context() as patch:
        patch.setattr(feed, "_compare_topics", fail)
        for read in (feed.advance, feed.full):
            with pytest.raises(KeyError):
                read()
    assert [topic.name for topic in feed.full().topics] == ["flights"]
    feed.leave()


async def test_a_commit_that_failed_in_a_loop_still_ends_the_process(nodes, monkeypatch):
    node = await nodes.serve("one", bootstrap=True, retention_check_seconds=0.05)
    ended = asyncio.Event()
    monkeypatch.setattr(node._parts, "end_process", ended.set)

    async def grow_maps():
        raise CommitFailedError((1, 1), "fsync")

    monkeypatch.setattr(node.upkeep.housekeeping, "grow_maps", grow_maps)
    async with asyncio.timeout(WAIT_SECONDS):
        await ended.wait()


async def test_a_group_whose_state_is_defective_prevents_no_other_plan(nodes, monkeypatch):
    """A defect that the state of one consumer group triggers must not prevent the others' plans."""
    node = await nodes.serve("one", bootstrap=True)
    topic = await create(node, "flights", 2)
    is_planned_for = "raftmq.broker.consumer_groups.coordinator.is_planned_for"
    from raftmq.broker.consumer_groups.planner import is_planned_for as real

    def planted(machine: Metadata, replica):
        return fail() if replica.name == "bad" else real(machine, replica)

    monkeypatch.setattr(is_planned_for, planted)
    for name in ("bad", "good"):
        request = pb.HeartbeatRequest(group=name, member_id="m", subscription=pb.Subscription(topics=[topic.name]))
        await node.grpc.groups.heartbeat(request, Call(node.loop.time() + WAIT_SECONDS))
    await until(lambda: node.view.metadata.state_machine.consumer_group("good").row.target_epoch)
    assert node.supervisor.failures[Work.COORDINATOR]
