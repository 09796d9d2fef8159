"""Put, get and settle messages against fake brokers, over real gRPC and over real data connections."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from datetime import UTC, datetime
from functools import partial
from weakref import ref
from zlib import crc32

import pytest
from raftmq import errors
from raftmq.client.base import settings
from raftmq.client.producer.identity import ProducerName
from raftmq.client.producer.partition_queue import ProducerIdentity
from raftmq.client.queue import settler
from raftmq.client.queue.intake import Intake
from raftmq.client.queue.message import Message
from raftmq.client.queue.new_message import NewMessage
from raftmq.client.queue.queue import Queue
from raftmq.proto import queue_pb2 as pb

from tests.support.client.fake_broker import FakeCluster, detail
from tests.support.client.fake_queue import FakeQueue, FakeStream


@pytest.fixture(params=[False, True], ids=["grpc", "data"])
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[FakeCluster]:
    async with FakeCluster(brokers=3, has_data_ports=request.param) as cluster:
        yield cluster


@pytest.fixture
async def queue(cluster: FakeCluster) -> AsyncIterator[Queue]:
    cluster.create_queue("jobs")
    async with Queue("jobs", bootstrap_servers=cluster.bootstrap_servers) as queue:
        yield queue


async def got(queue: Queue, **options) -> Message:
    message = await queue.get(**options)
    assert message is not None
    return message


# ------------------------------------------------------------------------------------------------------------- putting


async def test_a_message_has_all_that_was_put(queue: Queue) -> None:
    result = await queue.put(
        b"value", key="k", tenant="acme.eu", priority=-3, id="one", headers=[("trace", b"1")], expires_ms=60_000
    )
    message = await got(queue)
    assert (result.topic, result.partition, result.sequence, result.is_deduplicated) == ("jobs", 0, 0, False)
    assert (message.value, message.key, message.tenant, message.priority) == (b"value", b"k", "acme.eu", -3)
    assert (message.id, message.sequence, message.attempt, message.headers) == ("one", 0, 1, (("trace", b"1"),))
    assert (message.topic, message.partition, message.is_lost) == ("jobs", 0, False)


async def test_put_many_returns_the_outcome_of_each_in_order(queue: Queue) -> None:
    results = await queue.put_many([b"a", NewMessage(b"b", id="x"), NewMessage(b"c", id="x"), b"d"])
    assert [result.sequence for result in results] == [0, 1, 1, 3]
    assert [result.is_deduplicated for result in results] == [False, False, True, False]
    assert [message.value for message in await queue.get_many()] == [b"a", b"b", b"d"]


async def test_a_batch_has_at_most_a_thousand_messages(queue: Queue, cluster: FakeCluster) -> None:
    results = await queue.put_many(b"%d" % n for n in range(2500))
    assert [result.sequence for result in results] == list(range(2500))
    batches = cluster.topics["jobs"].partitions[0].batches
    assert max(count for _, count, _, _ in batches) == 1000


async def test_a_refused_message_is_reported_when_the_messages_before_it_are_enqueued(
    queue: Queue, cluster: FakeCluster
) -> None:
    (fake,) = [partition.queue for partition in cluster.topics["jobs"].partitions]
    with pytest.raises(errors.InvalidArgumentError) as raised:
        await queue.put_many([b"a", b"b", NewMessage(b"c", priority=1 << 40), b"d"])
    assert len(fake.messages) == 2
    assert raised.value.__notes__ == ["raised by message 2 of put_many; the messages before it are enqueued"]


async def test_a_failure_comes_before_the_refusal_of_a_later_message(queue: Queue, cluster: FakeCluster) -> None:
    cluster.append_hook = lambda *_: detail(pb.QUEUE_FULL)
    with pytest.raises(errors.QueueFullError):
        await queue.put_many([b"a", NewMessage(b"b", priority=1 << 40)])


async def test_a_known_id_is_deduplicated_or_replaced(queue: Queue) -> None:
    first = await queue.put(b"old", id="x", delay_ms=60_000)
    again = await queue.put(b"ignored", id="x")
    replacing = await queue.put(b"new", id="x", replace=True)
    assert (again.sequence, again.is_deduplicated, again.replaced_sequence) == (first.sequence, True, None)
    assert (replacing.is_deduplicated, replacing.replaced_sequence) == (False, first.sequence)
    assert (await got(queue)).value == b"new"


async def test_a_delayed_message_is_not_delivered_early(queue: Queue, cluster: FakeCluster) -> None:
    await queue.put(b"later", delay_ms=60_000)
    await queue.put(b"dated", not_before=datetime.fromtimestamp(time.time() + 120, UTC))
    assert await queue.get(wait_ms=0) is None
    (fake,) = [partition.queue for partition in cluster.topics["jobs"].partitions]
    fake.offset_ms += 61_000
    assert (await got(queue, wait_ms=0)).value == b"later"
    assert await queue.get(wait_ms=0) is None
    fake.offset_ms += 61_000
    assert (await got(queue, wait_ms=0)).value == b"dated"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"tenant": "a..b"}, errors.InvalidArgumentError),
        ({"tenant": ".".join("abcdefghi")}, errors.InvalidArgumentError),
        ({"key": b""}, errors.InvalidArgumentError),
        ({"key": 5}, TypeError),
        ({"id": "x" * 250}, errors.InvalidArgumentError),
        ({"id": "\udc80"}, errors.InvalidArgumentError),
        ({"priority": 1 << 31}, errors.InvalidArgumentError),
        ({"priority": 1.5}, TypeError),
        ({"delay_ms": -1}, errors.InvalidArgumentError),
        ({"delay_ms": float("nan")}, errors.InvalidArgumentError),
        ({"not_before": datetime(2030, 1, 1)}, errors.InvalidArgumentError),  # noqa: DTZ001 - that is the mistake
        ({"delay_ms": 5, "not_before": datetime(2030, 1, 1, tzinfo=UTC)}, errors.InvalidArgumentError),
        ({"replace": True}, errors.InvalidArgumentError),
        ({"headers": [("h", b"x" * 20_000)]}, errors.RecordTooLargeError),
        ({"headers": [("h", 5)]}, TypeError),
    ],
)
async def test_a_message_that_no_broker_takes_is_refused_alone(queue: Queue, arguments, error) -> None:
    good = asyncio.ensure_future(queue.put(b"good"))
    with pytest.raises(error):
        await queue.put(b"value", **arguments)
    assert (await good).sequence == 0


async def test_a_message_above_the_topics_limit_is_refused(cluster: FakeCluster) -> None:
    cluster.create_queue("large", max_message_bytes="2000000")
    async with Queue("large", bootstrap_servers=cluster.bootstrap_servers) as queue:
        await queue.put(b"x" * 1_500_000)
        with pytest.raises(errors.RecordTooLargeError, match=r"raise .*max\.message\.bytes of a queue topic"):
            await queue.put(b"x" * 2_000_001)
        with pytest.raises(
            errors.RecordTooLargeError, match=r"headers .* have 16391 bytes, .* of every topic: put them into the value"
        ):
            await queue.put(b"x", headers=[("h", b"x" * 16_384)])


async def test_a_full_queue_is_reported_at_once_and_later_puts_succeed(queue: Queue, cluster: FakeCluster) -> None:
    cluster.append_hook = lambda *_: detail(pb.TENANT_FULL)
    with pytest.raises(errors.TenantFullError):
        await queue.put(b"refused", tenant="noisy")
    cluster.append_hook = None
    await queue.put(b"accepted")
    assert (await got(queue)).value == b"accepted"


async def test_a_put_whose_answer_is_lost_is_enqueued_once(queue: Queue, cluster: FakeCluster) -> None:
    verdicts = iter(["drop"])
    cluster.append_hook = lambda *_: next(verdicts, None)
    putting = asyncio.ensure_future(queue.put(b"once"))
    async with cluster.appended:
        await cluster.appended.wait_for(lambda: cluster.append_requests)
    cluster.move_leader("jobs", 0, 2)
    await putting
    assert [message.value for message in await queue.get_many(wait_ms=0)] == [b"once"]


async def test_messages_of_an_ordered_key_and_of_an_id_have_one_partition(cluster: FakeCluster) -> None:
    cluster.create_queue("ordered", 6, ordered_by_key="true")
    cluster.create_queue("plain", 6)
    async with (
        Queue("ordered", bootstrap_servers=cluster.bootstrap_servers) as ordered,
        Queue("plain", bootstrap_servers=cluster.bootstrap_servers) as plain,
    ):
        by_key = await ordered.put_many([NewMessage(b"", key="k", id=str(n)) for n in range(20)])
        by_id = [await plain.put(b"", id="same", key=str(n)) for n in range(5)]
        spread = await plain.put_many([NewMessage(b"", id=str(n)) for n in range(100)])
    assert len({result.partition for result in by_key}) == 1
    assert [result.is_deduplicated for result in by_id] == [False, True, True, True, True]
    assert len({result.partition for result in spread}) == 6


async def test_compressed_values_arrive_unchanged(cluster: FakeCluster) -> None:
    cluster.create_queue("jobs")
    async with Queue("jobs", bootstrap_servers=cluster.bootstrap_servers, compression_type="zstd") as queue:
        await queue.put(b"value" * 1000)
        assert (await got(queue)).value == b"value" * 1000
    assert len(cluster.topics["jobs"].partitions[0].batches[0][2]) < 500


# ------------------------------------------------------------------------------------------------------------- getting


async def test_get_waits_until_there_is_a_message(queue: Queue) -> None:
    getting = asyncio.ensure_future(queue.get())
    await queue.put(b"late")
    message = await getting
    assert message is not None
    assert message.value == b"late"


async def test_an_empty_queue_is_no_error(queue: Queue) -> None:
    assert await queue.get(wait_ms=0) is None
    assert await queue.get(wait_ms=1) is None
    assert await queue.get_many(max_messages=5, wait_ms=1) == []


async def test_get_many_returns_at_most_max_messages(queue: Queue) -> None:
    await queue.put_many(b"%d" % n for n in range(10))
    first = await queue.get_many(max_messages=4)
    rest = await queue.get_many(max_messages=100)
    assert [message.value for message in first + rest] == [b"%d" % n for n in range(10)]


async def test_messages_of_every_leader_are_found(cluster: FakeCluster) -> None:
    cluster.create_queue("wide", 6)
    async with Queue("wide", bootstrap_servers=cluster.bootstrap_servers) as queue:
        await queue.put_many([NewMessage(b"%d" % n, id=str(n)) for n in range(60)])
        found: set[bytes] = set()
        while len(found) < 60:
            for message in await queue.get_many(max_messages=7, wait_ms=None):
                found.add(message.value)
                await message.ack()


async def test_the_smallest_priority_comes_first(queue: Queue) -> None:
    await queue.put_many([NewMessage(b"c", priority=3), NewMessage(b"a", priority=-1), NewMessage(b"b")])
    assert [(await got(queue)).value for _ in range(3)] == [b"a", b"b", b"c"]


async def test_only_messages_of_the_wanted_tenants_are_leased(queue: Queue) -> None:
    await queue.put_many([NewMessage(b"1", tenant="acme.eu"), NewMessage(b"2", tenant="other"), b"3"])
    assert (await got(queue, tenants=["other"])).value == b"2"
    assert (await got(queue, tenants=["acme"], wait_ms=0)).value == b"1"
    with pytest.raises(TypeError, match="several names"):
        await queue.get(tenants="acme")


async def test_only_the_next_message_of_a_key_is_leased(cluster: FakeCluster) -> None:
    cluster.create_queue("ordered", 6, ordered_by_key="true")
    async with Queue("ordered", bootstrap_servers=cluster.bootstrap_servers) as queue:
        for key in ("a", "b", "c"):
            await queue.put_many([NewMessage(key.encode() + b"%d" % n, key=key, tenant="t") for n in range(2)])
        await queue.put(b"root", key=b"\xff")
        assert await queue.get(wait_ms=0, key="a") is None, "it is of another tenant"
        first = await got(queue, wait_ms=0, key="a", tenants=["t"])
        assert (first.value, first.key, first.tenant) == (b"a0", b"a", "t")
        assert await queue.get_many(wait_ms=0, key="a", tenants=["t"]) == []
        waiting = asyncio.ensure_future(queue.get(wait_ms=10_000, key="a", tenants=["t"]))
        await first.ack()
        second = await waiting
        assert second is not None
        assert second.value == b"a1"
        await second.ack()
        assert (await got(queue, wait_ms=0, key=b"\xff")).value == b"root"
    asked = {(request.key, *request.partitions) for _, request in cluster.queue_polls}
    assert asked == {(key, crc32(key) % 6) for key in (b"a", b"\xff")}


async def test_a_key_needs_an_ordered_topic_and_one_tenant(cluster: FakeCluster, queue: Queue) -> None:
    with pytest.raises(errors.InvalidArgumentError, match="not ordered by key"):
        await queue.get(key="a")
    with pytest.raises(errors.InvalidArgumentError, match="one tenant"):
        await queue.get(key="a", tenants=["t", "u"])
    with pytest.raises(errors.InvalidArgumentError, match="a key has 1 to"):
        await queue.get(key="")
    assert cluster.queue_polls == []


async def test_a_cancelled_get_leaves_its_message_to_the_next_consumer(queue: Queue, cluster: FakeCluster) -> None:
    getting = asyncio.ensure_future(queue.get())
    await cluster.wait_queue(lambda: any(stream.credit for stream in cluster.queue_streams))
    getting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await getting
    await queue.put(b"for the next")
    message = await got(queue)
    assert (message.value, message.attempt) == (b"for the next", 1)


async def test_a_message_that_nobody_asks_for_is_given_back_uncounted(queue: Queue, cluster: FakeCluster) -> None:
    """A message may arrive after the consumer that it was leased for has given up."""
    fake = cluster.topics["jobs"].partitions[0].queue
    getting = asyncio.ensure_future(queue.get(wait_ms=50))
    await cluster.wait_queue(lambda: any(stream.credit for stream in cluster.queue_streams))
    (stream,) = cluster.queue_streams
    assert await getting is None
    await cluster.wait_queue(lambda: not stream.credit)
    stream.credit = 1  # as if the message had been sent before the credit was withdrawn
    await queue.put(b"surplus")
    await cluster.wait_queue(lambda: bool(fake.releases))
    assert fake.releases[0].is_uncounted
    assert not fake.releases[0].HasField("delay_ms"), "it keeps its place"
    message = await got(queue)
    assert (message.value, message.attempt) == (b"surplus", 1)


async def test_a_message_whose_lease_ended_in_the_client_is_not_handed_out(queue: Queue, cluster: FakeCluster) -> None:
    """The program blocked the event loop for longer than a lease. The message fetched ahead was handed out, although another may have it."""
    fake = cluster.topics["jobs"].partitions[0].queue
    fake.lease_ms = 1_000
    await queue.put_many([b"0", b"1"])
    found: list[tuple[bytes, int]] = []
    async for message in queue:
        found.append((message.value, message.attempt))
        if len(found) == 1:
            await message.ack()
            await cluster.wait_queue(lambda: all(one.lease_until_ms for one in fake.messages.values()))
            await asyncio.sleep(0.05)
            time.sleep(1.1)  # noqa: ASYNC251 - as such a program does
        else:
            await message.ack()
            break
    assert found == [(b"0", 1), (b"1", 2)]


async def test_a_message_that_waited_unread_for_its_whole_lease_is_not_handed_out(
    queue: Queue, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had arrived while the program blocked the event loop, and its lease seemed to begin when it was read."""
    fake = cluster.topics["jobs"].partitions[0].queue
    fake.lease_ms = 1_000
    await queue.put(b"0")
    first = await got(queue, lease_ms=60_000)  # from now on a thread renews leases, and watches the loop
    push = FakeStream.push

    def block_after(stream: FakeStream) -> None:
        before = stream.sent
        push(stream)
        if stream.sent > before:
            monkeypatch.undo()
            time.sleep(1.6)

    monkeypatch.setattr(FakeStream, "push", block_after)
    getting = asyncio.ensure_future(got(queue))
    await queue.put(b"1")
    message = await getting
    assert (message.value, message.attempt) == (b"1", 2)
    await asyncio.gather(first.ack(), message.ack(), return_exceptions=True)


