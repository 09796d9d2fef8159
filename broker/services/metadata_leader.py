"""Run changes of metadata on the metadata leader: on this node, or one hop away."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from functools import partial, wraps
from typing import Any, Protocol, TypeVar

from raftmq.broker.base.peer_methods import unary_method
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.replica.commands import execute
from raftmq.broker.services.call import Call
from raftmq.broker.services.forwarder import Forwarder
from raftmq.broker.services.host import ServiceHost
from raftmq.fsm.metadata_commands import MetadataCommand, encode_command
from raftmq.methods import RequestT, ResponseT, UnaryMethod
from raftmq.proto import queue_pb2 as pb
from raftmq.types import METADATA_GROUP_ID, NO_NODE

ServiceT = TypeVar("ServiceT", bound="_Service")
ResultT = TypeVar("ResultT")

_NO_LEADER_RETRY_MS = 100
_OUTAGE_SECONDS = 10.0
"""Time without a metadata leader after which a refusal says more. An election takes a few seconds, also on a slow network."""


class MetadataLeader:
    """Changes metadata from this node."""

    def __init__(self, host: ServiceHost, forwarder: Forwarder) -> None:
        self._host = host
        self._forwarder = forwarder

    async def run(
        self, request: RequestT, call: Call, here: Callable[[RequestT, Call], Awaitable[ResponseT]]
    ) -> ResponseT:
        """Answer a request with `here` if this node leads, else with the leader's answer to the same request.

        Raises:
            RequestError: The error of either answer. NO_LEADER if no leader is known (nothing was done).
        """
        replica = self._host.metadata
        if replica.is_leader:
            return await here(request, call)
        if call.is_forwarded:
            raise replica.not_leader()
        node_id = self._host.leadership.get(METADATA_GROUP_ID).node_id
        # the table names a dead leader until there is another one
        if node_id in (NO_NODE, self._host.node_id) or not self._host.is_led(METADATA_GROUP_ID):
            raise RequestError(pb.NO_LEADER, self._leaderless_text(), retry_after_ms=_NO_LEADER_RETRY_MS)
        method: UnaryMethod[RequestT, ResponseT] = unary_method(type(request))
        return await self._forwarder.forward(node_id, method, request, call)

    def _leaderless_text(self) -> str:
        """Say that there is no leader. After a time that no election takes, also give that time and the remedies."""
        since = self._host.metadata.leaderless_since
        seconds = self._host.loop.time() - since if since is not None else 0.0
        if seconds < _OUTAGE_SECONDS:
            return "the metadata group has no leader at the moment"
        return (
            f"no metadata leader for {seconds:.0f} s: start the brokers that are down (only if a majority of the metadata's voters is gone "
            "for good: see raftmq recover metadata and the guide on disaster recovery)"
        )

    async def execute(self, command: MetadataCommand, result_type: type[ResultT], deadline: float) -> ResultT:
        """Change metadata here and wait until the change is applied. Raises as `commands.execute`."""
        return await execute(self._host.metadata, encode_command(command), result_type, deadline)


class _Service(Protocol):
    """A service some of whose methods run on the metadata leader."""

    leader: MetadataLeader


def on_metadata_leader(
    here: Callable[[ServiceT, RequestT, Call], Awaitable[ResponseT]],
) -> Callable[[ServiceT, RequestT, Call], Coroutine[Any, Any, ResponseT]]:
    """Run a service's method on the metadata leader: here if this node leads, else on the leader, one hop away.

    The leader is asked by the method of the protocol that takes such a request. Raises as `MetadataLeader.run`.
    """

    @wraps(here)
    async def anywhere(self: ServiceT, request: RequestT, call: Call) -> ResponseT:
        return await self.leader.run(request, call, partial(here, self))

    return anywhere
