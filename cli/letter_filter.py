"""Options that choose records of a dead-letter topic by the data that their worker recorded about the failure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated

import typer
from raftmq.cli.completion import complete_group, complete_topic
from raftmq.cli.numbers import WholeNumber
from raftmq.cli.options import COUNT_MAX, OFFSET_MAX
from raftmq.cli.record_filter import record_filter
from raftmq.cli.times import parse_time_ms
from raftmq.errors import OffsetOutOfRangeError, UnknownPartitionError

if TYPE_CHECKING:
    from raftmq.client.dead_letters.letter import DeadLetter
    from raftmq.client.dead_letters.topic import LetterCount
    from raftmq.types import Record

PartitionOption = Annotated[
    int | None,
    typer.Option(
        "--partition",
        "-p",
        parser=WholeNumber(0, COUNT_MAX),
        metavar="N",
        help="Choose only this partition of the dead-letter topic.",
    ),
]
OffsetOption = Annotated[
    int | None,
    typer.Option(
        "--offset",
        parser=WholeNumber(0, OFFSET_MAX),
        metavar="OFFSET",
        help="Choose only the record at this offset of --partition.",
    ),
]
ErrorOption = Annotated[
    str | None,
    typer.Option(
        "--error", metavar="PATTERN", help="Choose only records whose error class matches, such as '*Timeout*'."
    ),
]
FromTopicOption = Annotated[
    str | None,
    typer.Option(
        "--from-topic",
        metavar="TOPIC",
        help="Choose only records that came from this topic.",
        autocompletion=complete_topic,
    ),
]
GroupOption = Annotated[
    str | None,
    typer.Option(
        "--group",
        "-g",
        metavar="GROUP",
        help="Choose only records that this consumer group gave up.",
        autocompletion=complete_group,
    ),
]
SinceOption = Annotated[
    int | None,
    typer.Option(
        "--since",
        parser=parse_time_ms,
        metavar="TIME",
        help="Choose only records given up at or after a time: 2026-01-31T12:00:00Z, 15m (ago), or milliseconds since 1970.",
    ),
]


@dataclass(frozen=True, slots=True)
class LetterFilter:
    """Choose dead letters."""

    partition: int | None
    offset: int | None
    error: str | None
    from_topic: str | None
    group: str | None
    matches_record: Callable[[Record], bool] | None
    since_ms: int | None

    @staticmethod
    def of(
        partition: int | None,
        offset: int | None,
        error: str | None,
        from_topic: str | None,
        group: str | None,
        keys: list[str] | None,
        headers: list[str] | None,
        since_ms: int | None,
    ) -> LetterFilter:
        """Create the filter from options. Raises `typer.BadParameter`."""
        if offset is not None and partition is None:
            raise typer.BadParameter("an offset belongs to a partition: give --partition too", param_hint="--offset")
        return LetterFilter(partition, offset, error, from_topic, group, record_filter(keys, headers), since_ms)

    @property
    def is_everything(self) -> bool:
        """Whether the filter chooses every record of the partitions."""
        return self == LetterFilter(self.partition, None, None, None, None, None, None)

    def partitions_of(self, counts: Sequence[LetterCount]) -> list[LetterCount]:
        """Return the partitions to read and their ranges of offsets.

        Raises:
            UnknownPartitionError: There is no such partition.
            OffsetOutOfRangeError: There is no such record.
        """
        if self.partition is None:
            return list(counts)
        if self.partition >= len(counts):
            raise UnknownPartitionError(
                f"the topic has no partition {self.partition}: it has {len(counts)}, numbered from 0"
            )
        count = counts[self.partition]
        if self.offset is None:
            return [count]
        if not count.start <= self.offset < count.end:
            raise OffsetOutOfRangeError(
                f"there is no record {self.offset}: partition {self.partition} has {count.start} to {count.end - 1}"
                if count.end > count.start
                else f"there is no record {self.offset}: partition {self.partition} is empty",
                log_start_offset=count.start,
                high_watermark=count.end,
            )
        return [replace(count, start=self.offset, end=self.offset + 1)]

    def __call__(self, letter: DeadLetter) -> bool:
        """Return whether the letter is chosen."""
        return (
            (self.error is None or fnmatchcase(letter.error, self.error))
            and self.from_topic in (None, letter.source.topic)
            and self.group in (None, letter.group)
            and (self.since_ms is None or letter.time_ms >= self.since_ms)
            and (self.matches_record is None or self.matches_record(letter.record))
        )
