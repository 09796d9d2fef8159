"""`History`: the events of a run as tables of sends, of reads, of readers' steps, of workers, of operations on topics, of claims and of entries.

It is built in one pass over a stream of perhaps millions of events. It creates one small object per send and none per record read, and
does not keep the events themselves: a place in the history is a number. It must not judge the brokers. An event that contradicts the
events before it (an end without a beginning, a value sent twice) is the recorder's mistake and raises `HistoryError`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, TypeVar

import msgspec

from sim.history.events import Event, HistoryError, Kind, Operation, Partition, Records

TOPIC_OPERATIONS: Final = frozenset({"create_topic", "alter_topic", "add_partitions", "delete_topic", "describe_topic"})
T = TypeVar("T")
NEVER: Final = math.inf
"""The place of an event that has not happened by the end of the history."""

Status = Literal["open", "ok", "fail", "info"]


class Send(msgspec.Struct, gc=False):
    """One record that a client sent. It is small, since there may be a million."""

    topic: str
    value: str
    process: str
    producer: str | None
    invoked_at: int
    status: Status = "open"
    ended_at: int | None = None
    partition: int | None = None
    """The record's partition according to its acknowledgement."""
    offset: int | None = None


class Seen(NamedTuple):
    """A value at an offset, and the first event that says so."""

    value: str
    at: int


class Recovery(NamedTuple):
    """The revival of a partition from a replica that lacked committed records. Offsets are assigned again from there."""

    at: int
    """The event that says so. Records sent before it may be lost."""
    offset: int
    """The first offset that may be lost."""


class Log:
    """The values that events report in one partition, by offset. More than one value at an offset is rare, and an anomaly."""

    __slots__ = ("disputed", "places", "values")

    def __init__(self) -> None:
        self.values: dict[int, str] = {}
        """Offset → the value that was reported first."""
        self.places: dict[int, int] = {}
        """Offset → the event that reported it. It has the same keys as `values`."""
        self.disputed: dict[int, list[Seen]] = {}
        """Offset → other values than the first one."""

    def add(self, offsets: Sequence[int], values: Sequence[str], at: int) -> None:
        """Add the values that an event reports."""
        known = self.values
        for offset, value in zip(offsets, values, strict=True):
            before = known.get(offset)
            if before is None:
                known[offset] = value
                self.places[offset] = at
            elif before != value:
                self._dispute(offset, value, at)

    def add_one(self, offset: int, value: str, at: int) -> None:
        """Add the value of one record."""
        before = self.values.setdefault(offset, value)
        if before is value:
            self.places.setdefault(offset, at)
        elif before != value:
            self._dispute(offset, value, at)

    def _dispute(self, offset: int, value: str, at: int) -> None:
        others = self.disputed.setdefault(offset, [])
        if all(other.value != value for other in others):
            others.append(Seen(value, at))

    def at(self, offset: int) -> list[Seen]:
        """Return the values at an offset."""
        first = self.values.get(offset)
        return [] if first is None else [Seen(first, self.places[offset]), *self.disputed.get(offset, ())]

    def __iter__(self) -> Iterator[tuple[int, str, int]]:
        """Yield offset, value and event. An offset with several values is yielded several times."""
        places = self.places
        for offset, value in self.values.items():
            yield offset, value, places[offset]
        for offset, others in self.disputed.items():
            for other in others:
                yield offset, other.value, other.at


@dataclass(slots=True)
class PartitionTable:
    """The reported facts about one partition."""

    reads: Log = field(default_factory=Log)
    acknowledgements: Log = field(default_factory=Log)
    highest_known: int = -1
    """The highest offset read or acknowledged so far. It is committed permanently."""
    trimmed_before: float = 0
    """Records below this offset may have been deleted by retention or on request. Infinite if the extent is unknown."""
    recoveries: list[Recovery] = field(default_factory=list)
    """In their order."""


@dataclass(frozen=True, slots=True)
class Polled:
    """A poll returned records."""

    at: int
    records: list[Records]


@dataclass(frozen=True, slots=True)
class Assigned:
    """The partitions read from now on. Other partitions lose their positions."""

    at: int
    partitions: frozenset[Partition]
    is_from_start: bool
    """Whether partitions without a position begin at offset 0."""


@dataclass(frozen=True, slots=True)
class Moved:
    """A seek began or ended."""

    at: int
    partition: Partition
    offset: int | None
    """The offset at which reading must continue. None if it is unknown, or not known to exist."""


Step = Polled | Assigned | Moved


