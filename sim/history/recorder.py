"""`Recorder`: writes down operations of clients, from their beginning to what the client was told.

Must not judge. Whether a failure is definite is taken from the SDK's typed errors and from nothing else: a timeout that is called a
failure would make every checker downstream report an aborted read. Knows no clock of its own: the simulator hands in virtual time.

Source: Jepsen, "definite and indefinite": `fail` is for what certainly did not happen, `info` for everything else that is no success.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypedDict, Unpack

from raftmq.errors import Outcome, RaftMQError

from sim.history.events import Event, Kind, Operation, Partition, Records, Start

ValueId = Callable[[bytes | None], str]
"""What identifies a record, found in its value."""


class Fields(TypedDict, total=False):
    """The fields of an event that an operation fills in."""

    topic: str
    partition: int | None
    offset: int | None
    value: str
    key: str | None
    epoch: int
    producer: str | None
    group: str
    records: list[Records]
    assignment: list[Partition]
    ends: list[tuple[str, int, int]]
    start: Start | None
    partitions: int
    config: dict[str, str]
    unset: list[str]
    error: str
    detail: str


def first_word(value: bytes | None) -> str:
    """The value up to its first space: room is left for padding. Bytes that are no text are shown escaped."""
    return (value or b"").split(b" ", 1)[0].decode(errors="backslashreplace")


def kind_of(error: BaseException) -> Kind:
    """`fail` for an error that says that nothing was applied, `info` for any other, cancelling included."""
    is_definite = isinstance(error, RaftMQError) and error.outcome is Outcome.NOT_APPLIED
    return "fail" if is_definite else "info"


class Recorder:
    """Numbers operations and hands their events to `sink`, in the order in which they happen.

    Args:
        sink: takes each event: ``list.append``, or a `HistoryWriter`'s ``write``.
        clock: nanoseconds; must never go back. ``time.monotonic_ns`` is shared by the processes of a machine; a simulator gives its own.
        value_id: finds in a record's value what identifies it.
    """

    def __init__(
        self, sink: Callable[[Event], object], clock: Callable[[], int], *, value_id: ValueId = first_word
    ) -> None:
        self._sink = sink
        self._clock = clock
        self.value_id = value_id
        self._operation_count = 0

    def invoke(self, process: str, operation: Operation, **fields: Unpack[Fields]) -> OpenOperation:
        """Write that an operation begins."""
        self._operation_count += 1
        opened = OpenOperation(self, process, operation, self._operation_count)
        self.write(opened, "invoke", fields)
        return opened

    def record_trim(self, topic: str, partition: int, offset: int) -> None:
        """Write that records below `offset` may be gone from now on, by retention: only the test knows that it was to happen."""
        self.invoke("retention", "trim", topic=topic, partition=partition, offset=offset).info()

    def write(self, opened: OpenOperation, kind: Kind, fields: Fields) -> None:
        """Write an event of an operation; `OpenOperation` calls it."""
        self._sink(
            Event(
                process=opened.process,
                time=self._clock(),
                kind=kind,
                operation=opened.operation,
                id=opened.id,
                **fields,
            )
        )


class OpenOperation:
    """An operation under way: ended once, by `ok`, `fail`, `info` or `end`. One that is never ended is unknown."""

    __slots__ = ("_recorder", "id", "is_open", "operation", "process")

    def __init__(self, recorder: Recorder, process: str, operation: Operation, number: int) -> None:
        self._recorder = recorder
        self.process = process
        self.operation: Operation = operation
        self.id = number
        self.is_open = True

    def ok(self, **fields: Unpack[Fields]) -> None:
        """It was done."""
        self._end("ok", fields)

    def fail(self, **fields: Unpack[Fields]) -> None:
        """It was definitely not done."""
        self._end("fail", fields)

    def info(self, **fields: Unpack[Fields]) -> None:
        """Nobody knows."""
        self._end("info", fields)

    def end(self, error: BaseException, /, **fields: Unpack[Fields]) -> None:
        """It ended with an error, whose own word decides between `fail` and `info`."""
        fields["error"] = type(error).__name__
        fields["detail"] = str(error)
        self._end(kind_of(error), fields)

    def end_read(self, error: BaseException, /, **fields: Unpack[Fields]) -> None:
        """A read ended with an error: whatever it was, nothing was handed out."""
        fields["error"] = type(error).__name__
        fields["detail"] = str(error)
        self._end("fail", fields)

    def _end(self, kind: Kind, fields: Fields) -> None:
        if self.is_open:  # a client that was abandoned has ended what was open; a late answer changes nothing
            self.is_open = False
            self._recorder.write(self, kind, fields)


class Followers:
    """Tasks that wait for outcomes and write them down."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, task: asyncio.Task[None]) -> None:
        """Keep it until it is done."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def settled(self) -> None:
        """Return when none is left."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def abandon(self) -> None:
        """Stop waiting; what they waited for stays open in the history."""
        for task in self._tasks:
            task.cancel()
        await self.settled()
