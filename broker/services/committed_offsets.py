"""Serve the Log RPCs about consumer groups' offsets, for partitions that are led here. `GroupOffsets` decides about them.

A member opens a partition before it reads there. Its right to do so is first checked against this node's metadata, which is confirmed
before a refusal. So no member can fence a partition under an epoch that was not assigned to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from raftmq.broker.base.request_error import RequestError, expired
from raftmq.broker.partitions.log import PartitionLog
from raftmq.broker.services.call import Call
from raftmq.broker.services.host import ServiceHost
from raftmq.broker.services.locator import Locator, check_partitions
from raftmq.fsm.consumer_groups import PartitionId, is_group_text
from raftmq.fsm.group_offsets import NO_OFFSET, GroupOffset
from raftmq.fsm.log_commands import CommitOffset, OpenPartition, ResetOffset
from raftmq.fsm.tables import KEY_TEXT_BYTES_MAX
from raftmq.proto import peer_pb2 as peer_pb
from raftmq.proto import queue_pb2 as pb

PARTITIONS_PER_TURN: Final = 64
"""Partitions that are summarized in one turn of the event loop."""


def check_group_name(name: str) -> None:
    """Raise INVALID_ARGUMENT unless the name is valid for a consumer group."""
    if not is_group_text(name):
        raise RequestError(
            pb.INVALID_ARGUMENT,
            f"a consumer group's name must have 1 to {KEY_TEXT_BYTES_MAX} bytes and no control characters",
        )


class OffsetsService:
    """Answers the RPCs about committed offsets."""

    def __init__(self, host: ServiceHost, locator: Locator[PartitionLog]) -> None:
        self._host = host
        self._locator = locator

    # ------------------------------------------------------------------------------------------------ open

    async def open_partitions(self, request: pb.OpenPartitionsRequest, call: Call) -> pb.OpenPartitionsResponse:
        """Fence partitions for the member to which they are assigned. Return the offset where it begins in each."""
        check_partitions(len(request.partitions))
        check_group_name(request.group)
        deadline = call.within(request.timeout_ms, self._host.loop.time())
        await self._locator.wait_revision(request.metadata_revision, deadline)
        if not self._is_owner_of_all(request):
            await self._locator.confirm_metadata(deadline)
        owned = self._owned(request)
        results = await asyncio.gather(*(self._open(request, part, owned, deadline) for part in request.partitions))
        return pb.OpenPartitionsResponse(partitions=results)

    def _owned(self, request: pb.OpenPartitionsRequest) -> dict[PartitionId, int]:
        """Return the owner epochs of the member's partitions, as far as this node knows."""
        group = self._host.metadata.state_machine.consumer_group(request.group)
        member = group.members.get(request.member_id) if group is not None else None
        return {part[:2]: part[2] for part in member.owned} if member is not None else {}

    def _is_owner_of_all(self, request: pb.OpenPartitionsRequest) -> bool:
        owned = self._owned(request)
        return all(owned.get((part.topic_id, part.partition)) == part.owner_epoch for part in request.partitions)

    async def _open(
        self,
        request: pb.OpenPartitionsRequest,
        part: pb.PartitionOpen,
        owned: Mapping[PartitionId, int],
        deadline: float,
    ) -> pb.PartitionOpenResult:
        result = pb.PartitionOpenResult()
        try:
            partition = await self._locator.locate_confirmed(part.topic_id, part.partition, deadline)
            _check_owner(owned, part)
            command = OpenPartition(request.group, request.member_id, part.owner_epoch)
            opened = await partition.offsets.open(command, deadline)
        except RequestError as error:
            result.error.CopyFrom(error.detail)
            return result
        result.offset, result.note, result.finished = opened.offset, opened.metadata, opened.finished
        result.log_start_offset, result.high_watermark = partition.log_start_offset, partition.high_watermark
        result.leader_epoch = partition.replica.term
        return result

    # ------------------------------------------------------------------------------------------------ commit

    async def commit_offsets(self, request: pb.CommitOffsetsRequest, call: Call) -> pb.CommitOffsetsResponse:
        """Commit offsets in partitions that this node leads."""
        check_partitions(len(request.partitions))
        check_group_name(request.group)
        deadline = call.within(request.timeout_ms, self._host.loop.time())
        await self._locator.wait_revision(request.metadata_revision, deadline)
        results = await asyncio.gather(*(self._ack(request, part, deadline) for part in request.partitions))
        return pb.CommitOffsetsResponse(partitions=results)

    async def _ack(
        self, request: pb.CommitOffsetsRequest, part: pb.PartitionCommit, deadline: float
    ) -> pb.PartitionCommitResult:
        result = pb.PartitionCommitResult()
        try:
            partition = await self._locator.locate_confirmed(part.topic_id, part.partition, deadline)
            partition.check_reader(part.offset, part.group_id)
            owner_epoch = part.owner_epoch or self._unowned_epoch(request, partition)
            command = CommitOffset(request.group, request.member_id, owner_epoch, part.offset, part.note, part.finished)
            await partition.offsets.commit(command, deadline)
        except RequestError as error:
            result.error.CopyFrom(error.detail)
        return result

    def _unowned_epoch(self, request: pb.CommitOffsetsRequest, partition: PartitionLog) -> int:
        """Return the epoch of a commit without an owner: that of the last reset, or 0 if there was none or the group has members.

        A reset raises the fence although no member opens the partition afterwards. Without its epoch, the programs of a group that only
        commits named offsets could never commit again.
        """
        group = self._host.metadata.state_machine.consumer_group(request.group)
        known = partition.offsets.of(request.group)
        is_owned = bool(request.member_id or known.member or (group is not None and group.members))
        return 0 if is_owned else known.owner_epoch

    # ------------------------------------------------------------------------------------------------ read

    async def fetch_offsets(self, request: pb.FetchOffsetsRequest, call: Call) -> pb.FetchOffsetsResponse:
        """Return committed offsets and lag, confirmed by a quorum. Without partitions, use all that are led here and know the group."""
        check_group_name(request.group)
        await self._locator.wait_revision(request.metadata_revision, call.deadline)
        wanted = [(part.topic_id, part.partition) for part in request.partitions]
        if wanted:
            check_partitions(len(wanted))
        else:
            wanted = self._known_here(request.group)
        results = await asyncio.gather(*(self._fetch(request.group, *part, call.deadline) for part in wanted))
        return pb.FetchOffsetsResponse(partitions=results)

    def _known_here(self, group: str) -> list[PartitionId]:
        machine = self._host.metadata.state_machine
        found: list[PartitionId] = []
        for partition in self._locator.here():
            view = machine.partition(partition.replica.group_id)
            if view is not None and partition.replica.is_leader and partition.offsets.is_known(group):
                found.append((view.topic_id, view.partition))
        return sorted(found)

    async def _fetch(self, group: str, topic_id: int, number: int, deadline: float) -> pb.CommittedOffset:
        result = pb.CommittedOffset(topic_id=topic_id, partition=number, offset=NO_OFFSET, lag_records=-1, lag_ms=-1)
        try:
            partition = await self._locator.locate_confirmed(topic_id, number, deadline)
            partition.replica.require_leader()
            async with asyncio.timeout_at(deadline):
                await partition.replica.read_index()
                known = partition.offsets.of(group)
                result.lag_ms = await self._lag_ms(partition, known)
        except RequestError as error:
            result.error.CopyFrom(error.detail)
            return result
        except TimeoutError:
            result.error.CopyFrom(expired().detail)
            return result
        result.offset, result.note = known.offset, known.metadata
        result.member_id, result.owner_epoch = known.member, known.owner_epoch
        result.log_start_offset, result.high_watermark = partition.log_start_offset, partition.high_watermark
        result.lag_records = partition.offsets.lag_records(known)
        result.finished_records = partition.offsets.finished_records(known)
        result.leader_epoch = partition.replica.term
        return result

    async def _lag_ms(self, partition: PartitionLog, known: GroupOffset) -> int:
        """Return the age of the oldest record that is not consumed, or -1 if the group never committed an offset."""
        if known.offset == NO_OFFSET:
            return -1
        offset = max(known.offset, partition.log_start_offset)
        if offset >= partition.high_watermark:
            return 0
        header = await partition.header_at(offset)
        return max(0, self._host.now_ms() - header.append_time_ms) if header is not None else 0

    # ------------------------------------------------------------------------------------------------ administration

    async def summarize_offsets(
        self, request: peer_pb.SummarizeOffsetsRequest, call: Call
    ) -> peer_pb.SummarizeOffsetsResponse:
        """Return the groups with state in partitions that are led here, and their lag there. It is not confirmed by a quorum."""
        await self._locator.wait_revision(request.metadata_revision, call.deadline)
        found: dict[str, peer_pb.GroupSummary] = {}
        for steps, partition in enumerate(self._locator.here(), 1):
            if not partition.replica.is_leader:
                continue
            for name, known in partition.replica.state_machine.group_offsets():
                summary = found.setdefault(name, peer_pb.GroupSummary(group=name))
                if known.offset != NO_OFFSET:
                    summary.partitions += 1
                    summary.lag_records += partition.offsets.lag_records(known)
            if not steps % PARTITIONS_PER_TURN:
                await asyncio.sleep(0)
        return peer_pb.SummarizeOffsetsResponse(groups=[found[name] for name in sorted(found)])

    async def write_offsets(self, request: peer_pb.WriteOffsetsRequest, call: Call) -> peer_pb.WriteOffsetsResponse:
        """Reset offsets under the coordinator's epoch, or forget the group in every partition that is led here."""
        check_group_name(request.group)
        await self._locator.wait_revision(request.metadata_revision, call.deadline)
        response = peer_pb.WriteOffsetsResponse()
        if request.forget:
            response.forgotten = await self._forget(request.group, request.owner_epoch, call.deadline)
            return response
        check_partitions(len(request.resets))
        results = await asyncio.gather(*(self._reset(request, part, call.deadline) for part in request.resets))
        response.partitions.extend(results)
        return response

    async def _reset(
        self, request: peer_pb.WriteOffsetsRequest, part: pb.PartitionOffsetReset, deadline: float
    ) -> pb.PartitionResetResult:
        result = pb.PartitionResetResult(topic_id=part.topic_id, partition=part.partition)
        try:
            partition = await self._locator.locate_confirmed(part.topic_id, part.partition, deadline)
            await partition.offsets.reset(ResetOffset(request.group, request.owner_epoch, part.offset), deadline)
        except RequestError as error:
            result.error.CopyFrom(error.detail)
        return result

    async def _forget(self, group: str, last_epoch: int, deadline: float) -> int:
        count = 0
        try:
            for topic_id, number in self._known_here(group):
                partition = self._locator.locate(topic_id, number)
                known = partition.offsets.of(group)
                if 0 < last_epoch < known.owner_epoch:
                    continue  # opened by a member of a group that was created since the deletion
                # one that is being opened or committed by such a member stays, too, and the clock of the leader that wrote it does not matter
                count += await partition.offsets.forget((group,), known.touched_time_ms + 1, deadline)
        except RequestError as error:
            if count:
                error.detail.outcome = pb.UNKNOWN_OUTCOME  # other partitions have forgotten theirs
            raise
        return count


def _check_owner(owned: Mapping[PartitionId, int], part: pb.PartitionOpen) -> None:
    if owned.get((part.topic_id, part.partition)) != part.owner_epoch:
        raise RequestError(
            pb.FENCED,
            f"partition {part.partition} of topic {part.topic_id} is not assigned to this member under epoch "
            f"{part.owner_epoch}",
        )