@dataclass(slots=True)
class ReadAll:
    """A client read partitions from beginning to end, or tried to."""

    process: str
    partitions: frozenset[Partition]
    invoked_at: int
    ended_at: float = NEVER
    is_complete: bool = False


@dataclass(slots=True)
class TopicOperation:
    """A change or a description of a topic."""

    process: str
    operation: Operation
    topic: str
    invoked_at: int
    partitions: int | None
    config: dict[str, str]
    unset: tuple[str, ...]
    ended_at: float = NEVER
    status: Status = "open"
    error: str | None = None
    is_unconfirmed: bool = False
    """Whether a description said that it may be old."""


@dataclass(slots=True, eq=False)
class Claim:
    """A claim of a producer's name."""

    process: str
    name: str
    epoch: int
    stamp: str
    """The stamp to write. Empty: none, so that the claim only reads, unless it is the first of its epoch."""
    replaces: str | None
    """The stamp to replace. None: the stamp is written only by the first claim of the epoch."""
    invoked_at: int
    first: Claim | None = None
    """The claim in whose step this one is made, if that one succeeds."""
    has_second: bool = False
    """Whether another claim is made in this one's step."""
    ended_at: float = NEVER
    answer: tuple[int, str] | None = None
    """The epoch and the stamp of the answer."""
    error: str | None = None


@dataclass(slots=True)
class Entry:
    """An attempt to enter a set that only grows, or to read it."""

    process: str
    member: str
    """The entry, which no other attempt makes. Empty: the attempt only reads."""
    invoked_at: int
    ended_at: float = NEVER
    answer: frozenset[str] | None = None
    """All entries, as the answer shows them."""


class Begun(NamedTuple):
    """A handler began to work on a record."""

    offset: int
    at: int
    process: str


@dataclass(frozen=True, slots=True)
class Progress:
    """A group's progress, as it was read, or as somebody asked to store it."""

    offset: int
    """The first record that the progress does not claim to be done."""
    at: int
    """The event that requested or read it. Its claim must have been true before that event."""
    process: str


@dataclass(slots=True)
class Tenure:
    """The time for which a worker of a group has a partition, beginning with its opening."""

    process: str
    opened_at: int
    begun: list[tuple[int, int]] = field(default_factory=list)
    """Offset and event of each record that the worker began, in order."""
    done: dict[int, int] = field(default_factory=dict)
    """Offset → the first event that says that the record, begun in this tenure, was processed or moved to a dead-letter topic."""
    stored_at: int = -1
    """The event that requested the last commit that was stored."""
    releasing_at: int = -1
    """The event at which the worker began to release the partition."""
    released_at: float = NEVER
    """The event at which the worker had released the partition properly, with its progress stored."""


@dataclass(slots=True)
class GroupWork:
    """The work of a group's workers in one partition."""

    done: dict[int, int] = field(default_factory=dict)
    """Offset → the first event that says that the record was processed, or moved to a dead-letter topic."""
    begun: dict[str, list[Begun]] = field(default_factory=dict)
    """Key → the beginnings of its records, in order. Records without a key are not kept."""
    progress: list[Progress] = field(default_factory=list)
    has_begun: bool = False
    has_asked: bool = False
    """Whether anybody asked to store progress."""
    tenures: list[Tenure] = field(default_factory=list)
    """In the order of opening. Empty if the history does not record the opening of partitions."""
    held: dict[str, Tenure] = field(default_factory=dict)
    """Process → its tenure, while it believes that it has the partition."""
    stood_at: int = 0
    """The progress that was read before any handler began and anybody asked to store progress. It dates from before the history if the topic does."""


class _Open(msgspec.Struct, gc=False):
    """An operation that has begun."""

    event: Event
    subject: Send | ReadAll | TopicOperation | Progress | Claim | Entry | None = None
    at: int = 0
    tenure: Tenure | None = None
    """The tenure within which the operation began."""


