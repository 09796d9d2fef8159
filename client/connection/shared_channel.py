"""Channels that clients of one event loop share: a hundred producers have one connection to each broker.

Each client has its own calls on a channel, and ends only those. The channel is closed with the last client that uses it. Brokers allow
thousands of calls on a connection (`concurrent_rpcs_max` in `broker/base/limits.py`), so a connection has no limit of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final
from weakref import WeakSet, WeakValueDictionary

import grpc.aio
from raftmq.client.connection.data_port import DataPort
from raftmq.client.connection.grpc_calls import GrpcCalls


class SharedChannel:
    """A channel to one address, on one event loop."""

    __slots__ = ("__weakref__", "_place", "calls", "channel", "data_ports", "methods", "users")

    def __init__(self, place: tuple[asyncio.AbstractEventLoop, str], channel: grpc.aio.Channel) -> None:
        self._place: Final = place
        self.channel = channel
        """The channel. Deleted when the last connection is closed."""
        self.methods: Final[dict[str, object]] = {}
        """gRPC's callable of each method that was called."""
        self.calls: Final = GrpcCalls()
        """Calls that are made for all users."""
        self.data_ports: Final[dict[str, DataPort]] = {}
        """The broker's data port by the cluster id of those that use it."""
        self.users: Final[WeakSet[object]] = WeakSet()
        """The connections that use it. A client that the program forgot to close does not keep it alive."""

    async def leave(self, user: object) -> None:
        """Remove a closed connection. The last one closes the channel."""
        self.users.discard(user)
        if not self.users and _channels.get(self._place) is self:
            del _channels[self._place]  # before the wait: a client that starts now gets a new channel
            try:
                for port in self.data_ports.values():
                    await port.close()
                await self.calls.end()
            finally:
                await self.channel.close()
            # A closed client may live on, and gRPC shuts down only when no reference to a channel is left: see `grpc_fork`.
            self.methods.clear()
            self.data_ports.clear()
            del self.channel


_channels: Final[WeakValueDictionary[tuple[asyncio.AbstractEventLoop, str], SharedChannel]] = WeakValueDictionary()
"""The channels in use, by event loop and address. Only the connections that use a channel keep it alive."""


def has_open_channels() -> bool:
    """Return whether any client of this process has a connection, on any event loop."""
    return bool(_channels)


def shared_channel(address: str, open_channel: Callable[[str], grpc.aio.Channel]) -> SharedChannel:
    """Return the running event loop's channel to an address, opened if necessary. Does not wait."""
    place = (asyncio.get_running_loop(), address)
    found = _channels.get(place)
    if found is None:
        found = _channels[place] = SharedChannel(place, open_channel(address))
    return found
