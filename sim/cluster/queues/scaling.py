"""Make the product offer queue topics in a run, with memory, write-backs and logs that are small enough to be met."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, cast

from raftmq.broker.base.config import BrokerConfig
from raftmq.broker.base.limits import Limits, Timing
from raftmq.broker.cluster import bootstrap
from raftmq.broker.partitions.kinds import KINDS, QUEUE
from raftmq.broker.partitions.queue import commands, copies, due_pace, leases, schedule_plan
from raftmq.broker.replica import log_marks, log_tail
from raftmq.broker.services.queue import dead_letters
from raftmq.fsm.metadata_commands import InitializeCluster
from raftmq.fsm.queue import commands as queue_commands
from raftmq.fsm.queue import housekeeping, jobs, partition
from raftmq.fsm.queue.limits import MemoryBounds
from raftmq.fsm.queue.partition import QueuePartition

from sim.cluster.cluster import SimConfig
from sim.cluster.queues.options import TINY_MEMORY, QueueOptions

COPY_SECONDS = 1.0
"""Time for a copy of dead messages, and between two attempts: a run takes some seconds."""
COPY_MESSAGES = 3
"""Dead messages of one copy where the bounds of work are small."""
CATCH_UP_MAX = 40
"""Missed firings that a schedule makes up for. After hours without power, the product's thousand for each schedule take longer to lease than a
healed cluster has time, where a tenant gets few messages a second. A run without such hours misses fewer."""
SMALL_WORK_MAX = 20
"""`WORK_MAX` where the bounds of work are small. It is above the messages that one request of the clients names."""


def offer_queues(options: QueueOptions) -> Callable[[], None]:
    """Change the product for one run. Return a function that undoes it."""
    kinds = cast("dict[str, Any]", KINDS)
    offered, bounds = kinds.get(QUEUE.name), TINY_MEMORY if options.is_memory_tiny else MemoryBounds()
    kinds[QUEUE.name] = replace(QUEUE, new_state_machine=partial(QueuePartition, bounds))
    timing, limits = SimConfig.timing, BrokerConfig.limits

    def short_timing(config: SimConfig) -> Timing:
        return replace(timing(config), write_back_seconds=options.write_back_seconds)

    def small_limits(config: BrokerConfig) -> Limits:
        return replace(
            limits(config),
            write_back_rows_max=options.write_back_rows_max,
            write_back_backlog_rows_max=2 * options.write_back_rows_max,
            queue_recent_entries_bytes_max=options.recent_entries_bytes_max,
        )

    def initialize(cluster_id: str, feature_level: int, *others: Any) -> InitializeCluster:  # noqa: ANN401 -- the command's own
        return InitializeCluster(cluster_id, min(feature_level, options.starts_at_level), *others)

    small_gathering = replace(
        commands.GATHERING, entry_commands_max=SMALL_WORK_MAX // 2, entry_work_max=SMALL_WORK_MAX // 2
    )
    changes: list[tuple[Any, str, Any]] = [
        (SimConfig, "timing", short_timing),
        (BrokerConfig, "limits", small_limits),
        (bootstrap, "InitializeCluster", initialize),
        (log_tail, "TAIL_ENTRIES", options.tail_entries),
        (log_tail, "TAIL_BYTES", 150 * options.tail_entries),
        (log_tail, "WORTH_BYTES", 150 * options.tail_entries),
        (log_marks, "MARK_BYTES", 150),
        (dead_letters, "BATCH_SECONDS", COPY_SECONDS),
        (copies, "RETRY_SECONDS_MAX", COPY_SECONDS),
        (schedule_plan, "CATCH_UP_MAX", CATCH_UP_MAX),
    ]
    if options.is_work_small:
        changes += [
            (partition, "WORK_MAX", SMALL_WORK_MAX),
            (housekeeping, "HOUSEKEEPING_MAX", SMALL_WORK_MAX // 2),
            (due_pace, "COUNT_MAX", SMALL_WORK_MAX // 4),
            *((module, "ITEMS_WORK_MAX", SMALL_WORK_MAX // 2) for module in (queue_commands, commands, leases)),
            (commands, "GATHERING", small_gathering),
            (jobs, "SLICE_ROWS_MAX", SMALL_WORK_MAX),
            (copies, "COPY_MESSAGES_MAX", COPY_MESSAGES),
        ]
    kept = [getattr(owner, name) for owner, name, _ in changes]
    for owner, name, value in changes:
        setattr(owner, name, value)

    def undo() -> None:
        for (owner, name, _), value in zip(changes, kept, strict=True):
            setattr(owner, name, value)
        if offered is None:
            del kinds[QUEUE.name]
        else:
            kinds[QUEUE.name] = offered

    return undo