async def test_async_iteration_returns_every_message_once(queue: Queue) -> None:
    await queue.put_many(b"%d" % n for n in range(20))
    found = []
    async for message in queue:
        found.append(message.value)
        await message.ack()
        if len(found) == 20:
            break
    assert found == [b"%d" % n for n in range(20)]


async def test_a_message_at_most_once_is_done_when_it_is_delivered(queue: Queue, cluster: FakeCluster) -> None:
    await queue.put(b"once")
    message = await got(queue, auto_accept=True)
    assert message.value == b"once"
    await message.ack()
    assert not cluster.topics["jobs"].partitions[0].queue.messages
    assert not cluster.acks
    with pytest.raises(errors.InvalidArgumentError, match="auto_accept"):
        await message.release()


async def test_a_message_whose_value_cannot_be_read_is_rejected(cluster: FakeCluster) -> None:
    (fake,) = cluster.create_queue("numbers")
    async with Queue[int](
        "numbers",
        bootstrap_servers=cluster.bootstrap_servers,
        value_serializer=lambda number: b"%d" % number if number else b"none",
        value_deserializer=int,
    ) as queue:
        await queue.put_many([0, 7])
        message = await queue.get()
        assert message is not None
        assert message.value == 7
        await cluster.wait_queue(lambda: fake.messages[0].dead_reason == "rejected")
        assert "ValueError" in fake.messages[0].error


