"""Channels to other brokers are kept up to a limit, and never closed while a call uses them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from raftmq import methods
from raftmq.broker.services.forwarder import GrpcForwarder
from raftmq.proto import queue_pb2 as pb

REQUEST = pb.DescribeClusterRequest()


class _Channel:
    """A channel whose calls end when the test decides."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.is_closed = False
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    def unary_unary(self, path: str, **_: object) -> Any:
        async def call(request: object, **_: object) -> pb.DescribeClusterResponse:
            await self.may_answer.wait()
            assert not self.is_closed, "closed during a call"
            return pb.DescribeClusterResponse(cluster_id=self.address)

        return call

    async def close(self) -> None:
        self.is_closed = True


class _Forwarder(GrpcForwarder):
    def __init__(self, channels_max: int) -> None:
        super().__init__(lambda: "cluster", channels_max)
        self.opened: list[_Channel] = []

    def _open(self, address: str) -> Any:
        self.opened.append(_Channel(address))
        return self.opened[-1]

    async def ask(self, number: int) -> str:
        answer = await self.forward(f"node-{number}:9400", methods.DESCRIBE_CLUSTER, REQUEST, 1)
        return answer.cluster_id


@pytest.mark.parametrize("brokers", [5, 17, 100])
async def test_each_broker_is_connected_to_once(brokers: int) -> None:
    """Otherwise each round of calls in a large cluster would open every channel again."""
    forwarder = _Forwarder(channels_max=100)
    for _ in range(3):
        for number in range(brokers):
            assert await forwarder.ask(number) == f"node-{number}:9400"
    assert len(forwarder.opened) == forwarder.channels == brokers
    await forwarder.close()
    assert all(channel.is_closed for channel in forwarder.opened)


async def test_the_channel_idle_for_longest_is_closed() -> None:
    forwarder = _Forwarder(channels_max=3)
    for number in (1, 2, 3, 1, 4):
        await forwarder.ask(number)
    await asyncio.sleep(0)
    assert [channel.address[5] for channel in forwarder.opened if channel.is_closed] == ["2"]
    assert forwarder.channels == 3
    await forwarder.close()


async def test_a_channel_in_use_is_kept() -> None:
    forwarder = _Forwarder(channels_max=2)
    slow = asyncio.create_task(forwarder.ask(1))
    await asyncio.sleep(0)
    forwarder.opened[0].may_answer.clear()
    slow_again = asyncio.create_task(forwarder.ask(1))
    await slow
    for number in (2, 3, 4):
        await forwarder.ask(number)
    assert not forwarder.opened[0].is_closed
    assert forwarder.channels == 2
    forwarder.opened[0].may_answer.set()
    assert await slow_again == "node-1:9400"
    await forwarder.close()
