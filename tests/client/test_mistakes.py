"""Mistakes that people make with the SDK: each is refused at once, in words."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from raftmq.client.admin import Admin
from raftmq.client.consumer import Consumer
from raftmq.client.producer import Producer
from raftmq.client.record_checks import check_headers
from raftmq.client.resolver import parse_addresses
from raftmq.errors import InvalidArgumentError
from raftmq.types import TopicPartition

from tests.client.fake_broker import FakeCluster


@pytest.mark.parametrize(
    "address",
    [
        "http://127.0.0.1:9400",
        "127.0.0.1:9400:3",
        "127.0.0.1",
        ":9400",
        "a:0",
        "a:65536",
        "a b:1",
        "::1:9400",
        "a:1/x",
        "",
    ],
)
def test_what_is_no_address_is_refused_before_anything_is_tried(address: str) -> None:
    with pytest.raises(InvalidArgumentError, match="bootstrap_servers"):
        parse_addresses(address)


def test_addresses_of_every_kind_are_taken() -> None:
    assert parse_addresses("broker-1.example:9400, [::1]:9400,127.0.0.1:1") == (
        "broker-1.example:9400",
        "[::1]:9400",
        "127.0.0.1:1",
    )
    pair: Any = ("127.0.0.1", 9400)
    with pytest.raises(InvalidArgumentError, match="9400 is not 'host:port'"):
        parse_addresses(pair)


@pytest.mark.parametrize("headers", [{"a": b"b"}, ["ab"], [("a", "b")], [("a",)], [(1, b"b")], [5]])
def test_headers_of_a_wrong_shape_are_a_type_error(headers: Any) -> None:
    with pytest.raises(TypeError, match="pairs of a str and bytes"):
        check_headers(headers)


def test_topics_are_names_one_argument_each() -> None:
    topics: Any = ["mine"]
    with pytest.raises(TypeError, match="one argument each"):
        Consumer(topics)


@pytest.mark.parametrize("partitions", [["mine"], TopicPartition("mine", 0), [("mine", 0)]])
def test_partitions_are_assigned_as_topic_partitions(partitions: Any) -> None:
    with pytest.raises(TypeError, match="assign takes TopicPartitions in a list"):
        Consumer().assign(partitions)


async def test_settings_are_texts_or_numbers() -> None:
    admin = Admin()
    admin._is_open = True
    config: Any
    for config in ({"retention.ms": None}, {"retention.ms": True}, {5: "x"}):
        with pytest.raises(TypeError, match="configuration key"):
            await admin.create_topic("t", config=config)
        with pytest.raises(TypeError, match="configuration key"):
            await admin.alter_topic_config("t", set=config)
    partitions: Any = "3"
    with pytest.raises(TypeError, match="partitions is a number, not '3'"):
        await admin.create_topic("t", partitions=partitions)


async def test_reading_without_anything_to_read_is_refused_and_asking_is_not(cluster: FakeCluster) -> None:
    async with Consumer(bootstrap_servers=cluster.bootstrap_servers) as consumer:
        assert await consumer.getmany() == {}
        with pytest.raises(InvalidArgumentError, match="nothing is assigned"):
            async with asyncio.timeout(5):
                await anext(consumer)


async def test_a_producer_that_is_forgotten_says_so(cluster: FakeCluster) -> None:
    async with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        with pytest.warns(ResourceWarning, match="unclosed"):
            producer.__del__()  # what the interpreter calls for one that nobody closed


async def test_an_empty_key_is_no_key_for_crc32_and_a_key_for_murmur2(cluster: FakeCluster) -> None:
    """As in librdkafka: consistent_random scatters empty keys like missing ones, the Java client hashes them."""
    cluster.create_topic("wide", 8)
    for partitioner, expected in (("crc32", 2), ("murmur2", 1)):
        async with Producer(bootstrap_servers=cluster.bootstrap_servers, partitioner=partitioner) as producer:
            landed = set()
            for _ in range(2):
                many = await producer.send_many("wide", [(b"", b"x")] * 3)
                landed |= {span.partition for span in await many}
            assert len(landed) == expected
            one = await producer.send_and_wait("wide", b"x", key=b"")
            assert (one.partition in landed) or partitioner == "crc32"
