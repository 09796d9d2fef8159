"""Handlers on the loop, in threads and in processes: the outcomes of attempts, and how attempts are stopped."""

from __future__ import annotations

import asyncio
import functools
import multiprocessing
import os
import signal
import subprocess
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from raftmq.client.worker.executor import place_of
from raftmq.client.worker.handlers import Handlers
from raftmq.client.worker.loop_executor import LoopExecutor
from raftmq.client.worker.loop_thread_executor import LoopThreadExecutor
from raftmq.client.worker.outcome import Failure
from raftmq.client.worker.process_executor import ProcessExecutor
from raftmq.client.worker.signals import Retry
from raftmq.client.worker.thread_executor import ThreadExecutor
from raftmq.errors import HandlerError, InvalidArgumentError
from raftmq.types import Record


def record(value: bytes = b"", offset: int = 0) -> Record:
    return Record("t", 0, offset, 0, None, value)


class OddError(Exception):
    """Can be pickled but not loaded again, like many classes with their own constructors."""

    def __init__(self, text: str, number: int) -> None:
        super().__init__(text)


class OddBase(BaseException):
    """Not an `Exception`, like gevent's Timeout."""


def plain(one: Record) -> None:
    """Handle a record as its value says, here or in another process."""
    word, _, rest = (one.value or b"").decode().partition(" ")
    if word == "raise":
        raise ValueError(rest)
    if word == "order":
        raise Retry(rest, after=7)
    if word == "odd":
        raise OddError(rest, 1)
    if word == "exit":
        raise SystemExit(rest)
    if word == "interrupt":
        raise KeyboardInterrupt(rest)
    if word == "base":
        raise OddBase(rest)
    if word == "die":
        os._exit(int(rest))
    if word == "program":
        with subprocess.Popen(["sleep", "60"]) as program:
            program.terminate()
            program.wait(10)
    if word == "pid":
        Path(rest).write_text(str(os.getpid()))
    if word == "hang":
        Path(rest).write_text(str(os.getpid()))
        threading.Event().wait()


async def coroutine(one: Record) -> None:
    await asyncio.sleep(0)
    plain(one)


class Instance:
    async def __call__(self, one: Record) -> None:
        pass


@pytest.mark.parametrize(
    ("handler", "wanted", "place"),
    [
        (plain, None, "thread"),
        (plain, "thread", "thread"),
        (plain, "process", "process"),
        (coroutine, None, "async"),
        (coroutine, "async", "async"),
        (functools.partial(coroutine), None, "async"),
        (Instance(), None, "async"),
    ],
)
def test_the_executor_of_a_handler(handler: Callable[[Record], object], wanted: str | None, place: str) -> None:
    assert place_of(Handlers(handler), wanted) == place


@pytest.mark.parametrize(
    ("handler", "wanted"), [(coroutine, "thread"), (coroutine, "process"), (plain, "async"), (plain, "moon"), (3, None)]
)
def test_impossible_executors_are_refused(handler: Callable[[Record], object], wanted: str | None) -> None:
    with pytest.raises(InvalidArgumentError):
        place_of(Handlers(handler), wanted)


@asynccontextmanager
async def process_executor(
    handler: Callable[[Record], object] = plain, count: int = 1, timeout_seconds: float | None = None
) -> AsyncIterator[ProcessExecutor]:
    executor = ProcessExecutor(Handlers(handler), count, timeout_seconds)
    await executor.start()
    try:
        yield executor
    finally:
        await executor.close()


async def test_an_exception_of_a_handler_is_a_failure() -> None:
    executors = (
        LoopExecutor(Handlers(coroutine), None),
        LoopThreadExecutor(Handlers(coroutine), None),
        ThreadExecutor(Handlers(plain), 2, None),
    )
    for executor in executors:
        await executor.start()
        assert await executor.run(record()) is None
        failure = await executor.run(record(b"raise no good"))
        assert failure is not None
        assert (failure.error, failure.message, failure.is_timeout) == ("ValueError", "no good", False)
        assert "plain" in failure.trace
        failure = await executor.run(record(b"exit 3"))
        assert failure is not None
        assert failure.error == "SystemExit"
        await executor.close()


