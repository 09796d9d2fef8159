"""Every error that RaftMQ raises: one root, one class for each way in which a caller can react, and codes that are never reused.

Imports nothing of RaftMQ. Five branches say how to react to an error:

- `UsageError`: the caller's mistake. Repeating the call cannot help.
- `RejectedError`: a definite refusal. Nothing was applied. Retry when ``retriable``.
- `UnknownOutcomeError`: the operation may have happened, or may still happen. Retry only idempotent operations.
- `ProtocolError`: the two sides do not understand each other, or a record batch is damaged.
- `StorageError`: the broker's disk or replica cannot serve. Nothing was applied.

``Closed...`` means that our side closed something, ``Broken...`` that something failed from outside.
"""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar, Never


class Outcome(IntEnum):
    """The possible effect of a failed operation."""

    NOT_APPLIED = 0
    """It definitely did not happen."""
    UNKNOWN = 1
    """It may have happened, or may still happen."""


class InvariantError(Exception):
    """An internal rule was violated, by a bug or damaged memory. It stops the replica concerned, never the process."""

    def __init__(self, name: str, context: dict[str, object]) -> None:
        super().__init__(f"invariant {name} violated: " + ", ".join(f"{k}={v!r}" for k, v in context.items()))
        self.name = name
        self.context = context


class UnsupportedDataError(Exception):
    """Durable data was written by a newer version of the program, which this one cannot read. It is not damaged.

    Its replica stops and its file stays unchanged: it works again under a version that can read it. Never replace it as damaged.
    """


def invariant(condition: object, name: str, **context: object) -> None:
    """Raise `InvariantError` unless `condition` holds. Active in production, too."""
    if not condition:
        raise InvariantError(name, context)


def violated(name: str, **context: object) -> Never:
    """Raise `InvariantError`. Use it after your own comparison where building the context for every call would cost too much."""
    raise InvariantError(name, context)


class ErrorCode(IntEnum):
    """The codes of the client protocol (``queue.proto``). A test compares them. Never reused."""

    INVALID_ARGUMENT = 1
    UNKNOWN_TOPIC = 2
    UNKNOWN_PARTITION = 3
    TOPIC_ALREADY_EXISTS = 4
    INVALID_TOPIC_NAME = 5
    INVALID_CONFIG = 6
    INVALID_REPLICATION_FACTOR = 7
    INVALID_PARTITIONS = 8
    RECORD_TOO_LARGE = 9
    CORRUPT_BATCH = 10
    UNSUPPORTED_COMPRESSION = 11
    UNSUPPORTED_VERSION = 12
    WRONG_CLUSTER = 13
    PERMISSION_DENIED = 14
    TOPIC_KIND_MISMATCH = 15
    TOO_MANY_PARTITIONS = 16
    OFFSET_OUT_OF_RANGE = 20
    OFFSET_NOT_AVAILABLE = 21
    NOT_LEADER = 30
    LEADERSHIP_LOST = 31
    REQUEST_TIMED_OUT = 32
    THROTTLED = 33
    DISK_FULL = 34
    NOT_READY = 35
    NO_LEADER = 36
    SHUTTING_DOWN = 37
    REPLICA_QUARANTINED = 38
    NOT_FORMED = 39
    CLUSTER_ALREADY_FORMED = 40
    OUT_OF_ORDER_SEQUENCE = 50
    SEQUENCE_OVERLAP = 51
    PRODUCER_FENCED = 52
    UNKNOWN_PRODUCER = 53
    TOO_MANY_PRODUCERS = 54
    TOO_MANY_NAMES = 55
    FENCED = 60
    UNKNOWN_MEMBER = 61
    STALE_EPOCH = 62
    UNKNOWN_GROUP = 63
    GROUP_NOT_EMPTY = 64
    TOO_MANY_MEMBERS = 65
    CONFLICT = 70
    UNKNOWN_BROKER = 71
    BROKER_ID_TAKEN = 72
    BROKER_REMOVED = 73
    BROKER_IN_USE = 74
    STALE_DIRECTORY = 75
    ADDRESS_TAKEN = 76
    FAILED_PRECONDITION = 77
    INTERNAL = 90
    QUEUE_FULL = 100
    TENANT_FULL = 101
    LEASE_LOST = 102
    LEASE_UNKNOWN = 103
    ATTEMPTS_EXHAUSTED = 104
    NO_SUCH_MESSAGE = 105
    VERSION_CONFLICT = 106
    MESSAGE_LEASED = 107
    WRONG_MESSAGE_STATE = 108
    UNKNOWN_SESSION = 109
    TOO_MANY_SESSIONS = 110
    TOO_MANY_TENANTS = 111
    UNKNOWN_SCHEDULE = 112
    TOO_MANY_SCHEDULES = 113
    UNKNOWN_JOB = 114
    TOO_MANY_JOBS = 115


