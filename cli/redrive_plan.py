"""`RedrivePlan`: the effect of a redrive, counted and shown before asking for confirmation. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from raftmq.cli.durations import format_duration
from raftmq.cli.output import counted, printable

if TYPE_CHECKING:
    from raftmq.client.dead_letters.letter import DeadLetter
    from raftmq.client.dead_letters.topic import LetterCount
    from raftmq.types import TopicPartition


@dataclass(slots=True)
class RedrivePlan:
    """Count the effect of a redrive."""

    counts: list[LetterCount]
    exists: dict[TopicPartition, bool] = field(default_factory=dict)
    """Whether each partition that records came from still exists."""
    going: Counter[str] = field(default_factory=Counter)
    """Number of records by the topic that they go back to."""
    without_target: Counter[TopicPartition] = field(default_factory=Counter)
    without_value: int = 0

    def may_send(self, letter: DeadLetter) -> bool:
        """Return whether a record can go back. A partition that was not looked up yet is checked when the record is
        sent.
        """
        return letter.is_whole and self.exists.get(letter.source, True)

    def add(self, letter: DeadLetter) -> None:
        """Count a chosen record."""
        if not letter.is_whole:
            self.without_value += 1
        elif self.exists[letter.source]:
            self.going[letter.source.topic] += 1
        else:
            self.without_target[letter.source] += 1

    def lines(self, rate: float) -> Iterator[str]:
        """Describe the plan for people, before asking for confirmation."""
        for target, count in sorted(self.without_target.items()):
            yield not_sent(target, count)
        if self.without_value:
            yield (
                f"{counted(self.without_value, 'record')} not sent: the value was too large for the dead-letter topic; read it "
                "from the record's own topic (raftmq dlq show says where)"
            )
        for topic, count in sorted(self.going.items()):
            yield (
                f"{counted(count, 'record')} will go back to {topic}, at most {rate}: {format_duration(count / rate)} or more"
            )


def not_sent(target: TopicPartition, count: int) -> str:
    """Describe records whose original partition does not exist."""
    return f"{counted(count, 'record')} not sent: {printable(target.topic)}/{target.partition} does not exist as a log"