async def test_any_exception_of_a_handler_is_a_failure_in_every_executor() -> None:
    async with process_executor() as processes:
        executors = (
            LoopThreadExecutor(Handlers(coroutine), None),
            ThreadExecutor(Handlers(plain), 1, None),
            processes,
        )
        for executor in executors:
            await executor.start()
            for word, error in (("interrupt", "KeyboardInterrupt"), ("base", f"{__name__}.OddBase")):
                async with asyncio.timeout(30):
                    failure = await executor.run(record(word.encode()))
                assert failure is not None
                assert failure.error == error
            assert await executor.run(record()) is None
            await executor.close()


def forgetful(one: Record) -> object:
    """Wrap a function as a decorator does that does not support async functions."""
    return coroutine(one)


class Compiled(Coroutine[object, object, None]):
    """A coroutine of an async function that Cython or mypyc has compiled: no `types.CoroutineType`."""

    def __await__(self) -> Generator[object, None, None]:
        yield None

    def send(self, value: object) -> object:
        raise StopIteration

    def throw(self, *_: object) -> object:
        raise StopIteration

    def close(self) -> None: ...


def compiled(one: Record) -> object:
    return Compiled()


def generator(one: Record) -> Iterator[int]:
    yield one.offset


async def no_await(one: Record) -> object:
    return coroutine(one)


async def asynchronous_generator(one: Record) -> AsyncIterator[int]:
    yield one.offset


async def test_a_handler_whose_code_does_not_run_has_not_succeeded() -> None:
    """Otherwise its records would be committed and lost."""
    async with process_executor(forgetful) as forgetful_processes, process_executor(generator) as generators:
        executors = (
            ThreadExecutor(Handlers(forgetful), 1, None),
            ThreadExecutor(Handlers(compiled), 1, None),
            ThreadExecutor(Handlers(generator), 1, None),
            ThreadExecutor(Handlers(asynchronous_generator), 1, None),
            LoopExecutor(Handlers(no_await), None),
            LoopThreadExecutor(Handlers(no_await), None),
            forgetful_processes,
            generators,
        )
        for executor in executors:
            await executor.start()
            with pytest.raises(InvalidArgumentError, match="whose code does not run by itself"):
                await executor.run(record())
            await executor.close()


async def test_a_handlers_own_timeout_or_cancellation_is_a_failure() -> None:
    async def impatient(one: Record) -> None:
        if one.offset == 0:
            raise TimeoutError("mine")
        raise asyncio.CancelledError

    executor = LoopExecutor(Handlers(impatient), 30.0)
    failure = await executor.run(record())
    assert failure is not None
    assert (failure.message, failure.is_timeout) == ("mine", False)
    failure = await executor.run(record(offset=1))
    assert failure is not None
    assert failure.error == "asyncio.exceptions.CancelledError"


async def test_an_async_handler_that_takes_too_long_is_cancelled() -> None:
    ended = asyncio.Event()

    async def slow(_: Record) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    failure = await LoopExecutor(Handlers(slow), 0.01).run(record())
    assert failure is not None
    assert failure.is_timeout
    assert ended.is_set()


async def test_an_exception_without_a_text_is_a_failure() -> None:
    class Mute(Exception):  # noqa: N818
        def __str__(self) -> str:
            raise RuntimeError

    failure = Failure.of(Mute())
    assert failure.error.endswith("Mute")
    assert "RuntimeError" in failure.message


async def test_threads_run_concurrently_up_to_their_limit() -> None:
    barrier = threading.Barrier(3, timeout=30)
    executor = ThreadExecutor(Handlers(lambda _: barrier.wait()), 3, None)
    assert await asyncio.gather(*(executor.run(record()) for _ in range(6))) == [None] * 6
    await executor.close()


