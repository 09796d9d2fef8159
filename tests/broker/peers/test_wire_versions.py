"""Two nodes use the highest wire version that both speak, and say so in words if there is none."""

import asyncio

import pytest
import structlog
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.peers import codec
from raftmq.broker.peers.codec import FrameType
from raftmq.broker.peers.protocol import Channel, Hello, WireVersionError, common_wire_version
from raftmq.proto import queue_pb2 as pb

from tests.support.broker.peer_transports import transport

LATER = FrameType.CLOCK
"""A frame that these tests take for one of version 2."""


def speaking(node_id, oldest, newest):
    return Hello(oldest, "c", node_id, f"uuid-{node_id}", 1, Channel.CONTROL, wire_version_max=newest)


@pytest.mark.parametrize(
    ("one", "two", "common"),
    [((1, 0), (1, 0), 1), ((1, 0), (1, 2), 1), ((1, 2), (1, 3), 2), ((2, 4), (1, 3), 3), ((3, 3), (1, 3), 3), ((3, 0), (2, 9), 3)],
)  # fmt: skip
def test_the_highest_common_version_is_used(one, two, common):
    assert common_wire_version(speaking(1, *one), speaking(2, *two)) == common
    assert common_wire_version(speaking(2, *two), speaking(1, *one)) == common


@pytest.mark.parametrize(("one", "two"), [((1, 0), (2, 0)), ((1, 1), (2, 3)), ((4, 5), (2, 3)), ((2, 1), (1, 1))])
def test_without_a_common_version_both_ranges_are_named(one, two):
    with pytest.raises(WireVersionError) as raised:
        common_wire_version(speaking(1, *one), speaking(0, *two))
    for hello, who in ((speaking(1, *one), "broker 1 speaks"), (speaking(0, *two), "a broker without an id speaks")):
        oldest, newest = hello.wire_versions
        assert f"{who} {oldest}" + (f" to {newest}" if newest > oldest else "") in str(raised.value)


async def test_a_later_frame_travels_only_between_nodes_that_both_know_it(monkeypatch):
    monkeypatch.setitem(codec.LATER_FRAMES, LATER, 2)
    async with transport(1) as (one, at_one, _), transport(2) as (_, two, new), transport(3) as (_, three, old):
        at_one.wire_versions = two.wire_versions = (1, 2)
        three.wire_versions = (1, 1)
        one.set_peers({2: new, 3: old})
        assert {await at_one.events.get(), await at_one.events.get()} == {("up", 2), ("up", 3)}
        assert one.send(2, Channel.CONTROL, LATER, [b"new"])
        assert not one.send(3, Channel.CONTROL, LATER, [b"new"]), "it is dropped"
        for node_id in (2, 3):
            assert one.send(node_id, Channel.CONTROL, FrameType.MESSAGE, [b"old"])
        one.flush()
        assert [await two.frames.get() for _ in range(2)] == [(1, LATER, b"new"), (1, FrameType.MESSAGE, b"old")]
        assert await three.frames.get() == (1, FrameType.MESSAGE, b"old")


async def test_a_frame_of_a_later_version_than_the_connections_ends_it(monkeypatch):
    async with transport(1) as (one, at_one, _), transport(2) as (_, two, address):
        one.set_peers({2: address})
        assert await at_one.events.get() == ("up", 2)
        link = one._links[2, Channel.CONTROL]
        monkeypatch.setitem(codec.LATER_FRAMES, LATER, 2)
        with structlog.testing.capture_logs() as events:
            assert link.send(codec.frame(LATER, [b"new"]))
            one.flush()
            assert await at_one.events.get() == ("down", 2)
        assert "CLOCK is no frame of wire version 1" in str(events)
        assert two.frames.empty()


@pytest.mark.parametrize("mine", [(1, 1), (4, 5)])
async def test_nodes_without_a_common_version_do_not_connect_and_both_ranges_are_logged(mine):
    async with transport(1) as (one, at_one, _), transport(2) as (_, two, address):
        at_one.wire_versions, two.wire_versions = mine, (2, 3)
        with structlog.testing.capture_logs() as events:
            one.set_peers({2: address})
            while not any(event["event"] == "peer_refused_connection" for event in events):
                await asyncio.sleep(0.001)
        assert not one.is_connected(2)
        async with asyncio.timeout(10):
            while not one.refused_versions():
                await asyncio.sleep(0.001)
        said = one.refused_versions()[2]
        two.wire_versions = mine
        assert await at_one.events.get() == ("up", 2)
        assert one.refused_versions() == {}
    (reason,) = (event["reason"] for event in events if event["event"] == "peer_refused_connection")
    assert "no common wire version: broker 2 speaks 2 to 3, and broker 1 speaks " in reason
    assert said == reason


async def test_a_visit_without_a_common_version_ends_with_a_typed_error():
    async with transport(1) as (one, at_one, _), transport(2) as (_, two, address):
        at_one.wire_versions, two.wire_versions = (1, 1), (2, 3)
        deadline = asyncio.get_running_loop().time() + 10
        with pytest.raises(RequestError, match="broker 2 speaks 2 to 3, and broker 1 speaks 1;") as raised:
            async with one.visit(address, deadline):
                pass
        assert raised.value.code == pb.UNSUPPORTED_VERSION
