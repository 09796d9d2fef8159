"""`RecordingProducer`: a producer of the SDK that records its sends and their outcomes.

It must not change the producer's behaviour, with one exception: since it awaits every outcome, `flush` and `close` raise no failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterable, Iterator, Sequence

from raftmq.client.producer.batch import AppendedSpan, BulkDelivery, Delivery
from raftmq.client.producer.producer import Producer
from raftmq.types import RecordMetadata

from sim.history.recorder import Followers, OpenOperation, Recorder
from sim.history.recording_client import RecordingClient


class RecordedDelivery:
    """Awaitable like `Delivery`. The outcome is recorded before the waiter continues. Cancelling stops only the waiting."""

    __slots__ = ("_delivery", "_follower")

    def __init__(self, delivery: Delivery, follower: asyncio.Task[None]) -> None:
        self._delivery = delivery
        self._follower = follower

    def __await__(self) -> Generator[object, None, RecordMetadata]:
        if not self._follower.done():
            yield from asyncio.wait((self._follower,)).__await__()
        return (yield from self._delivery.__await__())

    def done(self) -> bool:
        """Return whether the outcome is known and recorded."""
        return self._follower.done() and self._delivery.done()


class RecordingProducer(RecordingClient):
    """A recording `Producer`, see `RecordingClient`.

    Sends of one producer must not run concurrently if their order is to be judged: give each task its own producer.

    Args:
        producer: The producer.
        recorder: Records the operations.
        process: The name of this client.
        is_idempotent: Whether the producer is idempotent. Otherwise neither duplicates nor order are judged.
    """

    def __init__(self, producer: Producer, recorder: Recorder, process: str, *, is_idempotent: bool = True) -> None:
        super().__init__(producer, recorder, process)
        self.producer = producer
        self._identity = process if is_idempotent else None
        self._followers = Followers()

    async def _ended(self) -> None:
        await self.settled()

    async def settled(self) -> None:
        """Wait until every send so far has a recorded outcome. This takes at most the producer's delivery timeout."""
        await self._followers.settled()

    async def abandon(self) -> None:
        """Stop recording: the outcomes of sends under way stay unknown. The caller must end the producer itself."""
        await self._followers.abandon()

    async def send(
        self, topic: str, value: bytes, key: bytes | None = None, partition: int | None = None
    ) -> RecordedDelivery:
        """See `Producer.send`. The invocation is recorded when the producer accepts the record, which determines its place in the order."""
        try:
            delivery = await self.producer.send(topic, value=value, key=key, partition=partition)
        except Exception as error:
            self._invoke(topic, value, key, partition).end(error, topic=topic, value=self._recorder.value_id(value))
            raise
        except asyncio.CancelledError as error:  # a record that waits for room was not accepted: this is definite
            operation = self._invoke(topic, value, key, partition)
            operation.fail(topic=topic, value=self._recorder.value_id(value), error=type(error).__name__)
            raise
        operation = self._invoke(topic, value, key, partition)
        follower = asyncio.create_task(self._follow(operation, delivery, topic, self._recorder.value_id(value)))
        self._followers.add(follower)
        return RecordedDelivery(delivery, follower)

    async def send_and_wait(
        self, topic: str, value: bytes, key: bytes | None = None, partition: int | None = None
    ) -> RecordMetadata:
        """See `Producer.send_and_wait`."""
        return await (await self.send(topic, value, key, partition))

    async def send_many(
        self, topic: str, records: Iterable[tuple[bytes | None, bytes]], *, partition: int | None = None
    ) -> list[AppendedSpan]:
        """See `Producer.send_many`, whose outcome this awaits. Offsets are recorded if `partition` is given.

        If it fails, some of the records may have been written, so the outcome of each is unknown.
        """
        taken: list[tuple[OpenOperation, str]] = []

        def noted() -> Iterator[tuple[bytes | None, bytes]]:
            for key, value in records:
                taken.append((self._invoke(topic, value, key, partition), self._recorder.value_id(value)))
                yield key, value

        try:
            delivery: BulkDelivery = await self.producer.send_many(topic, noted(), partition=partition)
            spans = await delivery
        except BaseException as error:
            for operation, value_id in taken:
                operation.info(topic=topic, value=value_id, error=type(error).__name__, detail=str(error))
            raise
        offsets = _offsets(spans) if partition is not None else [None] * len(taken)
        for (operation, value_id), offset in zip(taken, offsets, strict=True):
            operation.ok(topic=topic, value=value_id, partition=partition, offset=offset)
        return spans

    def _invoke(self, topic: str, value: bytes, key: bytes | None, partition: int | None) -> OpenOperation:
        return self._recorder.invoke(
            self.process,
            "send",
            topic=topic,
            value=self._recorder.value_id(value),
            key=None if key is None else key.decode(errors="backslashreplace"),
            partition=partition,
            producer=self._identity,
        )

    @staticmethod
    async def _follow(operation: OpenOperation, delivery: Delivery, topic: str, value_id: str) -> None:
        try:
            written = await delivery
        except Exception as error:  # noqa: BLE001 - any error is the client's outcome, and the awaiting caller receives it too
            operation.end(error, topic=topic, value=value_id)
        else:
            offset = None if written.offset < 0 else written.offset
            operation.ok(topic=topic, value=value_id, partition=written.partition, offset=offset)


def _offsets(spans: Sequence[AppendedSpan]) -> list[int | None]:
    """Return the offset of each record of one partition, in the order of sending."""
    offsets: list[int | None] = []
    for span in spans:
        known = span.base_offset >= 0
        offsets.extend(span.base_offset + at if known else None for at in range(span.record_count))
    return offsets
