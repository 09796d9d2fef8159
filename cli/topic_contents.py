"""The contents of a topic before a deletion: how much there is, and how much of it will go. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from raftmq.cli.output import counted

if TYPE_CHECKING:
    from raftmq.client.admin.descriptions import TopicDescription

LOG_KIND: Final = "log"
QUEUE_KIND: Final = "queue"


def check_is_log(topic: TopicDescription) -> None:
    """Raise the error that the cluster would raise for a topic without records."""
    from raftmq.errors import TopicKindMismatchError

    if topic.kind != LOG_KIND:
        raise TopicKindMismatchError(
            f"topic {topic.name} is of kind {topic.kind!r}: delete messages with raftmq queue purge"
        )


def contents_of(topic: TopicDescription) -> str:
    """Describe the number of records in a topic, counting partitions whose leaders answer."""
    states = [partition.state for partition in topic.partitions if partition.state is not None]
    records = counted(sum(state.high_watermark - state.log_start_offset for state in states), "record")
    silent = len(topic.partitions) - len(states)
    unknown = f" (not counting {counted(silent, 'partition')} whose leader does not answer)" if silent else ""
    return f"{counted(len(topic.partitions), 'partition')}, {records}{unknown}"


def trimmed_rows(
    topic: TopicDescription, before: int | None, numbers: list[int] | None
) -> list[tuple[int, object, object, object]]:
    """Return the effect of a deletion of records on each partition. Raises the errors that the cluster would raise."""
    from raftmq.errors import OffsetOutOfRangeError, UnknownPartitionError

    for number in numbers or ():
        if number >= len(topic.partitions):
            raise UnknownPartitionError(
                f"topic {topic.name} has partitions 0 to {len(topic.partitions) - 1}, not {number}"
            )
    rows: list[tuple[int, object, object, object]] = []
    for partition in topic.partitions:
        state = partition.state
        if numbers and partition.partition not in numbers:
            continue
        if state is None:
            rows.append((partition.partition, "?", "end" if before is None else before, "?"))
            continue
        if before is not None and before > state.high_watermark:
            raise OffsetOutOfRangeError(
                f"{topic.name}/{partition.partition} has no offset {before}: the next record gets {state.high_watermark}"
            )
        after = state.high_watermark if before is None else max(before, state.log_start_offset)
        rows.append((partition.partition, state.log_start_offset, after, state.high_watermark))
    return rows
