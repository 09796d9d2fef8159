"""Copies of dead messages in another topic, over real files: each death is copied once and in order, and nothing dead is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import pytest
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.partitions.queue import copy_plan
from raftmq.broker.partitions.queue.copies import RETRY_SECONDS_MIN
from raftmq.broker.partitions.queue.views import Wanted
from raftmq.fsm.queue.commands import Change, ChangeItem, ChangeOperation, Operation, PurgeAll
from raftmq.fsm.queue.message import READY
from raftmq.fsm.queue.results import Changed, Purged
from raftmq.message_headers import DEAD_LETTER_PREFIX, decode_headers, encode_headers
from raftmq.proto import queue_pb2 as pb
from raftmq.queue_batch import MessageColumns
from raftmq.types import GroupId

from tests.support.broker.queue_node import Queue, QueueNode, queue_node
from tests.support.fsm.queue.host import COLD


class Letter(NamedTuple):
    """A message of the dead letter topic."""

    value: bytes
    key: bytes
    tenant: str
    priority: int
    said: dict[str, str]
    """The headers about its death."""
    own: tuple[tuple[str, bytes | None], ...]


@pytest.fixture(params=[None, COLD], ids=["in memory", "windows of one"])
async def node(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[QueueNode]:
    async with queue_node(tmp_path, request.param) as started:
        yield started


async def topics(node: QueueNode, **config: str) -> tuple[Queue, Queue]:
    """Return a topic and its dead letter topic."""
    target = await node.queue("letters")
    return await node.queue(dead_letter_topic="letters", **config), target


async def bury(queue: Queue, *values: bytes, error: str = "broken", **columns: Sequence[object]) -> None:
    """Put messages that are given up."""
    await queue.put_columns(MessageColumns(values, **columns))
    tokens = await queue.lease(len(values))
    assert len(tokens) == len(values)
    await queue.settle(Operation.REJECT, *tokens, error=error)


async def copy_all(queue: Queue) -> None:
    """Copy until nothing is left."""
    async with asyncio.timeout(20):
        while queue.partition.copies.left:
            await queue.node.dead_letters.copy_some(queue.partition)
            await asyncio.sleep(0.01)


async def copy_until_refused(queue: Queue) -> None:
    refused = queue.partition.copies.refused_total
    async with asyncio.timeout(20):
        while queue.partition.copies.refused_total == refused:
            await queue.node.dead_letters.copy_some(queue.partition, 1)
            await asyncio.sleep(0.01)


async def letters(target: Queue) -> list[Letter]:
    partition = target.partition
    page = await partition.views.page(Wanted((READY,)), b"", 1_000)
    found = []
    for message, tenant, body in zip(
        page.messages, page.tenants, await partition.read_bodies([m.sequence for m in page.messages]), strict=True
    ):
        assert body is not None
        headers = decode_headers(body.headers or b"")
        said = {
            name.removeprefix(DEAD_LETTER_PREFIX): (value or b"").decode()
            for name, value in headers
            if name.startswith(DEAD_LETTER_PREFIX)
        }
        own = tuple(pair for pair in headers if not pair[0].startswith(DEAD_LETTER_PREFIX))
        found.append(Letter(bytes(body.body), message.key, tenant, message.priority, said, own))
    return found


async def values(target: Queue) -> list[bytes]:
    return [letter.value for letter in await letters(target)]


def lose_answers(node: QueueNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the copier append, and never learn that it did."""
    append = node.dead_letters._append

    async def unanswered(*arguments: object) -> None:
        await append(*arguments)
        raise RequestError(pb.REQUEST_TIMED_OUT, "no answer")

    monkeypatch.setattr(node.dead_letters, "_append", unanswered)


async def redrive(queue: Queue, *sequences: int) -> None:
    items = tuple(ChangeItem(ChangeOperation.REDRIVE, sequence) for sequence in sequences)
    changed = await queue.partition.commands.execute(Change(items), Changed, queue._deadline)
    assert isinstance(changed, Changed)


def epoch(queue: Queue) -> int:
    return queue.machine.state.scalars.copy_epoch