# ------------------------------------------------------------------------------------------------------------ settling


async def test_ack_deletes_the_message(queue: Queue, cluster: FakeCluster) -> None:
    await queue.put(b"done")
    await (await got(queue)).ack()
    assert not cluster.topics["jobs"].partitions[0].queue.messages


async def test_a_released_message_comes_again_with_a_higher_attempt(queue: Queue) -> None:
    await queue.put(b"again")
    assert await (await got(queue)).release(priority=7, error="try again")
    message = await got(queue)
    assert (message.value, message.attempt, message.priority) == (b"again", 2, 7)


async def test_a_release_may_wait_for_ten_years(queue: Queue, cluster: FakeCluster) -> None:
    fake = cluster.topics["jobs"].partitions[0].queue
    sixty_days = 60 * 86_400_000
    await queue.put(b"later")
    await (await got(queue)).release(delay_ms=sixty_days)
    fake.offset_ms += sixty_days - 60_000
    assert await queue.get(wait_ms=0) is None
    fake.offset_ms += 60_001
    message = await got(queue, wait_ms=0)
    with pytest.raises(errors.InvalidArgumentError, match="ten years"):
        await message.release(delay_ms=11 * 366 * 86_400_000)
    await message.ack()


@pytest.mark.parametrize("lease_ms", [0, 1, 999, 43_200_001, 60 * 86_400_000, float("nan"), float("inf")])
async def test_a_lease_that_is_too_short_or_too_long_is_refused_in_the_call(
    queue: Queue, cluster: FakeCluster, lease_ms: float
) -> None:
    for wait_ms in (0, 1000, None):
        with pytest.raises(errors.InvalidArgumentError, match="1 s"):
            await queue.get(wait_ms=wait_ms, lease_ms=lease_ms)
    with pytest.raises(errors.InvalidArgumentError, match="12 h"):
        await anext(queue.messages(lease_ms=lease_ms))
    await queue.put(b"x")
    message = await got(queue)
    with pytest.raises(errors.InvalidArgumentError, match="12 h"):
        await message.renew(lease_ms)
    with pytest.raises(errors.InvalidArgumentError, match="12 h"):
        await queue.settle(message.token, "renew", lease_ms=lease_ms)
    await message.ack()
    assert cluster.topics["jobs"].partitions[0].queue.settled == [("ACCEPT", 0)]


async def test_a_wait_without_an_end_is_polled_in_turns(queue: Queue) -> None:
    getting = asyncio.ensure_future(queue.get(wait_ms=float("inf"), auto_accept=True))
    await queue.put(b"x")
    message = await getting
    assert message is not None


