"""Makes calls that must not wait for the program: in a thread with gRPC's blocking channels, or, for simulators, in the event loop.

They are the heartbeats of a group member and the renewals of leases. Because of the thread, a handler that blocks the event loop for a
minute costs no partition and no lease. The thread also logs such a block. Must not decide anything: `BackgroundCalls` returns the next call
and handles its outcome. There is one call at a time.

Source: KIP-62 (Kafka's background thread). The thread has no event loop of its own, because two loops with gRPC in a process are fragile.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, Final, Protocol, cast

import grpc
from google.protobuf.message import Message
from raftmq.client.base import settings
from raftmq.client.base.background import cancel_and_wait, spawn
from raftmq.client.base.logs import log
from raftmq.client.connection.transport import (
    Connection,
    Transport,
    call_metadata,
    error_from_call,
    open_blocking_channel,
)
from raftmq.client.membership.member_calls import FOREVER, GroupCall
from raftmq.errors import BrokenConnectionError, RaftMQError
from raftmq.methods import UnaryMethod

END_SECONDS: Final = 2.0
"""The time for which `close` waits for the thread. A cancelled call ends within a millisecond."""


class BackgroundCalls(Protocol):
    """Knows which call to make when: `MemberCalls` for a group member, `LeaseRenewals` for the consumers of a queue."""

    def next_call(self, now: float) -> GroupCall | float:
        """Return the call to make now, or the time until which to wait (`FOREVER`: until woken)."""
        ...

    def on_answer(self, call: GroupCall, answer: Message, now: float) -> None:
        """Handle the answer of a call."""
        ...

    def on_error(self, call: GroupCall, error: RaftMQError, now: float) -> None:
        """Handle a failed call."""
        ...

    def on_crash(self, error: BaseException) -> None:
        """Handle the end of all calls by a defect."""
        ...

    def take_news(self) -> bool:
        """Return whether the event loop must be told. Asked after each of the methods above."""
        ...


class HeartbeatRunner(Protocol):
    """Makes the calls of one client, one at a time, from its creation until it is closed."""

    def wake(self) -> None:
        """Look for a call to make now."""
        ...

    async def close(self) -> None:
        """Make no more calls, abandon one in flight, and wait for the end."""
        ...


def _ignore(_asked_at: float) -> None:
    pass


def run_background_calls(
    transport: Transport,
    calls: BackgroundCalls,
    on_news: Callable[[], None],
    cluster_id: str,
    on_alive: Callable[[float], None] = _ignore,
) -> HeartbeatRunner:
    """Start making calls where the program cannot delay them.

    `on_news` is called in the event loop, and so is `on_alive`: with the time at which a sign of life was asked for, before anything that has
    arrived since then is read.
    """
    if transport.uses_threads:
        return ThreadHeartbeats(calls, on_news, cluster_id, on_alive=on_alive)
    return LoopHeartbeats(transport, calls, on_news, cluster_id)


class ThreadHeartbeats:
    """Makes the calls in a thread. Created in the event loop in which `on_news` is called."""

    def __init__(
        self,
        calls: BackgroundCalls,
        on_news: Callable[[], None],
        cluster_id: str,
        *,
        blocked_seconds: float = settings.LOOP_BLOCKED_SECONDS,
        on_alive: Callable[[float], None] = _ignore,
    ) -> None:
        self._calls = calls
        self._on_news = on_news
        self._metadata = call_metadata(cluster_id)
        self._loop = asyncio.get_running_loop()
        self._watch = LoopWatch(self._loop, blocked_seconds, on_alive)
        self._channels: dict[str, grpc.Channel] = {}
        self._running: grpc.Future[Any] | None = None  # of either call
        self._is_closed = False
        self._woken = threading.Condition()
        self._is_woken = False
        self._ended = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="raftmq-heartbeats", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Look for a call to make now. May be called from any thread."""
        with self._woken:
            self._is_woken = True
            self._woken.notify()

    async def close(self) -> None:
        """End the thread. A call in flight is cancelled."""
        with self._woken:
            self._is_closed = self._is_woken = True
            self._woken.notify()
            if self._running is not None:
                self._running.cancel()
        try:
            async with asyncio.timeout(END_SECONDS):
                await self._ended.wait()
        except TimeoutError:
            return  # it is a daemon and ends with its call, or with the process

    def _run(self) -> None:
        try:
            while not self._is_closed:
                self._step()
        except BaseException as error:  # noqa: BLE001 -- nobody joins this thread: without a report the member would just be silent
            log.error("heartbeats_stopped error_code=%s", type(error).__name__)
            self._calls.on_crash(error)
            self._in_loop(self._on_news)
        finally:
            for channel in self._channels.values():
                channel.close()
            self._channels.clear()  # gRPC shuts down when no reference to a channel is left: see `grpc_fork`
            self._in_loop(self._ended.set)

    def _step(self) -> None:
        found = self._calls.next_call(time.monotonic())
        if isinstance(found, GroupCall):
            try:
                answer = self._call(found)
            except RaftMQError as error:
                self._calls.on_error(found, error, time.monotonic())
            else:
                self._calls.on_answer(found, answer, time.monotonic())
        if self._calls.take_news():
            self._in_loop(self._on_news)
        if not self._watch.look(time.monotonic()):
            self._is_closed = True  # the loop is closed: the program forgot its consumer, whose session will expire
        if not isinstance(found, GroupCall):
            pause = min(found - time.monotonic(), settings.LOOP_CHECK_SECONDS)
            with self._woken:
                if not self._is_woken and pause > 0:
                    self._woken.wait(pause)
                self._is_woken = False

    def _call(self, call: GroupCall) -> Message:
        channel = self._channels.get(call.address)
        if channel is None:
            channel = self._channels[call.address] = open_blocking_channel(call.address)
        method: UnaryMethod[Any, Any] = call.method  # of either call
        run = channel.unary_unary(
            method.path,
            request_serializer=method.request_type.SerializeToString,
            response_deserializer=method.response_type.FromString,
        )
        with self._woken:
            if self._is_closed:
                raise BrokenConnectionError(f"{call.address}: the client is closed")
            running = self._running = run.future(call.request, timeout=call.timeout_seconds, metadata=self._metadata)
        try:
            answer: Message = running.result()
        except grpc.FutureCancelledError as error:
            raise BrokenConnectionError(f"{call.address}: the client is closed") from error
        except grpc.RpcError as error:  # the exception is the call, too
            raise error_from_call(cast("grpc.Call", error), call.address) from error
        finally:
            self._running = None
        return answer

    def _in_loop(self, function: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:
            self._is_closed = True  # the loop is closed: the program ended without closing its consumer


class LoopWatch:
    """Notices from another thread that the event loop is blocked, and logs by which function. Created in the loop's thread."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, blocked_seconds: float, on_alive: Callable[[float], None] = _ignore
    ) -> None:
        self._loop = loop
        self._on_alive = on_alive
        self._thread_id = threading.get_ident()
        self._blocked_seconds = blocked_seconds
        self._asked_at = FOREVER
        """When the loop was asked for a sign of life. Infinite: it has answered."""
        self._is_told = False

    def look(self, now: float) -> bool:
        """Ask for a sign of life, or check how long it has been missing. Return False if the loop is closed."""
        if self._asked_at == FOREVER:
            self._is_told = False
            self._asked_at = now
            try:
                self._loop.call_soon_threadsafe(self._sign)
            except RuntimeError:
                return False
        elif now - self._asked_at >= self._blocked_seconds and not self._is_told:
            self._is_told = True
            log.warning("event_loop_blocked elapsed_seconds=%.1f place=%s", now - self._asked_at, self._place())
        return True

    def _sign(self) -> None:
        asked_at, self._asked_at = self._asked_at, FOREVER
        self._on_alive(asked_at)

    def _place(self) -> str:
        """Return the place that blocks the loop: the innermost function outside the standard library and installed packages."""
        frame = sys._current_frames().get(self._thread_id)  # as faulthandler does: there is no public function for it
        stack = traceback.extract_stack(frame) if frame is not None else []
        own = [entry for entry in stack if not entry.filename.startswith((sys.prefix, sys.base_prefix, "<"))]
        found = own or stack
        return f"{found[-1].name} ({found[-1].filename}:{found[-1].lineno})" if found else "unknown"


class LoopHeartbeats:
    """Makes the calls in the event loop, over any transport. For simulations, where nothing blocks the loop."""

    def __init__(
        self, transport: Transport, calls: BackgroundCalls, on_news: Callable[[], None], cluster_id: str
    ) -> None:
        self._transport = transport
        self._cluster_id = cluster_id
        self._calls = calls
        self._on_news = on_news
        self._connections: dict[str, Connection] = {}
        self._woken = asyncio.Event()
        self._task = spawn(self._run(), "raftmq-heartbeats", self._on_crash)

    def wake(self) -> None:
        """Look for a call to make now."""
        self._woken.set()

    async def close(self) -> None:
        """Stop the calls and close the connections."""
        await cancel_and_wait(self._task)
        await asyncio.gather(*(connection.close() for connection in self._connections.values()))

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._woken.clear()
            found = self._calls.next_call(loop.time())
            if isinstance(found, GroupCall):
                try:
                    answer = await self._call(found)
                except RaftMQError as error:
                    self._calls.on_error(found, error, loop.time())
                else:
                    self._calls.on_answer(found, answer, loop.time())
            if self._calls.take_news():
                self._on_news()
            if not isinstance(found, GroupCall):
                try:
                    async with asyncio.timeout(None if found == FOREVER else max(0.0, found - loop.time())):
                        await self._woken.wait()
                except TimeoutError:
                    continue

    async def _call(self, call: GroupCall) -> Message:
        connection = self._connections.get(call.address)
        if connection is None:
            connection = self._connections[call.address] = self._transport.connect(call.address)
            connection.cluster_id = self._cluster_id
        answer: Message = await connection.call(call.method, call.request, call.timeout_seconds)
        return answer

    def _on_crash(self, error: BaseException) -> None:
        log.error("heartbeats_stopped error_code=%s", type(error).__name__)
        self._calls.on_crash(error)
        self._on_news()