class RaftMQError(Exception):
    """The root of all errors that RaftMQ raises on purpose."""

    code: ClassVar[ErrorCode | None] = None
    """The code that a broker sends for this error, or None for errors that only a client raises."""
    retriable: ClassVar[bool] = False
    """Whether the same call may succeed later."""
    outcome: Outcome = Outcome.NOT_APPLIED
    """Whether the operation may have happened. The class determines it, unless the broker reports an unknown outcome for this failure."""
    address: str = ""
    """The broker that was asked (``host:port``), or empty if it was not a single one."""
    advice: ClassVar[str] = ""
    """The recommended action, which is part of the text. Empty if the message itself contains it."""

    def __init__(self, message: str = "", *, retry_after_ms: int = 0) -> None:
        super().__init__(message or (type(self).__doc__ or type(self).__name__).splitlines()[0])
        self.retry_after_ms = retry_after_ms
        """The wait before a retry that the broker requests, or 0."""

    def __str__(self) -> str:
        """Return the message and the advice."""
        message = str(self.args[0])
        return f"{message.rstrip('.')}; {self.advice}" if self.advice else message


# ----------------------------------------------------------------------------------------------------------- branches


class UsageError(RaftMQError):
    """The caller's mistake: repeating the call cannot help. Nothing was applied."""


class RejectedError(RaftMQError):
    """A definite refusal: nothing was applied."""


class UnknownOutcomeError(RaftMQError):
    """The operation may have happened, or may still happen.

    An idempotent producer may send the same batch (same producer id and sequence) again without writing it twice.
    """

    outcome = Outcome.UNKNOWN


class ProtocolError(RaftMQError):
    """The two sides do not understand each other, or data is damaged. Nothing was applied."""


class StorageError(RaftMQError):
    """The broker cannot store or serve the data. Nothing was applied."""


# -------------------------------------------------------------------------------------------------------------- usage


class InvalidArgumentError(UsageError):
    """An argument is outside its range."""

    code = ErrorCode.INVALID_ARGUMENT


class UnknownTopicError(UsageError):
    """The cluster has no such topic (confirmed by its metadata leader)."""

    code = ErrorCode.UNKNOWN_TOPIC
    advice = "using a topic does not create it: create it first (Admin.create_topic, or: raftmq topic create NAME)"


class UnknownPartitionError(UsageError):
    """The topic has no such partition."""

    code = ErrorCode.UNKNOWN_PARTITION
    advice = "use one that exists, or add partitions (Admin.add_partitions, or: raftmq topic add-partitions NAME)"


class TopicAlreadyExistsError(UsageError):
    """A topic of this name exists."""

    code = ErrorCode.TOPIC_ALREADY_EXISTS
    advice = "use it, choose another name, or create with if_not_exists (--if-not-exists)"


class InvalidTopicNameError(UsageError):
    """The topic's name is empty, too long or contains forbidden characters."""

    code = ErrorCode.INVALID_TOPIC_NAME


class InvalidConfigError(UsageError):
    """A setting of a topic or of brokers is unknown, cannot be changed, or its value is not accepted."""

    code = ErrorCode.INVALID_CONFIG


