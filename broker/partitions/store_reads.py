"""Read a partition's files on the reader threads, and translate the store's errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from raftmq.broker.base.request_error import RequestError
from raftmq.broker.replica.replica import MachineT, Replica
from raftmq.proto import queue_pb2 as pb
from raftmq.storage.errors import DamagedReplicaError, LogRangeError, ReplicaClosedError

T = TypeVar("T")

_RANGE_RETRY_MS = 20
_DAMAGED_RETRY_MS = 500


async def read_in_thread(
    replica: Replica[MachineT],
    on_damage: Callable[[Replica[MachineT], Exception], None] | None,
    function: Callable[..., T],
    *arguments: object,
) -> T:
    """Run a blocking read of the store on the reader threads. `on_damage` must make the replica silent.

    Raises:
        RequestError: NOT_READY when the log was trimmed in the meantime, NOT_LEADER when the replica was closed, REPLICA_QUARANTINED.
    """
    try:
        return await replica.in_thread(function, *arguments)
    except LogRangeError as error:
        raise RequestError(
            pb.NOT_READY, "the log was trimmed during the read; try again", retry_after_ms=_RANGE_RETRY_MS
        ) from error
    except ReplicaClosedError as error:
        raise replica.not_leader() from error
    except DamagedReplicaError as error:
        if on_damage is not None:
            on_damage(replica, error)
        raise RequestError(
            pb.REPLICA_QUARANTINED,
            f"this replica of group {replica.group_id} is damaged",
            retry_after_ms=_DAMAGED_RETRY_MS,
        ) from error
