"""Connect the SDK to one real broker in memory (`tests.support.broker.harness`): real services and state machines, no sockets.

A test can hold, refuse and count calls, so it controls the time of a heartbeat's answer or of a partition's opening.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from typing import Any

from raftmq.broker.base.request_error import RequestError
from raftmq.broker.services.topology import TopologyService
from raftmq.client.base.error_details import error_from_detail
from raftmq.client.codec.batch import encode_body
from raftmq.client.connection.pending_poll import OnPolled, PollTask
from raftmq.errors import BrokenConnectionError, RaftMQError
from raftmq.methods import POLL
from raftmq.proto import queue_pb2 as pb

from tests.support.broker.harness import Harness

ADDRESS = "node-1:9400"


class BrokerTransport:
    """The `transport` of the clients of one process, whose `bootstrap_servers` are `ADDRESS`."""

    uses_threads = False

    def __init__(self, broker: Harness) -> None:
        self.broker = broker
        self.calls: Counter[str] = Counter()
        self.refusals: dict[str, RaftMQError] = {}
        """The error that every call of a method raises."""
        self.gates: dict[str, asyncio.Event] = {}
        """The event for which each call of a method waits before it reaches the broker."""
        self.waiting: Counter[str] = Counter()
        """The number of calls that wait at the gate of a method."""
        self.is_cut_off = False

    def connect(self, address: str) -> BrokerConnection:
        return BrokerConnection(self, address)


class BrokerConnection:
    def __init__(self, transport: BrokerTransport, address: str) -> None:
        self.address = address
        self.cluster_id = ""
        self._transport = transport
        self._is_closed = False

    async def call(self, method, request, timeout_seconds):
        transport, broker = self._transport, self._transport.broker
        transport.calls[method.name] += 1
        gate = transport.gates.get(method.name)
        if gate is not None:
            transport.waiting[method.name] += 1
            try:
                await gate.wait()
            finally:
                transport.waiting[method.name] -= 1
        if self._is_closed or transport.is_cut_off:
            raise BrokenConnectionError(f"{self.address}: cut off")
        if method.name in transport.refusals:
            raise transport.refusals[method.name]
        services: dict[str, Callable[..., Any]] = {
            "Heartbeat": broker.groups_service.heartbeat,
            "Leave": broker.groups_service.leave,
            "List": broker.groups_service.list_groups,
            "Describe": broker.groups_service.describe,
            "ResetOffsets": broker.groups_service.reset_offsets,
            "Delete": broker.groups_service.delete,
            "OpenPartitions": broker.offsets.open_partitions,
            "CommitOffsets": broker.offsets.commit_offsets,
            "FetchOffsets": broker.offsets.fetch_offsets,
            "Poll": broker.log.poll,
            "ListOffsets": broker.log.list_offsets,
            "DescribeTopic": broker.admin.describe_topic,
        }
        sent = type(request).FromString(request.SerializeToString())
        try:
            return await services[method.name](sent, broker.call(timeout_seconds))
        except RequestError as error:
            raise error_from_detail(error.detail) from error

    async def watch(self, request: pb.WatchRequest) -> AsyncGenerator[pb.TopologyUpdate, None]:
        topology: TopologyService = self._transport.broker.topology
        async for update in topology.watch(request, self._transport.broker.call()):
            yield update

    def poll(self, request: pb.PollRequest, timeout_seconds: float, on_outcome: OnPolled) -> PollTask:
        return PollTask(self.call(POLL, request, timeout_seconds), self.address, on_outcome)

    def append_stream(self, on_response, on_end, on_writable):
        raise NotImplementedError

    def queue_stream(self, on_response, on_end, on_writable):
        raise NotImplementedError

    async def close(self) -> None:
        self._is_closed = True


async def produce(
    broker: Harness, topic: pb.Topic, partition: int, count: int, start: int = 0, timestamp_ms: int = 1
) -> list[bytes]:
    """Append one batch of numbered values with the same timestamp, and return the values."""
    values = [b"%d" % number for number in range(start, start + count)]
    part = pb.PartitionAppend(
        topic_id=topic.topic_id, partition=partition, batches=[encode_body(values, None, timestamp_ms).seal()]
    )
    answer = await broker.log.append(pb.AppendRequest(partitions=[part]), broker.call())
    assert not answer.partitions[0].HasField("error"), answer
    return values