class InvalidReplicationFactorError(UsageError):
    """The replication factor is zero or larger than the cluster, or a move names another number of brokers. The message has the remedy."""

    code = ErrorCode.INVALID_REPLICATION_FACTOR


class InvalidPartitionsError(UsageError):
    """The number of partitions is zero, too large, or not above the current number."""

    code = ErrorCode.INVALID_PARTITIONS


class RecordTooLargeError(UsageError):
    """A record, a message or a batch exceeds its limit (`max.batch.bytes` of a log topic, by default enough for a record just under 1 MiB,
    `max.message.bytes` of a queue topic, by default 1 MiB).
    """

    code = ErrorCode.RECORD_TOO_LARGE
    advice = (
        "send less in one record, raise the topic's limit (max.batch.bytes of a log topic, at most 3670016, because a batch must fit into one "
        "gRPC message; max.message.bytes of a queue topic, at most 3145728), or store the content elsewhere and send a reference to it"
    )


class WrongClusterError(UsageError):
    """The address belongs to another cluster than the one this client or broker knows."""

    code = ErrorCode.WRONG_CLUSTER
    advice = "check bootstrap_servers: every address must belong to one cluster"


class PermissionDeniedError(UsageError):
    """The caller has no right to do this."""

    code = ErrorCode.PERMISSION_DENIED
    advice = "ask the cluster's operator for the right"


class TopicKindMismatchError(UsageError):
    """The operation does not fit the topic's kind, such as a consumer on a queue."""

    code = ErrorCode.TOPIC_KIND_MISMATCH
    advice = "the kind of a topic is shown by raftmq topic describe"


class TooManyPartitionsError(UsageError):
    """The brokers have no room for so many partition replicas."""

    code = ErrorCode.TOO_MANY_PARTITIONS


class UnknownBrokerError(UsageError):
    """The cluster has no such broker."""

    code = ErrorCode.UNKNOWN_BROKER


class BrokerIdTakenError(UsageError):
    """Another broker holds this broker id."""

    code = ErrorCode.BROKER_ID_TAKEN


class BrokerRemovedError(UsageError):
    """The broker was removed from the cluster and may not come back under this identity."""

    code = ErrorCode.BROKER_REMOVED


class StaleDirectoryError(UsageError):
    """The broker's data directory is an older copy, or a second process uses it. Records that it lacks may have been acknowledged."""

    code = ErrorCode.STALE_DIRECTORY
    advice = (
        "stop that broker and treat its directory like a lost disk: start it on an empty data directory with --join and this "
        "broker's --broker-id; never restore a broker's directory from a backup while its cluster lives"
    )


class AddressTakenError(UsageError):
    """Another broker of the cluster is registered with this address. If its disk was replaced, start with its --broker-id."""

    code = ErrorCode.ADDRESS_TAKEN


class BrokerInUseError(UsageError):
    """The broker cannot be removed as things are: it runs, holds replicas or votes on metadata. The message says what to do."""

    code = ErrorCode.BROKER_IN_USE


class FailedPreconditionError(UsageError):
    """The arguments are valid, but the state of the brokers, the partition or the group does not allow it. The message has the remedy."""

    code = ErrorCode.FAILED_PRECONDITION


class ClusterAlreadyFormedError(UsageError):
    """A cluster forms once, and this broker already belongs to one."""

    code = ErrorCode.CLUSTER_ALREADY_FORMED


class UnknownGroupError(UsageError):
    """The cluster knows neither a member nor a committed offset of this consumer group."""

    code = ErrorCode.UNKNOWN_GROUP
    advice = "list the groups: raftmq group list"


class GroupNotEmptyError(UsageError):
    """The consumer group has members, but the operation needs a group without members."""

    code = ErrorCode.GROUP_NOT_EMPTY
    advice = "stop its consumers first, or fence them with fence_members (--fence-members)"


class ClosedClientError(UsageError):
    """The client was closed (or never started) and accepts no more calls."""


class ForkedClientError(UsageError):
    """The client was opened in another process, or one was open during a fork. Connections, threads and gRPC do not survive a fork."""

    advice = "create clients in the child and have none open in the parent when it forks, or use multiprocessing's spawn method"


