from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from functools import partial
from typing import Any

import pytest
from raftmq import errors
from raftmq.client.admin.admin import Admin
from raftmq.client.base import settings
from raftmq.client.connection.addresses import parse_addresses
from raftmq.client.connection.append_stream import SerializedAppend
from raftmq.client.connection.resolver import Leader, Resolver
from raftmq.client.connection.transport import (
    GrpcConnection,
    GrpcTransport,
    unreachable_reason,
)
from raftmq.client.consumer.consumer import Consumer
from raftmq.client.producer.producer import Producer
from raftmq.methods import DESCRIBE_CLUSTER, POLL
from raftmq.proto import queue_pb2 as pb
from raftmq.types import METADATA_GROUP_ID

from tests.support.client.fake_broker import FakeBroker, FakeCluster, topic_message


async def started(cluster: FakeCluster, *extra: str) -> Resolver:
    resolver = Resolver([*extra, *cluster.bootstrap_servers.split(",")], GrpcTransport())
    await resolver.start(10)
    return resolver


async def wait_until(resolver: Resolver, condition) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await resolver.wait_change(1)


def knows_leader(resolver: Resolver, leader: Leader) -> bool:
    return resolver.leader(METADATA_GROUP_ID) == leader


async def test_the_topology_is_followed(cluster: FakeCluster):
    topic = cluster.create_topic("t", partitions=2)
    resolver = await started(cluster)
    info = await resolver.topic("t", 1)
    assert (info.topic_id, info.partition_count) == (topic.topic_id, 2)
    assert resolver.leader(info.group_ids[1]) == Leader(2, 1)
    cluster.move_leader("t", 1, broker=1)
    await wait_until(resolver, lambda: resolver.leader(info.group_ids[1]) == Leader(1, 2))
    assert resolver.metadata_revision == cluster.revision
    cluster.delete_topic("t")
    await wait_until(resolver, lambda: "t" not in resolver.topics)
    with pytest.raises(errors.UnknownTopicError):
        await resolver.topic("t", 1)
    await resolver.close()


async def test_an_unknown_partition_is_looked_up(cluster: FakeCluster):
    older = topic_message(cluster.create_topic("t", partitions=2))
    resolver = await started(cluster)
    async with cluster.silence():
        cluster.add_partitions("t", 3)
        assert (await resolver.topic("t", 1, partition=1)).partition_count == 2  # as known: nobody was asked
        assert (await resolver.topic("t", 1, partition=2)).partition_count == 3
        assert (await resolver.topic("t", 1, partition=9)).partition_count == 3  # certain: there is none
        resolver.record_topic(older)  # an answer that was under way
        assert resolver.topics["t"].partition_count == 3
    await resolver.close()


@pytest.mark.parametrize("client", [Producer, Consumer, Admin])
async def test_only_the_requested_cluster_is_used(cluster: FakeCluster, client):
    """If a second cluster was formed by mistake, it is refused even if it answers first."""
    stranger = client(bootstrap_servers=cluster.bootstrap_servers, cluster_id="another", **patience(client))
    with pytest.raises(errors.RaftMQError, match="every address must belong to one cluster"):
        await stranger.start()
    async with client(bootstrap_servers=cluster.bootstrap_servers, cluster_id="fake-cluster", **patience(client)):
        pass


def patience(client) -> dict[str, float]:
    """Return how long a client tries to start."""
    return {"max_block_ms" if client is Producer else "request_timeout_ms": 10_000}


async def test_dead_bootstrap_addresses_are_skipped(cluster: FakeCluster):
    resolver = await started(cluster, "127.0.0.1:1", "127.0.0.1:2")
    assert resolver.cluster_id == "fake-cluster"
    await resolver.close()


async def test_the_watch_moves_to_another_node_when_its_own_dies(cluster: FakeCluster):
    cluster.create_topic("t")
    resolver = await started(cluster)
    watched = next(broker for broker in cluster.brokers.values() if broker.address == resolver._watch_address)
    await watched.stop()
    cluster.create_topic("u")
    await wait_until(resolver, lambda: "u" in resolver.topics)
    assert resolver._watch_address != watched.address
    await resolver.close()


