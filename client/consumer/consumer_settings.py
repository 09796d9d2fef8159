"""Checks the arguments of a `Consumer`, and converts them to the settings of its parts. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from raftmq.client.base import settings
from raftmq.client.base.arguments import LONG_MAX, check_not_negative, check_positive, check_whole
from raftmq.client.base.texts import check_text, check_texts
from raftmq.client.connection.leader_calls import EARLIEST_TIME, LATEST_TIME
from raftmq.client.consumer.fetcher import FetchLimits
from raftmq.client.consumer.group_session import GroupSettings
from raftmq.client.membership.group_member import MemberSettings, Subscription
from raftmq.errors import InvalidArgumentError
from raftmq.types import TopicPartition

OffsetReset = Literal["latest", "earliest", "none"]
_RESET_TIMES: dict[str, int | None] = {"latest": LATEST_TIME, "earliest": EARLIEST_TIME, "none": None}


def reset_time_of(auto_offset_reset: str) -> int | None:
    """Return the time to look up for a partition without a position, or None to fail instead."""
    if auto_offset_reset not in _RESET_TIMES:
        raise InvalidArgumentError(f"auto_offset_reset {auto_offset_reset!r}: use latest, earliest or none")
    return _RESET_TIMES[auto_offset_reset]


def fetch_limits(
    fetch_max_bytes: int,
    fetch_min_bytes: int,
    fetch_max_wait_ms: int,
    max_partition_fetch_bytes: int,
    request_timeout_ms: float,
) -> FetchLimits:
    """Return the limits of fetches."""
    check_positive(
        fetch_max_bytes=fetch_max_bytes,
        max_partition_fetch_bytes=max_partition_fetch_bytes,
        request_timeout_ms=request_timeout_ms,
    )
    check_not_negative(fetch_max_wait_ms=fetch_max_wait_ms, fetch_min_bytes=fetch_min_bytes)
    check_whole(fetch_max_wait_ms=fetch_max_wait_ms, fetch_min_bytes=fetch_min_bytes)
    check_whole(LONG_MAX, fetch_max_bytes=fetch_max_bytes, max_partition_fetch_bytes=max_partition_fetch_bytes)
    return FetchLimits(
        fetch_max_bytes=min(fetch_max_bytes, settings.FETCH_MESSAGE_BYTES_MAX),
        fetch_min_bytes=fetch_min_bytes,
        fetch_max_wait_ms=fetch_max_wait_ms,
        partition_fetch_max_bytes=min(max_partition_fetch_bytes, settings.FETCH_MESSAGE_BYTES_MAX),
        request_timeout_seconds=request_timeout_ms / 1000,
    )


def group_settings(
    *,
    group_id: str | None,
    group_instance_id: str | None,
    client_id: str,
    enable_auto_commit: bool,
    auto_commit_interval_ms: float,
    session_timeout_ms: int,
    heartbeat_interval_ms: float,
    max_poll_interval_ms: int,
    assignor: str,
    rack: str,
    reset_time: int | None,
    request_timeout_ms: float,
) -> GroupSettings | None:
    """Return the settings of the group membership, or None without a group. Brokers check what only they can."""
    named = (("group_id", group_id), ("group_instance_id", group_instance_id), ("assignor", assignor), ("rack", rack))
    for name, text in named:
        check_text(text, name)
    if group_id is None:
        if group_instance_id is not None:
            raise InvalidArgumentError("group_instance_id has no effect without group_id")
        return None
    if not group_id:
        raise InvalidArgumentError(f"group_id must be a name, not {group_id!r}")
    if group_instance_id is not None and not group_instance_id:
        raise InvalidArgumentError("group_instance_id is empty: omit it for a member without a name")
    check_positive(
        auto_commit_interval_ms=auto_commit_interval_ms,
        session_timeout_ms=session_timeout_ms,
        heartbeat_interval_ms=heartbeat_interval_ms,
        max_poll_interval_ms=max_poll_interval_ms,
    )
    check_whole(session_timeout_ms=session_timeout_ms, max_poll_interval_ms=max_poll_interval_ms)
    if heartbeat_interval_ms >= session_timeout_ms:
        raise InvalidArgumentError(
            f"heartbeat_interval_ms must be below session_timeout_ms, not {heartbeat_interval_ms!r} with "
            f"{session_timeout_ms!r}: a third of it is usual"
        )
    return GroupSettings(
        member=MemberSettings(
            group=group_id,
            instance_id=group_instance_id or "",
            client_id=client_id,
            rack=rack,
            session_timeout_ms=session_timeout_ms,
            rebalance_timeout_ms=max_poll_interval_ms,
        ),
        assignor=assignor,
        heartbeat_seconds=heartbeat_interval_ms / 1000,
        poll_seconds_max=max_poll_interval_ms / 1000,
        auto_commit_seconds=auto_commit_interval_ms / 1000 if enable_auto_commit else None,
        reset_time=reset_time,
        request_timeout_seconds=request_timeout_ms / 1000,
    )


def subscription_of(topics: Iterable[str], pattern: str | None, assignor: str, *, has_group: bool) -> Subscription:
    """Return the subscription to these topics, without duplicates."""
    if isinstance(topics, str):
        raise TypeError(f"topics must be several names: ({topics!r},)")
    given = tuple(topics)
    if not all(isinstance(name, str) for name in given):
        raise TypeError(f"topics must be names, one argument each: Consumer('a', 'b'), not {given!r}")
    check_texts(given, "topic")
    check_text(pattern, "pattern")
    names = tuple(dict.fromkeys(given))
    if pattern is not None and not has_group:
        raise InvalidArgumentError("a pattern needs a group_id, because the group's coordinator resolves it")
    return Subscription(names, pattern or "", assignor)


def checked_partitions(partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
    """Return the partitions for `assign`, checked."""
    wanted = list(partitions)
    for partition in wanted:
        if not isinstance(partition, TopicPartition):
            raise TypeError(
                f"assign needs a list of TopicPartitions, such as [TopicPartition('t', 0)], not {partition!r}"
            )
        check_text(partition.topic, "topic")
    return wanted


def checked_offsets(offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Return the offsets for `commit`, checked."""
    pairs: Iterable[tuple[object, object]] = offsets.items()
    for partition, offset in pairs:
        if not isinstance(partition, tuple) or isinstance(offset, bool) or not isinstance(offset, int):
            raise TypeError(f"offsets must be numbers by TopicPartition, not {partition!r}: {offset!r}")
        check_texts(partition, "topic")
        if not 0 <= offset < 1 << 63:
            raise InvalidArgumentError(f"an offset must not be negative: {offset} (it is the next one to read)")
    return {TopicPartition._make(partition): offset for partition, offset in offsets.items()}
