"""Clients of logs learn from a typed error that a topic is of another kind, and do not retry."""

from __future__ import annotations

import pytest
from raftmq import Admin, Consumer, Producer, TopicPartition
from raftmq.errors import TopicKindMismatchError

from tests.support.broker.mailbox_kind import register_mailboxes
from tests.support.broker.whole_nodes import Nodes

PARTITION = TopicPartition("letters", 0)


@pytest.fixture
async def address(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> str:
    """Start a broker with a topic of kind "mailbox". Return its address."""
    register_mailboxes(monkeypatch)
    node = await nodes.serve("one", bootstrap=True)
    async with Admin(bootstrap_servers=node.addresses.client) as admin:
        assert (await admin.create_topic("letters", kind="mailbox")).kind == "mailbox"
    return node.addresses.client


async def test_a_producer_is_refused(address: str):
    async with Admin(bootstrap_servers=address) as admin:
        await admin.create_topic("jobs", kind="queue")
    async with Producer(bootstrap_servers=address) as producer:
        with pytest.raises(TopicKindMismatchError, match=r"'jobs' is a queue topic: put messages with raftmq\.Queue"):
            await producer.send_and_wait("jobs", b"x")


@pytest.mark.parametrize("offset_reset", ["earliest", "latest"])
async def test_a_consumer_without_a_group_is_refused(address: str, offset_reset: str):
    async with Consumer(bootstrap_servers=address, auto_offset_reset=offset_reset) as consumer:
        consumer.assign([PARTITION])
        with pytest.raises(TopicKindMismatchError, match="topic letters is of kind 'mailbox'"):
            await consumer.getmany(timeout_ms=20_000)


async def test_a_member_of_a_group_is_refused(address: str):
    with pytest.raises(TopicKindMismatchError, match="topic letters is of kind 'mailbox'"):
        async with Consumer("letters", bootstrap_servers=address, group_id="g") as consumer:
            await consumer.getmany(timeout_ms=20_000)


async def test_the_error_gives_advice(address: str):
    async with Admin(bootstrap_servers=address) as admin:
        with pytest.raises(TopicKindMismatchError) as refused:
            await admin.delete_records({PARTITION: -1})
        assert not refused.value.retriable
        assert "the kind of a topic is shown by raftmq topic describe" in str(refused.value)


@pytest.mark.parametrize("group_id", [None, "g"])
async def test_a_consumer_of_a_queue_topic_is_told_what_to_use(address: str, group_id: str | None):
    async with Admin(bootstrap_servers=address) as admin:
        await admin.create_topic("jobs", kind="queue")
    with pytest.raises(TopicKindMismatchError, match=r"get messages with raftmq\.Queue.*raftmq queue get"):
        async with Consumer("jobs", bootstrap_servers=address, group_id=group_id):
            pass
    async with Consumer(bootstrap_servers=address) as consumer:
        consumer.assign([TopicPartition("jobs", 0)])
        with pytest.raises(TopicKindMismatchError, match="has no offsets"):
            await consumer.getmany(timeout_ms=20_000)


async def test_a_topic_of_another_kind_is_listed_described_changed_and_deleted(address: str):
    async with Admin(bootstrap_servers=address) as admin:
        assert [(topic.name, topic.kind) for topic in await admin.list_topics()] == [("letters", "mailbox")]
        assert (await admin.describe_topic("letters")).kind == "mailbox"
        assert len((await admin.add_partitions("letters", 2)).partitions) == 2
        await admin.delete_topic("letters")
        assert await admin.list_topics() == []
