from __future__ import annotations

import pytest
from raftmq import errors
from raftmq.client.admin.admin import Admin
from raftmq.client.admin.cluster_health import PartitionState
from raftmq.client.admin.descriptions import NewTopic
from raftmq.client.codec.batch import encode_body
from raftmq.client.producer.producer import Producer
from raftmq.proto import queue_pb2 as pb
from raftmq.types import TopicPartition

from tests.support.client.fake_broker import FakeBroker, FakeCluster, abort, detail
from tests.support.client.memory_transport import MemoryTransport


async def test_topics_are_created_changed_listed_and_deleted(cluster: FakeCluster):
    async with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        made = await admin.create_topic("t", partitions=3, replication_factor=1, config={"a": "1"})
        assert (made.name, len(made.partitions), made.config) == ("t", 3, {"a": "1"})
        with pytest.raises(errors.TopicAlreadyExistsError):
            await admin.create_topic("t")
        again = await admin.create_topic("t", partitions=9, if_not_exists=True)
        assert (again.topic_id, len(again.partitions)) == (made.topic_id, 3)
        await admin.alter_topic_config("t", set={"b": "2"}, unset=["a"])
        found = await admin.describe_topic("t")
        assert found.config == {"b": "2"}
        assert found.effective_config == {"b": "2", "retention_ms": "-1"}
        assert [p.leader_broker_id for p in found.partitions] == [1, 2, 1]
        grown = await admin.add_partitions("t", 4)
        assert len(grown.partitions) == 4
        with pytest.raises(errors.InvalidPartitionsError):
            await admin.add_partitions("t", 2)
        await admin.create_topic("a")
        assert [topic.name for topic in await admin.list_topics()] == ["a", "t"]
        await admin.delete_topic("t")
        for call in (admin.delete_topic("t"), admin.describe_topic("t"), admin.alter_topic_config("t", {"x": "1"})):
            with pytest.raises(errors.UnknownTopicError):
                await call


async def test_topics_tell_whether_they_may_be_older_than_the_last_changes(cluster: FakeCluster):
    async with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        await admin.create_topic("t")
        for is_unconfirmed in (False, True):
            cluster.is_unconfirmed = is_unconfirmed
            assert (await admin.describe_topic("t")).is_unconfirmed == is_unconfirmed
            assert [topic.is_unconfirmed for topic in await admin.list_topics()] == [is_unconfirmed]


async def test_many_topics_are_created_in_one_call(cluster: FakeCluster):
    async with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        wanted = [NewTopic(f"t{number}", partitions=number, config={"a": number}) for number in range(1, 41)]
        made = await admin.create_topics(wanted)
        assert list(made) == [topic.name for topic in wanted]
        assert [len(topic.partitions) for topic in made.values()] == list(range(1, 41))
        assert made["t7"].config == {"a": "7"}
        assert len(await admin.list_topics()) == 40
        again = await admin.create_topics([NewTopic("t1", 9), NewTopic("new")], if_not_exists=True)
        assert [len(topic.partitions) for topic in again.values()] == [1, 1]
        assert await admin.create_topics([]) == {}


async def test_create_topics_creates_all_valid_topics_and_names_the_others(cluster: FakeCluster):
    async with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        await admin.create_topics([NewTopic("b"), NewTopic("d")])
        with pytest.raises(errors.TopicAlreadyExistsError) as caught:
            await admin.create_topics([NewTopic(name) for name in "abcde"])
        (note,) = caught.value.__notes__
        assert note.startswith("2 of 5 topics were not created: b (TopicAlreadyExistsError), d (")
        assert [topic.name for topic in await admin.list_topics()] == ["a", "b", "c", "d", "e"]


async def test_create_topics_creates_nothing_if_an_argument_is_wrong(cluster: FakeCluster):
    async with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        with pytest.raises(errors.InvalidArgumentError, match="'a' more than once"):
            await admin.create_topics([NewTopic("a"), NewTopic("b"), NewTopic("a")])
        with pytest.raises(errors.InvalidArgumentError, match="partitions must be positive, not 0"):
            await admin.create_topics([NewTopic("a"), NewTopic("b", partitions=0)])
        for wrong in (["a"], [NewTopic(5)]):
            with pytest.raises(TypeError):
                await admin.create_topics(wrong)
        assert await admin.list_topics() == []


