"""Peer connections work over real loopback sockets."""

import asyncio
import contextlib
import dataclasses
import errno
import gc
import socket

import msgspec
import pytest
import structlog
from raftmq.broker.base.limits import Limits
from raftmq.broker.base.supervisor import Work
from raftmq.broker.peers import outbound
from raftmq.broker.peers.codec import FRAME_HEADER, WIRE_VERSION, FrameType, frame
from raftmq.broker.peers.link import NOT_FORMED_REASON
from raftmq.broker.peers.outbound import verdict
from raftmq.broker.peers.protocol import Channel, Hello
from raftmq.broker.peers.transport import PeerTransport

from tests.support.broker.peer_transports import PASSES_OF_AN_ACCEPT, TIMING, transport


async def test_frames_arrive_in_order_on_each_channel():
    async with transport(1) as (one, events, _), transport(2) as (_, two, address):
        one.set_peers({2: address})
        assert await events.events.get() == ("up", 2)
        for number in range(50):
            assert one.send(2, Channel.CONTROL, FrameType.MESSAGE, [b"%d" % number, b"x" * number])
        one.flush()
        got = [await two.frames.get() for _ in range(50)]
    assert got == [(1, FrameType.MESSAGE, b"%d" % n + b"x" * n) for n in range(50)]


async def test_a_frame_larger_than_the_read_buffer_arrives_whole():
    async with transport(1) as (one, events, _), transport(2) as (_, two, address):
        one.set_peers({2: address})
        await events.events.get()
        payload = bytes(range(256)) * 8192
        for _ in range(3):
            while not one.send(2, Channel.APPEND, FrameType.MESSAGE, [payload]):
                await asyncio.sleep(0)
            one.flush()
            assert (await two.frames.get())[2] == payload


async def test_empty_buffers_of_other_peers_make_room_for_a_large_frame():
    """Each kept the size of the largest frame that it had taken. In a large cluster none was left for the entries of a further peer: its
    channel was cut at each attempt to send one.
    """
    payload = bytes(1024 * 1024)
    limits = dataclasses.replace(Limits(), peer_read_buffer_bytes_max=2_500_000)
    async with contextlib.AsyncExitStack() as stack:
        _, two, address = await stack.enter_async_context(transport(9, limits=limits))
        for node_id in range(1, 6):
            one, events, _ = await stack.enter_async_context(transport(node_id))
            one.set_peers({9: address})
            await events.events.get()
            for _ in range(2):
                while not one.send(9, Channel.APPEND, FrameType.MESSAGE, [payload]):
                    await asyncio.sleep(0)
                one.flush()
                async with asyncio.timeout(10):
                    assert await two.frames.get() == (node_id, FrameType.MESSAGE, payload)


async def test_a_connection_that_was_ending_when_its_peer_moved_is_reported_as_lost():
    """Its task was cancelled before it had noticed the end, and nobody else told it: the groups that the peer led kept it as their leader."""
    async with transport(1) as (one, events, _), transport(2) as (_, _, address), transport(2) as (_, _, elsewhere):
        one.set_peers({2: address})
        assert await events.events.get() == ("up", 2)
        one._links[2, Channel.CONTROL].protocol.transport.abort()
        one.set_peers({2: elsewhere})
        async with asyncio.timeout(10):
            assert [await events.events.get(), await events.events.get()] == [("down", 2), ("up", 2)]


async def test_a_dead_process_is_reported_as_refused():
    async with transport(1) as (one, events, _):
        async with transport(2) as (_, _, address):
            one.set_peers({2: address})
            assert await events.events.get() == ("up", 2)
        seen = [await events.events.get(), await events.events.get()]
    assert seen == [("down", 2), ("refused", 2)]


async def test_a_dead_process_is_reported_as_refused_for_any_number_of_addresses(monkeypatch):
    """When "localhost" had two families, the loop reported both refusals as one failure without a number, and no replica campaigned."""
    loop = asyncio.get_running_loop()
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]  # no other process gets it, and none listens on it

        async def both(host, port, **_):
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (name, port)) for name in ("127.0.0.2", "127.0.0.1")]

        monkeypatch.setattr(socket, "getaddrinfo", _two_addresses(socket.getaddrinfo))
        monkeypatch.setattr(loop, "getaddrinfo", both)
        async with transport(1) as (one, events, _):
            one.set_peers({2: f"both.example:{port}"})
            assert await asyncio.wait_for(events.events.get(), 10) == ("refused", 2)


