"""Records of one partition that travel together, and the light objects through which callers learn what became of them.

There is no future per record: a batch knows its outcome, a `Delivery` is (batch, position), and a future is made only for a
caller that waits before the outcome is there. Must not know about brokers, retries or sequences beyond storing them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from contextvars import Context, copy_context
from functools import partial
from itertools import islice, repeat
from typing import NamedTuple

from raftmq.client.base.affinity import check_running
from raftmq.client.base.error_details import fresh_copy
from raftmq.client.base.logs import log
from raftmq.client.codec.batch import EncodedBody, Headers, encode_body
from raftmq.errors import RaftMQError
from raftmq.types import RecordMetadata

_NO_HEADERS: Headers = ()


class ProducerBatch:
    """A batch from its first record to its outcome; owned by one `PartitionQueue`."""

    __slots__ = (
        "_callbacks",
        "_encoded",
        "_headers",
        "_keys",
        "_loop",
        "_sealed",
        "_timestamps",
        "_values",
        "_waiters",
        "attempt",
        "base_offset",
        "count",
        "deadline",
        "error",
        "first_timestamp_ms",
        "is_done",
        "is_observed",
        "is_sent",
        "linger_until",
        "may_be_applied",
        "partition",
        "reserved_bytes",
        "topic",
    )

    def __init__(
        self, topic: str, partition: int, first_timestamp_ms: int, linger_until: float, deadline: float
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.first_timestamp_ms = first_timestamp_ms
        self.linger_until = linger_until
        """Loop time before which an unfilled batch waits for more records."""
        self.deadline = deadline
        """Loop time at which delivery is given up."""
        self.count = 0
        self.reserved_bytes = 0
        """What the producer's buffer counts for it, from the first record to the outcome."""
        self.attempt = 0
        """How often it was sent; an answer to an earlier attempt that is no success means nothing any more."""
        self.is_sent = False
        """The last attempt is not answered yet."""
        self.may_be_applied = False
        """Some attempt ended without a definite answer. Invariant: then it is only sent again under the same sequence."""
        self.is_done = False
        self.is_observed = False
        """Somebody waited for the outcome, so `flush` need not report it."""
        self.base_offset = -1
        self.error: RaftMQError | None = None
        self._values: list[bytes | None] = []
        self._keys: list[bytes | None] | None = None
        self._timestamps: list[int] | None = None  # None: all have first_timestamp_ms
        self._headers: list[Headers] | None = None
        self._encoded: EncodedBody | None = None
        self._sealed: bytes | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._loop = asyncio._get_running_loop()
        """Where its outcome arrives."""
        self._callbacks: list[tuple[Callable[[], object], Context]] | None = None

    # ---------------------------------------------------------------------------------------------------------- filling

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

        A record without a time in `timestamps` gets `timestamp_ms`; that being None, the batch's first time, so that its
        timestamps stay constant (a batch is open for milliseconds; a column of times would cost 4 bytes and 60 ns a record).
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

    # ---------------------------------------------------------------------------------------------------------- sending

    def encode(self, codec: int) -> None:
        """Make the body and drop the records; nothing can be added any more. Raises `TypeError` for records of wrong types."""
        if self._encoded is None:
            timestamps = self.first_timestamp_ms if self._timestamps is None else self._timestamps
            self._encoded = encode_body(self._values, self._keys, timestamps, self._headers, codec)
            self._values, self._keys, self._headers = [], None, None

    def seal(self, producer_id: int, producer_epoch: int, first_sequence: int) -> None:
        """Put the batch under an identity and sequence (again, after `unseal`). It must be encoded."""
        if self._encoded is None:
            raise RuntimeError("seal before encode")  # a defect: the caller encodes first
        self._sealed = self._encoded.seal(producer_id, producer_epoch, first_sequence)

    @property
    def sealed(self) -> bytes:
        """The bytes to send."""
        if self._sealed is None:
            raise RuntimeError("sent before seal")
        return self._sealed

    @property
    def sealed_bytes(self) -> int:
        """Their size, close enough before they are sealed."""
        if self._sealed is not None:
            return len(self._sealed)
        return len(self._encoded.body) + 64 if self._encoded is not None else self.reserved_bytes

    # ---------------------------------------------------------------------------------------------------------- outcome

    def finish(self, base_offset: int, error: RaftMQError | None) -> None:
        """Record the outcome and wake everyone who waits for it."""
        self.is_done = True
        self.is_sent = False
        self.base_offset = base_offset
        self.error = error
        self._encoded = None
        self._sealed = None
        self._values = []
        if self._callbacks is not None:  # before the waiters, so that they have run when `flush` returns
            asyncio.get_running_loop().call_soon(_call_back, self._callbacks)
            self._callbacks = None
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait_done(self) -> None:
        """Wait for the outcome, whatever it is. Cancelling stops the waiting only. Raises `WrongEventLoopError` on another loop."""
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
        """Have the event loop call `callback` once the outcome is known; never from here, also when it is known already."""
        self.is_observed = True
        call = (callback, copy_context())
        if self.is_done:
            asyncio.get_running_loop().call_soon(_call_back, (call,))
        elif self._callbacks is None:
            self._callbacks = [call]
        else:
            self._callbacks.append(call)

    def timestamp_ms(self, position: int) -> int:
        """A record's time."""
        return self.first_timestamp_ms if self._timestamps is None else self._timestamps[position]

    def raise_error(self) -> None:
        """Raise the outcome if it is a failure."""
        if self.error is not None:
            raise fresh_copy(self.error) from self.error.__cause__