@pytest.mark.parametrize("code", [pb.UNKNOWN_TOPIC, pb.INVALID_ARGUMENT])
async def test_a_successful_change_is_not_reported_as_refused_if_the_description_after_it_fails(monkeypatch, code: int):
    """`create_topic` and `add_partitions` once raised the error of the description that follows a successful change.

    An example is `UnknownTopicError` after a concurrent deletion, whose outcome would say that nothing was applied.
    """

    async def refuse(broker, request, context):
        await abort(context, detail(code))

    monkeypatch.setattr(FakeBroker, "DescribeTopic", refuse)
    transport = MemoryTransport(FakeCluster())
    async with Admin(bootstrap_servers=transport.addresses, transport=transport) as admin:
        made = await admin.create_topic("t", partitions=2)
        assert (made.name, len(made.partitions), made.effective_config) == ("t", 2, None)
        assert len((await admin.add_partitions("t", 3)).partitions) == 3
        with pytest.raises(errors.RaftMQError):
            await admin.describe_topic("t")


async def test_records_are_deleted_at_their_leaders(cluster: FakeCluster):
    cluster.create_topic("t", partitions=2)
    partitions = [TopicPartition("t", n) for n in range(2)]
    async with (
        Admin(bootstrap_servers=cluster.bootstrap_servers) as admin,
        Producer(bootstrap_servers=cluster.bootstrap_servers) as producer,
    ):
        for partition in partitions:
            await (await producer.send_many("t", [(None, b"x")] * 10, partition=partition.partition))
        assert await admin.delete_records({partitions[0]: 4, partitions[1]: -1}) == {
            partitions[0]: 4,
            partitions[1]: 10,
        }


async def test_repeating_delete_all_after_a_lost_answer_keeps_newer_records(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
):
    """A client that repeated the request with -1 would delete records that were written in between."""
    cluster.create_topic("t")
    partition = cluster.topics["t"].partitions[0]
    partition.append(encode_body([b"old"] * 10, None, 1).seal(), 1)
    broker = cluster.brokers[1]
    delete = broker.DeleteRecords
    requests: list[list[int]] = []

    async def lose_the_first_answer(request, context):
        requests.append([part.before_offset for part in request.partitions])
        if len(requests) == 1:
            partition.append(encode_body([b"new"] * 5, None, 1).seal(), 1)
            await abort(context, detail(pb.REQUEST_TIMED_OUT))
        return await delete(request, context)

    monkeypatch.setattr(broker, "DeleteRecords", lose_the_first_answer)
    await broker.stop()
    await broker.start()  # its methods are looked up when it starts
    async with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        starts = await admin.delete_records({TopicPartition("t", 0): -1})
    assert requests == [[10], [10]]
    assert starts == {TopicPartition("t", 0): 10}
    assert (partition.log_start, partition.end) == (10, 15)


@pytest.mark.parametrize("offset", [-1, 4])
async def test_a_deletion_of_records_spares_a_topic_that_was_created_again(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, offset: int
):
    """While the request is repeated, the topic is deleted and created again, with more records than before."""
    cluster.create_topic("t")
    cluster.topics["t"].partitions[0].append(encode_body([b"old"] * 10, None, 1).seal(), 1)
    asked: list[int] = []

    async def lose_the_first_answer(broker, request, context):
        asked.extend(part.topic_id for part in request.partitions)
        if len(asked) == 1:
            cluster.delete_topic("t")
            cluster.create_topic("t")
            cluster.topics["t"].partitions[0].append(encode_body([b"new"] * 20, None, 1).seal(), 1)
            await abort(context, detail(pb.REQUEST_TIMED_OUT))
        return await delete(broker, request, context)

    delete = FakeBroker.DeleteRecords
    monkeypatch.setattr(FakeBroker, "DeleteRecords", lose_the_first_answer)
    transport = MemoryTransport(cluster)
    async with Admin(bootstrap_servers=transport.addresses, transport=transport) as admin:
        with pytest.raises(errors.UnknownPartitionError, match="created again"):
            await admin.delete_records({TopicPartition("t", 0): offset})
    assert len(asked) == 1
    assert cluster.topics["t"].partitions[0].log_start == 0