def _two_addresses(original):
    def resolve(host, port, *arguments, **named):
        names = ("127.0.0.2", "127.0.0.1") if host == "both.example" else (host,)
        return [info for name in names for info in original(name, port, *arguments, **named)]

    return resolve


def _failure(number: int) -> OSError:
    return OSError(number, "connect")


@pytest.mark.parametrize(
    ("numbers", "telling"),
    [
        ([errno.ECONNREFUSED], errno.ECONNREFUSED),
        ([errno.ECONNREFUSED, errno.ECONNREFUSED], errno.ECONNREFUSED),
        ([errno.EADDRNOTAVAIL, errno.ECONNREFUSED], errno.ECONNREFUSED),
        ([errno.ENETUNREACH, errno.ECONNREFUSED], errno.ECONNREFUSED),
        ([errno.ECONNREFUSED, errno.EHOSTUNREACH], errno.EHOSTUNREACH),
        ([errno.ETIMEDOUT, errno.ECONNREFUSED], errno.ETIMEDOUT),
        ([errno.ENETUNREACH], errno.ENETUNREACH),
    ],
)
def test_a_host_refuses_if_all_its_reachable_addresses_refuse(numbers, telling):
    """A machine without IPv6 cannot reach ::1. A host with one address that does not answer may be cut off, not dead."""
    error = verdict([_failure(number) for number in numbers])
    assert isinstance(error, ConnectionRefusedError) == (telling == errno.ECONNREFUSED)
    if telling != errno.ECONNREFUSED:
        assert error.errno == telling


async def test_a_name_whose_first_address_refuses_is_reached_at_the_second(monkeypatch):
    loop = asyncio.get_running_loop()

    async def both(host, port, **_):
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (name, port)) for name in ("127.0.0.2", "127.0.0.1")]

    async with transport(1) as (one, events, _), transport(2) as (_, _, address):
        monkeypatch.setattr(loop, "getaddrinfo", both)
        one.set_peers({2: address.replace("127.0.0.1", "both.example")})
        assert await asyncio.wait_for(events.events.get(), 10) == ("up", 2)


async def test_a_malformed_host_name_is_retried_like_a_silent_one(monkeypatch):
    """Python's resolver raises UnicodeError for it. The link's task died of that and never connected again."""
    loop = asyncio.get_running_loop()
    resolve, answers = loop.getaddrinfo, []

    async def fails_first(host, port, **arguments):
        answers.append(host)
        if len(answers) <= len(Channel):
            raise UnicodeError("label empty or too long")
        return await resolve("127.0.0.1", port, **arguments)

    async with transport(1) as (one, events, _), transport(2) as (_, _, address):
        monkeypatch.setattr(loop, "getaddrinfo", fails_first)
        one.set_peers({2: address.replace("127.0.0.1", "no..name")})
        assert await asyncio.wait_for(events.events.get(), 10) == ("up", 2)


@pytest.mark.parametrize("passes", range(6))
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.filterwarnings(
    "ignore:Exception ignored .*_SelectorTransport.__del__:pytest.PytestUnraisableExceptionWarning"
)  # on 3.14
async def test_a_connection_accepted_while_the_transport_closes_is_closed_too(passes):
    """Some passes of the loop lie between the kernel's accept and the protocol. The transport did not know the connection during them.

    In one of them asyncio itself forgets it (CPython issue 109564). Then the garbage collector closes it, with a warning.
    """
    async with transport(1) as (one, _, address):
        host, _, port = address.partition(":")
        with socket.create_connection((host, int(port))) as caller:
            caller.setblocking(False)
            for _ in range(passes):
                await asyncio.sleep(0)
            await one.close()
            for _ in range(PASSES_OF_AN_ACCEPT):
                await asyncio.sleep(0)
            gc.collect()
            assert one.inbound_connections == 0
            with contextlib.suppress(ConnectionResetError):  # the kernel resets connections that were never accepted
                assert caller.recv(1) == b""


async def test_a_node_of_another_cluster_is_not_connected():
    async with transport(2, "other") as (_, two, address), transport(1, "mine") as (one, events, _):
        one.set_peers({2: address})
        await asyncio.wait_for(_until_refused_twice(two), 5)
        assert events.events.empty()
        assert not one.is_connected(2)
        assert not one.send(2, Channel.CONTROL, FrameType.MESSAGE, [b"x"])


