"""`HandlerCalls`: runs a transformer's handler over records of a partition, and makes bytes of what it returns.

A plain function runs in a thread, many records for one hop; an async one runs on the event loop, several records side by side. Must not
know topics, partitions or what was written. Invariant: results are in the order of the records, and end before the first that failed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from typing import Any, NamedTuple, cast

from raftmq.client import settings
from raftmq.client.background import cancel_and_wait
from raftmq.client.record_checks import check_headers, check_timestamp, to_bytes
from raftmq.client.sequenced_batches import Cells
from raftmq.client.transformer.output import Output
from raftmq.client.transformer.routing import MadeOutput
from raftmq.client.worker.handlers import FIRST, Handlers
from raftmq.client.worker.thread_executor import ThreadPool
from raftmq.errors import InvalidArgumentError
from raftmq.types import Record

Serializer = Callable[[Any], bytes | None]  # Any: whatever the program puts into its outputs
MadeOutputs = tuple[MadeOutput, ...]


class Handled(NamedTuple):
    """What became of the first records of those that were given."""

    outputs: list[MadeOutputs]
    """Of each record that was handled. None may be: then the time was over, or the first one failed."""
    failure: BaseException | None
    """What the record after these failed with. None: it was not handled, because the time was over, or there is none."""


class HandlerCalls:
    """Of one transformer.

    Args:
        handlers: The handler and its deserializers.
        key_serializer, value_serializer: Make bytes of what is in outputs.
        concurrency: Threads, or async handlers that run at once, over all partitions.
        inputs: The topics that are read, to which no output may go.
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
        self._concurrency = concurrency
        self._inputs = inputs
        self._slots = asyncio.Semaphore(concurrency)
        self._threads: ThreadPool[Sequence[Record], Handled] = ThreadPool(concurrency, lambda: self._handle_all)

    async def handle(self, records: Sequence[Record]) -> Handled:
        """Handle records until one fails, or until time or outputs are enough for one chunk.

        Cancelled, async handlers are cancelled; a thread goes on, and what it makes is dropped.
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
            size += sum(one.cells.size for one in made)
            if size > settings.TRANSFORM_CHUNK_BYTES_MAX or time.monotonic() > end_at:
                break
        return Handled(outputs, None)

    # ------------------------------------------------------------------------------------------------------ on the loop

    async def _handle_on_loop(self, records: Sequence[Record]) -> Handled:
        running: list[asyncio.Task[MadeOutputs]] = []
        loop = asyncio.get_running_loop()
        end_at = loop.time() + settings.TRANSFORM_CHUNK_SECONDS
        async with AsyncExitStack() as stack:
            stack.push_async_callback(_cancel_all, running)
            for record in records:
                if running and (loop.time() > end_at or any(map(_has_failed, running[-self._concurrency :]))):
                    break
                await self._slots.acquire()
                running.append(loop.create_task(self._handle_one(record), name="raftmq-transform-handler"))
                running[-1].add_done_callback(lambda _: self._slots.release())
            outputs: list[MadeOutputs] = []
            for task in running:
                await asyncio.wait((task,))
                failure = _failure_of(task)
                if failure is not None:
                    return Handled(outputs, failure)
                outputs.append(task.result())
            return Handled(outputs, None)

    async def _handle_one(self, record: Record) -> MadeOutputs:
        return self._made(record, await cast("Awaitable[object]", self._handlers(record, FIRST)))

    # ---------------------------------------------------------------------------------------------------------- outputs

    def _made(self, record: Record, returned: object) -> MadeOutputs:
        """The outputs as bytes. Raises what a serializer raises, or `TypeError` for what is no output."""
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
                f"an output for {output.topic!r}, which this transformer reads, would come back to it: choose another topic"
            )
        cells = Cells(
            to_bytes(output.value, self._value_serializer, "value"),
            to_bytes(output.key, self._key_serializer, "key"),
            record.timestamp if output.timestamp_ms is None else check_timestamp(output.timestamp_ms),
            check_headers(output.headers)[0] if output.headers else (),
        )
        return MadeOutput(output.topic, output.partition, cells)


def _no_output(returned: object) -> TypeError:
    return TypeError(
        f"a transformer's handler returns an Output, several in a list or another iterable, or None; not {type(returned).__name__}"
    )


def _failure_of(task: asyncio.Task[MadeOutputs]) -> BaseException | None:
    """What a handler that has ended failed with, be it that something it waited for was cancelled."""
    return asyncio.CancelledError() if task.cancelled() else task.exception()


def _has_failed(task: asyncio.Task[MadeOutputs]) -> bool:
    return task.done() and _failure_of(task) is not None


async def _cancel_all(tasks: list[asyncio.Task[Any]]) -> None:  # Any: of no consequence
    await cancel_and_wait(*tasks)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # looked at: one behind a failure may have failed, too
