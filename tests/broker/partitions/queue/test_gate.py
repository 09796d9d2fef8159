"""A queue partition refuses batches above its limits before they are proposed, and tells producers of known ids."""

from __future__ import annotations

import asyncio

import pytest
from raftmq.broker.partitions.queue import gate as gate_module
from raftmq.client.codec.queue_batch import encode_messages
from raftmq.fsm.queue.settings import QueueSettings
from raftmq.proto import queue_pb2 as pb
from raftmq.queue_batch import MessageColumns, encode, unpack_fields

from tests.support.broker.harness import PRODUCER, append_request, batch, running
from tests.support.broker.queues import ack_of, poll, put, queue_of, queue_topic, settle
from tests.support.broker.waiting import until


async def test_a_full_partition_refuses_messages_until_some_are_finished():
    async with running() as node:
        topic = await queue_topic(node, partition_max_messages="2")
        assert not (await put(node, topic, b"0", b"1")).HasField("error")
        refused = (await put(node, topic, b"2")).error
        assert (refused.code, refused.retriable) == (pb.QUEUE_FULL, True)
        (message,) = await poll(node, topic)
        await settle(node, ack_of(topic, message))
        assert not (await put(node, topic, b"2")).HasField("error")


async def test_refusals_of_a_full_partition_are_counted_for_the_alert():
    async with running() as node:
        topic = await queue_topic(node, partition_max_messages="1", partition_tenant_max_bytes="4")
        queue = queue_of(node, topic)
        assert (await put(node, topic, b"large", tenants=["a"])).error.code == pb.TENANT_FULL
        assert dict(queue.samples())["raftmq_queue_full_refusals_total"] == 0, (
            "one tenant is full, and the others are not delayed"
        )
        assert not (await put(node, topic, b"0")).HasField("error")
        assert (await put(node, topic, b"1")).error.code == pb.QUEUE_FULL
        assert (await put(node, topic, b"2")).error.code == pb.QUEUE_FULL
        assert dict(queue.samples())["raftmq_queue_full_refusals_total"] == 2


async def test_messages_that_are_proposed_count_towards_the_limits():
    async with running() as node:
        topic = await queue_topic(node, partition_max_messages="2", partition_tenant_max_bytes="4")
        node.hold_commits = True
        first = asyncio.ensure_future(put(node, topic, b"abc", tenants=["a"]))
        await asyncio.sleep(0.01)
        assert (await put(node, topic, b"de", tenants=["a"])).error.code == pb.TENANT_FULL
        second = asyncio.ensure_future(put(node, topic, b"de", tenants=["b"]))
        await asyncio.sleep(0.01)
        assert (await put(node, topic, b"f", tenants=["b"])).error.code == pb.QUEUE_FULL
        node.release_commits()
        assert not (await first).HasField("error")
        assert not (await second).HasField("error")
        assert queue_of(node, topic).replica.state_machine.message_count == 2


def test_each_acceptance_of_a_chain_makes_place_for_its_own_messages_alone() -> None:
    """Another lease may be lost, and then it frees nothing."""
    columns = MessageColumns([b"x"] * 5, tenants=[b"b"] * 5)
    fields = unpack_fields(encode(columns), 0, 5)
    load = gate_module._load_of_chain(fields, [(b"a", 1), (b"b", 1)], [5, 0])
    assert (load.messages, load.tenant_messages, load.tenant_bytes) == (4, {b"b": 5}, {b"b": 5})


async def test_a_partition_refuses_a_new_tenant_beyond_its_maximum(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gate_module, "TENANTS_MAX", 2)
    async with running() as node:
        topic = await queue_topic(node)
        assert not (await put(node, topic, b"0", tenants=["a"])).HasField("error")
        assert (await put(node, topic, b"0", b"1", tenants=["b", "c"])).error.code == pb.TOO_MANY_TENANTS
        assert not (await put(node, topic, b"0", tenants=["a"])).HasField("error"), "it is known"


async def test_messages_of_known_tenants_that_are_under_way_are_no_new_tenants(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gate_module, "TENANTS_MAX", 4)
    async with running() as node:
        topic = await queue_topic(node)
        assert not (await put(node, topic, b"0", b"1", tenants=["a", "b"])).HasField("error")
        node.hold_commits = True
        known = asyncio.ensure_future(put(node, topic, b"2", b"3", tenants=["a", "b"]))
        await asyncio.sleep(0.01)
        new = asyncio.ensure_future(put(node, topic, b"4", tenants=["c"]))
        await asyncio.sleep(0.01)
        assert not new.done(), "it is the third tenant"
        node.release_commits()
        assert not (await known).HasField("error")
        assert not (await new).HasField("error")


async def test_new_tenants_of_one_request_count_together(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gate_module, "TENANTS_MAX", 3)
    async with running() as node:
        topic = await queue_topic(node)
        gate = queue_of(node, topic).gate
        for name, is_admitted in (("a", True), ("b", True), ("a", True), ("c", False)):
            content = encode_messages([b"x"], tenants=[name]).seal()
            header = gate.check(content, 1 << 20)
            assert (gate.admit(header, content) is None) is is_admitted, name


async def test_a_partition_remembers_a_bounded_number_of_ids(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gate_module, "IDS_MAX", 1)
    async with running() as node:
        topic = await queue_topic(node, dedupe_window_ms="3600000")
        assert not (await put(node, topic, b"0", ids=["a"])).HasField("error")
        assert not (await put(node, topic, b"1", ids=["b"])).HasField("error"), "the first one is not finished"
        (message,) = await poll(node, topic)
        await settle(node, ack_of(topic, message))
        refused = (await put(node, topic, b"2", ids=["c"])).error
        assert (refused.code, refused.retriable) == (pb.QUEUE_FULL, True)
        assert "dedupe.window.ms" in refused.message
        assert not (await put(node, topic, b"3")).HasField("error"), "it has no id"