def _call_back(calls: Iterable[tuple[Callable[[], object], Context]]) -> None:
    for callback, context in calls:
        try:
            context.run(callback)
        except (Exception, asyncio.CancelledError):  # noqa: BLE001
            # The program's own code, at the root of a turn of its loop: nobody is there who could handle it, and nothing of
            # ours, nor the next callback, may suffer from it.
            log.exception("delivery_callback_failed")


class Delivery:
    """Awaitable for one record's acknowledgement; two references, shared batch.

    ``await delivery`` returns a `RecordMetadata` when the record is on disk on a majority of its replicas, or raises what
    `Producer.send` documents. It may be awaited any number of times, also never; cancelling the wait does not cancel the send.
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
        """Whether the outcome is known."""
        return self._batch.is_done

    def result(self) -> RecordMetadata:
        """The outcome, which must be known (`done`). Raises the delivery's error, or `asyncio.InvalidStateError`."""
        batch = self._batch
        if not batch.is_done:
            raise asyncio.InvalidStateError("the record is not acknowledged yet")
        batch.is_observed = True
        batch.raise_error()
        offset = batch.base_offset + self._position if batch.base_offset >= 0 else -1
        return RecordMetadata(batch.topic, batch.partition, offset, batch.timestamp_ms(self._position))

    def add_done_callback(self, callback: Callable[[Delivery], object]) -> None:
        """Have `callback` called with this delivery once the outcome is known; `result` then gives or raises it.

        As with an `asyncio.Future`, the event loop calls it, in a turn of its own: never the caller of this method or of
        `Producer.send`, also when the outcome is known already. Callbacks of a batch run in the order in which they were added,
        and before whoever awaits the delivery, `flush` or `close` goes on. What one raises is logged (``delivery_callback_failed``)
        and harms nobody. A record with a callback counts as awaited: `flush` does not raise its failure. Call it on the event loop.
        """
        self._batch.call_when_done(partial(callback, self))

    def __repr__(self) -> str:
        state = "failed" if self._batch.error else "acknowledged" if self._batch.is_done else "pending"
        return f"<Delivery {self._batch.topic}/{self._batch.partition} {state}>"


class AppendedSpan(NamedTuple):
    """Records of one `send_many` that are neighbours in a partition."""

    topic: str
    partition: int
    base_offset: int
    """Offset of the first; -1 when the broker knows that they were written before and no longer remembers where."""
    record_count: int


class FailedRecords(NamedTuple):
    """Records of one `send_many` that failed together."""

    topic: str
    partition: int
    indexes: Sequence[int]
    """Which they are: positions in what `send_many` was given, from 0, ascending."""
    error: RaftMQError
    """Why; its `outcome` says whether they may be written all the same."""


class _Piece(NamedTuple):
    """Records that were taken in one go: enough to say later which of them a batch has."""

    start: int
    """Index of the first."""
    numbers: Sequence[int] | None
    """The partition of each; None: all have the same."""
    parts: list[tuple[ProducerBatch, int, int]]
    """(batch, how many records of its partition came before in this piece, count), of each partition in order."""

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

    ``await`` returns the spans (of each partition in the order of sending), or raises the first failure once every record's outcome is
    known; `failures` then says which records failed.
    """

    __slots__ = ("_failed", "_last", "_pieces", "_spans", "count")

    def __init__(self) -> None:
        self.count = 0
        """Records taken."""
        self._spans: list[tuple[ProducerBatch, int, int]] = []
        self._last: dict[tuple[str, int], int] = {}  # per partition, its last span, so that neighbours become one
        self._pieces: deque[_Piece] = deque()  # what is written is forgotten, so an endless `send_many` stays small
        self._failed: list[_Piece] = []

    def begin(self, numbers: Sequence[int] | None) -> None:
        """The records of the next calls of `add` are a piece; `numbers` has the partition of each, None: all have one."""
        while self._pieces and self._pieces[0].is_done():
            piece = self._pieces.popleft()
            if piece.has_failed():
                self._failed.append(piece)
        self._pieces.append(_Piece(self.count, numbers, []))

    def add(self, batch: ProducerBatch, position: int, before: int, count: int) -> None:
        """Note that `count` records of the piece, after `before` of the same partition, went into `batch` from `position` on."""
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

    def done(self) -> bool:
        """Whether every outcome is known."""
        return all(batch.is_done for batch, _, _ in self._spans)

    def failures(self) -> list[FailedRecords]:
        """The records that have failed so far, one item per batch, in the order in which they were given to `send_many`.

        Empty when nothing failed. Records whose outcome is open are in none of them: await the delivery first.
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
        """Have `callback` called with this delivery, once, when every outcome is known. As `Delivery.add_done_callback`.

        Add it after `send_many` has returned: it waits for the records that are taken by now.
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
