"""Measure the commits of a queue at its worst moments: while rows are written back under full load, and when a million messages are due.

The calls are those of `queue_probe.py`, a process of its own, and all brokers fsync.
"""

import asyncio
import os
import statistics
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

import raftmq
from raftmq.testing import LocalCluster

from bench.partitions import cpu_seconds
from bench.queue_load_parts import LOG, DelayedMessages, Found, LoadScale, create, put_all
from bench.queue_probe import ACK, LEASE, PUT, Call, p99, probed
from bench.timed_broker import Span, read_spans
from bench.workloads import VALUE_BYTES, Figure
from bench.written_beside import PAUSE_SECONDS, written_beside

DUE_WORKERS = 10
"""Consumers of the queue whose messages are due in one second. Each also puts one message for each that it takes."""
PROBE_WORKERS = 4


# ------------------------------------------------------------------------------------------------------------- write-backs


def saturated_figures() -> tuple[Figure, ...]:
    return (
        Figure("saturated_ack_p99", "ms during write-backs", False, 12),
        Figure("saturated_put_p99", "ms during write-backs", False, 12),
        Figure("saturated_ack_between", "ms of p99 between them", False),
        Figure("saturated_put_between", "ms of p99 between them", False),
        Figure("saturated_write_back", "ms of the median one", False),
        Figure("saturated_write_backs", "% of the time", False),
        Figure("saturated_put", "messages/s", True),
        Figure("saturated_leader", "% of a core", True),
    )


async def measure_saturated(cluster: LocalCluster, scale: LoadScale, found: Found) -> None:
    """Put delayed messages without a pause, and time single puts and acknowledgements during write-backs and between them."""
    servers = cluster.bootstrap_servers
    (name,) = await create(servers, {})
    message_of = DelayedMessages(os.urandom(VALUE_BYTES), 11)
    total = 0

    async def load(queue: raftmq.Queue[bytes], ends_at: float) -> None:
        nonlocal total
        while time.perf_counter() < ends_at:
            await queue.put_many([message_of(number) for number in range(scale.saturating_batch)])
            total += scale.saturating_batch

    async with (
        raftmq.Queue[bytes](name, bootstrap_servers=servers) as queue,
        probed(servers, name, PROBE_WORKERS, 0.0) as calls,
    ):
        leader = (await asyncio.to_thread(cluster.wait_leaders, name))[0]
        began_at, used = time.perf_counter(), cpu_seconds(cluster.pid(leader))
        async with asyncio.TaskGroup() as tasks:
            for _ in range(scale.saturating_puts):
                tasks.create_task(load(queue, began_at + scale.saturated_seconds))
        ended_at, used = time.perf_counter(), cpu_seconds(cluster.pid(leader)) - used
        spans = [span for span in read_spans(cluster.directory) if span.ended_at > began_at]
        if not spans:
            raise RuntimeError("no write-back ran: measure for longer with --load saturated_seconds=N")
        beside, between = split([call for call in calls if began_at <= call.began_at < ended_at], spans)
    elapsed = ended_at - began_at
    found |= {
        "saturated_ack_p99": p99(beside, ACK),
        "saturated_put_p99": p99(beside, PUT),
        "saturated_ack_between": p99(between, ACK),
        "saturated_put_between": p99(between, PUT),
        "saturated_write_back": 1000 * statistics.median(span.ended_at - span.began_at for span in spans),
        "saturated_write_backs": 100 * covered_seconds(spans, began_at, ended_at) / elapsed,
        "saturated_put": total / elapsed,
        "saturated_leader": 100 * used / elapsed,
    }


def split(calls: Iterable[Call], spans: Sequence[Span]) -> tuple[list[Call], list[Call]]:
    """Return the calls that overlap a write-back, and the others."""
    beside: list[Call] = []
    between: list[Call] = []
    for call in calls:
        ended_at = call.began_at + call.seconds
        is_beside = any(span.began_at < ended_at and call.began_at < span.ended_at for span in spans)
        (beside if is_beside else between).append(call)
    return beside, between


def covered_seconds(spans: Iterable[Span], began_at: float, ended_at: float) -> float:
    """Return the part of the time in which at least one write-back runs, on any broker."""
    covered, until = 0.0, began_at
    for span in sorted(spans):
        covered += max(0.0, min(span.ended_at, ended_at) - max(span.began_at, until))
        until = max(until, span.ended_at)
    return covered


# -------------------------------------------------------------------------------------------------------------- all at once


def due_figures() -> tuple[Figure, ...]:
    return (
        Figure("due_p99", "ms of a commit beside", False, 50),
        Figure("due_put_p99", "ms of a put into it", False, 50),
        Figure("due_lease_p99", "ms of a lease", False, 50),
        Figure("due_ack_p99", "ms of a settlement", False, 50),
    )


async def measure_due(cluster: LocalCluster, scale: LoadScale, found: Found) -> None:
    """Let all messages become due in one second, and write beside them, and put, lease and settle in the same queue."""
    servers, value = cluster.bootstrap_servers, os.urandom(VALUE_BYTES)
    (name,) = await create(servers, {})
    due = datetime.now(UTC) + timedelta(seconds=scale.due_after_seconds)

    def message_of(number: int) -> raftmq.NewMessage[bytes]:
        return raftmq.NewMessage(value, not_before=due + timedelta(milliseconds=number % 1000))

    async with raftmq.Queue[bytes](name, bootstrap_servers=servers) as queue:
        await put_all(queue, scale.due, message_of)
    async with (
        written_beside(servers, LOG) as beside,
        probed(servers, name, DUE_WORKERS, PAUSE_SECONDS) as calls,
    ):
        left = (due - datetime.now(UTC)).total_seconds()
        if left < 0:
            raise TimeoutError(f"enqueuing took {-left:.0f} s longer than the messages wait: raise due_after_seconds")
        await asyncio.sleep(left)
        beside.seconds.clear()
        calls.clear()
        await asyncio.sleep(1 + scale.due_watched_seconds)
        seen = list(calls)
        found["due_p99"] = await beside.p99()
        found |= {f"due_{name}_p99": p99(seen, name) for name in (PUT, LEASE, ACK)}