@pytest.mark.parametrize(
    ("reason", "name", "level"),
    [
        ("another cluster", "peer_refused_connection", "warning"),
        (NOT_FORMED_REASON, "peer_not_in_a_cluster", "info"),
    ],
)
async def test_a_refusal_is_logged_once_and_is_no_warning_while_a_cluster_forms(reason, name, level):
    """Each channel logged it."""
    async with transport(2) as (_, two, address), transport(1) as (one, _, _):
        refused = asyncio.Queue()

        def refusal(hello):
            refused.put_nowait(hello.channel)
            return reason

        two.refusal = refusal
        with structlog.testing.capture_logs() as events:
            one.set_peers({2: address})
            seen = dict.fromkeys(Channel, 0)
            while (
                min(seen.values()) < 3
            ):  # each was refused twice, and the third attempt shows that it processed the refusals
                seen[await asyncio.wait_for(refused.get(), 10)] += 1
    said = [event for event in events if event["event"] == name]
    assert [event["log_level"] for event in said] == [level]
    assert reason in said[0]["reason"]


@pytest.mark.parametrize("known", [{}, {1: "127.0.0.1:1"}], ids=["unknown", "moved"])
async def test_a_connected_node_is_answered_at_its_stated_address(known):
    """It may lead metadata, and have registered or moved while this node was cut off. No other node brings that news."""
    async with transport(1) as (one, at_one, address_of_one), transport(2) as (two, at_two, address):
        at_one.address = address_of_one
        two.set_peers(known)
        one.set_peers({2: address})
        while await asyncio.wait_for(at_two.events.get(), 5) != ("up", 1):
            pass  # the known address refuses
        assert two.send(1, Channel.CONTROL, FrameType.MESSAGE, [b"answer"])
        two.flush()
        assert await asyncio.wait_for(at_one.frames.get(), 5) == (2, FrameType.MESSAGE, b"answer")
        one.set_peers({})
        while two.inbound_connections:
            await asyncio.sleep(0.001)
        assert two.connections() == dict.fromkeys(known, False), "the known addresses are used again"


async def test_a_node_with_a_malformed_address_is_refused():
    async with transport(1) as (one, _, address):
        refusal = await _refusal(address, Hello(WIRE_VERSION, "c", 7, "uuid-7", 1, Channel.CONTROL, 1, "nowhere"))
        assert refusal == "your peer address 'nowhere' is not HOST:PORT"
        assert one.connections() == {}


async def test_a_connected_node_that_would_now_be_refused_is_not_dialled():
    """A removed node may stay connected for a while, and a dead machine's connection ends late."""
    async with transport(1) as (one, at_one, address_of_one), transport(2) as (two, at_two, address):
        at_one.address = address_of_one
        one.set_peers({2: address})
        assert await asyncio.wait_for(at_two.events.get(), 5) == ("up", 1)
        at_two.outdated.add("uuid-1")
        two.set_peers({})
        assert two.connections() == {}
        assert await asyncio.wait_for(at_two.events.get(), 5) == ("down", 1)
        assert two.inbound_connections


async def test_connections_to_strangers_are_bounded():
    async with transport(1, limits=Limits(peer_strangers_max=2)) as (one, _, address):
        one.set_peers({8: "127.0.0.1:1"})
        writers = [(await _greeted(address, Channel.CONTROL, node_id, "127.0.0.1:1"))[1] for node_id in (5, 6, 7, 8)]
        assert set(one.connections()) == {5, 6, 8}
        for writer in writers:
            writer.close()


async def test_a_link_closed_while_it_is_refused_ends(monkeypatch):
    """Without an owner it continued without end, and reported repeatedly that the peer's process was dead."""
    async with transport(1) as (one, _, _):
        one.set_peers({2: "127.0.0.1:1"})
        link = one._links[2, Channel.CONTROL]

        async def refused(*_):
            link.close()  # in the same pass of the loop
            raise ConnectionRefusedError

        monkeypatch.setattr(outbound, "_open", refused)
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(link._task, 5)


