"""A collector of OpenTelemetry: takes spans over OTLP (gRPC) in a thread of the test's process, and keeps them."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

WAIT_SECONDS = 10.0


class Collector(TraceServiceServicer):
    """Runs from ``with`` on."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.services: set[str] = set()
        self._server = grpc.server(ThreadPoolExecutor(max_workers=2))
        add_TraceServiceServicer_to_server(self, self._server)
        self.endpoint = f"http://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def Export(  # noqa: N802 - the protocol's name
        self, request: ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> ExportTraceServiceResponse:
        for resource in request.resource_spans:
            names = {one.key: one.value.string_value for one in resource.resource.attributes}
            self.services.add(names["service.name"])
            for scope in resource.scope_spans:
                self.spans += scope.spans
        return ExportTraceServiceResponse()

    def named(self, name: str, parent: Span | None = None) -> Span:
        """Return the first span of a name (and with this parent), as soon as it arrives."""
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline:
            for span in list(self.spans):
                if span.name == name and (parent is None or span.parent_span_id == parent.span_id):
                    return span
            time.sleep(0.02)
        raise AssertionError(f"no span {name} within {WAIT_SECONDS:g} s, only {[span.name for span in self.spans]}")

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.stop(None)


def attributes_of(span: Span) -> dict[str, str | int | float]:
    """Return a span's attributes."""
    return {one.key: getattr(one.value, one.value.WhichOneof("value") or "") for one in span.attributes}
