"""Requests of a consumer group to partitions' leaders: open partitions, commit offsets, fetch committed offsets.

All three are idempotent and repeated until answered. Must not know membership: callers pass the identity and the owner epochs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from raftmq.client.base.error_details import error_from_detail
from raftmq.client.connection.leader_calls import (
    LeaderCall,
    LeaderTarget,
    ask_leaders,
    call_leaders,
    name_of_target,
    with_read_groups,
)
from raftmq.client.connection.resolver import Resolver
from raftmq.client.connection.transport import Connection
from raftmq.errors import ProtocolError, RaftMQError, UnknownPartitionError
from raftmq.methods import COMMIT_OFFSETS, FETCH_OFFSETS, OPEN_PARTITIONS
from raftmq.offset_ranges import OffsetRangesError, Ranges, decode_ranges
from raftmq.proto import queue_pb2 as pb
from raftmq.types import TopicPartition

AnswerT = TypeVar("AnswerT")
ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class MemberIdentity:
    """The identity under which partitions are opened and committed."""

    group: str
    member_id: str = ""
    """Empty: no member. Such commits succeed only where no member opened the partition since the last reset of its offset."""


@dataclass(frozen=True, slots=True)
class OwnedPartition:
    """The ownership of a partition, as it was assigned."""

    topic_id: int
    """0: the current incarnation of the topic."""
    owner_epoch: int
    read_group_id: int = 0
    """The Raft group that served the committed records, or 0 if that is unknown."""


class OffsetCommit(NamedTuple):
    """A commit for one partition. Each commit replaces all fields of the previous one."""

    offset: int
    """The next record to read."""
    finished: bytes = b""
    """The ranges finished beyond the offset, encoded by `offset_ranges`."""
    note: str = ""
    """Text for the next owner, stored with the offset; at most 4096 bytes."""
    read_group_id: int = 0
    """The Raft group that served the records before the offset. 0: the one of the `OwnedPartition`."""


@dataclass(frozen=True, slots=True)
class CommittedPosition:
    """A group's commit in a partition, and the bounds of the partition."""

    offset: int
    """The next offset to read. -1: nothing was ever committed."""
    log_start_offset: int
    high_watermark: int
    finished: Ranges = ()
    """The ranges finished beyond the offset. Known only of opened partitions."""
    note: str = ""
    """The note of the last commit. Known only of opened partitions."""


async def open_partitions(
    resolver: Resolver,
    identity: MemberIdentity,
    owned: Mapping[TopicPartition, OwnedPartition],
    timeout_seconds: float,
    read_groups: dict[TopicPartition, int],
) -> dict[TopicPartition, CommittedPosition | RaftMQError]:
    """Fence partitions in their own logs for their new owner, and return where it begins.

    The result of a partition is `FencedError` if it has a later owner. `read_groups`: see `with_read_groups`.
    """

    async def ask(
        connection: Connection, group: list[LeaderTarget], seconds: float
    ) -> list[CommittedPosition | RaftMQError]:
        request = pb.OpenPartitionsRequest(
            metadata_revision=resolver.metadata_revision,
            group=identity.group,
            member_id=identity.member_id,
            timeout_ms=max(1, int(seconds * 1000)),
            partitions=[
                pb.PartitionOpen(
                    topic_id=owned[target.topic_partition].topic_id,
                    partition=target.topic_partition.partition,
                    owner_epoch=owned[target.topic_partition].owner_epoch,
                )
                for target in group
            ],
        )
        answers = (await connection.call(OPEN_PARTITIONS, request, seconds)).partitions
        return [
            _error_of(answer, target)
            or CommittedPosition(
                answer.offset, answer.log_start_offset, answer.high_watermark, _finished_of(answer, target), answer.note
            )
            for target, answer in _paired(group, answers)
        ]

    asking = with_read_groups(_of_same_topic(ask, owned), read_groups)
    return await ask_leaders(resolver, owned, timeout_seconds, asking)


async def commit_offsets(
    resolver: Resolver,
    identity: MemberIdentity,
    commits: Mapping[TopicPartition, OffsetCommit],
    owned: Mapping[TopicPartition, OwnedPartition],
    timeout_seconds: float,
    on_results: Callable[[Mapping[TopicPartition, RaftMQError | None]], None] = lambda _: None,
) -> dict[TopicPartition, RaftMQError | None]:
    """Commit the next offsets to read. The result of a partition is `FencedError` if it has another owner by now.

    `on_results` gets each result as soon as it is known, as in `ask_leaders`.
    """

    async def ask(connection: Connection, group: list[LeaderTarget], seconds: float) -> list[RaftMQError | None]:
        request = pb.CommitOffsetsRequest(
            metadata_revision=resolver.metadata_revision,
            group=identity.group,
            member_id=identity.member_id,
            timeout_ms=max(1, int(seconds * 1000)),
            partitions=[
                pb.PartitionCommit(
                    topic_id=owned[target.topic_partition].topic_id or target.topic_id,
                    partition=target.topic_partition.partition,
                    owner_epoch=owned[target.topic_partition].owner_epoch,
                    offset=commits[target.topic_partition].offset,
                    finished=commits[target.topic_partition].finished,
                    note=commits[target.topic_partition].note,
                    group_id=commits[target.topic_partition].read_group_id
                    or owned[target.topic_partition].read_group_id,
                )
                for target in group
            ],
        )
        answers = (await connection.call(COMMIT_OFFSETS, request, seconds)).partitions
        return [_error_of(answer, target) for target, answer in _paired(group, answers)]

    return await ask_leaders(resolver, commits, timeout_seconds, _of_same_topic(ask, owned), on_results=on_results)


