"""An asyncio event loop in virtual time, without selector and threads: time jumps to the next timer.

Callbacks run in the order in which they became ready, and timers in the order of their times and then of their creation. So a run
depends only on the seed. Work for threads runs on the loop after a random delay. The simulated network creates connections and
servers. Invariant: nothing here reads a clock or random source of the machine.
"""

# ruff: noqa: ANN401 -- signatures as loose as asyncio's overloads

from __future__ import annotations

import asyncio
import heapq
import itertools
import socket
import sys
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Executor, Future
from contextlib import suppress
from contextvars import Context, copy_context
from typing import Any, Protocol, TypeVar
from weakref import ref

from sim.cluster.world.host import HOST, Handle, Host

T = TypeVar("T")
EVENTS_AT_ONCE_MAX = 300_000
"""Maximum number of steps without progress of time. More mean a spinning loop."""
HANGS_SECONDS = 0.005
"""Time after which work of a disk that hangs is tried again."""


class SpinningError(Exception):
    """Callbacks run endlessly without progress of time."""


class SimTask(asyncio.Task[T]):
    """A task that is hashed by its number, so that the order of a set of tasks is deterministic."""

    __slots__ = ("host", "number")
    host: Host | None
    number: int

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return self is other


class SimFuture(asyncio.Future[T]):
    """A future that is hashed by its number."""

    __slots__ = ("number",)
    number: int

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return self is other


class Connector(Protocol):
    """Creates the connections of the loop."""

    async def connect(self, factory: Callable[[], Any], address: str) -> tuple[Any, Any]:
        """See `loop.create_connection`."""
        ...

    def listen(self, factory: Callable[[], Any], address: str) -> Any:
        """See `loop.create_server`."""
        ...


