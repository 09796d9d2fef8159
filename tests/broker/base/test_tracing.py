"""The broker's spans: the client's decision about a trace holds, and the share of other requests is as configured."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from raftmq.broker.base.config import BrokerConfig
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.base.tracing import Tracing, add_trace_ids, start_tracing
from raftmq.broker.grpc_port.handlers import observed
from raftmq.broker.services.request_metrics import RequestMetrics
from raftmq.proto import queue_pb2 as pb
from raftmq.trace_context import TraceContext, pack_context

from tests.support.broker.harness import append_request, batch, running

SAMPLED, OTHER = TraceContext(1, 2, 1), TraceContext(3, 4, 1)


@pytest.fixture
def kept() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracing(kept: InMemorySpanExporter) -> Tracing:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(kept))
    return Tracing(provider, 0.5, lambda: 0.5)


def metadata(flags: int) -> list[tuple[str, str | bytes]]:
    return [("traceparent", f"00-{1:032x}-{2:016x}-{flags:02x}"), ("tracestate", b"no text"), ("other", "x")]


async def test_a_call_of_a_sampled_trace_is_a_child_of_its_caller(tracing: Tracing, kept: InMemorySpanExporter) -> None:
    tracing.broker_id = lambda: 7
    metrics = RequestMetrics(tracing=tracing)

    async def refuse() -> pb.PollResponse:
        assert set(add_trace_ids(None, "info", {})) == {"trace_id", "span_id"}
        raise RequestError(pb.NO_LEADER, "none")

    with pytest.raises(RequestError), tracing.call("Ack", metadata(1)):
        await observed(metrics, "Ack", refuse)
    (span,) = kept.get_finished_spans()
    assert (span.name, span.kind, span.parent and span.parent.span_id) == ("Ack", SpanKind.SERVER, 2)
    assert (span.status.status_code, span.attributes and span.attributes["error.type"]) == (
        StatusCode.ERROR,
        "NO_LEADER",
    )
    assert span.attributes is not None
    assert span.attributes["raftmq.broker_id"] == 7
    assert add_trace_ids(None, "info", {}) == {}


def test_a_call_of_a_trace_that_is_not_sampled_has_no_span(tracing: Tracing) -> None:
    assert tracing.begin("Ack", metadata(0)) is None
    assert tracing.begin_linked("Append", pack_context(TraceContext(1, 2, 0))) is None


@pytest.mark.parametrize(("drawn", "has_span"), [(0.0, True), (0.499, True), (0.5, False), (0.999, False)])
def test_a_share_of_the_calls_without_a_trace_begins_one(drawn: float, has_span: bool) -> None:
    tracing = Tracing(TracerProvider(shutdown_on_exit=False), 0.5, lambda: drawn)
    assert (tracing.begin("Poll") is not None) == has_span
    assert (tracing.begin("Poll", [("traceparent", "nonsense")]) is not None) == has_span
    assert (tracing.begin_linked("Append", b"short") is not None) == has_span


def test_a_long_context_is_ignored(tracing: Tracing, kept: InMemorySpanExporter) -> None:
    valid = f"00-{1:032x}-{2:016x}-00"
    assert tracing.begin("Ack", [("traceparent", valid)]) is None
    always = Tracing(TracerProvider(shutdown_on_exit=False), 1.0)
    assert always.begin("Ack", [("traceparent", valid + " " * 100)]) is not None, "it belongs to no trace"
    for tracestate, kept_count in (("a=1", 1), (",".join(f"{name}={'x' * 200}" for name in "abc"), 0)):
        span = tracing.begin("Ack", [("traceparent", valid[:-1] + "1"), ("tracestate", tracestate)])
        assert span is not None
        assert len(span.get_span_context().trace_state) == kept_count


def test_the_end_does_not_wait_for_a_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raftmq.broker.base.tracing.EXPORT_SECONDS", 0.05)
    provider, answers, seen = TracerProvider(shutdown_on_exit=False), threading.Event(), threading.Event()

    def wait_for_it() -> None:
        answers.wait()
        seen.set()

    monkeypatch.setattr(provider, "shutdown", wait_for_it)
    Tracing(provider, 0.0).close()
    assert not seen.is_set()
    answers.set()
    assert seen.wait(5)


def test_a_setting_that_opentelemetry_refuses_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "zip")
    with pytest.raises(ValueError, match="OTEL_EXPORTER_OTLP_COMPRESSION"):
        start_tracing(BrokerConfig(data_dir=tmp_path, tracing_endpoint="http://127.0.0.1:1"))


def test_an_append_is_a_child_of_the_first_send_and_linked_to_the_others(
    tracing: Tracing, kept: InMemorySpanExporter
) -> None:
    unsampled = TraceContext(5, 6, 0)
    span = tracing.begin_linked("Append", b"".join(map(pack_context, (unsampled, SAMPLED, OTHER))))
    assert span is not None
    tracing.end(span, "OK")
    (ended,) = kept.get_finished_spans()
    assert ended.parent is not None
    assert (ended.parent.span_id, [link.context.span_id for link in ended.links]) == (2, [4])
    assert ended.status.status_code is StatusCode.UNSET


@pytest.mark.parametrize("method", ["Append", "AppendStream"])
async def test_an_append_has_its_destination_and_its_phases(
    tracing: Tracing, kept: InMemorySpanExporter, method: str
) -> None:
    async with running() as node:
        request = append_request(await node.topic(), batch(1))
        node.log._metrics.tracing = tracing
        if method == "Append":  # a call over gRPC
            with tracing.call(method, metadata(1)):
                await node.log.append(request, node.call())
        else:
            answered: asyncio.Future[pb.AppendResponse] = asyncio.get_running_loop().create_future()
            request.trace_contexts = pack_context(SAMPLED)
            node.log.append_session(method).submit(request, answered.set_result)
            assert not (await answered).HasField("error")
    (span,) = kept.get_finished_spans()
    assert span.attributes is not None
    assert (span.name, span.attributes["messaging.destination.partition.id"]) == (method, "0")
    assert {f"raftmq.{phase}_seconds" for phase in ("queued", "disk", "replication", "apply")} <= set(span.attributes)
