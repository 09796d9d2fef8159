"""`ProcessExecutor`: runs plain functions in processes, which use all cores and can be killed.

Each process handles one record at a time, and is replaced when it exceeds its time limit or dies. Processes are spawned, never forked:
gRPC does not survive a fork. Only the handler, records and outcomes cross between processes, all pickled.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import ClassVar, Final, NamedTuple

from raftmq.client.base import settings
from raftmq.client.base.stop_requests import STOP_SIGNALS
from raftmq.client.base.tracing import active_tracing, joined_trace
from raftmq.client.worker.executor import Hook, call_hook
from raftmq.client.worker.handlers import FIRST, Attempt, Handlers, check_has_run
from raftmq.client.worker.outcome import Failure, Outcome
from raftmq.client.worker.thread_executor import ThreadPool, Try
from raftmq.errors import InvalidArgumentError
from raftmq.types import Record

_SPAWN: Final = multiprocessing.get_context("spawn")
READY: Final = "ready"


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    """Hold signals back from a process that is started in the block, until `serve` ignores them: it imports the program before."""
    if sys.platform == "win32":
        yield
        return
    resource_tracker.ensure_running()  # every process needs it, and its start would let the signals through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def serve(connection: Connection, pickled: bytes) -> None:
    """Run a child process: load the handler, report it, then handle one record after another until the pipe ends."""
    # Ctrl-C and a service manager's SIGTERM reach the whole process group. The worker drains, and its pipe tells this process when to end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Programs that a handler runs would inherit that SIGTERM is ignored, and nobody could terminate them.
    signal.signal(signal.SIGTERM, _do_nothing)
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)  # see `_signals_held`
    try:
        handlers: Handlers[object, object] = pickle.loads(pickled)
    except BaseException as error:  # noqa: BLE001 - the user's module is imported here, and it may raise anything
        connection.send(_portable(error))
        return
    connection.send(READY)
    with contextlib.suppress(EOFError, ConnectionError):  # the worker has ended, for whatever reason
        while True:
            record, attempt, carrier = connection.recv()
            try:
                with joined_trace(carrier):
                    result = handlers(record, attempt)
            except BaseException as error:  # noqa: BLE001 - the root of the user's code: whatever it raises is its failure
                connection.send(_portable(error))
            else:
                connection.send(_mistake_in(result))


def _do_nothing(*_: object) -> None:
    pass


def _mistake_in(result: object) -> str | None:
    """Return the error text for a handler that returned this value, or None if it is valid."""
    try:
        check_has_run(result)
    except InvalidArgumentError as error:
        return str(error.args[0])
    return None


class RemoteTraceback(Exception):  # noqa: N818 - it shows a traceback, and is never raised
    """The traceback of an exception in a handler's process: the cause of the exception's copy in the worker."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class _PortableFailure(NamedTuple):
    """A failure in the form in which it is sent between processes."""

    failure: Failure
    """The failure without its exception."""
    exception: bytes | None
    """The pickled exception, or None if it cannot be pickled. Only the receiver finds out whether it can be loaded."""
    trace: str


def _portable(error: BaseException) -> _PortableFailure:
    failure = Failure.of(error)
    try:
        exception = pickle.dumps(failure.exception)
    except Exception:  # noqa: BLE001 - the user's own class
        exception = None
    return _PortableFailure(replace(failure, exception=None), exception, failure.trace)


def _loaded(portable: _PortableFailure) -> Failure:
    """Return the original failure. The cause of its exception is the text of the remote traceback."""
    failure = portable.failure
    exception: object = None
    if portable.exception is not None:
        with contextlib.suppress(Exception):  # the user's own class: a constructor with other arguments, say
            exception = pickle.loads(portable.exception)
    found = exception if isinstance(exception, BaseException) else failure.cause
    found.__cause__ = RemoteTraceback(portable.trace)
    return replace(failure, exception=found)


