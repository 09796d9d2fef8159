"""Ask the leaders of all partitions for their sizes, for plans that even the bytes of brokers."""

from __future__ import annotations

import asyncio
from typing import Final

from raftmq.broker.base.request_error import RequestError
from raftmq.broker.services.call import Call
from raftmq.broker.services.health import HealthService
from raftmq.broker.services.host import ServiceHost
from raftmq.broker.services.locator import PARTITIONS_PER_REQUEST_MAX
from raftmq.broker.services.node_calls import NodeCalls
from raftmq.fsm.consumer_groups import PartitionId
from raftmq.proto import peer_pb2 as peer_pb
from raftmq.proto import queue_pb2 as pb
from raftmq.types import NodeId

_TIMEOUT_SECONDS: Final = 10.0
"""Time for all answers. Each broker looks at the files of some hundred partitions."""


class PartitionSizes:
    """Implements `SizeSource`."""

    def __init__(self, host: ServiceHost, calls: NodeCalls, health: HealthService) -> None:
        self._host = host
        self._calls = calls
        self._health = health

    async def sizes(self) -> dict[int, int] | None:
        """Return the size of every partition by its group, or None if a leader did not answer: a part would look like unevenness."""
        topics = self._host.metadata.state_machine.topics()
        groups = {(topic.topic_id, number): group for topic in topics for number, group in enumerate(topic.group_ids)}
        by_node, without_leader = self._calls.by_leader(groups)
        if without_leader:
            return None
        call = Call(self._host.loop.time() + _TIMEOUT_SECONDS)
        answers = await asyncio.gather(
            *(
                self._ask(node_id, parts[start : start + PARTITIONS_PER_REQUEST_MAX], call)
                for node_id, parts in by_node.items()
                for start in range(0, len(parts), PARTITIONS_PER_REQUEST_MAX)
            )
        )
        found = {groups[part]: size for answer in answers for part, size in answer.items() if part in groups}
        return found if len(found) == len(groups) else None

    async def _ask(self, node_id: NodeId, parts: list[PartitionId], call: Call) -> dict[PartitionId, int]:
        request = peer_pb.DescribePartitionsRequest()
        request.partitions.extend(pb.PartitionId(topic_id=part[0], partition=part[1]) for part in parts)
        try:
            answer = await self._calls.ask(node_id, request, self._health.describe_partitions, call)
        except RequestError:
            return {}
        return {(one.topic_id, one.partition): one.size_bytes for one in answer.partitions if not one.HasField("error")}
