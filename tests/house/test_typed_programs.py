"""What a type checker sees: the tutorial's programs, and the types that the clients give to keys and values, under mypy --strict."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import raftmq
from raftmq import sync

from tests.support.e2e.guide_programs import read_page

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".venv/mypy_programs"
TUTORIAL = read_page(ROOT / "docs/guides/tutorial.md").files

TYPED = """
from collections.abc import Iterator
from typing import Any, assert_type

import msgspec
from raftmq import (
    Attempt, BulkDelivery, Consumer, Delivery, Output, Producer, Record, TopicPartition, Transformer, Worker, sync,
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


def work() -> None:
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
        "t", "g", split, value_deserializer=ORDERS.deserialize, value_serializer=ORDERS.serialize, key_serializer=str.encode
    )
    Transformer("t", "g", drop)
    Transformer("t", "g", copy_again, value_deserializer=ORDERS.deserialize)
    Transformer("t", "g", copy, value_deserializer=ORDERS.deserialize)  # type: ignore[misc]
    Transformer("t", "g", bytes_of)  # type: ignore[arg-type]
    Output()  # type: ignore[call-arg]
"""


def check_types(directory: Path, files: dict[str, str]) -> subprocess.CompletedProcess[str]:
    for name, text in files.items():
        (directory / name).write_text(text)
    return subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(CACHE), *files],
        cwd=directory,
        env={name: value for name, value in os.environ.items() if not name.startswith("MYPY")},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def test_the_tutorials_programs_pass_a_strict_type_check(tmp_path: Path) -> None:
    assert len(TUTORIAL) >= 5
    done = check_types(tmp_path, TUTORIAL)
    assert done.returncode == 0, done.stdout + done.stderr


def test_keys_and_values_have_the_types_of_their_serializers(tmp_path: Path) -> None:
    """An ``ignore`` that nothing needs is an error, so each of them is a mistake that is found."""
    done = check_types(tmp_path, {"typed.py": TYPED})
    assert done.returncode == 0, done.stdout + done.stderr


PAIRS = [
    (raftmq.Producer, sync.Producer),
    (raftmq.Consumer, sync.Consumer),
    (raftmq.Admin, sync.Admin),
]
ASYNC_ONLY = {"start"}
"""A blocking client is started when it is made."""
MORE_WHEN_BLOCKING = {"timeout_seconds"}
"""Where asynchronous code has ``asyncio.timeout``."""
OWN_TYPES = {"listener", "into"}
"""Of the module that they are used with."""


def parameters(function: Callable[..., object]) -> dict[str, tuple[object, object, object]]:
    found = inspect.signature(function).parameters
    return {
        name: (one.kind, one.default, "" if name in OWN_TYPES else one.annotation)
        for name, one in found.items()
        if name not in MORE_WHEN_BLOCKING
    }


@pytest.mark.parametrize(("usual", "blocking"), PAIRS, ids=[usual.__name__ for usual, _ in PAIRS])
def test_a_blocking_client_takes_what_the_asynchronous_one_takes(usual: type, blocking: type) -> None:
    assert parameters(blocking) == parameters(usual)
    methods = {
        name: member
        for name, member in inspect.getmembers(usual, inspect.isfunction)
        if not name.startswith("_") and name not in ASYNC_ONLY
    }
    assert methods
    for name, method in methods.items():
        assert parameters(getattr(blocking, name)) == parameters(method), name
