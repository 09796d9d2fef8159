"""Batches of one partition, and the light objects by which callers learn the outcome of their records.

`PartitionQueue` and the dispatcher deliver a `PendingBatch`. `ProducerBatch` holds records of a log topic, and `client/queue/put_batch.py`
messages of a queue topic.

There is no future per record. A batch knows its outcome, and a `Delivery` is a batch and a position. A future is created only for a caller
that waits before the outcome is known. Must not know about brokers, retries or sequences beyond storing them.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from contextvars import Context, copy_context
from functools import partial
from itertools import islice, repeat
from typing import TYPE_CHECKING, NamedTuple, Protocol

from raftmq.client.base.affinity import check_running
from raftmq.client.base.error_details import fresh_copy
from raftmq.client.base.logs import log
from raftmq.client.codec.batch import Headers, encode_body
from raftmq.errors import RaftMQError
from raftmq.types import RecordMetadata

if TYPE_CHECKING:
    from raftmq.client.base.spans import SendSpan

_NO_HEADERS: Headers = ()


class SealableBody(Protocol):
    """An encoded batch, without the identity of its producer."""

    @property
    def body(self) -> bytes:
        """Return the encoded records or messages."""
        ...

    def seal(self, producer_id: int, producer_epoch: int, first_sequence: int) -> bytes:
        """Return the whole batch under a producer's identity."""
        ...


class PendingBatch(ABC):
    """A batch from its first record or message to its outcome. Owned by one `PartitionQueue`. Its kind of topic determines its bytes."""

    __slots__ = (
        "_callbacks",
        "_encoded",
        "_loop",
        "_sealed",
        "_waiters",
        "attempt",
        "base_offset",
        "count",
        "deadline",
        "error",
        "is_done",
        "is_observed",
        "is_sent",
        "linger_until",
        "may_be_applied",
        "partition",
        "reserved_bytes",
        "spans",
        "topic",
    )

    def __init__(self, topic: str, partition: int, linger_until: float, deadline: float) -> None:
        self.topic = topic
        self.partition = partition
        self.linger_until = linger_until
        """The loop time until which an unfilled batch waits for more records."""
        self.deadline = deadline
        """The loop time at which delivery is given up."""
        self.count = 0
        """Records or messages."""
        self.reserved_bytes = 0
        """The bytes that the batch occupies in the producer's buffer, from its first record to its outcome."""
        self.attempt = 0
        """The number of times that the batch was sent. A failure that answers an earlier attempt is ignored."""
        self.is_sent = False
        """Whether the last attempt is not answered yet."""
        self.may_be_applied = False
        """Whether some attempt ended without a definite answer.

        Invariant: such a batch is sent again only under the same sequence.
        """
        self.is_done = False
        self.is_observed = False
        """Whether a caller waited for the outcome, so that `flush` need not report it."""
        self.base_offset = -1
        self.error: RaftMQError | None = None
        self._encoded: SealableBody | None = None
        self._sealed: bytes | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._loop = asyncio._get_running_loop()
        """The loop on which the outcome arrives."""
        self._callbacks: list[tuple[Callable[[], object], Context]] | None = None
        self.spans: dict[SendSpan, None] = {}
        """Spans of the sends of its records, until the outcome. Empty unless the program traces (written by them)."""

    # ---------------------------------------------------------------------------------------------------------- sending

    @abstractmethod
    def _encode(self, codec: int) -> SealableBody:
        """Encode everything that was added, and drop it."""

    def encode(self, codec: int) -> None:
        """Encode the body and drop the records. No record can be added afterwards. Raises `TypeError` for records of wrong types."""
        if self._encoded is None:
            self._encoded = self._encode(codec)

    def seal(self, producer_id: int, producer_epoch: int, first_sequence: int) -> None:
        """Put the encoded batch under an identity and a sequence. May be called again for another sequence."""
        if self._encoded is None:
            raise RuntimeError("seal before encode")  # a defect: the caller encodes first
        self._sealed = self._encoded.seal(producer_id, producer_epoch, first_sequence)

    @property
    def sealed(self) -> bytes:
        """Return the bytes to send."""
        if self._sealed is None:
            raise RuntimeError("sent before seal")
        return self._sealed

    @property
    def sealed_bytes(self) -> int:
        """Return the size of the sealed batch, or an estimate before it is sealed."""
        if self._sealed is not None:
            return len(self._sealed)
        return len(self._encoded.body) + 64 if self._encoded is not None else self.reserved_bytes

    # ---------------------------------------------------------------------------------------------------------- outcome

    def record_known(self, position: int, sequence: int, *, is_replaced: bool) -> None:  # noqa: B027 - only messages have ids
        """Record that the topic knew the id of a message. Called before `finish`."""

    def finish(self, base_offset: int, error: RaftMQError | None) -> None:
        """Record the outcome and wake all waiters."""
        self.is_sent = False
        self.base_offset = base_offset
        self.error = error
        self.is_done = True  # after the outcome: threads of `raftmq.sync` look at it without the event loop
        self._encoded = None
        self._sealed = None
        if self._callbacks is not None:  # before the waiters, so that callbacks have run when `flush` returns
            asyncio.get_running_loop().call_soon(_call_back, self._callbacks)
            self._callbacks = None
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        spans, self.spans = self.spans, {}
        for number, span in enumerate(spans):
            span.on_finished(self, has_exception=not number)

    async def wait_done(self) -> None:
        """Wait for the outcome, success or failure. Cancelling it only stops the wait. Raises `WrongEventLoopError` on another loop."""
        if not self.is_done:
            if self._loop is not None:
                check_running(self._loop, "producer")
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            finally:
                if not self.is_done:
                    self._waiters.remove(waiter)

    def call_when_done(self, callback: Callable[[], object]) -> None:
        """Schedule `callback` on the event loop for the time when the outcome is known. It is never called from here."""
        self.is_observed = True
        call = (callback, copy_context())
        if self.is_done:
            asyncio.get_running_loop().call_soon(_call_back, (call,))
        elif self._callbacks is None:
            self._callbacks = [call]
        else:
            self._callbacks.append(call)

    def raise_error(self) -> None:
        """Raise the error of a failed batch."""
        if self.error is not None:
            raise fresh_copy(self.error) from self.error.__cause__


