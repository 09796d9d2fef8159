"""A text with a lone surrogate cannot be encoded in UTF-8: each argument that is sent as text refuses it by name.

Such texts come from file names and command lines that are not UTF-8 (`os.fsdecode`), and from careless JSON.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest
from raftmq import serializers
from raftmq.cli.input_records import parse_headers
from raftmq.client.admin.admin import Admin
from raftmq.client.admin.descriptions import NewTopic
from raftmq.client.consumer.consumer import Consumer
from raftmq.client.producer.producer import Producer
from raftmq.client.worker.worker import Worker
from raftmq.errors import InvalidArgumentError
from raftmq.spark.base.options import OptionReader
from raftmq.spark.errors import InvalidOptionError
from raftmq.types import TopicPartition

from tests.support.client.fake_broker import FakeCluster
from tests.support.client.memory_transport import MemoryTransport

BAD = "caf\udce9"
CRON = "* * * * *"
PARTITION = TopicPartition(BAD, 0)


def handle(record: object) -> None:
    """Do nothing, as a worker's handler."""


CONSTRUCTORS: Mapping[str, Callable[[], object]] = {
    "Admin.cluster_id": lambda: Admin(cluster_id=BAD),
    "Producer.cluster_id": lambda: Producer(cluster_id=BAD),
    "Consumer.cluster_id": lambda: Consumer(cluster_id=BAD),
    "Admin.client_id": lambda: Admin(client_id=BAD),
    "Admin.bootstrap_servers": lambda: Admin(bootstrap_servers=f"{BAD}:1"),
    "Producer.client_id": lambda: Producer(client_id=BAD),
    "Producer.bootstrap_servers": lambda: Producer(bootstrap_servers=f"{BAD}:1"),
    "Producer.producer_name": lambda: Producer(producer_name=BAD),
    "Consumer.topics": lambda: Consumer("good", BAD),
    "Consumer.bootstrap_servers": lambda: Consumer(bootstrap_servers=f"{BAD}:1"),
    "Consumer.group_id": lambda: Consumer(group_id=BAD),
    "Consumer.group_instance_id": lambda: Consumer(group_id="g", group_instance_id=BAD),
    "Consumer.client_id": lambda: Consumer(client_id=BAD),
    "Consumer.assignor": lambda: Consumer(group_id="g", assignor=BAD),
    "Consumer.rack": lambda: Consumer(group_id="g", rack=BAD),
    "Worker.topic": lambda: Worker(BAD, "g", handle),
    "Worker.group_id": lambda: Worker("t", BAD, handle),
    "Worker.dead_letter_topic": lambda: Worker("t", "g", handle, dead_letter_topic=BAD),
    "Worker.bootstrap_servers": lambda: Worker("t", "g", handle, bootstrap_servers=f"{BAD}:1"),
    "Worker.client_id": lambda: Worker("t", "g", handle, client_id=BAD),
    "Worker.group_instance_id": lambda: Worker("t", "g", handle, group_instance_id=BAD),
    "Worker.assignor": lambda: Worker("t", "g", handle, assignor=BAD),
    "Worker.rack": lambda: Worker("t", "g", handle, rack=BAD),
}
ADMIN_CALLS: Mapping[str, Callable[[Admin], Awaitable[object]]] = {
    "pause_schedule.topic": lambda admin: admin.pause_schedule(BAD, "s"),
    "pause_schedule.name": lambda admin: admin.pause_schedule("q", BAD),
    "resume_schedule.topic": lambda admin: admin.resume_schedule(BAD, "s"),
    "resume_schedule.name": lambda admin: admin.resume_schedule("q", BAD),
    "run_schedule.topic": lambda admin: admin.run_schedule(BAD, "s"),
    "run_schedule.name": lambda admin: admin.run_schedule("q", BAD),
    "delete_schedule.topic": lambda admin: admin.delete_schedule(BAD, "s"),
    "delete_schedule.name": lambda admin: admin.delete_schedule("q", BAD),
    "move_partition.topic": lambda admin: admin.move_partition(BAD, 0, [1]),
    "unpin_partition.topic": lambda admin: admin.unpin_partition(BAD, 0),
    "transfer_leader.topic": lambda admin: admin.transfer_leader(BAD, 0),
    "list_lost_partitions.topic": lambda admin: admin.list_lost_partitions(BAD),
    "recover_partition.topic": lambda admin: admin.recover_partition(BAD, 0, 1, unsafe=True),
    "set_replication_factor.topic": lambda admin: admin.set_replication_factor(BAD, 3),
    "list_schedules.topic": lambda admin: admin.list_schedules(BAD),
    "put_schedule.topic": lambda admin: admin.put_schedule(BAD, "s", b"", cron=CRON),
    "put_schedule.name": lambda admin: admin.put_schedule("q", BAD, b"", cron=CRON),
    "put_schedule.cron": lambda admin: admin.put_schedule("q", "s", b"", cron=f"* * * * {BAD}"),
    "put_schedule.timezone": lambda admin: admin.put_schedule("q", "s", b"", cron=CRON, timezone=BAD),
    "put_schedule.key": lambda admin: admin.put_schedule("q", "s", b"", cron=CRON, key=BAD),
    "put_schedule.tenant": lambda admin: admin.put_schedule("q", "s", b"", cron=CRON, tenant=BAD),
    "put_schedule.headers": lambda admin: admin.put_schedule("q", "s", b"", cron=CRON, headers=[(BAD, b"")]),
    "create_topic.name": lambda admin: admin.create_topic(BAD),
    "create_topic.kind": lambda admin: admin.create_topic("t", kind=BAD),
    "create_topic.config": lambda admin: admin.create_topic("t", config={"a": BAD}),
    "create_topics.topics": lambda admin: admin.create_topics([NewTopic(BAD)]),
    "create_topic.config key": lambda admin: admin.create_topic("t", config={BAD: "a"}),
    "delete_topic.name": lambda admin: admin.delete_topic(BAD),
    "describe_topic.name": lambda admin: admin.describe_topic(BAD),
    "alter_topic_config.name": lambda admin: admin.alter_topic_config(BAD, set={"a": "b"}),
    "alter_topic_config.set": lambda admin: admin.alter_topic_config("t", set={"a": BAD}),
    "alter_topic_config.unset": lambda admin: admin.alter_topic_config("t", unset=[BAD]),
    "alter_config.set": lambda admin: admin.alter_config({"log_level": BAD}),
    "alter_config.unset": lambda admin: admin.alter_config(unset=[BAD]),
    "add_partitions.name": lambda admin: admin.add_partitions(BAD, 3),
    "delete_records.before_offsets": lambda admin: admin.delete_records({PARTITION: 1}),
    "describe_group.group": lambda admin: admin.describe_group(BAD),
    "forget_producer_names.prefix": lambda admin: admin.forget_producer_names(prefix=BAD, unused_seconds=1),
    "reset_group_offsets.group": lambda admin: admin.reset_group_offsets(BAD, to="latest", topics=["t"]),
    "reset_group_offsets.topics": lambda admin: admin.reset_group_offsets("g", to="latest", topics=[BAD]),
    "reset_group_offsets.partitions": lambda admin: admin.reset_group_offsets("g", to="latest", partitions=[PARTITION]),
    "reset_group_offsets.offsets": lambda admin: admin.reset_group_offsets("g", offsets={PARTITION: 1}),
    "delete_group.group": lambda admin: admin.delete_group(BAD),
    "remove_group_member.group": lambda admin: admin.remove_group_member(BAD, member_id="m"),
    "remove_group_member.member_id": lambda admin: admin.remove_group_member("g", member_id=BAD),
    "remove_group_member.instance_id": lambda admin: admin.remove_group_member("g", instance_id=BAD),
}
PRODUCER_CALLS: Mapping[str, Callable[[Producer], Awaitable[object]]] = {
    "send.topic": lambda producer: producer.send(BAD, b"v"),
    "send.headers": lambda producer: producer.send("t", b"v", headers=[(BAD, b"v")]),
    "send_and_wait.topic": lambda producer: producer.send_and_wait(BAD, b"v"),
    "send_many.topic": lambda producer: producer.send_many(BAD, [(None, b"v")]),
    "send_many.records": lambda producer: producer.send_many("t", [(None, b"v", [(BAD, b"v")])]),
}
CONSUMER_CALLS: Mapping[str, Callable[[Consumer], Awaitable[object]]] = {
    "partition_count.topic": lambda consumer: consumer.partition_count(BAD),
    "beginning_offsets.partitions": lambda consumer: consumer.beginning_offsets([PARTITION]),
    "end_offsets.partitions": lambda consumer: consumer.end_offsets([PARTITION]),
    "offsets_for_times.times_ms": lambda consumer: consumer.offsets_for_times({PARTITION: 1}),
    "committed.partitions": lambda consumer: consumer.committed(PARTITION),
    "commit.offsets": lambda consumer: consumer.commit({PARTITION: 1}),
}


