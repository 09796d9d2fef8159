"""A transformer's handler: where it runs, its valid results, and the effect of its failures."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from raftmq import Output
from raftmq.client.base import settings
from raftmq.client.transformer.handler_calls import HandlerCalls
from raftmq.client.transformer.transformer import Transformer
from raftmq.client.worker.handlers import Handlers
from raftmq.errors import DeserializationError, InvalidArgumentError, UnsupportedCompressionError
from raftmq.types import Record

RECORDS = [Record("in", 0, offset, 1000 + offset, b"k", b"%d" % offset) for offset in range(10)]


def calls_of(
    handler: Callable[..., Any], *, concurrency: int = 3, value_serializer: Any = None, **deserializers: Any
) -> HandlerCalls:
    return HandlerCalls(Handlers(handler, **deserializers), None, value_serializer, concurrency, frozenset({"in"}))


async def values_of(calls: HandlerCalls) -> list[list[bytes | None]]:
    handled = await calls.handle(RECORDS)
    calls.close()
    assert handled.failure is None
    return [[one.cells.value for one in made] for made in handled.outputs]


async def test_a_plain_handler_runs_in_a_thread_and_its_outputs_keep_the_order_of_the_records() -> None:
    threads = set()

    def handle(record: Record) -> Any:
        threads.add(threading.current_thread())
        number = record.offset % 4
        outputs = [Output("out", record.value) for _ in range(number)]
        return [None, outputs[0] if outputs else None, outputs, iter(outputs)][number]

    found = await values_of(calls_of(handle))
    assert found == [[b"%d" % offset] * (offset % 4) for offset in range(10)]
    assert threading.current_thread() not in threads


async def test_async_handlers_run_concurrently_up_to_their_limit() -> None:
    running = most = 0
    gate = asyncio.Event()

    async def handle(record: Record) -> Output:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 3:
            gate.set()
        await gate.wait()
        await asyncio.sleep(0.001 * (10 - record.offset))
        running -= 1
        return Output("out", record.value)

    assert await values_of(calls_of(handle)) == [[b"%d" % offset] for offset in range(10)]
    assert most == 3


def failing(offset: int) -> Callable[[Record], Output]:
    def handle(record: Record) -> Output:
        if record.offset == offset:
            raise KeyError(offset)
        return Output("out", record.value)

    return handle


async def test_results_end_before_the_first_failed_record() -> None:
    plain = failing(4)

    async def handle(record: Record) -> Output:
        await asyncio.sleep(0)
        return plain(record)

    for handler in (plain, handle):
        calls = calls_of(handler)
        handled = await calls.handle(RECORDS)
        calls.close()
        assert len(handled.outputs) == 4
        assert isinstance(handled.failure, KeyError)


async def test_slow_handlers_make_small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small chunks let finished outputs be written early."""
    monkeypatch.setattr(settings, "TRANSFORM_CHUNK_SECONDS", 0.0)

    async def handle(record: Record) -> Output:
        await asyncio.sleep(0.01)
        return Output("out", record.value)

    for handler in (failing(-1), handle):
        calls = calls_of(handler)
        handled = await calls.handle(RECORDS)
        calls.close()
        assert 1 <= len(handled.outputs) < 10


@pytest.mark.parametrize(
    ("returned", "error", "text"),
    [
        (5, TypeError, "must return an Output, an iterable of them, or None, not int"),
        ("text", TypeError, "not str"),
        ([Output("out"), b"x"], TypeError, "not bytes"),
        (Output("out", 5), TypeError, "value_serializer"),
        (Output("out", b"", 5), TypeError, "key_serializer"),
        (Output("out", timestamp_ms="now"), TypeError, "timestamp_ms"),
        (Output("out", headers=[("a", "b")]), TypeError, "headers"),
        (Output("in", b""), InvalidArgumentError, "would be read by this transformer again"),
    ],
)
async def test_an_invalid_output_is_a_failure_of_the_record(returned: Any, error: type[Exception], text: str) -> None:
    calls = calls_of(lambda _: returned)
    handled = await calls.handle(RECORDS)
    calls.close()
    assert handled.outputs == []
    assert isinstance(handled.failure, error)
    assert text in str(handled.failure)


async def test_a_failing_deserializer_is_a_failure_of_the_record() -> None:
    calls = calls_of(lambda record: None, value_deserializer=lambda value: 1 // int(value))
    handled = await calls.handle(RECORDS)
    calls.close()
    assert handled.outputs == []
    assert isinstance(handled.failure, DeserializationError)


async def test_cancelling_ends_async_handlers() -> None:
    ended = []

    async def handle(record: Record) -> Output:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append(record.offset)
        raise AssertionError

    handling = asyncio.create_task(calls_of(handle).handle(RECORDS))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    handling.cancel()
    await asyncio.wait((handling,))
    assert handling.cancelled()
    assert len(ended) > 0


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"topic": ""}, InvalidArgumentError),
        ({"topic": ()}, InvalidArgumentError),
        ({"group_id": ""}, InvalidArgumentError),
        ({"handler": None}, InvalidArgumentError),
        ({"concurrency": 0}, InvalidArgumentError),
        ({"partitioner": "md5"}, InvalidArgumentError),
        ({"compression_type": "rar"}, UnsupportedCompressionError),
        ({"value_serializer": 5}, InvalidArgumentError),
        ({"bootstrap_servers": "nowhere"}, InvalidArgumentError),
        ({"session_timeout_ms": 0}, InvalidArgumentError),
        ({"session_timeout_ms": 6e3}, TypeError),
        ({"concurrency": 2.5}, TypeError),
    ],
)
def test_invalid_settings_are_refused(wrong: dict[str, Any], error: type[Exception]) -> None:
    arguments: dict[str, Any] = {"topic": "in", "group_id": "g", "handler": print} | wrong
    with pytest.raises(error):
        Transformer(arguments.pop("topic"), arguments.pop("group_id"), arguments.pop("handler"), **arguments)
