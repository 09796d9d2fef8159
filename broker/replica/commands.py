"""Execute a command through the log of a group that this node leads: propose it, wait, and return its result.

This module must not know the meaning of a command: its proposer encodes the payload, and the state machine decides.
"""

from __future__ import annotations

import asyncio
from typing import TypeVar, cast

from raftmq.broker.base.request_error import RequestError, expired, timed_out
from raftmq.broker.replica.replica import Replica
from raftmq.fsm.metadata_commands import Rejected
from raftmq.fsm.state_machine import StateMachine
from raftmq.proto import queue_pb2 as pb
from raftmq.raft.entry import EntryKind, Proposal

ResultT = TypeVar("ResultT")


async def execute(
    replica: Replica[StateMachine], payload: bytes, result_type: type[ResultT], deadline: float
) -> ResultT:
    """Propose a command and wait until it is applied, at most until `deadline` (loop time). Cancelling undoes nothing.

    Raises:
        RequestError: The state machine's rejection, NOT_LEADER, NO_LEADER, THROTTLED, or REQUEST_TIMED_OUT before it was proposed
            (nothing was done). LEADERSHIP_LOST or REQUEST_TIMED_OUT afterwards (it may have been done).
    """
    loop = asyncio.get_running_loop()
    if loop.time() >= deadline:
        raise expired()
    replica.require_leader()
    _, applied = replica.propose([Proposal(EntryKind.COMMAND, payload)])
    await asyncio.wait((applied,), timeout=max(0.0, deadline - loop.time()))
    if not applied.done():
        raise timed_out()
    result = applied.result()[0]
    if isinstance(result, Rejected):
        raise refused(result)
    assert isinstance(result, result_type)
    return result


def refused(rejected: Rejected) -> RequestError:
    """Return the error that reports the rejection of a state machine or a validator."""
    return RequestError(cast("pb.ErrorCode", rejected.code), rejected.message)
