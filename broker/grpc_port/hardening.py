"""Prevent bytes on the wire from ending grpcio's server, and so the broker, or from filling its log.

grpcio's asyncio server (1.85) accepts calls of unknown methods in the same loop as all others, and decodes their names there as UTF-8.
One call of a name with a byte 0xff ended the loop, and the process with a segmentation fault. The broker's methods are all
registered by name, so any other call is unknown, whatever its name: it is accepted here, and answered UNIMPLEMENTED without decoding
its name. This must do nothing on a grpcio that works otherwise. A test sends such a call.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Coroutine
from typing import Any, Final
from weakref import WeakKeyDictionary

import grpc.aio

cygrpc: Final[Any] = importlib.import_module("grpc._cython.cygrpc")  # compiled, and its stubs are incomplete
UNKNOWN_CALLS_MAX: Final = 256
"""Calls of unknown methods that are answered simultaneously. Further ones are dropped without an answer."""

_Coroutine = Coroutine[Any, Any, Any]

_start_locks: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock]] = WeakKeyDictionary()
"""For each event loop the lock that is held by a starting server."""

_NOT_OUR_MISTAKES: Final = (
    "Invalid encoding on",  # a header that is not UTF-8
    "ExecuteBatchError raised in core",  # an answer whose client has disconnected or was disconnected
)


class _NotOurMistake(logging.Filter):
    """Drops grpcio's log messages with tracebacks about clients' behaviour, because clients would determine their number."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not str(record.msg).startswith(_NOT_OUR_MISTAKES)


_filter: Final = _NotOurMistake()


def quiet_grpc() -> None:
    """Silence grpcio's Cython layer about malformed headers and lost clients. Its core obeys GRPC_VERBOSITY, read at import."""
    logging.getLogger("grpc._cython.cygrpc").addFilter(_filter)  # a repeated call adds nothing


async def start_server(server: grpc.aio.Server, loop: asyncio.AbstractEventLoop) -> None:
    """Start a server such that calls of unknown methods are handled outside grpcio's own loop.

    One server at a time starts in a loop, because the loop has only one task factory. Otherwise servers A and B would corrupt memory:

    1. A sets its task factory, then B does, and then grpcio starts to serve A.
    2. A's request for an unknown call goes through B's factory, so it is made at B's core, on behalf of A.
    3. A stops. It cancels its request, which frees the memory to which B's core will write.
    4. B stops, and its core fails all requests: it writes zeros to memory that is free, or another object's.
    """
    core: Any = getattr(server, "_server", None)  # grpcio's Cython object
    if not hasattr(core, "_make_request_call_future"):  # an older grpcio, which decodes names where it does no harm
        await server.start()
        return
    async with _start_locks.setdefault(loop, asyncio.Lock()):
        previous = loop.get_task_factory()

        def factory(loop: asyncio.AbstractEventLoop, coroutine: Any, **arguments: Any) -> asyncio.Task[Any]:  # noqa: ANN401 -- asyncio's
            # A starting server makes a task of only one coroutine of this name: it accepts the first unknown call.
            if getattr(coroutine, "__qualname__", "") == "AioServer._request_call":
                coroutine.close()
                coroutine = _answer_unknown(core, loop)
            task: asyncio.Task[Any] = (
                asyncio.Task(coroutine, loop=loop, **arguments)
                if previous is None
                else previous(loop, coroutine, **arguments)  # type: ignore[assignment]  # factories return tasks
            )
            return task

        loop.set_task_factory(factory)
        try:
            await server.start()
        finally:
            loop.set_task_factory(previous)


async def _answer_unknown(core: Any, loop: asyncio.AbstractEventLoop) -> None:  # noqa: ANN401 -- grpcio's Cython object
    """Answer unknown calls without end. grpcio cancels this, or fails its request, when the server stops."""
    nobody: Any = cygrpc._MethodResolver([], {})
    answering: set[asyncio.Task[None]] = set()
    while True:
        state = await core._request_call()
        if len(answering) >= UNKNOWN_CALLS_MAX:
            continue  # the last reference to the call is dropped, which cancels it
        answer: _Coroutine = cygrpc._handle_rpc("", nobody, (), state, loop, False)
        task = loop.create_task(cygrpc._schedule_rpc_coro(answer, state, loop, ""))
        answering.add(task)
        task.add_done_callback(answering.discard)
