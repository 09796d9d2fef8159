"""The operations of the clients of queue partitions, as the checker judges them.

Times are of two kinds. `began` and `ended` are seconds of one clock that all clients share. Names that end in `_ms` are queue time of the
partition, which only its leader knows.

An operation has one of three outcomes. Of one that failed nothing was done. Of one without an answer it is unknown whether and when it was
done: its `ended` is infinite.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

ANY_VERSION = -1
"""The version that a change names which is done in any."""


class Outcome(Enum):
    """A client's knowledge about an operation."""

    OK = "ok"
    FAILED = "failed"
    UNKNOWN = "unknown"


class Verb(Enum):
    """The effect of an operation on one message."""

    ACCEPT = "accept"
    RELEASE = "release"
    REJECT = "reject"
    RENEW = "renew"
    MOVE = "move"
    CANCEL = "cancel"
    REDRIVE = "redrive"


class Answer(Enum):
    """The answer about one message."""

    DONE = "done"
    DIED = "died"
    """Released without an attempt left: the message is dead."""
    LOST = "lost"
    """The token's lease does not exist any more."""
    OTHER = "other"
    """Nothing was done for another reason."""


@dataclass(frozen=True, slots=True)
class SentMessage:
    """A message as its producer sent it."""

    value: bytes
    """It is different in each message of a history."""
    tenant: str = ""
    key: str = ""
    """The key whose order counts. Empty: none."""
    id: str = ""
    replaces: bool = False
    delay_ms: int = 0
    due_ms: int = 0
    """0: see `delay_ms`."""
    may_expire: bool = False
    expires_ms: int = 0
    """The time to live after which it is not leased for the first time. 0: none, or not judged."""


@dataclass(frozen=True, slots=True)
class Operation:
    """The common part of all operations."""

    process: str
    partition: int
    began: float
    ended: float
    outcome: Outcome
    before_ms: int
    """The queue clock before the operation was done. 0: unknown."""

    @property
    def may_have_happened(self) -> bool:
        """Return whether the operation was done or may have been done."""
        return self.outcome is not Outcome.FAILED


@dataclass(frozen=True, slots=True)
class Put(Operation):
    """Messages that were sent in one batch."""

    messages: tuple[SentMessage, ...]
    first_sequence: int = -1
    """-1: unknown."""
    append_ms: int = 0
    """The batch's queue time. 0: unknown."""
    repeated: tuple[int, ...] = ()
    """Positions of messages that were not enqueued, since their ids were known."""
    replaced: tuple[int, ...] = ()
    """Sequences of older messages that were replaced."""
    are_exceptions_known: bool = True
    """Whether `repeated` and `replaced` are complete. A repeat of the batch is not told."""


@dataclass(frozen=True, slots=True)
class LeasedMessage:
    """A message that a consumer got."""

    sequence: int
    lease_number: int
    value: bytes


@dataclass(frozen=True, slots=True)
class LeaseTaken(Operation):
    """Messages that a consumer asked for. Without an answer it is unknown which were leased."""

    messages: tuple[LeasedMessage, ...] = ()
    lease_ms: int = 0
    deadline_ms: int = 0
    """The end of all these leases. Their beginning is `lease_ms` earlier."""

    @property
    def leased_ms(self) -> int:
        """Return the queue time at which the leases began."""
        return self.deadline_ms - self.lease_ms


@dataclass(frozen=True, slots=True)
class SettledMessage:
    """A settlement of one message."""

    verb: Verb
    sequence: int
    lease_number: int
    answer: Answer | None = None
    """None: there was no answer."""
    delay_ms: int = 0
    """Release: the delay that was requested. 0: none, or the partition's own."""
    lease_ms: int = 0
    """Renew: the new rest of the lease."""
    is_backed_off: bool = False
    """Release: the attempt counts, and the delay is the partition's own."""


@dataclass(frozen=True, slots=True)
class Settlement(Operation):
    """Settlements that a consumer sent together."""

    messages: tuple[SettledMessage, ...] = ()


@dataclass(frozen=True, slots=True)
class ChangedMessage:
    """A change of one message."""

    verb: Verb
    sequence: int
    """-1: the message was named by its id, and nobody told its sequence."""
    answer: Answer | None = None
    due_ms: int = 0
    """Move: the new due time. 0: not said."""
    delay_ms: int = 0
    """Move: the new delay. 0: none."""
    id: str = ""
    """The id by which the message was named. Empty: it was named by its sequence."""
    expected_version: int = ANY_VERSION
    """The only version of the message in which the change is done."""
    version: int = 0
    """The version that the answer says the message has afterwards. 0: it does not say."""


@dataclass(frozen=True, slots=True)
class Alteration(Operation):
    """Changes that an operator sent together."""

    messages: tuple[ChangedMessage, ...] = ()


class Sweep(Enum):
    """The effect of an operation on all messages that a filter takes."""

    PURGE_ALL = "purge all"
    PURGE = "purge"
    REDRIVE = "redrive"


@dataclass(frozen=True, slots=True)
class Swept(Operation):
    """A purge, or a job. A job has ended when it was started: it takes no message that was enqueued later."""

    sweep: Sweep = Sweep.PURGE_ALL
    tenant: str = ""
    """The subtree that it takes. Empty: all."""


@dataclass(frozen=True, slots=True)
class Scheduled(Operation):
    """A schedule that was put, or whose message was enqueued on request. Each of its firings enqueues a message with this value."""

    value: bytes = b""


@dataclass(frozen=True, slots=True)
class Drained(Operation):
    """The end: everything that could be leased was leased and accepted, the dead were redriven, and this was left."""

    left: tuple[tuple[str, int], ...] = ()
    """States with the number of messages that are in them and could not be leased."""
