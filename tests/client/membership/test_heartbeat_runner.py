"""The times and targets of a member's heartbeats, the effects of their failures, and the thread that sends them. No broker."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time

import pytest
from raftmq import errors
from raftmq.client.membership.group_member import GroupMember, MemberSettings, PartitionId, Standing, Subscription
from raftmq.client.membership.heartbeat_runner import LoopWatch, ThreadHeartbeats
from raftmq.client.membership.member_calls import FOREVER, GroupCall, MemberCalls
from raftmq.proto import queue_pb2 as pb

from tests.support.client.fake_broker import FakeCluster

P0 = PartitionId(7, 0)


def joining(now: float = 0.0, poll_seconds: float = 300.0, instance_id: str = "") -> MemberCalls:
    member = GroupMember(MemberSettings("g", instance_id, "c", "", 45_000, 300_000))
    made = MemberCalls(member, heartbeat_seconds=5, poll_seconds_max=poll_seconds, rng=random.Random(1), now=now)
    made.record_addresses(["a:1", "b:2", "c:3"])
    made.subscribe(Subscription(("t",), "", ""), now)
    return made


def call_of(made: MemberCalls, now: float) -> GroupCall:
    found = made.next_call(now)
    assert isinstance(found, GroupCall)
    return found


def answered(made: MemberCalls, now: float, epoch: int = 5, next_ms: int = 500) -> GroupCall:
    call = call_of(made, now)
    answer = pb.HeartbeatResponse(member_epoch=epoch, has_assignment=True, next_heartbeat_ms=next_ms)
    answer.assignment.add(topic_id=7, topic="t", partitions=[0], owner_epochs=[5])
    answer.coordinator.address = "b:2"
    made.on_answer(call, answer, now)
    return call


def test_heartbeats_follow_the_coordinators_interval_within_the_configured_maximum() -> None:
    made = joining()
    assert answered(made, 0.0).address == "a:1"
    assert made.take_news()
    wait = made.next_call(0.1)
    assert isinstance(wait, float)
    assert 0.4 < wait <= 0.5
    assert call_of(made, 0.5).address == "b:2"
    answered(made, 0.5, next_ms=60_000)
    wait = made.next_call(1.0)
    assert isinstance(wait, float)
    assert wait <= 5.5


def test_news_during_a_heartbeat_is_sent_immediately_after_it() -> None:
    made = joining()
    call = call_of(made, 0.0)
    made.heartbeat_soon(0.1)
    made.on_answer(call, pb.HeartbeatResponse(member_epoch=5, has_assignment=True, next_heartbeat_ms=5000), 0.2)
    assert isinstance(made.next_call(0.2), GroupCall)


def test_failed_heartbeats_go_to_the_next_broker_with_growing_waits() -> None:
    made = joining()
    now, addresses, waits = 0.0, [], []
    for _ in range(6):
        call = call_of(made, now)
        addresses.append(call.address)
        made.on_error(call, errors.UnreachableError("x"), now)
        at = made.next_call(now)
        assert isinstance(at, float)
        waits.append(at - now)
        made.heartbeat_soon(now)
        assert made.next_call(now) == at, "a release does not make a broker that is down be asked without pause"
        now = at
    assert addresses == ["a:1", "b:2", "c:3"] * 2
    assert waits[0] < 0.3
    assert max(waits) <= 1.0


@pytest.mark.parametrize(
    "error", [errors.FencedError("x"), errors.InvalidArgumentError("x"), errors.TooManyMembersError("x")]
)
def test_a_refusal_ends_the_membership_and_is_raised(error: errors.RaftMQError) -> None:
    made = joining()
    made.on_error(call_of(made, 0.0), error, 0.0)
    assert (made.standing, made.take_news(), made.next_call(1.0)) == (Standing.FAILED, True, FOREVER)
    with pytest.raises(type(error)):
        made.check()


def test_a_session_without_answers_loses_the_held_partitions() -> None:
    made = joining()
    answered(made, 0.0)
    made.hold({P0: 5})
    made.take_news()
    now = 0.6
    while now < 44:
        call = call_of(made, now)
        made.on_error(call, errors.NoLeaderError("x"), now)
        now += 5
        assert not made.take_news()
    made.on_error(call_of(made, 45.1), errors.NoLeaderError("x"), 45.1)
    assert made.take_news()
    assert made.steps().lose == {P0: 5}
    at = made.next_call(45.2)
    assert isinstance(at, float)
    assert at > 45.2, "it does not turn without a pause"


def test_a_program_that_stops_polling_leaves_and_joins_again_when_it_polls() -> None:
    made = joining(poll_seconds=10.0)
    answered(made, 0.0)
    made.hold({P0: 5})
    made.asked += 1
    answered(made, 9.0)
    answered(made, 18.0)
    member_id = made.member_id
    leave = call_of(made, 19.5)
    assert leave.request == pb.LeaveRequest(group="g", member_id=member_id)
    assert (made.standing, made.steps().lose) == (Standing.OUT, {P0: 5})
    made.on_answer(leave, pb.LeaveResponse(), 19.6)
    assert made.next_call(30.0) == FOREVER
    made.asking += 1
    joined = call_of(made, 31.0).request
    assert isinstance(joined, pb.HeartbeatRequest)
    assert (joined.member_epoch, joined.member_id != member_id) == (0, True)


def test_a_static_member_sends_no_leave_request() -> None:
    made = joining(poll_seconds=10.0, instance_id="i")
    answered(made, 0.0)
    assert made.next_call(11.0) == FOREVER
    assert made.stop() is None


def test_an_unanswered_leave_request_is_given_up() -> None:
    made = joining(poll_seconds=10.0)
    answered(made, 0.0)
    now, tries = 11.0, 0
    while isinstance(call := made.next_call(now), GroupCall):
        tries += 1
        made.on_error(call, errors.UnreachableError("x"), now)
        now += 2
    assert (tries, call) == (5, FOREVER)


def test_stop_returns_the_leave_request() -> None:
    made = joining()
    assert made.stop() == pb.LeaveRequest(group="g", member_id=made.member_id)
    assert made.next_call(0.0) == FOREVER


# --------------------------------------------------------------------------------------------------------------- thread


async def test_a_defect_in_the_thread_is_raised_in_the_program(caplog: pytest.LogCaptureFixture) -> None:
    made = joining(asyncio.get_running_loop().time())
    has_news = asyncio.Event()

    def broken(now: float) -> GroupCall | float:
        raise ZeroDivisionError

    made.next_call = broken  # type: ignore[method-assign]
    runner = ThreadHeartbeats(made, has_news.set, "")
    async with asyncio.timeout(20):
        await has_news.wait()
    await runner.close()
    with pytest.raises(errors.InternalError, match="ZeroDivisionError"):
        made.check()
    assert "heartbeats_stopped" in caplog.text


async def test_calls_of_the_thread_contain_the_cluster_id() -> None:
    async with FakeCluster() as cluster:
        made = joining(asyncio.get_running_loop().time())
        made.record_addresses([cluster.bootstrap_servers])
        runner = ThreadHeartbeats(made, lambda: None, "mine")
        async with asyncio.timeout(20):
            while cluster.clusters_called.get("Heartbeat") != "mine":
                await asyncio.sleep(0.01)
        await runner.close()


async def test_closing_ends_a_call_that_hangs() -> None:
    """The listener accepts and never answers. If it were closed before it accepted, no call would hang."""
    accepted: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
    server = await asyncio.start_server(lambda _, writer: accepted.put_nowait(writer), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    made = joining(asyncio.get_running_loop().time())
    made.record_addresses([f"127.0.0.1:{port}"])
    runner = ThreadHeartbeats(made, lambda: None, "")
    async with asyncio.timeout(20):
        writer = await accepted.get()
        while runner._running is None:  # the thread may be about to note it
            await asyncio.sleep(0.001)
    started = time.monotonic()
    await runner.close()
    assert time.monotonic() - started < 10
    runner._thread.join(10)
    assert not runner._thread.is_alive()
    server.close()
    writer.close()
    await server.wait_closed()
    assert accepted.empty()


async def test_a_blocked_loop_is_logged_once_with_its_place(caplog: pytest.LogCaptureFixture) -> None:
    watch = LoopWatch(asyncio.get_running_loop(), 2.0)

    def handler_that_takes_its_time(*looks: float) -> None:
        other = threading.Thread(target=lambda: [watch.look(at) for at in looks])
        other.start()
        other.join()

    with caplog.at_level(logging.WARNING, "raftmq"):
        handler_that_takes_its_time(0.0, 1.9, 2.1, 3.0)
        assert len(caplog.records) == 1
        assert "place=handler_that_takes_its_time" in caplog.text
        await asyncio.sleep(0)
        handler_that_takes_its_time(4.0, 7.0)
    assert len(caplog.records) == 2


def test_a_closed_loop_is_noticed() -> None:
    loop = asyncio.new_event_loop()
    watch = LoopWatch(loop, 2.0)
    loop.close()
    assert not watch.look(0.0)