class WrongEventLoopError(UsageError):
    """The client was started on another event loop, where its connections and tasks live. On this one it would wait indefinitely."""

    advice = "start and close a client in one asyncio.run, or use raftmq.sync, which any thread may call"


class NoPositionError(UsageError):
    """A partition has no position, because ``auto_offset_reset`` is ``"none"`` and there was no seek."""


class PoisonRecordError(UsageError):
    """A handler failed for the last time on a record, and there is no dead-letter topic: the worker or transformer stopped.

    The group's progress stays before the record, which is the first that its next owner gets.
    """

    advice = "repair the handler, or configure a dead-letter topic for the worker (a transformer's handler returns an output for one)"

    def __init__(
        self, message: str = "", *, topic: str = "", partition: int = -1, offset: int = -1, attempts: int = 0
    ) -> None:
        super().__init__(message)
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.attempts = attempts
        """The number of attempts by this worker."""


class NoSuchMessageError(UsageError):
    """The partition has no unfinished message with this sequence or id: it is done, was cancelled, or never existed."""

    code = ErrorCode.NO_SUCH_MESSAGE


class UnknownScheduleError(UsageError):
    """The topic has no schedule of this name."""

    code = ErrorCode.UNKNOWN_SCHEDULE
    advice = "list the schedules that exist (Admin.list_schedules, or: raftmq schedule list TOPIC)"


class UnknownJobError(UsageError):
    """The partition has no such job: it is finished, or was cancelled."""

    code = ErrorCode.UNKNOWN_JOB


class TransformStateError(UsageError):
    """A transformer's state is too large to be committed with the group's offset, or can no longer be verified."""

    advice = "docs/guides/transforming.md describes these limits"


class HandlerError(UsageError):
    """A worker's handler failed, and its own exception is not available: it was raised in another process, or the process died."""

    advice = "the message contains its text; exceptions that can be pickled arrive unchanged"


# ----------------------------------------------------------------------------------------------------------- rejected


class OffsetOutOfRangeError(RejectedError):
    """The offset is below the partition's log start, above its end, or after records that were lost in a recovery of the partition."""

    code = ErrorCode.OFFSET_OUT_OF_RANGE
    advice = "seek to an offset that exists, or set auto_offset_reset"

    def __init__(
        self,
        message: str = "",
        *,
        retry_after_ms: int = 0,
        log_start_offset: int = 0,
        high_watermark: int = 0,
        kept_end_offset: int | None = None,
    ) -> None:
        super().__init__(message, retry_after_ms=retry_after_ms)
        self.log_start_offset = log_start_offset
        """The first readable offset."""
        self.high_watermark = high_watermark
        """One past the last readable offset."""
        self.kept_end_offset = kept_end_offset
        """The offset from which on records were lost in a recovery of the partition, so that reading goes on there. None: no loss is the reason."""


class OffsetNotAvailableError(RejectedError):
    """The offset is above the range that this replica may serve for now."""

    code = ErrorCode.OFFSET_NOT_AVAILABLE
    retriable = True


class NotLeaderError(RejectedError):
    """The broker does not lead the partition. Definitely nothing was appended."""

    code = ErrorCode.NOT_LEADER
    retriable = True

    def __init__(
        self,
        message: str = "",
        *,
        retry_after_ms: int = 0,
        leader_broker_id: int = 0,
        leader_address: str = "",
        leader_epoch: int = 0,
    ) -> None:
        super().__init__(message, retry_after_ms=retry_after_ms)
        self.leader_broker_id = leader_broker_id
        """The leader that the broker knows, or 0."""
        self.leader_address = leader_address
        self.leader_epoch = leader_epoch


class NoLeaderError(RejectedError):
    """The partition has no leader: an election is running, or a majority of its replicas is down."""

    code = ErrorCode.NO_LEADER
    retriable = True
    advice = "try again; if it persists, a majority of the replicas is down (raftmq cluster status)"


