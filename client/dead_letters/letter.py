"""`DeadLetter`: a record of a dead-letter topic with what its worker wrote about it into the headers. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from raftmq.types import Record, TopicPartition

HEADER_PREFIX: Final = "raftmq.dead_letter."
"""Begins the name of each header that a worker adds to a record that it gives up."""

Headers = tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One record that a worker gave up."""

    record: Record
    """As it is in the dead-letter topic, headers included."""
    group: str
    """The group whose worker gave it up."""
    source: TopicPartition
    """Where the record came from."""
    source_offset: int
    attempts: int
    error: str
    """The class of the last error."""
    message: str
    time_ms: int
    """When it was given up, in milliseconds since 1970."""
    is_whole: bool
    """False: the value was left out, because with the headers about the failure the record was too large."""

    @property
    def own_headers(self) -> Headers:
        """The headers that the record had before it was given up."""
        return tuple(pair for pair in self.record.headers if not pair[0].startswith(HEADER_PREFIX))


def read_letter(record: Record) -> DeadLetter | None:
    """Read the headers of a worker; None for a record that no worker put there."""
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
