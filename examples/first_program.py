"""The first program of the README: a cluster, a topic, one record there and back."""

import asyncio

from raftmq import Admin, Consumer, Producer, TopicPartition
from raftmq.testing import LocalCluster


async def main() -> None:
    """Start three brokers, write one record, read it back."""
    async with LocalCluster(brokers=3) as cluster:
        servers = cluster.bootstrap_servers
        async with Admin(bootstrap_servers=servers) as admin:
            await admin.create_topic("greetings", partitions=1, replication_factor=3)
        async with Producer(bootstrap_servers=servers) as producer:
            written = await producer.send_and_wait("greetings", value=b"hello", key=b"world")
            print(f"acknowledged at offset {written.offset}")
        async with Consumer(bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition("greetings", 0)])
            async for record in consumer:
                print(record.key, record.value)
                break


asyncio.run(main())