async def fetch_offsets(
    resolver: Resolver,
    group: str,
    partitions: Iterable[TopicPartition],
    timeout_seconds: float,
    read_groups: dict[TopicPartition, int] | None = None,
) -> dict[TopicPartition, CommittedPosition]:
    """Return a group's committed offsets. `read_groups`: see `with_read_groups`. Raises as `call_leaders` does."""
    ask = with_read_groups(_asking_for_committed(resolver, group), read_groups)
    return await call_leaders(resolver, partitions, timeout_seconds, ask)


async def fetch_each_offset(
    resolver: Resolver,
    group: str,
    partitions: Iterable[TopicPartition],
    timeout_seconds: float,
    read_groups: dict[TopicPartition, int],
) -> dict[TopicPartition, CommittedPosition | RaftMQError]:
    """Return committed offsets like `fetch_offsets`, or an error for each partition, as `ask_leaders` does."""
    ask = with_read_groups(_asking_for_committed(resolver, group), read_groups)
    return await ask_leaders(resolver, partitions, timeout_seconds, ask)


def _asking_for_committed(resolver: Resolver, group: str) -> LeaderCall[CommittedPosition]:
    async def ask(
        connection: Connection, targets: list[LeaderTarget], seconds: float
    ) -> list[CommittedPosition | RaftMQError]:
        request = pb.FetchOffsetsRequest(
            metadata_revision=resolver.metadata_revision,
            group=group,
            partitions=[pb.PartitionId(topic_id=t.topic_id, partition=t.topic_partition.partition) for t in targets],
        )
        response = await connection.call(FETCH_OFFSETS, request, seconds)
        by_key = {(answer.topic_id, answer.partition): answer for answer in response.partitions}
        return [_committed_of(target, by_key) for target in targets]

    return ask


def _committed_of(
    target: LeaderTarget, by_key: Mapping[tuple[int, int], pb.CommittedOffset]
) -> CommittedPosition | RaftMQError:
    answer = by_key.get((target.topic_id, target.topic_partition.partition))
    if answer is None:
        return ProtocolError(f"{name_of_target(target)}: the leader omitted the partition from its answer")
    error = _error_of(answer, target)
    return error or CommittedPosition(answer.offset, answer.log_start_offset, answer.high_watermark)


def _finished_of(answer: pb.PartitionOpenResult, target: LeaderTarget) -> Ranges:
    if answer.offset < 0:
        return ()
    try:
        return decode_ranges(answer.offset, answer.finished)
    except OffsetRangesError as error:
        raise ProtocolError(f"{name_of_target(target)}: {error}") from error


def _error_of(
    answer: pb.PartitionOpenResult | pb.PartitionCommitResult | pb.CommittedOffset, target: LeaderTarget
) -> RaftMQError | None:
    return error_from_detail(answer.error, name_of_target(target)) if answer.HasField("error") else None


def _paired(group: Sequence[LeaderTarget], answers: Sequence[AnswerT]) -> list[tuple[LeaderTarget, AnswerT]]:
    """Pair answers with partitions, in the order of the request. Raises `ProtocolError` when answers are missing."""
    if len(answers) != len(group):
        raise ProtocolError(f"the leader answered for {len(answers)} partitions instead of {len(group)}")
    return list(zip(group, answers, strict=True))


def _of_same_topic(ask: LeaderCall[ResultT], owned: Mapping[TopicPartition, OwnedPartition]) -> LeaderCall[ResultT]:
    """Ask only about the assigned incarnations of topics. If a topic was created again, its partitions are different ones."""

    async def asking(connection: Connection, group: list[LeaderTarget], seconds: float) -> list[ResultT | RaftMQError]:
        same = [target for target in group if owned[target.topic_partition].topic_id in (0, target.topic_id)]
        answers = iter(await ask(connection, same, seconds)) if same else iter(())
        return [
            next(answers)
            if owned[target.topic_partition].topic_id in (0, target.topic_id)
            else UnknownPartitionError(f"{name_of_target(target)} was deleted, and its topic was created again")
            for target in group
        ]

    return asking
