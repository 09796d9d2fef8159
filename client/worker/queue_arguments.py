"""Refuse the arguments of a worker that have no effect on its kind of topic, and name the setting that has. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from raftmq.errors import InvalidArgumentError

_UNUSED_ON_QUEUES: Final[Mapping[str, str]] = {
    "ordering": "the topic's ordered.by.key works on one message of a key at a time, and single.active.consumer with concurrency=1 on one of all",
    "retries": "the topic's attempts.max limits the attempts",
    "retry_backoff_ms": "the topic's backoff.base.ms and backoff.factor.percent say how long a failed message waits",
    "retry_backoff_max_ms": "the topic's backoff.max.ms says how long a failed message waits at most",
    "max_records": "concurrency and prefetch limit the messages in work",
    "max_partition_records": "concurrency and prefetch limit the messages in work",
    "commit_interval_ms": "each message is settled on its own",
    "auto_offset_reset": "a queue has no offsets, and every message is delivered",
    "revocation_timeout_ms": "no partitions move between its workers, and drain_timeout_ms limits a stop",
    "session_timeout_ms": "lease_ms says after how long others get the messages of a worker that crashed",
    "max_poll_interval_ms": "handler_timeout_ms limits the time of a handler",
    "assignor": "any worker gets the messages of any partition",
    "rack": "any worker gets the messages of any partition",
}
_UNUSED_ON_LOGS: Final[Mapping[str, str]] = {
    "lease_ms": "session_timeout_ms says after how long others get the partitions of a worker that crashed",
    "prefetch": "max_records and max_partition_records limit the records in work",
}


def check_queue_arguments(
    topics: Sequence[str],
    dead_letter_topic: str | None,
    group_instance_id: str | None,
    others: Mapping[str, object],
    defaults: Mapping[str, object],
) -> None:
    """Refuse arguments of groups for a worker on a queue topic: `others` that differ from their defaults.

    Raises:
        InvalidArgumentError: one has no effect.
    """
    if len(topics) > 1:
        raise InvalidArgumentError(
            f"without a group_id a worker works on one queue topic, not on {len(topics)}: give it a group_id, or make one worker for each"
        )
    if dead_letter_topic is not None:
        raise InvalidArgumentError(
            "a queue topic keeps its dead messages itself: drop dead_letter_topic (the topic's dead.letter.topic copies them), or give the "
            "worker of a log topic a group_id"
        )
    if group_instance_id is not None:
        raise InvalidArgumentError("a group_instance_id needs a group_id")
    for name, remedy in _UNUSED_ON_QUEUES.items():
        if others[name] != defaults[name]:
            raise InvalidArgumentError(
                f"{name} has no effect on a queue topic: {remedy}. Drop it, or give the worker of a log topic a group_id"
            )


def check_log_arguments(others: Mapping[str, object], defaults: Mapping[str, object]) -> None:
    """Refuse arguments of queue topics for a worker with a group. Raises `InvalidArgumentError`."""
    for name, remedy in _UNUSED_ON_LOGS.items():
        if others[name] != defaults[name]:
            raise InvalidArgumentError(
                f"{name} has no effect on a log topic: {remedy}. Drop it, or drop the group_id to work on a queue topic"
            )