async def test_a_suspected_node_is_not_watched_any_more(cluster: FakeCluster):
    resolver = await started(cluster)
    before = resolver._watch_address
    resolver.mark_suspect(before)
    cluster.create_topic("u")
    await wait_until(resolver, lambda: "u" in resolver.topics)
    assert resolver._watch_address != before
    await resolver.close()


async def test_hints_never_lead_back_to_an_older_epoch(cluster: FakeCluster):
    topic = cluster.create_topic("t")
    group = topic.partitions[0].group_id
    resolver = await started(cluster)
    newer = errors.NotLeaderError(leader_broker_id=2, leader_address=cluster.brokers[2].address, leader_epoch=5)
    assert resolver.on_not_leader(group, newer)
    assert resolver.leader(group) == Leader(2, 5)
    older = errors.NotLeaderError(leader_broker_id=1, leader_epoch=4)
    assert not resolver.on_not_leader(group, older)
    assert not resolver.on_not_leader(group, errors.NotLeaderError())
    cluster.changed()  # the table still says epoch 1
    cluster.create_topic("u")
    await wait_until(resolver, lambda: "u" in resolver.topics)
    assert resolver.leader(group) == Leader(2, 5)
    await resolver.close()


async def test_a_broker_that_does_not_hear_the_leader_takes_it_from_nobody(cluster: FakeCluster, monkeypatch):
    """It describes the topic without a leader. When it hears the leader again, no watch says so, because the leader is the same."""
    cluster.create_topic("t")
    resolver = await started(cluster)
    info = await resolver.topic("t", 5)
    (group_id,) = info.group_ids
    known = resolver.leader(group_id)
    assert known is not None

    async def describe(*_: object, **__: object) -> pb.DescribeTopicResponse:
        return answer

    monkeypatch.setattr(resolver, "call_any", describe)
    answer = pb.DescribeTopicResponse(topic=topic_message(cluster.topics["t"]), metadata_revision=cluster.revision)
    answer.leaders.add(group_id=group_id, leader_epoch=known.leader_epoch)
    await resolver.topic("t", 5, is_fresh=True)
    assert resolver.leader(group_id) == known
    answer.leaders[0].leader_epoch += 1
    await resolver.topic("t", 5, is_fresh=True)
    assert resolver.leader(group_id) is None
    await resolver.close()


async def test_the_whole_table_of_a_broker_that_is_behind_takes_no_partition_away(cluster: FakeCluster) -> None:
    """With fewer partitions a producer would put the records of a key into another one for a while."""
    cluster.create_topic("t", partitions=2)
    behind = cluster.table()
    resolver = await started(cluster)
    cluster.add_partitions("t", 3)
    await wait_until(resolver, lambda: resolver.topics["t"].partition_count == 3)
    newest = resolver.topics["t"]
    resolver._apply(behind, cluster.brokers[1].address)
    assert resolver.topics["t"] == newest
    cluster.create_topic("u")
    later = cluster.table()
    del later.topics[0]
    resolver._apply(later, cluster.brokers[1].address)
    assert list(resolver.topics) == ["u"], "a topic that a whole table lacks is gone"
    await resolver.close()


async def test_a_broker_that_is_behind_and_catches_up_takes_nothing_back(cluster: FakeCluster) -> None:
    """Its table lacks a topic, which it describes later: in older states, or after a recovery of which it tells nothing else."""
    cluster.create_topic("t", partitions=2)
    older = topic_message(cluster.topics["t"])
    cluster.add_partitions("t", 3)
    resolver = await started(cluster)
    newest = await resolver.topic("t", 5)
    table = cluster.table()
    table.metadata_revision = 0
    table.ClearField("topics")
    resolver._apply(table, "behind:9400")
    assert resolver.topics == {}
    resolver._apply(pb.TopologyUpdate(topics=[older]), "behind:9400")
    assert resolver.topics["t"] == newest, "the key of a record would belong to another partition"
    resolver._apply(table, "behind:9400")
    recovered = topic_message(cluster.topics["t"])
    recovered.partitions[0].group_id = present = newest.group_ids[-1] + 1
    leader = pb.PartitionLeader(group_id=present, broker_id=1, leader_epoch=1001)
    resolver._apply(pb.TopologyUpdate(topics=[recovered], leaders=[leader]), "behind:9400")
    assert resolver.leader(newest.group_ids[0]) == Leader(1, 1001), "a producer names the group that it knows"
    await resolver.close()