async def test_a_defect_of_one_request_does_not_stop_the_queue(
    queue: Queue, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    make_open = Intake._make_open

    def failing(intake: Intake) -> pb.QueueStreamOpen:
        if intake._options.lease_ms == 5000:
            raise ValueError("a defect")
        return make_open(intake)

    monkeypatch.setattr(Intake, "_make_open", failing)
    others = asyncio.ensure_future(queue.get())
    for _ in range(2):
        with pytest.raises(errors.ClosedClientError, match="internal error"):
            await queue.get(lease_ms=5000)
    await queue.put_many([b"first", b"second"])
    first = await others
    assert first is not None
    second = await got(queue)
    await asyncio.gather(first.ack(), second.ack())
    assert [record.getMessage() for record in caplog.records if "stopped" in record.getMessage()] == [
        "receiving_stopped error_code=ValueError"
    ] * 2


async def test_a_defect_gives_back_what_nobody_has_got(
    queue: Queue, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message is then free for the next call, which has streams of its own."""
    fake = cluster.topics["jobs"].partitions[0].queue

    def failing(intake: Intake) -> None:
        raise ValueError("a defect")

    with monkeypatch.context() as patch:
        patch.setattr(Intake, "_hand_out", failing)
        getting = asyncio.ensure_future(queue.get())
        await queue.put(b"x")
        with pytest.raises(errors.ClosedClientError):
            await getting
    message = await got(queue)
    assert (message.value, message.attempt) == (b"x", 1)
    await message.ack()
    assert fake.settled == [("RELEASE", 0), ("ACCEPT", 0)]


async def test_the_last_release_tells_that_the_message_is_dead(queue: Queue, cluster: FakeCluster) -> None:
    fake = cluster.topics["jobs"].partitions[0].queue
    fake.attempts_max = 1
    await queue.put(b"poison")
    assert not await (await got(queue)).release(error="too often")
    assert fake.messages[0].dead_reason == "exhausted"


async def test_a_rejected_message_is_dead_with_its_reason(queue: Queue, cluster: FakeCluster) -> None:
    await queue.put(b"bad")
    await (await got(queue)).reject("no such customer" + "x" * 2000)
    dead = cluster.topics["jobs"].partitions[0].queue.messages[0]
    assert dead.dead_reason == "rejected"
    assert dead.error.startswith("no such customer")
    assert len(dead.error) == settings.MESSAGE_ERROR_BYTES_MAX


async def test_renew_extends_the_lease_and_reports_progress(queue: Queue, cluster: FakeCluster) -> None:
    fake = cluster.topics["jobs"].partitions[0].queue
    await queue.put(b"long")
    message = await got(queue)
    fake.offset_ms += 20_000
    await message.renew(lease_ms=60_000, progress="half")
    fake.offset_ms += 50_000
    await message.ack()
    assert fake.settled == [("RENEW", 0), ("ACCEPT", 0)]


async def test_a_renewed_lease_has_the_length_that_the_broker_granted(queue: Queue, cluster: FakeCluster) -> None:
    fake = cluster.topics["jobs"].partitions[0].queue
    fake.lease_max_ms = 60_000
    await queue.put(b"long")
    message = await got(queue)
    await message.renew(lease_ms=600_000)
    assert message._lease is not None
    assert message._lease.lease_seconds == pytest.approx(60, abs=1)
    fake.lease_ms = 5000
    await message.renew(lease_ms=5000)
    assert message._lease.lease_seconds == pytest.approx(5, abs=1)


async def test_a_lease_is_renewed_while_an_explicit_renewal_is_unanswered(queue: Queue, cluster: FakeCluster) -> None:
    await queue.put(b"long")
    message = await got(queue, lease_ms=1500)
    is_held = asyncio.Event()

    def refuse_of_sessions(ack: pb.PartitionAck) -> pb.ErrorDetail | None:
        is_held.set()
        return detail(pb.NOT_READY) if ack.session else None  # the automatic renewals have none

    cluster.ack_hook = refuse_of_sessions
    renewing = asyncio.ensure_future(message.renew(progress="half"))
    await is_held.wait()
    fake = cluster.topics["jobs"].partitions[0].queue
    await cluster.wait_queue(lambda: ("RENEW", 0) in fake.settled)
    assert not renewing.done()
    cluster.ack_hook = None
    await renewing


async def test_a_settlement_after_the_lease_is_refused(queue: Queue, cluster: FakeCluster) -> None:
    fake = cluster.topics["jobs"].partitions[0].queue
    await queue.put_many([b"lost", b"gone"])
    lost, gone = await got(queue), await got(queue)
    fake.offset_ms += 31_000
    fake.expire(fake.now_ms())
    del fake.messages[gone.sequence]
    with pytest.raises(errors.LeaseLostError):
        await lost.ack()
    with pytest.raises(errors.LeaseUnknownError):
        await gone.ack()


async def test_a_message_is_settled_once(queue: Queue) -> None:
    await queue.put(b"x")
    message = await got(queue)
    await message.ack()
    with pytest.raises(errors.InvalidArgumentError, match="settled"):
        await message.release()


async def test_settlements_of_one_turn_travel_together(queue: Queue, cluster: FakeCluster) -> None:
    await queue.put_many(b"" for _ in range(1200))
    messages = []
    while len(messages) < 1200:
        messages += await queue.get_many(max_messages=1000)
    await asyncio.gather(*(message.ack() for message in messages))
    sent = [ack for ack in cluster.acks if ack.operations]
    assert sum(sum(ack.counts) for ack in sent) == 1200
    assert len(sent) <= 5
    assert max(sum(ack.counts) for ack in sent) <= settings.ACK_MESSAGES_MAX
    assert all(len(ack.operations) == 1 for ack in sent)  # neighbours in one run


async def test_ack_many_settles_messages_of_all_partitions_in_one_request_each(cluster: FakeCluster) -> None:
    partitions = cluster.create_queue("jobs", 3)
    async with Queue("jobs", bootstrap_servers=cluster.bootstrap_servers) as queue:
        await queue.put_many(NewMessage(b"x", id=str(n)) for n in range(60))
        messages: list[Message] = []
        while len(messages) < 60:
            messages += await queue.get_many()
        await queue.ack_many(reversed(messages))
        await queue.ack_many([])
    assert [len(fake.messages) for fake in partitions] == [0, 0, 0]
    assert len(cluster.acks) == 3
    assert all(len(ack.operations) == 1 for ack in cluster.acks)


async def test_ack_many_settles_the_others_before_it_reports_a_failure(queue: Queue, cluster: FakeCluster) -> None:
    fake = cluster.topics["jobs"].partitions[0].queue
    await queue.put_many([b"done before", b"lost", b"a", b"b"])
    done, lost, *good = await queue.get_many(max_messages=4)
    await done.ack()
    fake.messages[lost.sequence].lease_number += 1
    with pytest.raises(errors.InvalidArgumentError, match="settled") as caught:
        await queue.ack_many([done, lost, *good])
    assert caught.value.__notes__ == ["2 of 4 settlements failed; the other messages are done"]
    assert list(fake.messages) == [lost.sequence]
    with pytest.raises(errors.InvalidArgumentError, match="settled"):
        await queue.ack_many([good[0]])


async def test_ack_many_settles_a_message_once_that_is_named_twice(queue: Queue, cluster: FakeCluster) -> None:
    await queue.put(b"x")
    message = await got(queue)
    with pytest.raises(errors.InvalidArgumentError, match="settled"):
        await queue.ack_many([message, message])
    assert cluster.topics["jobs"].partitions[0].queue.settled == [("ACCEPT", 0)]


async def test_ack_many_refuses_messages_of_another_queue(queue: Queue, cluster: FakeCluster) -> None:
    await queue.put(b"x")
    message = await got(queue)
    async with Queue("jobs", bootstrap_servers=cluster.bootstrap_servers) as other:
        with pytest.raises(errors.InvalidArgumentError, match="another Queue"):
            await other.ack_many([message])
    await queue.ack_many([message])


async def test_ack_many_ignores_messages_that_are_done(queue: Queue, cluster: FakeCluster) -> None:
    await queue.put_many([b"a", b"b"])
    done, held = await got(queue, auto_accept=True), await got(queue)
    await queue.ack_many([done, held])
    assert not cluster.topics["jobs"].partitions[0].queue.messages


async def test_a_cancelled_ack_is_sent_again_until_it_is_answered(queue: Queue, cluster: FakeCluster) -> None:
    """Cancelling the wait does not withdraw the settlement, also when the first answer is lost."""
    fake = cluster.topics["jobs"].partitions[0].queue
    await queue.put_many([b"a", b"b"])
    first, second = await got(queue), await got(queue)
    verdicts = iter(["drop"])
    cluster.ack_hook = lambda _: next(verdicts, None)
    settling = asyncio.ensure_future(queue.ack_many([first]))
    await cluster.wait_queue(lambda: bool(cluster.acks))
    settling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await settling
    await second.ack()
    await cluster.wait_queue(lambda: not fake.messages)
    assert fake.settled == [("ACCEPT", 0), ("ACCEPT", 1)]
    assert cluster.acks[0] == cluster.acks[1]


async def test_a_settlement_whose_answer_is_lost_is_repeated_under_its_number(
    queue: Queue, cluster: FakeCluster
) -> None:
    await queue.put(b"x")
    message = await got(queue)
    verdicts = iter(["drop"])
    cluster.ack_hook = lambda _: next(verdicts, None)
    await message.ack()
    first, again = cluster.acks
    assert first == again
    assert first.session
    assert cluster.topics["jobs"].partitions[0].queue.settled == [("ACCEPT", 0)]


async def test_a_settlement_that_a_frozen_leader_does_not_answer_is_repeated_to_the_next_one(
    queue: Queue, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It failed after `request_timeout_ms`, although another broker led for long, and its message was delivered again."""
    monkeypatch.setattr(settings, "LATE_ANSWER_SECONDS", 0.1)
    await queue.put(b"x")
    message = await got(queue)
    cluster.held_answers = []
    settling = asyncio.ensure_future(message.ack())
    await cluster.wait_queue(lambda: bool(cluster.acks))
    cluster.held_answers = None
    cluster.move_leader("jobs", 0, 2)
    async with asyncio.timeout(20):
        await settling
    first, again = cluster.acks
    assert first == again


async def test_settlements_continue_in_another_session_when_theirs_has_ended(
    queue: Queue, cluster: FakeCluster
) -> None:
    fake = cluster.topics["jobs"].partitions[0].queue
    await queue.put_many([b"a", b"b"])
    first, second = await got(queue), await got(queue)
    await first.ack()
    fake.sessions.clear()
    await second.ack()
    assert fake.settled == [("ACCEPT", 0), ("ACCEPT", 1)]
    assert [ack.session for ack in cluster.acks] == [1, 1, 2]


async def test_a_session_is_requested_again_from_a_partition_that_had_too_many(
    queue: Queue, cluster: FakeCluster
) -> None:
    """A client that met the limit once settled without a session for as long as it lived: a lost answer then meant an unknown outcome.

    Its first settlement waited for `request_timeout_ms`, in which sessions do not expire.
    """
    fake = cluster.topics["jobs"].partitions[0].queue
    fake.sessions_max = 0
    for value in (b"none", b"too early", b"again", b"then"):
        await queue.put(value)
    async with asyncio.timeout(10):
        await (await got(queue)).ack()
    fake.sessions_max = 1
    await (await got(queue)).ack()
    assert not fake.sessions
    (partition,) = queue._desk._settler._partitions.values()
    partition._ask_again_at = 0.0
    message = await got(queue)
    async with asyncio.timeout(10):
        while not fake.sessions:
            await asyncio.sleep(0.01)
    await message.ack()
    await (await got(queue)).ack()
    assert [ack.session for ack in cluster.acks][:2] == [0, 0]
    assert cluster.acks[-1].session == 1
    assert [operation for operation, _ in fake.settled] == ["ACCEPT"] * 4


# ------------------------------------------------------------------------------------------------------------- chains


async def test_an_ack_puts_the_next_messages(queue: Queue) -> None:
    await queue.put(b"first", key="k", tenant="acme")
    message = await got(queue)
    await message.ack(put=[b"plain", NewMessage(b"next", key=message.key, tenant=message.tenant, priority=-1)])
    following = await queue.get_many(wait_ms=0)
    assert [(one.value, one.tenant, one.key) for one in following] == [(b"next", "acme", b"k"), (b"plain", "", None)]


async def test_a_chain_whose_answer_is_lost_puts_once(queue: Queue, cluster: FakeCluster) -> None:
    await queue.put(b"first")
    message = await got(queue)
    verdicts = iter(["drop"])
    cluster.ack_hook = lambda _: next(verdicts, None)
    await message.ack(put=[b"next"])
    first, again = cluster.acks
    assert first == again
    assert [one.value for one in await queue.get_many(wait_ms=0)] == [b"next"]


async def test_a_chain_whose_lease_is_lost_puts_nothing(queue: Queue, cluster: FakeCluster) -> None:
    await queue.put_many([b"lost", b"held"])
    lost, held = await got(queue, lease_ms=60_000), await got(queue, lease_ms=60_000)
    cluster.topics["jobs"].partitions[0].queue.messages[lost.sequence].lease_number += 1
    late, done = await asyncio.gather(lost.ack(put=[b"no"]), held.ack(put=[b"yes"]), return_exceptions=True)
    assert isinstance(late, errors.LeaseLostError)
    assert done is None
    assert len([ack for ack in cluster.acks if ack.put]) == 1, "both travel together"
    assert {one.body for one in cluster.topics["jobs"].partitions[0].queue.messages.values()} == {b"lost", b"yes"}


@pytest.mark.parametrize("puts", [(), (b"next",)], ids=["acknowledged", "chained"])
async def test_a_settlement_that_cannot_be_encoded_gets_a_verdict_and_the_others_are_settled(
    queue: Queue, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, puts: tuple[bytes, ...]
) -> None:
    """They had no verdict, and their calls waited without end."""
    await queue.put_many([b"a", b"b", b"c"])
    first, bad, last = await queue.get_many(max_messages=3)

    def broken(build: Callable[..., pb.PartitionAck]) -> Callable[..., pb.PartitionAck]:
        def build_unless_bad(partition, settlements, *rest) -> pb.PartitionAck:
            if any(one.lease.sequence == bad.sequence for one in settlements):
                raise ValueError("cannot be encoded")
            return build(partition, settlements, *rest)

        return build_unless_bad

    for name in ("build_ack", "build_chain"):
        monkeypatch.setattr(settler, name, broken(vars(settler)[name]))
    acks = [message.ack(put=puts) for message in (first, bad, last)]
    async with asyncio.timeout(10):
        outcomes = await asyncio.gather(*acks, return_exceptions=True)
    assert outcomes[0] is None
    assert outcomes[2] is None
    assert isinstance(outcomes[1], errors.InvalidArgumentError)
    assert isinstance(outcomes[1].__cause__, ValueError)


async def test_a_settlement_that_the_broker_refuses_is_refused_alone(queue: Queue, cluster: FakeCluster) -> None:
    await queue.put_many([b"a", b"b", b"c"])
    first, bad, last = await queue.get_many(max_messages=3)

    def refuse(ack: pb.PartitionAck) -> pb.ErrorDetail | None:
        runs = zip(ack.first_sequences, ack.counts, strict=True)
        if not any(start <= bad.sequence < start + count for start, count in runs):
            return None
        return detail(pb.INVALID_ARGUMENT, "a delay must be between 0 and 1 ms")

    cluster.ack_hook = refuse
    outcomes = await asyncio.gather(first.ack(), bad.release(5), last.ack(), return_exceptions=True)
    assert outcomes[0] is None
    assert outcomes[2] is None
    assert isinstance(outcomes[1], errors.InvalidArgumentError)


async def test_chains_travel_apart_from_other_settlements_and_within_the_work_of_an_entry(
    queue: Queue, cluster: FakeCluster
) -> None:
    await queue.put_many(b"%d" % number for number in range(20))
    messages = await queue.get_many(max_messages=20)
    puts = [() if number % 2 else [b""] * 99 for number in range(len(messages))]
    await asyncio.gather(*(message.ack(put=put) for message, put in zip(messages, puts, strict=True)))
    for ack in cluster.acks:
        assert len({count > 0 for count in ack.put_counts}) <= 1
        assert sum(ack.counts) + sum(ack.put_counts) <= settings.ACK_MESSAGES_MAX
    assert sum(sum(ack.put_counts) for ack in cluster.acks) == 10 * 99


async def test_a_chain_that_finds_a_full_partition_is_refused_alone_and_its_message_is_still_leased(
    queue: Queue, cluster: FakeCluster
) -> None:
    await queue.put_many([b"noisy", b"quiet"])
    noisy, quiet = await got(queue), await got(queue)

    def refuse(ack: pb.PartitionAck) -> pb.ErrorDetail | None:
        return detail(pb.TENANT_FULL) if noisy.sequence in ack.first_sequences and ack.put else None

    cluster.ack_hook = refuse
    full, done = await asyncio.gather(
        noisy.ack(put=[NewMessage(b"", tenant="noisy")]), quiet.ack(put=[b"next"]), return_exceptions=True
    )
    assert isinstance(full, errors.TenantFullError)
    assert done is None
    await noisy.release()
    assert {one.value for one in await queue.get_many(wait_ms=0)} == {b"next", b"noisy"}


async def test_a_full_partition_after_a_lost_attempt_says_nothing_about_that_attempt(
    queue: Queue, cluster: FakeCluster
) -> None:
    await queue.put(b"first")
    message = await got(queue)
    verdicts: Iterator[pb.ErrorDetail | str] = iter(["drop", detail(pb.QUEUE_FULL)])
    cluster.ack_hook = lambda _: next(verdicts, None)
    await message.ack(put=[b"next"])
    assert len(cluster.acks) == 3
    assert [one.value for one in await queue.get_many(wait_ms=0)] == [b"next"]


@pytest.mark.parametrize(
    ("put", "error"),
    [
        (b"one value", TypeError),
        ([None], TypeError),
        ([NewMessage(b"", priority=1 << 40)], errors.InvalidArgumentError),
        ([b""] * settings.ACK_MESSAGES_MAX, errors.InvalidArgumentError),
        ([b"x" * 300_000] * 2, errors.RecordTooLargeError),
        ([b"x" * 1_100_000], errors.RecordTooLargeError),
    ],
)
async def test_a_chain_that_no_broker_takes_is_refused_before_the_message_is_settled(queue: Queue, put, error) -> None:
    await queue.put(b"first")
    message = await got(queue)
    with pytest.raises(error):
        await message.ack(put=put)
    await message.ack()


async def test_a_chain_with_a_message_of_another_partition_is_refused(cluster: FakeCluster) -> None:
    cluster.create_queue("ordered", 6, ordered_by_key="true")
    async with Queue("ordered", bootstrap_servers=cluster.bootstrap_servers) as queue:
        places = {(await queue.put(b"", key=str(n))).partition: str(n) for n in range(20)}
        message = await got(queue)
        (other,) = [key for partition, key in places.items() if partition != message.partition][:1]
        with pytest.raises(errors.InvalidArgumentError, match="belongs to partition"):
            await message.ack(put=[NewMessage(b"", key=other)])
        await message.ack(put=[NewMessage(b"next", key=places[message.partition]), b"without a key"])


async def test_a_message_that_is_done_already_has_no_chain(queue: Queue) -> None:
    await queue.put(b"first")
    message = await got(queue, auto_accept=True)
    with pytest.raises(errors.InvalidArgumentError):
        await message.ack(put=[b"next"])


async def test_settlements_follow_a_new_leader(queue: Queue, cluster: FakeCluster) -> None:
    await queue.put_many([b"a", b"b"])
    first, second = await got(queue), await got(queue)
    async with cluster.silence():
        cluster.move_leader("jobs", 0, 3, is_announced=False)
        await first.ack()
    await second.ack()
    assert cluster.topics["jobs"].partitions[0].queue.settled == [("ACCEPT", 0), ("ACCEPT", 1)]


async def test_consumers_follow_a_new_leader(queue: Queue, cluster: FakeCluster) -> None:
    getting = asyncio.ensure_future(queue.get())
    await cluster.wait_queue(lambda: any(stream.credit for stream in cluster.queue_streams))
    cluster.move_leader("jobs", 0, 2)
    await queue.put(b"moved")
    message = await getting
    assert message is not None
    await message.ack()
    assert not cluster.topics["jobs"].partitions[0].queue.messages


async def test_a_settlement_without_an_answer_in_time_is_unknown(cluster: FakeCluster) -> None:
    cluster.create_queue("jobs")
    async with Queue("jobs", bootstrap_servers=cluster.bootstrap_servers, request_timeout_ms=700) as queue:
        await queue.put(b"x")
        message = await got(queue)
        cluster.ack_hook = lambda _: detail(pb.NO_LEADER)
        with pytest.raises(errors.RequestTimedOutError) as caught:
            await message.ack()
        cluster.ack_hook = None
    assert caught.value.outcome is errors.Outcome.UNKNOWN


async def test_a_refused_stream_raises_where_somebody_waits(queue: Queue, cluster: FakeCluster) -> None:
    cluster.stream_error = detail(pb.PERMISSION_DENIED)
    with pytest.raises(errors.PermissionDeniedError):
        await queue.get()
    cluster.stream_error = detail(pb.NOT_READY)
    getting = asyncio.ensure_future(queue.get())
    await cluster.wait_queue(lambda: True)
    cluster.stream_error = None
    await queue.put(b"later")
    message = await getting
    assert message is not None
    assert message.value == b"later"


def id_in(partition: int, partitions: int) -> str:
    """Return an id whose messages go to one of so many partitions."""
    return next(f"id-{n}" for n in range(100) if crc32(f"id-{n}".encode()) % partitions == partition)


async def put_into_added_partition(cluster: FakeCluster) -> FakeQueue:
    """Add a partition, and put a message into it with a client that knows it. Return its messages."""
    cluster.add_partitions("jobs", 2)
    added = cluster.topics["jobs"].partitions[1]
    added.is_queue, added.leader = True, cluster.topics["jobs"].partitions[0].leader
    async with Queue("jobs", bootstrap_servers=cluster.bootstrap_servers) as other:
        result = await other.put(b"in the new one", id=id_in(1, 2))
        assert result.partition == 1
    return added.queue


async def test_messages_of_a_partition_that_is_not_known_yet_are_given_back(queue: Queue, cluster: FakeCluster) -> None:
    """They were dropped, and came again after their leases, with an attempt less."""
    getting = asyncio.ensure_future(queue.get())
    await cluster.wait_queue(lambda: any(stream.credit for stream in cluster.queue_streams))
    async with cluster.silence():
        fake = await put_into_added_partition(cluster)
        async with asyncio.timeout(10):
            await cluster.wait_queue(lambda: bool(fake.releases))
        assert fake.releases[0].is_uncounted
        assert not fake.releases[0].HasField("delay_ms"), "it keeps its place"
    message = await getting
    assert message is not None
    assert (message.value, message.attempt) == (b"in the new one", 1)


async def test_a_poll_looks_up_a_partition_that_is_not_known_yet(queue: Queue, cluster: FakeCluster) -> None:
    """A message that was accepted automatically was lost."""
    topics = queue._resolver.topics
    before = topics["jobs"]
    async with cluster.silence():
        await put_into_added_partition(cluster)
        topics["jobs"] = before
        message = await got(queue, wait_ms=0, auto_accept=True)
        assert message.value == b"in the new one"


async def test_who_waits_learns_that_the_topic_was_deleted(
    queue: Queue, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "QUEUE_POLL_WAIT_MS", 600_000)
    # as if the topology told it before the stream did, which is then closed
    monkeypatch.setattr(Intake, "on_refused", lambda _self, _error: None)

    async def iterate() -> None:
        async for _ in queue:
            raise AssertionError("there is no message")

    waiting = [asyncio.ensure_future(queue.get()), asyncio.ensure_future(iterate())]
    await cluster.wait_queue(lambda: any(stream.credit for stream in cluster.queue_streams))
    cluster.delete_topic("jobs")
    async with asyncio.timeout(10):
        for one in waiting:
            with pytest.raises(errors.UnknownTopicError):
                await one


async def test_close_gives_back_what_nobody_has_got(cluster: FakeCluster) -> None:
    (fake,) = cluster.create_queue("jobs")
    async with Queue("jobs", bootstrap_servers=cluster.bootstrap_servers) as queue:
        await queue.put_many([b"a", b"b", b"c"])
        iterator = queue.messages()
        first = await anext(iterator)  # the next message is fetched in the meantime
        await cluster.wait_queue(lambda: len([m for m in fake.messages.values() if m.lease_until_ms]) == 2)
        await first.ack()
    states = [(message.state(fake.now_ms()), message.attempts) for message in fake.messages.values()]
    assert states == [(pb.READY, 0), (pb.READY, 0)]


async def test_a_closed_queue_refuses_everything(cluster: FakeCluster) -> None:
    cluster.create_queue("jobs")
    queue = Queue("jobs", bootstrap_servers=cluster.bootstrap_servers)
    with pytest.raises(errors.ClosedClientError, match="not started"):
        await queue.put(b"")
    async with queue:
        await queue.put(b"x")
        message = await got(queue)
        waiting = asyncio.ensure_future(queue.get())
        await cluster.wait_queue(lambda: any(stream.credit for stream in cluster.queue_streams))
    with pytest.raises(errors.ClosedClientError):
        await waiting
    for call in (
        queue.put(b""),
        queue.get(),
        message.ack(),
        queue.ack_many([message]),
        queue.stats(),
        queue.cancel("x"),
    ):
        with pytest.raises(errors.ClosedClientError):
            await call


async def test_puts_under_way_end_when_the_queue_is_closed(queue: Queue) -> None:
    """A `put_many` went on after the close, with messages that nobody delivered, and waited for them without an end."""
    values = (b"x" for _ in itertools.count())
    putting = asyncio.ensure_future(queue.put_many(values))
    await asyncio.sleep(0.02)
    await queue.close()
    with pytest.raises(errors.ClosedClientError) as raised:
        await asyncio.wait_for(putting, 10)
    assert "the messages before it are enqueued" in raised.value.__notes__[0]


async def test_a_first_put_ends_when_the_queue_is_closed(queue: Queue, cluster: FakeCluster) -> None:
    """The answer with its producer id came after the close, and its message was accepted by a stopped producer."""
    registering, answered = asyncio.Event(), asyncio.Event()
    register = ProducerName.register

    async def late(self: ProducerName, timeout_seconds: float) -> ProducerIdentity:
        identity = await register(self, timeout_seconds)
        registering.set()
        await answered.wait()
        return identity

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ProducerName, "register", late)
        putting = asyncio.ensure_future(queue.put(b"x"))
        await registering.wait()
        await queue._putter.close()
        answered.set()
        with pytest.raises(errors.ClosedClientError):
            await asyncio.wait_for(putting, 10)


async def test_a_log_topic_is_refused(cluster: FakeCluster) -> None:
    cluster.create_topic("log")
    with pytest.raises(errors.TopicKindMismatchError, match="kind='queue'"):
        await Queue("log", bootstrap_servers=cluster.bootstrap_servers).start()
    with pytest.raises(errors.UnknownTopicError):
        await Queue("none", bootstrap_servers=cluster.bootstrap_servers).start()


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda queue, message: message.ack(), id="ack"),
        pytest.param(lambda queue, message: message.ack(put=[b"next"]), id="chain"),
        pytest.param(lambda queue, message: message.release(), id="release"),
        pytest.param(lambda queue, message: message.reject(), id="reject"),
        pytest.param(lambda queue, message: message.renew(), id="renew"),
        pytest.param(lambda queue, message: queue.ack_many([message]), id="ack_many"),
    ],
)
async def test_a_message_refuses_another_event_loop_and_remains_held(
    queue: Queue, call: Callable[[Queue, Message], Coroutine[object, object, object]]
) -> None:
    """It once counted as settled after such a call, and nobody could settle it any more."""
    await queue.put(b"work")
    message = await got(queue)

    def elsewhere() -> None:
        with pytest.raises(errors.WrongEventLoopError, match="this queue was started on an event loop that"):
            asyncio.run(call(queue, message))

    await asyncio.to_thread(elsewhere)
    await message.ack()
    assert await queue.get(wait_ms=0) is None