async def test_no_peer_is_dialled_after_closing():
    async with transport(1) as (one, at_one, address_of_one), transport(2) as (two, at_two, address):
        at_one.address = address_of_one
        one.set_peers({2: address})
        assert await asyncio.wait_for(at_two.events.get(), 5) == ("up", 1)
        await two.close()
        assert two.connections() == {}


async def _refusal(address, hello):
    """Return why a node with this HELLO is refused."""
    _, writer, kind, said = await _dialled(address, hello)
    assert kind == FrameType.REFUSED
    writer.close()
    return said.decode()


async def _until_refused_twice(recorder):
    seen = 0
    original = recorder.refusal
    done = asyncio.Event()

    def counting(hello):
        nonlocal seen
        seen += 1
        if seen == 2:
            done.set()
        return original(hello)

    recorder.refusal = counting
    await done.wait()


@pytest.mark.parametrize(
    "garbage",
    [
        b"\xff" * 64,
        b"GET / HTTP/1.1\r\n\r\n",
        b"".join(bytes(p) for p in frame(FrameType.MESSAGE, [b"not a hello"])),
        b"".join(bytes(p) for p in frame(FrameType.HELLO, [b"\xc1\xc1"])),
        bytes(frame(FrameType.HELLO, [b"x"])[0])[:-1] + b"\x00x",
    ],
)
async def test_malformed_frames_close_only_their_connection(garbage):
    async with transport(1) as (one, _, address):
        host, port = address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(garbage)
        assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()
        async with transport(2) as (two, events, _):
            two.set_peers({1: address})
            assert await events.events.get() == ("up", 1)
        assert one.is_connected(2) is False


@pytest.mark.parametrize(
    ("first_bytes", "told"),
    [(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "port of `listen`"), (b"GET /metrics HTTP/1.1\r\n", "http_listen")],
)
async def test_a_client_at_the_peer_port_is_named_in_the_log(first_bytes, told):
    async with transport(1) as (_, _, address):
        host, port = address.split(":")
        with structlog.testing.capture_logs() as logs:
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(first_bytes)
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
        writer.close()
    assert [told in entry["reason"] for entry in logs if entry["event"] == "peer_frame_refused"] == [True]


async def test_a_silent_connection_is_closed_after_the_handshake_time():
    async with transport(1) as (_, _, address):
        host, port = address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()


async def test_a_full_outbox_drops_instead_of_waiting():
    """A peer that does not read must occupy a bounded number of bytes."""
    limits = Limits(peer_outbox_bytes_max=100_000)
    async with transport(1, limits=limits) as (one, events, _), transport(2) as (_, two, address):
        one.set_peers({2: address})
        await events.events.get()
        while one._links[2, Channel.APPEND].open_transport is None:
            await asyncio.sleep(0)
        sent = 0
        while one.send(2, Channel.APPEND, FrameType.MESSAGE, [b"x" * 1000]):
            sent += 1
            assert sent < 1000
        assert 90 <= sent <= 100
        one.flush()
        for _ in range(sent):
            await two.frames.get()
        assert one.send(2, Channel.APPEND, FrameType.MESSAGE, [b"x" * 1000])


async def test_writing_to_a_connection_that_just_broke_raises_nothing():
    """uvloop's transports raise when written to between their end and `connection_lost`. A pass that met one skipped the rest of its
    groups, which then made no progress."""
    async with transport(1) as (one, events, _), transport(2) as (_, _, address):
        one.set_peers({2: address})
        assert await events.events.get() == ("up", 2)
        link = one._links[2, Channel.CONTROL]
        assert one.send(2, Channel.CONTROL, FrameType.MESSAGE, [b"queued before the end"])
        link.protocol.transport.abort()

        assert not one.send(2, Channel.CONTROL, FrameType.MESSAGE, [b"after it"])
        assert not one.is_connected(2)
        one.flush()
        assert await events.events.get() == ("down", 2)


async def _greeted(address, channel, node_id=7, says=""):
    """Return a connection of an admitted node."""
    hello = Hello(WIRE_VERSION, "c", node_id, f"uuid-{node_id}", 1, channel, 1, says)
    reader, writer, kind, _ = await _dialled(address, hello)
    assert kind == FrameType.WELCOME
    return reader, writer


