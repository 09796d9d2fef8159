"""The SDK's log: static event names with data, through the standard `logging`, and silence without a handler."""

from __future__ import annotations

import logging
import re
import subprocess
import sys

import pytest
from raftmq import errors
from raftmq.client.base import settings
from raftmq.client.base.logs import LogThrottle
from raftmq.client.consumer.consumer import Consumer
from raftmq.client.producer.producer import Producer
from raftmq.proto import queue_pb2 as pb

from tests.support.client.fake_broker import FakeCluster, detail

EVENT = re.compile(r"^[a-z]+(_[a-z]+)+( [a-z_]+=\S*)*$")


def events(caplog: pytest.LogCaptureFixture, level: int = logging.DEBUG) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "raftmq" and record.levelno >= level]


def names(caplog: pytest.LogCaptureFixture, level: int = logging.DEBUG) -> list[str]:
    return [event.split()[0] for event in events(caplog, level)]


async def test_a_leader_change_is_logged_by_clients_that_use_the_partition(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.DEBUG, "raftmq")
    cluster.create_topic("t", partitions=2)
    async with (
        Producer(bootstrap_servers=cluster.bootstrap_servers) as producer,
        Consumer("t", bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer,
    ):
        await producer.send_and_wait("t", b"secret", key=b"secret", partition=0)
        await consumer.getmany(timeout_ms=2000)
        cluster.append_hook = lambda broker, *_: "swallow" if broker == 1 else None
        delivery = await producer.send("t", b"secret", partition=0)
        async with cluster.appended:
            await cluster.appended.wait_for(lambda: len(cluster.append_requests) >= 2)
        cluster.move_leader("t", 0, broker=2)
        await delivery
        await consumer.getmany(timeout_ms=2000)
    moves = [event for event in events(caplog, logging.INFO) if event.startswith("leader_changed")]
    assert moves == ["leader_changed topic=t partition=0 broker_id=2 leader_epoch=2"] * 2
    assert {"topology_watched", "producer_started", "consumer_started", "producer_closed"} <= set(names(caplog))
    assert all(EVENT.match(event) for event in events(caplog))
    assert "secret" not in caplog.text


async def test_a_partition_that_stays_unavailable_is_one_warning(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(settings, "RETRY_BACKOFF_MAX_SECONDS", 0.02)
    cluster.create_topic("t")
    refusals = [detail(pb.NO_LEADER)] * 3 * settings.FAILURES_BEFORE_WARNING
    cluster.append_hook = lambda *_: refusals.pop() if refusals else None
    async with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        await producer.send_and_wait("t", b"x")
    assert names(caplog, logging.WARNING) == ["partition_unavailable"]


async def test_an_unreachable_cluster_is_warned_of_at_a_bounded_rate(caplog: pytest.LogCaptureFixture):
    async with FakeCluster(brokers=1) as cluster, Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        await cluster.brokers[1].stop()
        seen = producer._resolver
        while len(seen._errors) < 1 or not names(caplog, logging.WARNING):
            await seen.wait_change(0.05)
        await seen.wait_change(0.3)  # several tries later
        assert names(caplog, logging.WARNING) == ["no_broker_reachable"]


def test_the_log_throttle_passes_the_first_call_and_then_waits():
    pace = LogThrottle(60)
    assert [pace.is_due() for _ in range(3)] == [True, False, False]
    assert all(LogThrottle(0).is_due() for _ in range(3))


def test_without_a_handler_nothing_is_written():
    code = "from raftmq.client.base.logs import log; log.warning('no_broker_reachable addresses=%s', 'a:1'); log.error('x_y')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


def test_every_error_contains_its_advice_once():
    for cls in (errors.UnknownTopicError, errors.BootstrapError, errors.WrongClusterError):
        assert str(cls("what is wrong.")) == f"what is wrong; {cls.advice}"
    assert str(errors.InvalidArgumentError("what is wrong")) == "what is wrong"
