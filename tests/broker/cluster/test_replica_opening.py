"""Replicas are opened independently: one that cannot be served delays no other, is shown, tried again, and replaced."""

import asyncio
import threading
from unittest import mock

import msgspec
import pytest
from raftmq.broker.base.metric_catalog import CATALOG
from raftmq.broker.base.readiness import Reason
from raftmq.broker.base.supervisor import Work
from raftmq.broker.cluster import replica_files, unserved
from raftmq.broker.cluster import replica_manager as local_replicas
from raftmq.broker.cluster.unserved import NotServedReason, Trouble
from raftmq.broker.partitions.log import PartitionLog
from raftmq.broker.services.call import Call
from raftmq.fsm.log_partition import LogPartition
from raftmq.fsm.tables import encode_value
from raftmq.proto import queue_pb2 as pb
from raftmq.storage.errors import StorageFullError, StorageUnavailableError, UnsupportedFormatError
from raftmq.types import METADATA_GROUP_ID, GroupId

from tests.support.broker.harness import append_request, batch
from tests.support.broker.waiting import until
from tests.support.broker.whole_nodes import WAIT_SECONDS
from tests.support.formats import FIRST_ROW, with_a_later_field

KEY = (GroupId(1), 1)


async def create(node, name, partitions=1):
    request = pb.CreateTopicRequest(name=name, partitions=partitions)
    return (await node.grpc.admin.create_topic(request, Call(node.loop.time() + WAIT_SECONDS))).topic


async def append(node, topic, sequence):
    """Append until it is acknowledged, as the client does. Return the offset."""
    request = append_request(topic, batch(sequence=sequence))
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            answer = await node.grpc.log.append(request, Call(node.loop.time() + WAIT_SECONDS))
            if not answer.partitions[0].HasField("error"):
                return answer.partitions[0].base_offsets[0]
            await asyncio.sleep(0.02)


def reasons(node):
    return {one.key.group_id: one.reason for one in node.standing.not_served()}


def starting(node):
    return Reason.STARTING_REPLICAS in [one.reason for one in node.standing.not_ready_reasons()]


class Openings:
    """Replaces `open_replica`: fails or hangs for some groups."""

    def __init__(self, monkeypatch):
        self.failing = {}
        self.hanging = set()
        self.may_go_on = threading.Event()
        self.counts = {}
        self._open = replica_files.open_replica
        monkeypatch.setattr(local_replicas, "open_replica", self)

    def __call__(self, store, registry, key, machine):
        self.counts[key.group_id] = self.counts.get(key.group_id, 0) + 1
        if key.group_id in self.hanging:
            assert self.may_go_on.wait(WAIT_SECONDS)
        if key.group_id in self.failing:
            raise self.failing[key.group_id]
        return self._open(store, registry, key, machine)


@pytest.fixture
def openings(monkeypatch):
    found = Openings(monkeypatch)
    yield found
    found.may_go_on.set()


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(unserved, "RETRY_SECONDS_MIN", 0.02)
    monkeypatch.setattr(unserved, "RETRY_SECONDS_MAX", 0.05)


async def test_one_file_that_cannot_be_opened_keeps_no_other_closed(nodes, openings):
    node = await nodes.serve("one", bootstrap=True)
    topic = await create(node, "flights", 4)
    first, *others = (partition.group_id for partition in topic.partitions)
    await nodes.stop(node)
    openings.counts.clear()
    openings.failing[first] = IsADirectoryError(21, "is a directory")
    node = await nodes.serve("one")
    await until(lambda: node.partitions.keys() == set(others))
    assert not starting(node), "one bad file does not block a rolling restart"
    assert reasons(node) == {first: NotServedReason.FAILING}
    assert any("is a directory" in warning and f"group {first}" in warning for warning in node.standing.warnings())
    later = await create(node, "later")
    assert later.partitions[0].group_id in node.partitions, "metadata is followed in the meantime"
    del openings.failing[first]
    await until(lambda: first in node.partitions)
    assert not node.standing.not_served()


