"""Spans of producers, consumers and queues: their parents and links, and the context in headers and requests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.trace import SpanKind, StatusCode, TraceState
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from raftmq.client.base.background import spawn
from raftmq.client.base.settings import RECORD_BYTES_MAX, RECORD_OVERHEAD_BYTES
from raftmq.client.base.spans import LINKS_MAX, SendSpan, Tracing, context_of
from raftmq.client.base.tracing import active_tracing, joined_trace
from raftmq.client.consumer.consumer import Consumer
from raftmq.client.producer.batch import ProducerBatch
from raftmq.client.producer.producer import Producer
from raftmq.client.queue.new_message import NewMessage, check_message, with_trace
from raftmq.client.queue.queue import Queue
from raftmq.client.worker.handlers import FIRST, Handlers
from raftmq.client.worker.loop_thread_executor import LoopThreadExecutor
from raftmq.client.worker.thread_executor import ThreadExecutor
from raftmq.errors import RecordTooLargeError, UnknownTopicError
from raftmq.message_checks import HEADERS_BYTES_MAX
from raftmq.trace_context import CONTEXTS_MAX, FIELD_BYTES_MAX, SAMPLED, TraceContext, unpack_contexts
from raftmq.types import Record

from tests.support.client.fake_broker import FakeCluster
from tests.support.client.traced import Traced, traceparent, tracing_program


@pytest.fixture
def traced() -> Iterator[Traced]:
    with tracing_program() as traced:
        yield traced


def producer(cluster: FakeCluster) -> Producer:
    return Producer(bootstrap_servers=cluster.bootstrap_servers)


async def read(cluster: FakeCluster, count: int) -> list[Record]:
    """Return records as a program without tracing reads them."""
    found: list[Record] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Consumer, "_has_receive_spans", False)
        async with Consumer("t", bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer:
            while len(found) < count:
                found += [one for records in (await consumer.getmany(timeout_ms=1000)).values() for one in records]
    return found


def begun(traced: Traced) -> SendSpan:
    with traced.active():
        send = Tracing(traced.provider).begin_send("t", "client")
    assert send is not None
    return send


def contexts_in(cluster: FakeCluster) -> list[TraceContext]:
    return [one for _, request in cluster.append_requests for one in unpack_contexts(request.trace_contexts)]


# --------------------------------------------------------------------------------------------------------------- sending


async def test_a_sent_record_and_its_request_carry_the_context_of_its_span(cluster: FakeCluster, traced: Traced):
    cluster.create_topic("t")
    async with producer(cluster) as p:
        with traced.active() as program:
            delivery = await p.send("t", b"a", headers=[("own", b"1")])
        assert traced.ended("send t") == [], "it ends with the acknowledgement"
        await delivery
    (span,) = traced.ended("send t")
    assert (span.kind, span.parent and span.parent.span_id) == (SpanKind.PRODUCER, program.span_id)
    assert span.attributes is not None
    assert dict(span.attributes) == {
        "messaging.system": "raftmq",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "t",
        "messaging.destination.partition.id": "0",
        "messaging.client.id": "raftmq",
        "messaging.raftmq.offset": 0,
    }
    (record,) = await read(cluster, 1)
    assert record.headers == (("own", b"1"), ("traceparent", traceparent(span.context)))
    assert contexts_in(cluster) == [TraceContext(span.context.trace_id, span.context.span_id, span.context.trace_flags)]


async def test_a_record_that_is_sent_outside_a_span_has_none(cluster: FakeCluster, traced: Traced):
    cluster.create_topic("t")
    async with producer(cluster) as p:
        await p.send_and_wait("t", b"a")
        await (await p.send_many("t", [(None, b"b")]))
    assert [record.headers for record in await read(cluster, 2)] == [(), ()]
    assert (traced.ended("send t"), contexts_in(cluster)) == ([], [])


async def test_a_record_that_is_sent_on_gets_the_context_of_its_own_send(cluster: FakeCluster, traced: Traced):
    cluster.create_topic("t")
    async with producer(cluster) as p:
        with traced.active():
            await p.send_and_wait("t", b"a", headers=[("traceparent", b"of its source"), ("tracestate", b"a=1")])
    (record,) = await read(cluster, 1)
    assert [value for _, value in record.headers] == [traceparent(traced.ended("send t")[0].context)]


async def test_records_of_a_bulk_send_share_a_span(cluster: FakeCluster, traced: Traced):
    cluster.create_topic("t", partitions=2)
    async with producer(cluster) as p:
        with traced.active():
            delivery = await p.send_many("t", [(b"a", b"1"), (b"b", b"2", [("own", b"x")]), (b"c", b"3")])
        await delivery
    (span,) = traced.ended("send t")
    assert span.attributes is not None
    assert span.attributes["messaging.batch.message_count"] == 3
    records = await read(cluster, 3)
    assert {dict(record.headers)["traceparent"] for record in records} == {traceparent(span.context)}
    assert {record.headers[0] for record in records if record.key == b"b"} == {("own", b"x")}
    assert set(contexts_in(cluster)) == {
        TraceContext(span.context.trace_id, span.context.span_id, span.context.trace_flags)
    }


async def test_a_request_has_few_contexts(cluster: FakeCluster, traced: Traced):
    cluster.create_topic("t")
    async with producer(cluster) as p:
        with traced.active():
            for _ in range(CONTEXTS_MAX + 1):
                await p.send("t", b"a")
            await p.flush()
    assert len(traced.ended("send t")) == CONTEXTS_MAX + 1
    assert {len(request.trace_contexts) for _, request in cluster.append_requests} == {25 * CONTEXTS_MAX}


async def test_a_refused_record_has_a_failed_span(cluster: FakeCluster, traced: Traced):
    cluster.create_topic("t")
    async with Producer(bootstrap_servers=cluster.bootstrap_servers, max_block_ms=100) as p:
        with traced.active(), pytest.raises(RecordTooLargeError):
            await p.send("t", b"x" * 2_000_000)
        with traced.active(), pytest.raises(UnknownTopicError):
            await p.send_many("u", [(None, b"x")])
    for name, kind in (("send t", "RECORD_TOO_LARGE"), ("send u", "UNKNOWN_TOPIC")):
        (span,) = traced.ended(name)
        assert span.status.status_code is StatusCode.ERROR
        assert span.attributes is not None
        assert span.attributes["error.type"] == kind
        assert [event.name for event in span.events] == ["exception"]


async def test_a_trace_that_is_not_sampled_goes_on_as_such(cluster: FakeCluster):
    cluster.create_topic("t")
    with tracing_program(is_sampled=False) as traced:
        async with producer(cluster) as p:
            with traced.active():
                await p.send_and_wait("t", b"a")
            await p.send_and_wait("t", b"b")
    with tracing_program() as other:
        async with producer(cluster) as p:
            with other.active():
                await p.send_and_wait("t", b"c")
    first, second, third = await read(cluster, 3)
    assert not int(dict(first.headers)["traceparent"][-2:], 16) & SAMPLED
    assert (second.headers, len(third.headers)) == ((), 1)
    assert [context.flags & SAMPLED for context in contexts_in(cluster)] == [0, SAMPLED]


def test_an_active_span_that_is_not_sampled_is_passed_on():
    with tracing_program(is_sampled=False) as traced:
        tracing = Tracing(traced.provider)
        with traced.active() as program:
            assert tracing.call_metadata() == (("traceparent", traceparent(program).decode()),)
            (context,) = unpack_contexts(tracing.active_context())
    assert (context.span_id, context.flags & SAMPLED) == (program.span_id, 0)


class BrokenProcessor(SpanProcessor):
    """A span processor of a program that raises when spans begin, or when they end."""

    def __init__(self, *, at_start: bool) -> None:
        self._at_start = at_start

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        if self._at_start:
            raise RuntimeError("broken at the start")

    def on_end(self, span: ReadableSpan) -> None:
        raise RuntimeError("broken at the end")


@pytest.mark.parametrize("at_start", [False, True])
async def test_a_broken_span_processor_harms_no_record(
    cluster: FakeCluster, traced: Traced, caplog: pytest.LogCaptureFixture, at_start: bool
):
    cluster.create_topic("t")
    cluster.create_queue("jobs")
    traced.provider.add_span_processor(BrokenProcessor(at_start=at_start))
    parent = trace.NonRecordingSpan(trace.SpanContext(1, 2, is_remote=True, trace_flags=trace.TraceFlags(1)))
    servers = cluster.bootstrap_servers
    async with asyncio.timeout(20):
        async with producer(cluster) as p, Queue("jobs", bootstrap_servers=servers) as queue:
            with trace.use_span(parent):
                await p.send_and_wait("t", b"a")
                await (await p.send_many("t", [(None, b"b")]))
                with pytest.raises(RecordTooLargeError):
                    await p.send("t", b"x" * 2_000_000)
                await queue.put(b"c")
                assert [message.value for message in await queue.get_many(wait_ms=5000)] == [b"c"]
        async with Consumer("t", bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
            assert [(await anext(consumer)).value, (await anext(consumer)).value] == [b"a", b"b"]
    record = Record("t", 0, 5, 0, None, b"")
    with pytest.raises(ValueError, match="of the handler"), Tracing(traced.provider).processing(record, 1):
        raise ValueError("of the handler")
    assert not trace.get_current_span().get_span_context().is_valid
    assert [line.split(" trace_id")[0] for line in caplog.messages].count("tracing_failed") <= 1


async def test_a_failed_batch_is_one_exception_event_of_its_sends(cluster: FakeCluster, traced: Traced):
    sends = [begun(traced) for _ in range(3)]
    batch = ProducerBatch("t", 0, 0, 0.0, 1.0)
    for position, send in enumerate(sends):
        with send.accepting():
            batch.append(b"", None, 0, (), 1)
            send.watch(batch, position)
            send.watch(batch, position)
    batch.finish(-1, UnknownTopicError("gone"))
    assert (len(batch.spans), len(traced.ended("send t"))) == (0, 3)
    assert [len(span.events) for span in traced.ended("send t")] == [1, 0, 0]
    assert {span.status.status_code for span in traced.ended("send t")} == {StatusCode.ERROR}


async def test_a_batch_that_is_done_already_ends_the_span(traced: Traced):
    send = begun(traced)
    batch = ProducerBatch("t", 3, 0, 0.0, 1.0)
    batch.append(b"", None, 0, (), 1)
    batch.finish(7, None)
    with send.accepting():
        send.watch(batch)
    (span,) = traced.ended("send t")
    assert span.attributes is not None
    assert span.attributes["messaging.raftmq.offset"] == 7


async def test_an_override_of_send_runs_once_per_record(cluster: FakeCluster, traced: Traced):
    class Stamping(Producer):
        async def send(self, topic, value=None, key=None, partition=None, timestamp_ms=None, headers=()):
            return await super().send(topic, value, key, partition, timestamp_ms, [*headers, ("stamp", b"1")])

    cluster.create_topic("t")
    async with Stamping(bootstrap_servers=cluster.bootstrap_servers) as p:
        with traced.active():
            await p.send_and_wait("t", b"a")
    (record,) = await read(cluster, 1)
    assert [name for name, _ in record.headers] == ["stamp", "traceparent"]


async def test_headers_may_be_none_within_a_span_too(cluster: FakeCluster, traced: Traced):
    cluster.create_topic("t")
    cluster.create_queue("jobs")
    async with producer(cluster) as p, Queue("jobs", bootstrap_servers=cluster.bootstrap_servers) as queue:
        with traced.active():
            await p.send_and_wait("t", b"a", headers=None)
            await (await p.send_many("t", [(None, b"b", None)]))
            await queue.put_many([NewMessage(b"c", headers=None)])
    assert [len(record.headers) for record in await read(cluster, 2)] == [1, 1]


async def test_a_record_at_the_limit_is_sent_without_the_context(cluster: FakeCluster, traced: Traced):
    cluster.create_topic("t")
    largest = RECORD_BYTES_MAX - RECORD_OVERHEAD_BYTES
    async with producer(cluster) as p:
        with traced.active():
            await p.send_and_wait("t", b"x" * largest)
            await (await p.send_many("t", [(None, b"x" * largest), (None, b"small")]))
            with pytest.raises(RecordTooLargeError, match=rf"{largest + 1} bytes, but at most {largest} "):
                await p.send("t", b"x" * (largest + 1))
            with pytest.raises(RecordTooLargeError, match=rf"{largest + 1} bytes, but at most {largest} "):
                await p.send_many("t", [(None, b"x" * (largest + 1))])
    assert [len(record.headers) for record in await read(cluster, 3)] == [0, 0, 1]


def test_a_message_at_a_limit_is_put_without_the_context(traced: Traced):
    send = begun(traced)
    for message, bytes_max in (
        (NewMessage(b"x" * 100, headers=[("traceparent", b"of its source")]), 140),
        (NewMessage(b"", headers=[("own", b"x" * (HEADERS_BYTES_MAX - 50))]), 1 << 20),
    ):
        checked = check_message(message, None, bytes_max)
        found = with_trace(checked, send, bytes_max)
        assert not FIELD_BYTES_MAX.keys() & dict(found.headers).keys()
        assert found.size <= checked.size
    checked = check_message(NewMessage(b"x"), None, 1 << 20)
    found = with_trace(checked, send, 1 << 20)
    assert found.headers == send.headers
    assert found == check_message(NewMessage(b"x", headers=send.headers), None, 1 << 20)


# ------------------------------------------------------------------------------------------------------------- receiving


async def test_reading_many_records_links_to_their_sends_and_reading_one_is_its_child(
    cluster: FakeCluster, traced: Traced
):
    cluster.create_topic("t")
    async with producer(cluster) as p:
        with traced.active():
            await p.send_and_wait("t", b"a")
            await p.send_and_wait("t", b"b")
        await p.send_and_wait("t", b"c")
    sent = [span.context.span_id for span in traced.ended("send t")]
    settings = {"bootstrap_servers": cluster.bootstrap_servers, "auto_offset_reset": "earliest"}
    async with Consumer("t", **settings) as consumer:
        found = 0
        while found < 3:
            found += sum(map(len, (await consumer.getmany(timeout_ms=1000)).values()))
    spans = traced.ended("receive t")
    assert [link.context.span_id for span in spans for link in span.links] == sent
    assert [(span.kind, span.parent) for span in spans] == [(SpanKind.CLIENT, None)] * len(spans)
    async with Consumer("t", **settings) as consumer:
        for _ in range(3):
            await anext(consumer)
    assert [span.parent.span_id for span in traced.ended("receive t") if span.parent is not None] == sent


def test_a_span_has_few_links(traced: Traced):
    with traced.active() as program:
        record = Record("t", 0, 0, 0, None, b"", (("traceparent", traceparent(program)),))
    Tracing(traced.provider).received("t", [record] * (LINKS_MAX + 1), 1)
    (span,) = traced.ended("receive t")
    assert len(span.links) == LINKS_MAX


def test_a_long_context_is_neither_read_nor_sent_on(traced: Traced):
    valid, state = (
        traceparent(trace.SpanContext(1, 2, is_remote=True, trace_flags=trace.TraceFlags(1))),
        b"a=" + b"x" * 200,
    )
    long = Record("t", 0, 0, 0, None, b"", (("traceparent", valid + b" " * 100),))
    assert not trace.get_current_span(context_of(long)).get_span_context().is_valid
    for tracestate, kept in ((state, 1), (b",".join(b"%c=" % name + b"x" * 200 for name in b"abc"), 0)):
        record = Record("t", 0, 0, 0, None, b"", (("traceparent", valid), ("tracestate", tracestate)))
        assert len(trace.get_current_span(context_of(record)).get_span_context().trace_state) == kept
    sent_state = TraceState([(name, "x" * 200) for name in "abc"])
    parent = trace.NonRecordingSpan(
        trace.SpanContext(1, 2, is_remote=False, trace_flags=trace.TraceFlags(0), trace_state=sent_state)
    )
    tracing = Tracing(traced.provider)
    with trace.use_span(parent):
        send = tracing.begin_send("t", "client")
        assert send is not None
        assert [name for name, _ in (*send.headers, *tracing.carrier().items())] == ["traceparent"] * 2
        assert [name for name, _ in tracing.call_metadata()] == ["traceparent"]


def test_malformed_contexts_are_ignored(traced: Traced):
    for value in (b"", b"\xff", b"00-0-0-1", b"00-" + b"0" * 32 + b"-" + b"0" * 16 + b"-01"):
        record = Record("t", 0, 0, 0, None, b"", (("traceparent", value), ("tracestate", b"\xff")))
        Tracing(traced.provider).received("t", [record], 1)
        assert not trace.get_current_span(context_of(record)).get_span_context().is_valid
    assert traced.ended("receive t") == []


async def test_messages_of_a_queue_carry_the_context_of_their_put(cluster: FakeCluster, traced: Traced):
    cluster.create_queue("jobs")
    async with Queue("jobs", bootstrap_servers=cluster.bootstrap_servers) as queue:
        with traced.active():
            await queue.put(b"a", headers=[("own", b"1")])
            await queue.put_many([b"b", NewMessage(b"c", headers=[("own", b"2")])])
        with traced.active("reader") as reader:
            messages = await queue.get_many(max_messages=3, wait_ms=1000)
            while len(messages) < 3:
                messages += await queue.get_many(max_messages=3, wait_ms=1000)
        with traced.active("settler") as settler:
            await queue.ack_many(messages)
    settled = [one for _, request in cluster.stream_requests for one in unpack_contexts(request.trace_contexts)]
    assert {context.span_id for context in settled} == {settler.span_id}
    one, many = traced.ended("send jobs")
    by_value = {message.value: dict(message.headers) for message in messages}
    assert by_value[b"a"] == {"own": b"1", "traceparent": traceparent(one.context)}
    assert by_value[b"b"] == {"traceparent": traceparent(many.context)}
    assert by_value[b"c"] == {"own": b"2", "traceparent": traceparent(many.context)}
    links = [link.context.span_id for span in traced.ended("receive jobs") for link in span.links]
    assert sorted(links) == sorted([one.context.span_id, many.context.span_id, many.context.span_id])
    assert {span.parent and span.parent.span_id for span in traced.ended("receive jobs")} == {reader.span_id}


# ------------------------------------------------------------------------------------------------------------- processing


async def test_a_handler_in_a_thread_and_on_another_loop_runs_within_the_span(traced: Traced):
    seen: list[int] = []

    def handle(record: Record) -> None:
        seen.append(trace.get_current_span().get_span_context().span_id)

    async def handle_async(record: Record) -> None:
        handle(record)

    with traced.active() as program:
        record = Record("t", 0, 5, 0, None, b"", (("traceparent", traceparent(program)),))
    for executor in (ThreadExecutor(Handlers(handle), 1, None), LoopThreadExecutor(Handlers(handle_async), None)):
        await executor.start()
        with Tracing(traced.provider).processing(record, 1, "readers"):
            assert await executor.run(record, FIRST) is None
        await executor.close()
    spans = traced.ended("process t")
    assert seen == [span.context.span_id for span in spans]
    assert {span.parent and span.parent.span_id for span in spans} == {program.span_id}
    assert spans[0].attributes is not None
    assert spans[0].attributes["messaging.consumer.group.name"] == "readers"


def test_another_process_joins_the_active_span(traced: Traced):
    tracing = Tracing(traced.provider)
    with traced.active() as program:
        carrier = tracing.carrier()
    with joined_trace(carrier):
        assert trace.get_current_span().get_span_context().span_id == program.span_id
    with joined_trace({}):
        assert not trace.get_current_span().get_span_context().is_valid


def test_a_call_carries_the_active_span_until_it_ends(traced: Traced):
    tracing = Tracing(traced.provider)
    assert tracing.carrier() == {}
    span = traced.provider.get_tracer("program").start_span("program")
    with trace.use_span(span):
        assert tracing.carrier() == {"traceparent": traceparent(span.get_span_context()).decode()}
        span.end()
        assert tracing.carrier() == {}, "a task that was started in it goes on"


async def test_a_background_task_has_no_active_span(traced: Traced):
    seen: list[bool] = []

    async def look() -> None:
        seen.append(trace.get_current_span().get_span_context().is_valid)

    with traced.active() as program:
        for keeps_span in (False, True):
            await spawn(look(), "looks", print, keeps_span=keeps_span)
        assert trace.get_current_span().get_span_context() == program
    assert seen == [False, True]


def test_lines_of_the_sdk_have_the_ids_of_the_active_span(traced: Traced, caplog: pytest.LogCaptureFixture):
    Tracing(traced.provider)
    Tracing(traced.provider)
    log = logging.getLogger("raftmq")
    with traced.active() as program:
        log.warning("handler_failed topic=%s", "100%")
    log.warning("handler_failed topic=%s", "t")
    ids = f" trace_id={program.trace_id:032x} span_id={program.span_id:016x}"
    assert caplog.messages == [f"handler_failed topic=100%{ids}", "handler_failed topic=t"]


def test_a_program_without_a_provider_does_not_trace():
    assert active_tracing() is None


def test_headers_are_those_of_the_propagator(traced: Traced):
    state = TraceState.from_header(["vendor=1,ot=th:8"])
    parent = trace.NonRecordingSpan(
        trace.SpanContext(1, 2, is_remote=True, trace_flags=trace.TraceFlags(1), trace_state=state)
    )
    with trace.use_span(parent):
        sent = Tracing(traced.provider).begin_send("t", "client")
    assert sent is not None
    carrier: dict[str, str] = {}
    with trace.use_span(sent._span):
        TraceContextTextMapPropagator().inject(carrier)
    assert {name: value.decode() for name, value in sent.headers} == carrier
    assert carrier["tracestate"] == "vendor=1,ot=th:8"
