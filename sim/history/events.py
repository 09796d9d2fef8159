"""The events of a history: one JSON line each, read as a stream and written when they happen.

This module must not judge anything: `tables.py` decides whether events fit together, and the checker decides on their meaning.
Invariant: an event that was written reads back equal. `docs/internals/history-format.md` describes the format for others, and a test
compares the page with this file.

Source: the operations of Jepsen's Kafka workload (invoke, ok, fail, info), with one JSON line per event instead of EDN.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal, NamedTuple, Self

import msgspec

Kind = Literal["invoke", "ok", "fail", "info"]
"""`invoke`: begun. `ok`: done. `fail`: definitely not done. `info`: the outcome is unknown, and the operation may still happen. An operation without an end counts as `info`."""

Operation = Literal[
    "send",
    "poll",
    "assign",
    "seek",
    "commit",
    "committed",
    "process",
    "dead_letter",
    "open",
    "release",
    "read_all",
    "trim",
    "recover",
    "create_topic",
    "alter_topic",
    "add_partitions",
    "delete_topic",
    "describe_topic",
    "claim",
    "enter",
]

Start = Literal["earliest", "latest"]


class Partition(NamedTuple):
    """A topic's name and a partition number: a JSON array of two items."""

    topic: str
    partition: int


class Records(msgspec.Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    """Records of one partition, in the order in which a poll returned them: a JSON array of four items."""

    topic: str
    partition: int
    offsets: list[int]
    values: list[str]
    """One value for each of `offsets`."""


class Event(msgspec.Struct, frozen=True, omit_defaults=True, gc=False, forbid_unknown_fields=True):
    """One line. Absent fields are null. A table on the format's page lists the fields of each operation."""

    process: str
    """The client that did it. A client that is started again has a new name."""
    time: int
    """Nanoseconds of a clock that all processes of the history share. Virtual time in simulations. It never decreases in a file."""
    kind: Kind
    operation: Operation
    id: int
    """Pairs an invocation with its end. Unique within the process."""
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    value: str | None = None
    """The identity of a record, unique among the sends to a topic."""
    key: str | None = None
    epoch: int | None = None
    """Of a `claim`: the epoch of the name. Otherwise the leader epoch or the assignment's epoch, only for human readers."""
    producer: str | None = None
    """The idempotent producer that sends. Its sends are neither repeated nor reordered. Null if that was not promised."""
    group: str | None = None
    records: list[Records] | None = None
    assignment: list[Partition] | None = None
    ends: list[tuple[str, int, int]] | None = None
    """Topic, partition, and the offset after the last record that was committed when a `read_all` began."""
    start: Start | None = None
    """The start of an assigned partition that has no position yet."""
    partitions: int | None = None
    """A number of partitions."""
    config: dict[str, str] | None = None
    unset: list[str] | None = None
    name: str | None = None
    """The name of a producer, or of a set of entries."""
    stamp: str | None = None
    """The stamp that a claim wants to write. Of its answer: the name's current stamp. Of an `enter`: the entry, and of its answer all entries."""
    replaces: str | None = None
    """The stamp that a claim wants to replace."""
    after: int | None = None
    """The id of the process's claim in whose step this one is made, if that succeeds."""
    is_unconfirmed: bool = False
    """Whether the answer said that it may be old."""
    error: str | None = None
    """The name of the error's class."""
    detail: str | None = None
    """The error's message, for human readers."""


class HistoryError(Exception):
    """A history cannot be judged: a line is not an event, or an event contradicts the events before it."""

    def __init__(self, source: str, line: int, reason: str) -> None:
        super().__init__(f"{source}:{line}: {reason}")
        self.source = source
        """The file, or the caller's name for the history."""
        self.line = line
        """Line number, starting at 1."""
        self.reason = reason

    def __reduce__(self) -> tuple[type[HistoryError], tuple[str, int, str]]:
        return type(self), (self.source, self.line, self.reason)


_DECODER = msgspec.json.Decoder(Event)
_ENCODER = msgspec.json.Encoder()


def decode_event(line: bytes) -> Event:
    """Decode one line. Raises `msgspec.DecodeError` (or its child `msgspec.ValidationError`)."""
    return _DECODER.decode(line)


def encode_event(event: Event) -> bytes:
    """Encode an event as one line, including the newline."""
    return _ENCODER.encode(event) + b"\n"


def read_events(path: Path | str) -> Iterator[Event]:
    """Yield the events of a file, one at a time. Empty lines are skipped.

    Raises:
        HistoryError: A line is not an event, or its time is before that of the previous line.
        OSError: The file cannot be read.
    """
    decode = _DECODER.decode
    last_time: int | None = None
    with Path(path).open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                event = decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                if not line.strip():
                    continue
                raise HistoryError(str(path), number, str(error)) from error
            if last_time is not None and event.time < last_time:
                raise HistoryError(str(path), number, f"time goes back, from {last_time} to {event.time}")
            last_time = event.time
            yield event


def read_history(paths: Sequence[Path | str]) -> Iterator[Event]:
    """Yield the events of several files of one run, merged by time. At equal times the earlier file is first. Raises the errors of `read_events`."""
    if len(paths) == 1:
        return read_events(paths[0])
    return heapq.merge(*map(read_events, paths), key=lambda event: event.time)


class HistoryWriter:
    """Writes events to a file. It is a context manager, and its `write` can be the sink of a `Recorder`.

    Args:
        path: The file, which is replaced if it exists.
        is_flushed_each: Whether to pass each line to the operating system immediately, so that it survives a kill of this process.
    """

    def __init__(self, path: Path | str, *, is_flushed_each: bool = False) -> None:
        self.path = Path(path)
        self._file = self.path.open("wb", buffering=0 if is_flushed_each else -1)

    def write(self, event: Event) -> None:
        """Write an event."""
        self._file.write(encode_event(event))

    def close(self) -> None:
        """Write buffered events and close the file. Safe to call again."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def write_history(path: Path | str, events: Iterable[Event]) -> None:
    """Write a whole history."""
    with HistoryWriter(path) as writer:
        for event in events:
            writer.write(event)