class History:
    """The tables of one history. Build them with `History.of`."""

    def __init__(self) -> None:
        self.event_count = 0
        self.outcomes: dict[tuple[Operation, Status], int] = {}
        """Number of operations by kind and status. Operations that never ended are `open`."""
        self.sends: dict[str, dict[str, Send]] = {}
        """Topic → value → its send, in the order of sending."""
        self.partitions: dict[Partition, PartitionTable] = {}
        self.readers: dict[str, list[Step]] = {}
        """Process → its polls, assignments and seeks, in order."""
        self.read_alls: list[ReadAll] = []
        self.topic_operations: dict[str, list[TopicOperation]] = {}
        self.groups: dict[str, dict[Partition, GroupWork]] = {}
        """Group → partition → the work of its workers."""
        self.claims: dict[str, list[Claim]] = {}
        """Producer name → its claims, in the order in which they began."""
        self.entries: dict[str, list[Entry]] = {}
        """Name of a set → the attempts to enter or read it, in the order in which they began."""
        self._stamps: set[tuple[str, str]] = set()
        """Name and stamp of each claim that writes."""
        self._members: set[tuple[str, str]] = set()
        """Name of a set and entry of each attempt that enters."""
        self._open: dict[tuple[str, int], _Open] = {}
        self._deletions: dict[str, list[TopicOperation]] = {}

    @classmethod
    def of(cls, events: Iterable[Event], source: str = "history") -> History:
        """Read a whole history.

        Raises:
            HistoryError: An event contradicts the events before it. Its `line` is the number of the event. Errors of `events` pass through.
        """
        history = cls()
        at = -1
        try:
            for at, event in enumerate(events):
                if event.kind == "invoke":
                    history._begin(at, event)
                else:
                    history._end(at, event)
        except _Misfit as misfit:
            raise HistoryError(source, at + 1, str(misfit)) from None
        history.event_count = at + 1
        for opened in history._open.values():
            history._count(opened.event.operation, "open")
            if isinstance(opened.subject, Progress):
                history._group_work(opened.event).progress.append(opened.subject)
            history._record_trim(opened.event, opened.event.offset)
        history._open.clear()
        return history

    # --------------------------------------------------------------------------------------------------------- queries

    def deleted_until(self, topic: str) -> float:
        """Return the place up to which the topic may have been deleted. Records sent before it may be deleted, and offsets restart.

        -1 means that the topic was not deleted. Infinite means that a deletion with an unknown outcome may still happen.
        """
        if topic not in self._deletions:
            return -1
        return max(
            (d.ended_at if d.status == "ok" else NEVER for d in self._deletions[topic] if d.status != "fail"),
            default=-1,
        )

    def is_created(self, topic: str) -> bool:
        """Return whether the history may contain the topic's creation. If so, the topic was empty before."""
        operations = self.topic_operations.get(topic, ())
        return any(one.operation == "create_topic" and one.status != "fail" for one in operations)

    def table(self, partition: Partition) -> PartitionTable:
        """Return the partition's table. It is created if needed."""
        found = self.partitions.get(partition)
        if found is None:
            found = self.partitions[partition] = PartitionTable()
        return found

    def trimmed_before(self, partition: Partition) -> float:
        """Return the offset below which records of the partition may have been deleted. Infinite if the extent is unknown."""
        table = self.partitions.get(partition)
        return 0 if table is None else table.trimmed_before

    def recoveries(self, partition: Partition) -> Sequence[Recovery]:
        """Return the recoveries of a partition that may have lost records, in their order."""
        table = self.partitions.get(partition)
        return () if table is None else table.recoveries

    def may_be_lost(self, partition: Partition, offset: int | None, invoked_at: int) -> bool:
        """Return whether a recovery may have lost a record that was sent at `invoked_at`."""
        return any(
            invoked_at < recovery.at and (offset is None or offset >= recovery.offset)
            for recovery in self.recoveries(partition)
        )

    @property
    def operation_count(self) -> int:
        """Number of operations begun."""
        return sum(self.outcomes.values())

    # -------------------------------------------------------------------------------------------------------- building

    def _count(self, operation: Operation, status: Status) -> None:
        key = (operation, status)
        self.outcomes[key] = self.outcomes.get(key, 0) + 1

    def _begin(self, at: int, event: Event) -> None:
        key = (event.process, event.id)
        if key in self._open:
            raise _Misfit(f"operation {event.id} of {event.process} has begun before")
        opened = self._open[key] = _Open(event, at=at)
        if event.group is not None:
            opened.tenure = self._group_work(event).held.get(event.process)
        operation = event.operation
        if operation == "send":
            opened.subject = self._begin_send(at, event)
        elif operation == "seek":
            self._steps(event.process).append(Moved(at, _partition(event), None))
        elif operation == "read_all":
            opened.subject = ReadAll(event.process, frozenset(_given(event.assignment, "assignment")), at)
            self.read_alls.append(opened.subject)
        elif operation in TOPIC_OPERATIONS:
            opened.subject = self._begin_topic_operation(at, event)
        elif operation == "claim":
            opened.subject = self._begin_claim(at, event)
        elif operation == "enter":
            opened.subject = self._begin_entry(at, event)
        elif operation == "process":
            self._begin_process(at, event)
        elif operation == "release" and opened.tenure is not None:
            opened.tenure.releasing_at = at
        elif operation == "commit" and event.group is not None and event.offset is not None:
            opened.subject = Progress(event.offset, at, event.process)
            self._group_work(event).has_asked = True

    def _begin_process(self, at: int, event: Event) -> None:
        work = self._group_work(event)
        work.has_begun = True
        offset = _given(event.offset, "offset")
        tenure = work.held.get(event.process)
        if tenure is not None:
            tenure.begun.append((offset, at))
        if event.key is not None:
            work.begun.setdefault(event.key, []).append(Begun(offset, at, event.process))

    def _group_work(self, event: Event) -> GroupWork:
        partitions = self.groups.setdefault(_given(event.group, "group"), {})
        partition = _partition(event)
        found = partitions.get(partition)
        if found is None:
            found = partitions[partition] = GroupWork()
        return found

    def _end_group_operation(self, at: int, event: Event, opened: _Open) -> None:
        began, tenure = opened.event, opened.tenure
        if event.kind != "ok":
            return
        if event.operation in ("process", "dead_letter"):
            offset = _given(began.offset, "offset")
            self._group_work(began).done.setdefault(offset, at)
            if tenure is not None:
                tenure.done.setdefault(offset, at)
        elif event.operation == "open":
            work = self._group_work(began)
            work.held[event.process] = Tenure(event.process, opened.at)
            work.tenures.append(work.held[event.process])
        elif event.operation == "release" and tenure is not None:
            tenure.released_at = at
            self._group_work(began).held.pop(event.process, None)
        elif event.operation == "committed" and event.offset is not None:
            work = self._group_work(began)
            if not work.has_begun and not work.has_asked:
                work.stood_at = max(work.stood_at, event.offset)
            work.progress.append(Progress(event.offset, at, event.process))

    def _begin_send(self, at: int, event: Event) -> Send:
        topic, value = _given(event.topic, "topic"), _given(event.value, "value")
        sends = self.sends.get(topic)
        if sends is None:
            sends = self.sends[topic] = {}
        if value in sends:
            raise _Misfit(f"value {value!r} was sent to {topic} before")
        send = sends[value] = Send(topic, value, event.process, event.producer, at)
        return send

    def _begin_topic_operation(self, at: int, event: Event) -> TopicOperation:
        topic = _given(event.topic, "topic")
        begun = TopicOperation(
            event.process, event.operation, topic, at, event.partitions, event.config or {}, tuple(event.unset or ())
        )
        self.topic_operations.setdefault(topic, []).append(begun)
        if event.operation == "delete_topic":
            self._deletions.setdefault(topic, []).append(begun)
        return begun

    def _begin_claim(self, at: int, event: Event) -> Claim:
        name, stamp = _given(event.name, "name"), _given(event.stamp, "stamp")
        if stamp and (name, stamp) in self._stamps:
            raise _Misfit(f"stamp {stamp!r} of {name} was claimed before")
        if not stamp and event.replaces is not None:
            raise _Misfit("a claim replaces a stamp by none")
        self._stamps.add((name, stamp))
        begun = Claim(event.process, name, _given(event.epoch, "epoch"), stamp, event.replaces, at)
        if event.after is not None:
            first = self._open.get((event.process, event.after))
            if first is None or not isinstance(first.subject, Claim):
                raise _Misfit(f"claim {event.after} of {event.process} is not under way")
            begun.first, first.subject.has_second = first.subject, True
        self.claims.setdefault(name, []).append(begun)
        return begun

    def _begin_entry(self, at: int, event: Event) -> Entry:
        name, member = _given(event.name, "name"), _given(event.stamp, "stamp")
        if member and (name, member) in self._members:
            raise _Misfit(f"{member!r} entered {name} before")
        self._members.add((name, member))
        begun = Entry(event.process, member, at)
        self.entries.setdefault(name, []).append(begun)
        return begun

    def _end(self, at: int, event: Event) -> None:
        opened = self._open.pop((event.process, event.id), None)
        if opened is None:
            raise _Misfit(f"operation {event.id} of {event.process} ends without a beginning")
        operation = event.operation
        if operation != opened.event.operation:
            raise _Misfit(f"operation {event.id} of {event.process} began as {opened.event.operation}")
        status: Kind = event.kind
        self._count(operation, status)  # type: ignore[arg-type]  # it is no invocation
        subject = opened.subject
        if isinstance(subject, Send):
            self._end_send(at, event, subject)
        elif operation == "poll":
            if status == "ok":
                self._end_poll(at, event)
        elif operation == "seek":
            self._end_seek(at, event, opened)
        elif operation == "assign":
            if status != "fail":
                partitions = frozenset(_given(event.assignment or opened.event.assignment, "assignment"))
                is_from_start = (event.start or opened.event.start) == "earliest"
                self._steps(event.process).append(Assigned(at, partitions, is_from_start and status == "ok"))
        elif operation == "trim":
            if status != "fail":
                self._record_trim(opened.event, event.offset if event.offset is not None else opened.event.offset)
        elif operation == "recover":
            if status != "fail":
                self._record_recovery(at, opened.event)
        elif isinstance(subject, ReadAll):
            subject.ended_at, subject.is_complete = at, status == "ok"
        elif isinstance(subject, TopicOperation):
            self._end_topic_operation(at, event, subject)
        elif isinstance(subject, Claim):
            subject.ended_at, subject.error = at, event.error
            if status == "ok":
                subject.answer = (_given(event.epoch, "epoch"), _given(event.stamp, "stamp"))
        elif isinstance(subject, Entry):
            subject.ended_at = at
            if status == "ok":
                subject.answer = frozenset(filter(None, _given(event.stamp, "stamp").split(",")))
        elif isinstance(subject, Progress):
            if status != "fail":  # a commit of unknown outcome was requested all the same
                self._group_work(opened.event).progress.append(subject)
            if status == "ok" and opened.tenure is not None:
                opened.tenure.stored_at = opened.at
        elif opened.event.group is not None:
            self._end_group_operation(at, event, opened)

    def _end_send(self, at: int, event: Event, send: Send) -> None:
        send.status = event.kind  # type: ignore[assignment]  # it is no invocation
        send.ended_at = at
        if event.kind != "ok" or event.partition is None:
            return
        send.partition = event.partition
        table = self.table(Partition(send.topic, event.partition))
        if event.offset is not None:
            send.offset = event.offset
            table.acknowledgements.add_one(event.offset, send.value, at)
            if event.offset > table.highest_known:
                table.highest_known = event.offset

    def _end_poll(self, at: int, event: Event) -> None:
        if not event.records:
            return
        for batch in event.records:
            if len(batch.offsets) != len(batch.values):
                raise _Misfit(f"{len(batch.offsets)} offsets and {len(batch.values)} values")
            if not batch.offsets:
                continue
            table = self.table(Partition(batch.topic, batch.partition))
            table.reads.add(batch.offsets, batch.values, at)
            table.highest_known = max(table.highest_known, max(batch.offsets))
        self._steps(event.process).append(Polled(at, event.records))

    def _end_seek(self, at: int, event: Event, opened: _Open) -> None:
        partition = _partition(opened.event)
        offset = event.offset if event.kind == "ok" else None
        # Only at an offset that is known to be committed must reading continue exactly there.
        if offset is not None and offset > max(0, self.table(partition).highest_known):
            offset = None
        if partition.topic in self._deletions:
            offset = None
        self._steps(event.process).append(Moved(at, partition, offset))

    def _record_trim(self, event: Event, offset: int | None) -> None:
        if event.operation == "trim":
            table = self.table(_partition(event))
            table.trimmed_before = max(table.trimmed_before, NEVER if offset is None else offset)

    def _record_recovery(self, at: int, event: Event) -> None:
        table = self.table(_partition(event))
        offset = _given(event.offset, "offset")
        table.recoveries.append(Recovery(at, offset))
        table.highest_known = min(table.highest_known, offset - 1)

    def _end_topic_operation(self, at: int, event: Event, subject: TopicOperation) -> None:
        subject.ended_at = at
        subject.status = event.kind  # type: ignore[assignment]  # it is no invocation
        subject.error = event.error
        if subject.operation == "describe_topic" and event.kind == "ok":
            subject.partitions = _given(event.partitions, "partitions")
            subject.config = event.config or {}
            subject.is_unconfirmed = event.is_unconfirmed

    def _steps(self, process: str) -> list[Step]:
        found = self.readers.get(process)
        if found is None:
            found = self.readers[process] = []
        return found


class _Misfit(Exception):  # noqa: N818 - it becomes a HistoryError
    """An event that contradicts the events before it."""


def _given(value: T | None, name: str) -> T:
    if value is None:
        raise _Misfit(f"{name} is missing")
    return value


def _partition(event: Event) -> Partition:
    return Partition(_given(event.topic, "topic"), _given(event.partition, "partition"))
