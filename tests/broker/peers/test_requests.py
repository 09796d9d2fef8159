"""Brokers ask each other over their peer ports: requests are answered, bounded, cancelled, and refused by type."""

import asyncio
import contextlib
import dataclasses
import itertools

import msgspec
import pytest
from raftmq.broker.base.limits import Limits
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.peers.codec import FRAME_HEADER, WIRE_VERSION, FrameType, frame
from raftmq.broker.peers.protocol import Channel, Hello
from raftmq.broker.peers.request_frames import (
    REQUEST_HEAD,
    ResponseStatus,
    decode_response,
    encode_cancel,
    encode_request,
)
from raftmq.broker.peers.requests import UnknownMethodError
from raftmq.proto import queue_pb2 as pb

from tests.support.broker.peer_transports import TIMING, transport


class Answers:
    """Answers requests by the name of their method, and records the tasks that were cancelled."""

    def __init__(self):
        self.asked = asyncio.Queue()
        self.cancelled = asyncio.Queue()
        self.may_answer = asyncio.Event()

    async def answer(self, asker, request, deadline):
        self.asked.put_nowait((asker, request, deadline))
        match request.method:
            case "Echo":
                return request.body
            case "Wait":
                try:
                    await self.may_answer.wait()
                except asyncio.CancelledError:
                    self.cancelled.put_nowait(request.body)
                    raise
                return request.body
            case "Refuse":
                raise RequestError(pb.NOT_LEADER, "another broker leads", leader_broker_id=3, leader_epoch=8)
            case "Large":
                return bytes(int(request.body))
            case "Fail":
                raise ZeroDivisionError
            case _:
                raise UnknownMethodError


@contextlib.asynccontextmanager
async def asking(limits=None, answering_limits=None, timing=TIMING):
    """Yield a transport that has the other as its peer 2, the answers of the other, the other, and its address."""
    async with (
        transport(1, limits=limits, timing=timing) as (one, _, _),
        transport(2, limits=answering_limits or limits, timing=timing) as (two, _, address),
    ):
        answers = two.requests.answerer = Answers()
        one.set_peers({2: address})
        yield one, answers, two, address


def soon(seconds=5.0):
    return asyncio.get_running_loop().time() + seconds


async def refusal(awaitable):
    with pytest.raises(RequestError) as caught:
        await awaitable
    return caught.value


async def test_a_peer_answers_a_request_and_learns_who_asks_and_for_how_long():
    async with asking() as (one, answers, *_):
        assert await one.ask(2, "Echo", "alice", b"body", soon(2.5)) == b"body"
        asker, request, deadline = await answers.asked.get()
        assert (asker, request.method, request.principal) == (1, "Echo", "alice")
        assert soon(2.0) < deadline <= soon(2.5)


async def test_answers_arrive_in_any_order():
    async with asking() as (one, answers, *_):
        slow = asyncio.create_task(one.ask(2, "Wait", "", b"slow", soon()))
        await answers.asked.get()
        assert await one.ask(2, "Echo", "", b"fast", soon()) == b"fast"
        answers.may_answer.set()
        assert await slow == b"slow"


async def test_a_refusal_arrives_with_its_code_hint_and_outcome():
    async with asking() as (one, *_):
        error = await refusal(one.ask(2, "Refuse", "", b"", soon()))
    assert (error.code, error.detail.leader.broker_id, error.detail.leader.leader_epoch) == (pb.NOT_LEADER, 3, 8)
    assert error.detail.outcome == pb.NOT_APPLIED


async def test_a_lost_connection_gives_its_read_buffer_back_once():
    """The link learns of the loss a little later. A search for room in that time took the buffer for an empty one that may shrink."""
    async with asking() as (one, answers, two, _):
        assert len(await one.ask(2, "Large", "", b"1000000", soon())) == 1_000_000
        assert one.read_buffer_bytes > 0

        async def ask_until_lost():
            await refusal(one.ask(2, "Wait", "", b"", soon()))
            return one.reserve(one.limits.peer_read_buffer_bytes_max + 1)

        waiting = asyncio.create_task(ask_until_lost())
        await answers.asked.get()
        await answers.asked.get()
        two.shut()
        assert not await waiting
        assert one.read_buffer_bytes == 0


async def test_a_method_of_another_version_is_reported_as_such():
    async with asking() as (one, *_):
        error = await refusal(one.ask(2, "FromTheFuture", "", b"", soon()))
        assert await one.ask(2, "Echo", "", b"still", soon()) == b"still"
    assert error.code == pb.UNSUPPORTED_VERSION
    assert "FromTheFuture" in str(error)