async def test_a_start_describes_no_replica_that_it_waits_for(nodes, monkeypatch):
    node = await nodes.serve("one", bootstrap=True)
    topic = await create(node, "flights", 8)
    await nodes.stop(node)
    described = []
    describe = local_replicas.ReplicaManager._not_served

    def noted(self, key):
        described.append(key)
        return describe(self, key)

    monkeypatch.setattr(local_replicas.ReplicaManager, "_not_served", noted)
    node = await nodes.serve("one")
    assert len(node.partitions) == len(topic.partitions)
    assert not described, "each replica that opens would describe all others"
    replica = node.partitions[topic.partitions[0].group_id].replica
    node.engine.break_replica(replica, RuntimeError("a defect"))
    assert list(reasons(node)) == [replica.group_id], "a replica that stops is known immediately"


async def test_a_file_that_never_opens_delays_only_its_writer(nodes, openings):
    node = await nodes.serve("one", bootstrap=True, writer_threads=2)
    topic = await create(node, "flights", 4)
    replicas = [partition.group_id for partition in topic.partitions]
    await nodes.stop(node)
    openings.counts.clear()
    openings.hanging.add(replicas[1])
    node = nodes.begin("one", writer_threads=2)
    await until(lambda: len(node.partitions) == 2)
    assert replicas[1] not in node.partitions
    assert starting(node)
    assert set(reasons(node).values()) == {NotServedReason.OPENING}
    openings.may_go_on.set()
    await until(lambda: len(node.partitions) == 4)


async def test_no_two_files_of_one_writer_are_opened_at_a_time(nodes, openings, monkeypatch):
    """A replica that is slow to open must not delay commits of served replicas."""
    node = await nodes.serve("one", bootstrap=True, writer_threads=1)
    topic = await create(node, "flights", 5)
    await nodes.stop(node)
    openings.counts.clear()
    openings.hanging |= {partition.group_id for partition in topic.partitions}
    node = nodes.begin("one", writer_threads=1)
    await until(lambda: openings.counts)
    await asyncio.sleep(0.1)
    queue = node._storage.writers._threads[0]._queue
    waiting = [queue.get_nowait() for _ in range(queue.qsize())]
    assert not openings.hanging.intersection(item.key.group_id for item in waiting), (
        "a commit of the metadata would have to wait"
    )
    for item in waiting:
        queue.put(item)
    openings.may_go_on.set()
    await until(lambda: len(node.partitions) == 5)


async def test_a_replica_that_is_retired_while_it_opens_is_not_served(nodes, openings):
    node = await nodes.serve("one", bootstrap=True, writer_threads=2)
    topic = await create(node, "flights")
    (group_id,) = (partition.group_id for partition in topic.partitions)
    await nodes.stop(node)
    openings.counts.clear()
    openings.hanging.add(group_id)
    node = nodes.begin("one", writer_threads=2)
    await until(lambda: group_id in openings.counts)
    (key,) = (key for key in node.registry.live_replicas() if key.group_id == group_id)
    await node.grpc.admin.delete_topic(pb.DeleteTopicRequest(name="flights"), Call(node.loop.time() + WAIT_SECONDS))
    await until(lambda: node.view.metadata.state_machine.partition(group_id) is None)
    openings.may_go_on.set()
    await until(lambda: key not in node.registry.live_replicas())
    assert group_id not in node.partitions
    assert key not in node.store.open_replicas()


async def test_a_replica_that_is_retired_while_it_is_created_leaves(nodes, monkeypatch):
    node = await nodes.serve("one", bootstrap=True, writer_threads=2)
    begun, may_go_on = threading.Event(), threading.Event()

    def create_slowly(*arguments, **options):
        begun.set()
        assert may_go_on.wait(WAIT_SECONDS)
        replica_files.create_replica(*arguments, **options)

    monkeypatch.setattr(local_replicas, "create_replica", create_slowly)
    creating = asyncio.ensure_future(create(node, "flights"))
    await until(begun.is_set)
    await node.grpc.admin.delete_topic(pb.DeleteTopicRequest(name="flights"), Call(node.loop.time() + WAIT_SECONDS))
    await until(lambda: node.view.metadata.state_machine.topic_count == 0)
    may_go_on.set()
    await until(lambda: not node.replicas._working)
    assert [key.group_id for key in node.registry.live_replicas()] == [METADATA_GROUP_ID]
    assert not node.partitions
    creating.cancel()