async def test_an_answer_that_was_under_way_brings_no_deleted_topic_back(cluster: FakeCluster, monkeypatch) -> None:
    """Nothing would tell the client of the deletion again, and it would take the brokers that deny the topic for ones that are behind."""
    cluster.create_topic("t")
    resolver = await started(cluster)
    (group_id,) = (await resolver.topic("t", 5)).group_ids
    answer = pb.DescribeTopicResponse(topic=topic_message(cluster.topics["t"]))

    async def describe(*_: object, **__: object) -> pb.DescribeTopicResponse:
        deletion = pb.TopologyUpdate(metadata_revision=99, deleted_topic_ids=[answer.topic.topic_id])
        resolver._apply(deletion, "here:9400")
        return answer

    with monkeypatch.context() as patch, pytest.raises(errors.UnknownTopicError):
        patch.setattr(resolver, "call_any", describe)
        await resolver.topic("t", 5, is_fresh=True)
    assert not resolver.has_partition("t", group_id)
    await resolver.close()


async def test_updates_of_another_cluster_are_ignored(cluster: FakeCluster):
    resolver = await started(cluster)
    cluster.cluster_id = "another"  # both addresses were taken over by another cluster
    cluster.create_topic("theirs")
    await wait_until(resolver, lambda: resolver.failure is not None)
    with pytest.raises(errors.WrongClusterError):
        await resolver.call_any(DESCRIBE_CLUSTER, pb.DescribeClusterRequest(), 1, is_read=True)
    assert "theirs" not in resolver.topics
    await resolver.close()


async def test_a_dead_broker_does_not_hide_that_the_others_belong_to_another_cluster(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
):
    """After the metadata was recovered, all brokers that are left have another cluster id. A consumer would wait without end."""
    monkeypatch.setattr(settings, "OTHER_CLUSTER_SECONDS", 0.5)
    resolver = await started(cluster)
    await cluster.brokers[2].stop()
    cluster.cluster_id = "another"
    cluster.create_topic("theirs")
    lost_at = asyncio.get_running_loop().time()
    await wait_until(resolver, lambda: resolver.failure is not None)
    assert asyncio.get_running_loop().time() - lost_at >= 0.4, "its own brokers may return"
    with pytest.raises(errors.WrongClusterError):
        resolver.check()
    await resolver.close()


async def test_an_address_that_is_the_clusters_own_again_is_used_again(cluster: FakeCluster):
    """A stranger had it for a while; addresses are used again. The client would have been cut off when broker 1 went."""
    resolver = await started(cluster)
    await cluster.brokers[2].stop()
    async with FakeCluster(brokers=0) as strangers:
        strangers.cluster_id = "another"
        stranger = FakeBroker(strangers, 2)
        stranger.port = cluster.brokers[2].port
        await stranger.start()
        while "Watch" not in strangers.clusters_called:
            resolver.mark_suspect(cluster.brokers[1].address)
            await asyncio.sleep(0.01)
        cluster.create_topic("t")
        await wait_until(resolver, lambda: "t" in resolver.topics)
        await stranger.stop()
    await cluster.brokers[2].start()
    await cluster.brokers[1].stop()

    cluster.create_topic("u")
    await wait_until(resolver, lambda: "u" in resolver.topics)
    await resolver.close()


