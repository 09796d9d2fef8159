"""`ClientErrorsAreExplained`: each error that a client of a run gets is one that a fault, or another client, explains.

A broker that is down, cut off, full or not a member of the cluster yet causes errors that the client may repeat. Any other error tells a user that the
call itself was wrong. Clients here make no wrong calls, so each needs a reason in the faults of the run.
"""

from __future__ import annotations

from raftmq.errors import (
    DeliveryTimeoutError,
    FailedPreconditionError,
    InvalidPartitionsError,
    InvalidReplicationFactorError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    RaftMQError,
    TopicAlreadyExistsError,
    UnknownMemberError,
    UnknownPartitionError,
    UnknownScheduleError,
    UnknownTopicError,
)

from sim.cluster.options import Options
from sim.core.invariants.violation import demand

_LATE = (DeliveryTimeoutError,)
_EXPLAINED: dict[str, tuple[type[RaftMQError], ...]] = {
    "send": _LATE,
    "send in passing": (*_LATE, UnknownTopicError, UnknownPartitionError),  # the topics come and go
    # a repeat after a lost answer finds the topic or its partitions, and operators drain brokers
    "admin": (UnknownTopicError, TopicAlreadyExistsError, InvalidPartitionsError, InvalidReplicationFactorError),
    "growth": (InvalidReplicationFactorError,),
    "trim": (OffsetOutOfRangeError, FailedPreconditionError),  # a recovery has lost the records
    "verify": _LATE,
    "member": (UnknownMemberError,),  # `SessionKept` judges it
    "queue admin": (InvalidReplicationFactorError, FailedPreconditionError),  # brokers are drained, or still down
    "queue call": (UnknownScheduleError,),  # another client has deleted it
}
"""Kind of operation -> the errors that are explained in every run, besides those that may be repeated."""


def check_client_error(kind: str, error: RaftMQError, options: Options) -> None:
    """Check an error that a client got from an operation of this kind."""
    explained = _EXPLAINED.get(kind, ())
    if options.namesakes and kind in ("producer", "send"):
        explained += (ProducerFencedError,)
    if options.is_forgetful and kind.startswith(("send", "queue call")):
        explained += (OutOfOrderSequenceError,)
    if options.grow_every:  # the broker that is asked may not know of the new partition
        explained += (UnknownPartitionError,)
    is_late = kind == "queue call" and "would never fire" in str(error)  # the request of a schedule came after its time
    demand(
        error.retriable or isinstance(error, explained) or is_late,
        "ClientErrorsAreExplained",
        f"{kind} fails with {type(error).__name__}: {error}",
    )
