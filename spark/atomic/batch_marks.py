"""Show batches of several writers to readers as a whole, by rules and one value per topic that has the ends of visible records.

Partitions have logs of their own, so no record in them can make a batch visible everywhere simultaneously. A topic therefore has one small
value in the cluster, its **marks**, which is changed by compare and swap. It has the batches that are open, and an end for each partition.
Readers that want whole batches read up to these ends. Together the ends are a **cut**: of each batch, all records are before it or none.

1. A task opens its batch in the marks before it writes its first row. Opening the first batch stores the present ends of the partitions.
2. While a batch is open, the ends do not move.
3. The driver closes the batch when all of its tasks are done. Closing the last open batch stores the present ends.
4. While no batch is open, a reader may store the present ends, so records of other producers become visible without a batch.
5. Batches that overlap in time are a **group**. A writer has one batch in a group. Its next one waits until all batches of the group are closed,
   but not for a batch that is open for longer than the writer's patience: its driver is perhaps dead.
6. The marks remember the last closed batch of each writer. A late task of that batch does not open it again.

Why it holds: ends are found after the marks were read and before they are replaced, and they are stored only if nobody changed the marks in
between. A batch that was closed before has acknowledged all of its rows before the ends were found, and a batch that is opened later has written
none. So the stored ends are a cut, by (1), (3) and (4). By (2) they remain one.

Why a vector of ends per open batch would not do: A and B overlap, and B is closed first. B's rows are before A's first row in one partition, and
after it in another. No ends show all of B and nothing of A. So B stays hidden until A is closed. Rule 5 lets that moment come: without it, two
writers whose batches always overlap would hide their rows forever.

Why patience ends: a writer need not stop because another one died, and its tasks may hold the cores that the other batch needs.

Pure: generators that yield requests to the cluster and are sent the answers. `tests/spark/atomic/test_batch_marks.py` runs them in arbitrary order.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from struct import Struct
from typing import Final, NamedTuple

from raftmq.spark.errors import BatchStillOpenError, InvalidOptionError, SupersededError

NAME_PREFIX: Final = "spark-batches/"
PARTITIONS_MAX: Final = 256
"""Partitions of a topic with atomic batches. Their ends take half of a stamp, which has 4,096 bytes."""
GROUP_MAX: Final = 8
"""Batches in a group. A further one replaces a closed one, or waits."""
CLOSED_MAX: Final = 48
"""Writers whose last closed batch is remembered. A late task of another writer's batch could open it again, and an operator abandons it."""
SHOWN_BYTES_MAX: Final = 96
"""Bytes of a writer's name that the marks keep, for operators."""
CUT_TRIES_MAX: Final = 4
"""How often a reader tries to move the ends while others change the marks. It then uses the ends that the others stored."""
KEY_BYTES: Final = 8
_VERSION: Final = 1
_HEAD: Final = Struct("<BQHBB")
_MEMBER: Final = Struct("<8sQQ?B")
_CLOSED: Final = Struct("<8sQ")
_END_BYTES: Final = 8


class Change(NamedTuple):
    """Ask the cluster to replace the marks if they equal `replaces`. The answer has the marks that the topic then has."""

    stamp: bytes = b""
    replaces: bytes | None = None


class FindEnds(NamedTuple):
    """Ask for the ends of all partitions of the topic, which has at least `partition_count`."""

    partition_count: int


class Wait(NamedTuple):
    """Ask to wait for a moment."""

    batch: OpenBatch
    """The batch that must be closed."""


Ask = Change | FindEnds | Wait


class Answer(NamedTuple):
    """Answer a request."""

    stamp: bytes = b""
    time_ms: int = 0
    """Time on a broker's clock."""
    ends: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Writer:
    """Identify the writer of batches with rising numbers."""

    key: bytes
    shown: str
    """The name for operators, maybe cut."""

    @staticmethod
    def of(name: str, shown: str) -> Writer:
        """Return the writer of a name, which operators know as `shown`."""
        cut = shown.encode()[:SHOWN_BYTES_MAX].decode(errors="ignore")
        return Writer(blake2b(name.encode(), digest_size=KEY_BYTES).digest(), cut)


