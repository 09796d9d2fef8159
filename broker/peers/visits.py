"""Visit a node at an address: ask who it is, and make one request, without being its peer.

A node that belongs to no cluster, or looks for its cluster at the addresses that its operator named, has no peers to ask. This module must
not know the meaning of a request.
"""

from __future__ import annotations

import asyncio
from typing import Self

from raftmq.broker.base.request_error import RequestError
from raftmq.broker.peers.codec import FrameError
from raftmq.broker.peers.outbound import Outbound, OutboundOwner, connect
from raftmq.broker.peers.protocol import ForeignProtocolError, Hello
from raftmq.proto import queue_pb2 as pb


class NoPeerPortError(RequestError):
    """Raised when a port for another purpose is at an address, such as the one for clients. The code is INVALID_ARGUMENT."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(
            pb.INVALID_ARGUMENT,
            f"{address} is no peer address of a broker: {reason}. Brokers reach each other at the port of peer_listen, 9401 by default, "
            "and clients at that of listen, 9400 by default",
        )


class ForeignVersionError(RequestError):
    """Raised when the node at an address refuses every protocol version of this one. The code is UNSUPPORTED_VERSION."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(pb.UNSUPPORTED_VERSION, f"{address}: {reason}")


class Visit:
    """One connection to the node at an address. Use it in `async with`."""

    def __init__(self, owner: OutboundOwner, address: str, hello: Hello, deadline: float) -> None:
        """Take this node's `hello` for any node, and the loop time at which everything ends."""
        self._owner = owner
        self._address = address
        self._hello = hello
        self._deadline = deadline
        self._connection: Outbound | None = None
        self.host: Hello
        """The visited node's description of itself. Its `cluster_id` is empty while it belongs to no cluster."""

    async def __aenter__(self) -> Self:
        """Connect.

        Raises:
            RequestError: NO_LEADER if no node answers.
            ForeignVersionError: It refuses this node's version.
            NoPeerPortError: A port for another purpose is at the address.
        """
        try:
            async with asyncio.timeout_at(self._deadline):
                self._connection, self.host = await connect(self._owner, self._address, self._address, self._hello)
        except TimeoutError:
            raise RequestError(pb.NO_LEADER, f"{self._address} does not answer") from None
        except ForeignProtocolError as error:
            raise NoPeerPortError(self._address, str(error)) from None
        except FrameError as error:
            raise ForeignVersionError(self._address, str(error)) from None
        except (OSError, ValueError) as error:  # ValueError: a malformed address, or a name that DNS cannot have
            raise RequestError(pb.NO_LEADER, f"{self._address} cannot be reached: {error}") from None
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()

    async def ask(self, method: str, body: bytes) -> bytes:
        """Make a request and return the response message. Raises as `Transport.ask`."""
        assert self._connection is not None
        assert self._connection.requests is not None
        return await self._connection.requests.ask(method, "", body, self._deadline)
