"""Calls for many partitions that only their leaders answer: grouped by leader, and repeated until every partition has an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import NamedTuple, TypeVar

from raftmq.client.base import settings
from raftmq.client.base.arguments import LONG_MAX
from raftmq.client.base.background import Backoff
from raftmq.client.base.error_details import error_from_detail, with_address, with_doubt
from raftmq.client.connection.resolver import Resolver
from raftmq.client.connection.time_search import OffsetAndTimestamp, TimeSearch, WantedTime
from raftmq.client.connection.transport import Connection
from raftmq.errors import (
    FailedPreconditionError,
    NoLeaderError,
    NotLeaderError,
    OffsetOutOfRangeError,
    Outcome,
    ProtocolError,
    RaftMQError,
    RequestTimedOutError,
    UnknownPartitionError,
)
from raftmq.methods import DELETE_RECORDS, POLL
from raftmq.proto import queue_pb2 as pb
from raftmq.types import TopicPartition

EARLIEST_TIME = -2
LATEST_TIME = -1
ResultT = TypeVar("ResultT")


class LeaderTarget(NamedTuple):
    """A partition with the ids for requests."""

    topic_partition: TopicPartition
    topic_id: int
    group_id: int


LeaderCall = Callable[[Connection, list[LeaderTarget], float], Awaitable[list["ResultT | RaftMQError"]]]
"""Asks one leader about its partitions. Returns a result or an error for each, in their order."""


async def call_leaders(
    resolver: Resolver, partitions: Iterable[TopicPartition], timeout_seconds: float, call: LeaderCall[ResultT]
) -> dict[TopicPartition, ResultT]:
    """Run `call` on every leader concerned until each partition has a result.

    `call` must be a read or idempotent, because it is repeated after failures with an unknown outcome.

    Raises:
        UnknownTopicError, UnknownPartitionError: a topic or partition does not exist.
        RaftMQError: a refusal that is not retriable, or the last failure when the time is over.
    """
    results: dict[TopicPartition, ResultT] = {}
    answers = await ask_leaders(resolver, partitions, timeout_seconds, call, is_all_or_nothing=True)
    for partition, answer in answers.items():
        if isinstance(answer, RaftMQError):
            raise answer
        results[partition] = answer
    return results


async def ask_leaders(
    resolver: Resolver,
    partitions: Iterable[TopicPartition],
    timeout_seconds: float,
    call: LeaderCall[ResultT],
    *,
    is_all_or_nothing: bool = False,
    on_results: Callable[[Mapping[TopicPartition, ResultT | RaftMQError]], None] = lambda _: None,
) -> dict[TopicPartition, ResultT | RaftMQError]:
    """Run `call` like `call_leaders`, but return each partition's own result, refusal or last failure.

    It raises only if the client is closed. With `is_all_or_nothing` it ends at the first refusal. `on_results` gets each result once, as
    soon as it is known, so that no partition waits for another one's leader.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_seconds
    backoff = Backoff(settings.RETRY_BACKOFF_MIN_SECONDS, settings.RETRY_BACKOFF_MAX_SECONDS, resolver.rng)
    open_ = list(dict.fromkeys(partitions))
    results: dict[TopicPartition, ResultT | RaftMQError] = {}
    failures: dict[TopicPartition, RaftMQError] = {}

    def record(found: dict[TopicPartition, ResultT | RaftMQError]) -> None:
        results.update(found)
        if found:
            on_results(found)

    async def ask(address: str, group: list[LeaderTarget], patience: float) -> None:
        answers = await _guarded(resolver, address, group, patience, call)
        record(_final_answers(resolver, group, answers, failures))

    while open_:
        targets: list[LeaderTarget] = []
        for partition in open_:
            try:
                targets.append(await _target(resolver, partition, deadline - loop.time()))
            except RaftMQError as error:
                if error.retriable:
                    failures[partition] = error
                else:
                    record({partition: error})
        resolver.check()
        groups = _by_leader(resolver, targets, failures)
        remaining = max(deadline - loop.time(), 0.001)
        patience = min(remaining, 2 * settings.LATE_ANSWER_SECONDS)  # a frozen leader must not use up the whole time
        await asyncio.gather(*(ask(address, group, patience) for address, group in groups))
        if is_all_or_nothing and any(isinstance(result, RaftMQError) for result in results.values()):
            return results
        open_ = [partition for partition in open_ if partition not in results]
        if open_:
            pause = backoff.next_seconds()
            if loop.time() + pause >= deadline:
                for partition in open_:
                    late = RequestTimedOutError(f"{partition.topic}/{partition.partition}: no answer in time")
                    failures.setdefault(partition, late)
                record({partition: failures[partition] for partition in open_})
                return results
            await resolver.wait_change(pause)
    return results


