"""Read a topic, or take the messages of a queue topic, with the SDK, since the sink's tests must not trust the Spark source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from raftmq import Message, Record, TopicPartition, sync


def read_all(servers: str, topic: str) -> list[Record]:
    """Return every record, partition by partition."""
    with sync.Admin(bootstrap_servers=servers) as admin:
        partitions = [TopicPartition(topic, n) for n in range(len(admin.describe_topic(topic).partitions))]
    found: list[Record] = []
    with sync.Consumer(bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        for partition in partitions:
            consumer.assign([partition])
            consumer.seek_to_beginning(partition)
            end = consumer.end_offsets([partition])[partition]
            while consumer.position(partition) < end:
                for records in consumer.getmany(timeout_ms=1000).values():
                    found += records
    return found


@contextmanager
def counting(servers: str, topic: str) -> Iterator[Callable[[], int]]:
    """Yield a function that returns the current number of records in the topic."""
    with sync.Consumer(bootstrap_servers=servers) as consumer, sync.Admin(bootstrap_servers=servers) as admin:
        partitions = [TopicPartition(topic, n) for n in range(len(admin.describe_topic(topic).partitions))]
        yield lambda: sum(consumer.end_offsets(partitions).values())


def value_counts(servers: str, topic: str) -> Counter[bytes | None]:
    """Count the occurrences of each value."""
    return Counter(record.value for record in read_all(servers, topic))


def take_all(servers: str, topic: str) -> list[Message[bytes]]:
    """Take the messages that a queue topic has now."""
    with sync.Queue(topic, bootstrap_servers=servers) as queue:
        taken: list[Message[bytes]] = []
        while found := queue.get_many(max_messages=1000, wait_ms=2000, auto_accept=True):
            taken += found
        return taken