@dataclass(frozen=True, slots=True)
class OpenBatch:
    """Represent a batch of the present group."""

    writer: Writer
    epoch: int
    """The number of the batch."""
    since_ms: int
    """Time on a broker's clock when the batch was opened."""
    is_open: bool = True


@dataclass(frozen=True, slots=True)
class TopicMarks:
    """Hold the marks of one topic."""

    revision: int = 0
    """Rises with each change, so that marks that were changed and changed back differ."""
    ends: tuple[int, ...] = ()
    """The visible end of each partition. Partitions after these have no visible records."""
    group: tuple[OpenBatch, ...] = ()
    """The batches that overlap, in the order in which they were opened. Invariant: empty, or one of them is open."""
    closed: Mapping[bytes, int] = field(default_factory=dict)
    """The last closed batch of each writer, longest ago first."""

    @property
    def open(self) -> tuple[OpenBatch, ...]:
        """Return the open batches, the oldest first."""
        return tuple(batch for batch in self.group if batch.is_open)

    def is_open(self, writer: Writer, epoch: int) -> bool:
        """Return whether the batch is open."""
        return any(batch.writer.key == writer.key and batch.epoch == epoch for batch in self.open)

    def is_closed(self, writer: Writer, epoch: int) -> bool:
        """Return whether the batch, or a later one of its writer, was closed before."""
        return self.closed.get(writer.key, -1) >= epoch

    def obstacle(self, writer: Writer, now_ms: int, patience_ms: int) -> OpenBatch | None:
        """Return an open batch that must be closed before the writer's next one is opened.

        Raises `BatchStillOpenError` when there is no room for another batch, and one is open for longer than `patience_ms`.
        """
        own = next((batch for batch in self.group if batch.writer.key == writer.key), None)
        if not self.open or (own is not None and own.is_open) or (own is None and len(self.group) < GROUP_MAX):
            return None
        oldest = self.open[0]
        # After the brokers' clocks were set back, the batch may have been opened in the future.
        if abs(now_ms - oldest.since_ms) <= patience_ms:
            return oldest
        if len(self.open) >= GROUP_MAX:
            raise BatchStillOpenError(
                f"{len(self.open)} batches of other writers are open, the oldest one is batch {oldest.epoch} of {oldest.writer.shown!r}"
            )
        return None

    def slow(self, writer: Writer, patience_ms: int) -> list[OpenBatch]:
        """Return the open batches of others that were older than `patience_ms` when the writer's batch was opened."""
        since_ms = next((batch.since_ms for batch in self.open if batch.writer.key == writer.key), 0)
        return [batch for batch in self.open if since_ms - batch.since_ms > patience_ms]

    def opened(self, batch: OpenBatch, ends: tuple[int, ...]) -> TopicMarks:
        """Return the marks with one more open batch. It takes the place of its writer's earlier batch, which is no longer open.

        `ends` are used for partitions that the marks do not have.
        """
        others = [other for other in self.group if other.writer.key != batch.writer.key]
        if len(others) >= GROUP_MAX:
            others.remove(next(other for other in others if not other.is_open))
        return replace(self, revision=self.revision + 1, group=(*others, batch), ends=self._covering(ends))

    def covering(self, ends: tuple[int, ...]) -> TopicMarks:
        """Return the marks with ends of more partitions."""
        return replace(self, revision=self.revision + 1, ends=self._covering(ends))

    def _covering(self, ends: tuple[int, ...]) -> tuple[int, ...]:
        return (*self.ends, *ends[len(self.ends) :])

    def without(self, writer: Writer, ends: tuple[int, ...], *, is_closed: bool) -> TopicMarks:
        """Return the marks in which the writer's batch is closed or, if not `is_closed`, forgotten.

        `ends` are the present ends. They are used if no other batch is open.
        """
        left: list[OpenBatch] = []
        closed = dict(self.closed)
        for batch in self.group:
            if batch.writer.key != writer.key:
                left.append(batch)
            elif is_closed:
                left.append(replace(batch, is_open=False))
                closed.pop(writer.key, None)
                closed[writer.key] = batch.epoch
        kept = dict(list(closed.items())[-CLOSED_MAX:])
        if any(batch.is_open for batch in left):
            return replace(self, revision=self.revision + 1, group=tuple(left), closed=kept)
        return replace(self, revision=self.revision + 1, group=(), closed=kept, ends=ends)

    def moved(self, ends: tuple[int, ...]) -> TopicMarks:
        """Return the marks with other ends. No batch may be open."""
        return replace(self, revision=self.revision + 1, ends=ends)

    def end(self, partition: int) -> int:
        """Return the visible end of a partition."""
        return self.ends[partition] if partition < len(self.ends) else 0

    def encode(self) -> bytes:
        """Return the marks as a stamp."""
        parts = [_HEAD.pack(_VERSION, self.revision, len(self.ends), len(self.group), len(self.closed))]
        parts += [end.to_bytes(_END_BYTES, "little") for end in self.ends]
        for batch in self.group:
            shown = batch.writer.shown.encode()
            parts.append(_MEMBER.pack(batch.writer.key, batch.epoch, batch.since_ms, batch.is_open, len(shown)) + shown)
        parts += [_CLOSED.pack(key, epoch) for key, epoch in self.closed.items()]
        return b"".join(parts)

    @staticmethod
    def decode(stamp: bytes) -> TopicMarks:
        """Return the marks in a stamp. An empty stamp has no marks. Raises `InvalidOptionError` for a stamp of another version."""
        if not stamp:
            return TopicMarks()
        if stamp[0] != _VERSION:
            raise InvalidOptionError(
                f"the topic's batches are marked by a later version of RaftMQ ({stamp[0]}): use that version here, too"
            )
        _, revision, end_count, group_count, closed_count = _HEAD.unpack_from(stamp)
        at = _HEAD.size
        ends = tuple(
            int.from_bytes(stamp[start : start + _END_BYTES], "little")
            for start in range(at, at + end_count * _END_BYTES, _END_BYTES)
        )
        at += end_count * _END_BYTES
        group = []
        for _ in range(group_count):
            key, epoch, since_ms, is_open, length = _MEMBER.unpack_from(stamp, at)
            at += _MEMBER.size
            group.append(OpenBatch(Writer(key, stamp[at : at + length].decode()), epoch, since_ms, is_open))
            at += length
        return TopicMarks(
            revision, ends, tuple(group), dict(_CLOSED.iter_unpack(stamp[at : at + closed_count * _CLOSED.size]))
        )