async def test_a_defect_of_an_answer_is_counted_and_has_an_unknown_outcome():
    async with asking() as (one, _, two, _):
        failures = []
        two.handler.record_failure = lambda work, error: failures.append(error)
        error = await refusal(one.ask(2, "Fail", "", b"", soon()))
    assert (error.code, error.detail.outcome) == (pb.INTERNAL, pb.UNKNOWN_OUTCOME)
    assert isinstance(failures[0], ZeroDivisionError)


async def test_an_unknown_or_dead_peer_is_reported_immediately_and_nothing_was_done():
    async with asking() as (one, _, two, _):
        assert (await refusal(one.ask(9, "Echo", "", b"", soon(60)))).code == pb.NO_LEADER
        await one.ask(2, "Echo", "", b"", soon())
        await two.close()
        error = RequestError(pb.REQUEST_TIMED_OUT, "")
        while error.code == pb.REQUEST_TIMED_OUT:  # the end of the connection is not known immediately
            error = await refusal(one.ask(2, "Echo", "", b"", soon(60)))
    assert (error.code, error.detail.outcome) == (pb.NO_LEADER, pb.NOT_APPLIED)


async def test_a_request_without_an_answer_in_time_is_cancelled_at_the_peer():
    async with asking() as (one, answers, two, _):
        await one.ask(2, "Echo", "", b"", soon())
        error = await refusal(one.ask(2, "Wait", "", b"late", soon(0.05)))
        assert await answers.cancelled.get() == b"late"
        assert (error.code, error.detail.outcome) == (pb.REQUEST_TIMED_OUT, pb.UNKNOWN_OUTCOME)
        await one.ask(2, "Echo", "", b"", soon())
        assert two.requests.bytes == 0


async def test_a_caller_that_gives_up_cancels_the_request_at_the_peer():
    async with asking() as (one, answers, *_):
        task = asyncio.create_task(one.ask(2, "Wait", "", b"given up", soon()))
        await answers.asked.get()
        task.cancel()
        assert await answers.cancelled.get() == b"given up"
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_the_end_of_the_connection_cancels_its_requests_and_leaves_their_outcome_open():
    async with asking() as (one, answers, *_):
        task = asyncio.create_task(one.ask(2, "Wait", "", b"lost", soon()))
        await answers.asked.get()
        one.set_peers({})
        error = await refusal(task)
        assert await answers.cancelled.get() == b"lost"
    assert (error.code, error.detail.outcome) == (pb.REQUEST_TIMED_OUT, pb.UNKNOWN_OUTCOME)


async def test_a_request_whose_deadline_has_passed_is_not_sent():
    async with asking() as (one, answers, *_):
        error = await refusal(one.ask(2, "Echo", "", b"", soon(-1)))
        await one.ask(2, "Echo", "", b"in time", soon())
        assert (await answers.asked.get())[1].body == b"in time"
    assert error.detail.outcome == pb.NOT_APPLIED


async def test_a_response_that_is_too_large_is_an_error_and_the_largest_one_arrives():
    limits = dataclasses.replace(Limits(), peer_response_bytes_max=300_000)
    async with asking(limits) as (one, *_):
        assert len(await one.ask(2, "Large", "", b"300000", soon())) == 300_000
        error = await refusal(one.ask(2, "Large", "", b"300001", soon()))
    assert (error.code, error.detail.outcome) == (pb.INTERNAL, pb.UNKNOWN_OUTCOME)
    assert "300001" in str(error)


async def test_a_broker_that_stops_refuses_requests_and_finishes_those_under_way():
    async with asking() as (one, answers, two, _):
        slow = asyncio.create_task(one.ask(2, "Wait", "", b"slow", soon()))
        await answers.asked.get()
        finishing = asyncio.create_task(two.requests.finish(10))
        await asyncio.sleep(0)
        error = await refusal(one.ask(2, "Echo", "", b"", soon()))
        assert (error.code, error.detail.outcome) == (pb.SHUTTING_DOWN, pb.NOT_APPLIED)
        answers.may_answer.set()
        await finishing
        assert await slow == b"slow"


# ------------------------------------------------------------------------------------------------------------ bounds


async def test_a_request_that_no_frame_holds_is_refused_before_it_is_sent():
    limits = dataclasses.replace(Limits(), peer_request_bytes_max=1000)
    async with asking(limits) as (one, answers, *_):
        error = await refusal(one.ask(2, "Echo", "", bytes(1001), soon()))
        assert error.code == pb.INVALID_ARGUMENT
        assert await one.ask(2, "Echo", "", bytes(1000), soon()) == bytes(1000)
        assert answers.asked.qsize() == 1


