"""Runs changes of metadata where they belong: on the metadata leader, here or one hop away."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from google.protobuf.message import Message
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.replica.commands import execute
from raftmq.broker.services.call import Call
from raftmq.broker.services.forwarder import Forwarder
from raftmq.broker.services.host import ServiceHost
from raftmq.fsm.metadata_commands import MetadataCommand, encode_command
from raftmq.proto import queue_pb2 as pb
from raftmq.types import METADATA_GROUP_ID, NO_NODE

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)
ResultT = TypeVar("ResultT")

_NO_LEADER_RETRY_MS = 100


class MetadataLeader:
    """This node's way to change metadata."""

    def __init__(self, host: ServiceHost, forwarder: Forwarder) -> None:
        self._host = host
        self._forwarder = forwarder

    async def run(
        self,
        path: str,
        request: RequestT,
        response_type: type[ResponseT],
        call: Call,
        here: Callable[[RequestT, Call], Awaitable[ResponseT]],
    ) -> ResponseT:
        """Answer a request by `here` if this node leads, else by the leader's answer to the same request.

        Raises:
            RequestError: what either of them says; NO_LEADER when nobody is known to lead (nothing was done).
        """
        replica = self._host.metadata
        if replica.is_leader:
            return await here(request, call)
        if call.is_forwarded:
            raise replica.not_leader()
        node_id, address, _ = self._host.leader_hint(METADATA_GROUP_ID)
        if node_id in (NO_NODE, self._host.node_id) or not address:
            raise RequestError(
                pb.NO_LEADER, "the metadata group has no leader at the moment", retry_after_ms=_NO_LEADER_RETRY_MS
            )
        timeout_seconds = max(0.001, call.deadline - self._host.loop.time())
        return await self._forwarder.forward(address, path, request, response_type, timeout_seconds)

    async def execute(self, command: MetadataCommand, result_type: type[ResultT], deadline: float) -> ResultT:
        """Change metadata here and wait until the change is applied. Raises as `commands.execute`."""
        return await execute(self._host.metadata, encode_command(command), result_type, deadline)