async def test_a_deletion_of_records_spares_those_after_a_recovery(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
):
    """Records that were written after a loss may have the offsets of those that were to be deleted."""
    cluster.create_topic("t")
    partition = cluster.topics["t"].partitions[0]
    partition.append(encode_body([b"old"] * 10, None, 1).seal(), 1)
    delete = FakeBroker.DeleteRecords

    async def lose_the_first_answer(broker, request, context):
        if partition.group_id < 1000:
            partition.group_id += 1000
            cluster.changed()
            await abort(context, detail(pb.REQUEST_TIMED_OUT))
        return await delete(broker, request, context)

    monkeypatch.setattr(FakeBroker, "DeleteRecords", lose_the_first_answer)
    transport = MemoryTransport(cluster)
    async with Admin(bootstrap_servers=transport.addresses, transport=transport) as admin:
        with pytest.raises(errors.FailedPreconditionError, match="was recovered"):
            await admin.delete_records({TopicPartition("t", 0): -1})
    assert partition.log_start == 0


@pytest.mark.parametrize(
    ("refused", "leaderless", "outcome"),
    [
        ({1}, 0, errors.Outcome.UNKNOWN),
        ({0, 1}, 0, errors.Outcome.NOT_APPLIED),
        (set(), 1, errors.Outcome.UNKNOWN),
        ({0}, 1, errors.Outcome.NOT_APPLIED),
    ],
)
async def test_the_outcome_of_a_deletion_of_records_is_unknown_if_a_partition_was_trimmed(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, refused: set[int], leaderless: int, outcome: errors.Outcome
):
    """It was that of the refused partition: nothing was applied."""
    cluster.create_topic("t", partitions=2)
    if leaderless:
        cluster.move_leader("t", leaderless, 0)

    async def answer(broker, request, context):
        response = pb.DeleteRecordsResponse()
        for wanted in request.partitions:
            result = response.partitions.add(topic_id=wanted.topic_id, partition=wanted.partition, log_start_offset=0)
            if wanted.partition in refused:
                result.error.CopyFrom(detail(pb.INVALID_ARGUMENT))
        return response

    monkeypatch.setattr(FakeBroker, "DeleteRecords", answer)
    transport = MemoryTransport(cluster)
    async with Admin(bootstrap_servers=transport.addresses, transport=transport, request_timeout_ms=500) as admin:
        with pytest.raises(errors.RaftMQError) as raised:
            await admin.delete_records({TopicPartition("t", 0): 0, TopicPartition("t", 1): 0})
    assert raised.value.outcome is outcome


async def test_a_deletion_of_records_is_in_doubt_after_a_lost_answer(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
):
    """The repetition was refused for sure, but not the first attempt."""
    cluster.create_topic("t")
    codes = [pb.REQUEST_TIMED_OUT, pb.INVALID_ARGUMENT]

    async def answer(broker, request, context):
        await abort(context, detail(codes.pop(0)))

    monkeypatch.setattr(FakeBroker, "DeleteRecords", answer)
    transport = MemoryTransport(cluster)
    async with Admin(bootstrap_servers=transport.addresses, transport=transport) as admin:
        with pytest.raises(errors.InvalidArgumentError) as raised:
            await admin.delete_records({TopicPartition("t", 0): 0})
    assert raised.value.outcome is errors.Outcome.UNKNOWN


async def test_the_cluster_is_described(cluster: FakeCluster):
    cluster.create_topic("t", partitions=2)
    async with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        found = await admin.describe_cluster()
    assert (found.cluster_id, found.topic_count, found.partition_count) == ("fake-cluster", 1, 2)
    assert [broker.broker_id for broker in found.brokers] == [1, 2]


async def test_ask_brokers_adds_the_health_of_the_brokers_that_answer(cluster: FakeCluster, monkeypatch):
    cluster.create_topic("t", partitions=2)
    some = pb.PartitionNames(count=7, first=[pb.PartitionName(topic="t", partition=1)])
    describe = FakeBroker.DescribeCluster

    async def with_health(broker, request, context):
        answer = await describe(broker, request, context)
        if request.with_health:
            answer.brokers[0].health.CopyFrom(pb.BrokerHealth(not_ready=["joining: x"], quarantined=some))
            answer.health.CopyFrom(pb.ClusterHealth(unknown=some, metadata_voters_behind=[2], is_metadata_led=True))
        return answer

    monkeypatch.setattr(FakeBroker, "DescribeCluster", with_health)
    transport = MemoryTransport(cluster)
    async with Admin(bootstrap_servers=transport.addresses, transport=transport) as admin:
        plain = await admin.describe_cluster()
        assert plain.health is None
        assert [broker.health for broker in plain.brokers] == [None, None]
        found = await admin.describe_cluster(ask_brokers=True)
    assert found.health is not None
    assert (found.health.unknown.count, found.health.unknown.first) == (7, (TopicPartition("t", 1),))
    assert (found.health.metadata_voters_behind, found.health.is_metadata_led) == ((2,), True)
    first, second = found.brokers
    assert first.health is not None
    assert (first.health.not_ready, first.health.quarantined.count) == (("joining: x",), 7)
    assert second.health is None


