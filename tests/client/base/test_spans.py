"""Spans of producers, consumers and queues: their parents and links, and the context in headers and requests."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode, TraceState
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from raftmq.client.base.spans import LINKS_MAX, Tracing, context_of
from raftmq.client.base.tracing import active_tracing, joined_trace
from raftmq.client.consumer.consumer import Consumer
from raftmq.client.producer.producer import Producer
from raftmq.client.queue.new_message import NewMessage
from raftmq.client.queue.queue import Queue
from raftmq.client.worker.handlers import FIRST, Handlers
from raftmq.client.worker.loop_thread_executor import LoopThreadExecutor
from raftmq.client.worker.thread_executor import ThreadExecutor
from raftmq.errors import RecordTooLargeError, UnknownTopicError
from raftmq.trace_context import CONTEXTS_MAX, TraceContext, unpack_contexts
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
    (record,) = await read(cluster, 1)
    assert not int(dict(record.headers)["traceparent"][-2:], 16) & 1
    assert contexts_in(cluster) == []


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