@pytest.mark.parametrize("bound", ["peer_requests_max", "peer_requests_bytes_max"])
async def test_a_thousand_requests_at_once_are_bounded_at_the_caller(bound):
    async with asking(dataclasses.replace(Limits(), **{bound: 200})) as (one, answers, *_):
        answers.may_answer.set()
        await one.ask(2, "Echo", "", b"", soon())
        results = await asyncio.gather(
            *(one.ask(2, "Wait", "", b"x", soon()) for _ in range(1000)), return_exceptions=True
        )
        assert results.count(b"x") == 200
        assert {error.code for error in results if error != b"x"} == {pb.THROTTLED}
        assert await one.ask(2, "Echo", "", b"again", soon()) == b"again"


@pytest.mark.parametrize("bound", ["peer_requests_max", "peer_requests_bytes_max", "inbound_requests_bytes_max"])
async def test_a_thousand_requests_at_once_are_bounded_where_they_arrive(bound):
    """A caller with other limits, or none, occupies no more."""
    async with asking(Limits(), dataclasses.replace(Limits(), **{bound: 200})) as (one, answers, two, _):
        await one.ask(2, "Echo", "", b"", soon())
        tasks = [asyncio.create_task(one.ask(2, "Wait", "", b"x", soon())) for _ in range(1000)]
        done, waiting = set(), set(tasks)
        while len(done) < 800:
            more, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            done |= more
        assert {task.exception().code for task in done} == {pb.THROTTLED}
        assert two.requests.refused_total == 800
        assert len(two.requests.running) == 200
        answers.may_answer.set()
        assert await asyncio.gather(*waiting) == [b"x"] * 200
        assert (two.requests.bytes, two.requests.running) == (0, set())


# ------------------------------------------------------------------------------------------------------------ hostile


async def greeted(address, **changes):
    """Open a connection for requests as broker 7, or with another HELLO. Return reader, writer, and the answer."""
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    hello = Hello(WIRE_VERSION, "c", 7, "uuid-7", 1, Channel.REQUESTS, 1, "", b"mark")
    hello = msgspec.structs.replace(hello, **changes)
    writer.writelines(frame(FrameType.HELLO, [msgspec.msgpack.encode(hello)]))
    return reader, writer, await read_frame(reader)


async def read_frame(reader):
    length, kind, _ = FRAME_HEADER.unpack(await reader.readexactly(FRAME_HEADER.size))
    return FrameType(kind), await reader.readexactly(length)


async def rest(reader):
    """Return what still arrives until the connection ends. It is reset if the broker has not read everything."""
    with contextlib.suppress(ConnectionResetError):
        return await reader.read()
    return b""


def request(number, method="Echo", body=b"", remaining_ms=1000):
    return frame(FrameType.REQUEST, encode_request(number, remaining_ms, method, "", body))


async def response(reader):
    kind, body = await read_frame(reader)
    assert kind is FrameType.RESPONSE
    return decode_response(memoryview(body))


def error_code(answer):
    assert answer.status is ResponseStatus.ERROR
    return pb.ErrorDetail.FromString(answer.body).code


GARBAGE = {
    "no frame": b"GET / HTTP/1.1\r\n\r\n" * 10,
    "another type": b"".join(frame(FrameType.HEARTBEATS, [b""])),
    "a response": b"".join(frame(FrameType.RESPONSE, [b"\0" * 9])),
    "truncated": b"".join(frame(FrameType.REQUEST, [b"\0" * (REQUEST_HEAD.size - 1)])),
    "names beyond the frame": b"".join(frame(FrameType.REQUEST, [REQUEST_HEAD.pack(1, 1, 65535, 65535)])),
    "no text": b"".join(frame(FrameType.REQUEST, [REQUEST_HEAD.pack(1, 1, 2, 0), b"\xff\xff"])),
    "half a cancel": b"".join(frame(FrameType.CANCEL, [b"\0" * 7])),
    "too long": FRAME_HEADER.pack(Limits().frame_bytes_max + 1, FrameType.REQUEST, 0),
    "an id twice": b"".join([*request(1, "Wait"), *request(1, "Wait")]),
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE.keys())
async def test_a_peer_that_sends_garbage_loses_its_connection_and_no_other_peer_notices(garbage):
    async with transport(1) as (one, _, address):
        one.requests.answerer = Answers()
        _, well, _ = (fine := await greeted(address, node_id=8, uuid="uuid-8"))
        reader, writer, _ = await greeted(address)
        writer.write(garbage)
        assert await rest(reader) == b""
        well.writelines(request(1, body=b"fine"))
        assert (await response(fine[0])).body == b"fine"
        if one.requests.running:  # cancelled with their connection
            await asyncio.wait(one.requests.running)
        well.close()
        writer.close()


