"""The HTTP port serves its routes over loopback, and its metrics have proper names."""

from __future__ import annotations

import asyncio
import contextlib
import json
import platform
import random
import re
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import structlog
from prometheus_client.parser import text_string_to_metric_families
from raftmq.broker.base.clock import WallClock
from raftmq.broker.base.gc_pauses import GcPauses
from raftmq.broker.base.metric_catalog import CATALOG
from raftmq.broker.base.readiness import NotReady, Reason
from raftmq.broker.base.supervisor import Supervisor
from raftmq.broker.base.watchdog import Watchdog
from raftmq.broker.cluster.clock_watch import ClockWatch
from raftmq.broker.cluster.disk_watch import DiskWatch
from raftmq.broker.cluster.other_clusters import OtherClusters
from raftmq.broker.data_port.port import DataPort
from raftmq.broker.grpc_port.server import GrpcServer
from raftmq.broker.http_port import metrics as metrics_module
from raftmq.broker.http_port.server import HttpServer
from raftmq.broker.peers.transport import PeerTransport
from raftmq.broker.replica.engine import Engine
from raftmq.broker.replica.thread_pools import ThreadPools

from tests.support.broker.harness import batch, poll_request, running
from tests.support.broker.queues import put, queue_topic


@contextlib.asynccontextmanager
async def serving():
    async with running() as node:
        node = cast("Any", node)  # it gets what an HttpHost has besides
        rng = random.Random(1)
        node.version = "1.2.3"
        node.transport = PeerTransport(node.loop, node.limits, node.timing, rng.random)
        node.client_address_of = str
        node.engine = Engine(
            node.loop, node, node.store, ThreadPools.shared(cast("Any", None)), node.transport, None, WallClock(), rng, rng.random,
            node.limits, node.timing,
        )  # fmt: skip
        node.engine.replicas = node.replicas
        node.watchdog = Watchdog(node.loop, 1.0)
        node.gc_pauses = GcPauses()
        node.clock_watch = ClockWatch(node.engine, lambda _: True)
        node.disk_watch = DiskWatch(cast("Any", None), node.engine, Path("unused"), cast("Any", None))
        node.upkeep = SimpleNamespace(scrubber=SimpleNamespace(bytes_total=7, damaged_total=0, last_pass_ms=1500))
        node.view = node
        node.other_clusters = OtherClusters(node.loop.time)
        node.quarantined = dict
        node.supervisor = Supervisor(node.loop, cast("Any", None))
        node.grpc = GrpcServer(node, node.forwarder)
        node.data_port = DataPort(node, node.grpc)
        server = HttpServer(node)
        port = await server.start("127.0.0.1", 0)
        try:
            yield node, port
        finally:
            await server.stop()