class ThrottledError(RejectedError):
    """A budget of the broker is exhausted. Try again after `retry_after_ms`."""

    code = ErrorCode.THROTTLED
    retriable = True


class NotReadyError(RejectedError):
    """The broker is starting, or its metadata is not up to date."""

    code = ErrorCode.NOT_READY
    retriable = True


class NotFormedError(RejectedError):
    """The broker belongs to no cluster yet."""

    code = ErrorCode.NOT_FORMED
    retriable = True
    advice = "form its cluster first (raftmq cluster init, or raftmq broker start --bootstrap), or use a broker that belongs to one"


class ShuttingDownError(RejectedError):
    """The broker is shutting down. Another one will lead."""

    code = ErrorCode.SHUTTING_DOWN
    retriable = True


class OutOfOrderSequenceError(RejectedError):
    """The batch does not follow the producer's last one: a batch between them is missing.

    Its `outcome` is UNKNOWN when an earlier attempt was not answered and the broker no longer remembers whether it was applied.
    """

    code = ErrorCode.OUT_OF_ORDER_SEQUENCE

    def __init__(self, message: str = "", *, retry_after_ms: int = 0, is_certain: bool = False) -> None:
        super().__init__(message, retry_after_ms=retry_after_ms)
        self.is_certain = is_certain
        """Whether the broker remembers everything that this producer wrote. If so, no earlier attempt of the batch was written, either."""


class SequenceOverlapError(RejectedError):
    """Part of the batch was written before. `last_sequence` tells how much."""

    code = ErrorCode.SEQUENCE_OVERLAP

    def __init__(self, message: str = "", *, retry_after_ms: int = 0, last_sequence: int = 0) -> None:
        super().__init__(message, retry_after_ms=retry_after_ms)
        self.last_sequence = last_sequence
        """The last sequence of this producer in the partition."""


class ProducerFencedError(RejectedError):
    """A newer epoch of this producer exists: this one is a zombie and must stop."""

    code = ErrorCode.PRODUCER_FENCED
    advice = "stop this producer: a newer one has replaced it"


class UnknownProducerError(RejectedError):
    """The cluster does not know the producer (any more)."""

    code = ErrorCode.UNKNOWN_PRODUCER


class TooManyProducersError(RejectedError):
    """The partition already remembers the maximum number of producers. An old one must expire first."""

    code = ErrorCode.TOO_MANY_PRODUCERS
    retriable = True


class TooManyNamesError(RejectedError):
    """The cluster already has the maximum number of producers with a name. Names expire 14 days after their last use."""

    code = ErrorCode.TOO_MANY_NAMES
    advice = "use names again instead of new ones, and remove unused ones: raftmq cluster forget-names, Admin.forget_producer_names"


class FencedError(RejectedError):
    """The partition now belongs to another member of the consumer group."""

    code = ErrorCode.FENCED


class UnknownMemberError(RejectedError):
    """The consumer group does not know this member (any more)."""

    code = ErrorCode.UNKNOWN_MEMBER


class TooManyMembersError(RejectedError):
    """The consumer group has the maximum number of members, or the cluster the maximum number of groups and members."""

    code = ErrorCode.TOO_MANY_MEMBERS
    retriable = True


class StaleEpochError(RejectedError):
    """The request contains an older epoch of the consumer group."""

    code = ErrorCode.STALE_EPOCH


class ConflictError(RejectedError):
    """The object has changed in the meantime. Read it and try again."""

    code = ErrorCode.CONFLICT
    retriable = True


class QueueFullError(RejectedError):
    """The topic has its maximum number or size of messages. Nothing was enqueued."""

    code = ErrorCode.QUEUE_FULL
    retriable = True
    advice = "put again when consumers have made room, or raise the topic's limit"


class TenantFullError(RejectedError):
    """A tenant has its maximum number or size of messages. Nothing of the batch was enqueued."""

    code = ErrorCode.TENANT_FULL
    retriable = True
    advice = "put again when consumers have made room, or raise the topic's limit for tenants"