async def _dialled(address, hello):
    """Connect with this HELLO. Return the connection and the frame that answers it."""
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.writelines(frame(FrameType.HELLO, [msgspec.msgpack.encode(hello)]))
    size, kind, _ = FRAME_HEADER.unpack(await reader.readexactly(FRAME_HEADER.size))
    return reader, writer, kind, await reader.readexactly(size)


async def test_only_the_end_of_an_inbound_snapshot_channel_is_reported_and_once():
    """A partial snapshot from a node without a connection in the other direction was kept without end."""
    async with transport(1) as (_, recorder, address):
        for channel in (Channel.CONTROL, Channel.APPEND, Channel.SNAPSHOT):
            _, writer = await _greeted(address, channel, node_id=7 + channel)
            writer.close()
            await writer.wait_closed()
        assert await asyncio.wait_for(recorder.lost_snapshots.get(), 10) == 9
        assert recorder.lost_snapshots.empty()


async def test_a_new_snapshot_channel_ends_the_old_streams_before_its_first_frame():
    async with transport(1) as (_, recorder, address):
        told = []
        recorder.on_frame = lambda node_id, kind, body: told.append("frame")
        recorder.on_snapshots_lost = lambda node_id: told.append("lost")
        first_reader, first = await _greeted(address, Channel.SNAPSHOT)
        _, second = await _greeted(address, Channel.SNAPSHOT)
        second.writelines(frame(FrameType.SNAPSHOT_END, [bytes(16)]))
        assert await asyncio.wait_for(first_reader.read(), 10) == b""
        first.close()
        while len(told) < 2:
            await asyncio.sleep(0)
        assert told == ["lost", "frame"]
        second.close()
        while len(told) < 3:
            await asyncio.sleep(0)
        assert told == ["lost", "frame", "lost"]


async def test_connections_wait_in_the_kernel_while_the_loop_is_busy():
    """With a backlog of 100 a peer's kernel had to repeat its connection request a second later during a flood."""
    async with transport(1) as (_, _, address):
        host, port = address.split(":")
        with contextlib.ExitStack() as stack:
            for _ in range(500):  # the loop takes none of them in that time
                stack.enter_context(socket.create_connection((host, int(port)), timeout=10))


RIVAL_TIMING = dataclasses.replace(TIMING, rival_heard_seconds=0.05, rival_silent_seconds=0.3)


def _boot(number, channel=Channel.CONTROL, process_mark=b""):
    marks = b"".join(b"%4d" % one for one in range(number))
    return Hello(WIRE_VERSION, "c", 7, "uuid-7", 1, channel, number, "", marks, process_mark=process_mark)


async def _answer(address, hello):
    _, writer, kind, body = await _dialled(address, hello)
    writer.close()
    return kind, body.decode(errors="replace")


async def test_a_later_boot_waits_for_a_connected_earlier_process_and_is_refused_if_that_lives():
    """A copy of a running broker's directory counts a later boot, and must not replace the original."""
    async with transport(1, timing=RIVAL_TIMING) as (_, recorder, address):
        _, original, kind, _ = await _dialled(address, _boot(1))
        assert kind == FrameType.WELCOME
        kind, reason = await _answer(address, _boot(2))
        assert kind == FrameType.REFUSED
        assert "still connected as boot 1" in reason
        async with asyncio.timeout(10):
            while not reason.startswith("stale data directory"):
                original.writelines(frame(FrameType.HEARTBEATS, [b""]))
                await recorder.frames.get()
                kind, reason = await _answer(address, _boot(2, channel=Channel.APPEND))
                assert kind == FrameType.REFUSED
        assert "still runs as boot 1" in reason
        original.close()


@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "silent"])
async def test_a_restart_is_admitted_when_the_earlier_process_is_dead_or_silent(is_closed):
    async with transport(1, timing=RIVAL_TIMING) as (_, _, address):
        _, original, *_ = await _dialled(address, _boot(1))
        assert (await _answer(address, _boot(2)))[0] == FrameType.REFUSED
        if is_closed:
            original.close()
        async with asyncio.timeout(10):
            while (await _answer(address, _boot(2)))[0] != FrameType.WELCOME:
                await asyncio.sleep(0.02)
        original.close()


