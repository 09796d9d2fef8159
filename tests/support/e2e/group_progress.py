"""Read the committed offsets of a group."""

from __future__ import annotations

from raftmq import Admin, Consumer, TopicPartition
from raftmq.testing import LocalCluster


async def progress(cluster: LocalCluster, topic: str, group: str) -> dict[int, int]:
    """Return the committed offset of each partition that has one."""
    async with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        numbers = range(len((await admin.describe_topic(topic)).partitions))
    async with Consumer(bootstrap_servers=cluster.bootstrap_servers, group_id=group) as consumer:
        found = await consumer.committed(*(TopicPartition(topic, number) for number in numbers))
    return {name.partition: offset for name, offset in found.items() if offset is not None}