async def test_calls_to_a_broker_of_another_cluster_are_refused(cluster: FakeCluster):
    """Another cluster has topics with the same ids. It would accept records, which would be lost, and return records of other topics."""
    topic = cluster.create_topic("t")
    resolver = await started(cluster)
    connection = resolver.connection(cluster.brokers[topic.partitions[0].leader].address)
    poll = pb.PollRequest(partitions=[pb.PartitionPoll(topic_id=topic.topic_id, max_bytes=1000)], max_bytes=1000)
    append = SerializedAppend(1, 5000, pb.AppendRequest(correlation_id=1).SerializeToString())
    await connection.call(POLL, poll, 5)
    answers: asyncio.Queue[pb.AppendResponse | errors.RaftMQError] = asyncio.Queue()
    stream = connection.append_stream(answers.put_nowait, answers.put_nowait, lambda: None)
    stream.write(append)
    answer = await answers.get()
    assert isinstance(answer, pb.AppendResponse)
    assert answer.correlation_id == 1
    assert {cluster.clusters_called[name] for name in ("Poll", "AppendStream")} == {cluster.cluster_id}

    cluster.cluster_id = "another"
    with pytest.raises(errors.UnreachableError, match="of another cluster") as raised:
        await connection.call(POLL, poll, 5)
    assert (raised.value.retriable, raised.value.outcome) == (True, errors.Outcome.NOT_APPLIED)
    stream.cancel()
    stream = connection.append_stream(answers.put_nowait, answers.put_nowait, lambda: None)
    stream.write(append)
    error = await answers.get()
    assert isinstance(error, errors.UnreachableError)
    assert "of another cluster" in str(error)
    await resolver.close()


async def test_a_change_with_an_unknown_outcome_is_not_repeated(cluster: FakeCluster):
    resolver = await started(cluster)
    calls = 0

    class Dropping:
        address = "dropping"

        async def call(self, *_: object) -> object:
            nonlocal calls
            calls += 1
            raise errors.BrokenConnectionError("gone")

        async def close(self) -> None: ...

    for address in resolver._candidates():
        resolver._connections[address] = Dropping()  # type: ignore[assignment]
    with pytest.raises(errors.BrokenConnectionError):
        await resolver.call_any(DESCRIBE_CLUSTER, pb.DescribeClusterRequest(), 5)
    assert calls == 1
    with pytest.raises(errors.BrokenConnectionError):
        await resolver.call_any(DESCRIBE_CLUSTER, pb.DescribeClusterRequest(), 0.2, is_read=True)
    assert calls > 2
    await resolver.close()


async def test_the_answer_of_a_broker_is_not_hidden_by_one_that_is_down(cluster: FakeCluster):
    """The last attempt may meet the broker that is down, and its error would not say why the call was refused."""
    resolver = await started(cluster)

    class Answering:
        def __init__(self, address: str, error: type[errors.RaftMQError], text: str) -> None:
            self.address = address
            self._error, self._text = error, text

        async def call(self, *_: object) -> object:
            raise self._error(self._text)

        async def close(self) -> None: ...

    first, second = resolver._candidates()
    for refusing, down in ((first, second), (second, first)):
        for address, error, text in (
            (refusing, errors.ConflictError, "wait until the partition is whole"),
            (down, errors.UnreachableError, "connection refused"),
        ):
            resolver._connections[address] = Answering(address, error, text)  # type: ignore[assignment]
        with pytest.raises(errors.ConflictError, match="wait until the partition is whole"):
            await resolver.call_any(DESCRIBE_CLUSTER, pb.DescribeClusterRequest(), 0.3)
    await resolver.close()


