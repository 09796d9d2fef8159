"""`Recorder`: records operations of clients, from their beginning to the outcome reported to the client.

It must not judge. Only the SDK's typed errors decide whether a failure is definite: if a timeout were called a failure, every checker
would report an aborted read. It has no clock of its own, since the simulator passes virtual time.

Source: Jepsen, "definite and indefinite": `fail` is for operations that certainly did not happen, `info` for all other unsuccessful ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypedDict, Unpack

from raftmq.errors import Outcome, RaftMQError

from sim.history.events import Event, Kind, Operation, Partition, Records, Start

ValueId = Callable[[bytes | None], str]
"""Extracts the identity of a record from its value."""


class Fields(TypedDict, total=False):
    """The fields of an event that depend on the operation."""

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
    name: str
    stamp: str
    replaces: str | None
    after: int
    is_unconfirmed: bool
    error: str
    detail: str


def first_word(value: bytes | None) -> str:
    """Return the value up to its first space, after which padding may follow. Bytes that are not text are escaped."""
    return (value or b"").split(b" ", 1)[0].decode(errors="backslashreplace")


def kind_of(error: BaseException) -> Kind:
    """Return `fail` for an error whose outcome is "not applied", and `info` for any other, including cancellation."""
    is_definite = isinstance(error, RaftMQError) and error.outcome is Outcome.NOT_APPLIED
    return "fail" if is_definite else "info"


class Recorder:
    """Numbers operations and passes their events to `sink`, in the order in which they happen.

    Args:
        sink: Called with each event, for example ``list.append`` or a `HistoryWriter`'s ``write``.
        clock: Returns nanoseconds that never decrease. ``time.monotonic_ns`` is shared by all processes of a machine. A simulator
            passes its virtual clock.
        value_id: Extracts the identity of a record from its value.
    """

    def __init__(
        self, sink: Callable[[Event], object], clock: Callable[[], int], *, value_id: ValueId = first_word
    ) -> None:
        self._sink = sink
        self._clock = clock
        self.value_id = value_id
        self._operation_count = 0

    def invoke(self, process: str, operation: Operation, **fields: Unpack[Fields]) -> OpenOperation:
        """Record the beginning of an operation."""
        self._operation_count += 1
        opened = OpenOperation(self, process, operation, self._operation_count)
        self.write(opened, "invoke", fields)
        return opened

    def record_trim(self, topic: str, partition: int, offset: int) -> None:
        """Record that retention may delete records below `offset` from now on. Only the test knows this."""
        self.invoke("retention", "trim", topic=topic, partition=partition, offset=offset).info()

    def record_recovery(self, topic: str, partition: int, offset: int) -> None:
        """Record that a partition was revived from a replica that lacks the committed records from `offset` on. Only the test knows this."""
        self.invoke("operator", "recover", topic=topic, partition=partition, offset=offset).ok()

    def write(self, opened: OpenOperation, kind: Kind, fields: Fields) -> None:
        """Record an event of an operation. Called by `OpenOperation`."""
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
    """An operation under way. It is ended once, by `ok`, `fail`, `info` or `end`. Without an end its outcome is unknown."""

    __slots__ = ("_recorder", "id", "is_open", "operation", "process")

    def __init__(self, recorder: Recorder, process: str, operation: Operation, number: int) -> None:
        self._recorder = recorder
        self.process = process
        self.operation: Operation = operation
        self.id = number
        self.is_open = True

    def ok(self, **fields: Unpack[Fields]) -> None:
        """Record that the operation was done."""
        self._end("ok", fields)

    def fail(self, **fields: Unpack[Fields]) -> None:
        """Record that the operation was definitely not done."""
        self._end("fail", fields)

    def info(self, **fields: Unpack[Fields]) -> None:
        """Record that the outcome is unknown."""
        self._end("info", fields)

    def end(self, error: BaseException, /, **fields: Unpack[Fields]) -> None:
        """Record that the operation ended with an error, whose outcome decides between `fail` and `info`."""
        fields["error"] = type(error).__name__
        fields["detail"] = str(error)
        self._end(kind_of(error), fields)

    def end_read(self, error: BaseException, /, **fields: Unpack[Fields]) -> None:
        """Record that a read ended with an error. Any error of a read is a `fail`, since no record was returned."""
        fields["error"] = type(error).__name__
        fields["detail"] = str(error)
        self._end("fail", fields)

    def _end(self, kind: Kind, fields: Fields) -> None:
        if self.is_open:  # an abandoned client has ended its open operations, and a late answer changes nothing
            self.is_open = False
            self._recorder.write(self, kind, fields)


class Followers:
    """Tasks that wait for outcomes and record them."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, task: asyncio.Task[None]) -> None:
        """Keep a task until it is done."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def settled(self) -> None:
        """Wait until all tasks are done."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def abandon(self) -> None:
        """Cancel all tasks. Their operations stay open in the history."""
        for task in self._tasks:
            task.cancel()
        await self.settled()
