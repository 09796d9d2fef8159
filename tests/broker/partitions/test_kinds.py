"""A kind of topic is a registry entry: it is offered, served and described, and calls for another kind are refused."""

from __future__ import annotations

from typing import Any, cast

import pytest
from raftmq.broker.base.limits import Timing
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.cluster.housekeeping import Housekeeping
from raftmq.broker.http_port import metrics
from raftmq.broker.partitions.kinds import KINDS, LOG, TopicKind, kind_of
from raftmq.broker.partitions.partition import Partition
from raftmq.broker.services.locator import Locator
from raftmq.fsm.metadata import Metadata
from raftmq.fsm.topic_kinds import TOPIC_KINDS
from raftmq.proto import peer_pb2 as peer_pb
from raftmq.proto import queue_pb2 as pb
from raftmq.types import GroupId

from tests.support.broker.harness import Harness, StrictSupervisor, poll_request, running
from tests.support.broker.mailbox_kind import Mailbox, register_mailboxes


@pytest.fixture
def mailboxes(monkeypatch: pytest.MonkeyPatch) -> TopicKind[Mailbox]:
    return register_mailboxes(monkeypatch)


async def upgrade(node: Harness) -> None:
    await node.register(1, "uuid-1", feature_level_max=2)
    await node.feature_levels.raise_feature_level(pb.RaiseFeatureLevelRequest(), node.call())


async def with_mailbox(node: Harness) -> tuple[pb.Topic, Mailbox]:
    await upgrade(node)
    topic = await node.topic("letters", kind="mailbox")
    served = node.partitions[GroupId(topic.partitions[0].group_id)]
    assert isinstance(served, Mailbox)
    return topic, served


def test_every_kind_that_is_served_is_known_to_metadata() -> None:
    assert set(KINDS) <= set(TOPIC_KINDS)
    assert all(kind.name == name for name, kind in KINDS.items())


async def test_a_partition_has_the_kind_of_its_topic() -> None:
    async with running() as node:
        topic = await node.topic("orders")
        assert topic.kind == "log", "the kind of a topic that was created without one"
        metadata = node.metadata.state_machine
        partition = metadata.partition(topic.partitions[0].group_id)
        assert partition is not None
        assert kind_of(metadata, partition) is LOG
        with pytest.raises(LookupError):
            kind_of(Metadata(), partition)


