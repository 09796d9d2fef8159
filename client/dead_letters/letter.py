"""`DeadLetter`: a record of a dead-letter topic, with the data from the headers that its worker added. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from raftmq.message_headers import DEAD_LETTER_PREFIX
from raftmq.types import Record, TopicPartition

HEADER_PREFIX: Final = DEAD_LETTER_PREFIX
"""The prefix of the names of headers that a worker adds to a record that it gives up."""

Headers = tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record that a worker gave up."""

    record: Record
    """The record in the dead-letter topic, including headers."""
    group: str
    """The consumer group whose worker gave the record up."""
    source: TopicPartition
    """The record's original partition."""
    source_offset: int
    attempts: int
    error: str
    """The class of the last error."""
    message: str
    time_ms: int
    """The time at which the record was given up, in milliseconds since 1970."""
    is_whole: bool
    """False: the value was omitted, because the record was too large with the headers about the failure."""

    @property
    def own_headers(self) -> Headers:
        """Return the headers that the record had before it was given up."""
        return tuple(pair for pair in self.record.headers if not pair[0].startswith(HEADER_PREFIX))


def read_letter(record: Record) -> DeadLetter | None:
    """Read the headers of a worker. Return None for a record that no worker moved there."""
    found = {
        name.removeprefix(HEADER_PREFIX): value.decode(errors="replace")
        for name, value in record.headers
        if name.startswith(HEADER_PREFIX)
    }
    try:
        return DeadLetter(
            record=record,
            group=found["group"],
            source=TopicPartition(found["topic"], int(found["partition"])),
            source_offset=int(found["offset"]),
            attempts=int(found["attempts"]),
            error=found["error"],
            message=found["message"],
            time_ms=int(found["time"]),
            is_whole="value_bytes" not in found,
        )
    except (KeyError, ValueError):
        return None
