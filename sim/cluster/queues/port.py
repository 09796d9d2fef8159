"""Calls of clients to queue partitions: over the simulated network to a broker, in its process, and back.

A request or an answer that meets a cut link is lost. A broker that dies takes its calls with it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from raftmq.broker.base.request_error import RequestError
from raftmq.broker.partitions.partition import Partition
from raftmq.broker.partitions.queue.partition import PartitionQueue
from raftmq.client.base.error_details import error_from_detail
from raftmq.errors import Outcome as ErrorOutcome
from raftmq.errors import RaftMQError
from raftmq.types import GroupId

from sim.cluster.cluster import Cluster, Machine
from sim.cluster.world.host import HOST

T = TypeVar("T")
CALL_SECONDS = 0.6


class Answered(NamedTuple):
    """The answer of a partition."""

    result: Any
    before_ms: int
    """Its queue clock when the request arrived."""


class CallFailedError(Exception):
    """A call was refused, or got no answer."""

    def __init__(
        self, reason: str, *, is_definite: bool, is_final: bool = False, leader_address: str = ""
    ) -> None:  # fmt: skip
        super().__init__(reason)
        self.is_definite = is_definite
        """Whether nothing was done."""
        self.is_final = is_final
        """Whether a repeat would be answered likewise."""
        self.leader_address = leader_address
        """The broker that leads as far as the refusing one knows."""


Service = Callable[[PartitionQueue, float], Awaitable[T]]
"""Runs in the broker, with the partition and the deadline on the broker's clock."""


class QueuePort:
    """One client's calls."""

    def __init__(
        self, cluster: Cluster, rng: random.Random, lost_share: float, on_error: Callable[[RaftMQError], None]
    ) -> None:
        """`lost_share` is the share of answers that are lost, besides those that the network loses. `on_error` is called with each error."""
        self._cluster = cluster
        self._on_error = on_error
        self._lost_share = lost_share
        self._rng = rng
        self._leaders: dict[int, Machine] = {}
        """The machine that answered last, by group."""

    async def call(self, group_id: int, service: Service[Any], seconds: float = CALL_SECONDS) -> Answered:
        """Call the partition's leader, as far as the client knows it. Raises `CallFailedError`."""
        machine = self._leaders.get(group_id) or self._rng.choice(list(self._cluster.machines.values()))
        loop, network = self._cluster.loop, self._cluster.network
        client = HOST.get()
        assert client is not None
        answer: asyncio.Future[Any] = loop.create_future()
        there, back = (client.name, machine.name), (machine.name, client.name)

        def arrive() -> None:
            process = machine.process
            if process is None or process.node is None or network.is_cut(*there) or machine.name in network.dark:
                return
            loop.spawn(process.host, self._serve(process.node.partitions, group_id, service, seconds, reply))

        def reply(result: object) -> None:
            loop.after(network.delay(*back), None, deliver, result)

        def deliver(result: object) -> None:
            is_lost = self._rng.random() < self._lost_share or network.is_cut(*back)
            if not is_lost and not answer.done() and not client.is_dead:
                answer.set_result(result)

        loop.after(network.delay(*there), None, arrive)
        await asyncio.wait((answer,), timeout=seconds)
        if not answer.done():
            answer.cancel()
            self._leaders.pop(group_id, None)
            raise CallFailedError("no answer", is_definite=False)
        result = answer.result()
        if isinstance(result, CallFailedError):
            self._leaders.pop(group_id, None)
            for known in self._cluster.machines.values():
                if known.address == result.leader_address and known is not machine:
                    self._leaders[group_id] = known
            raise result
        self._leaders[group_id] = machine
        assert isinstance(result, Answered)
        return result

    async def _serve(
        self, partitions: Mapping[GroupId, Partition], group_id: int, service: Service[Any], seconds: float, reply: Callable[[object], None]
    ) -> None:  # fmt: skip
        partition = partitions.get(GroupId(group_id))
        if not isinstance(partition, PartitionQueue):
            reply(CallFailedError("not served here", is_definite=True))
            return
        before_ms = partition.clock.read_ms()
        try:
            result = await service(partition, self._cluster.loop.time() + seconds)
        except RequestError as error:
            seen = error_from_detail(error.detail)
            self._on_error(seen)
            is_definite = seen.outcome is ErrorOutcome.NOT_APPLIED
            reply(
                CallFailedError(
                    f"{type(seen).__name__}: {seen}",
                    is_definite=is_definite,
                    is_final=not error.detail.retriable,
                    leader_address=error.detail.leader.address,
                )
            )
        else:
            reply(Answered(result, before_ms))
