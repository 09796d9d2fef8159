"""Common mistakes with the SDK: each is refused immediately with an explanation."""

from __future__ import annotations

import asyncio
import gc
import warnings
from typing import Any

import pytest
from raftmq.client.admin.admin import Admin
from raftmq.client.codec.cells import check_headers
from raftmq.client.connection.addresses import parse_addresses
from raftmq.client.consumer.consumer import Consumer
from raftmq.client.producer.producer import Producer
from raftmq.errors import DeliveryTimeoutError, InvalidArgumentError, ProducerFencedError
from raftmq.proto import queue_pb2 as pb
from raftmq.types import TopicPartition

from tests.support.client.fake_broker import FakeCluster, detail


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
def test_an_invalid_address_is_refused_before_any_connection(address: str) -> None:
    with pytest.raises(InvalidArgumentError, match="bootstrap_servers"):
        parse_addresses(address)


def test_addresses_of_every_kind_are_accepted() -> None:
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


def test_topics_must_be_names_one_argument_each() -> None:
    topics: Any = ["mine"]
    with pytest.raises(TypeError, match="one argument each"):
        Consumer(topics)


@pytest.mark.parametrize("partitions", [["mine"], TopicPartition("mine", 0), [("mine", 0)]])
def test_assign_accepts_only_topic_partitions(partitions: Any) -> None:
    with pytest.raises(TypeError, match="assign needs a list of TopicPartitions"):
        Consumer().assign(partitions)


async def test_topic_settings_must_be_texts_or_numbers() -> None:
    admin = Admin()
    admin._is_open = True
    config: Any
    for config in ({"retention.ms": None}, {"retention.ms": True}, {5: "x"}):
        with pytest.raises(TypeError, match="configuration key"):
            await admin.create_topic("t", config=config)
        with pytest.raises(TypeError, match="configuration key"):
            await admin.alter_topic_config("t", set=config)
    partitions: Any = "3"
    with pytest.raises(TypeError, match="partitions must be a number, not '3'"):
        await admin.create_topic("t", partitions=partitions)
    admin._is_open = False


WRONG_NUMBERS = [
    (Producer, "linger_ms", -1),
    (Producer, "linger_ms", float("nan")),
    (Producer, "max_block_ms", -5),
    (Producer, "delivery_timeout_ms", 0),
    (Producer, "delivery_timeout_ms", 3_600_001),
    (Producer, "request_timeout_ms", 0),
    (Producer, "max_batch_size", 1023),
    (Producer, "max_batch_size", 3 << 20),
    (Producer, "buffer_memory", 1),
    (Consumer, "max_poll_records", 0),
    (Consumer, "fetch_max_bytes", 0),
    (Consumer, "max_partition_fetch_bytes", -1),
    (Consumer, "fetch_max_wait_ms", -1),
    (Consumer, "fetch_min_bytes", -2),
    (Consumer, "request_timeout_ms", 0),
    (Consumer, "auto_commit_interval_ms", 0),
    (Consumer, "session_timeout_ms", -1),
    (Consumer, "heartbeat_interval_ms", 0),
    (Consumer, "max_poll_interval_ms", 0),
    (Admin, "request_timeout_ms", -3),
]


@pytest.mark.parametrize(("client", "argument", "value"), WRONG_NUMBERS)
async def test_a_number_out_of_range_is_refused_with_the_name_of_its_argument(
    client: Any, argument: str, value: float
) -> None:
    settings: dict[str, object] = {"group_id": "g"} if client is Consumer else {}
    with pytest.raises(InvalidArgumentError, match=rf"^{argument} .*{value!r}"):
        client(**settings, **{argument: value})


@pytest.mark.parametrize(("client", "argument", "value"), WRONG_NUMBERS)
async def test_a_value_that_is_not_a_number_is_refused_with_the_name_of_its_argument(
    client: Any, argument: str, value: float
) -> None:
    settings: dict[str, object] = {"group_id": "g"} if client is Consumer else {}
    for wrong in (str(value), None, True):
        with pytest.raises(TypeError, match=f"^{argument} must be a number, not {wrong!r}"):
            client(**settings, **{argument: wrong})


NOT_WHOLE = [
    "max_poll_records",
    "fetch_max_bytes",
    "max_partition_fetch_bytes",
    "fetch_max_wait_ms",
    "fetch_min_bytes",
    "session_timeout_ms",
    "max_poll_interval_ms",
]


@pytest.mark.parametrize("argument", NOT_WHOLE)
def test_a_float_instead_of_a_whole_number_is_refused_immediately(argument: str) -> None:
    """No request can contain it: the consumer stopped at its first attempt, or never reached a coordinator."""
    wrong: Any = {argument: 6e4}
    with pytest.raises(TypeError, match=f"^{argument} must be a whole number, not 60000.0"):
        Consumer("t", group_id="g", **wrong)


@pytest.mark.parametrize(
    "argument", ["fetch_max_wait_ms", "fetch_min_bytes", "session_timeout_ms", "max_poll_interval_ms"]
)
def test_a_number_too_large_for_the_protocol_is_refused_immediately(argument: str) -> None:
    wrong: Any = {argument: 1 << 40}
    with pytest.raises(InvalidArgumentError, match=f"^{argument} must be at most"):
        Consumer("t", group_id="g", **wrong)


