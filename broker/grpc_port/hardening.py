"""Keeps bytes on the wire from ending grpcio's server, and so the broker, or from filling its log.

grpcio's asyncio server (1.85) takes calls of methods it does not know in the same loop as all others, and decodes their
names there as UTF-8: one call of a name with a byte 0xff ended the loop, and the process with a segmentation fault. Our methods
are all registered by name, so what is not registered is unknown, whatever it is called: it is taken here, and answered
UNIMPLEMENTED without a look at the name. Must do nothing on a grpcio that works otherwise; a test sends such a call.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Coroutine
from typing import Any, Final

import grpc.aio

cygrpc: Final[Any] = importlib.import_module("grpc._cython.cygrpc")  # compiled, and its stubs know half of it
UNKNOWN_CALLS_MAX: Final = 256
"""Calls of unknown methods being answered at once; more are dropped without an answer."""

_Coroutine = Coroutine[Any, Any, Any]


_NOT_OUR_MISTAKES: Final = (
    "Invalid encoding on",  # a header that is not UTF-8
    "ExecuteBatchError raised in core",  # an answer whose client is gone, or was cut off
)


class _NotOurMistake(logging.Filter):
    """Drops what grpcio logs, with a traceback, of what clients do: they would choose how much."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not str(record.msg).startswith(_NOT_OUR_MISTAKES)


_filter: Final = _NotOurMistake()


def quiet_grpc() -> None:
    """Let grpcio's Cython layer say nothing of malformed headers and clients that are gone. Its core heeds GRPC_VERBOSITY, which it reads at import."""
    logging.getLogger("grpc._cython.cygrpc").addFilter(_filter)  # once, however often


async def start_server(server: grpc.aio.Server, loop: asyncio.AbstractEventLoop) -> None:
    """`server.start()`, with the calls of unknown methods taken out of grpcio's own loop."""
    core: Any = getattr(server, "_server", None)  # grpcio's Cython object
    if not hasattr(core, "_make_request_call_future"):  # an older grpcio, which decodes names where it does no harm
        await server.start()
        return
    previous = loop.get_task_factory()

    def factory(loop: asyncio.AbstractEventLoop, coroutine: Any, **arguments: Any) -> asyncio.Task[Any]:  # noqa: ANN401 -- asyncio's
        # The one coroutine of this name that a server that starts makes a task of: it takes the first unknown call.
        if getattr(coroutine, "__qualname__", "") == "AioServer._request_call":
            coroutine.close()
            coroutine = _answer_unknown(core, loop)
        task: asyncio.Task[Any] = (
            asyncio.Task(coroutine, loop=loop, **arguments)
            if previous is None
            else previous(loop, coroutine, **arguments)  # type: ignore[assignment]  # what factories make are tasks
        )
        return task

    loop.set_task_factory(factory)
    try:
        await server.start()
    finally:
        loop.set_task_factory(previous)


async def _answer_unknown(core: Any, loop: asyncio.AbstractEventLoop) -> None:  # noqa: ANN401 -- grpcio's Cython object
    """Never returns; grpcio cancels it, or fails its request, when the server stops."""
    nobody: Any = cygrpc._MethodResolver([], {})
    answering: set[asyncio.Task[None]] = set()
    while True:
        state = await core._request_call()
        if len(answering) >= UNKNOWN_CALLS_MAX:
            continue  # nobody holds the call any more, which cancels it
        answer: _Coroutine = cygrpc._handle_rpc("", nobody, (), state, loop, False)
        task = loop.create_task(cygrpc._schedule_rpc_coro(answer, state, loop, ""))
        answering.add(task)
        task.add_done_callback(answering.discard)