# ------------------------------------------------------------------------------------------------- settlements in flight


async def settled_one_by_one(cluster: FakeCluster, messages: list[Message], count: int) -> list[asyncio.Future[None]]:
    """Accept messages while answers are held back, each in a request of its own as long as there may be one more. `count`: these."""
    cluster.held_answers = cluster.held_answers or []
    settling: list[asyncio.Future[None]] = []
    for number, message in enumerate(messages, 1):
        settling.append(asyncio.ensure_future(message.ack()))
        wanted = len(cluster.acks) + 1
        if number <= count:
            await cluster.wait_queue(partial(_has_acks, cluster, wanted))
    return settling


def _has_acks(cluster: FakeCluster, count: int) -> bool:
    return len(cluster.acks) >= count


def numbers(cluster: FakeCluster) -> list[int]:
    return [ack.request for ack in cluster.acks]


async def test_five_requests_with_settlements_are_in_flight_and_further_settlements_travel_together(
    queue: Queue, cluster: FakeCluster
) -> None:
    await queue.put_many(b"%d" % n for n in range(8))
    messages = await queue.get_many(max_messages=8)
    settling = await settled_one_by_one(cluster, messages, settings.ACKS_IN_FLIGHT_MAX)
    await asyncio.sleep(0.05)
    assert numbers(cluster) == [1, 2, 3, 4, 5]
    cluster.release_answers(1)
    await cluster.wait_queue(lambda: len(cluster.acks) == 6)
    assert [done.done() for done in settling] == [True] + [False] * 7
    cluster.release_answers()
    await asyncio.gather(*settling)
    assert numbers(cluster) == [1, 2, 3, 4, 5, 6]
    assert sum(cluster.acks[5].counts) == 3