async def test_a_process_that_renewed_its_mark_opens_another_channel_and_replaces_none_of_its_own():
    async with transport(1, timing=RIVAL_TIMING) as (_, recorder, address):
        _, control, *_ = await _dialled(address, _boot(1))
        mark = _boot(1).marks
        kind, reason = await _answer(address, _boot(2, Channel.APPEND, mark))
        assert kind == FrameType.WELCOME, reason
        control.writelines(frame(FrameType.HEARTBEATS, [b""]))
        await asyncio.wait_for(recorder.frames.get(), 10)
        kind, reason = await _answer(address, _boot(2, Channel.APPEND))
        assert kind == FrameType.REFUSED
        assert "still connected as boot" in reason
        control.close()


async def test_nothing_is_exchanged_before_a_boot_is_remembered():
    """A vote that was granted before could be for a node that the next start has forgotten."""
    async with transport(1) as (_, recorder, address):
        remembered = recorder.remembering["uuid-7"] = asyncio.get_running_loop().create_future()
        dialled = asyncio.ensure_future(_dialled(address, _boot(1)))
        await asyncio.sleep(0.1)
        assert not dialled.done()
        remembered.set_result(None)
        _, writer, kind, _ = await asyncio.wait_for(dialled, 10)
        assert kind == FrameType.WELCOME
        writer.close()


@pytest.mark.parametrize("kind", [FrameType.HELLO, FrameType.HEARTBEATS])
async def test_a_peer_that_speaks_before_it_is_welcomed_is_closed_without_an_answer(kind):
    """A second HELLO must not get an answer of its own."""
    async with transport(1) as (_, recorder, address):
        remembered = recorder.remembering["uuid-7"] = asyncio.get_running_loop().create_future()
        host, port = address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.writelines(frame(FrameType.HELLO, [msgspec.msgpack.encode(_boot(1))]))
        writer.writelines(frame(kind, [msgspec.msgpack.encode(Hello(WIRE_VERSION, "another", 8, "uuid-8", 1, 0, 1))]))
        async with asyncio.timeout(10):
            assert await reader.read() == b""
        remembered.set_result(None)
        writer.close()


async def test_a_peer_that_answers_from_a_stale_directory_gets_no_messages():
    async with transport(1) as (one, recorder, _), transport(2) as (_, two, address):
        recorder.stale["uuid-2"] = "it is in boot 1, and its boot 2 has been seen"
        one.set_peers({2: address})
        await asyncio.sleep(0.2)
        assert recorder.events.empty()
        assert not one.is_connected(2)
        recorder.stale.clear()
        assert await asyncio.wait_for(recorder.events.get(), 10) == ("up", 2)
        assert two.frames.empty()


async def test_a_node_is_told_that_its_directory_is_stale():
    async with transport(1) as (one, recorder, _), transport(2) as (_, two, address):
        two.refusal = lambda hello: "stale data directory: its boot 2 has been seen"
        one.set_peers({2: address})
        node_id, reason = await asyncio.wait_for(recorder.stale_said.get(), 10)
        assert node_id == 2
        assert "its boot 2 has been seen" in reason


async def test_a_refusal_of_a_mark_that_was_renewed_since_the_greeting_silences_nobody():
    """1. A node greets a peer. 2. It renews its mark, and the peer hears of that first. 3. To the peer, the greeting is of an older copy."""
    async with transport(1) as (one, recorder, _), transport(2) as (_, two, address):
        greeted = list[int]()

        def refusal(hello):
            greeted.append(hello.boot)
            recorder.boot, recorder.marks = 2, b"markmore"
            return "stale data directory: its boot 2 has been seen" if hello.boot == 1 else None

        two.refusal = refusal
        one.set_peers({2: address})
        assert await asyncio.wait_for(recorder.events.get(), 10) == ("up", 2)
        assert greeted[0] == 1
        assert recorder.stale_said.empty()


def fail(*arguments, **named):
    raise KeyError("planted")


async def test_a_link_that_cannot_be_flushed_blocks_no_other():
    """A link with pending frames is listed once, so a link that is not flushed would never be listed again."""
    failures, flushed = [], []

    class Handler:
        def record_failure(self, work, error):
            failures.append(work)

    class Link:
        def __init__(self, flush):
            self.flush = flush

    transport = PeerTransport(asyncio.get_running_loop(), None, None, None)
    transport.attach(Handler())
    transport.links_to_flush = [Link(fail), Link(lambda: flushed.append(1))]
    transport.flush()
    assert flushed == [1]
    assert failures == [Work.PEERS]