class ProducerBatch(PendingBatch):
    """A batch of records of a log topic."""

    __slots__ = ("_headers", "_keys", "_timestamps", "_values", "first_timestamp_ms")

    def __init__(
        self, topic: str, partition: int, first_timestamp_ms: int, linger_until: float, deadline: float
    ) -> None:
        super().__init__(topic, partition, linger_until, deadline)
        self.first_timestamp_ms = first_timestamp_ms
        self._values: list[bytes | None] = []
        self._keys: list[bytes | None] | None = None
        self._timestamps: list[int] | None = None  # None: all have first_timestamp_ms
        self._headers: list[Headers] | None = None

    def append(
        self, value: bytes | None, key: bytes | None, timestamp_ms: int, headers: Headers, record_bytes: int
    ) -> int:
        """Add a record and return its position."""
        position = self.count
        self._values.append(value)
        if self._keys is not None:
            self._keys.append(key)
        elif key is not None:
            self._keys = [*repeat(None, position), key]
        if self._timestamps is not None:
            self._timestamps.append(timestamp_ms)
        elif timestamp_ms != self.first_timestamp_ms:
            self._timestamps = [self.first_timestamp_ms] * position
            self._timestamps.append(timestamp_ms)
        if self._headers is not None:
            self._headers.append(headers)
        elif headers:
            self._headers = [*repeat(_NO_HEADERS, position), headers]
        self.count = position + 1
        self.reserved_bytes += record_bytes
        return position

    def extend(
        self,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None,
        timestamp_ms: int | None,
        records_bytes: int,
        headers: Sequence[Headers] | None = None,
        timestamps: Sequence[int | None] | None = None,
    ) -> int:
        """Add records and return the position of the first.

        A record without a time in `timestamps` gets `timestamp_ms`, or the batch's first time if that is None. The latter keeps the batch's
        timestamps constant: a batch is open only for milliseconds, and a column of times would cost 4 bytes and 60 ns per record.
        """
        position, count = self.count, len(values)
        self._values.extend(values)
        if self._keys is not None:
            self._keys.extend(repeat(None, count) if keys is None else keys)
        elif keys is not None:
            self._keys = [*repeat(None, position), *keys]
        time_ms = self.first_timestamp_ms if timestamp_ms is None else timestamp_ms
        if self._timestamps is None and (time_ms != self.first_timestamp_ms or timestamps is not None):
            self._timestamps = [self.first_timestamp_ms] * position
        if timestamps is not None and self._timestamps is not None:
            self._timestamps.extend(time_ms if at is None else at for at in timestamps)
        elif self._timestamps is not None:
            self._timestamps.extend(repeat(time_ms, count))
        if self._headers is None and headers is not None:
            self._headers = [*repeat(_NO_HEADERS, position)]
        if self._headers is not None:
            self._headers.extend(repeat(_NO_HEADERS, count) if headers is None else headers)
        self.count = position + count
        self.reserved_bytes += records_bytes
        return position

    def _encode(self, codec: int) -> SealableBody:
        timestamps = self.first_timestamp_ms if self._timestamps is None else self._timestamps
        encoded = encode_body(self._values, self._keys, timestamps, self._headers, codec)
        self._values, self._keys, self._headers = [], None, None
        return encoded

    def finish(self, base_offset: int, error: RaftMQError | None) -> None:
        """Record the outcome, wake all waiters, and drop the records of a batch that was never encoded."""
        self._values = []
        super().finish(base_offset, error)

    def timestamp_ms(self, position: int) -> int:
        """Return the timestamp of a record."""
        return self.first_timestamp_ms if self._timestamps is None else self._timestamps[position]