async def test_a_call_that_prefers_the_metadata_leader_goes_there_first_and_elsewhere_if_it_fails(cluster: FakeCluster):
    resolver = await started(cluster)
    asked: list[str] = []

    class Failing:
        def __init__(self, address: str) -> None:
            self.address = address

        async def call(self, *_: object) -> object:
            asked.append(self.address)
            raise errors.UnreachableError("connection refused")

        async def close(self) -> None: ...

    addresses = {broker.broker_id: broker.address for broker in cluster.brokers.values()}
    for epoch, leader in enumerate((2, 1, 2), 2):
        cluster.metadata_leader = pb.PartitionLeader(group_id=METADATA_GROUP_ID, broker_id=leader, leader_epoch=epoch)
        cluster.changed()
        await wait_until(resolver, partial(knows_leader, resolver, Leader(leader, epoch)))
        resolver._connections |= {address: Failing(address) for address in addresses.values()}  # type: ignore[misc]
        asked.clear()
        with pytest.raises(errors.UnreachableError):
            await resolver.call_any(DESCRIBE_CLUSTER, pb.DescribeClusterRequest(), 0.05, prefers_metadata_leader=True)
        assert asked[:2] == [addresses[leader], addresses[3 - leader]]
    await resolver.close()


class Silent:
    """A connection to a broker that is frozen or behind a firewall, or that answers."""

    def __init__(self, address: str, asked: list[str], on_asked: Callable[[str], bool]) -> None:
        self._address, self._asked, self._on_asked = address, asked, on_asked

    async def call(self, *_: object) -> object:
        self._asked.append(self._address)
        if not self._on_asked(self._address):
            raise errors.RequestTimedOutError("no answer")
        return pb.DescribeClusterResponse()

    async def watch(self, _: pb.WatchRequest) -> AsyncGenerator[pb.TopologyUpdate, None]:
        await asyncio.Event().wait()
        yield pb.TopologyUpdate()

    async def close(self) -> None: ...


def connections(addresses: Iterable[str], asked: list[str], on_asked: Callable[[str], bool]) -> dict[str, Any]:
    return {address: Silent(address, asked, on_asked) for address in addresses}


async def test_a_call_asks_every_broker_before_it_asks_one_again_even_if_the_metadata_leader_changes():
    async with FakeCluster(brokers=3) as cluster:
        resolver = await started(cluster)
        addresses = {broker.broker_id: broker.address for broker in cluster.brokers.values()}
        frozen = next(id_ for id_, address in addresses.items() if address == resolver._watch_address)
        successor = next(id_ for id_ in addresses if id_ != frozen)
        asked: list[str] = []

        def on_asked(address: str) -> bool:
            resolver._learn_leader(METADATA_GROUP_ID, Leader(successor, 9))  # elected in the meantime
            return address != addresses[frozen]

        resolver._learn_leader(METADATA_GROUP_ID, Leader(frozen, 8))
        resolver._connections |= connections(addresses.values(), asked, on_asked)
        request = pb.DescribeClusterRequest()
        await resolver.call_any(DESCRIBE_CLUSTER, request, 5, is_read=True, prefers_metadata_leader=True)
        assert asked == [addresses[frozen], addresses[successor]]
        await resolver.close()


async def test_a_metadata_leader_that_does_not_answer_is_not_asked_first_again_for_a_while(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
):
    resolver = await started(cluster)
    addresses = {broker.broker_id: broker.address for broker in cluster.brokers.values()}
    asked: list[str] = []
    resolver._connections |= connections(addresses.values(), asked, lambda address: address != addresses[2])

    async def call(timeout_seconds: float = 5) -> list[str]:
        asked.clear()
        request = pb.DescribeClusterRequest()
        await resolver.call_any(DESCRIBE_CLUSTER, request, timeout_seconds, is_read=True, prefers_metadata_leader=True)
        return list(asked)

    while resolver._watch_address != addresses[1]:
        resolver.mark_suspect(addresses[2])
        await asyncio.sleep(0.01)
    resolver._learn_leader(METADATA_GROUP_ID, Leader(2, 8))
    assert await call(1) == [addresses[2], addresses[1]]  # it got less time than it may take
    assert await call() == [addresses[2], addresses[1]]
    assert await call() == [addresses[1]]
    resolver._learn_leader(METADATA_GROUP_ID, Leader(2, 9))  # it was elected again, so it works
    assert await call() == [addresses[2], addresses[1]]
    monkeypatch.setattr(settings, "LATE_LEADER_SECONDS", 0.0)
    resolver._learn_leader(METADATA_GROUP_ID, Leader(2, 10))
    assert await call() == await call() == [addresses[2], addresses[1]]
    await resolver.close()