async def test_a_request_that_arrives_after_its_deadline_is_refused_and_not_begun():
    async with transport(1) as (one, _, address):
        answers = one.requests.answerer = Answers()
        reader, writer, _ = await greeted(address)
        writer.writelines(request(1, remaining_ms=0))
        answer = await response(reader)
        assert error_code(answer) == pb.REQUEST_TIMED_OUT
        assert pb.ErrorDetail.FromString(answer.body).outcome == pb.NOT_APPLIED
        assert answers.asked.empty()
        writer.close()


async def test_a_request_is_not_begun_if_the_loop_was_busy_until_its_deadline(monkeypatch):
    async with transport(1) as (one, _, address):
        answers = one.requests.answerer = Answers()
        clock = itertools.chain([0.0], itertools.repeat(1.0))
        monkeypatch.setattr(one.requests, "loop", _Loop(lambda: next(clock)))
        reader, writer, _ = await greeted(address)
        writer.writelines(request(1, remaining_ms=500))
        assert error_code(await response(reader)) == pb.REQUEST_TIMED_OUT
        assert answers.asked.empty()
        writer.close()


class _Loop:
    """The running loop with another clock."""

    def __init__(self, time):
        self.time = time
        self.create_task = asyncio.get_running_loop().create_task


async def test_a_peer_that_reads_no_responses_loses_its_connection():
    limits = dataclasses.replace(Limits(), peer_outbox_bytes_max=100_000)
    async with transport(1, limits=limits) as (one, _, address):
        one.requests.answerer = Answers()
        _, writer, _ = await greeted(address)
        closing = one._inbound[7, Channel.REQUESTS]
        for number in range(1, 40):
            writer.writelines(request(number, "Large", b"1000000"))
        while not closing._is_closed:
            await asyncio.sleep(0.001)
        assert one.inbound_connections == 0 or closing.transport.is_closing()
        writer.transport.abort()


async def test_cancelling_an_unknown_request_changes_nothing():
    async with transport(1) as (one, _, address):
        one.requests.answerer = Answers()
        reader, writer, _ = await greeted(address)
        writer.writelines(frame(FrameType.CANCEL, encode_cancel(99)))
        writer.writelines(request(1, body=b"fine"))
        assert (await response(reader)).body == b"fine"
        writer.close()


async def test_a_broker_of_another_cluster_or_wire_version_asks_nothing():
    async with transport(1) as (one, _, address):
        one.requests.answerer = answers = Answers()
        for changes, reason in (
            ({"cluster_id": "another"}, "another cluster"),
            ({"wire_version": WIRE_VERSION + 1}, "wire version"),
            ({"wire_version": WIRE_VERSION + 1, "target_node_id": 0}, "wire version"),
        ):
            reader, writer, (kind, said) = await greeted(address, **changes)
            writer.writelines(request(1))
            assert kind is FrameType.REFUSED
            assert reason in said.decode()
            assert await rest(reader) == b""
            writer.close()
        assert answers.asked.empty()


# ------------------------------------------------------------------------------------------------------------ visits


async def test_a_visitor_learns_the_cluster_and_asks_without_being_a_peer():
    async with transport(2) as (two, _, address), transport(0, cluster_id="") as (stranger, _, _):
        answers = two.requests.answerer = Answers()
        async with stranger.visit(address, soon()) as visit:
            assert (visit.host.cluster_id, visit.host.node_id) == ("c", 2)
            assert await visit.ask("Echo", b"hello") == b"hello"
        assert (await answers.asked.get())[0] == 0
        assert two.connections() == {}


async def test_a_visitor_may_send_little_and_stays_for_a_short_time():
    timing = dataclasses.replace(TIMING, visit_seconds=0.05)
    async with transport(1, timing=timing) as (one, _, address):
        one.requests.answerer = Answers()
        reader, writer, _ = await greeted(address, target_node_id=0)
        writer.writelines(request(1, body=bytes(Limits().peer_visit_bytes_max)))
        assert await rest(reader) == b""
        reader, silent, _ = await greeted(address, target_node_id=0)
        assert await reader.read() == b""
        writer.close()
        silent.close()


async def test_a_port_for_another_purpose_is_reported_as_no_peer_address():
    async def serve(reader, writer):
        writer.write(b"\0\0\x1e\x04\0\0\0\0\0\0\3\x7f\xff\xff\xff")  # the first bytes of gRPC's server
        await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, transport(0, cluster_id="") as (stranger, _, _):
        error = await refusal(stranger.visit(address, soon()).__aenter__())
        assert error.code == pb.INVALID_ARGUMENT
        assert address in str(error)
        assert "another protocol" in str(error)


async def test_an_address_where_nobody_answers_is_reported():
    async with transport(0, cluster_id="") as (stranger, _, _):
        for address in ("127.0.0.1:1", "nowhere"):
            error = await refusal(stranger.visit(address, soon()).__aenter__())
            assert error.code == pb.NO_LEADER
