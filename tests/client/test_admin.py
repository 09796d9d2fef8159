from __future__ import annotations

import pytest
from raftmq import errors
from raftmq.client.admin import Admin
from raftmq.client.producer import Producer
from raftmq.proto import queue_pb2 as pb
from raftmq.types import TopicPartition

from tests.client.fake_broker import FakeCluster, FakeNode, abort, detail
from tests.client.memory_transport import MemoryTransport


async def test_topics_are_made_changed_listed_and_deleted(cluster: FakeCluster):
    async with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        made = await admin.create_topic("t", partitions=3, replication_factor=1, config={"a": "1"})
        assert (made.name, len(made.partitions), made.config) == ("t", 3, {"a": "1"})
        with pytest.raises(errors.TopicAlreadyExistsError):
            await admin.create_topic("t")
        again = await admin.create_topic("t", partitions=9, if_not_exists=True)
        assert (again.topic_id, len(again.partitions)) == (made.topic_id, 3)
        await admin.alter_topic_config("t", set={"b": "2"}, unset=["a"])
        found = await admin.describe_topic("t")
        assert found.config == {"b": "2"}
        assert found.effective_config == {"b": "2", "retention_ms": "-1"}
        assert [p.leader_node_id for p in found.partitions] == [1, 2, 1]
        grown = await admin.add_partitions("t", 4)
        assert len(grown.partitions) == 4
        with pytest.raises(errors.InvalidPartitionsError):
            await admin.add_partitions("t", 2)
        await admin.create_topic("a")
        assert [topic.name for topic in await admin.list_topics()] == ["a", "t"]
        await admin.delete_topic("t")
        for call in (admin.delete_topic("t"), admin.describe_topic("t"), admin.alter_topic_config("t", {"x": "1"})):
            with pytest.raises(errors.UnknownTopicError):
                await call


@pytest.mark.parametrize("code", [pb.UNKNOWN_TOPIC, pb.INVALID_ARGUMENT])
async def test_a_change_that_was_made_is_not_reported_as_refused_when_the_question_after_it_is(monkeypatch, code: int):
    """`create_topic` and `add_partitions` raised what describing the topic afterwards raised, such as `UnknownTopicError` when somebody
    else deleted it meanwhile, whose outcome says that nothing was applied.
    """

    async def refuse(node, request, context):
        await abort(context, detail(code))

    monkeypatch.setattr(FakeNode, "DescribeTopic", refuse)
    transport = MemoryTransport(FakeCluster())
    async with Admin(bootstrap_servers=transport.addresses, transport=transport) as admin:
        made = await admin.create_topic("t", partitions=2)
        assert (made.name, len(made.partitions), made.effective_config) == ("t", 2, None)
        assert len((await admin.add_partitions("t", 3)).partitions) == 3
        with pytest.raises(errors.RaftMQError):
            await admin.describe_topic("t")


async def test_records_are_deleted_at_their_leaders(cluster: FakeCluster):
    cluster.create_topic("t", partitions=2)
    partitions = [TopicPartition("t", n) for n in range(2)]
    async with (
        Admin(bootstrap_servers=cluster.bootstrap_servers) as admin,
        Producer(bootstrap_servers=cluster.bootstrap_servers) as producer,
    ):
        for partition in partitions:
            await (await producer.send_many("t", [(None, b"x")] * 10, partition=partition.partition))
        assert await admin.delete_records({partitions[0]: 4, partitions[1]: -1}) == {
            partitions[0]: 4,
            partitions[1]: 10,
        }


async def test_the_cluster_is_described(cluster: FakeCluster):
    cluster.create_topic("t", partitions=2)
    async with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        found = await admin.describe_cluster()
    assert (found.cluster_id, found.topic_count, found.partition_count) == ("fake-cluster", 1, 2)
    assert [node.node_id for node in found.nodes] == [1, 2]


async def test_a_closed_admin_refuses(cluster: FakeCluster):
    admin = Admin(bootstrap_servers=cluster.bootstrap_servers)
    with pytest.raises(errors.ClosedClientError):
        await admin.list_topics()
    async with admin:
        pass
    with pytest.raises(errors.ClosedClientError):
        await admin.list_topics()
    with pytest.raises(errors.InvalidArgumentError):
        Admin(request_timeout_ms=0)
