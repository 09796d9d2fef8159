"""Run many members of consumer groups in one process, which follow the protocol without reading records.

A member joins, sends heartbeats, releases and opens partitions, and records its changes. A thousand of them share one connection to
each broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
import uuid
from collections.abc import Iterable
from typing import TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message
from google.rpc import status_pb2
from raftmq.methods import HEARTBEAT, LEAVE, OPEN_PARTITIONS, WATCH
from raftmq.proto import queue_pb2 as pb

RETRY_SECONDS = 0.2
CALL_SECONDS = 10.0
PartitionId = tuple[int, int]
ResponseT = TypeVar("ResponseT", bound=Message)


class Brokers:
    """Hold one connection to each broker, and the presumed coordinator."""

    def __init__(self, addresses: Iterable[str]) -> None:
        self._channels = {address: _channel(address) for address in addresses}
        self._all = list(self._channels)
        self.coordinator = ""
        self.coordinator_broker_id = 0

    def channel(self) -> grpc.aio.Channel:
        """Return the connection to the coordinator, or to any broker if it is unknown."""
        return self.to(self.coordinator or random.choice(self._all))

    def to(self, address: str) -> grpc.aio.Channel:
        """Return the connection to an address."""
        found = self._channels.get(address)
        if found is None:
            found = self._channels[address] = _channel(address)
        return found

    async def call(self, path: str, request: Message, response_type: type[ResponseT], address: str = "") -> ResponseT:
        """Call a method of the coordinator, or of the broker at an address."""
        channel = self.to(address) if address else self.channel()
        method = channel.unary_unary(
            path, request_serializer=type(request).SerializeToString, response_deserializer=response_type.FromString
        )
        return await method(request, timeout=CALL_SECONDS)

    async def close(self) -> None:
        """Close all connections."""
        for channel in self._channels.values():
            await channel.close()


def _channel(address: str) -> grpc.aio.Channel:
    options = [("grpc.max_reconnect_backoff_ms", 500), ("grpc.initial_reconnect_backoff_ms", 100)]
    return grpc.aio.insecure_channel(address, options=options)


def code_of(error: grpc.aio.AioRpcError) -> int:
    """Return the protocol's error code of a failed call, or 0 when the broker sent none."""
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin" and isinstance(value, bytes):
            for packed in status_pb2.Status.FromString(value).details:
                detail = pb.ErrorDetail()
                if packed.Unpack(detail):
                    return detail.code
    return 0


class Leaders:
    """Hold the leader of each partition. The table is fetched when a partition is opened, and again when it was wrong."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self._address: dict[PartitionId, str] = {}
        self._asked = asyncio.Lock()
        self._version = 0

    async def address(self, partition: PartitionId) -> str:
        """Return the address of the partition's leader, or an empty text when it is unknown."""
        if partition not in self._address:
            await self.refresh(self._version)
        return self._address.get(partition, "")

    async def refresh(self, version: int) -> None:
        """Fetch the whole table, unless it was fetched since `version`."""
        async with self._asked:
            if version != self._version:
                return
            watch = self._brokers.channel().unary_stream(
                WATCH.path,
                request_serializer=pb.WatchRequest.SerializeToString,
                response_deserializer=pb.TopologyUpdate.FromString,
            )(pb.WatchRequest(), timeout=CALL_SECONDS)
            async for update in watch:
                brokers = {broker.broker_id: broker.address for broker in update.brokers}
                leaders = {leader.group_id: brokers.get(leader.broker_id, "") for leader in update.leaders}
                self._address = {
                    (topic.topic_id, partition.partition): leaders.get(partition.group_id, "")
                    for topic in update.topics
                    for partition in topic.partitions
                }
                break
            watch.cancel()
            self._version += 1

    @property
    def version(self) -> int:
        """Return the number of fetched tables."""
        return self._version


