"""Write and read records of a type with the same serializer, and recognize records of another program.

Usage: python examples/producers/typed_records.py [SERVERS]

Prints::

    Order(customer='ada', cents=1299, lines=['tea', 'cup'])
    no order at offset 1: not Order in JSON
    Order(customer='bob', cents=250, lines=[])
"""

import asyncio
import sys

import msgspec
from raftmq import Admin, Consumer, Producer, TopicPartition
from raftmq.errors import DeserializationError
from raftmq.serializers import Json, String

SERVERS = sys.argv[1] if len(sys.argv) > 1 else "localhost:9400"


class Order(msgspec.Struct):
    """Hold a customer's order. Fields with a default may be added later without breaking readers."""

    customer: str
    cents: int
    lines: list[str] = []


ORDERS = Json(Order)
CUSTOMERS = String()


async def main() -> None:
    """Write two orders and something else, and read them."""
    async with Admin(bootstrap_servers=SERVERS) as admin:
        await admin.create_topic("orders-typed", partitions=1, if_not_exists=True)
    async with Producer(
        bootstrap_servers=SERVERS, key_serializer=CUSTOMERS.serialize, value_serializer=ORDERS.serialize
    ) as producer:
        await producer.send_and_wait("orders-typed", key="ada", value=Order("ada", 1299, ["tea", "cup"]))
        async with Producer(bootstrap_servers=SERVERS) as stranger:
            await stranger.send_and_wait("orders-typed", value=b"two cups, please")
        await producer.send_and_wait("orders-typed", key="bob", value=Order("bob", 250))

    partition = TopicPartition("orders-typed", 0)
    async with Consumer(
        bootstrap_servers=SERVERS, auto_offset_reset="earliest", value_deserializer=ORDERS.deserialize
    ) as consumer:
        consumer.assign([partition])
        while await consumer.position(partition) < 3:
            try:
                record = await anext(consumer)
            except DeserializationError as error:
                # The record stays the next one until the program seeks past it. It may be stored elsewhere first.
                offset = await consumer.position(partition)
                print(f"no order at offset {offset}: {str(error).split(':')[0]}")
                await consumer.seek(partition, offset + 1)
            else:
                print(record.value)


asyncio.run(main())
