"""`DeadLetterTopic`: the letters that wait in a dead-letter topic. It sends them back to their original partitions, once, or drops them.

A letter waits until it is sent back or purged. This state is stored in ledgers (`redrive_ledger.py`), one for each stretch of each partition.
Letters before the first waiting one are deleted from the topic. Invariant: letters are sent back in the order of their offsets, partition
by partition, each to its original partition.

Must not select letters: callers choose.
"""

from __future__ import annotations

import asyncio
import sys
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from raftmq.client.base import settings
from raftmq.client.connection.leader_calls import delete_records
from raftmq.client.connection.resolver import Resolver, TopicInfo
from raftmq.client.connection.transport import GrpcTransport
from raftmq.client.consumer.consumer import Consumer
from raftmq.client.dead_letters.letter import DeadLetter, read_letter
from raftmq.client.dead_letters.newest import newest_letters
from raftmq.client.dead_letters.redrive_ledger import STRETCH_RECORDS, RedriveLedger, stretches
from raftmq.client.dead_letters.redrive_ledgers import RedriveLedgers, StoredLedger, taken_over
from raftmq.client.producer.sequenced_append import SequencedAppender
from raftmq.client.producer.sequenced_batches import Cells, cells_of, record_room, sequenced_batches
from raftmq.errors import (
    InvalidTopicNameError,
    NoLeaderError,
    Outcome,
    ProducerFencedError,
    RaftMQError,
    UnknownPartitionError,
    UnknownTopicError,
)
from raftmq.types import Record, TopicPartition

POLL_MS: Final = 500
READ_RECORDS_MAX: Final = 1_000
"""Records of one poll, which take a few milliseconds."""

Choose = Callable[[DeadLetter], bool]


@dataclass(slots=True)
class RedriveReport:
    """The results of a redrive or a purge so far."""

    settled: int = 0
    """Letters that were sent back or purged."""
    resumed: int = 0
    """The part of `settled` that an earlier run had begun to send."""
    without_target: dict[TopicPartition, int] = field(default_factory=dict)
    """Letters that remain because their topic or partition no longer exists, or the topic is a queue now."""
    without_value: int = 0
    """Letters that remain because their value was omitted."""
    too_large: dict[str, int] = field(default_factory=dict)
    """Letters that remain because their topic no longer accepts records of their size, by topic."""
    in_doubt: int = 0
    """Letters that an earlier run had begun to send, while other letters of their chunk were deleted since. They wait again, and may have
    been sent."""


@dataclass(frozen=True, slots=True)
class LetterCount:
    """The number of waiting letters in one partition of a dead-letter topic."""

    partition: TopicPartition
    start: int
    end: int
    waiting: int
    """Records from `start` to `end` that were neither sent back nor purged."""


@contextmanager
def _in_doubt_after_a_part(report: RedriveReport) -> Iterator[None]:
    """Give an error the outcome UNKNOWN if letters were settled before it."""
    try:
        yield
    except RaftMQError as error:
        if report.settled:
            error.outcome = Outcome.UNKNOWN
        raise