def open_batch(
    writer: Writer, epoch: int, partition_count: int, patience_ms: int
) -> Generator[Ask, Answer, TopicMarks]:
    """Open a batch, before its first row is written to one of the first `partition_count` partitions.

    Returns immediately if the batch is open, or if it or a later one of its writer was closed. A closed batch is not opened again, so the
    caller must look at the returned marks and must not write then. Waits for batches of other writers that are open for `patience_ms` at most.
    An earlier open batch of the writer is replaced.

    Raises:
        InvalidOptionError: the topic has too many partitions.
        BatchStillOpenError: as `TopicMarks.obstacle`.
        SupersededError: a later batch of the writer is open.
    """
    if partition_count > PARTITIONS_MAX:
        raise InvalidOptionError(
            f"atomicBatches: the topic has {partition_count} partitions, and batches are marked for {PARTITIONS_MAX} at most"
        )
    answer = yield Change()
    while True:
        marks = TopicMarks.decode(answer.stamp)
        is_covered = len(marks.ends) >= partition_count
        is_open = marks.is_open(writer, epoch)
        if marks.is_closed(writer, epoch) or (is_open and is_covered):
            return marks
        # A late task of batch 5 that waited while its query began batch 6 must not replace 6: nobody would close 5.
        later = next((own.epoch for own in marks.open if own.writer.key == writer.key and own.epoch > epoch), None)
        if later is not None:
            raise SupersededError(f"batch {epoch} of {writer.shown!r} was given up, and its batch {later} has begun")
        if not is_open and (obstacle := marks.obstacle(writer, answer.time_ms, patience_ms)) is not None:
            yield Wait(obstacle)
            answer = yield Change()
            continue
        if marks.open:  # a partition that is new since the group began has no visible records before the group's end
            ends, before = (0,) * max(partition_count, len(marks.ends)), marks
        else:
            ends = (yield FindEnds(max(partition_count, len(marks.ends)))).ends
            before = marks.moved(ends)
        batch = OpenBatch(writer, epoch, answer.time_ms)
        wanted = before.covering(ends) if is_open else before.opened(batch, ends)
        answer = yield Change(wanted.encode(), answer.stamp)


