"""Failures of handlers: how they are reported, and their effect on the record."""

from __future__ import annotations

import asyncio
import logging
import pickle
import random
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest
import raftmq
from raftmq import Attempt, HandlerFailure, Record, Reject, Retry
from raftmq.client.base import settings
from raftmq.client.worker.handlers import Handlers
from raftmq.client.worker.hooks import Hooks
from raftmq.client.worker.loop_executor import LoopExecutor
from raftmq.client.worker.loop_thread_executor import LoopThreadExecutor
from raftmq.client.worker.outcome import Failure, RetryPolicy, name_of_class
from raftmq.client.worker.work_loop import WorkLoop
from raftmq.errors import DeserializationError, DrainTimeoutError, HandlerError, InvalidArgumentError, PoisonRecordError

from tests.client.worker.test_work_loop import LIMITS, WAIT_SECONDS, Letters
from tests.support.client.fake_group import FakeConsumer

QUICK = RetryPolicy(2, 0.001, 0.001)


async def work(
    handler: Callable[..., object],
    *,
    values: tuple[bytes | None, ...] = (b"v",),
    retries: RetryPolicy = QUICK,
    letters: Letters | None = None,
    on_failure: Callable[[HandlerFailure], object] | None = None,
    handlers: Handlers | None = None,
) -> tuple[FakeConsumer, WorkLoop]:
    """Process records of one partition, each with its own key, until all are done, and stop."""
    consumer = FakeConsumer()
    executor = LoopExecutor(handlers or Handlers(handler), None)
    hooks = Hooks(on_failure=on_failure)
    loop = WorkLoop(lambda _: consumer, executor, "key", retries, LIMITS, letters, random.Random(1), hooks)
    consumer.listener = loop
    running = asyncio.ensure_future(loop.run())
    for number, value in enumerate(values):
        consumer.write(0, b"k%d" % number, value=value)
    await consumer.assign(0)
    async with asyncio.timeout(WAIT_SECONDS):
        done = asyncio.ensure_future(consumer.wait_committed(0, len(values)))
        await asyncio.wait((done, running), return_when=asyncio.FIRST_COMPLETED)
        done.cancel()
        loop.stop()
        await running
    return consumer, loop


# ------------------------------------------------------------------------------------------------------- who sees it


