"""A worker before it runs: arguments and construction."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import raftmq
from raftmq import Record, Worker
from raftmq.errors import BootstrapError, ClosedClientError, InvalidArgumentError, TopicKindMismatchError

from tests.support.client.fake_broker import FakeCluster


def handle(record: Record) -> None:
    pass


async def handle_async(record: Record) -> None:
    pass


@pytest.fixture
def nobody() -> Iterator[str]:
    """Return an address where no process listens, or can begin to."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{reserved.getsockname()[1]}"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"topic": ()}, "one or more topic names"),
        ({"topic": ""}, "one or more topic names"),
        ({"group_id": ""}, "group_id"),
        ({"handler": None}, "a handler must be a function"),
        ({"handler": {"t": handle, "u": handle}}, "have no topic or no handler: u"),
        ({"topic": ["t", "u"], "handler": {"t": handle}}, "have no topic or no handler: u"),
        ({"value_deserializer": "json"}, "value_deserializer must be a function of bytes"),
        ({"retry_on": "ValueError"}, "retry_on takes an exception class"),
        ({"give_up_on": (ValueError, 3)}, "give_up_on takes an exception class"),
        ({"on_startup": 3}, "on_startup must be a function"),
        ({"on_failure": handle_async}, "on_failure must be a plain function"),
        ({"ordering": "chaos"}, "use key, partition or none"),
        ({"executor": "moon"}, "use one of async, thread, process"),
        ({"concurrency": 0}, "^concurrency must be positive, not 0"),
        ({"max_partition_records": 0}, "^max_partition_records must be positive, not 0"),
        ({"max_records": 10}, r"^max_records must be at least max_partition_records \(1000\), not 10"),
        ({"retries": -1}, "^retries must be 0 or more, not -1"),
        ({"retry_backoff_ms": -1}, "^retry_backoff_ms must be 0 or more, not -1"),
        (
            {"retry_backoff_ms": 10, "retry_backoff_max_ms": 1},
            r"^retry_backoff_max_ms must be at least retry_backoff_ms \(10\), not 1",
        ),
        ({"commit_interval_ms": 0}, "^commit_interval_ms must be positive, not 0"),
        ({"session_timeout_ms": 0}, "^session_timeout_ms must be positive, not 0"),
        ({"drain_timeout_ms": -1}, "^drain_timeout_ms must be 0 or more, not -1"),
        ({"handler_timeout_ms": 0}, "^handler_timeout_ms must be positive, not 0"),
        ({"revocation_timeout_ms": 300_001}, r"revocation_timeout_ms \(300001\)"),
        ({"topic": ["a", "b"], "dead_letter_topic": "b"}, "must differ from"),
        ({"create_dead_letter_topic": True}, "needs a dead_letter_topic"),
    ],
)
def test_invalid_arguments_are_refused_by_name(settings: dict[str, object], words: str) -> None:
    arguments = {"topic": "t", "group_id": "g", "handler": handle} | settings
    with pytest.raises(InvalidArgumentError, match=words):
        Worker(**arguments)


@pytest.mark.parametrize(
    "argument",
    ["concurrency", "max_records", "max_partition_records", "retries", "session_timeout_ms", "max_poll_interval_ms"],
)
def test_a_float_instead_of_a_whole_number_is_refused_by_name(argument: str) -> None:
    wrong: dict[str, Any] = {"max_partition_records": 1, argument: 500_000.0}
    with pytest.raises(TypeError, match=rf"^{argument} must be a whole number, not 500000\.0"):
        Worker("t", "g", handle, **({"max_records": 500_000} | wrong))


def test_several_topics_are_one_worker() -> None:
    assert Worker(["a", "b"], "g", handle).topics == ("a", "b")
    assert Worker("ab", "g", handle_async).topics == ("ab",)


def test_the_worker_is_public() -> None:
    assert raftmq.Worker is Worker
    assert Worker("t", "g", handle).metrics() is None


async def test_a_worker_without_a_reachable_broker_fails_in_time(nobody: str) -> None:
    with pytest.raises(BootstrapError, match=nobody):
        await Worker("t", "g", handle, bootstrap_servers=nobody, request_timeout_ms=100).serve()


async def test_a_worker_runs_only_once(nobody: str) -> None:
    worker = Worker("t", "g", handle, bootstrap_servers=nobody)
    worker.stop()
    await worker.serve()
    with pytest.raises(ClosedClientError, match="runs only once"):
        await worker.serve()


@pytest.mark.parametrize("dead_letter_topic", [None, "dead"])
async def test_stop_ends_a_worker_that_is_looking_for_a_broker(nobody: str, dead_letter_topic: str | None) -> None:
    worker = Worker(
        "t",
        "g",
        handle_async,
        bootstrap_servers=nobody,
        request_timeout_ms=3_600_000,
        dead_letter_topic=dead_letter_topic,
    )
    serving = asyncio.create_task(worker.serve())
    await asyncio.sleep(0)
    stopping = threading.Thread(target=worker.stop)
    stopping.start()
    async with asyncio.timeout(30):
        await serving
    stopping.join()


def test_run_outside_the_main_thread_takes_no_signals_and_ends_by_stop(nobody: str) -> None:
    worker = Worker("t", "g", handle, bootstrap_servers=nobody, request_timeout_ms=3_600_000)
    running = threading.Thread(target=worker.run)
    running.start()
    worker.stop()
    running.join(30)
    assert not running.is_alive()


async def test_a_dead_letter_topic_that_is_a_queue_is_refused_before_the_first_record() -> None:
    """The first record that failed for good ended the worker, perhaps weeks later."""
    async with FakeCluster() as cluster:
        cluster.create_topic("orders")
        cluster.create_queue("dead")
        worker = Worker("orders", "g", handle, bootstrap_servers=cluster.bootstrap_servers, dead_letter_topic="dead")
        with pytest.raises(TopicKindMismatchError, match="'dead' must be a log topic, not a queue topic"):
            async with asyncio.timeout(20):
                await worker.serve()