def close_batch(writer: Writer, epoch: int) -> Generator[Ask, Answer, TopicMarks]:
    """Close a batch all of whose rows are written. Return the marks, in which `TopicMarks.is_closed` holds for the batch.

    Does nothing if the batch is not open. The returned marks tell whether it was closed before. If it was not, it was abandoned or replaced, or
    the cluster has forgotten the marks.
    """
    answer = yield Change()
    while True:
        marks = TopicMarks.decode(answer.stamp)
        if not marks.is_open(writer, epoch):
            return marks
        ends = (yield FindEnds(len(marks.ends))).ends if len(marks.open) == 1 else ()
        answer = yield Change(marks.without(writer, ends, is_closed=True).encode(), answer.stamp)


def abandon_batch(name: str) -> Generator[Ask, Answer, OpenBatch | None]:
    """Forget the open batch of a writer, so that the rows that it has written become visible. Return the batch, or None.

    `name` is the writer's name as operators know it, or its key in hexadecimal digits. A query that comes back opens the batch again, and writes
    its other rows.

    Raises:
        InvalidOptionError: several writers with this name have an open batch.
    """
    answer = yield Change()
    abandoned = None
    while True:
        marks = TopicMarks.decode(answer.stamp)
        found = [batch for batch in marks.open if name in (batch.writer.shown, batch.writer.key.hex())]
        if abandoned is not None:
            found = [batch for batch in found if batch == abandoned]
        if not found:
            return abandoned
        if len(found) > 1:
            keys = ", ".join(batch.writer.key.hex() for batch in found)
            raise InvalidOptionError(f"{len(found)} writers are called {name!r}: give the key of one of them ({keys})")
        (batch,) = found
        abandoned = batch
        ends = (yield FindEnds(len(marks.ends))).ends if len(marks.open) == 1 else ()
        answer = yield Change(marks.without(batch.writer, ends, is_closed=False).encode(), answer.stamp)


def read_marks() -> Generator[Ask, Answer, TopicMarks]:
    """Return the marks."""
    return TopicMarks.decode((yield Change()).stamp)


def find_cut(known: TopicMarks | None) -> Generator[Ask, Answer, TopicMarks]:
    """Return marks whose ends are the latest cut. `known` are marks that were read before.

    If `known` has no open batch, and the partitions have no new records, nothing is written to the cluster.

    Raises:
        InvalidOptionError: the topic has too many partitions.
    """
    if known is None or known.group:
        known = yield from read_marks()
    for _ in range(CUT_TRIES_MAX):
        if known.group:
            return known
        ends = (yield FindEnds(len(known.ends))).ends
        if len(ends) > PARTITIONS_MAX:
            raise InvalidOptionError(
                f"isolation=batch: the topic has {len(ends)} partitions, and batches are marked for {PARTITIONS_MAX} at most"
            )
        if ends == known.ends:
            return known
        wanted = known.moved(ends)
        replaces = known.encode() if known.revision else b""
        found = TopicMarks.decode((yield Change(wanted.encode(), replaces)).stamp)
        if found == wanted:
            return found
        known = found
    return known
