"""Load many records, skip a record that cannot be sent, and report exactly the written ones.

Usage: python examples/producers/bulk_load.py [SERVERS]

Prints::

    record 1234 is no good (a value must be bytes or None, not float)
    10000 lines: 9999 written, 1 left out, 0 failed
    the first has the header source=generator
"""

import asyncio
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any

from raftmq import Admin, BulkDelivery, Consumer, Producer, RaftMQError, TopicPartition

SERVERS = sys.argv[1] if len(sys.argv) > 1 else "localhost:9400"
TOPIC = "measurements"
COUNT = 10_000
HEADERS = [("source", b"generator")]


def measurements() -> Iterator[tuple[bytes, Any, list[tuple[str, bytes]], int]]:  # Any: unchecked input
    """Yield (key, value, headers, timestamp) of each record. One value was never converted to bytes."""
    for number in range(COUNT):
        value: object = 20.5 if number == 1234 else b"%d degrees" % (number % 40)
        yield b"sensor-%d" % (number % 50), value, HEADERS, 1_700_000_000_000 + number * 1000


async def load(producer: Producer) -> tuple[BulkDelivery, int]:
    """Send all records that can be sent. Return their delivery and the number of records left out."""
    delivery = BulkDelivery()
    left_out = 0
    while True:
        # `into` counts the accepted records even on an error: exactly those before the refused one.
        rest = islice(measurements(), delivery.count + left_out, None)
        try:
            await producer.send_many(TOPIC, rest, into=delivery)
        except (TypeError, ValueError) as error:
            print(f"record {delivery.count + left_out} is no good ({str(error).split(':')[0]})")
            left_out += 1
        else:
            return delivery, left_out


async def main() -> None:
    """Load, wait, and look at the result."""
    async with Admin(bootstrap_servers=SERVERS) as admin:
        await admin.create_topic(TOPIC, partitions=6, if_not_exists=True)
    async with Producer(bootstrap_servers=SERVERS, compression_type="lz4") as producer:
        delivery, left_out = await load(producer)
        failed = 0
        try:
            await delivery
        except RaftMQError:
            for records in delivery.failures():  # lists them, so that they can be sent again where that is safe
                failed += len(records.indexes)
                print(f"{len(records.indexes)} records failed: {records.error} (outcome: {records.error.outcome.name})")
    print(f"{COUNT} lines: {delivery.count - failed} written, {left_out} left out, {failed} failed")

    async with Consumer(bootstrap_servers=SERVERS, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(TOPIC, number) for number in range(6)])
        async for record in consumer:
            name, value = record.headers[0]
            print(f"the first has the header {name}={value.decode()}")
            break


asyncio.run(main())
