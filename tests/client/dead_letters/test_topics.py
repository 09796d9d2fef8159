"""Dead-letter topics are found by their newest records."""

from __future__ import annotations

from raftmq import Producer
from raftmq.client.dead_letters.topics import find_dead_letter_topics
from raftmq.message_headers import DEAD_LETTER_PREFIX
from raftmq.types import TopicPartition

from tests.support.client.fake_broker import FakeCluster

FACTS = {"group": "g", "topic": "orders", "partition": "0", "offset": "7", "attempts": "3", "error": "ValueError"}
HEADERS = [(DEAD_LETTER_PREFIX + name, text.encode()) for name, text in {**FACTS, "message": "", "time": "1"}.items()]


async def test_partitions_without_a_leader_do_not_keep_letters_from_being_found() -> None:
    """One partition of any topic without a leader let the whole listing fail."""
    async with FakeCluster(brokers=2) as cluster:
        cluster.create_topic("orders.dead", 2)
        cluster.create_topic("other", 1)
        async with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
            await producer.send_and_wait("orders.dead", b"x", partition=0, headers=HEADERS)
        cluster.move_leader("orders.dead", 1, 99)
        cluster.move_leader("other", 0, 99)
        found, unread = await find_dead_letter_topics(cluster.bootstrap_servers, 1.0)
        assert [(topic.topic, topic.waiting, topic.newest.source_offset) for topic in found] == [("orders.dead", 1, 7)]
        assert unread == [TopicPartition("orders.dead", 1), TopicPartition("other", 0)]
