"""Serve a topic over HTTP.

The service answers 202 when an order is on disk on a majority, refuses orders when brokers cannot keep up, and loses none at its end.

Run it with any ASGI server: ``uvicorn examples.web_orders:app``. The topic `orders` must exist.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypedDict

from raftmq import Producer
from raftmq.errors import Outcome, RaftMQError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

SERVERS = os.environ.get("RAFTMQ_BOOTSTRAP_SERVERS", "127.0.0.1:9400")


class State(TypedDict):
    """Hold the state that requests share."""

    producer: Producer


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[State]:
    """Open the producer in the serving process, and close it after the last request."""
    async with Producer(
        bootstrap_servers=SERVERS, buffer_memory=16 * 1024 * 1024, max_block_ms=500, delivery_timeout_ms=5_000
    ) as producer:
        yield {"producer": producer}


async def take_order(request: Request) -> JSONResponse:
    """Write an order. Its `Idempotency-Key` lets consumers recognize a repeated request as the same order."""
    order_id = request.headers.get("idempotency-key", "")
    if not order_id:
        return JSONResponse({"error": "the header Idempotency-Key is missing"}, 400)
    try:
        written = await request.state.producer.send_and_wait("orders", await request.body(), key=order_id.encode())
    except RaftMQError as error:
        is_written = "maybe" if error.outcome is Outcome.UNKNOWN else "no"
        return JSONResponse({"error": str(error), "written": is_written}, 503, {"Retry-After": "1"})
    return JSONResponse({"partition": written.partition, "offset": written.offset}, 202)


app = Starlette(routes=[Route("/orders", take_order, methods=["POST"])], lifespan=lifespan)