async def test_no_request_is_sent_whose_number_makes_a_partition_forget_an_unanswered_one(
    queue: Queue, cluster: FakeCluster
) -> None:
    await queue.put_many(b"%d" % n for n in range(6))
    messages = await queue.get_many(max_messages=6)
    settling = await settled_one_by_one(cluster, messages, settings.ACKS_IN_FLIGHT_MAX)
    assert cluster.held_answers is not None
    oldest = cluster.held_answers.pop(0)
    cluster.release_answers(4)
    await asyncio.gather(*settling[1:5])
    await asyncio.sleep(0.05)
    assert numbers(cluster) == [1, 2, 3, 4, 5]
    cluster.held_answers.append(oldest)
    cluster.release_answers()
    await asyncio.gather(*settling)
    assert numbers(cluster) == [1, 2, 3, 4, 5, 6]


async def test_all_requests_whose_answers_are_lost_are_repeated_in_order_under_their_numbers(
    queue: Queue, cluster: FakeCluster
) -> None:
    fake = cluster.topics["jobs"].partitions[0].queue
    await queue.put_many(b"%d" % n for n in range(7))
    messages = await queue.get_many(max_messages=7)
    settling = await settled_one_by_one(cluster, messages, settings.ACKS_IN_FLIGHT_MAX)
    cluster.lose_answers()
    await asyncio.gather(*settling)
    assert numbers(cluster) == [1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 6]
    assert [ack.first_sequences[0] for ack in cluster.acks[:5]] == [
        ack.first_sequences[0] for ack in cluster.acks[5:10]
    ]
    assert fake.settled == [("ACCEPT", n) for n in range(7)]