class ProtocolMember:
    """Represent one member of a consumer group."""

    def __init__(
        self,
        brokers: Brokers,
        group: str,
        topics: tuple[str, ...],
        *,
        leaders: Leaders | None = None,
        session_timeout_ms: int = 45_000,
    ) -> None:
        """Create a member. With `leaders` it opens its partitions. Otherwise it only reports that it has them."""
        self.brokers = brokers
        self.group = group
        self.member_id = str(uuid.uuid4())
        self.held: dict[PartitionId, int] = {}
        """The partitions that it has, with their owner epochs."""
        self.assigned: dict[PartitionId, int] = {}
        self.epoch = 0
        self.is_rebalancing = True
        self.heartbeats = 0
        self.lost = 0
        """How often the coordinator did not know it as a member."""
        self.changes: list[tuple[int, int]] = []
        """Numbers of (added, removed) partitions of each new assignment."""
        self.slowest_seconds = 0.0
        self._leaders = leaders
        self._subscription = pb.Subscription(topics=topics)
        self._session_timeout_ms = session_timeout_ms
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the member."""
        self._task = asyncio.create_task(self._run())

    def kill(self) -> None:
        """Stop the member without a message."""
        if self._task is not None:
            self._task.cancel()

    async def leave(self) -> None:
        """Stop the member, and leave the consumer group."""
        self.kill()
        with contextlib.suppress(grpc.aio.AioRpcError):
            request = pb.LeaveRequest(group=self.group, member_id=self.member_id)
            await self.brokers.call(LEAVE.path, request, pb.LeaveResponse)

    @property
    def is_settled(self) -> bool:
        """Return whether it has all partitions of its latest assignment and is not rebalancing."""
        return self.epoch > 0 and not self.is_rebalancing and self.held == self.assigned

    async def _run(self) -> None:
        while True:
            pause = await self._heartbeat()
            gave_up = await self._follow()
            await asyncio.sleep(0 if gave_up else pause)

    async def _heartbeat(self) -> float:
        request = pb.HeartbeatRequest(
            group=self.group,
            member_id=self.member_id,
            member_epoch=self.epoch,
            client_id="bench",
            session_timeout_ms=self._session_timeout_ms,
            subscription=self._subscription,
        )
        by_topic: dict[int, list[int]] = {}
        for topic_id, number in self.held:
            by_topic.setdefault(topic_id, []).append(number)
        for topic_id, numbers in by_topic.items():
            request.owned.add(topic_id=topic_id, partitions=numbers)
        started = time.perf_counter()
        try:
            answer = await self.brokers.call(HEARTBEAT.path, request, pb.HeartbeatResponse)
        except grpc.aio.AioRpcError as error:
            self._failed(error)
            return RETRY_SECONDS * (1 + random.random())
        self.slowest_seconds = max(self.slowest_seconds, time.perf_counter() - started)
        self.heartbeats += 1
        self.brokers.coordinator = answer.coordinator.address
        self.brokers.coordinator_broker_id = answer.coordinator.broker_id
        if answer.member_epoch < self.epoch:
            return RETRY_SECONDS
        if answer.has_assignment:
            assigned = {
                (topic.topic_id, number): epoch
                for topic in answer.assignment
                for number, epoch in zip(topic.partitions, topic.owner_epochs, strict=True)
            }
            if assigned != self.assigned:
                self.changes.append((len(assigned.keys() - self.assigned), len(self.assigned.keys() - assigned)))
            self.assigned = assigned
        self.epoch = answer.member_epoch
        self.is_rebalancing = answer.is_rebalancing
        return float(answer.next_heartbeat_ms) / 1000 * (0.9 + 0.1 * random.random())

    def _failed(self, error: grpc.aio.AioRpcError) -> None:
        self.brokers.coordinator = ""
        code = code_of(error)
        if code == pb.UNKNOWN_MEMBER:
            self.lost += 1
            self.member_id, self.epoch = str(uuid.uuid4()), 0
            self.held, self.assigned = {}, {}
        elif code in (pb.INVALID_ARGUMENT, pb.TOO_MANY_MEMBERS, pb.FENCED, pb.INTERNAL):
            raise error

    async def _follow(self) -> bool:
        """Release and open partitions. Return whether any was released, to tell the coordinator immediately."""
        kept = {part: epoch for part, epoch in self.held.items() if self.assigned.get(part) == epoch}
        gave_up = len(kept) < len(self.held)
        self.held = kept
        new = {part: epoch for part, epoch in self.assigned.items() if part not in kept}
        if self._leaders is None:
            self.held.update(new)
        elif new:
            await self._open(new, self._leaders)
        return gave_up

    async def _open(self, new: dict[PartitionId, int], leaders: Leaders) -> None:
        version = leaders.version
        by_address: dict[str, list[PartitionId]] = {}
        for part in new:
            by_address.setdefault(await leaders.address(part), []).append(part)
        answers = await asyncio.gather(
            *(self._open_at(address, parts, new) for address, parts in by_address.items() if address)
        )
        if "" in by_address or not all(answers):
            await leaders.refresh(version)

    async def _open_at(self, address: str, parts: list[PartitionId], epochs: dict[PartitionId, int]) -> bool:
        request = pb.OpenPartitionsRequest(group=self.group, member_id=self.member_id)
        for part in parts:
            request.partitions.add(topic_id=part[0], partition=part[1], owner_epoch=epochs[part])
        try:
            answer = await self.brokers.call(OPEN_PARTITIONS.path, request, pb.OpenPartitionsResponse, address)
        except grpc.aio.AioRpcError:
            return False
        for part, result in zip(parts, answer.partitions, strict=True):
            if not result.HasField("error"):
                self.held[part] = epochs[part]
        return all(not result.HasField("error") for result in answer.partitions)


async def wait_settled(members: Iterable[ProtocolMember], seconds: float) -> float:
    """Wait until all members are settled simultaneously. Return the seconds that it took. Raises TimeoutError."""
    everyone = list(members)
    started = time.perf_counter()
    async with asyncio.timeout(seconds):
        while not all(member.is_settled for member in everyone):  # noqa: ASYNC110 -- brokers in other processes
            await asyncio.sleep(0.02)
    return time.perf_counter() - started