class VirtualLoop(asyncio.AbstractEventLoop):
    """An event loop in virtual time."""

    def __init__(self, thread_delay: Callable[[], float]) -> None:
        """Create the loop. `thread_delay` draws the duration of work for a thread."""
        self.now = 0.0
        """The time of the simulation in seconds, which hosts do not see."""
        self.steps = 0
        self.failures: list[tuple[str, BaseException | None]] = []
        """Uncaught failures, as (description, exception)."""
        self.connector: Connector | None = None
        self._thread_delay = thread_delay
        self._ready: deque[Handle] = deque()
        self._timers: list[tuple[float, int, Handle]] = []
        self._sequence = itertools.count()
        self._hashes = itertools.count(1)
        self._is_closed = False
        self._is_running = False
        self._factory: Callable[..., Any] | None = None
        self._generator_hosts: dict[int, Host | None] = {}
        self._tasks: list[ref[SimTask[Any]]] = []
        """All tasks, in the order of their creation."""
        self.graves: list[object] = []
        """Tasks and callbacks of dead hosts. They are kept because collecting them would run their `finally` blocks."""

    # ------------------------------------------------------------------------------------------------ time

    def time(self) -> float:
        """Return the time of the current host's clock."""
        host = HOST.get()
        return self.now if host is None else host.offset + self.now * host.rate

    def get_debug(self) -> bool:
        """Return False."""
        return False

    def is_running(self) -> bool:
        """Return whether the loop is running."""
        return self._is_running

    def is_closed(self) -> bool:
        """Return whether the loop was closed."""
        return self._is_closed

    # ------------------------------------------------------------------------------------------------ scheduling

    def call_soon(self, callback: Callable[..., object], *args: object, context: Context | None = None) -> Any:
        """Run the callback after all ready ones."""
        if context is None:
            context = copy_context()
        handle = Handle(callback, args, context, context.get(HOST), 0.0)
        if not self._is_closed:
            self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: object, context: Context | None = None
    ) -> Any:
        """Run the callback after `delay` seconds of the host's clock."""
        if context is None:
            context = copy_context()
        now = self.now
        host = context.get(HOST)
        if host is None:
            when = due = now + delay
        else:
            when = host.offset + now * host.rate + delay
            due = host.to_global(when)
        handle = Handle(callback, args, context, host, when, is_by_host_clock=host is not None)
        if not self._is_closed:
            heapq.heappush(self._timers, (due if due > now else now, next(self._sequence), handle))
        return handle

    def call_at(
        self, when: float, callback: Callable[..., object], *args: object, context: Context | None = None
    ) -> Any:
        """Run the callback at a time of the host's clock."""
        if context is None:
            context = copy_context()
        host = context.get(HOST)
        handle = Handle(callback, args, context, host, when, is_by_host_clock=host is not None)
        if not self._is_closed:
            self.push(when if host is None else host.to_global(when), handle)
        return handle

    def push(self, due: float, handle: Handle) -> None:
        """Run a handle at a time of the simulation. The same handle may be pushed repeatedly if nobody cancels it."""
        heapq.heappush(self._timers, (due if due > self.now else self.now, next(self._sequence), handle))

    def at(self, when: float, host: Host | None, callback: Callable[..., object], *args: object) -> Handle:
        """Run the callback at a time of the simulation, in this host, or outside of all hosts for None."""
        context = _WORLD if host is None else host.context
        handle = Handle(callback, args, context, host, when)
        if not self._is_closed:
            self.push(when, handle)
        return handle

    def handle(self, callback: Callable[..., object], *args: object) -> Handle:
        """Create a handle outside of all hosts, for `push`."""
        return Handle(callback, args, _WORLD, None, 0.0)

    def soon(self, host: Host | None, callback: Callable[..., object], *args: object) -> None:
        """Run the callback in this host after all ready ones."""
        if not self._is_closed:
            self._ready.append(Handle(callback, args, _WORLD if host is None else host.context, host, 0.0))

    def after(self, delay: float, host: Host | None, callback: Callable[..., object], *args: object) -> Handle:
        """Run the callback after `delay` seconds of the simulation."""
        return self.at(self.now + delay, host, callback, *args)

    def create_future(self) -> asyncio.Future[Any]:
        """Create a future of this loop."""
        future: SimFuture[Any] = SimFuture(loop=self)
        future.number = next(self._hashes)
        return future

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        """Create a task of the current host, or of the host whose context is given."""
        task: SimTask[T] = SimTask.__new__(SimTask)
        task.number = next(self._hashes)
        task.host = HOST.get() if context is None else context.get(HOST)
        task.__init__(coro, loop=self, name=name or "task", context=context)  # type: ignore[misc]  # numbered before it is hashed
        self._tasks.append(ref(task))
        return task

    def spawn(self, host: Host | None, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Create a task in a host."""
        return self.create_task(coroutine, context=(_WORLD if host is None else host.context).copy())

    def set_task_factory(self, factory: Callable[..., Any] | None) -> None:
        """Store the factory, which is not used."""
        self._factory = factory

    def get_task_factory(self) -> Callable[..., Any] | None:
        """Return the stored factory."""
        return self._factory

    # ------------------------------------------------------------------------------------------------ threads

    def run_in_executor(self, executor: Executor | None, func: Callable[..., T], *args: object) -> asyncio.Future[T]:
        """Run the function on the loop, after the random duration of work for a thread, or as the executor does if it keeps an order or may hang."""
        if executor is not None and getattr(executor, "runs_in_order", False):
            return asyncio.wrap_future(executor.submit(func, *args), loop=self)
        future: asyncio.Future[T] = self.create_future()
        self.call_later(self._thread_delay(), getattr(executor, "run_into", run_into), future, func, args)
        return future

    def submit(self, func: Callable[..., T], *args: object) -> Future[T]:
        """See `Executor.submit`."""
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()
        self.call_later(self._thread_delay(), run_into, future, func, args)
        return future

    # ------------------------------------------------------------------------------------------------ network

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> Any:
        """Return the name itself as its address."""
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (host, port))]

    async def create_connection(self, protocol_factory: Any, host: Any = "", port: Any = 0, **_: Any) -> Any:
        """Connect over the simulated network."""
        assert self.connector is not None
        return await self.connector.connect(protocol_factory, f"{host}:{port}")

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        """Listen on the simulated network."""
        assert self.connector is not None
        return self.connector.listen(protocol_factory, f"{host}:{port}")

    # ------------------------------------------------------------------------------------------------ running

    def run_in(self, host: Host, callback: Callable[..., object], *args: object) -> None:
        """Run the callback in this host now, or later if the host is frozen, or never if it is dead. Only called outside of all hosts."""
        if host.is_dead or host.is_frozen:
            self._ready.append(Handle(callback, args, host.context, host, 0.0))
        else:
            host.context.run(callback, *args)

    def run_until(self, is_done: Callable[[], bool], limit: float) -> bool:
        """Run until the condition holds (True) or the limit is reached (False). Raises `SpinningError`."""
        previous = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(self._on_generator, self._on_generator_lost)
        self._is_running = True
        try:
            return self._run(is_done, limit)
        finally:
            self._is_running = False
            sys.set_asyncgen_hooks(*hooks)
            asyncio._set_running_loop(previous)

    def _run(self, is_done: Callable[[], bool], limit: float) -> bool:
        ready, timers, pop = self._ready, self._timers, heapq.heappop
        take, add = ready.popleft, ready.append
        at_once = counted = 0
        while True:
            while ready:
                handle = take()
                callback = handle.callback
                if callback is None:
                    continue
                host = handle.host
                if host is not None:
                    if host.is_dead:
                        self.graves.append(handle)
                        continue
                    if host.is_frozen:
                        host.parked.append(handle)
                        continue
                at_once += 1
                if at_once > EVENTS_AT_ONCE_MAX:
                    raise SpinningError(f"{at_once} steps at {self.now:.3f} s, the last {callback!r} of {host}")
                try:
                    if handle.context is _WORLD:
                        callback(*handle.args)  # no other context is entered: code outside of all hosts uses this one
                    else:
                        handle.context.run(callback, *handle.args)
                except (SystemExit, KeyboardInterrupt, SimulationEnd):
                    raise
                except BaseException as error:  # noqa: BLE001 -- the root of all callbacks
                    self.failures.append((f"{host}: callback {callback!r}", error))
            self.steps += at_once - counted
            counted = at_once
            if is_done():
                return True
            if not timers or timers[0][0] > limit:
                self.now = max(self.now, limit)
                return False
            due = timers[0][0]
            if due > self.now:
                self.now = due
                at_once = counted = 0
            while timers and timers[0][0] <= due:
                handle = pop(timers)[2]
                if handle.callback is not None:
                    add(handle)

    def thaw(self, host: Host) -> None:
        """Resume a frozen host, beginning with the callbacks that became due while it was frozen, in order.

        If its machine was suspended, its clock paused, and its timers are due later by that time.
        """
        host.is_frozen = False
        parked, host.parked = host.parked, []
        if host.suspended_at is None:
            self._ready.extend(parked)
            return
        host.offset -= (self.now - host.suspended_at) * host.rate
        host.suspended_at = None
        self._ready.extend(handle for handle in parked if not handle.is_by_host_clock)
        self._timers[:] = [
            (host.to_global(handle.when()), number, handle)
            if handle.host is host and handle.is_by_host_clock
            else (due, number, handle)
            for due, number, handle in self._timers
        ]
        heapq.heapify(self._timers)
        for handle in parked:
            if handle.is_by_host_clock:
                self.push(host.to_global(handle.when()), handle)

    def kill(self, host: Host) -> None:
        """Kill a host: it runs nothing any more."""
        host.is_dead = True
        self.graves.extend(host.parked)
        host.parked = []
        self.graves.extend(task for task in asyncio.all_tasks(self) if not task.done())

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Record a failure that asyncio reports as uncaught."""
        if not self._is_closed:
            self.failures.append((str(context.get("message")), context.get("exception")))

    def unseen_failure(self) -> BaseException | None:
        """Return the first failure of a task that nobody has looked at. asyncio reports one only when it collects the task, which it never does here."""
        for known in self._tasks:
            task = known()
            if task is None or not task.done() or (task.host is not None and task.host.is_dead):
                continue
            if task._log_traceback:
                return task.exception()
        return None

    def close(self) -> None:
        """Close every remaining task. Their `finally` blocks run without any effect."""
        tasks = sorted((task for task in asyncio.all_tasks(self) if isinstance(task, SimTask)), key=hash)
        self._is_closed = True
        self._ready.clear()
        self._timers.clear()
        previous = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            for task in tasks:
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                with suppress(BaseException):
                    coroutine = task.get_coro()
                    if coroutine is not None:
                        coroutine.close()
        finally:
            asyncio._set_running_loop(previous)
        self.graves.clear()

    async def shutdown_asyncgens(self) -> None:
        """Do nothing."""

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 -- asyncio's name
        """Do nothing, since there is no executor."""

    def _on_generator(self, generator: Any) -> None:
        self._generator_hosts[id(generator)] = HOST.get()

    def _on_generator_lost(self, generator: Any) -> None:
        host = self._generator_hosts.pop(id(generator), None)
        if self._is_closed or (host is not None and host.is_dead):
            self.graves.append(generator)
        else:
            self.spawn(host, generator.aclose())


class SimulationEnd(BaseException):
    """Raised by a broken invariant to end the run immediately, from any depth of the call stack."""


_WORLD = Context()


def run_into(future: Any, func: Callable[..., object], args: tuple[object, ...]) -> None:
    """Run a function, and give its result to a future that nobody has cancelled."""
    if future.cancelled():
        return
    try:
        result = func(*args)
    except SimulationEnd:
        raise
    except BaseException as error:  # noqa: BLE001 -- handed to the future's waiter
        future.set_exception(error)
    else:
        future.set_result(result)