async def _target(resolver: Resolver, partition: TopicPartition, timeout_seconds: float) -> LeaderTarget:
    info = await resolver.topic(partition.topic, max(timeout_seconds, 0.001), partition=partition.partition)
    if not 0 <= partition.partition < info.partition_count:
        raise UnknownPartitionError(
            f"{partition.topic} has partitions 0 to {info.partition_count - 1}, not {partition.partition}"
        )
    return LeaderTarget(partition, info.topic_id, info.group_ids[partition.partition])


def _by_leader(
    resolver: Resolver, targets: list[LeaderTarget], failures: dict[TopicPartition, RaftMQError]
) -> list[tuple[str, list[LeaderTarget]]]:
    """Group the targets by their leader's address, as many as a request may name. Targets without a leader are added to `failures`."""
    groups: dict[str, list[LeaderTarget]] = {}
    for target in targets:
        leader = resolver.leader(target.group_id)
        if leader is None:
            topic, number = target.topic_partition
            failures[target.topic_partition] = NoLeaderError(f"{topic}/{number} has no leader")
        else:
            groups.setdefault(resolver.address(leader), []).append(target)
    size = settings.REQUEST_PARTITIONS_MAX
    return [
        (address, group[start : start + size])
        for address, group in groups.items()
        for start in range(0, len(group), size)
    ]


def _final_answers(
    resolver: Resolver,
    group: list[LeaderTarget],
    answers: list[ResultT | RaftMQError],
    failures: dict[TopicPartition, RaftMQError],
) -> dict[TopicPartition, ResultT | RaftMQError]:
    """Return the results and refusals among a leader's answers. Those to repeat are added to `failures`."""
    final: dict[TopicPartition, ResultT | RaftMQError] = {}
    for target, answer in zip(group, answers, strict=True):
        if isinstance(answer, NotLeaderError):
            resolver.on_not_leader(target.group_id, answer)
        if isinstance(answer, RaftMQError) and (answer.retriable or isinstance(answer, NotLeaderError)):
            failures[target.topic_partition] = answer
        else:
            final[target.topic_partition] = answer
    return final


async def _guarded(
    resolver: Resolver, address: str, group: list[LeaderTarget], timeout_seconds: float, call: LeaderCall[ResultT]
) -> list[ResultT | RaftMQError]:
    """Call one leader. Its failure becomes the failure of its partitions only."""
    try:
        answers = await call(resolver.connection(address), group, timeout_seconds)
    except RaftMQError as error:
        if error.outcome is Outcome.UNKNOWN or error.retriable:
            resolver.mark_suspect(address)
        return [with_address(error, address)] * len(group)
    if len(answers) != len(group):
        return [ProtocolError(f"{address} answered for {len(answers)} partitions instead of {len(group)}")] * len(group)
    for answer in answers:
        if isinstance(answer, RaftMQError):
            with_address(answer, address)
    return answers


def name_of_target(target: LeaderTarget) -> str:
    """Return the name of a target for messages."""
    return f"{target.topic_partition.topic}/{target.topic_partition.partition}"