async def test_ask_leaders_adds_the_state_of_partitions_whose_leader_answers(cluster: FakeCluster, monkeypatch):
    cluster.create_topic("t", partitions=2)
    describe = FakeBroker.DescribeTopic

    async def with_states(broker, request, context):
        answer = await describe(broker, request, context)
        if request.with_states:
            del answer.states[:]
            answer.states.add(
                partition=0, in_sync_brokers=[1, 2], log_start_offset=3, high_watermark=9, size_bytes=4096
            )
            answer.states.add(partition=1, error=detail(pb.NO_LEADER))
        return answer

    monkeypatch.setattr(FakeBroker, "DescribeTopic", with_states)
    transport = MemoryTransport(cluster)
    async with Admin(bootstrap_servers=transport.addresses, transport=transport) as admin:
        assert [p.state for p in (await admin.describe_topic("t")).partitions] == [None, None]
        first, second = (await admin.describe_topic("t", ask_leaders=True)).partitions
    assert first.state == PartitionState((1, 2), 3, 9, 4096)
    assert second.state is None


async def test_remove_broker_succeeds_or_is_refused_immediately(cluster: FakeCluster):
    async with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        found = await admin.remove_broker(2, force=True)
        assert (found.broker_id, found.replica_count, found.without_majority_count) == (2, 7, 2)
        assert found.without_majority == (TopicPartition("t", 3), TopicPartition("t", 5))
        with pytest.raises(errors.BrokerInUseError) as refused:
            await admin.remove_broker(2)
        assert not refused.value.retriable
        assert refused.value.outcome is errors.Outcome.NOT_APPLIED
        with pytest.raises(errors.UnknownBrokerError):
            await admin.remove_broker(9, force=True)
        with pytest.raises(errors.InvalidArgumentError):
            await admin.remove_broker(0)


async def test_a_topic_is_created_with_its_kind_and_an_existing_one_must_be_of_it(cluster: FakeCluster):
    async with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        assert (await admin.create_topic("t")).kind == "log"
        assert (await admin.create_topic("jobs", kind="queue")).kind == "queue"
        made = await admin.create_topics([NewTopic("jobs", kind="queue"), NewTopic("u")], if_not_exists=True)
        assert {name: topic.kind for name, topic in made.items()} == {"jobs": "queue", "u": "log"}
        with pytest.raises(errors.TopicKindMismatchError, match="topic t exists and is of kind 'log', not 'queue'"):
            await admin.create_topic("t", kind="queue", if_not_exists=True)
        with pytest.raises(errors.TopicAlreadyExistsError):
            await admin.create_topic("t", kind="queue")


async def test_the_feature_level_is_raised_to_the_highest_or_to_a_given_one(cluster: FakeCluster):
    async with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        before = await admin.describe_cluster()
        assert (before.feature_level, before.feature_level_max) == (1, 2)
        assert await admin.raise_feature_level(1) == 1
        assert await admin.raise_feature_level() == 2
        assert (await admin.describe_cluster()).feature_level == 2
        with pytest.raises(errors.UnsupportedVersionError) as refused:
            await admin.raise_feature_level(3)
        assert refused.value.outcome is errors.Outcome.NOT_APPLIED
        with pytest.raises(errors.InvalidArgumentError):
            await admin.raise_feature_level(0)


async def test_a_closed_admin_refuses(cluster: FakeCluster):
    admin = Admin(bootstrap_servers=cluster.bootstrap_servers)
    with pytest.raises(errors.ClosedClientError):
        await admin.list_topics()
    async with admin:
        pass
    with pytest.raises(errors.ClosedClientError):
        await admin.list_topics()
    with pytest.raises(errors.InvalidArgumentError):
        Admin(request_timeout_ms=0)


async def test_a_negative_offset_does_not_delete_everything(cluster: FakeCluster):
    """Programs compute it as ``end - keep`` when there are fewer records than they want to keep. Only -1 means all records."""
    cluster.create_topic("t")
    async with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        with pytest.raises(errors.InvalidArgumentError, match="-5"):
            await admin.delete_records({TopicPartition("t", 0): -5})