@pytest.mark.parametrize("name", CONSTRUCTORS)
async def test_constructors_refuse_a_lone_surrogate(name: str) -> None:
    argument = name.partition(".")[2]
    with pytest.raises(InvalidArgumentError, match=argument.removesuffix("s")):
        CONSTRUCTORS[name]()


@pytest.mark.parametrize("name", ADMIN_CALLS)
async def test_the_admin_refuses_a_lone_surrogate(name: str) -> None:
    transport = MemoryTransport(FakeCluster())
    async with Admin(bootstrap_servers=transport.addresses, transport=transport) as admin:
        await admin.create_topic("t")
        transport.cluster.create_queue("q")
        with pytest.raises(InvalidArgumentError, match="surrogate"):
            await ADMIN_CALLS[name](admin)


@pytest.mark.parametrize("name", PRODUCER_CALLS)
async def test_the_producer_refuses_a_lone_surrogate_and_continues(name: str) -> None:
    transport = MemoryTransport(FakeCluster())
    transport.cluster.create_topic("t")
    async with Producer(bootstrap_servers=transport.addresses, transport=transport) as producer:
        with pytest.raises(InvalidArgumentError, match="surrogate"):
            await PRODUCER_CALLS[name](producer)
        await producer.send_and_wait("t", b"v")