async def kept_ends(
    resolver: Resolver, groups: Mapping[TopicPartition, int], timeout_seconds: float
) -> dict[TopicPartition, int]:
    """Return the partitions that were recovered since these Raft groups served them, with the lowest end of the logs that were kept.

    Records of those groups from that offset on may be lost, and others may have their offsets. Raises as `call_leaders`.
    """

    async def ask(
        connection: Connection, targets: list[LeaderTarget], seconds: float
    ) -> list[int | RaftMQError | None]:
        # No log reaches this offset, so the answer is a refusal, which names the kept end if there was a recovery.
        request = pb.PollRequest(metadata_revision=resolver.metadata_revision)
        for target in targets:
            number, group_id = target.topic_partition.partition, groups[target.topic_partition]
            request.partitions.add(topic_id=target.topic_id, partition=number, offset=LONG_MAX, group_id=group_id)
        answer = await connection.call(POLL, request, seconds)
        refusals = {(one.topic_id, one.partition): error_from_detail(one.error) for one in answer.partitions}
        late = RequestTimedOutError("the broker gave no answer for the partition")
        found = [refusals.get((target.topic_id, target.topic_partition.partition), late) for target in targets]
        return [one.kept_end_offset if isinstance(one, OffsetOutOfRangeError) else one for one in found]

    ends = await call_leaders(resolver, groups, timeout_seconds, ask)
    return {partition: end for partition, end in ends.items() if end is not None}


def with_read_groups(call: LeaderCall[ResultT], read_groups: dict[TopicPartition, int] | None) -> LeaderCall[ResultT]:
    """Let `read_groups` get the Raft group that each partition had when the leader that answered was asked.

    1. A look-up of a partition without a majority waits for a leader.
    2. The partition is recovered. Its new group gets records, and answers the repeated call.
    3. The answer is an offset of the new group. The earlier group may never have had it, or had a lost record there.

    The group that answers is the named one or a later one. If it is later, the next read is refused, and skips nothing.
    """
    if read_groups is None:
        return call

    async def asking(connection: Connection, group: list[LeaderTarget], seconds: float) -> list[ResultT | RaftMQError]:
        read_groups.update({target.topic_partition: target.group_id for target in group})
        return await call(connection, group, seconds)

    return asking


async def list_offsets(
    resolver: Resolver,
    times: Mapping[TopicPartition, int],
    timeout_seconds: float,
    *,
    by_append_time: bool = False,
    read_groups: dict[TopicPartition, int] | None = None,
) -> dict[TopicPartition, OffsetAndTimestamp]:
    """Return the first record of each partition whose timestamp is at or after a time. Offset -1: there is none.

    `EARLIEST_TIME` requests the log start, `LATEST_TIME` the high watermark. With `by_append_time` the times are compared with those at
    which the leaders appended the records, and the result has the record's append time. Brokers that do not know records' timestamps
    always do this. `read_groups`: see `with_read_groups`. Raises as `call_leaders` does.
    """
    ask = with_read_groups(_asking_for_times(resolver, times, by_append_time), read_groups)
    return await call_leaders(resolver, times, timeout_seconds, ask)


async def list_each_offset(
    resolver: Resolver,
    times: Mapping[TopicPartition, int],
    timeout_seconds: float,
    read_groups: dict[TopicPartition, int],
) -> dict[TopicPartition, OffsetAndTimestamp | RaftMQError]:
    """Return offsets like `list_offsets`, or an error for each partition, as `ask_leaders` does."""
    ask = with_read_groups(_asking_for_times(resolver, times, False), read_groups)
    return await ask_leaders(resolver, times, timeout_seconds, ask)


def _asking_for_times(
    resolver: Resolver, times: Mapping[TopicPartition, int], by_append_time: bool
) -> LeaderCall[OffsetAndTimestamp]:
    kind = pb.APPEND_TIME if by_append_time else pb.TIMESTAMP

    async def ask(
        connection: Connection, group: list[LeaderTarget], seconds: float
    ) -> list[OffsetAndTimestamp | RaftMQError]:
        wanted = [
            WantedTime(
                target.topic_id,
                target.topic_partition.partition,
                name_of_target(target),
                times[target.topic_partition],
                kind,
            )
            for target in group
        ]
        return await TimeSearch(connection, resolver.metadata_revision, wanted, seconds).run()

    return ask