async def test_one_connection_per_node(cluster: FakeCluster):
    resolver = await started(cluster)
    assert resolver.connection(resolver.address(Leader(1, 1))) is resolver.connection(cluster.brokers[1].address)
    await resolver.close()


async def test_a_refused_connection_is_a_definite_failure():
    connection = GrpcTransport().connect("127.0.0.1:1")
    with pytest.raises(errors.UnreachableError):
        await connection.call(DESCRIBE_CLUSTER, pb.DescribeClusterRequest(), 5)
    await connection.close()


@pytest.mark.parametrize("bad", ["", " , ", "host", "host:", ":5", "host:port", "host:70000", []])
def test_addresses_are_checked(bad: object):
    with pytest.raises(errors.InvalidArgumentError):
        parse_addresses(bad)


def test_addresses_come_as_text_or_sequence():
    assert parse_addresses("a:1, b:2,") == ("a:1", "b:2")
    assert parse_addresses(["[::1]:9"]) == ("[::1]:9",)


@pytest.mark.parametrize(
    ("details", "reason"),
    [
        (
            "failed to connect to all addresses; last error: UNKNOWN: ipv4:1.2.3.4:1: ...: Connection refused",
            "connection refused",
        ),
        (
            "failed to connect to all addresses; last error: UNKNOWN: ipv4:1.2.3.4:1: No route to host",
            "No route to host",
        ),
        (
            "errors resolving x:1: [field:hostname lookup error: Domain name not found]",
            "the host name cannot be resolved",
        ),
        ("Socket closed", ""),
        ("recvmsg:Connection reset by peer", ""),
        ("Stream removed: connection refused to say more", ""),
    ],
)
def test_unsent_requests_are_distinguished_from_requests_that_may_have_arrived(details: str, reason: str):
    assert unreachable_reason(details) == reason


async def test_no_cancelled_call_is_unreported_after_a_connection_closes(cluster: FakeCluster):
    """After any requests, gRPC's tasks of its streams have ended, and every cancelled call was reported."""
    cluster.create_topic("t")
    connection = GrpcTransport().connect(cluster.brokers[1].address)
    assert isinstance(connection, GrpcConnection)
    watch = connection.watch(pb.WatchRequest())
    await anext(watch)
    ends: list[errors.RaftMQError] = []
    connection.append_stream(lambda _: None, ends.append, lambda: None)
    poll = pb.PollRequest(max_wait_ms=60_000)
    polls = [asyncio.ensure_future(connection.call(POLL, poll, 60)) for _ in range(3)]
    async with cluster.polled:
        await cluster.polled.wait_for(lambda: len(cluster.poll_requests) == 3)
    polls[0].cancel()
    await asyncio.wait([polls[0]])
    await connection.close()
    assert [type(end) for end in ends] == [errors.BrokenConnectionError]
    assert not connection._calls._ending
    assert not connection._calls._running
    mine = [task for task in asyncio.all_tasks() if "_handle_status_once_received" in repr(task.get_coro())]
    assert mine == []
    for call in polls[1:]:
        with pytest.raises(errors.BrokenConnectionError):
            await call
    with pytest.raises(errors.BrokenConnectionError):
        await anext(watch)


async def test_only_the_latest_deleted_leaders_are_remembered(cluster: FakeCluster, monkeypatch):
    """Group ids are never reused. A client that outlives thousands of topics would otherwise remember each of their leaders."""
    monkeypatch.setattr(settings, "DELETED_LEADERS_MAX", 4)
    cluster.create_topic("stays", partitions=2)
    resolver = await started(cluster)
    for number in range(5):
        name = f"passing-{number}"
        cluster.create_topic(name, partitions=4)
        last = set((await resolver.topic(name, 5)).group_ids)
        cluster.delete_topic(name)
    await wait_until(resolver, lambda: set(resolver.topics) == {"stays"})
    groups = [(METADATA_GROUP_ID,), *(info.group_ids for info in resolver.topics.values())]
    assert resolver._leaders.keys() - {group_id for ids in groups for group_id in ids} == last
    assert len(resolver._leaders) == 1 + 2 + 4
    await resolver.close()