async def test_a_kind_that_this_version_cannot_serve_is_not_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Metadata may know it, and the cluster may be at its level."""
    monkeypatch.setitem(cast("dict[str, int]", TOPIC_KINDS), "mailbox", 2)
    async with running() as node:
        await upgrade(node)
        for kind in ("mailbox", "nothing"):
            with pytest.raises(RequestError, match=f"there is no topic kind '{kind}'; there are .*log") as refused:
                await node.topic("letters", kind=kind)
            assert refused.value.code == pb.INVALID_ARGUMENT


@pytest.mark.usefixtures("mailboxes")
async def test_a_topic_of_a_kind_is_created_once_the_cluster_is_at_its_level() -> None:
    async with running() as node:
        with pytest.raises(RequestError, match="needs feature level 2, but the cluster is at 1") as refused:
            await node.topic("letters", kind="mailbox")
        assert refused.value.code == pb.UNSUPPORTED_VERSION
        assert node.metadata.state_machine.topic_by_name("letters") is None
        topic, _ = await with_mailbox(node)
        assert topic.kind == "mailbox"


@pytest.mark.usefixtures("mailboxes")
async def test_every_kind_is_described_maintained_and_measured() -> None:
    async with running() as node:
        _, mailbox = await with_mailbox(node)
        described = await node.admin.describe_topic(
            pb.DescribeTopicRequest(name="letters", with_states=True), node.call()
        )
        assert described.topic.kind == "mailbox"
        assert dict(described.effective_config) == {}
        (state,) = described.states
        assert (state.log_start_offset, state.high_watermark, state.size_bytes) == (3, 7, 42)
        values = metrics._partition_values([(("letters", "0"), mailbox)])
        assert values["raftmq_partition_high_watermark"] == [(("letters", "0"), 7)]
        assert values["raftmq_partition_is_leader"] == [(("letters", "0"), 1.0)]
        fence = pb.FenceProducerRequest(producer_id=5, epoch=1, metadata_revision=0)
        await node.log.fence_producer(fence, node.call())
        assert mailbox.settled == [5]
        housekeeping = Housekeeping(None, None, None, None, None, {}, lambda _: None, Timing(), StrictSupervisor())
        await housekeeping._maintain(mailbox)
        assert mailbox.rounds == 1


@pytest.mark.usefixtures("mailboxes")
async def test_a_setting_of_another_kind_is_refused() -> None:
    async with running() as node:
        await with_mailbox(node)
        alter = pb.AlterTopicRequest(name="letters", set={"retention.ms": "5"})
        for refusal in (node.admin.alter_topic(alter, node.call()), node.topic("b", kind="mailbox", retention_ms="5")):
            with pytest.raises(RequestError, match="of kind 'log', and this topic is of kind 'mailbox'") as refused:
                await refusal
            assert refused.value.code == pb.INVALID_CONFIG


async def errors_of_calls_for_logs(node: Harness, topic: pb.Topic) -> dict[str, pb.ErrorDetail]:
    """Make every call that names a partition of a log. Return the error of each."""
    part = {"topic_id": topic.topic_id, "partition": 0}
    call = node.call()
    answers: dict[str, Any] = {  # Any: each response has partitions of its own type
        "poll": await node.log.poll(poll_request(topic, 0), call),
        "list_offsets": await node.log.list_offsets(
            pb.ListOffsetsRequest(partitions=[pb.PartitionTime(**part, time_ms=-1)]), call
        ),
        "delete_records": await node.log.delete_records(
            pb.DeleteRecordsRequest(partitions=[pb.PartitionTrim(**part, before_offset=0)]), call
        ),
        "open_partitions": await node.offsets.open_partitions(
            pb.OpenPartitionsRequest(group="g", member_id="m", partitions=[pb.PartitionOpen(**part)]), call
        ),
        "commit_offsets": await node.offsets.commit_offsets(
            pb.CommitOffsetsRequest(group="g", partitions=[pb.PartitionCommit(**part)]), call
        ),
        "fetch_offsets": await node.offsets.fetch_offsets(
            pb.FetchOffsetsRequest(group="g", partitions=[pb.PartitionId(**part)]), call
        ),
        "reset_offsets": await node.groups_service.reset_offsets(
            pb.ResetOffsetsRequest(group="g", partitions=[pb.PartitionOffsetReset(**part)]), call
        ),
    }
    return {name: answer.partitions[0].error for name, answer in answers.items()}


@pytest.mark.usefixtures("mailboxes")
async def test_calls_for_logs_are_refused_for_a_topic_of_another_kind() -> None:
    async with running() as node:
        topic, mailbox = await with_mailbox(node)
        errors = await errors_of_calls_for_logs(node, topic)
        assert {name: error.code for name, error in errors.items()} == dict.fromkeys(errors, pb.TOPIC_KIND_MISMATCH)
        assert {error.message for error in errors.values()} == {
            "topic letters is of kind 'mailbox', and this call is for topics of kind 'log': use the clients of its kind, or name another topic"
        }
        assert not any(error.retriable for error in errors.values())
        node.lose_leadership(mailbox.replica.group_id)
        errors = await errors_of_calls_for_logs(node, topic)
        del errors["reset_offsets"]  # it asks the leaders
        assert {error.code for error in errors.values()} == {pb.TOPIC_KIND_MISMATCH}, "no other leader could answer it"


@pytest.mark.usefixtures("mailboxes")
async def test_a_group_forgets_and_finds_its_offsets_beside_topics_of_other_kinds() -> None:
    async with running() as node:
        await with_mailbox(node)
        part = pb.PartitionCommit(topic_id=(await node.topic("orders")).topic_id, partition=0)
        await node.offsets.commit_offsets(pb.CommitOffsetsRequest(group="g", partitions=[part]), node.call())
        found = await node.offsets.fetch_offsets(pb.FetchOffsetsRequest(group="g"), node.call())
        assert [one.topic_id for one in found.partitions] == [part.topic_id]
        forgotten = await node.offsets.write_offsets(peer_pb.WriteOffsetsRequest(group="g", forget=True), node.call())
        assert forgotten.forgotten == 1


@pytest.mark.usefixtures("mailboxes")
async def test_a_member_cannot_subscribe_to_a_topic_of_another_kind() -> None:
    async with running() as node:
        await with_mailbox(node)
        heartbeat = pb.HeartbeatRequest(
            group="g", member_id="m", subscription=pb.Subscription(topics=["none", "letters"])
        )
        with pytest.raises(RequestError, match="topic letters is of kind 'mailbox'") as refused:
            await node.groups_service.heartbeat(heartbeat, node.call())
        assert refused.value.code == pb.TOPIC_KIND_MISMATCH
        assert node.metadata.state_machine.consumer_group("g") is None


async def test_a_locator_of_a_kind_returns_partitions_of_its_class(mailboxes: TopicKind[Mailbox]) -> None:
    async with running() as node:
        letters, mailbox = await with_mailbox(node)
        orders = await node.topic("orders")
        locator = Locator(node, node.partitions, mailboxes)
        assert locator.locate(letters.topic_id, 0) is mailbox
        assert locator.here() == [mailbox]
        with pytest.raises(
            RequestError, match="topic orders is of kind 'log', and this call is for topics of kind 'mailbox'"
        ):
            locator.locate(orders.topic_id, 0)
        everything: Locator[Partition] = Locator(node, node.partitions)
        assert {*everything.here()} == {*node.partitions.values()}
        assert everything.locate(orders.topic_id, 0) is node.partition(orders)