# --------------------------------------------------------------------------------------------------------------- the copy


async def test_a_copy_has_everything_of_its_message_and_says_why_it_died(node: QueueNode) -> None:
    queue, target = await topics(node)
    headers = encode_headers((("trace", b"t-1"), (DEAD_LETTER_PREFIX + "topic", b"an earlier one")))
    await bury(
        queue, b"value", error="no such user", keys=[b"k"], tenants=[b"acme.eu"], priorities=[-3], ids=[b"id-1"],
        headers=[headers],
    )  # fmt: skip
    await copy_all(queue)
    (letter,) = await letters(target)
    assert letter[:4] == (b"value", b"k", "acme.eu", -3)
    assert letter.own == (("trace", b"t-1"),)
    times = {name: int(letter.said.pop(name)) for name in ("time", "timestamp")}
    assert 0 <= times["time"] - times["timestamp"] < 60_000
    assert letter.said == {
        "topic": "jobs", "partition": "0", "sequence": "0", "id": "id-1", "attempts": "1", "reason": "rejected",
        "error": "no such user",
    }  # fmt: skip


async def test_the_dead_are_copied_once_and_in_the_order_of_their_deaths(node: QueueNode) -> None:
    queue, target = await topics(node)
    await bury(queue, b"a", b"b")
    await copy_all(queue)
    await bury(queue, b"c")
    await copy_all(queue)
    await queue.write_back()
    await queue.restart()
    await bury(queue, *(b"%d" % number for number in range(250)))
    await copy_all(queue)
    assert await values(target) == [b"a", b"b", b"c", *(b"%d" % number for number in range(250))]
    assert epoch(queue) == 1
    assert queue.partition.copies.left == 0
    assert queue.machine.state.scalars.dead_count == 253, "the dead stay where they are"


async def test_messages_that_died_before_the_setting_are_copied_too(node: QueueNode) -> None:
    target, queue = await node.queue("letters"), await node.queue()
    await bury(queue, b"old")
    assert queue.partition.copies.left == 0
    request = pb.AlterTopicRequest(name="jobs", set={"dead.letter.topic": "letters"})
    await node.admin.alter_topic(request, node.call())
    await copy_all(queue)
    assert await values(target) == [b"old"]


async def test_headers_that_do_not_fit_are_left_out(tmp_path: Path) -> None:
    async with queue_node(tmp_path) as node:
        target = await node.queue("letters", max_message_bytes="1500")
        queue = await node.queue(dead_letter_topic="letters", max_message_bytes="1500")
        await bury(queue, b"a" * 1_100, b"b" * 1_500, b"c" * 100, error="e" * 1_000)
        await copy_all(queue)
        found = await letters(target)
        assert [len(letter.value) for letter in found] == [1_100, 1_500, 100]
        assert [("topic" in letter.said, "error" in letter.said) for letter in found] == [
            (True, False), (False, False), (True, True),
        ]  # fmt: skip


# ------------------------------------------------------------------------------------------------------- lost answers, gaps