async def test_the_first_failure_of_a_kind_is_logged_with_its_text_and_traceback(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Further failures are logged at the bounded rate, and all of them at DEBUG."""
    monkeypatch.setattr(settings, "LOG_INTERVAL_SECONDS", 3600.0)

    async def handle(record: Record) -> None:
        if record.offset == 9:
            raise KeyError("another kind")
        raise ValueError("no such customer")

    caplog.set_level(logging.DEBUG, "raftmq")
    await work(handle, values=(b"v",) * 10, retries=RetryPolicy(0, 0, 0), letters=Letters())
    failed = [one for one in caplog.records if one.levelno == logging.WARNING and "handler_failed" in one.message]
    assert len(failed) == 2
    assert "offset=0 attempts=1 error=ValueError message=no such customer" in failed[0].message
    assert "error=KeyError message='another kind'" in failed[-1].message
    text = caplog.text
    assert 'raise ValueError("no such customer")' in text
    assert 'raise KeyError("another kind")' in text
    assert sum("handler_failed_again" in one.message for one in caplog.records) == 8


async def test_the_handlers_exception_is_the_cause_of_the_workers_error() -> None:
    mine = ValueError("no such customer")

    async def handle(record: Record) -> None:
        raise mine

    with pytest.raises(PoisonRecordError, match="no such customer") as told:
        await work(handle)
    assert told.value.__cause__ is mine


async def test_on_failure_is_called_for_each_failed_attempt(caplog: pytest.LogCaptureFixture) -> None:
    mine, heard = ValueError("mine"), list[HandlerFailure]()

    async def handle(record: Record) -> None:
        raise mine

    def on_failure(failure: HandlerFailure) -> None:
        heard.append(failure)
        raise RuntimeError("its own fault")

    _, loop = await work(handle, letters=Letters(), on_failure=on_failure)
    assert [(one.record.offset, one.attempt.number, one.attempt.is_last) for one in heard] == [
        (0, 1, False),
        (0, 2, False),
        (0, 3, True),
    ]
    assert all(one.error is mine for one in heard)
    assert [one.retry_after_seconds is None for one in heard] == [False, False, True]
    assert loop.metrics().dead_letters_total == 1, "it is no reason to stop"
    assert "failure_callback_failed" in caplog.text
    assert "its own fault" in caplog.text


def test_grpc_logs_nothing_at_debug() -> None:
    """A program that enables DEBUG wants to read about handlers."""
    assert logging.getLogger("grpc._cython.cygrpc").getEffectiveLevel() >= logging.INFO


# ------------------------------------------------------------------------------------------------------ what is tried


async def test_a_handler_with_a_second_parameter_gets_the_attempt() -> None:
    seen: list[tuple[int, int | None, bool]] = []

    async def handle(record: Record, attempt: Attempt) -> None:
        seen.append((attempt.number, attempt.number_max, attempt.is_last))
        if not attempt.is_last:
            raise ValueError

    await work(handle)
    assert seen == [(1, 3, False), (2, 3, False), (3, 3, True)]


async def test_retry_waits_as_requested_and_is_not_reported_as_a_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    begun: list[float] = []

    async def handle(record: Record, attempt: Attempt) -> None:
        begun.append(asyncio.get_running_loop().time())
        if attempt.number == 1:
            raise Retry("come again", after=0.2)

    heard: list[HandlerFailure] = []
    retries = RetryPolicy(1, 3600.0, 3600.0, retry_on=frozenset())
    _, loop = await work(handle, retries=retries, on_failure=heard.append)
    assert begun[1] - begun[0] >= 0.2
    assert loop.metrics().retries_total == 1
    assert heard == []
    assert "handler_failed" not in caplog.text


async def test_retry_counts_as_an_attempt_and_the_last_one_is_reported() -> None:
    letters, heard = Letters(), list[HandlerFailure]()

    async def handle(record: Record) -> None:
        raise Retry(after=0) from ConnectionError("down")

    await work(handle, letters=letters, on_failure=heard.append)
    assert letters.kept == [(0, 0, 3, "ConnectionError")]
    assert [(one.attempt.number, type(one.error)) for one in heard] == [(3, ConnectionError)]


@pytest.mark.parametrize("after", [-1, float("nan"), float("inf"), 86_401, "1"])
def test_an_invalid_retry_is_refused(after: float) -> None:
    with pytest.raises(InvalidArgumentError, match=r"after=.* seconds from 0 to 86400"):
        Retry(after=after)


def test_a_retry_can_be_pickled() -> None:
    sent = pickle.loads(pickle.dumps(Retry("busy", after=timedelta(minutes=2))))
    assert (sent.reason, sent.after_seconds, str(sent)) == ("busy", 120.0, "busy")
    assert pickle.loads(pickle.dumps(Retry())).after_seconds is None


async def test_reject_gives_up_a_record_immediately() -> None:
    letters = Letters()

    async def handle(record: Record) -> None:
        raise Reject("no such customer")

    _, loop = await work(handle, letters=letters)
    assert letters.kept == [(0, 0, 1, "raftmq.Reject")]
    assert loop.metrics().retries_total == 0
    with pytest.raises(PoisonRecordError, match=r"failed 1 times.*no such customer"):
        await work(handle)


class GoneError(ConnectionError):
    pass


@pytest.mark.parametrize(
    ("retry_on", "give_up_on", "error", "attempts"),
    [
        (None, (), ValueError("x"), 3),
        ((ConnectionError,), (), ValueError("x"), 1),
        ((ConnectionError,), (), GoneError(), 3),
        ((ConnectionError,), (GoneError,), GoneError(), 1),
        (None, (OSError,), GoneError(), 1),
        (None, (KeyError,), ValueError("x"), 3),
    ],
)
async def test_error_classes_determine_which_errors_are_retried(
    retry_on: tuple[type[BaseException], ...] | None,
    give_up_on: tuple[type[BaseException], ...],
    error: Exception,
    attempts: int,
) -> None:
    letters = Letters()

    async def handle(record: Record) -> None:
        raise error

    policy = RetryPolicy(
        2,
        0.001,
        0.001,
        None if retry_on is None else frozenset(map(name_of_class, retry_on)),
        frozenset(map(name_of_class, give_up_on)),
    )
    await work(handle, retries=policy, letters=letters)
    assert letters.kept == [(0, 0, attempts, name_of_class(type(error)))]


def test_the_death_of_a_process_matches_no_class_and_is_retried() -> None:
    policy = RetryPolicy(1, 0.0, 0.0, retry_on=frozenset({"ValueError"}))
    died = Failure("ProcessDied", "with exit code 9")
    assert policy.wait_seconds(died, 1, random.Random(1)) is not None
    assert isinstance(died.cause, HandlerError)
    assert "with exit code 9" in str(died.cause)


# ------------------------------------------------------------------------------------------------------- deserializers


async def test_the_handler_gets_deserialized_records_and_bytes_determine_the_order() -> None:
    seen: list[tuple[object, object]] = []

    async def handle(record: Record[str, int]) -> None:
        seen.append((record.key, record.value))

    handlers = Handlers(handle, key_deserializer=bytes.decode, value_deserializer=int)
    await work(handle, values=(b"17", None), handlers=handlers)
    assert sorted(seen, key=str) == [("k0", 17), ("k1", None)]


async def test_a_record_that_cannot_be_deserialized_is_given_up_immediately_and_unchanged() -> None:
    class Keeping(Letters):
        async def put(self, record: Record, attempts: int, failure: Failure) -> None:
            assert record.value == b"seventeen"
            assert isinstance(failure.cause, DeserializationError)
            assert isinstance(failure.cause.__cause__, ValueError)
            await super().put(record, attempts, failure)

    async def handle(record: Record[bytes, int]) -> None:
        raise AssertionError("it has nothing to work on")

    letters = Keeping()
    await work(handle, values=(b"seventeen",), handlers=Handlers(handle, value_deserializer=int), letters=letters)
    assert letters.kept == [(0, 0, 1, "raftmq.errors.DeserializationError")]


# ------------------------------------------------------------------------------------------------------------- handlers


async def test_each_topic_has_its_handler() -> None:
    called: list[str] = []

    def one(record: Record) -> None:
        called.append(f"one {record.topic}")

    def other(record: Record, attempt: Attempt) -> None:
        called.append(f"other {record.topic} {attempt.number}")

    handlers = Handlers({"orders": one, "refunds": other})
    assert handlers.topics == {"orders", "refunds"}
    for topic in ("orders", "refunds"):
        handlers(Record(topic, 0, 0, 0, None, None), Attempt(2))
    assert called == ["one orders", "other refunds 2"]


async def coroutine(record: Record) -> None:
    pass


@pytest.mark.parametrize(
    ("handler", "words"),
    [
        ({}, "this mapping is empty"),
        ({"a": coroutine, "b": print}, "either all async functions or all plain functions"),
        (lambda: None, "must take a record"),
        (lambda a, b, c: None, "must take a record"),
        ({"a": 3}, "a function of a record, not 3"),
    ],
)
def test_an_invalid_handler_is_refused(handler: object, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        Handlers(handler)


def test_a_parameter_with_a_default_does_not_get_the_attempt() -> None:
    seen: list[object] = []

    def handle(record: Record, limit: int = 3) -> None:
        seen.append(limit)

    Handlers(handle)(Record("t", 0, 0, 0, None, None), Attempt())
    assert seen == [3]


def test_signals_and_failures_are_public() -> None:
    for name in ("Attempt", "HandlerFailure", "Reject", "Retry"):
        assert name in raftmq.__all__
    assert settings.WORKER_RETRY_AFTER_SECONDS_MAX == 86_400


# ---------------------------------------------------------------------------------------------------------------- hooks


async def run_with(hooks: Hooks, handled: list[str]) -> FakeConsumer:
    async def handle(record: Record) -> None:
        handled.append("record")

    consumer = FakeConsumer()
    executor = LoopExecutor(Handlers(handle), None)
    loop = WorkLoop(lambda _: consumer, executor, "key", QUICK, LIMITS, None, random.Random(1), hooks)
    consumer.listener = loop
    running = asyncio.ensure_future(loop.run())
    consumer.write(0, b"a")
    async with asyncio.timeout(WAIT_SECONDS):
        await asyncio.sleep(0)
        if not running.done():
            await consumer.assign(0)
            done = asyncio.ensure_future(consumer.wait_committed(0, 1))
            await asyncio.wait((done, running), return_when=asyncio.FIRST_COMPLETED)
            done.cancel()
        loop.stop()
        await running
    return consumer


async def test_hooks_are_called_before_the_first_record_and_after_the_last() -> None:
    happened: list[str] = []

    async def startup() -> None:
        await asyncio.sleep(0.01)
        happened.append("startup")

    def shutdown() -> None:
        happened.append("shutdown")

    consumer = await run_with(Hooks(startup, shutdown), happened)
    assert happened == ["startup", "record", "shutdown"]
    assert consumer.is_closed


async def test_a_hook_that_fails_ends_the_worker_with_its_error() -> None:
    happened: list[str] = []

    def fail() -> None:
        raise LookupError("no database")

    with pytest.raises(LookupError, match="no database"):
        await run_with(Hooks(fail, lambda: happened.append("shutdown")), happened)
    assert happened == [], "what was not started is not shut down"
    with pytest.raises(LookupError, match="no database"):
        await run_with(Hooks(None, fail), happened)
    assert happened == ["record"]


async def test_the_wait_for_on_shutdown_is_bounded(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(settings, "WORKER_SHUTDOWN_HOOK_SECONDS", 0.01)

    async def hang() -> None:
        await asyncio.Event().wait()

    await run_with(Hooks(None, hang), [])
    assert "shutdown_hook_overdue" in caplog.text


async def test_neither_a_blocked_loop_nor_a_hook_that_waits_for_it_keeps_the_worker_from_ending(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(settings, "WORKER_SHUTDOWN_HOOK_SECONDS", 0.01)
    monkeypatch.setattr(settings, "WORKER_HANDLER_END_SECONDS", 0.01)
    begun, going = threading.Event(), threading.Event()

    async def block(record: Record) -> None:
        begun.set()
        going.wait(WAIT_SECONDS)

    consumer = FakeConsumer()
    executor = LoopThreadExecutor(Handlers(block), None)
    hooks, limits = Hooks(on_shutdown=lambda: None), replace(LIMITS, drain_seconds=0.01)
    loop = WorkLoop(lambda _: consumer, executor, "key", QUICK, limits, None, random.Random(1), hooks)
    consumer.listener = loop
    running = asyncio.ensure_future(loop.run())
    consumer.write(0, b"a")
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            await asyncio.sleep(0)
            await consumer.assign(0)
            assert await asyncio.to_thread(begun.wait, WAIT_SECONDS)
            loop.stop()
            with pytest.raises(DrainTimeoutError, match="1 handlers were still running"):
                await running
    finally:
        going.set()
    assert consumer.is_closed
    assert "shutdown_hook_overdue" in caplog.text


async def test_an_immediate_stop_starts_no_waiting_retry() -> None:
    begun: list[int] = []

    async def handle(record: Record) -> None:
        begun.append(record.offset)
        if record.offset == 0:
            await asyncio.Event().wait()
        if record.offset == 1:
            raise Retry(after=3600)

    consumer = FakeConsumer()
    limits = replace(LIMITS, drain_seconds=WAIT_SECONDS)
    executor = LoopExecutor(Handlers(handle), None)
    loop = WorkLoop(lambda _: consumer, executor, "key", QUICK, limits, None, random.Random(1))
    consumer.listener = loop
    running = asyncio.ensure_future(loop.run())
    consumer.write(0, b"a", b"b", b"c")
    async with asyncio.timeout(WAIT_SECONDS):
        await asyncio.sleep(0)
        await consumer.assign(0)
        while loop.metrics().records_total < 1 or loop.metrics().records_waiting < 1:
            await asyncio.sleep(0)
        loop.stop(at_once=True)
        with pytest.raises(DrainTimeoutError):
            await running
    assert sorted(begun) == [0, 1, 2], "what waited is not begun for a worker that ends immediately"