class LeaseLostError(RejectedError):
    """The message exists, and this lease of it has ended. The settlement changed nothing: the message is delivered again, or already is."""

    code = ErrorCode.LEASE_LOST
    advice = "renew long leases in time (the SDK does, while its process runs), and make handlers idempotent"


class AttemptsExhaustedError(RejectedError):
    """The message was released after its last attempt. It is dead and is not delivered again."""

    code = ErrorCode.ATTEMPTS_EXHAUSTED
    advice = "look at it with browse, and redrive it when the cause is repaired"


class VersionConflictError(RejectedError):
    """The message or the schedule has changed since the given version. Read it again, and decide again."""

    code = ErrorCode.VERSION_CONFLICT


class MessageLeasedError(RejectedError):
    """A consumer works on the message, so it cannot be changed now."""

    code = ErrorCode.MESSAGE_LEASED
    retriable = True


class WrongMessageStateError(RejectedError):
    """The message's state does not allow the change: a dead message cannot be moved, and only a dead one can be redriven."""

    code = ErrorCode.WRONG_MESSAGE_STATE


class UnknownSessionError(RejectedError):
    """The partition does not know the consumer's session any more. The SDK opens another one."""

    code = ErrorCode.UNKNOWN_SESSION


class TooManySessionsError(RejectedError):
    """The partition has the maximum number of consumer sessions. One must expire first."""

    code = ErrorCode.TOO_MANY_SESSIONS
    retriable = True


class TooManyTenantsError(RejectedError):
    """The partition has the maximum number of tenants. Nothing was enqueued."""

    code = ErrorCode.TOO_MANY_TENANTS
    retriable = True
    advice = "name fewer tenants: one for each customer, not one for each message"


class TooManySchedulesError(RejectedError):
    """The partition has the maximum number of schedules."""

    code = ErrorCode.TOO_MANY_SCHEDULES
    advice = "delete schedules that are not needed, or spread them over more partitions"


class TooManyJobsError(RejectedError):
    """The partition has the maximum number of running jobs. Wait until one is finished."""

    code = ErrorCode.TOO_MANY_JOBS
    retriable = True


class BufferFullError(RejectedError):
    """The producer's buffer had no space within ``max_block_ms``. The record was not accepted."""

    retriable = True
    advice = "send more slowly, or raise buffer_memory or max_block_ms; if no records are accepted at all, check raftmq cluster status"


class DeliveryExpiredError(RejectedError):
    """The delivery timeout passed and the record is definitely not written: it was never sent, or each attempt was refused.

    `DeliveryTimeoutError` is the case in which an attempt was not answered.
    """

    retriable = True
    advice = "send it again: it will not be written twice"


class UnreachableError(RejectedError):
    """No connection to the broker could be established. Nothing was sent."""

    retriable = True
    advice = "check the address, and that a broker is running there"


class BootstrapError(RejectedError):
    """No bootstrap address answered with the cluster's topology in time."""

    retriable = True
    advice = "check bootstrap_servers, and that a broker of the cluster is running at one of these addresses"


# ---------------------------------------------------------------------------------------------------- unknown outcome


class BrokenConnectionError(UnknownOutcomeError):
    """The connection to a broker failed before an answer arrived."""

    retriable = True
    advice = "repeat a read; before repeating a change, check whether it was applied"


class LeadershipLostError(UnknownOutcomeError):
    """The leader stepped down after accepting the batch and before committing it.

    The batch may still commit: retry only with the same producer id and sequence.
    `NotLeaderError` is the definite case: nothing was appended.
    """

    code = ErrorCode.LEADERSHIP_LOST
    retriable = True


class RequestTimedOutError(UnknownOutcomeError):
    """No answer arrived in time. A change may have been applied."""

    code = ErrorCode.REQUEST_TIMED_OUT
    retriable = True
    advice = "repeat a read; before repeating a change, check whether it was applied"


class DeliveryTimeoutError(UnknownOutcomeError):
    """A sent batch was not acknowledged within ``delivery_timeout_ms``. It may have been written, or may still be.

    Sending its records again writes them twice if the first attempt arrives.
    """

    advice = "check whether the records exist before sending them again"