async def test_limits_of_an_earlier_term_are_forgotten():
    async with running() as node:
        topic = await queue_topic(node, partition_max_messages="1")
        group_id = queue_of(node, topic).replica.group_id
        node.hold_commits = True
        lost = asyncio.ensure_future(put(node, topic, b"0"))
        await asyncio.sleep(0.01)
        node.lose_leadership(group_id)
        assert (await lost).error.code in (pb.LEADERSHIP_LOST, pb.NOT_LEADER)
        assert queue_of(node, topic).gate.immediate in (0, 1)
        queue_of(node, topic).appends.start_term()
        assert queue_of(node, topic).gate.immediate == 0


async def test_a_message_whose_id_is_known_is_named_in_the_answer():
    async with running() as node:
        topic = await queue_topic(node)
        await put(node, topic, b"first", ids=["a"])
        request = append_request(
            topic,
            encode_messages([b"x"]).seal(),
            encode_messages([b"new", b"again", b"twice"], ids=["b", "a", "b"]).seal(),
        )
        (result,) = (await node.log.append(request, node.call())).partitions
        assert [(one.batch, one.position, one.sequence, one.is_replaced) for one in result.known_messages] == [
            (1, 1, 0, False), (1, 2, 2, False),
        ]  # fmt: skip
        result = await put(node, topic, b"better", ids=["a"], replaces=[True])
        assert [(one.sequence, one.is_replaced) for one in result.known_messages] == [(0, True)]
        assert sorted([one.value for one in await poll(node, topic, 10)]) == [b"better", b"new", b"x"]


async def test_the_answer_to_a_repeated_batch_names_known_messages_too():
    """A producer whose first answer was lost was told that a message was enqueued that was not, with a sequence that no message has."""
    async with running() as node:
        topic = await queue_topic(node, dedupe_window_ms="60000")
        await put(node, topic, b"first", ids=["a"])
        request = append_request(
            topic, encode_messages([b"x", b"again", b"new"], ids=["x", "a", None]).seal(producer_id=PRODUCER)
        )
        for _ in range(2):
            (result,) = (await node.log.append(request, node.call())).partitions
            assert list(result.base_offsets) == [1]
            assert [(one.batch, one.position, one.sequence) for one in result.known_messages] == [(0, 1, 0)]


async def test_the_answer_to_a_repeated_batch_claims_no_sequence_of_an_id_that_is_forgotten():
    async with running() as node:
        topic = await queue_topic(node)
        request = append_request(topic, encode_messages([b"x"], ids=["x"]).seal(producer_id=PRODUCER))
        (result,) = (await node.log.append(request, node.call())).partitions
        assert list(result.base_offsets) == [0]
        (message,) = await poll(node, topic)
        await settle(node, ack_of(topic, message))
        (result,) = (await node.log.append(request, node.call())).partitions
        assert list(result.base_offsets) == [-1]
        assert not result.HasField("error")


async def test_a_record_batch_is_refused_by_the_kind_of_the_topic():
    async with running() as node:
        topic = await queue_topic(node)
        (result,) = (await node.log.append(append_request(topic, batch()), node.call())).partitions
        assert result.error.code == pb.TOPIC_KIND_MISMATCH


async def test_settings_of_the_topic_reach_the_state_machine():
    async with running() as node:
        topic = await queue_topic(node, attempts_max="3")
        queue = queue_of(node, topic)
        await put(node, topic, b"x")
        assert queue.replica.state_machine.state.settings.attempts_max == 3
        await node.admin.alter_topic(pb.AlterTopicRequest(name="jobs", set={"attempts.max": "7"}), node.call())
        await queue.maintain()
        await until(lambda: queue.replica.state_machine.state.settings.attempts_max == 7)


async def test_no_message_is_enqueued_before_the_topics_settings_are_in_force():
    """The first messages of a new topic were enqueued under default settings: without the order of their keys, and with forgotten ids."""
    async with running() as node:
        topic = await queue_topic(node, ordered_by_key="true")
        queue = queue_of(node, topic)
        await asyncio.sleep(0.01)
        queue.replica.state_machine.state.settings = QueueSettings()  # as before the first entry of a leader
        node.hold_commits = True
        refused = (await put(node, topic, b"0", keys=[b"k"])).error
        assert (refused.code, refused.retriable) == (pb.NOT_READY, True)
        await asyncio.sleep(0.01)
        node.release_commits()
        await until(
            lambda: queue.replica.state_machine.state.settings == queue.config().machine
        )  # the refusal has asked
        await put(node, topic, b"0", b"1", keys=[b"k", b"k"])
        assert len(await poll(node, topic, 2)) == 1, "the key is in order"


async def test_no_message_is_enqueued_before_the_clock_runs():
    """A delay that began at the time before a long stop would end immediately."""
    async with running() as node:
        topic = await queue_topic(node)
        queue = queue_of(node, topic)
        known, queue.clock._median_ms, queue.clock.is_running = queue.clock._median_ms, lambda: None, False
        refused = (await put(node, topic, b"0")).error
        assert (refused.code, refused.retriable) == (pb.NOT_READY, True)
        queue.clock._median_ms = known
        assert not (await put(node, topic, b"0")).HasField("error")
