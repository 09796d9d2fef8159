"""Wait for acknowledgements of records without an event loop."""

from __future__ import annotations

from collections.abc import Callable

from raftmq.client.base.loop_thread import LoopThread
from raftmq.client.producer.batch import AppendedSpan, FailedRecords
from raftmq.client.producer.batch import BulkDelivery as AsyncBulkDelivery
from raftmq.client.producer.batch import Delivery as AsyncDelivery
from raftmq.sync.waiting import on_loop
from raftmq.types import RecordMetadata


class Delivery:
    """The acknowledgement of one record, like `raftmq.Delivery`, with `result` instead of ``await``."""

    __slots__ = ("_delivery", "_loop")

    def __init__(self, delivery: AsyncDelivery, loop: LoopThread) -> None:
        self._delivery = delivery
        self._loop = loop

    def done(self) -> bool:
        """Return whether the outcome is known."""
        return self._delivery.done()

    def result(self, timeout_seconds: float | None = None) -> RecordMetadata:
        """Wait for the acknowledgement. Raises the errors of `raftmq.Delivery`, and `TimeoutError` (the outcome is not known yet)."""
        if self._delivery.done():
            return self._delivery.result()

        async def wait() -> RecordMetadata:
            return await self._delivery

        return self._loop.run(wait(), timeout_seconds)

    def add_done_callback(self, callback: Callable[[Delivery], object]) -> None:
        """Call `callback` with this delivery when the outcome is known, as `raftmq.Delivery.add_done_callback` does.

        The callback blocks the SDK's background thread, so it must return quickly and must not call the SDK.
        """
        on_loop(self._loop, lambda: self._delivery.add_done_callback(lambda _: callback(self)))


class BulkDelivery:
    """The acknowledgement of one `Producer.send_many`, like `raftmq.BulkDelivery`, with `result` instead of ``await``."""

    __slots__ = ("_delivery", "_loop")

    def __init__(self) -> None:
        self._delivery = AsyncBulkDelivery()
        self._loop = LoopThread.get()

    @property
    def count(self) -> int:
        """Return the number of records added."""
        return self._delivery.count

    def done(self) -> bool:
        """Return whether every outcome is known."""
        return self._delivery.done()

    def failures(self) -> list[FailedRecords]:
        """Return the records that have failed so far, as `raftmq.BulkDelivery.failures` does."""
        return on_loop(self._loop, self._delivery.failures)

    def add_done_callback(self, callback: Callable[[BulkDelivery], object]) -> None:
        """Call `callback` with this delivery when every outcome is known, as `Delivery.add_done_callback` does."""
        on_loop(self._loop, lambda: self._delivery.add_done_callback(lambda _: callback(self)))

    def result(self, timeout_seconds: float | None = None) -> list[AppendedSpan]:
        """Wait for every outcome. Raises the errors of `raftmq.BulkDelivery`, and `TimeoutError` (some outcomes are not known yet)."""

        async def wait() -> list[AppendedSpan]:
            return await self._delivery

        return self._loop.run(wait(), timeout_seconds)
