"""Hand out tokens for data connections. A client that asked for one over gRPC may connect, as the same principal.

So a data connection inherits gRPC's credentials and needs none of its own. A token is for one connection, and for a few seconds.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from typing import Final

from raftmq.broker.services.call import Call, Principal
from raftmq.frames import DATA_VERSION
from raftmq.proto import queue_pb2 as pb

TOKEN_SECONDS: Final = 10.0
"""A token that was not used within this time is void: a client connects within milliseconds."""
TOKENS_MAX: Final = 4096
"""Unused tokens. For one more, the oldest becomes void."""
_TOKEN_BYTES: Final = 16


class DataTokens:
    """The tokens of one broker."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._principals: OrderedDict[bytes, tuple[Principal, float]] = OrderedDict()
        """By token: who asked for it, and until when it may be used."""
        self.port = 0
        """The data port, or 0 before it is bound."""

    async def open_data_connection(
        self, request: pb.OpenDataConnectionRequest, call: Call
    ) -> pb.OpenDataConnectionResponse:
        """Answer with the port and a token. Port 0: this broker has no data port now."""
        del request
        if not self.port:
            return pb.OpenDataConnectionResponse()
        token = secrets.token_bytes(_TOKEN_BYTES)
        self._principals[token] = (call.principal, self._loop.time() + TOKEN_SECONDS)
        while len(self._principals) > TOKENS_MAX:
            self._principals.popitem(last=False)
        return pb.OpenDataConnectionResponse(port=self.port, token=token, version=DATA_VERSION)

    def redeem(self, token: bytes) -> Principal | None:
        """Return the principal of a token, once. None if the token is void."""
        principal, valid_until = self._principals.pop(token, (None, 0.0))
        return principal if self._loop.time() < valid_until else None