async def test_a_change_of_metadata_costs_a_look_at_its_own_groups(nodes, monkeypatch):
    node = await nodes.serve("one", bootstrap=True)
    await create(node, "many", 6)
    await until(lambda: len(node.partitions) == 6 and not node.replicas._working)
    wanted_of = mock.Mock(wraps=node.replicas._wanted_of)
    monkeypatch.setattr(node.replicas, "_wanted_of", wanted_of)
    topic = await create(node, "one-more")
    (group_id,) = (partition.group_id for partition in topic.partitions)
    await until(lambda: group_id in node.partitions)
    assert {call.args[0] for call in wanted_of.call_args_list} - {METADATA_GROUP_ID} == {group_id}
    assert not node.standing.not_served()


async def test_what_an_exception_leaves_undone_is_looked_at_again(nodes, monkeypatch):
    node = await nodes.serve("one", bootstrap=True)
    with monkeypatch.context() as patch:
        patch.setattr(node.replicas, "_begin", mock.Mock(side_effect=RuntimeError("no thread")))
        creating = asyncio.ensure_future(create(node, "flights"))
        await until(lambda: node.supervisor.failures[Work.METADATA_FOLLOWER])
    await create(node, "another")
    await until(lambda: len(node.partitions) == 2)
    await creating


async def test_a_replica_stopped_by_a_defect_is_shown_and_opened_again(nodes, monkeypatch):
    """One log line is not enough: /readyz must warn, and the replica must be tried again before the next start."""
    node = await nodes.serve("one", bootstrap=True)
    topic = await create(node, "flights")
    assert await append(node, topic, 0) == 0
    (replica,) = node.view.partition_replicas()
    monkeypatch.setattr(unserved, "RETRY_SECONDS_MIN", 0.3)
    monkeypatch.setattr(unserved, "RETRY_SECONDS_MAX", 0.3)
    apply = LogPartition.apply
    monkeypatch.setattr(LogPartition, "apply", lambda self, entry: {}["planted"])
    appending = asyncio.ensure_future(append(node, topic, 1))
    await until(lambda: node.standing.not_served())
    assert replica.is_closed
    (one,) = node.standing.not_served()
    assert (one.reason, one.is_starting) == (NotServedReason.FAILING, False)
    assert "KeyError: 'planted'" in one.message
    assert any("planted" in warning for warning in node.standing.warnings())
    assert not starting(node)
    values = node.http._metrics.read([])
    assert dict(values["raftmq_replicas_not_served"])["failing",] == 1.0
    assert dict(values["raftmq_background_failures_total"])["replicas",] >= 1.0
    assert {"raftmq_replicas_not_served", "raftmq_background_failures_total"} <= CATALOG.keys()
    monkeypatch.setattr(LogPartition, "apply", apply)
    await until(lambda: not node.standing.not_served())
    (again,) = node.view.partition_replicas()
    assert again is not replica
    assert await appending == 1, "the record that was under way exists once"
    assert await append(node, topic, 2) == 2
    assert not node.view.quarantined()


async def test_a_replica_whose_service_cannot_begin_is_shown_and_opened_again(nodes, monkeypatch):
    """It voted and led without being served. It was neither shown nor tried again before the next start."""
    node = await nodes.serve("one", bootstrap=True)
    monkeypatch.setattr(unserved, "RETRY_SECONDS_MIN", 0.3)
    monkeypatch.setattr(unserved, "RETRY_SECONDS_MAX", 0.3)
    with monkeypatch.context() as patch:
        patch.setattr(PartitionLog, "__init__", mock.Mock(side_effect=KeyError("planted")))
        creating = asyncio.ensure_future(create(node, "flights"))
        await until(lambda: node.supervisor.failures[Work.REPLICAS])
        assert list(node.engine.replicas) == [METADATA_GROUP_ID], "what nobody serves must not lead"
        (one,) = node.standing.not_served()
        assert (one.reason, one.is_starting) == (NotServedReason.FAILING, True)
        assert "KeyError: 'planted'" in one.message
    await until(lambda: not node.standing.not_served())
    assert await append(node, await creating, 0) == 0