async def test_deleted_topics_lose_their_leaders_but_an_older_table_removes_nothing(cluster: FakeCluster, monkeypatch):
    """A broker that is behind may not know a topic yet. The known epochs of its leaders must not go back."""
    monkeypatch.setattr(settings, "DELETED_LEADERS_MAX", 0)
    cluster.create_topic("t")
    resolver = await started(cluster)
    info = await resolver.topic("t", 5)
    (group_id,) = info.group_ids
    old = pb.TopologyUpdate(cluster_id=cluster.cluster_id, metadata_revision=0, is_full=True)
    resolver._apply(old, "late:9400")
    assert resolver._leaders[group_id] == Leader(1, 1)
    resolver._apply(cluster.table(), "here:9400")
    deletion = pb.TopologyUpdate(metadata_revision=99, deleted_topic_ids=[info.topic_id])
    resolver._apply(deletion, "here:9400")
    assert resolver.topics == {}
    known = resolver._leaders.keys() - {METADATA_GROUP_ID}
    assert known == {group_id}, "who writes there asks its leader, and hears that the topic is gone"
    assert resolver.leader(METADATA_GROUP_ID) == resolver.leader(group_id) == Leader(1, 1)
    await resolver.close()


async def test_a_connection_to_an_abandoned_address_is_closed(cluster: FakeCluster, monkeypatch):
    """It would try to reconnect once a second for as long as the program runs, and brokers that move leave many addresses behind."""
    monkeypatch.setattr(settings, "UNUSED_CONNECTION_SECONDS", 0.05)
    staying, leaving = cluster.brokers.values()
    resolver = Resolver(staying.address, GrpcTransport())
    await resolver.start(10)
    await wait_until(resolver, lambda: len(resolver.addresses()) == 2)
    connection = resolver.connection(leaving.address)
    await connection.call(DESCRIBE_CLUSTER, pb.DescribeClusterRequest(), 5)
    del cluster.brokers[leaving.broker_id]
    cluster.changed()
    async with asyncio.timeout(10):
        while leaving.address in resolver._connections:
            await asyncio.sleep(0.01)
    with pytest.raises(errors.BrokenConnectionError, match="closed"):
        await connection.call(DESCRIBE_CLUSTER, pb.DescribeClusterRequest(), 5)
    assert resolver.connection(staying.address) is resolver.connection(staying.address)
    await resolver.close()
    cluster.brokers[leaving.broker_id] = leaving


async def test_the_leader_of_a_recovered_partition_is_found_by_its_old_group(cluster: FakeCluster):
    """Producers and consumers keep the group of a partition. After a recovery another group serves it, and an older table changes nothing."""
    cluster.create_topic("t")
    resolver = await started(cluster)
    info = await resolver.topic("t", 5)
    (old,) = info.group_ids
    before = cluster.table()
    after = pb.TopologyUpdate()
    after.CopyFrom(before)
    for group_id in (old + 7, old + 9):
        (topic,) = after.topics
        topic.partitions[0].group_id = group_id
        after.metadata_revision += 1
        after.leaders.add(group_id=group_id, broker_id=1, leader_epoch=1000 + group_id)
        resolver._apply(after, "here:9400")
        assert resolver.leader(old) == Leader(1, 1000 + group_id)
        assert resolver.has_partition("t", old)
    resolver._apply(pb.TopologyUpdate(cluster_id=cluster.cluster_id, topics=before.topics), "late:9400")
    assert resolver.topics["t"].group_ids == (old + 9,)
    hint = errors.NotLeaderError(leader_broker_id=1, leader_epoch=5000)
    assert resolver.on_not_leader(old, hint)
    assert resolver.leader(old + 9) == Leader(1, 5000)
    await resolver.close()
