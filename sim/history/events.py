"""The events of a history: one JSON line each, read as a stream and written as they happen.

Must not judge anything: whether events fit together is `tables.py`'s part, what they mean the checker's. Invariant: an event that
was written reads back equal. `docs/internals/history-format.md` is the description for others; a test compares it with this file.

Source: the operations of Jepsen's Kafka workload (invoke, ok, fail, info), one line each instead of EDN.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal, NamedTuple, Self

import msgspec

Kind = Literal["invoke", "ok", "fail", "info"]
"""`invoke`: begun. `ok`: done. `fail`: definitely not done. `info`: nobody knows, it may yet happen; an operation without an end is the same."""

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
    "create_topic",
    "alter_topic",
    "add_partitions",
    "delete_topic",
    "describe_topic",
]

Start = Literal["earliest", "latest"]


class Partition(NamedTuple):
    """A topic's name and a partition number; two items of a JSON array."""

    topic: str
    partition: int


class Records(msgspec.Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    """Records of one partition that a poll returned, in the order in which it returned them; four items of a JSON array."""

    topic: str
    partition: int
    offsets: list[int]
    values: list[str]
    """As long as `offsets`."""


class Event(msgspec.Struct, frozen=True, omit_defaults=True, gc=False, forbid_unknown_fields=True):
    """One line. What is not there is null; which operation has which fields is a table of the format's page."""

    process: str
    """Who did it: a client from its start to its end. One that was started again has a new name."""
    time: int
    """Nanoseconds of a clock that all processes of the history share; virtual in simulations. Never decreases in a file."""
    kind: Kind
    operation: Operation
    id: int
    """Pairs an invocation with its end; unique within the process."""
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    value: str | None = None
    """What identifies a record; unique among the sends to a topic."""
    key: str | None = None
    epoch: int | None = None
    """The leader epoch, or the assignment's; for people."""
    producer: str | None = None
    """The idempotent producer that sends. Its sends are neither repeated nor reordered; null: nothing of that kind was promised."""
    group: str | None = None
    records: list[Records] | None = None
    assignment: list[Partition] | None = None
    ends: list[tuple[str, int, int]] | None = None
    """Topic, partition, and the offset behind the last record that was committed when a `read_all` began."""
    start: Start | None = None
    """Where an assigned partition begins that has no position yet."""
    partitions: int | None = None
    """A number of partitions."""
    config: dict[str, str] | None = None
    unset: list[str] | None = None
    error: str | None = None
    """The name of the error's class."""
    detail: str | None = None
    """For people."""


class HistoryError(Exception):
    """A history cannot be judged: a line is not an event, or an event does not fit those before it."""

    def __init__(self, source: str, line: int, reason: str) -> None:
        super().__init__(f"{source}:{line}: {reason}")
        self.source = source
        """The file, or what the caller called the history."""
        self.line = line
        """From 1."""
        self.reason = reason

    def __reduce__(self) -> tuple[type[HistoryError], tuple[str, int, str]]:
        return type(self), (self.source, self.line, self.reason)


_DECODER = msgspec.json.Decoder(Event)
_ENCODER = msgspec.json.Encoder()


def decode_event(line: bytes) -> Event:
    """One line. Raises `msgspec.DecodeError` (or its child `msgspec.ValidationError`)."""
    return _DECODER.decode(line)


def encode_event(event: Event) -> bytes:
    """One line, with its end."""
    return _ENCODER.encode(event) + b"\n"


def read_events(path: Path | str) -> Iterator[Event]:
    """The events of a file, one at a time; empty lines are skipped.

    Raises:
        HistoryError: a line is not an event, or its time is before the line's before it.
        OSError: the file cannot be read.
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
    """The events of several files of one run, merged by time; of equal times the earlier file's first. Raises as `read_events`."""
    if len(paths) == 1:
        return read_events(paths[0])
    return heapq.merge(*map(read_events, paths), key=lambda event: event.time)


class HistoryWriter:
    """Writes events to a file. A context manager; `write` is what a `Recorder` takes as its sink.

    Args:
        path: replaced if it exists.
        is_flushed_each: hand each line to the operating system at once, so that it outlives this process's kill.
    """

    def __init__(self, path: Path | str, *, is_flushed_each: bool = False) -> None:
        self.path = Path(path)
        self._file = self.path.open("wb", buffering=0 if is_flushed_each else -1)

    def write(self, event: Event) -> None:
        """Add a line."""
        self._file.write(encode_event(event))

    def close(self) -> None:
        """Write what is buffered. Calling it again does nothing."""
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