async def test_a_replica_that_fails_for_too_long_is_given_up(nodes, openings, monkeypatch):
    node = await nodes.serve("one", bootstrap=True)
    topic = await create(node, "flights")
    (group_id,) = (partition.group_id for partition in topic.partitions)
    openings.failing[group_id] = KeyError("planted")
    (replica,) = node.view.partition_replicas()
    openings.counts.clear()
    node.engine.break_replica(replica, KeyError("planted"))
    await until(lambda: openings.counts.get(group_id, 0) > 2)
    assert not node.view.quarantined(), "it is first tried repeatedly"
    monkeypatch.setattr(unserved, "GIVE_UP_SECONDS", 0.0)
    await until(lambda: node.view.quarantined())
    assert reasons(node) == {group_id: NotServedReason.QUARANTINED}
    assert "could not be served for" in node.view.quarantined()[replica.key]
    count = openings.counts[group_id]
    await asyncio.sleep(0.2)
    assert openings.counts[group_id] == count, "a replica that was given up is silent"


@pytest.mark.parametrize("error", [StorageFullError, UnsupportedFormatError, StorageUnavailableError])
async def test_a_replica_is_not_given_up_for_trouble_that_a_new_one_would_share(nodes, openings, monkeypatch, error):
    node = await nodes.serve("one", bootstrap=True)
    topic = await create(node, "flights")
    (group_id,) = (partition.group_id for partition in topic.partitions)
    await nodes.stop(node)
    openings.counts.clear()
    monkeypatch.setattr(unserved, "GIVE_UP_SECONDS", 0.0)
    monkeypatch.setattr(unserved, "ROOM_SECONDS_MAX", 0.02)
    openings.failing[group_id] = error(KEY, "not now")
    node = nodes.begin("one")
    await until(lambda: openings.counts.get(group_id, 0) > 4)
    assert not node.view.quarantined()
    assert reasons(node)[group_id] in (NotServedReason.UNAVAILABLE, NotServedReason.UNSUPPORTED_FORMAT)
    openings.failing.clear()
    await until(lambda: group_id in node.partitions)


async def test_a_replica_with_the_state_of_a_newer_version_waits_for_that_version(nodes, monkeypatch):
    """A broker that was started with the older program again must not take the row for damage, and not ignore the field."""
    monkeypatch.setattr(unserved, "GIVE_UP_SECONDS", 0.0)
    node = await nodes.serve("one", bootstrap=True)
    topic = await create(node, "flights")
    await append(node, topic, 0)
    (group_id,) = (partition.group_id for partition in topic.partitions)
    with monkeypatch.context() as newer:
        newer.setattr(LogPartition, "take_dirty_rows", with_a_later_field(LogPartition.take_dirty_rows))
        await append(node, topic, 1)
        await nodes.stop(node)
    node = nodes.begin("one")
    await until(lambda: reasons(node).get(group_id) is NotServedReason.UNSUPPORTED_FORMAT)
    assert "a newer version wrote it" in node.standing.not_served()[0].message
    assert not node.view.quarantined()
    monkeypatch.setattr(LogPartition, "restore", without_the_later_field(LogPartition.restore))
    await until(lambda: group_id in node.partitions)
    assert await append(node, topic, 2) == 2, "nothing was lost"


def without_the_later_field(restore):
    """Return a `restore` of a version that knows the field."""

    def known(key, value):
        fields = msgspec.msgpack.decode(value) if key == FIRST_ROW else {}
        return key, encode_value({name: fields[name] for name in fields if name != "later"}) if fields else value

    return lambda self, rows, index: restore(self, [known(key, bytes(value)) for key, value in rows], index)


def test_a_replica_that_soon_fails_again_has_not_recovered():
    """A replica that is served for a second after each opening would otherwise never be given up."""
    trouble = Trouble(KEY, began_at=0.0, was_served=True)
    for second in range(601):
        trouble.record(NotServedReason.FAILING, "x", float(second))
        trouble.served_at = second + 0.5
    assert trouble.is_hopeless(600.0)
    assert not trouble.is_over(601.0)
    assert trouble.is_over(600.5 + unserved.STEADY_SECONDS + 1)


async def test_a_broker_that_is_alone_waits_for_no_election_timeout(nodes):
    """No other node votes on metadata, so there is no leader whose silence it would have to wait out."""
    node = await nodes.serve("one", bootstrap=True)
    topic = await create(node, "flights", 2)
    await nodes.stop(node)
    assert WAIT_SECONDS < 1000 * 0.05
    node = await nodes.serve("one", metadata_election_ticks=1000, data_election_ticks=1000)
    await until(lambda: all(node.partitions[one.group_id].replica.is_leader for one in topic.partitions))
