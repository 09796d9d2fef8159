"""Measure the cost of tracing: processor time and function calls of a record. Usage: python -m bench.tracing [ROUNDS]

Each way of using a client runs in a process of its own, once without OpenTelemetry (off), once with a tracer provider and no active span
(idle), and once within a sampled span (on). The three take turns. Spans are batched and dropped: encoding and sending them is the business of
the exporter that a program chooses. The broker of the way "on" traces too, and exports to a server that throws spans away.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Final

import grpc
from raftmq import Admin, Consumer, Producer, Record, Worker
from raftmq.testing import LocalCluster

from bench.single_record import usage_of

ROUNDS: Final = 5
MODES: Final = ("off", "idle", "on")
VALUE: Final = b"x" * 100
COUNTS: Final = {"single": 2_000, "stream": 20_000, "bulk": 400_000, "read": 400_000, "work": 10_000}
"""Records of each way: awaited one by one, sent one by one, sent by `send_many`, read by `getmany`, and handled by a worker."""
_EXPORT: Final = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"


# ------------------------------------------------------------------------------------------------------------ one process


def begin_tracing(mode: str) -> AbstractContextManager[object]:
    """Set a provider, unless tracing is off. Return the context manager for the program's work."""
    if mode == "off":
        return nullcontext()
    from opentelemetry import trace
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

    class Dropped(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            return SpanExportResult.SUCCESS

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(Dropped()))
    trace.set_tracer_provider(provider)
    return trace.get_tracer("bench").start_as_current_span("bench") if mode == "on" else nullcontext()


async def single(producer: Producer, count: int) -> None:
    for _ in range(count):
        await producer.send_and_wait("single", VALUE)


async def stream(producer: Producer, count: int) -> None:
    for _ in range(count):
        await producer.send("stream", VALUE)
    await producer.flush()


async def bulk(producer: Producer, count: int) -> None:
    await (await producer.send_many("bulk", ((None, VALUE) for _ in range(count))))


async def read(servers: str, count: int) -> None:
    async with Consumer("bulk", bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        while count > 0:
            count -= sum(map(len, (await consumer.getmany(timeout_ms=1000)).values()))


async def work(servers: str, count: int) -> None:
    left = count

    async def handle(record: Record) -> None:
        nonlocal left
        left -= 1
        if not left:
            worker.stop()

    group = f"bench-{time.time_ns()}"
    worker = Worker("stream", handler=handle, group_id=group, bootstrap_servers=servers, auto_offset_reset="earliest")
    await worker.serve()


async def run_way(way: str, mode: str, servers: str, *, is_counted: bool) -> dict[str, float]:
    """Do the work of a way, and return its processor time, or its calls, for a record."""
    within, count = begin_tracing(mode), COUNTS[way] // (20 if is_counted else 1)
    calls = 0

    def on_event(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    async def measured(job: Callable[[int], Awaitable[None]]) -> dict[str, float]:
        sys.setprofile(on_event if is_counted else None)
        began = time.process_time()
        await job(count)
        seconds = time.process_time() - began
        sys.setprofile(None)
        return {"calls": calls / count} if is_counted else {"us": seconds / count * 1e6}

    if way in ("read", "work"):
        with within:
            return await measured(lambda number: (read if way == "read" else work)(servers, number))
    async with Producer(bootstrap_servers=servers) as producer:
        await producer.send_and_wait(way, VALUE)
        with within:
            return await measured(
                lambda number: {"single": single, "stream": stream, "bulk": bulk}[way](producer, number)
            )


# ------------------------------------------------------------------------------------------------------------ all of them


class _Discard(grpc.GenericRpcHandler):
    """Answers exports of spans without reading them."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        if handler_call_details.method != _EXPORT:
            return None
        return grpc.unary_unary_rpc_method_handler(lambda request, context: b"")


def measure(way: str, mode: str, cluster: LocalCluster, *, is_counted: bool = False) -> dict[str, float]:
    """Run a way in a process of its own. Return its result, with the broker's processor time for a record."""
    arguments = (way, mode, cluster.bootstrap_servers, "counted" if is_counted else "timed")
    before = usage_of(cluster.pid(1)).cpu_seconds
    done = subprocess.run(
        [sys.executable, "-m", "bench.tracing", *arguments], capture_output=True, text=True, check=True
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found | {"broker_us": (usage_of(cluster.pid(1)).cpu_seconds - before) / COUNTS[way] * 1e6}


def main(rounds: int) -> None:
    """Print a line for each way and mode: medians of the rounds."""
    collector = grpc.server(ThreadPoolExecutor(max_workers=1))
    collector.add_generic_rpc_handlers((_Discard(),))
    endpoint = f"http://127.0.0.1:{collector.add_insecure_port('127.0.0.1:0')}"
    collector.start()
    arguments = ("--set", f"tracing_endpoint={endpoint}")
    with LocalCluster(1) as plain, LocalCluster(1, broker_arguments=arguments) as traced:
        clusters = {"off": plain, "idle": plain, "on": traced}
        for cluster in (plain, traced):
            asyncio.run(_create_topics(cluster.bootstrap_servers))
        for way in COUNTS:
            timed: dict[str, list[dict[str, float]]] = {mode: [] for mode in MODES}
            for number in range(rounds):
                for mode in MODES if number % 2 else reversed(MODES):
                    timed[mode].append(measure(way, mode, clusters[mode]))
            for mode in MODES:
                us, broker_us = (statistics.median(one[key] for one in timed[mode]) for key in ("us", "broker_us"))
                calls = measure(way, mode, clusters[mode], is_counted=True)["calls"]
                spread = f"{min(one['us'] for one in timed[mode]):.2f} to {max(one['us'] for one in timed[mode]):.2f}"
                print(
                    f"{way:8}{mode:6}{us:9.2f} us ({spread}){calls:9.2f} calls{broker_us:9.2f} us of the broker",
                    flush=True,
                )
    collector.stop(None)


async def _create_topics(servers: str) -> None:
    async with Admin(bootstrap_servers=servers) as admin:
        for name in ("single", "stream", "bulk"):
            await admin.create_topic(name, partitions=1)


if __name__ == "__main__":
    if len(sys.argv) == 5:
        print(json.dumps(asyncio.run(run_way(*sys.argv[1:4], is_counted=sys.argv[4] == "counted"))))
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS)
