"""Runs changes of metadata where they belong: on the metadata leader, here or one hop away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar, cast

from google.protobuf.message import Message
from raftmq.broker.request_error import RequestError
from raftmq.broker.service_host import ServiceHost
from raftmq.broker.services.call import Call
from raftmq.broker.services.forwarder import Forwarder
from raftmq.fsm.metadata_commands import MetadataCommand, Rejected, encode_command
from raftmq.proto import queue_pb2 as pb
from raftmq.raft.entry import EntryKind, Proposal
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
        group = self._host.metadata
        if group.is_leader:
            return await here(request, call)
        if call.is_forwarded:
            raise group.not_leader()
        node_id, address, _ = self._host.leader_hint(METADATA_GROUP_ID)
        if node_id in (NO_NODE, self._host.node_id) or not address:
            raise RequestError(
                pb.NO_LEADER, "the metadata group has no leader at the moment", retry_after_ms=_NO_LEADER_RETRY_MS
            )
        timeout_seconds = max(0.001, call.deadline - self._host.loop.time())
        return await self._forwarder.forward(address, path, request, response_type, timeout_seconds)

    async def execute(self, command: MetadataCommand, result_type: type[ResultT], deadline: float) -> ResultT:
        """Propose a command here and wait until it is applied.

        Raises:
            RequestError: what the state machine rejected it with; NOT_LEADER (nothing was done); LEADERSHIP_LOST or
                REQUEST_TIMED_OUT (it may have been done).
        """
        proposal = Proposal(EntryKind.COMMAND, encode_command(command))
        _, applied = self._host.metadata.propose([proposal])
        await asyncio.wait((applied,), timeout=max(0.0, deadline - self._host.loop.time()))
        if not applied.done():
            raise RequestError(pb.REQUEST_TIMED_OUT, "the change was not committed in time; it may still be")
        result = applied.result()[0]
        if isinstance(result, Rejected):
            raise RequestError(cast("pb.ErrorCode", result.code), result.message)
        assert isinstance(result, result_type)
        return result