async def test_refused_requests_follow_a_new_leader_in_order(queue: Queue, cluster: FakeCluster) -> None:
    fake = cluster.topics["jobs"].partitions[0].queue
    await queue.put_many(b"%d" % n for n in range(4))
    messages = await queue.get_many(max_messages=4)
    settling = await settled_one_by_one(cluster, messages[:1], 1)
    async with cluster.silence():
        cluster.move_leader("jobs", 0, 3, is_announced=False)
        settling += await settled_one_by_one(cluster, messages[1:], 3)
        cluster.release_answers()
        await asyncio.gather(*settling)
    assert fake.settled == [("ACCEPT", n) for n in range(4)]


async def test_requests_of_a_forgotten_session_are_renumbered_and_their_doubt_is_told(
    queue: Queue, cluster: FakeCluster
) -> None:
    """A settlement that was applied, and whose answer was lost with its session, must not be called too late."""
    fake = cluster.topics["jobs"].partitions[0].queue
    await queue.put_many([b"accepted", b"released", b"not applied"])
    accepted, released, other = await queue.get_many(max_messages=3)
    cluster.held_answers = []
    settling = [asyncio.ensure_future(accepted.ack()), asyncio.ensure_future(released.release(delay_ms=0))]
    await cluster.wait_queue(lambda: len(fake.settled) == 2)
    async with Queue("jobs", bootstrap_servers=cluster.bootstrap_servers) as second:
        again = await got(second)
        assert (again.value, again.attempt) == (b"released", 2)
        fake.sessions.clear()
        cluster.lose_answers()
        settling.append(asyncio.ensure_future(other.ack()))
        outcomes = await asyncio.gather(*settling, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [
            errors.LeaseUnknownError,
            errors.LeaseUnknownError,
            type(None),
        ]
        await again.ack()
    assert {ack.session for ack in cluster.acks} >= {1, 2}


async def test_a_callback_for_a_lost_lease_that_fails_or_comes_late_keeps_no_other_from_being_called(
    queue: Queue, cluster: FakeCluster
) -> None:
    fake = cluster.topics["jobs"].partitions[0].queue
    told: list[int] = []
    both = asyncio.Event()

    def tell(number: int) -> None:
        told.append(number)
        if len(told) == 2:
            both.set()
        raise ValueError("the program's mistake")

    await queue.put_many([b"0", b"1"])
    messages = [await got(queue, lease_ms=1000) for _ in range(2)]
    for number, message in enumerate(messages):
        message.on_lost(partial(tell, number))
    fake.offset_ms += 60_000  # the leases end, and no renewal was in time
    fake.expire(fake.now_ms())
    await both.wait()
    assert sorted(told) == [0, 1]
    late = asyncio.Event()
    messages[0].on_lost(late.set)
    await late.wait()


async def test_an_iterator_holds_no_message_that_the_program_forgot(queue: Queue) -> None:
    """It renewed the lease until the next message came, so that nobody else got it."""
    await queue.put(b"1")
    messages = queue.messages()
    forgotten = ref(await anext(messages))
    assert forgotten() is None
    following = asyncio.ensure_future(anext(messages))
    await queue.put(b"2")
    second = ref(await following)
    del following
    await asyncio.sleep(0)  # the event loop holds the result of a task during the turn in which it is fetched
    assert second() is None


@pytest.mark.parametrize("wait_ms", [0, 30_000])
async def test_a_poll_does_not_wait_for_a_frozen_broker_that_leads_no_more(
    queue: Queue, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, wait_ms: int
) -> None:
    """It waited `request_timeout_ms` and its `wait_ms` for it, although it needs not wait at all."""
    monkeypatch.setattr(settings, "LATE_ANSWER_SECONDS", 0.1)
    cluster.silent_poller = 1
    getting = asyncio.ensure_future(queue.get(wait_ms=wait_ms, auto_accept=True))
    while not cluster.queue_polls:
        await asyncio.sleep(0.01)
    cluster.move_leader("jobs", 0, 2)
    await queue.put(b"1")
    async with asyncio.timeout(20):
        message = await getting
    assert (None if message is None else message.value) == (b"1" if wait_ms else None)


async def test_a_stream_that_is_refused_is_opened_again_after_growing_pauses(
    queue: Queue, cluster: FakeCluster
) -> None:
    """Over gRPC, each refusal reset them, so that a starting broker was asked 50 times a second by each client."""
    cluster.stream_error = detail(pb.NOT_READY)
    began = time.monotonic()
    getting = asyncio.ensure_future(queue.get())
    while len(cluster.stream_requests) < 6:
        await asyncio.sleep(0.01)
    bounds = [settings.RETRY_BACKOFF_MIN_SECONDS * (1 << failures) for failures in range(5)]
    assert time.monotonic() - began >= sum(bounds) / 2
    getting.cancel()
