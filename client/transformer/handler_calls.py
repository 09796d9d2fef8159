"""`HandlerCalls`: runs a transformer's handler over records of a partition, and serializes its outputs.

A plain function runs in a thread, with many records per call of the thread. An async function runs on the event loop, with several records
concurrently. Must not know topics, partitions or the records written. Invariant: results are in the order of the records, and end before
the first record that failed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, NamedTuple, cast

from raftmq.client.base import settings
from raftmq.client.base.background import cancel_and_wait
from raftmq.client.codec.cells import check_headers, to_bytes
from raftmq.client.producer.record_checks import check_timestamp
from raftmq.client.producer.sequenced_batches import cells_of
from raftmq.client.transformer.output import Output
from raftmq.client.transformer.routing import MadeOutput
from raftmq.client.worker.handlers import FIRST, Handlers
from raftmq.client.worker.thread_executor import ThreadPool
from raftmq.errors import InvalidArgumentError
from raftmq.types import Record

Serializer = Callable[[Any], bytes | None]  # Any: the program's own types
MadeOutputs = tuple[MadeOutput, ...]


class Handled(NamedTuple):
    """The result for the first of the given records."""

    outputs: list[MadeOutputs]
    """The outputs of each handled record. It may be empty: the time was over, or the first record failed."""
    failure: BaseException | None
    """The error of the next record. None: that record was not handled because the chunk was full, or there is none."""


class HandlerCalls:
    """Runs the handlers of one transformer.

    Args:
        handlers: The handler and its deserializers.
        key_serializer, value_serializer: Serialize the keys and values of outputs.
        concurrency: Threads, or async handlers that run concurrently, over all partitions.
        inputs: The input topics. No output may go to them.
    """

    def __init__(
        self,
        handlers: Handlers[object, object],
        key_serializer: Serializer | None,
        value_serializer: Serializer | None,
        concurrency: int,
        inputs: frozenset[str],
    ) -> None:
        self._handlers = handlers
        self._key_serializer = key_serializer
        self._value_serializer = value_serializer
        self._inputs = inputs
        self._slots = asyncio.Semaphore(concurrency)
        self._threads: ThreadPool[Sequence[Record], Handled] = ThreadPool(concurrency, lambda: self._handle_all)

    async def handle(self, records: Sequence[Record]) -> Handled:
        """Handle records until one fails, or until the time or size limit of a chunk is reached.

        If it is cancelled, async handlers are cancelled. A thread continues, and its outputs are dropped.
        """
        if self._handlers.is_async:
            return await self._handle_on_loop(records)
        return await self._threads.run(records)

    def close(self) -> None:
        """Let the threads end."""
        self._threads.close()

    # ------------------------------------------------------------------------------------------------------ in a thread

    def _handle_all(self, records: Sequence[Record]) -> Handled:
        outputs: list[MadeOutputs] = []
        size = 0
        end_at = time.monotonic() + settings.TRANSFORM_CHUNK_SECONDS
        for record in records:
            try:
                made = self._made(record, self._handlers(record, FIRST))
            except BaseException as error:  # noqa: BLE001 - the root of the user's code: whatever it raises is its failure
                return Handled(outputs, error)
            outputs.append(made)
            for one in made:
                size += one.cells.size
            if size > settings.TRANSFORM_CHUNK_BYTES_MAX or time.monotonic() > end_at:
                break
        return Handled(outputs, None)

    # ------------------------------------------------------------------------------------------------------ on the loop

    async def _handle_on_loop(self, records: Sequence[Record]) -> Handled:
        """Let several tasks take records one after another. Every record taken is finished, so results have no gap."""
        results: list[MadeOutputs | BaseException] = []
        queue = iter(records)
        loop = asyncio.get_running_loop()
        end_at = loop.time() + settings.TRANSFORM_CHUNK_SECONDS
        is_over = False
        size = 0

        async def work() -> None:
            nonlocal is_over, size
            while not is_over and (record := next(queue, None)) is not None:
                number = len(results)
                results.append(())
                try:
                    returned = await cast("Awaitable[object]", self._handlers(record, FIRST))
                    made = results[number] = self._made(record, returned)
                    size += sum(one.cells.size for one in made)
                except BaseException as error:
                    task = asyncio.current_task()
                    if task is not None and task.cancelling():
                        raise
                    results[number] = error
                    is_over = True
                is_over = is_over or size > settings.TRANSFORM_CHUNK_BYTES_MAX or loop.time() > end_at

        workers: list[asyncio.Task[None]] = []
        try:
            while not workers or (len(workers) < len(records) and not self._slots.locked()):
                await self._slots.acquire()
                workers.append(loop.create_task(work(), name="raftmq-transform-handlers"))
                workers[-1].add_done_callback(lambda _: self._slots.release())
            await asyncio.gather(*workers)
        finally:
            await cancel_and_wait(*workers)
        outputs: list[MadeOutputs] = []
        for result in results:
            if isinstance(result, BaseException):
                return Handled(outputs, result)
            outputs.append(result)
        return Handled(outputs, None)

    # ---------------------------------------------------------------------------------------------------------- outputs

    def _made(self, record: Record, returned: object) -> MadeOutputs:
        """Return the serialized outputs. Raises a serializer's exception, or `TypeError` for a value that is no output."""
        if returned is None:
            return ()
        if isinstance(returned, Output):
            return (self._made_one(record, returned),)
        if isinstance(returned, str | bytes) or not isinstance(returned, Iterable):
            raise _no_output(returned)
        return tuple(self._made_one(record, one) for one in returned)

    def _made_one(self, record: Record, output: object) -> MadeOutput:
        if not isinstance(output, Output):
            raise _no_output(output)
        if output.topic in self._inputs:
            raise InvalidArgumentError(
                f"an output for {output.topic!r} would be read by this transformer again: choose a topic that is not among its inputs"
            )
        cells = cells_of(
            to_bytes(output.value, self._value_serializer, "value"),
            to_bytes(output.key, self._key_serializer, "key"),
            record.timestamp if output.timestamp_ms is None else check_timestamp(output.timestamp_ms),
            check_headers(output.headers)[0] if output.headers else (),
        )
        return MadeOutput(output.topic, output.partition, cells)


def _no_output(returned: object) -> TypeError:
    return TypeError(
        f"a transformer's handler must return an Output, an iterable of them, or None, not {type(returned).__name__}"
    )