def _of_same_groups(call: LeaderCall[ResultT], groups: dict[TopicPartition, tuple[int, int]]) -> LeaderCall[ResultT]:
    """Ask about each partition only as it was when it was asked first: `groups` gets the ids of its topic and its group.

    An offset means nothing in a topic that was created again, nor after records were lost in a recovery.
    """

    async def asking(connection: Connection, group: list[LeaderTarget], seconds: float) -> list[ResultT | RaftMQError]:
        same = [target for target in group if groups.setdefault(target.topic_partition, target[1:]) == target[1:]]
        answers = iter(await call(connection, same, seconds)) if same else iter(())
        return [next(answers) if target in same else _replaced(target, groups) for target in group]

    return asking


def _replaced(target: LeaderTarget, groups: Mapping[TopicPartition, tuple[int, int]]) -> RaftMQError:
    name, (topic_id, _) = name_of_target(target), groups[target.topic_partition]
    if topic_id != target.topic_id:
        return UnknownPartitionError(f"{name} was deleted, and its topic was created again")
    return FailedPreconditionError(
        f"{name} was recovered in the meantime, and new records may have the offsets of lost ones: look at it, then repeat the call"
    )


async def delete_records(
    resolver: Resolver, before_offsets: dict[TopicPartition, int], timeout_seconds: float
) -> dict[TopicPartition, int]:
    """Delete the records below an offset of each partition (-1: all records). Return the new log starts.

    -1 is resolved once, at the beginning: repeating the request after a lost answer must not delete newer records, nor those of a topic that was
    created again. Raises as `call_leaders` does, with an unknown outcome as soon as any partition may have been trimmed.
    """
    may_be_trimmed = False
    groups: dict[TopicPartition, tuple[int, int]] = {}
    deadline = asyncio.get_running_loop().time() + timeout_seconds
    everything = {partition: LATEST_TIME for partition, offset in before_offsets.items() if offset < 0}
    if everything:
        ask_ends = _of_same_groups(_asking_for_times(resolver, everything, False), groups)
        ends = await call_leaders(resolver, everything, timeout_seconds, ask_ends)
        before_offsets = before_offsets | {partition: end.offset for partition, end in ends.items()}
        timeout_seconds = max(0.001, deadline - asyncio.get_running_loop().time())

    async def ask(connection: Connection, group: list[LeaderTarget], seconds: float) -> list[int | RaftMQError]:
        request = pb.DeleteRecordsRequest(
            metadata_revision=resolver.metadata_revision,
            timeout_ms=max(1, int(seconds * 1000)),
            partitions=[
                pb.PartitionTrim(
                    topic_id=target.topic_id,
                    partition=target.topic_partition.partition,
                    before_offset=before_offsets[target.topic_partition],
                )
                for target in group
            ],
        )
        nonlocal may_be_trimmed
        try:
            response = await connection.call(DELETE_RECORDS, request, seconds)
        except RaftMQError as error:
            may_be_trimmed |= error.outcome is Outcome.UNKNOWN
            raise
        by_key = {(answer.topic_id, answer.partition): answer for answer in response.partitions}
        answers = [_log_start_of(target, by_key) for target in group]
        may_be_trimmed |= any(isinstance(one, int) or one.outcome is Outcome.UNKNOWN for one in answers)
        return answers

    try:
        return await call_leaders(resolver, before_offsets, timeout_seconds, _of_same_groups(ask, groups))
    except RaftMQError as error:
        if may_be_trimmed:
            raise with_doubt(error) from error
        raise


def _log_start_of(target: LeaderTarget, by_key: dict[tuple[int, int], pb.PartitionTrimResult]) -> int | RaftMQError:
    answer = by_key.get((target.topic_id, target.topic_partition.partition))
    if answer is None:
        return ProtocolError(f"{name_of_target(target)}: the leader omitted the partition from its answer")
    if answer.HasField("error"):
        return error_from_detail(answer.error, name_of_target(target))
    return answer.log_start_offset