def _call_back(calls: Iterable[tuple[Callable[[], object], Context]]) -> None:
    rest = iter(calls)
    for callback, context in rest:
        try:
            context.run(callback)
        except (Exception, asyncio.CancelledError):  # noqa: BLE001
            # This is the program's own code at the root of a callback of its loop, so nobody else could handle the exception. It must affect
            # neither our own state nor the next callback.
            log.exception("delivery_callback_failed")
        except (
            BaseException
        ):  # SystemExit: a loop that goes on nevertheless, as that of `raftmq.sync`, goes on with the next callback
            asyncio.get_running_loop().call_soon(_call_back, tuple(rest))
            raise


class Delivery:
    """Awaitable for one record's acknowledgement. It holds two references and shares its batch.

    ``await delivery`` returns a `RecordMetadata` when the record is on disk on a majority of its replicas, or raises an error that
    `Producer.send` documents. It may be awaited any number of times, or never. Cancelling the wait does not cancel the send.
    """

    __slots__ = ("_batch", "_position")

    def __init__(self, batch: ProducerBatch, position: int) -> None:
        self._batch = batch
        self._position = position

    def __await__(self) -> Generator[object, None, RecordMetadata]:
        batch = self._batch
        batch.is_observed = True
        if not batch.is_done:
            yield from batch.wait_done().__await__()
        return self.result()

    def done(self) -> bool:
        """Return whether the outcome is known."""
        return self._batch.is_done

    def result(self) -> RecordMetadata:
        """Return the record's metadata. Raises the delivery's error, or `asyncio.InvalidStateError` if it is not `done`."""
        batch = self._batch
        if not batch.is_done:
            raise asyncio.InvalidStateError("the record is not acknowledged yet")
        batch.is_observed = True
        batch.raise_error()
        offset = batch.base_offset + self._position if batch.base_offset >= 0 else -1
        return RecordMetadata(batch.topic, batch.partition, offset, batch.timestamp_ms(self._position))

    def add_done_callback(self, callback: Callable[[Delivery], object]) -> None:
        """Call `callback` with this delivery when the outcome is known. `result` then returns or raises it.

        As with an `asyncio.Future`, the event loop calls it later, even if the outcome is known already: never this method or
        `Producer.send`. Callbacks of a batch run in the order in which they were added, and before code that awaits the delivery, `flush`
        or `close` resumes. An exception of a callback is logged (``delivery_callback_failed``) and has no other effect. A record with a
        callback counts as awaited: `flush` does not raise its failure. Call this method on the event loop.
        """
        self._batch.call_when_done(partial(callback, self))

    def add_span(self, span: SendSpan) -> None:
        """Let the span of the send end with this delivery."""
        span.watch(self._batch, self._position)

    def __repr__(self) -> str:
        state = "failed" if self._batch.error else "acknowledged" if self._batch.is_done else "pending"
        return f"<Delivery {self._batch.topic}/{self._batch.partition} {state}>"


class AppendedSpan(NamedTuple):
    """Records of one `send_many` that are adjacent in a partition."""

    topic: str
    partition: int
    base_offset: int
    """Offset of the first record; -1 if the records were written before and the broker no longer remembers where."""
    record_count: int


class FailedRecords(NamedTuple):
    """Records of one `send_many` that failed together."""

    topic: str
    partition: int
    indexes: Sequence[int]
    """Positions of the records in the argument of `send_many`, from 0, ascending."""
    error: RaftMQError
    """The reason. Its `outcome` says whether the records may have been written nevertheless."""


