"""The data connections of one event loop to one broker: opened on first use, shared by all clients, one for each method.

Appends, polls and streams of messages have connections of their own, so that a large poll answer does not hold up an acknowledgement. The first callers
wait while a connection is opened. Where a broker has no data port, or it cannot be reached, callers use gRPC from then on, and do not
wait for the later attempts, one each `settings.DATA_RETRY_SECONDS`. Must not know about calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from raftmq.client.base import settings
from raftmq.client.base.background import cancel_and_wait
from raftmq.client.base.error_details import name_of
from raftmq.client.base.logs import log
from raftmq.client.connection.data_connection import DataConnection, open_data_connection
from raftmq.errors import (
    BrokenConnectionError,
    ErrorCode,
    RaftMQError,
    RequestTimedOutError,
    UnreachableError,
    UnsupportedVersionError,
)
from raftmq.frames import DATA_VERSION, DATA_VERSION_MIN, METHOD_VERSIONS
from raftmq.proto import queue_pb2 as pb

Opened = DataConnection | RaftMQError | None
"""How an attempt ended: an open connection, the error of the callers that waited for it (nothing of theirs was sent), or None: use gRPC."""
NOT_OFFERED: Final = "not_offered"
"""The logged reason when a broker answers that it has no data port."""


class DataPort:
    """A broker's data port, as the clients of one cluster on one event loop see it."""

    def __init__(self, address: str, ask: Callable[[], Awaitable[pb.OpenDataConnectionResponse]]) -> None:
        """`ask` makes the call OpenDataConnection over gRPC."""
        self._address = address
        self._ask = ask
        self._loop = asyncio.get_running_loop()
        self._connections: dict[int, DataConnection] = {}
        """By method number: the one opened last."""
        self._opened: set[DataConnection] = set()
        """Those that may not be closed yet: a broker that leaves a connection still answers there."""
        self._openings: dict[int, asyncio.Task[Opened]] = {}
        self._uses_grpc = False
        """The last attempt ended without a connection."""
        self._retry_at = 0.0
        """Loop time of the next attempt, while gRPC is used."""
        self._uncarried: dict[int, float] = {}
        """Loop time of the next attempt for each method that the broker's version of the frames does not carry."""

    def connection(self, method_number: int) -> DataConnection | asyncio.Task[Opened] | None:
        """Return the method's connection, the attempt to open it that runs or begins now, or None: use gRPC. Does not wait.

        While gRPC is used an attempt may begin, too, and the answer is None until it has succeeded.

        Callers must not cancel the attempt. It is cancelled by `close`.
        """
        connection = self._connections.get(method_number)
        if connection is not None and connection.is_open:
            return connection
        if self._loop.time() < self._uncarried.get(method_number, 0.0):
            return None
        opening = self._openings.get(method_number)
        if opening is None and not (self._uses_grpc and self._loop.time() < self._retry_at):
            opening = self._loop.create_task(self._open(method_number), name=f"raftmq-data-open-{self._address}")
            self._openings[method_number] = opening
            opening.add_done_callback(lambda _: self._openings.pop(method_number, None))
        return None if self._uses_grpc else opening

    def open_connection(self, method_number: int, carrier_number: int) -> DataConnection | None:
        """Return another method's connection, if it is open and can carry this method, too. Opens none."""
        connection = self._connections.get(carrier_number)
        if connection is None or not connection.is_open or connection.version < METHOD_VERSIONS[method_number]:
            return None
        return connection

    def on_broker_lost(self) -> None:
        """Try again with the next call, as calls over gRPC have failed: the broker was restarted, and may have a data port by now."""
        self._retry_at = 0.0
        self._uncarried.clear()

    async def close(self) -> None:
        """Close the connections. Waits until their sockets are closed."""
        try:
            await cancel_and_wait(*self._openings.values())
        finally:
            opened, self._opened = self._opened, set()
            self._connections.clear()
            for connection in opened:
                connection.close()
            for connection in opened:
                await connection.wait_closed()

    def __del__(self) -> None:
        for connection in self._opened:
            connection.abandon()  # the event loop would keep it for clients that the program forgot to close

    async def _open(self, method_number: int) -> Opened:
        try:
            answer = await self._ask()
        except (UnreachableError, BrokenConnectionError, RequestTimedOutError) as error:
            if self._uses_grpc:
                self._retry_at = self._loop.time() + settings.CONNECT_BACKOFF_MAX_SECONDS
            unreachable = UnreachableError(
                str(error.args[0])
            )  # also of a call that may have arrived: it changed nothing
            unreachable.address = self._address
            unreachable.__cause__ = error.__cause__
            return unreachable
        except RaftMQError as error:
            self._use_grpc(
                name_of(error), is_usual=isinstance(error, UnsupportedVersionError)
            )  # it does not know the call
            return None
        if not answer.port:
            self._use_grpc(NOT_OFFERED, is_usual=True)
            return None
        version = min(DATA_VERSION, answer.version or DATA_VERSION_MIN)
        if version < DATA_VERSION_MIN:  # the broker is older than this client's frames
            self._use_grpc(ErrorCode.UNSUPPORTED_VERSION.name, is_usual=True)
            return None
        if version < METHOD_VERSIONS[method_number]:
            self._uncarried[method_number] = self._loop.time() + settings.DATA_RETRY_SECONDS
            return None
        try:
            async with asyncio.timeout(settings.DATA_CONNECT_SECONDS):
                connection = await open_data_connection(self._address, answer.port, answer.token, version)
        except Exception as error:  # noqa: BLE001 -- the root of a task; name resolution alone raises half a dozen kinds
            self._use_grpc(name_of(error), is_usual=False)
            return None
        self._uses_grpc = False
        self._connections[method_number] = connection
        self._opened = {each for each in self._opened if not each.is_closed} | {connection}
        log.debug("data_connection_opened address=%s port=%d", self._address, answer.port)
        return connection

    def _use_grpc(self, reason: str, *, is_usual: bool) -> None:
        now = self._loop.time()
        if self._uses_grpc and now < self._retry_at:
            return  # the attempt for another method has just said so
        self._uses_grpc = True
        self._retry_at = now + settings.DATA_RETRY_SECONDS
        data = (self._address, reason, settings.DATA_RETRY_SECONDS)
        if is_usual:
            log.info("data_connection_unavailable address=%s error_code=%s retry_seconds=%g", *data)
        else:
            log.warning("data_connection_unavailable address=%s error_code=%s retry_seconds=%g", *data)