@pytest.mark.parametrize("name", CONSUMER_CALLS)
async def test_the_consumer_refuses_a_lone_surrogate(name: str) -> None:
    transport = MemoryTransport(FakeCluster())
    async with Consumer(bootstrap_servers=transport.addresses, transport=transport, group_id="g") as consumer:
        with pytest.raises(InvalidArgumentError, match="surrogate"):
            await CONSUMER_CALLS[name](consumer)


def test_topics_patterns_and_partitions_with_a_lone_surrogate_are_refused() -> None:
    consumer = Consumer(group_id="g")
    for subscribe in (
        lambda: consumer.subscribe([BAD]),
        lambda: consumer.subscribe(pattern=BAD),
        lambda: consumer.assign([PARTITION]),
    ):
        with pytest.raises(InvalidArgumentError, match="surrogate"):
            subscribe()


@pytest.mark.parametrize(
    "serializer", [serializers.String(), serializers.Json(), serializers.MessagePack(), serializers.String("latin-1")]
)
def test_serializers_refuse_a_lone_surrogate_without_quoting_the_value(serializer: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="position 3") as refused:
        serializer.serialize(BAD)
    assert "caf" not in str(refused.value)


def test_the_command_and_the_connector_refuse_a_lone_surrogate() -> None:
    with pytest.raises(ValueError, match="not UTF-8"):
        parse_headers([f"{BAD}=value"])
    assert parse_headers([f"name={BAD}"]) == (("name", b"caf\xe9"),)
    with pytest.raises(InvalidOptionError, match=r"topic .* surrogate"):
        OptionReader({"topic": BAD}).text("topic")


def _texts_of(function: Callable[..., object]) -> set[str]:
    """Return the parameters of a function that accept texts, alone or in a collection, or partitions, which contain a topic's name."""
    hints = typing.get_type_hints(function)
    return {
        name
        for name in inspect.signature(function).parameters
        if name in hints and any(kind in str(hints[name]) for kind in ("str", "TopicPartition"))
    }


CHOICES = {"compression_type", "partitioner", "auto_offset_reset", "ordering", "executor", "to", "handler", "records"}
"""Arguments with a few valid words, which are checked as such. They are not sent as text."""
OF_ASSIGNED_PARTITIONS = {
    *("getmany", "highwater", "lag", "pause", "resume", "position"),
    *("seek", "seek_to_beginning", "seek_to_committed", "seek_to_end"),
}
"""Methods that accept only assigned partitions, which were checked before."""
SAME_AS_ANOTHER = {
    "send_and_wait.headers",
    "commit_nowait.offsets",
    "assign.partitions",
    "subscribe.topics",
    "subscribe.pattern",
}


def test_every_text_argument_of_a_client_is_tested() -> None:
    tried = {name.partition(" ")[0] for name in (*CONSTRUCTORS, *ADMIN_CALLS, *PRODUCER_CALLS, *CONSUMER_CALLS)}
    left_out = set()
    for kind in (Admin, Producer, Consumer, Worker):
        for name, function in inspect.getmembers(kind, inspect.isfunction):
            if (name.startswith("_") and name != "__init__") or name in OF_ASSIGNED_PARTITIONS:
                continue
            owner = kind.__name__ if name == "__init__" else name
            left_out |= {f"{owner}.{one}" for one in _texts_of(function) - CHOICES} - tried
    assert left_out - SAME_AS_ANOTHER == set()
