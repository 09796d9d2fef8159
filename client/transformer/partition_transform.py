"""`PartitionTransform`: transforms the records of one input partition while the member owns it.

It processes one chunk after another: handle, route, append to all output partitions concurrently, commit the offset with the state, and
continue without waiting for that commit. Must not decide the rules of exactly once: they are in `output_state.py`, and rule numbers here
refer to it. Invariants: between two chunks the state counts the acknowledged outputs of all records below the offset. A state that changes
the destination of outputs is committed before one goes there.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from typing import TypeVar

from raftmq.client.base import settings
from raftmq.client.base.background import Backoff
from raftmq.client.base.error_details import name_of
from raftmq.client.base.logs import LogThrottle, log
from raftmq.client.connection.resolver import TopicInfo
from raftmq.client.producer.identity import ProducerName
from raftmq.client.producer.partitioner import Partitioner
from raftmq.client.producer.sequenced_append import SequencedAppender
from raftmq.client.producer.sequenced_batches import requests_of, sequenced_batches
from raftmq.client.transformer.handler_calls import HandlerCalls, MadeOutputs
from raftmq.client.transformer.output_state import OutputState, first_epoch
from raftmq.client.transformer.routing import Stretch, route
from raftmq.client.transformer.transform_consumer import TransformConsumer
from raftmq.errors import (
    ClosedClientError,
    FencedError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceError,
    PoisonRecordError,
    ProducerFencedError,
    RaftMQError,
    TransformStateError,
    UnknownOutcomeError,
    UnknownPartitionError,
    UnknownTopicError,
)
from raftmq.types import Record, TopicPartition

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class TransformParts:
    """The parts that all partitions of a transformer share."""

    group_id: str
    consumer: TransformConsumer
    appender: SequencedAppender
    calls: HandlerCalls
    partitioner: Partitioner
    codec: int
    timeout_seconds: float
    """Time limit of a lookup, and of one attempt to append."""


class PartitionTransform:
    """Runs once, in a task of its own, by `run`. Created when the partition is assigned."""

    def __init__(self, parts: TransformParts, partition: TopicPartition) -> None:
        self.partition = partition
        self._parts = parts
        self._consumer = parts.consumer
        self._resolver = parts.consumer.resolver
        self._opened = parts.consumer.opened(partition)
        self._name = ProducerName(
            self._resolver, producer_name_of(parts.group_id, partition), settings.TRANSFORM_CLAIM_SECONDS
        )
        self._keeper: asyncio.Task[None] | None = None
        self._first_offset = self._opened.offset
        """The offset at which the partition begins, or None until it is known."""
        self._waiting: deque[Record] = deque()
        """Records that were read and belong to no chunk yet."""
        self._news = asyncio.Event()
        """Set by new records, a new bound, a request to end, or an error."""
        self._is_ending = False
        self._failure: BaseException | None = None
        """The error of a background task or commit."""
        self._state: OutputState | None = None
        """The state as of `_offset`, or None until the partition has begun."""
        self._offset = 0
        """The outputs of all records below are written."""
        self._inherited_until = 0
        """Earlier owners may have written outputs of records below (rule 3)."""
        self._promised_until = 0
        """The highest bound that was found or submitted. A lower one is submitted only at the end, because records below it may be handled."""
        self._sent_until = 0
        """This owner may have written outputs of records below."""
        self._committed_until = 0
        """Records below may be handled, because the committed state includes them."""
        self._has_waiting_count = False
        """An output topic has a new number of partitions that may not be used yet."""
        self._recovered_group = 0
        """The Raft group that the input got in a recovery which the state does not know yet. 0: there is none."""
        self._kept_end = 0
        """Records from here on may have other outputs under the state's sequences, if there is such a group (rule 5)."""
        self._throttle = LogThrottle(settings.LOG_INTERVAL_SECONDS)

    # ---------------------------------------------------------------------------------------------- what the loop calls

    @property
    def is_full(self) -> bool:
        """Return whether the partition should not be read for now."""
        return len(self._waiting) >= settings.TRANSFORM_BUFFER_RECORDS

    def feed(self, records: Sequence[Record]) -> None:
        """Add records, in order."""
        self.begin_at(records[0].offset)
        self._waiting.extend(records)
        self._news.set()

    @property
    def needs_beginning(self) -> bool:
        """Return whether it waits for `begin_at`, because the group has committed nothing and no record has arrived."""
        return self._first_offset is None

    def begin_at(self, offset: int) -> None:
        """Set the first offset, used if the group has committed nothing. Only the first call counts."""
        if self._first_offset is None:
            self._first_offset = offset
            self._news.set()

    def end(self) -> None:
        """Start no more chunks: `run` returns after the current one."""
        self._is_ending = True
        self._news.set()

    async def run(self) -> None:
        """Transform until cancelled or asked to end. Returns early when another member owns the partition.

        Raises:
            PoisonRecordError: The handler failed, or its outputs cannot be written. The records before it are committed.
            TransformStateError: Outputs cannot be written exactly once.
            RaftMQError: An error that retries cannot cure, such as `UnknownTopicError`.
        """
        try:
            await self._begin()
            while records := await self._next_chunk():
                await self._transform(records)
        except FencedError as error:  # the consumer will notice, too
            data = (self._parts.group_id, *self.partition, name_of(error))
            log.info("transform_partition_lost consumer_group=%s topic=%s partition=%d error_code=%s", *data)

    def submit_last(self) -> asyncio.Future[None] | None:
        """Commit the written outputs, after `run` has ended. Return None if nothing has begun.

        The bound of this commit is the lowest possible one: only records whose outputs may have been written lie below it.
        """
        if self._state is None:
            return None
        return self._submit(max(self._inherited_until, self._sent_until, self._offset))

    def close(self) -> None:
        """Stop renewing the producer's name."""
        if self._keeper is not None:
            self._keeper.cancel()

    # -------------------------------------------------------------------------------------------------------- beginning

    async def _begin(self) -> None:
        found = OutputState.decode(self._opened.note) if self._opened.offset is not None else None
        if found is None or self._opened.offset is None:
            while self._first_offset is None:
                self._news.clear()
                await self._news.wait()
            self._offset = self._first_offset
            await self._begin_generation(self._consumer.read_group(self.partition))
        else:
            self._offset = self._sent_until = self._opened.offset
            self._inherited_until = self._promised_until = max(found.until, self._offset)
            if found.until > self._offset:
                await self._check_remembered(found, self._offset)
            group_id = found.group_id or self._consumer.read_group(self.partition)
            self._state, self._committed_until = replace(found, group_id=group_id), found.until
            self._name.resume(found.producer_id, first_epoch(found.generation))
        self._keeper = self._name.keep(self._on_name_lost, self._fail)
        data = (*self.partition, self._offset, found is not None)
        log.info("transform_partition_begun topic=%s partition=%d offset=%d is_resumed=%s", *data)

    async def _begin_generation(self, group_id: int) -> None:
        """Begin a new state at the offset, for records of a Raft group. It counts no output of an earlier state, and brokers accept no more batches of an earlier one.

        Raises `FencedError` when a later owner has begun a state.
        """
        generation = self._opened.owner_epoch
        try:
            producer_id = await self._persist(
                lambda: self._name.claim(first_epoch(generation), settings.TRANSFORM_CLAIM_SECONDS)
            )
        except ProducerFencedError as error:
            raise FencedError(f"{_name(self.partition)} has a later owner") from error
        self._inherited_until = self._promised_until = self._sent_until = self._committed_until = self._offset
        self._state = OutputState(producer_id, generation, self._offset, _now_s(), group_id=group_id)
        await self._commit()

    async def _check_remembered(self, state: OutputState, offset: int) -> None:
        """Raise `TransformStateError` unless brokers remember the producer wherever outputs of records from `offset` on were written.

        This is rule 4.
        """
        if offset >= self._inherited_until or _now_s() - state.since_s < settings.TRANSFORM_PROOF_SECONDS:
            return
        if offset >= await self._persist(self._first_young_offset):  # outputs cannot be older than their records
            return
        raise TransformStateError(
            f"{_name(self.partition)}: it is unknown whether outputs of the records from offset {offset} to {state.until} are written, because"
            " they may be older than the 14 days for which brokers remember producers. Check whether they exist. Then reset the offsets of group"
            f" {self._parts.group_id!r} to {offset}, which writes them (again), or to {state.until}, which skips them"
        )

    async def _first_young_offset(self) -> int:
        """Return the offset from which on all records are young enough that brokers remember every producer since."""
        end = (await self._consumer.end_offsets([self.partition]))[self.partition]
        time_ms = int((_now_s() - settings.TRANSFORM_PROOF_SECONDS) * 1000)
        found = (await self._consumer.offsets_for_times({self.partition: time_ms}, by_append_time=True))[self.partition]
        return end if found is None else found.offset

    async def _skip_to(self, offset: int) -> None:
        """Skip to `offset`, because the records below it were deleted before they were handled."""
        state = self._started()
        data = (*self.partition, self._offset, offset)
        log.warning("transform_records_missed topic=%s partition=%d offset=%d next_offset=%d", *data)
        is_alone = self._offset >= self._inherited_until
        self._offset = offset
        if is_alone:
            return
        # It is unknown how many outputs of the deleted records were written, so the counts are useless.
        if state.generation >= self._opened.owner_epoch:
            raise TransformStateError(
                f"{_name(self.partition)}: records were deleted while they were handled: restart the transformer"
            )
        await self._begin_generation(state.group_id)

    async def _follow_recovery(self) -> None:
        """Handle only records before the kept end under a state of an earlier group of the input, and then leave it (rule 5)."""
        state, group_id = self._started(), self._consumer.read_group(self.partition)
        if not self._recovered_group and not state.group_id:
            self._state = replace(state, group_id=group_id)
        elif group_id > max(state.group_id, self._recovered_group):
            await self._on_recovered(group_id)
        next_offset = self._waiting[0].offset if self._waiting else self._offset
        if self._recovered_group and max(next_offset, self._offset) >= self._kept_end:
            await self._leave_group()

    async def _on_recovered(self, group_id: int) -> None:
        """Note a recovery of the input, and forget the records that it has lost."""
        known, timeout = self._started().group_id, self._parts.timeout_seconds
        end = await self._persist(lambda: self._consumer.kept_end(self.partition, known, timeout))
        self._kept_end = self._offset if end is None else end
        self._recovered_group = group_id
        data = (*self.partition, self._offset, self._kept_end)
        log.warning("transform_input_recovered topic=%s partition=%d offset=%d kept_end_offset=%d", *data)
        self._offset = min(self._offset, self._kept_end)
        # Until the kept end, facts of a predecessor whose commits are lost must stay as they were.
        self._inherited_until = max(self._inherited_until, self._kept_end)
        # The consumer went back if it had read lost records. Those it read before are still waiting.
        bound = self._consumer.known_position(self.partition)
        kept: deque[Record] = deque()
        for record in reversed(self._waiting):
            if bound is None or record.offset < bound:
                kept.appendleft(record)
                bound = record.offset
        self._waiting = kept

    async def _leave_group(self) -> None:
        """Take a state for the records from the kept end on."""
        state, group_id = self._started(), self._recovered_group
        if state.generation < self._opened.owner_epoch:
            await self._commit()  # a successor would be fenced below the kept end by the new generation
            await self._begin_generation(group_id)
        else:
            self._state = replace(state, group_id=group_id)
            await self._commit()
        self._recovered_group = 0

    # ------------------------------------------------------------------------------------------------------------ chunks

    async def _next_chunk(self) -> list[Record]:
        """Return the next records to handle; empty when it is time to end."""
        while not self._is_ending:
            self._news.clear()
            self._check()
            await self._follow_recovery()
            if self._waiting and self._waiting[0].offset != self._offset:
                await self._skip_to(self._waiting[0].offset)
            if self._waiting and self._offset >= self._committed_until:
                await self._commit()
                continue
            if self._waiting:
                return self._chunk()
            await self._news.wait()
        return []

    def _chunk(self) -> list[Record]:
        records: list[Record] = []
        size = 0
        end = min(self._committed_until, self._kept_end) if self._recovered_group else self._committed_until
        for record in self._waiting:
            is_full = len(records) == settings.TRANSFORM_CHUNK_RECORDS_MAX or size > settings.TRANSFORM_CHUNK_BYTES_MAX
            if is_full or record.offset >= end:
                break
            records.append(record)
            size += len(record.key or b"") + len(record.value or b"")
        return records

    async def _transform(self, records: Sequence[Record]) -> None:
        """Handle the first of these records and write their outputs. Raises the error of the next record."""
        outputs, failure = await self._parts.calls.handle(records)
        written, cause = await self._write(records, outputs)
        if written:
            self._advance(records[written - 1].offset + 1)
            for _ in range(written):
                self._waiting.popleft()
            self._submit(self._until())
        cause = cause or failure
        if cause is not None:
            await self._commit()
            raise _poison(records[written], cause) from cause

    def _advance(self, offset: int) -> None:
        state = self._started()
        self._offset = offset
        if offset >= self._inherited_until:
            self._state = replace(state, since_s=_now_s())

    async def _write(
        self, records: Sequence[Record], outputs: Sequence[MadeOutputs]
    ) -> tuple[int, BaseException | None]:
        """Write outputs. Return the number of records that were written, and the error of the next one."""
        names = sorted({one.topic for made in outputs for one in made})
        is_fresh = False
        before: dict[str, TopicInfo] = {}
        while True:
            topics = {name: await self._topic(name, outputs, is_fresh=is_fresh) for name in names}
            await self._declare(topics.values())
            routed = route(records, outputs, topics, self._started(), self._parts.partitioner)
            if routed.record_count:
                self._sent_until = max(self._sent_until, records[routed.record_count - 1].offset + 1)
            try:
                await self._append(routed.stretches)
            except (UnknownTopicError, UnknownPartitionError):
                if before == topics:
                    raise
                # A topic was deleted and perhaps created again. The new one has no outputs, so its counts begin at 0.
                before, is_fresh = topics, True
                continue
            state = self._started()
            for stretch in routed.stretches:
                state = state.written(stretch.topic.topic_id, stretch.partition, len(stretch.records))
            self._state = state
            return routed.record_count, routed.failure

    async def _topic(self, name: str, outputs: Sequence[MadeOutputs], *, is_fresh: bool) -> TopicInfo:
        chosen = [one.partition for made in outputs for one in made if one.topic == name and one.partition is not None]
        partition = max(chosen, default=None)
        timeout = self._parts.timeout_seconds
        return await self._persist(lambda: self._resolver.topic(name, timeout, partition=partition, is_fresh=is_fresh))

    async def _declare(self, topics: Iterable[TopicInfo]) -> None:
        """Commit everything that determines the destination of outputs before the first one is sent (rule 2)."""
        wanted = list(topics)
        state = self._started()
        # If this is a repeated attempt at the chunk (a topic was deleted during the first one), some outputs are written already.
        is_alone = self._offset >= max(self._inherited_until, self._sent_until)
        declared = state.declared(wanted, is_alone=is_alone)
        self._has_waiting_count = not is_alone and declared != declared.declared(wanted, is_alone=True)
        if declared is not state:
            self._state = declared
            await self._commit()

    async def _append(self, stretches: Sequence[Stretch]) -> None:
        """Append all outputs of a chunk. Outputs that exist are not written again. Raises errors that retries cannot cure."""
        open_ = list(stretches)
        while open_:
            outcomes = await asyncio.gather(*map(self._append_one, open_), return_exceptions=True)
            forgotten: list[Stretch] = []
            for stretch, error in zip(open_, outcomes, strict=True):
                if isinstance(error, OutOfOrderSequenceError) and not error.is_certain:
                    forgotten.append(stretch)
                elif isinstance(error, ProducerFencedError):
                    await self._commit()  # raises FencedError if another member owns the partition
                    raise error
                elif error is not None:
                    raise error
            if forgotten:
                await self._restart(forgotten)
            open_ = forgotten

    async def _append_one(self, stretch: Stretch) -> None:
        state, topic, partition = self._started(), stretch.topic, stretch.partition
        batches = sequenced_batches(
            stretch.records,
            state.producer_id,
            state.epoch(topic.topic_id, partition),
            topic,
            first_sequence=state.at(topic.topic_id, partition).count,
            codec=self._parts.codec,
        )
        for request in requests_of(batches):
            await self._persist(partial(self._parts.appender.append, topic, partition, request))

    async def _restart(self, stretches: Sequence[Stretch]) -> None:
        """Count outputs from 0 in partitions whose brokers have forgotten the producer: the next outputs are not written there (rule 4)."""
        state = self._started()
        for stretch in stretches:
            await self._check_remembered(state, stretch.first_offset)
            state = state.restarted(stretch.topic.topic_id, stretch.partition)
        self._state = state
        await self._commit()

    # ---------------------------------------------------------------------------------------------------------- commits

    def _until(self) -> int:
        """Return the bound below which the next records may be handled.

        While a new number of partitions waits to be used, the bound does not move. Otherwise the offset would never pass the inherited bound.
        """
        if not self._has_waiting_count or self._offset >= self._inherited_until:
            self._promised_until = max(self._promised_until, self._offset + settings.TRANSFORM_AHEAD_RECORDS)
        return self._promised_until

    def _submit(self, until: int) -> asyncio.Future[None]:
        state = self._started()
        note = replace(state, until=until).encode()
        future = self._consumer.submit(self.partition, self._offset, note, state.group_id)
        future.add_done_callback(partial(self._on_committed, until))
        return future

    def _on_committed(self, until: int, future: asyncio.Future[None]) -> None:
        error = None if future.cancelled() else future.exception()
        if future.cancelled():
            return
        if error is None:
            self._committed_until = max(self._committed_until, until)
        elif isinstance(error, OffsetOutOfRangeError) and error.kept_end_offset is not None:
            pass  # the next poll is refused, too, and takes the consumer back (rule 5)
        elif isinstance(error, FencedError) or not _may_pass(error):
            self._fail(error)
        elif self._throttle.is_due():
            self._say_delayed(error)
        self._news.set()

    async def _commit(self) -> None:
        """Commit and wait. Raises `FencedError` when another member owns the partition."""
        until = self._until()
        await self._persist(lambda: asyncio.shield(self._submit(until)))

    # --------------------------------------------------------------------------------------------------------- internal

    async def _persist(self, step: Callable[[], Awaitable[ResultT]]) -> ResultT:
        """Repeat a step while it fails with temporary errors: without a cluster there is nothing better to do."""
        backoff = Backoff(settings.RETRY_BACKOFF_MIN_SECONDS, settings.RETRY_BACKOFF_MAX_SECONDS, self._resolver.rng)
        while True:
            self._check()
            try:
                return await step()
            except RaftMQError as error:
                if not _may_pass(error):
                    raise
                if self._throttle.is_due():
                    self._say_delayed(error)
            await asyncio.sleep(backoff.next_seconds())

    def _say_delayed(self, error: BaseException) -> None:
        data = (*self.partition, self._offset, name_of(error) if isinstance(error, RaftMQError) else str(error))
        log.warning("transform_delayed topic=%s partition=%d offset=%d error_code=%s", *data)

    def _on_name_lost(self, error: ProducerFencedError) -> None:
        """Log that the name was lost. Either a later owner has begun again, as the next commit reports, or the name expired, which is harmless."""
        log.info("transform_name_lost topic=%s partition=%d error_code=%s", *self.partition, name_of(error))

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._news.set()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _started(self) -> OutputState:
        if self._state is None:
            raise RuntimeError("the partition has not begun")
        return self._state


def producer_name_of(group_id: str, partition: TopicPartition) -> str:
    """Return the name of the producer that writes the outputs of a partition."""
    name = f"transformer/{group_id}/{partition.topic}/{partition.partition}"
    if len(name.encode()) <= settings.NAME_BYTES_MAX:
        return name
    return f"transformer/sha256/{sha256(name.encode()).hexdigest()}"


def _may_pass(error: BaseException) -> bool:
    """Return whether a retry may help. The class decides: a rejection that reports an unknown outcome remains a rejection."""
    if isinstance(error, ClosedClientError) or not isinstance(error, RaftMQError):
        return False
    return error.retriable or isinstance(error, UnknownOutcomeError)


def _poison(record: Record, cause: BaseException) -> PoisonRecordError:
    text = f"{type(cause).__name__}: {cause}"[: settings.DEAD_LETTER_TEXT_BYTES_MAX]
    return PoisonRecordError(
        f"{record.topic}/{record.partition} offset {record.offset} could not be transformed: {text}",
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        attempts=1,
    )


def _name(partition: TopicPartition) -> str:
    return f"{partition.topic}/{partition.partition}"


def _now_s() -> int:
    return int(time.time())