class _Child:
    """One process and the thread that talks to it. Other threads call only `kill`."""

    def __init__(self, pickled: bytes, timeout_seconds: float | None) -> None:
        self._pickled = pickled
        self._timeout_seconds = timeout_seconds
        self._lock = threading.Lock()
        self._process: BaseProcess | None = None
        self._connection: Connection | None = None
        self._is_closed = False
        self._tracing = active_tracing()

    def begin(self) -> None:
        """Start the process unless it is running.

        Raises:
            InvalidArgumentError: the process cannot load the handler, or ended before it did.
            OSError: no process can be started.
        """
        with self._lock:
            if self._is_closed or self._connection is not None:
                return
            ours, theirs = _SPAWN.Pipe()
            process = _SPAWN.Process(target=serve, args=(theirs, self._pickled), name="raftmq-worker", daemon=True)
            with _signals_held():
                process.start()
            theirs.close()  # so that the pipe ends with the process
            self._process, self._connection = process, ours
        try:
            answer = ours.recv() if ours.poll(settings.WORKER_PROCESS_START_SECONDS) else None
        except EOFError:
            answer = None
        if answer == READY:
            return
        code = self._end()
        why = f"it ended with exit code {code}"
        if isinstance(answer, _PortableFailure):
            why = f"{answer.failure.error}: {answer.failure.message}"
        raise InvalidArgumentError(f"the handler cannot be loaded in a separate process: {why}")

    def call(self, request: Try) -> Outcome:
        """Let the process handle a record.

        Raises as `begin` and `check_has_run` do: those errors do not count against the record.
        """
        self.begin()
        if not self._send(request):  # the process has ended since its last record, so this one has not begun
            self._end()
            self.begin()
            self._send(request)
        connection = self._connection
        if connection is None:
            return Failure("ProcessDied", "the worker was closed")
        try:
            if connection.poll(self._timeout_seconds):
                answer: _PortableFailure | str | None = connection.recv()
                if isinstance(answer, str):
                    raise InvalidArgumentError(answer)
                return None if answer is None else _loaded(answer)
        except (EOFError, OSError):
            code = self._end()
            return Failure("ProcessDied", f"the handler's process ended with exit code {code}")
        self._end()
        assert self._timeout_seconds is not None
        return Failure.overdue(self._timeout_seconds)

    def _send(self, request: Try) -> bool:
        """Hand a record to the process. Return False if the process has ended."""
        try:
            if self._connection is not None:  # None: the worker was closed
                self._connection.send((*request, {} if self._tracing is None else self._tracing.carrier()))
        except OSError:
            return False
        return True

    def _end(self) -> int | None:
        with self._lock:
            process, connection = self._process, self._connection
            self._process = self._connection = None
        if connection is not None:
            connection.close()
        if process is None:
            return None
        process.kill()
        process.join()
        return process.exitcode

    def kill(self) -> None:
        """End the process permanently. A running call fails."""
        with self._lock:
            self._is_closed = True
            if self._process is not None:
                self._process.kill()


class ProcessExecutor:
    """Runs handlers in processes.

    A process finds a handler by its name, so the handler must be a function of a module (or otherwise picklable).
    """

    can_cancel: ClassVar[bool] = False

    def __init__(self, handlers: Handlers[object, object], count: int, timeout_seconds: float | None) -> None:
        try:
            self._pickled = pickle.dumps(handlers)
        except Exception as error:
            raise InvalidArgumentError(
                "handlers and deserializers for processes must be functions at the top level of a module, so that the processes can "
                f"import them: {error}"
            ) from error
        self._timeout_seconds = timeout_seconds
        self._children: list[_Child] = []
        self._first: _Child | None = None
        self._lock = threading.Lock()
        self._pool: ThreadPool[Try, Outcome] = ThreadPool(count, self._make_call)

    async def start(self) -> None:
        """Start one process to check that it can load the handler. The other processes start on demand."""
        self._first = self._new_child()
        await asyncio.to_thread(self._first.begin)

    async def call(self, hook: Hook) -> None:
        """Implement `Executor.call`, in the worker's own process."""
        await call_hook(hook)

    async def run(self, record: Record, attempt: Attempt = FIRST) -> Outcome:
        """Implement `Executor.run`."""
        return await self._pool.run((record, attempt))

    async def close(self) -> None:
        """Kill the processes."""
        self._pool.close()
        with self._lock:
            for child in self._children:
                child.kill()

    def _make_call(self) -> Callable[[Try], Outcome]:
        with self._lock:
            first, self._first = self._first, None
        return (first or self._new_child()).call

    def _new_child(self) -> _Child:
        child = _Child(self._pickled, self._timeout_seconds)
        with self._lock:
            self._children.append(child)
        return child