async def test_an_overdue_thread_has_failed_and_its_attempt_ends_when_it_returns() -> None:
    """Otherwise the record would be tried again while the first attempt still runs."""
    going, asked = threading.Event(), threading.Event()

    def slow(_: Record) -> None:
        asked.set()
        going.wait(30)

    executor = ThreadExecutor(Handlers(slow), 1, 0.01)
    trying = asyncio.ensure_future(executor.run(record()))
    done, _ = await asyncio.wait((trying,), timeout=0.1)
    assert asked.is_set()
    assert not done
    going.set()
    failure = await trying
    assert failure is not None
    assert failure.is_timeout
    await executor.close()


async def test_a_thread_that_is_in_time_has_not_failed() -> None:
    executor = ThreadExecutor(Handlers(plain), 1, 30.0)
    assert await executor.run(record()) is None
    failure = await executor.run(record(b"raise x"))
    assert failure is not None
    assert not failure.is_timeout
    await executor.close()


async def test_processes_report_dead_and_overdue_handlers_and_are_replaced(tmp_path: Path) -> None:
    """One executor is used for all of it, because each process costs half a second."""
    place = tmp_path / "pid"
    async with process_executor(timeout_seconds=20.0) as executor:
        assert await executor.run(record(b"pid %s" % os.fsencode(place))) is None
        first = int(place.read_text())
        assert first != os.getpid()
        failure = await executor.run(record(b"raise no good"))
        assert failure is not None
        assert (failure.error, failure.message) == ("ValueError", "no good")
        assert "plain" in failure.trace
        assert isinstance(failure.cause, ValueError)
        assert "plain" in str(failure.cause.__cause__), "the traceback of there"
        odd = await executor.run(record(b"odd thing"))
        assert odd is not None
        assert isinstance(odd.cause, HandlerError)
        assert "OddError: thing" in str(odd.cause)
        assert "plain" in str(odd.cause.__cause__)
        assert await executor.run(record(b"program")) is None, "it can terminate the programs that it runs"
        ordered = await executor.run(record(b"order later"))
        assert ordered is not None
        assert (ordered.is_retry, ordered.retry_after_seconds, ordered.message) == (True, 7, "later")
        os.kill(
            first, signal.SIGTERM
        )  # as a service manager signals all processes: the worker drains, so its processes continue
        os.kill(first, signal.SIGINT)
        assert await executor.run(record(b"pid %s" % os.fsencode(place))) is None
        assert int(place.read_text()) == first
        failure = await executor.run(record(b"die 7"))
        assert failure is not None
        assert failure.message == "the handler's process ended with exit code 7"
        assert await executor.run(record(b"pid %s" % os.fsencode(place))) is None
        assert int(place.read_text()) != first
        second = int(place.read_text())
        os.kill(second, signal.SIGKILL)  # as the kernel does when memory is short
        await asyncio.to_thread(os.waitid, os.P_PID, second, os.WEXITED | os.WNOWAIT)
        assert await executor.run(record(b"pid %s" % os.fsencode(place))) is None, "it was between two records"
    third = int(place.read_text())
    await asyncio.to_thread(os.waitid, os.P_PID, third, os.WEXITED | os.WNOWAIT)


async def test_a_signal_does_not_end_a_process_that_is_still_starting() -> None:
    """The worker then ended with the error that its handler cannot be loaded, instead of draining."""
    executor = ProcessExecutor(Handlers(plain), 1, None)
    starting = asyncio.ensure_future(executor.start())
    while not (found := [child.pid for child in multiprocessing.active_children() if child.name == "raftmq-worker"]):
        await asyncio.sleep(0.001)
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(found[0] or 0, number)
    await starting
    assert await executor.run(record()) is None
    await executor.close()


@pytest.mark.slow
async def test_a_process_that_takes_too_long_is_killed(tmp_path: Path) -> None:
    place = tmp_path / "pid"
    async with process_executor(timeout_seconds=2.0) as executor:
        failure = await executor.run(record(b"hang %s" % os.fsencode(place)))
        assert failure is not None
        assert failure.is_timeout
        with pytest.raises(ProcessLookupError):
            os.kill(int(place.read_text()), 0)


