"""An asyncio event loop in virtual time: no selector, no threads; time jumps to the next timer.

What is ready runs in the order in which it became so, timers in the order of their times and then of their making, so a run
depends on nothing but the seed. Work for threads runs on the loop after a drawn delay. Connections and servers are made by
the simulated network. Invariant: nothing here reads a clock or chance of the machine.
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

from sim.cluster.world.host import HOST, Handle, Host

T = TypeVar("T")
EVENTS_AT_ONCE_MAX = 300_000
"""So many steps without time passing are a loop that spins."""


class SpinningError(Exception):
    """Something goes round without time passing."""


class SimTask(asyncio.Task[T]):
    """A task that is hashed by its number, so that sets of tasks have one order."""

    __slots__ = ("number",)
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
    """Who makes connections."""

    async def connect(self, factory: Callable[[], Any], address: str) -> tuple[Any, Any]:
        """See `loop.create_connection`."""
        ...

    def listen(self, factory: Callable[[], Any], address: str) -> Any:
        """See `loop.create_server`."""
        ...


class VirtualLoop(asyncio.AbstractEventLoop):
    """See the module."""

    def __init__(self, thread_delay: Callable[[], float]) -> None:
        """`thread_delay` draws how long work for a thread takes."""
        self.now = 0.0
        """The simulation's time in seconds, which only the simulation sees."""
        self.steps = 0
        self.failures: list[tuple[str, BaseException | None]] = []
        """What nobody caught: (what, the exception)."""
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
        self.graves: list[object] = []
        """Tasks of dead hosts: kept, because whoever collects them would run their `finally`."""

    # ------------------------------------------------------------------------------------------------ time

    def time(self) -> float:
        """The current host's clock."""
        host = HOST.get()
        return self.now if host is None else host.offset + self.now * host.rate

    def get_debug(self) -> bool:
        """Never."""
        return False

    def is_running(self) -> bool:
        """Whether something is being run."""
        return self._is_running

    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._is_closed

    # ------------------------------------------------------------------------------------------------ scheduling

    def call_soon(self, callback: Callable[..., object], *args: object, context: Context | None = None) -> Any:
        """Run it after what is ready now."""
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
        """Run it when so many seconds of the host's clock have passed."""
        if context is None:
            context = copy_context()
        now = self.now
        host = context.get(HOST)
        if host is None:
            when = due = now + delay
        else:
            when = host.offset + now * host.rate + delay
            due = host.to_global(when)
        handle = Handle(callback, args, context, host, when)
        if not self._is_closed:
            heapq.heappush(self._timers, (due if due > now else now, next(self._sequence), handle))
        return handle

    def call_at(
        self, when: float, callback: Callable[..., object], *args: object, context: Context | None = None
    ) -> Any:
        """Run it at that time of the host's clock."""
        if context is None:
            context = copy_context()
        host = context.get(HOST)
        handle = Handle(callback, args, context, host, when)
        if not self._is_closed:
            self.push(when if host is None else host.to_global(when), handle)
        return handle

    def push(self, due: float, handle: Handle) -> None:
        """Run a handle at a time of the simulation. The same one may be pushed again and again, if nobody cancels it."""
        heapq.heappush(self._timers, (due if due > self.now else self.now, next(self._sequence), handle))

    def at(self, when: float, host: Host | None, callback: Callable[..., object], *args: object) -> Handle:
        """Run it at a time of the simulation, in that host (None: in the world between them)."""
        context = _WORLD if host is None else host.context
        handle = Handle(callback, args, context, host, when)
        if not self._is_closed:
            self.push(when, handle)
        return handle

    def handle(self, callback: Callable[..., object], *args: object) -> Handle:
        """Of the world between hosts, for `push`."""
        return Handle(callback, args, _WORLD, None, 0.0)

    def soon(self, host: Host | None, callback: Callable[..., object], *args: object) -> None:
        """Run it in that host after what is ready now."""
        if not self._is_closed:
            self._ready.append(Handle(callback, args, _WORLD if host is None else host.context, host, 0.0))

    def after(self, delay: float, host: Host | None, callback: Callable[..., object], *args: object) -> Handle:
        """Run it when so much time of the simulation has passed."""
        return self.at(self.now + delay, host, callback, *args)

    def create_future(self) -> asyncio.Future[Any]:
        """A future of this loop."""
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
        """A task of the current host, or of the one whose context is given."""
        task: SimTask[T] = SimTask.__new__(SimTask)
        task.number = next(self._hashes)
        task.__init__(coro, loop=self, name=name or "task", context=context)  # type: ignore[misc]  # numbered before it is hashed
        return task

    def spawn(self, host: Host | None, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A task in a host."""
        return self.create_task(coroutine, context=(_WORLD if host is None else host.context).copy())

    def set_task_factory(self, factory: Callable[..., Any] | None) -> None:
        """Remembered and not used."""
        self._factory = factory

    def get_task_factory(self) -> Callable[..., Any] | None:
        """What was set."""
        return self._factory

    # ------------------------------------------------------------------------------------------------ threads

    def run_in_executor(self, executor: Executor | None, func: Callable[..., T], *args: object) -> asyncio.Future[T]:
        """Run it on the loop, after as long as a thread takes."""
        future: asyncio.Future[T] = self.create_future()
        self.call_later(self._thread_delay(), _run_into, future, func, args)
        return future

    def submit(self, func: Callable[..., T], *args: object) -> Future[T]:
        """As `Executor.submit`."""
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()
        self.call_later(self._thread_delay(), _run_into, future, func, args)
        return future

    # ------------------------------------------------------------------------------------------------ network

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> Any:
        """A name is its own address."""
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (host, port))]

    async def create_connection(self, protocol_factory: Any, host: Any = "", port: Any = 0, **_: Any) -> Any:
        """Over the simulated network."""
        assert self.connector is not None
        return await self.connector.connect(protocol_factory, f"{host}:{port}")

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        """On the simulated network."""
        assert self.connector is not None
        return self.connector.listen(protocol_factory, f"{host}:{port}")

    # ------------------------------------------------------------------------------------------------ running

    def run_in(self, host: Host, callback: Callable[..., object], *args: object) -> None:
        """Run it in that host now, if it is not frozen (then later) or dead (then never). Only from the world between hosts."""
        if host.is_dead or host.is_frozen:
            self._ready.append(Handle(callback, args, host.context, host, 0.0))
        else:
            host.context.run(callback, *args)

    def run_until(self, is_done: Callable[[], bool], limit: float) -> bool:
        """Run until the condition holds (True) or the time is over (False). Raises `SpinningError`."""
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
                        callback(*handle.args)  # no context but this one's: nothing runs outside of all hosts
                    else:
                        handle.context.run(callback, *handle.args)
                except (SystemExit, KeyboardInterrupt, SimulationEnd):
                    raise
                except BaseException as error:  # noqa: BLE001 -- the root of everything that runs
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
        """A frozen host goes on: with everything that became due meanwhile, in order."""
        host.is_frozen = False
        self._ready.extend(host.parked)
        host.parked = []

    def kill(self, host: Host) -> None:
        """A host runs nothing any more."""
        host.is_dead = True
        self.graves.extend(host.parked)
        host.parked = []
        self.graves.extend(task for task in asyncio.all_tasks(self) if not task.done())

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """What asyncio found that nobody caught."""
        if not self._is_closed:
            self.failures.append((str(context.get("message")), context.get("exception")))

    def close(self) -> None:
        """Bury every task that is left: their `finally` runs, and reaches nobody."""
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
        """Nothing to do."""

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 -- asyncio's name
        """There is none."""

    def _on_generator(self, generator: Any) -> None:
        self._generator_hosts[id(generator)] = HOST.get()

    def _on_generator_lost(self, generator: Any) -> None:
        host = self._generator_hosts.pop(id(generator), None)
        if self._is_closed or (host is not None and host.is_dead):
            self.graves.append(generator)
        else:
            self.spawn(host, generator.aclose())


class SimulationEnd(BaseException):
    """Raised by what must end the run at once, from however deep: a broken invariant."""


_WORLD = Context()


def _run_into(future: Any, func: Callable[..., object], args: tuple[object, ...]) -> None:
    if future.cancelled():
        return
    try:
        result = func(*args)
    except SimulationEnd:
        raise
    except BaseException as error:  # noqa: BLE001 -- handed to whoever waits
        future.set_exception(error)
    else:
        future.set_result(result)
