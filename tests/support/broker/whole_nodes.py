"""Run whole nodes in this process, with real disk, sockets and cores, and shortened times."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
from raftmq.broker.base.config import BrokerConfig
from raftmq.broker.base.readiness import NotReady, Reason
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.environment import NodeEnvironment
from raftmq.broker.node import Node
from raftmq.cluster_addresses import Addresses, HeldPorts

WAIT_SECONDS = 30.0
NOBODY = "127.0.0.1:1"
"""Return a port on which no process listens."""


def config(directory: Path, **settings: object) -> BrokerConfig:
    usual = {"listen": "127.0.0.1:0", "peer_listen": "127.0.0.1:0", "http_listen": "127.0.0.1:0", "writer_threads": 1}
    usual |= {
        "data_tick_seconds": 0.05,
        "metadata_tick_seconds": 0.05,
        "controller_seconds": 0.05,
        "map_bytes": 1 << 28,
    }
    return BrokerConfig(data_dir=directory, **(usual | settings))


class Nodes:
    """Nodes by directory name. All are stopped at the end."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._running: dict[Node, asyncio.Task[None]] = {}
        self._ports = HeldPorts()
        self._addresses: dict[str, dict[str, object]] = {}
        """The addresses of each node. It starts there again, because otherwise its peers would not find it.

        Until `stop_all` no other program gets their ports, not even while the node is stopped.
        """

    def addresses_of(self, name: str) -> dict[str, object]:
        """Return the settings of a node's addresses, which it has from its first start on."""
        if name not in self._addresses:
            held = self._ports.hold(Addresses())
            self._addresses[name] = {"listen": held.client, "peer_listen": held.peer, "http_listen": held.http}
        return self._addresses[name]

    def begin(
        self, name: str, parts: Callable[[BrokerConfig], NodeEnvironment] = NodeEnvironment, **settings: object
    ) -> Node:
        """Start a node, without waiting until it serves."""
        directory = self.directory / name
        directory.mkdir(exist_ok=True)
        settings_in_all = config(directory, **(self.addresses_of(name) | settings))
        node = Node(settings_in_all, "0.test", parts(settings_in_all))
        self._running[node] = asyncio.ensure_future(node.start())
        return node

    async def serve(
        self, name: str, parts: Callable[[BrokerConfig], NodeEnvironment] = NodeEnvironment, **settings: object
    ) -> Node:
        """Start a node and wait until it serves."""
        node = self.begin(name, parts, **settings)
        await asyncio.wait_for(asyncio.shield(self._running[node]), WAIT_SECONDS)
        return node

    async def failure(self, node: Node) -> BaseException:
        """Return the error that ended the node's start."""
        with pytest.raises(RequestError) as raised:
            await asyncio.wait_for(self._running[node], WAIT_SECONDS)
        return raised.value

    async def stop(self, node: Node) -> None:
        starting = self._running.pop(node)
        starting.cancel()
        with contextlib.suppress(asyncio.CancelledError, RequestError):
            await starting
        if node.addresses.peer:
            self._addresses[node.config.data_dir.name] = {
                "listen": node.addresses.client,
                "peer_listen": node.addresses.peer,
                "http_listen": node.addresses.http,
            }
        await node.stop()

    def running(self) -> list[Node]:
        """Return the nodes that were started and not stopped."""
        return list(self._running)

    async def stop_all(self) -> None:
        for node in list(self._running):
            await self.stop(node)
        self._ports.close()


async def until(node: Node, *wanted: Reason) -> list[NotReady]:
    """Wait until the node gives exactly the wanted reasons, in this order, for not being ready. Without any, wait until it is ready.

    A single check would fail on a busy machine, because a stalled loop is a reason, too.
    """
    async with asyncio.timeout(WAIT_SECONDS):
        while [one.reason for one in node.standing.not_ready_reasons()] != [*wanted]:
            await asyncio.sleep(0.02)
    return node.standing.not_ready_reasons()


async def three_voters(node: Node) -> None:
    """Wait until three nodes vote on metadata."""
    async with asyncio.timeout(WAIT_SECONDS):
        while len(node.view.metadata.core.membership.voters) < 3:
            await asyncio.shield(node.view.metadata.wait_progress())