async def get(port: int, path: str, accept: str = "*/*") -> tuple[int, dict[str, str], str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nAccept: {accept}\r\nConnection: close\r\n\r\n".encode())
    head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    status, *lines = head.split("\r\n")
    return int(status.split()[1]), dict(line.lower().split(": ", 1) for line in lines), body


async def test_healthz_answers_while_the_loop_runs():
    async with serving() as (_, port):
        status, _, body = await get(port, "/healthz")
        assert status == 200
        assert json.loads(body)["status"] == "ok"


async def test_readyz_gives_the_reasons():
    async with serving() as (node, port):
        assert (await get(port, "/readyz"))[0] == 200
        node.reasons = [NotReady(Reason.STARTING_REPLICAS, "2 replicas are not serving yet")]
        status, _, body = await get(port, "/readyz")
        assert status == 503
        assert json.loads(body)["reasons"] == [
            {"code": "starting_replicas", "message": "2 replicas are not serving yet"}
        ]
        assert json.loads(body)["status"] == "not ready"
        for path, accept in (("/readyz?format=text", "*/*"), ("/readyz", "text/plain")):
            status, headers, body = await get(port, path, accept)
            assert status == 503
            assert headers["content-type"].startswith("text/plain")
            assert body == "not ready\nstarting_replicas: 2 replicas are not serving yet\n"


async def test_a_quarantined_replica_is_a_warning_and_does_not_make_the_node_unready():
    async with serving() as (node, port):
        node.said = ["replica 7 of group 3 is quarantined and waits to be replaced: a checksum is wrong"]
        status, _, body = await get(port, "/readyz")
        assert status == 200
        assert json.loads(body)["warnings"] == node.said
        assert (await get(port, "/readyz?format=text"))[2] == f"ready\nwarning: {node.said[0]}\n"


async def test_unknown_paths_and_methods_are_refused():
    async with serving() as (_, port):
        assert (await get(port, "/"))[0] == 404
        assert (await get(port, "/metrics/../../etc/passwd"))[0] == 404


async def test_metrics_show_the_node_in_base_units():
    async with serving() as (node, port):
        topic = await node.topic("flights", partitions=2)
        jobs = await queue_topic(node)
        node.log = node.grpc.log
        await put(node, jobs, b"one", b"two")
        node.engine.map_used_fraction_max = 0.25
        await node.append(topic, batch(3))
        await node.log.poll(poll_request(topic, 0), node.call())
        node.grpc.metrics.observe("Append", "OK", 0.003)
        node.data_port.requests.acquire(cast("Any", None), 5000)
        with structlog.testing.capture_logs() as logs:
            status, headers, body = await get(port, "/metrics")
        assert logs == [], "a value under a name that the catalog lacks is logged"
        assert status == 200
        assert headers["content-type"].startswith("text/plain")
        families = {family.name: family for family in text_string_to_metric_families(body)}
        values = {
            (sample.name, *sorted(sample.labels.items())): sample.value
            for family in families.values()
            for sample in family.samples
        }
        assert values["raftmq_groups",] == 4
        assert values["raftmq_groups_led",] == 4
        assert values["raftmq_ready",] == 1
        assert values["raftmq_map_used_ratio",] == 0.25
        assert values["raftmq_not_ready", ("reason", "stopping")] == 0
        assert values["raftmq_build_info", ("python_version", platform.python_version()), ("version", "1.2.3")] == 1
        assert values["raftmq_partitions_without_leader",] == 0
        assert values["raftmq_slots_limit", ("slot", "polls")] == node.limits.parked_polls_max
        assert values["raftmq_budget_limit_bytes", ("budget", "unsent")] == node.limits.unsent_bytes_max
        assert values["raftmq_budget_used_bytes", ("budget", "requests")] == 5000
        assert values["raftmq_budget_limit_bytes", ("budget", "requests")] == node.limits.receiving_bytes_max
        assert values["raftmq_evictions_total", ("budget", "requests")] == 0
        assert values["raftmq_process_threads",] >= 1
        assert values["raftmq_partition_high_watermark", ("partition", "0"), ("topic", "flights")] == 3
        assert values["raftmq_partition_is_leader", ("partition", "1"), ("topic", "flights")] == 1
        assert values["raftmq_queue_ready_messages", ("partition", "0"), ("topic", "jobs")] == 2
        assert values["raftmq_appended_batches_total",] == 2
        assert values["raftmq_polled_batches_total",] == 1
        assert values["raftmq_requests_total", ("code", "OK"), ("method", "Append")] == 1
        assert values["raftmq_request_seconds_bucket", ("kind", "append"), ("le", "0.002")] == 0
        assert values["raftmq_request_seconds_bucket", ("kind", "append"), ("le", "0.005")] == 1
        assert values["raftmq_request_seconds_bucket", ("kind", "append"), ("le", "+Inf")] == 1
        assert values["raftmq_request_seconds_sum", ("kind", "append")] == 0.003
        assert {name for name in families if name.startswith("raftmq_")} == {
            name.removesuffix("_total") for name in CATALOG
        }
        for name, family in families.items():
            if name.startswith("raftmq_"):
                assert not re.search(r"_(ms|millis|kb|mb|percent)", name), name
                assert family.documentation, name
        for _, *labels in values:
            assert {key for key, _ in labels} <= {
                *(label for metric in CATALOG.values() for label in metric.labels), "le", "generation"
            }  # fmt: skip


async def test_a_value_under_an_unknown_name_is_logged_and_does_not_fail_the_page(monkeypatch):
    """It was dropped in silence, so a misspelt name beside a right one was found by nobody."""
    monkeypatch.setattr(metrics_module, "_peer_values", lambda host: {"raftmq_peers_conected": 1.0})
    async with serving() as (_, port):
        with structlog.testing.capture_logs() as logs:
            for _ in range(2):
                status, _, body = await get(port, "/metrics")
                assert status == 200
                assert "raftmq_ready 1.0" in body
    assert [(line["event"], line["metric"]) for line in logs if line["log_level"] == "error"] == [
        ("metric_unknown", "raftmq_peers_conected")
    ]


async def test_a_port_in_use_is_an_os_error():
    async with serving() as (node, port):
        with pytest.raises(OSError, match="in use"):
            await HttpServer(node).start("127.0.0.1", port)


async def test_the_process_keeps_its_signal_handlers():
    import signal

    before = signal.getsignal(signal.SIGTERM)
    async with serving():
        assert signal.getsignal(signal.SIGTERM) is before


async def test_malformed_input_is_refused_with_one_log_line_after_any_request():
    """Malformed input after a HEAD request must not make the refusal itself raise."""
    failures: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    hello_of_tls = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(256)
    head = b"HEAD /healthz HTTP/1.0\r\n\r\nGET / HTTP/1.1\r\nHost: \x1b\r\n\r\n"
    with structlog.testing.capture_logs() as logs:
        async with serving() as (_, port):
            for garbage in (hello_of_tls, head, b"\xff" * 100 + b"\r\n\r\n", head):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(garbage)
                received = await asyncio.wait_for(reader.read(), 10)
                assert received.split(b" ")[1] in (b"400", b"200")
                writer.close()
    assert failures == []
    assert [line["event"] for line in logs if line["log_level"] != "info"] == ["http_request_refused"]


@pytest.mark.parametrize("answered", ["before the answer", "during the answer"])
async def test_a_malformed_body_is_no_failure_of_the_application(answered):
    """The status 400 was sent in the middle of an answer, which raised, and clients could fill the log."""
    is_asked, may_answer = asyncio.Event(), asyncio.Event()
    failures: list[dict[str, object]] = []

    async def application(scope, receive, send):
        if answered == "during the answer":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"one", "more_body": True})
        is_asked.set()
        await may_answer.wait()
        if answered == "before the answer":
            await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"two"})
        done.set()

    done = asyncio.Event()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HttpServer, "application", lambda self: application)
        async with serving() as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
            await is_asked.wait()
            writer.write(b"no chunk\r\n")
            received = await asyncio.wait_for(reader.read(), 10)
            may_answer.set()
            await asyncio.wait_for(done.wait(), 10)
            writer.close()
    status = received.split(b" ")[1]
    assert status == (b"400" if answered == "before the answer" else b"200")
    assert b"two" not in received
    assert failures == []


async def test_connections_wait_in_the_kernel_while_the_loop_is_busy():
    """With a backlog of 128 the kernel of a prober repeated its connection request a second later during a flood."""
    async with serving() as (_, port):
        with contextlib.ExitStack() as stack:
            for _ in range(500):  # the loop takes none of them in that time
                stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
