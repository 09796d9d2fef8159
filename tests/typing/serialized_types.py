"""Show the types that serializers give to keys and values. Each `ignore` marks a mistake that a type checker must find."""

from collections.abc import Iterator
from typing import assert_type

import msgspec
from raftmq import (
    Attempt,
    BulkDelivery,
    Consumer,
    Delivery,
    Message,
    NewMessage,
    Output,
    Producer,
    PutResult,
    Queue,
    QueueRecord,
    Record,
    TopicPartition,
    Transformer,
    Worker,
    sync,
)
from raftmq.serializers import Json, String


class Order(msgspec.Struct):
    item: str


CUSTOMERS = String()
ORDERS = Json(Order)
PAIRS = [("ada", Order("tea")), (None, None)]


async def produce() -> None:
    async with Producer(key_serializer=CUSTOMERS.serialize, value_serializer=ORDERS.serialize) as producer:
        assert_type(producer, Producer[str, Order])
        assert_type(await producer.send("t", Order("tea"), "ada"), Delivery)
        await producer.send("t", None, None)
        assert_type(await producer.send_many("t", PAIRS), BulkDelivery)
        await producer.send_many("t", [("ada", Order("tea"), [("name", b"value")], 1)])
        await producer.send("t", b"tea", "ada")  # type: ignore[arg-type]
        await producer.send("t", Order("tea"), b"ada")  # type: ignore[arg-type]
        await producer.send_and_wait("t", "tea")  # type: ignore[arg-type]
        await producer.send_many("t", [("ada", b"tea")])  # type: ignore[list-item]
    async with Producer() as plain:
        await plain.send("t", b"tea", bytearray(b"ada"))
        await plain.send("t", "tea")  # type: ignore[arg-type]
    Producer(linger=5)  # type: ignore[call-arg]
    Producer(linger_ms="5")  # type: ignore[arg-type]


async def consume() -> None:
    consumer = Consumer("t", key_deserializer=CUSTOMERS.deserialize, value_deserializer=ORDERS.deserialize)
    assert_type(consumer, Consumer[str, Order])
    async for record in consumer:
        assert_type(record, Record[str, Order])
        assert_type(record.key, str | None)
        assert_type(record.value, Order | None)
        print(record.value.item)  # type: ignore[union-attr]
        record.value = None  # type: ignore[misc]
    assert_type(await consumer.getmany(), dict[TopicPartition, list[Record[str, Order]]])
    assert_type(await anext(Consumer("t")), Record[bytes, bytes])
    assert_type(Consumer("t", value_deserializer=int), Consumer[bytes, int])
    objects: Consumer[object, object] = consumer
    print(objects)


def blocking() -> None:
    with sync.Producer(key_serializer=CUSTOMERS.serialize, value_serializer=ORDERS.serialize) as producer:
        assert_type(producer, sync.Producer[str, Order])
        assert_type(producer.send("t", Order("tea"), "ada"), sync.Delivery)
        producer.send_many("t", PAIRS)
        producer.send_and_wait("t", "tea")  # type: ignore[arg-type]
    with sync.Consumer("t", group_id="g", value_deserializer=ORDERS.deserialize) as consumer:
        assert_type(next(consumer), Record[bytes, Order])
        assert_type(consumer.getmany(), dict[TopicPartition, list[Record[bytes, Order]]])
        for record in consumer:
            assert_type(record.value, Order | None)
    sync.Producer(linger=5)  # type: ignore[call-arg]
    sync.Consumer("t", group="g")  # type: ignore[call-arg]
    sync.Admin(request_timeout_ms="5")  # type: ignore[arg-type]


def bytes_of(record: Record) -> bytes:
    assert_type(record, Record[bytes, bytes])
    return record.value or b""


def handle_order(record: Record[bytes, Order]) -> None:
    assert_type(record.value, Order | None)


async def handle_order_again(record: Record[bytes, Order], attempt: Attempt) -> None:
    assert_type(attempt.number, int)


def handle_message(message: QueueRecord[bytes, Order]) -> None:
    assert_type(message.tenant, str)


def work() -> None:
    assert_type(Worker("q", handler=handle_message, value_deserializer=ORDERS.deserialize), Worker[bytes, Order])
    Worker("t", "g", bytes_of)
    assert_type(Worker("t", "g", handle_order, value_deserializer=ORDERS.deserialize), Worker[bytes, Order])
    Worker("t", "g", handle_order_again, value_deserializer=ORDERS.deserialize)
    Worker(("t", "u"), "g", {"t": bytes_of, "u": bytes_of})
    Worker("t", "g", bytes_of, value_deserializer=ORDERS.deserialize)  # type: ignore[misc]
    Worker("t", "g", handle_order, value_deserializer=int)  # type: ignore[misc]


def copy(record: Record) -> Output:
    return Output("u", record.value, record.key)


def split(record: Record[bytes, Order]) -> Iterator[Output]:
    assert_type(record.value, Order | None)
    yield Output("u", record.value, partition=1, headers=[("name", b"value")])


async def drop(record: Record) -> None:
    assert_type(record, Record[bytes, bytes])


async def copy_again(record: Record[bytes, Order]) -> list[Output]:
    return []


def transform() -> None:
    assert_type(Transformer("t", "g", copy), Transformer[bytes, bytes])
    Transformer(
        "t",
        "g",
        split,
        value_deserializer=ORDERS.deserialize,
        value_serializer=ORDERS.serialize,
        key_serializer=str.encode,
    )
    Transformer("t", "g", drop)
    Transformer("t", "g", copy_again, value_deserializer=ORDERS.deserialize)
    Transformer("t", "g", copy, value_deserializer=ORDERS.deserialize)  # type: ignore[misc]
    Transformer("t", "g", bytes_of)  # type: ignore[arg-type]
    Output()  # type: ignore[call-arg]


async def take() -> None:
    async with Queue("q", value_serializer=ORDERS.serialize, value_deserializer=ORDERS.deserialize) as queue:
        assert_type(queue, Queue[Order])
        assert_type(await queue.put(Order("tea"), tenant="ada"), PutResult)
        await queue.put(b"tea")  # type: ignore[arg-type]
        assert_type(await queue.get(), Message[Order] | None)
        assert_type(await queue.get_many(max_messages=5), list[Message[Order]])
        async for message in queue:
            assert_type(message, Message[Order])
            assert_type(message.value, Order)
            await message.ack(put=[NewMessage(Order("milk"), tenant="ada"), Order("sugar")])
            await message.ack(put=(NewMessage(Order(item)) for item in ("milk", "sugar")))
            await message.ack(put=[b"milk"])  # type: ignore[list-item]
            await message.ack(put=[NewMessage("milk")])  # type: ignore[arg-type]
            await message.ack(put=Order("milk"))  # type: ignore[arg-type]
            await queue.ack_many([message])
    async with Queue("q") as plain:
        assert_type(plain, Queue[bytes])
        await plain.put("tea")  # type: ignore[arg-type]
        async for one in plain:
            await one.ack(put=[NewMessage(b"milk"), b"sugar"])
            await one.ack(put=["milk"])  # type: ignore[list-item]


def take_blocking() -> None:
    with sync.Queue("q", value_serializer=ORDERS.serialize, value_deserializer=ORDERS.deserialize) as queue:
        assert_type(queue, sync.Queue[Order])
        message = queue.get(wait_ms=10)
        if message is not None:
            assert_type(message.value, Order)
            message.ack()
            message.ack(put=[NewMessage(Order("milk")), Order("sugar")])
            message.ack(put=[NewMessage(b"milk")])  # type: ignore[arg-type]