async def test_a_leader_that_dies_after_the_append_leaves_no_second_copy(
    node: QueueNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, target = await topics(node)
    await bury(queue, b"a", b"b", b"c")
    with monkeypatch.context() as lossy:
        lose_answers(node, lossy)
        await copy_until_refused(queue)
    assert queue.machine.state.scalars.copied_dead == 0, "nothing is recorded without an answer"
    await queue.restart()
    await bury(queue, b"d")
    await copy_all(queue)
    assert await values(target) == [b"a", b"b", b"c", b"d"]
    assert epoch(queue) == 1


async def test_a_message_that_was_redriven_after_its_unanswered_copy_repeats_no_other_copy(
    node: QueueNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, target = await topics(node)
    await bury(queue, b"a", b"b", b"c")
    with monkeypatch.context() as lossy:
        lose_answers(node, lossy)
        await copy_until_refused(queue)
    await redrive(queue, 1)
    await queue.restart()
    await copy_all(queue)
    assert await values(target) == [b"a", b"b", b"c"]
    assert epoch(queue) == 1, "the target knew the sequences behind the gap"


async def test_after_a_gap_copies_go_on_under_a_new_epoch(node: QueueNode) -> None:
    queue, target = await topics(node)
    await bury(queue, b"a")
    await copy_all(queue)
    await bury(queue, b"b", b"c", b"d", b"e")
    await redrive(queue, 2, 3)
    await copy_all(queue)
    assert await values(target) == [b"a", b"b", b"e"]
    assert epoch(queue) == 2
    tokens = await queue.lease(2)
    await queue.settle(Operation.REJECT, *tokens)
    await copy_all(queue)
    assert await values(target) == [b"a", b"b", b"e", b"c", b"d"], "a message that dies again is copied again"
    assert epoch(queue) == 2


async def test_nothing_is_left_after_all_were_redriven(node: QueueNode) -> None:
    queue, target = await topics(node)
    await bury(queue, b"a", b"b")
    await redrive(queue, 0, 1)
    assert queue.partition.copies.left == 2
    await copy_all(queue)
    assert await values(target) == []


async def test_a_purge_of_everything_ends_the_copies_of_what_is_gone(
    node: QueueNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, target = await topics(node)
    await bury(queue, b"a", b"b")
    with monkeypatch.context() as lossy:
        lose_answers(node, lossy)
        await copy_until_refused(queue)
    await queue.partition.commands.execute(PurgeAll(), Purged, queue._deadline)
    await bury(queue, b"c")
    await copy_all(queue)
    assert await values(target) == [b"a", b"b", b"c"]


async def test_a_target_that_forgot_the_producer_gets_a_new_epoch(node: QueueNode) -> None:
    queue, target = await topics(node)
    await bury(queue, b"a", b"b")
    await copy_all(queue)
    target.machine.producers.clear()
    await bury(queue, b"c")
    await copy_all(queue)
    assert await values(target) == [b"a", b"b", b"c"]
    assert epoch(queue) == 2


async def test_a_target_that_knows_a_later_epoch_gets_nothing_until_another_one_is_named(node: QueueNode) -> None:
    """At that epoch the sequences may be those of other messages, so that a copy could be taken for a repeat."""
    queue, target = await topics(node)
    await bury(queue, b"a")
    await copy_all(queue)
    known = target.machine.producers.get(queue.partition.copies.producer_id)
    assert known is not None
    known.epoch = 3
    await bury(queue, b"b")
    await copy_until_refused(queue)
    await copy_until_refused(queue)
    assert (await values(target), epoch(queue), queue.partition.copies.left) == ([b"a"], 1, 1)
    other = await node.queue("others")
    await node.admin.alter_topic(pb.AlterTopicRequest(name="jobs", set={"dead.letter.topic": "others"}), node.call())
    await copy_all(queue)
    assert await values(other) == [b"b"]


# ---------------------------------------------------------------------------------------------------------------- refusals


async def test_while_the_target_is_full_the_dead_wait_and_are_kept(node: QueueNode) -> None:
    target = await node.queue("letters", partition_max_messages="3")
    queue = await node.queue(dead_letter_topic="letters", partition_dead_max_messages="1")
    dead = [b"%d" % number for number in range(5)]
    await bury(queue, *dead)
    async with asyncio.timeout(20):
        while target.machine.message_count < 3:
            await copy_until_refused(queue)
    await copy_until_refused(queue)
    assert await values(target) == dead[:3], "smaller batches use the room that there is"
    assert queue.partition.copies.left == 2
    assert dict(queue.partition.samples())["raftmq_queue_uncopied_dead_messages"] == 2
    await queue.partition.maintain()
    await queue.progress_until(lambda: not queue.machine.jobs.by_key)
    assert queue.machine.state.scalars.dead_count >= 2, "retention spares messages without a copy"
    await target.settle(Operation.ACCEPT, *await target.lease(3))
    await copy_all(queue)
    assert await values(target) == dead[3:]
    await queue.partition.maintain()
    await queue.progress_until(lambda: queue.machine.state.scalars.dead_count == 1)


async def test_the_room_of_a_nearly_full_target_is_found_after_few_refusals(node: QueueNode) -> None:
    """Batches were once halved from the largest that is allowed, and with growing pauses: 20 s passed until one of them was small enough."""
    target = await node.queue("letters", partition_max_messages="1")
    queue = await node.queue(dead_letter_topic="letters")
    dead = [b"%d" % number for number in range(5)]
    await bury(queue, *dead)
    copies = queue.partition.copies
    for _ in range(3):
        await copy_until_refused(queue)
        assert copies.is_due(node.loop.time() + RETRY_SECONDS_MIN)
    assert await values(target) == dead[:1]
    assert copies.refused_total == 3, "batches of 5 and 2 were refused, that of 1 was not, and the next one was"


async def test_a_deleted_target_is_waited_for_and_a_new_one_gets_the_rest(node: QueueNode) -> None:
    queue, target = await topics(node)
    await bury(queue, b"a")
    await copy_all(queue)
    await node.admin.delete_topic(pb.DeleteTopicRequest(name="letters"), node.call())
    await bury(queue, b"b", b"c")
    await copy_until_refused(queue)
    assert queue.partition.copies.left == 2
    again = await node.queue("letters")
    assert again.topic.topic_id != target.topic.topic_id
    await copy_all(queue)
    assert await values(again) == [b"b", b"c"]
    assert queue.machine.state.scalars.copy_topic == again.topic.topic_id


async def test_a_log_topic_of_that_name_gets_nothing(node: QueueNode) -> None:
    queue, _ = await topics(node)
    await node.admin.delete_topic(pb.DeleteTopicRequest(name="letters"), node.call())
    await node.topic("letters")
    await bury(queue, b"a")
    await copy_until_refused(queue)
    assert queue.partition.copies.left == 1


async def test_a_message_above_the_limits_of_the_target_waits_until_they_are_raised(tmp_path: Path) -> None:
    async with queue_node(tmp_path) as node:
        target = await node.queue("letters", max_message_bytes="100")
        queue = await node.queue(dead_letter_topic="letters")
        await bury(queue, b"small", b"x" * 200, b"last")
        async with asyncio.timeout(20):
            while not target.machine.message_count:
                await copy_until_refused(queue)
        await copy_until_refused(queue)
        assert await values(target) == [b"small"], "the order of the deaths is kept"
        request = pb.AlterTopicRequest(name="letters", set={"max.message.bytes": "1000"})
        await node.admin.alter_topic(request, node.call())
        await copy_all(queue)
        assert await values(target) == [b"small", b"x" * 200, b"last"]


async def test_a_former_leader_copies_nothing(node: QueueNode) -> None:
    queue, target = await topics(node)
    await bury(queue, b"a")
    node.lose_leadership(GroupId(queue.topic.partitions[0].group_id))
    await node.dead_letters.copy_some(queue.partition)
    assert await values(target) == []
    assert queue.partition.copies.refused_total == 0


async def test_without_a_leader_the_target_is_asked_again(node: QueueNode) -> None:
    queue, target = await topics(node)
    await bury(queue, b"a")
    group_id = GroupId(target.topic.partitions[0].group_id)
    node.lose_leadership(group_id)
    await copy_until_refused(queue)
    node.campaign(group_id)
    await copy_all(queue)
    assert await values(target) == [b"a"]


# ---------------------------------------------------------------------------------------------------------------- the loop


async def test_the_copier_serves_all_partitions_and_spreads_them_over_the_target(tmp_path: Path) -> None:
    async with queue_node(tmp_path) as node:
        targets = await node.queue("letters", 2)
        sources = await node.queue("jobs", 12, dead_letter_topic="letters")
        queues = [part(sources, number) for number in range(12)]
        for number, queue in enumerate(queues):
            await bury(queue, b"%d" % number)
        running = asyncio.ensure_future(node.dead_letters.run())
        async with asyncio.timeout(20):
            while any(queue.partition.copies.left for queue in queues):
                await asyncio.sleep(0.01)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        for number in range(2):
            found = await values(part(targets, number))
            assert sorted(map(int, found)) == list(range(number, 12, 2))


def part(queue: Queue, number: int) -> Queue:
    """Return a partition of a topic as a queue of its own."""
    topic = pb.Topic()
    topic.CopyFrom(queue.topic)
    del topic.partitions[:]
    topic.partitions.append(queue.topic.partitions[number])
    return Queue(queue.node, topic)


async def test_after_a_defect_the_copier_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with queue_node(tmp_path) as node:
        queue, target = await topics(node)
        await bury(queue, b"a")
        failures: list[BaseException] = []
        monkeypatch.setattr(node.supervisor, "record_failure", lambda _work, error: failures.append(error))
        with monkeypatch.context() as defect:
            defect.setattr(node.dead_letters, "_append", None)
            running = asyncio.ensure_future(node.dead_letters.run())
            async with asyncio.timeout(20):
                while not failures:
                    await asyncio.sleep(0.01)
        async with asyncio.timeout(20):
            while queue.partition.copies.left:
                await asyncio.sleep(0.01)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        assert await values(target) == [b"a"]


async def test_a_batch_is_bounded_by_its_messages(tmp_path: Path) -> None:
    async with queue_node(tmp_path) as node:
        queue, target = await topics(node)
        await bury(queue, *(b"%d" % number for number in range(copy_plan.COPY_MESSAGES_MAX + 1)))
        await node.dead_letters.copy_some(queue.partition, 1)
        await node.dead_letters.copy_some(queue.partition, 1)
        assert target.machine.message_count == copy_plan.COPY_MESSAGES_MAX


# ---------------------------------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("jobs", "its own"),
        ("nowhere", "no such topic"),
        ("flights", "kind 'log'"),
        ("a/b", "the name of a topic"),
        ("keyed", "with a single partition"),
    ],
)
async def test_a_target_that_cannot_take_messages_is_refused(tmp_path: Path, target: str, reason: str) -> None:
    async with queue_node(tmp_path) as node:
        await node.topic("flights")
        await node.queue("keyed", 2, ordered_by_key="true")
        with pytest.raises(RequestError, match=reason) as created:
            await node.queue(dead_letter_topic=target)
        assert created.value.code == pb.INVALID_CONFIG
        await node.queue()
        request = pb.AlterTopicRequest(name="jobs", set={"dead.letter.topic": target})
        with pytest.raises(RequestError, match=reason) as altered:
            await node.admin.alter_topic(request, node.call())
        assert altered.value.code == pb.INVALID_CONFIG


async def test_the_setting_is_shown_and_can_be_taken_back(tmp_path: Path) -> None:
    async with queue_node(tmp_path) as node:
        queue, _ = await topics(node)
        described = await node.admin.describe_topic(pb.DescribeTopicRequest(name="jobs"), node.call())
        assert described.effective_config["dead.letter.topic"] == "letters"
        await bury(queue, b"a")
        assert queue.partition.copies.left == 1
        await node.admin.alter_topic(pb.AlterTopicRequest(name="jobs", unset=["dead.letter.topic"]), node.call())
        assert queue.partition.copies.left == 0


async def test_clients_cannot_take_the_names_of_the_brokers_producers(tmp_path: Path) -> None:
    async with queue_node(tmp_path) as node:
        with pytest.raises(RequestError, match="reserved for brokers"):
            await node.log.init_producer(pb.InitProducerRequest(name="~dead/1"), node.call())


async def test_partitions_are_not_listed_again_while_nothing_changed(
    node: QueueNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search for dead messages runs ten times a second, and a broker may have a thousand partitions of logs."""
    await topics(node)
    listed = mock.Mock(wraps=node.dead_letters._locator.here)
    monkeypatch.setattr(node.dead_letters._locator, "here", listed)
    async with asyncio.TaskGroup() as tasks:
        for _ in range(3):
            node.dead_letters._begin_turns(tasks)
        assert listed.call_count == 1
        await node.queue("another")
        node.dead_letters._begin_turns(tasks)
        assert listed.call_count == 2