async def test_a_wrong_offset_or_count_does_not_stop_the_consumer(cluster: FakeCluster) -> None:
    cluster.create_topic("t")
    partition = TopicPartition("t", 0)
    wrong: Any
    async with Consumer("t", bootstrap_servers=cluster.bootstrap_servers) as consumer:
        for wrong in (1.5, "5", True):
            with pytest.raises(TypeError, match=r"^offset must be a whole number"):
                await consumer.seek(partition, wrong)
            with pytest.raises(TypeError, match=r"^max_records must be a"):
                await consumer.getmany(max_records=wrong)
        with pytest.raises(TypeError, match=r"^times_ms must be a whole number"):
            wrong = 1.5
            await consumer.offsets_for_times({partition: wrong})
        with pytest.raises(InvalidArgumentError, match=r"^offset must be at most"):
            await consumer.seek(partition, 1 << 70)
        with pytest.raises(InvalidArgumentError, match=r"^timeout_ms .*nan"):
            await consumer.getmany(timeout_ms=float("nan"))
        assert await consumer.getmany() == {}


async def test_a_wrong_number_in_a_call_is_refused_with_the_name_of_its_argument(cluster: FakeCluster) -> None:
    cluster.create_topic("t")
    partition = TopicPartition("t", 0)
    async with Consumer("t", bootstrap_servers=cluster.bootstrap_servers, group_id=None) as consumer:
        with pytest.raises(InvalidArgumentError, match=r"^timeout_ms .*-1"):
            await consumer.getmany(timeout_ms=-1)
        with pytest.raises(InvalidArgumentError, match=r"^max_records .*0"):
            await consumer.getmany(max_records=0)
        with pytest.raises(InvalidArgumentError, match=r"^offset .*-1.*seek_to_beginning"):
            await consumer.seek(partition, -1)
        with pytest.raises(InvalidArgumentError, match=r"^times_ms .*-7 for t/0"):
            await consumer.offsets_for_times({partition: -7})
    async with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        with pytest.raises(InvalidArgumentError, match=r"^time_ms .*-1"):
            await admin.reset_group_offsets("g", time_ms=-1)
        with pytest.raises(InvalidArgumentError, match=r"^before_offsets: -5"):
            await admin.delete_records({partition: -5})


async def test_iterating_without_an_assignment_is_refused_but_getmany_is_not(cluster: FakeCluster) -> None:
    async with Consumer(bootstrap_servers=cluster.bootstrap_servers) as consumer:
        assert await consumer.getmany() == {}
        with pytest.raises(InvalidArgumentError, match="nothing is assigned"):
            async with asyncio.timeout(5):
                await anext(consumer)


@pytest.mark.parametrize("kind", [Producer, Consumer, Admin])
async def test_an_unclosed_client_warns(cluster: FakeCluster, kind: type[Producer | Consumer | Admin]) -> None:
    async with kind(bootstrap_servers=cluster.bootstrap_servers) as client:
        with pytest.warns(ResourceWarning, match=f"unclosed .*{kind.__name__} .*use async with, or close"):
            client.__del__()  # the interpreter calls it for a client that was not closed
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        client.__del__()  # now it is closed
        kind(bootstrap_servers=cluster.bootstrap_servers).__del__()  # this one was never opened


@pytest.mark.parametrize("kind", [Producer, Consumer, Admin])
async def test_an_unclosed_client_warns_while_its_tasks_still_run(
    cluster: FakeCluster, kind: type[Producer | Consumer | Admin]
) -> None:
    async def open_client() -> None:
        await kind(bootstrap_servers=cluster.bootstrap_servers).start()

    async def forget() -> None:
        await open_client()
        for _ in range(5):  # pending callbacks of the loop may refer to the client
            await asyncio.sleep(0)
            gc.collect()

    with pytest.warns(ResourceWarning, match=f"unclosed .*{kind.__name__} "):
        await forget()


async def test_crc32_treats_an_empty_key_as_missing_and_murmur2_does_not(cluster: FakeCluster) -> None:
    """Source: librdkafka's consistent_random scatters empty keys like missing ones. The Java client hashes them."""
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


async def test_an_unanswered_call_names_the_address(cluster: FakeCluster) -> None:
    cluster.create_topic("t")
    leader = cluster.brokers[cluster.topics["t"].partitions[0].leader].address
    cluster.append_hook = lambda *_: "swallow"
    async with Producer(bootstrap_servers=cluster.bootstrap_servers, delivery_timeout_ms=300) as producer:
        with pytest.raises(DeliveryTimeoutError, match=leader) as caught:
            await producer.send_and_wait("t", b"x")
    assert caught.value.address == leader


async def test_a_refusal_names_the_address_of_the_broker_that_refused(cluster: FakeCluster) -> None:
    cluster.create_topic("t")
    leader = cluster.brokers[cluster.topics["t"].partitions[0].leader].address
    cluster.append_hook = lambda *_: detail(pb.PRODUCER_FENCED, "of an older epoch")
    async with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        with pytest.raises(ProducerFencedError, match=f"{leader}: t/0: of an older epoch") as caught:
            await producer.send_and_wait("t", b"x")
    assert caught.value.address == leader