class _Piece(NamedTuple):
    """Records that were added together, with the information needed to identify those of a batch later."""

    start: int
    """The index of the first record."""
    numbers: Sequence[int] | None
    """The partition of each record. None: all records have the same partition."""
    parts: list[tuple[ProducerBatch, int, int]]
    """For each partition in order: (batch, number of its records earlier in this piece, count)."""

    def is_done(self) -> bool:
        return all(batch.is_done for batch, _, _ in self.parts)

    def has_failed(self) -> bool:
        return any(batch.error is not None for batch, _, _ in self.parts)

    def indexes(self, batch: ProducerBatch, before: int, count: int) -> Sequence[int]:
        if self.numbers is None:
            return range(self.start + before, self.start + before + count)
        mine = (at for at, number in enumerate(self.numbers, self.start) if number == batch.partition)
        return list(islice(mine, before, before + count))


class BulkDelivery:
    """Awaitable for all records of one `send_many`.

    ``await`` returns the spans (those of a partition in the order of sending). If any record failed, it raises the first failure after every
    record's outcome is known, and `failures` returns the failed records.
    """

    __slots__ = ("_failed", "_last", "_pieces", "_spans", "count")

    def __init__(self) -> None:
        self.count = 0
        """Records added."""
        self._spans: list[tuple[ProducerBatch, int, int]] = []
        self._last: dict[tuple[str, int], int] = {}  # the last span of each partition, to join adjacent spans
        self._pieces: deque[_Piece] = deque()  # written pieces are dropped, so an endless `send_many` stays small
        self._failed: list[_Piece] = []

    def begin(self, numbers: Sequence[int] | None) -> None:
        """Begin a piece: the records of the next calls of `add`.

        Args:
            numbers: The partition of each record. None: all records have the same partition.
        """
        while self._pieces and self._pieces[0].is_done():
            piece = self._pieces.popleft()
            if piece.has_failed():
                self._failed.append(piece)
        self._pieces.append(_Piece(self.count, numbers, []))

    def add(self, batch: ProducerBatch, position: int, before: int, count: int) -> None:
        """Record that `count` records of the piece, after `before` of the same partition, are in `batch` from `position` on."""
        self.count += count
        self._pieces[-1].parts.append((batch, before, count))
        key = (batch.topic, batch.partition)
        at = self._last.get(key)
        if at is not None:
            last, start, length = self._spans[at]
            if last is batch and start + length == position:
                self._spans[at] = (batch, start, length + count)
                return
        self._last[key] = len(self._spans)
        self._spans.append((batch, position, count))

    def add_span(self, span: SendSpan) -> None:
        """Let the span of the send end not before the batches of the newest piece."""
        for batch in dict.fromkeys(batch for batch, _, _ in self._pieces[-1].parts):
            span.watch(batch)

    def done(self) -> bool:
        """Return whether every outcome is known."""
        return all(batch.is_done for batch, _, _ in self._spans)

    def failures(self) -> list[FailedRecords]:
        """Return the records that have failed so far, one item per batch, in the order in which `send_many` got them.

        Empty if nothing failed. Records whose outcome is not known yet are not included: await the delivery first.
        """
        indexes: dict[ProducerBatch, list[int]] = {}
        for piece in (*self._failed, *self._pieces):
            for batch, before, count in piece.parts:
                if batch.error is not None:
                    batch.is_observed = True
                    indexes.setdefault(batch, []).extend(piece.indexes(batch, before, count))
        found = [FailedRecords(b.topic, b.partition, at, b.error) for b, at in indexes.items() if b.error is not None]
        return sorted(found, key=lambda failed: failed.indexes[0])

    def add_done_callback(self, callback: Callable[[BulkDelivery], object]) -> None:
        """Call `callback` with this delivery once, when every outcome is known, as `Delivery.add_done_callback` does.

        Add it after `send_many` has returned: it waits only for the records that were added before.
        """
        batches = {batch: None for batch, _, _ in self._spans if not batch.is_done}
        remaining = len(batches)

        def one_is_done() -> None:
            nonlocal remaining
            remaining -= 1
            if remaining == 0:
                callback(self)

        for batch in batches:
            batch.call_when_done(one_is_done)
        for batch, _, _ in self._spans:
            batch.is_observed = True
        if not batches:
            asyncio.get_running_loop().call_soon(_call_back, ((partial(callback, self), copy_context()),))

    def __await__(self) -> Generator[object, None, list[AppendedSpan]]:
        for batch, _, _ in self._spans:
            batch.is_observed = True
        for batch, _, _ in self._spans:
            if not batch.is_done:
                yield from batch.wait_done().__await__()
        for batch, _, _ in self._spans:
            batch.raise_error()
        return [
            AppendedSpan(b.topic, b.partition, b.base_offset + start if b.base_offset >= 0 else -1, count)
            for b, start, count in self._spans
        ]
