"""The results of the entries of a queue partition. Results are values: nobody changes them, and a session keeps its last ones in its row."""

from __future__ import annotations

from enum import IntEnum

import msgspec


class Code(IntEnum):
    """Say how an item ended. Values are in rows of sessions: never reuse one."""

    OK = 0
    DIED = 1
    """A released message had no attempt left: it is dead."""
    LEASE_LOST = 2
    """The message exists, and the token's lease does not: nothing changed."""
    LEASE_UNKNOWN = 3
    """The message does not exist. Whether this consumer finished it is not known."""
    NO_SUCH_MESSAGE = 4
    VERSION_CONFLICT = 5
    MESSAGE_LEASED = 6
    WRONG_STATE = 7
    """A dead message cannot be moved, and only a dead one can be redriven."""
    UNKNOWN_SESSION = 8
    """The session was closed or has expired: the effect of its earlier requests is not known."""
    STALE_REQUEST = 9
    """The request is older than those that the session remembers."""
    TOO_MANY_SESSIONS = 10
    TOO_MANY_JOBS = 11
    NO_SUCH_JOB = 12
    TOO_MANY_SCHEDULES = 13
    NO_SUCH_SCHEDULE = 14
    OVER_LIMIT = 15
    """The entry named more messages than one entry may touch: nothing changed for this one."""
    INVALID = 16
    """The item should not have been proposed: no bound of the state allows it."""


class QueueResult(msgspec.Struct, frozen=True, tag_field="t", omit_defaults=True, forbid_unknown_fields=True):
    """Base of all results of items. Rows of sessions have the latest ones."""


class Refused(QueueResult, frozen=True, tag="no"):
    """The item changed nothing."""

    code: int


class Done(QueueResult, frozen=True, tag="done"):
    """The item was executed and has nothing to say."""


class Leased(QueueResult, frozen=True, tag="leased"):
    """Result of Lease: runs of neighbouring sequences with equal lease numbers, in the order in which they were chosen."""

    first_sequences: tuple[int, ...]
    counts: tuple[int, ...]
    lease_numbers: tuple[int, ...]
    deadline: int
    """End of all these leases, in queue time."""
    has_more: bool = False
    """Whether only the bound of an entry's work ended the choice."""


class Settled(QueueResult, frozen=True, tag="settled"):
    """Result of Settle: runs of equal codes, over all messages in the order of the command."""

    codes: tuple[int, ...]
    counts: tuple[int, ...]


class Changed(QueueResult, frozen=True, tag="changed"):
    """Result of Change, one per item."""

    codes: tuple[int, ...]
    versions: tuple[int, ...]
    """The message's version afterwards; 0 if there is no message."""


class JobStarted(QueueResult, frozen=True, tag="job"):
    """Result of StartJob."""

    job: int


class JobProgress(QueueResult, frozen=True, tag="progress"):
    """Result of ContinueJob and CancelJob."""

    done_count: int
    """Messages that the job has taken in all."""
    is_finished: bool
    """Whether the job is at its end, and forgotten."""


class Purged(QueueResult, frozen=True, tag="purged"):
    """Result of PurgeAll."""

    count: int


class ScheduleChanged(QueueResult, frozen=True, tag="schedule"):
    """Result of the commands about schedules."""

    version: int


class SessionOpened(QueueResult, frozen=True, tag="session"):
    """Result of OpenSession."""

    session: int


ItemResult = (
    Refused | Done | Leased | Settled | Changed | JobStarted | JobProgress | Purged | ScheduleChanged | SessionOpened
)


class Results(msgspec.Struct, frozen=True):
    """Result of a COMMAND entry, one per item."""

    items: tuple[ItemResult, ...]
    has_more_due: bool = False
    """Whether more is due by the entry's time than one entry may do: another entry should follow."""
    due_count: int = 0
    """Messages whose leases ended, that expired or that were promoted before the items."""


class Enqueued(msgspec.Struct, frozen=True):
    """Result of a DATA entry: the exceptions. A message at a position that is not named has the entry's sequence there."""

    count: int
    """Messages that came into the partition."""
    repeated: tuple[tuple[int, int], ...] = ()
    """(position, first sequence) of messages whose id was known: nothing was enqueued."""
    replaced: tuple[tuple[int, int], ...] = ()
    """(position, old sequence) of messages that replaced an older one."""
    is_stale: bool = False
    """Whether the entry was a firing that its schedule did not await any more."""


class Chained(msgspec.Struct, frozen=True):
    """Result of a DATA entry that accepts messages and enqueues others."""

    settled: Settled | Refused
    enqueued: Enqueued
    """The messages that were enqueued. Those of a message that was not accepted do not count, and are named nowhere."""


QueueApplied = Results | Enqueued | Chained
"""The result of an entry that was applied."""
