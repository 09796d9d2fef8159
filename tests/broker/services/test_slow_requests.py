"""Slow requests are logged with the phases of appends, at a bounded rate, and fast ones are not."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, MutableMapping
from typing import Any

import pytest
import structlog
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.grpc_port.handlers import observed
from raftmq.broker.replica.pending_proposals import ProposalFuture
from raftmq.broker.services.request_metrics import RequestMetrics
from raftmq.broker.services.slow_requests import (
    LOGGED_MAX,
    WAITING,
    WINDOW_SECONDS,
    SlowRequests,
    append_phases,
)
from raftmq.proto import queue_pb2 as pb
from raftmq.types import GroupId

from tests.support.broker.harness import append_request, batch, running


@contextlib.contextmanager
def slow_ones() -> Iterator[list[MutableMapping[str, Any]]]:
    with structlog.testing.capture_logs() as events:
        yield events
        events[:] = [event for event in events if event["event"] == "slow_request"]


def proposal(proposed: float, durable: float = 0.0, committed: float = 0.0, group: int = 7) -> ProposalFuture:
    future = ProposalFuture(loop=asyncio.get_running_loop())
    future.group_id = GroupId(group)
    future.proposed_at, future.durable_at, future.committed_at = proposed, durable, committed
    return future


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ((11.0, 13.0, 16.0), (1.0, 2.0, 3.0, 4.0)),  # every phase
        ((11.0, 17.0, 16.0), (1.0, 5.0, 0.0, 4.0)),  # a majority had it before this broker's disk
        ((11.0, 0.0, 16.0), (1.0, 5.0, 0.0, 4.0)),  # and this broker's disk does not have it yet
        ((11.0, 13.0, 0.0), (1.0, 2.0, 7.0, 0.0)),  # the time was over before a majority had it
        ((11.0, 0.0, 0.0), (1.0, 9.0, 0.0, 0.0)),  # nor this broker's disk
        ((9.0, 13.0, 16.0), (0.0, 3.0, 3.0, 4.0)),  # an earlier request had proposed it
        ((8.0, 8.5, 9.0), (0.0, 0.0, 0.0, 10.0)),  # and it was committed by then
    ],
)
async def test_phases_follow_each_other_and_add_up(times: tuple[float, float, float], expected: tuple[float, ...]):
    phases = append_phases(10.0, 20.0, [proposal(*times)])
    assert phases == (7, *expected)
    assert sum(phases[1:]) == 10.0


async def test_the_slowest_proposal_counts_and_without_any_all_time_was_queued():
    quick, slow = proposal(11.0, 12.0, 13.0), proposal(11.0, 14.0, 15.0, group=8)
    assert append_phases(10.0, 20.0, [quick, slow, quick]).group_id == 8
    assert append_phases(10.0, 20.0, [quick, proposal(11.0, group=9), slow]).group_id == 9
    assert append_phases(10.0, 20.0, []) == (None, 10.0, 0.0, 0.0, 0.0)


async def test_the_rate_is_bounded_and_what_was_left_out_is_counted():
    now = 100.0
    slow = SlowRequests(1.0, lambda: now)
    with slow_ones() as events:
        for _ in range(LOGGED_MAX + 5):
            slow.report_append("Append", "OK", 10.0, 10.0, [proposal(11.0, 13.0, 16.0)])
        now += WINDOW_SECONDS
        slow.report("DeleteTopic", "OK", 3.0)
    assert [event["others"] for event in events] == [0] * LOGGED_MAX + [5]
    assert {**events[0], "event": "", "log_level": ""} == {
        "event": "", "log_level": "", "method": "Append", "error_code": "OK", "elapsed_seconds": 10.0, "group_id": 7,
        "queued_seconds": 1.0, "disk_seconds": 2.0, "replication_seconds": 3.0, "apply_seconds": 4.0, "others": 0,
    }  # fmt: skip
    assert slow.total == {"Append": LOGGED_MAX + 5, "AppendStream": 0, "DeleteTopic": 1}


def test_a_request_that_waits_on_purpose_is_not_slow():
    names = {"Poll", "WaitFinished", "CreateTopic", "AddPartitions", "TransferLeader"}
    assert names <= WAITING
    assert "DeleteTopic" not in WAITING
    slow = SlowRequests(1.0)
    with slow_ones() as events:
        for name in names:
            slow.report(name, "OK", 30.0)
    assert not events
    assert sum(slow.total.values()) == 0


@pytest.mark.parametrize("threshold", [0.0, 3600.0])
async def test_no_request_is_slow_when_it_is_off_or_fast(threshold: float):
    assert await _logged(RequestMetrics(SlowRequests(threshold))) == []


async def test_an_append_is_logged_with_its_phases():
    (event,) = await _logged(RequestMetrics(SlowRequests(1e-9)))
    assert (event["method"], event["error_code"]) == ("Append", "OK")
    assert event["group_id"] is not None
    phases = [event[f"{name}_seconds"] for name in ("queued", "disk", "replication", "apply")]
    assert sum(phases) == pytest.approx(event["elapsed_seconds"], abs=0.003)


async def test_an_append_without_a_stream_is_logged_once_with_its_phases():
    metrics = RequestMetrics(SlowRequests(1e-9))
    async with running() as node:
        node.log._metrics = metrics
        topic = await node.topic()
        with slow_ones() as events:
            await observed(metrics, "Append", lambda: node.log.append(append_request(topic, batch(1)), node.call()))
            with pytest.raises(RequestError):
                await observed(metrics, "Append", lambda: node.log.append(pb.AppendRequest(), node.call()))
    first, second = events
    assert (first["method"], first["error_code"], second["error_code"]) == ("Append", "OK", "INVALID_ARGUMENT")
    assert first["group_id"] is not None
    assert "queued_seconds" in second
    assert metrics.slow.total["Append"] == 2


async def test_a_slow_append_is_logged_with_the_code_of_its_refused_partition():
    metrics = RequestMetrics(SlowRequests(1e-9))
    async with running() as node:
        node.log._metrics = metrics
        topic = await node.topic()
        request = append_request(topic, batch(1))
        request.partitions.add(topic_id=topic.topic_id, partition=9)
        answered: asyncio.Queue[pb.AppendResponse] = asyncio.Queue()
        with slow_ones() as events:
            await node.log.append(request, node.call())
            node.log.append_session("AppendStream").submit(request, answered.put_nowait)
            async with asyncio.timeout(5):
                await answered.get()
    assert [event["error_code"] for event in events] == ["UNKNOWN_PARTITION"] * 2
    assert metrics.requests["AppendStream", "OK"] == 1, "the request was answered"


async def test_an_append_whose_session_is_closed_counts_as_cancelled_and_is_logged():
    metrics = RequestMetrics(SlowRequests(1e-9))
    async with running() as node:
        node.log._metrics = metrics
        topic = await node.topic()
        node.hold_commits = True
        session, answers = node.log.append_session("AppendStream"), list[pb.AppendResponse]()
        with slow_ones() as events:
            session.submit(append_request(topic, batch(1)), answers.append)
            later = append_request(topic, batch(1, sequence=1))
            later.metadata_revision = 1 << 40
            session.submit(later, answers.append)
            session.close()
            session.close()
        node.release_commits()
    assert [event["error_code"] for event in events] == ["CANCELLED"] * 2
    assert {event["group_id"] is None for event in events} == {False, True}, (
        "one waited for its commit, one for metadata"
    )
    assert not answers
    assert metrics.requests["AppendStream", "CANCELLED"] == 2


async def _logged(metrics: RequestMetrics) -> list[MutableMapping[str, Any]]:
    """Append a batch whose proposal waits for its commit, and return the logged requests."""
    async with running() as node:
        node.log._metrics = metrics
        topic = await node.topic()
        answered: asyncio.Queue[pb.AppendResponse] = asyncio.Queue()
        node.hold_commits = True
        with slow_ones() as events:
            node.log.append_session("Append").submit(append_request(topic, batch(1)), answered.put_nowait)
            assert answered.empty()
            node.release_commits()
            async with asyncio.timeout(5):
                answer = await answered.get()
            assert len(answer.partitions[0].base_offsets) == 1
            return events


def test_defects_are_counted_from_zero_on():
    """The alert on defects asks for an increase, which a series that begins with the first defect does not have."""
    requests = RequestMetrics().requests
    assert requests["ListTopics", "INTERNAL"] == 0
    assert {("Append", "INTERNAL"), ("ListTopics", "INTERNAL")} <= requests.keys()