class DrainTimeoutError(UnknownOutcomeError):
    """A worker stopped before all of its handlers had ended. The next owners process their records again."""

    advice = "give the worker more time to drain, or its handlers a time limit"

    def __init__(self, message: str = "", *, handlers_running: int = 0) -> None:
        super().__init__(message)
        self.handlers_running = handlers_running


class ClosedInFlightError(UnknownOutcomeError):
    """The client was closed without waiting while the batch was in flight. It may have been written."""

    advice = "check whether the records exist before sending them again"


class LeaseUnknownError(UnknownOutcomeError):
    """The message is gone, and no session tells whether this consumer finished it, or another one did."""

    code = ErrorCode.LEASE_UNKNOWN
    advice = "treat the message as done: it is not delivered again"


class InternalError(UnknownOutcomeError):
    """A defect of the broker. The operation may have happened."""

    code = ErrorCode.INTERNAL
    advice = "read the broker's log"


# ----------------------------------------------------------------------------------------------------------- protocol


class MalformedBatchError(ProtocolError):
    """The broker refused a batch: bad length, magic, version, count or checksum."""

    code = ErrorCode.CORRUPT_BATCH


class UnsupportedVersionError(ProtocolError):
    """The other side uses another version of the protocol or of the batch format."""

    code = ErrorCode.UNSUPPORTED_VERSION


class UnsupportedCompressionError(ProtocolError):
    """This side does not know the compression codec, or the topic does not allow it."""

    code = ErrorCode.UNSUPPORTED_COMPRESSION
    advice = "use lz4, zstd, snappy, gzip or none"


class UnknownErrorCodeError(ProtocolError):
    """The broker answered with an error code (`number`) that this client does not know, because the broker is newer."""

    outcome = Outcome.UNKNOWN

    def __init__(self, message: str = "", *, number: int = 0, retry_after_ms: int = 0) -> None:
        super().__init__(message, retry_after_ms=retry_after_ms)
        self.number = number


class CorruptBatchError(ProtocolError):
    """A stored batch cannot be decoded. A consumer can seek to `next_offset` to skip it.

    The broker checks a batch's frame and checksum but not its body: another program wrote this one.
    """

    def __init__(self, topic: str, partition: int, offset: int, next_offset: int, reason: str = "") -> None:
        super().__init__(
            f"the batch at offsets {offset}..{next_offset - 1} of {topic}/{partition} cannot be decoded"
            f"{': ' + reason if reason else ''}; seek to {next_offset} to skip it"
        )
        self.topic = topic
        self.partition = partition
        self.offset = offset
        """The first offset of the batch."""
        self.next_offset = next_offset
        """The first offset after it."""

    def __reduce__(self) -> tuple[type[CorruptBatchError], tuple[str, int, int, int]]:
        return type(self), (self.topic, self.partition, self.offset, self.next_offset)


class DeserializationError(ProtocolError):
    """A serializer cannot read a key or value, because another program or version wrote the record."""

    advice = "seek past the record, or move it to a dead-letter topic"


# ------------------------------------------------------------------------------------------------------------ storage


class DiskFullError(StorageError):
    """The broker's disk reserve is reached. It accepts no more records until space is freed."""

    code = ErrorCode.DISK_FULL
    retriable = True
    advice = "free space on that broker: it then accepts records again automatically"


class ReplicaQuarantinedError(StorageError):
    """The replica found damage in its data and serves nothing until it is rebuilt from its peers."""

    code = ErrorCode.REPLICA_QUARANTINED
    retriable = True


def _subclasses(root: type[RaftMQError]) -> list[type[RaftMQError]]:
    found: list[type[RaftMQError]] = []
    for child in root.__subclasses__():
        found.append(child)
        found.extend(_subclasses(child))
    return found


ERROR_CLASSES: dict[ErrorCode, type[RaftMQError]] = {
    cls.code: cls for cls in _subclasses(RaftMQError) if cls.code is not None
}
"""The client exception of each code that a broker can send."""
