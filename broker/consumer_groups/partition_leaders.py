"""Ask the leaders of many partitions on behalf of one request, to read or change a consumer group's offsets.

If a partition's leader cannot be asked, that partition gets an error of its own. The others are still answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from raftmq.broker.base.request_error import RequestError
from raftmq.broker.services.call import Call
from raftmq.broker.services.committed_offsets import OffsetsService
from raftmq.broker.services.host import ServiceHost
from raftmq.broker.services.locator import PARTITIONS_PER_REQUEST_MAX
from raftmq.broker.services.node_calls import NodeCalls, failed_part
from raftmq.fsm.consumer_groups import PartitionId
from raftmq.fsm.topic_kinds import LOG
from raftmq.proto import peer_pb2 as peer_pb
from raftmq.proto import queue_pb2 as pb
from raftmq.types import NO_NODE, GroupId, NodeId

REPEAT_SECONDS: Final = 0.2
"""Pause before nodes are asked again to forget a group's offsets."""
ANSWER_MARGIN_SECONDS: Final = 0.5
"""Time that the last repetition leaves for the answer. Without it the caller would get its own time-out, which names no broker or partition."""


class ForgottenOffsets(NamedTuple):
    """The offsets of a group that were forgotten."""

    partitions: int
    """The number of partitions that are known to have had some."""
    is_in_doubt: bool
    """Whether more partitions may have had some: a node forgot them, perhaps, and its answer was lost."""
    failure: RequestError | None
    """The error of a node or partition that may still keep some."""