async def test_a_handler_that_processes_cannot_import_is_refused_immediately() -> None:
    with pytest.raises(InvalidArgumentError, match="top level of a module"):
        ProcessExecutor(Handlers(lambda _: None), 1, None)


class Unloadable:
    """Can be pickled but not loaded again, like a function whose module cannot be imported in a new process."""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return __import__, ("no_such_module_anywhere",)

    def __call__(self, one: Record) -> None:
        pass


async def test_a_handler_that_cannot_be_loaded_in_a_process_is_refused_at_the_start() -> None:
    executor = ProcessExecutor(Handlers(Unloadable()), 1, None)
    with pytest.raises(InvalidArgumentError, match="no_such_module_anywhere"):
        await executor.start()
    with pytest.raises(InvalidArgumentError, match="no_such_module_anywhere"):
        await executor.run(record())  # the later failure does not count against the record, either
    await executor.close()


# -------------------------------------------------------------------------------------------------- a loop of their own


async def test_a_handler_that_blocks_its_loop_does_not_block_ours() -> None:
    going, asked = threading.Event(), threading.Event()

    async def block(one: Record) -> None:
        asked.set()
        going.wait(30)

    executor = LoopThreadExecutor(Handlers(block), None)
    await executor.start()
    trying = asyncio.ensure_future(executor.run(record()))
    assert await asyncio.to_thread(asked.wait, 30)
    trying.cancel()
    done, _ = await asyncio.wait((trying,), timeout=0.1)
    assert not done, "cancelled once it waits for the handler, which has not ended"
    trying.cancel()
    done, _ = await asyncio.wait((trying,), timeout=30)
    assert done
    assert trying.cancelled()
    going.set()
    await executor.close()


async def test_cancelling_run_cancels_a_handler_on_another_loop_and_waits_for_it() -> None:
    ended = threading.Event()
    begun = threading.Event()

    async def slow(_: Record) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.05)
            ended.set()

    executor = LoopThreadExecutor(Handlers(slow), None)
    await executor.start()
    trying = asyncio.ensure_future(executor.run(record()))
    assert await asyncio.to_thread(begun.wait, 30)
    trying.cancel()
    await asyncio.wait((trying,))
    assert ended.is_set()
    failure = await overdue(slow)
    assert failure is not None
    assert failure.is_timeout
    await executor.close()


async def overdue(handler: Callable[[Record], object]) -> Failure | None:
    executor = LoopThreadExecutor(Handlers(handler), 0.01)
    await executor.start()
    try:
        return await executor.run(record())
    finally:
        await executor.close()


async def test_system_exit_in_a_handlers_task_does_not_end_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    """Otherwise the results of the other handlers would never arrive."""

    async def leave() -> None:
        raise SystemExit(3)

    async def handle(one: Record) -> None:
        leaving = asyncio.ensure_future(leave())
        await asyncio.wait((leaving,))
        assert isinstance(leaving.exception(), SystemExit)

    executor = LoopThreadExecutor(Handlers(handle), None)
    await executor.start()
    async with asyncio.timeout(30):
        assert await executor.run(record()) is None
        assert await executor.run(record()) is None
    assert "handler_loop_interrupted" in caplog.text
    await executor.close()


async def test_hooks_and_handlers_share_a_loop() -> None:
    """Objects that a hook opens belong to the handlers' loop."""
    loops: list[asyncio.AbstractEventLoop] = []

    async def note(*_: object) -> None:
        loops.append(asyncio.get_running_loop())

    async def handle(one: Record) -> None:
        await note()

    executor = LoopThreadExecutor(Handlers(handle), None)
    await executor.start()
    await executor.call(note)
    assert await executor.run(record()) is None
    assert loops[0] is loops[1] is not asyncio.get_running_loop()
    with pytest.raises(LookupError):
        await executor.call(fail)
    await executor.close()


def fail() -> None:
    raise LookupError