class DeadLetterTopic:
    """A dead-letter topic, used as an async context manager on one event loop.

    Args:
        topic: The dead-letter topic.
        bootstrap_servers: As for `Consumer`.
        timeout_seconds: Time limit of each step: a lookup, a read without any record, an append.
    """

    def __init__(self, topic: str, *, bootstrap_servers: str | Sequence[str], timeout_seconds: float) -> None:
        self.topic = topic
        self._timeout_seconds = timeout_seconds
        self._resolver = Resolver(bootstrap_servers, GrpcTransport())
        self._appender = SequencedAppender(
            self._resolver,
            delivery_timeout_seconds=min(timeout_seconds, settings.DELIVERY_TIMEOUT_MS_MAX / 1000),
            request_timeout_seconds=min(timeout_seconds, settings.REDRIVE_REQUEST_SECONDS),
        )
        self._consumer = Consumer(
            bootstrap_servers=bootstrap_servers,
            auto_offset_reset="earliest",
            request_timeout_ms=timeout_seconds * 1000,
            max_poll_records=READ_RECORDS_MAX,
        )
        self.partitions: list[TopicPartition] = []

    async def __aenter__(self) -> Self:
        try:
            await self._resolver.start(self._timeout_seconds)
            info = await self._resolver.topic(self.topic, self._timeout_seconds)
            await self._consumer.start()
        except BaseException:
            await self._resolver.close()
            raise
        self._info = info
        self._ledgers = RedriveLedgers(self._appender, info.topic_id, self._group_of)
        self.partitions = [TopicPartition(self.topic, number) for number in range(info.partition_count)]
        return self

    def _group_of(self, partition: int) -> int:
        return self._resolver.topics.get(self.topic, self._info).group_ids[partition]

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._consumer.close()
        await self._resolver.close()

    # ----------------------------------------------------------------------------------------------------------- looking

    async def count(self, among: Collection[TopicPartition] | None = None) -> list[LetterCount]:
        """Return the number of letters that wait now, by partition. `among` restricts the partitions."""
        partitions = self.partitions if among is None else [tp for tp in self.partitions if tp in among]
        starts = await self._consumer.beginning_offsets(partitions)
        ends = await self._consumer.end_offsets(partitions)
        return [await self._count_of(tp, starts[tp], ends[tp]) for tp in partitions]

    async def _count_of(self, partition: TopicPartition, start: int, end: int) -> LetterCount:
        settled = 0
        for first in stretches(start, end):
            settled += (await self._ledgers.open(partition.partition, first)).ledger.settled_count(start, end)
        return LetterCount(partition, start, end, end - start - settled)

    async def is_dead_letter_topic(self) -> bool:
        """Return whether a worker wrote the newest record of a partition. Also true for a topic without records."""
        starts = await self._consumer.beginning_offsets(self.partitions)
        ends = await self._consumer.end_offsets(self.partitions)
        if starts == ends:
            return True
        return bool(await newest_letters(self._consumer, self.partitions, self._timeout_seconds))

    async def waiting(self, counts: Iterable[LetterCount]) -> AsyncGenerator[DeadLetter, None]:
        """Yield the waiting letters of these partitions, up to the counted end."""
        for count in counts:
            for first in stretches(count.start, count.end):
                ledger = (await self._ledgers.open(count.partition.partition, first)).ledger
                async for letter in self._letters(count, ledger):
                    yield letter

    async def missing_targets(self, targets: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Return the partitions that do not exist."""
        missing = []
        for target in targets:
            try:
                await self._target(target)
            except (UnknownTopicError, UnknownPartitionError):
                missing.append(target)
        return missing

    # ------------------------------------------------------------------------------------------------------------ acting

    async def redrive(
        self, counts: Iterable[LetterCount], choose: Choose, report: RedriveReport, *, per_second: float, count_max: int
    ) -> None:
        """Send letters back, each once, even if this is cancelled or killed at any time and called again.

        Args:
            counts: The partitions, with the offsets to process.
            choose: Selects waiting letters to send. Letters that an earlier call had begun to send are always sent, first.
            report: Updated after each chunk.
            per_second: Maximum number of letters per second on average.
            count_max: Maximum number of letters.

        Raises:
            FencedError: another process redrives or purges the same letters.
            RaftMQError: a step failed. Completed chunks are recorded. Call it again to continue. Its `outcome` is UNKNOWN once a letter is sent.
        """
        with _in_doubt_after_a_part(report):
            for count in counts:
                for first in stretches(count.start, count.end):
                    await self._redrive_stretch(count, first, choose, report, per_second, count_max)
                await self._trim(count.partition)

    async def purge(self, counts: Iterable[LetterCount], choose: Choose | None, report: RedriveReport) -> None:
        """Drop the letters that `choose` selects. If it is None, drop all counted records. Raises as `redrive` does.

        `choose` is not asked about letters that an interrupted redrive may have sent: they are not purged.
        """
        with _in_doubt_after_a_part(report):
            for count in counts:
                if choose is None:
                    await delete_records(self._resolver, {count.partition: count.end}, self._timeout_seconds)
                    report.settled += count.waiting
                    continue
                for first in stretches(count.start, count.end):
                    stored = await self._ledgers.open(count.partition.partition, first)
                    under_way = set(stored.ledger.chunk_offsets())
                    chosen = [
                        letter.record.offset
                        async for letter in self._letters(count, stored.ledger)
                        if letter.record.offset not in under_way and choose(letter)
                    ]
                    if chosen:
                        await self._ledgers.replace(stored, stored.ledger.with_settled(chosen))
                    report.settled += len(chosen)
                await self._trim(count.partition)

    async def _redrive_stretch(
        self, count: LetterCount, first: int, choose: Choose, report: RedriveReport, per_second: float, count_max: int
    ) -> None:
        stored = await self._ledgers.open(count.partition.partition, first)
        if stored.ledger.chunk:
            stored = await self._resume(count.partition, stored, report)
        room = count_max - report.settled
        if room <= 0:
            return
        records_max = max(1, min(settings.REDRIVE_CHUNK_RECORDS_MAX, int(per_second)))
        chunk: list[DeadLetter] = []
        chunk_bytes = 0
        limits: dict[TopicPartition, int] = {}
        async with aclosing(self._letters(count, stored.ledger)) as letters:
            async for letter in letters:
                if not choose(letter):
                    continue
                if not letter.is_whole:
                    report.without_value += 1
                    continue
                size = _cells(letter).size
                if letter.source not in limits:
                    limits[letter.source] = await self._batch_bytes_max(letter.source)
                if size > limits[letter.source]:
                    # Within a chunk it would be refused on every attempt and block the chunk's other letters.
                    report.too_large[letter.source.topic] = report.too_large.get(letter.source.topic, 0) + 1
                    continue
                if chunk and (len(chunk) >= records_max or chunk_bytes + size > settings.REDRIVE_CHUNK_BYTES_MAX):
                    stored = await self._send(stored, chunk, report, per_second)
                    chunk, chunk_bytes = [], 0
                chunk.append(letter)
                chunk_bytes += size
                room -= 1
                if room == 0:
                    break
        if chunk:
            await self._send(stored, chunk, report, per_second)

    async def _resume(self, partition: TopicPartition, stored: StoredLedger, report: RedriveReport) -> StoredLedger:
        """Finish the chunk of an earlier run."""
        ledger = stored.ledger
        offsets = ledger.chunk_offsets()
        span = LetterCount(partition, offsets[0], offsets[-1] + 1, 0)  # regardless of the caller's choice
        wanted = set(offsets)
        letters = [letter async for letter in self._letters(span, ledger) if letter.record.offset in wanted]
        if len(letters) < len(offsets):
            # Without the deleted letters, the sequences of the others are unknown.
            report.in_doubt += len(letters)
            return await self._ledgers.replace(stored, ledger.without_chunk())
        sent = await self._append(stored, letters, report)
        report.resumed += len(sent)
        return await self._ledgers.replace(stored, ledger.with_settled(sent).without_chunk())

    async def _send(
        self, stored: StoredLedger, chunk: list[DeadLetter], report: RedriveReport, per_second: float
    ) -> StoredLedger:
        """Send one chunk, and wait as the rate limit requires."""
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        planned = stored.ledger.with_chunk(letter.record.offset for letter in chunk)
        stored = await self._ledgers.replace(stored, planned)
        sent = await self._append(stored, chunk, report)
        stored = await self._ledgers.replace(stored, planned.with_settled(sent).without_chunk())
        await asyncio.sleep(max(0.0, began_at + len(chunk) / per_second - loop.time()))
        return stored

    async def _append(self, stored: StoredLedger, chunk: list[DeadLetter], report: RedriveReport) -> list[int]:
        """Append a chunk's letters under its number. Return the offsets of the letters that are written now."""
        by_target: defaultdict[TopicPartition, list[DeadLetter]] = defaultdict(list)
        for letter in chunk:
            by_target[letter.source].append(letter)
        sent: list[int] = []
        for target, letters in by_target.items():
            try:
                info = await self._target(target)
                cells = [_cells(letter) for letter in letters]
                batches = sequenced_batches(cells, stored.producer_id, stored.ledger.number, info)
                await self._appender.append(info, target.partition, batches)
            except (UnknownTopicError, UnknownPartitionError):
                report.without_target[target] = report.without_target.get(target, 0) + len(letters)
            except ProducerFencedError:
                raise taken_over() from None
            else:
                sent += [letter.record.offset for letter in letters]
                report.settled += len(letters)
        return sent

    async def _trim(self, partition: TopicPartition) -> None:
        """Delete the records before the first waiting one."""
        log_start = (await self._consumer.beginning_offsets([partition]))[partition]
        log_end = (await self._consumer.end_offsets([partition]))[partition]
        start = log_start
        for first in stretches(log_start, log_end):
            end = min(log_end, first + STRETCH_RECORDS)
            ledger = (await self._ledgers.open(partition.partition, first)).ledger
            start = ledger.first_waiting(start, end)
            if start < end:
                break
        if start > log_start:
            await delete_records(self._resolver, {partition: start}, self._timeout_seconds)

    # ----------------------------------------------------------------------------------------------------------- reading

    async def _letters(self, count: LetterCount, ledger: RedriveLedger) -> AsyncGenerator[DeadLetter, None]:
        """Yield the waiting letters in the part of `count` that lies in the ledger's stretch."""
        start, end = max(count.start, ledger.first), min(count.end, ledger.first + STRETCH_RECORDS)
        start = ledger.first_waiting(start, end)
        if start == end:
            return
        async for record in self._records(count.partition, start, end):
            letter = read_letter(record)
            if letter is not None and not ledger.is_settled(record.offset):
                yield letter

    async def _records(self, partition: TopicPartition, start: int, end: int) -> AsyncGenerator[Record, None]:
        """Yield the records from `start` to `end`, exclusive. Raises `NoLeaderError` when none arrives within the time limit of a step."""
        loop = asyncio.get_running_loop()
        self._consumer.assign([partition])
        await self._consumer.seek(partition, start)
        waited_seconds = 0.0
        while await self._consumer.position(partition) < end:
            asked_at = (
                loop.time()
            )  # not the time of the last record, because the consumer of this generator may be slow
            records = (await self._consumer.getmany(timeout_ms=POLL_MS)).get(partition, ())
            waited_seconds = 0.0 if records else waited_seconds + loop.time() - asked_at
            for record in records:
                if record.offset < end:
                    yield record
            if waited_seconds > self._timeout_seconds:
                name = f"{partition.topic}/{partition.partition}"
                raise NoLeaderError(f"{name}: no record arrived within {self._timeout_seconds:g} s")

    async def _target(self, target: TopicPartition) -> TopicInfo:
        """Return a letter's original topic. Raises `UnknownTopicError`, also for a queue of its name, or `UnknownPartitionError`."""
        try:
            info = await self._resolver.topic(target.topic, self._timeout_seconds, partition=target.partition)
        except InvalidTopicNameError as error:  # other programs may write headers, too
            raise UnknownTopicError(f"there is no topic {target.topic!r}") from error
        if info.kind != settings.LOG_KIND:  # it would refuse the whole chunk, each time
            raise UnknownTopicError(f"{target.topic} is not a log topic any more")
        if not 0 <= target.partition < info.partition_count:
            raise UnknownPartitionError(f"{target.topic} has no partition {target.partition}")
        return info

    async def _batch_bytes_max(self, target: TopicPartition) -> int:
        """Return the maximum size of a record that can be sent back. Unlimited if the target does not exist, which sending finds out."""
        try:
            return record_room(await self._target(target))
        except (UnknownTopicError, UnknownPartitionError):
            return sys.maxsize


def _cells(letter: DeadLetter) -> Cells:
    """Return the record as it was before it was given up."""
    record = letter.record
    return cells_of(record.value, record.key, record.timestamp, letter.own_headers)