class PartitionLeaders:
    """Reads and changes a consumer group's offsets in all partitions."""

    def __init__(self, host: ServiceHost, calls: NodeCalls, offsets: OffsetsService) -> None:
        self._host = host
        self._calls = calls
        self._offsets = offsets

    async def fetch(
        self, group: str, named: Iterable[PartitionId], call: Call
    ) -> tuple[list[pb.CommittedOffset], bool]:
        """Return the offsets of the named partitions, and of all others that know the group, and whether the leaders of all partitions answered."""
        by_node, leaderless = self._calls.by_leader(named)
        found = {
            part: failed_part(pb.CommittedOffset(offset=-1, lag_records=-1, lag_ms=-1), part, error)
            for part, error in leaderless
        }

        answering: set[NodeId] = set()

        async def ask(node_id: NodeId, parts: list[PartitionId]) -> None:
            request = pb.FetchOffsetsRequest(metadata_revision=self._revision, group=group)
            request.partitions.extend(pb.PartitionId(topic_id=part[0], partition=part[1]) for part in parts)
            try:
                answer = await self._calls.ask(node_id, request, self._offsets.fetch_offsets, call)
            except RequestError as error:
                for part in parts:
                    found[part] = failed_part(pb.CommittedOffset(offset=-1, lag_records=-1, lag_ms=-1), part, error)
                return
            answering.add(node_id)
            for one in answer.partitions:
                found.setdefault((one.topic_id, one.partition), one)

        all_leaders, all_leaderless = self._calls.by_leader(self._log_partitions())
        nodes = [NodeId(node.node_id) for node in self._host.metadata.state_machine.nodes()]
        await asyncio.gather(
            *(
                ask(node_id, parts[start : start + PARTITIONS_PER_REQUEST_MAX])
                for node_id, parts in by_node.items()
                for start in range(0, len(parts), PARTITIONS_PER_REQUEST_MAX)
            ),
            *(ask(node_id, []) for node_id in nodes if self._host.is_connected(node_id)),
        )
        is_complete = not all_leaderless and answering.issuperset(all_leaders)
        return [found[part] for part in sorted(found)], is_complete

    def _log_partitions(self) -> Iterator[PartitionId]:
        for topic in self._host.metadata.state_machine.topics():
            if topic.kind == LOG:
                yield from ((topic.topic_id, number) for number in range(len(topic.group_ids)))

    async def summarize(self, call: Call) -> tuple[dict[str, peer_pb.GroupSummary], bool]:
        """Return the groups that have state in any partition, by name, and whether the leaders of all partitions answered."""
        by_node, leaderless = self._calls.by_leader(self._log_partitions())
        request = peer_pb.SummarizeOffsetsRequest(metadata_revision=self._revision)
        answers = await asyncio.gather(
            *(self._calls.ask(node_id, request, self._offsets.summarize_offsets, call) for node_id in by_node),
            return_exceptions=True,
        )
        found: dict[str, peer_pb.GroupSummary] = {}
        is_complete = not leaderless
        for answer in answers:
            if isinstance(answer, RequestError):
                is_complete = False
                continue
            if isinstance(answer, BaseException):
                raise answer
            for one in answer.groups:
                total = found.setdefault(one.group, peer_pb.GroupSummary(group=one.group))
                total.partitions += one.partitions
                total.lag_records += one.lag_records
        return found, is_complete

    async def reset(
        self, group: str, owner_epoch: int, resets: Iterable[pb.PartitionOffsetReset], call: Call
    ) -> dict[PartitionId, pb.PartitionResetResult]:
        """Reset offsets under an epoch that fences the present owners of the partitions."""
        offsets = {(reset.topic_id, reset.partition): reset for reset in resets}
        by_node, leaderless = self._calls.by_leader(offsets)
        found = {part: failed_part(pb.PartitionResetResult(), part, error) for part, error in leaderless}

        async def ask(node_id: NodeId, parts: list[PartitionId]) -> None:
            request = peer_pb.WriteOffsetsRequest(
                metadata_revision=self._revision,
                group=group,
                owner_epoch=owner_epoch,
                resets=[offsets[part] for part in parts],
            )
            try:
                answer = await self._calls.ask(node_id, request, self._offsets.write_offsets, call)
            except RequestError as error:
                found.update((part, failed_part(pb.PartitionResetResult(), part, error)) for part in parts)
                return
            found.update(((one.topic_id, one.partition), one) for one in answer.partitions)

        await asyncio.gather(*(ask(node_id, parts) for node_id, parts in by_node.items()))
        return found

    async def forget(self, group: str, last_epoch: int, call: Call) -> ForgottenOffsets:
        """Forget a group's offsets in all partitions, but not those of owners after `last_epoch`: a new group may have members already.

        A node that is down is asked only if it led a partition that has had no other leader since. While a node fails, or a partition may have
        been passed over because its leadership moved, all are asked again until the call's deadline.
        """
        request = peer_pb.WriteOffsetsRequest(
            metadata_revision=self._revision, group=group, owner_epoch=last_epoch, forget=True
        )
        forgotten, is_in_doubt = 0, False
        while True:
            leaders = self._leaders()
            leading = set(leaders.values())
            nodes = [NodeId(node.node_id) for node in self._host.metadata.state_machine.nodes()]
            nodes = [node_id for node_id in nodes if node_id in leading or self._host.is_connected(node_id)]
            answers = await asyncio.gather(
                *(self._calls.ask(node_id, request, self._offsets.write_offsets, call) for node_id in nodes),
                return_exceptions=True,
            )
            failure = self._passed_over(group, leaders)
            for node_id, answer in zip(nodes, answers, strict=True):
                if isinstance(answer, RequestError):
                    is_in_doubt |= answer.detail.outcome == pb.UNKNOWN_OUTCOME
                    failure = RequestError(
                        answer.code,
                        f"broker {node_id} may keep offsets of group {group!r}; repeat the deletion when that broker answers again",
                        retry_after_ms=answer.detail.retry_after_ms,
                    )
                elif isinstance(answer, BaseException):
                    raise answer
                else:
                    forgotten += answer.forgotten
            if failure is None:
                return ForgottenOffsets(forgotten, is_in_doubt, None)
            pause = max(REPEAT_SECONDS, failure.detail.retry_after_ms / 1000)
            if not failure.detail.retriable or self._host.loop.time() + pause + ANSWER_MARGIN_SECONDS >= call.deadline:
                return ForgottenOffsets(forgotten, is_in_doubt, failure)
            await asyncio.sleep(pause)

    def _leaders(self) -> dict[PartitionId, NodeId]:
        """Return the leading node of each log partition, or `NO_NODE`."""
        return {
            (topic.topic_id, number): self._host.leadership.get(GroupId(group_id)).node_id
            for topic in self._host.metadata.state_machine.topics()
            if topic.kind == LOG
            for number, group_id in enumerate(topic.group_ids)
        }

    def _passed_over(self, group: str, before: Mapping[PartitionId, NodeId]) -> RequestError | None:
        """Return the error of a partition that may have had no leader when the nodes were asked, or None.

        A node acts only on the partitions that it leads when it is asked. Scenario: 2 is asked, 1 transfers a leadership to 2, and 1 is asked.
        """
        for (topic_id, number), node_id in self._leaders().items():
            known = before.get((topic_id, number))
            if known is None or known == node_id != NO_NODE:
                continue
            topic = self._host.metadata.state_machine.topic(topic_id)
            state = "has no leader at the moment" if node_id == NO_NODE else "has just got another leader"
            return RequestError(
                pb.NO_LEADER,
                f"partition {number} of topic {topic.name if topic is not None else topic_id} {state}: it may keep offsets of group {group!r}; "
                "repeat the deletion when it has a leader",
            )
        return None

    @property
    def _revision(self) -> int:
        return self._host.metadata.state_machine.revision
