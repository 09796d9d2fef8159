"""Record why a replica that metadata wants on this node is not served, and when it is tried again.

This module decides nothing: `replica_manager` does. All times are loop times.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from raftmq.broker.base.supervisor import pause_after
from raftmq.errors import UnsupportedDataError
from raftmq.storage.errors import StorageFullError, StorageUnavailableError
from raftmq.storage.log_store import ReplicaKey

_NO_ROOM: Final = {errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM}

RETRY_SECONDS_MIN: Final = 1.0
"""The pause after the first failure of a replica. Each further pause is twice as long."""
RETRY_SECONDS_MAX: Final = 60.0
"""The longest pause. It is also how late a replica is served after the cause has gone."""
ROOM_SECONDS_MAX: Final = 5.0
"""The longest pause while disk space or descriptors are missing. They may return at any time, and an attempt is cheap."""
STARTING_ATTEMPTS: Final = 3
"""Failed attempts for which a start waits. After more, the replica no longer prevents its node from being ready."""
STEADY_SECONDS: Final = 300.0
"""A replica that was served for this long since its failure has recovered. One that fails sooner still has the same trouble."""
GIVE_UP_SECONDS: Final = 600.0
"""A replica that a defect has kept from being served for this long is given up, and its group rebuilds it if a majority can
spare it. Long enough for an operator to look at it, short enough that another failure rarely comes first."""


class NotServedReason(StrEnum):
    """A reason why a replica is not served. The values are codes of /readyz and of a label of /metrics."""

    OPENING = "opening"
    """The replica is being created or opened."""
    FAILING = "failing"
    """A defect of the program stopped the replica, or its file cannot be opened. Attempts are repeated."""
    UNAVAILABLE = "unavailable"
    """The disk has no space for the replica, or the operating system no descriptors or memory, or it permits no new file."""
    UNSUPPORTED_FORMAT = "unsupported_format"
    """Another version of the broker wrote the replica's file or a command in it, and this version cannot read it."""
    QUARANTINED = "quarantined"
    """The replica's data is damaged or missing, or it was given up. It waits to be replaced."""


class NotServed(NamedTuple):
    """One replica that metadata wants here and that this node does not serve."""

    key: ReplicaKey
    reason: NotServedReason
    message: str
    is_starting: bool
    """Whether a start waits for it, because it was not served in this boot and may still be."""


@dataclass(slots=True)
class Trouble:
    """The reason why one replica is not served, and its history."""

    key: ReplicaKey
    began_at: float
    """Time of the first failure."""
    was_served: bool
    """Whether it was served earlier in this boot."""
    reason: NotServedReason = NotServedReason.FAILING
    message: str = ""
    attempts: int = 0
    """Failures in a row. A stop while it was served counts."""
    retry_at: float = 0.0
    is_due: bool = True
    """Whether it should be tried now."""
    served_at: float | None = None
    """Time since which it is served again. None while it is not."""

    def record(self, reason: NotServedReason, message: str, now: float) -> None:
        """Record a failure."""
        self.reason, self.message = reason, message
        self.attempts += 1
        self.served_at, self.is_due = None, False
        longest = ROOM_SECONDS_MAX if reason is NotServedReason.UNAVAILABLE else RETRY_SECONDS_MAX
        self.retry_at = now + pause_after(self.attempts, RETRY_SECONDS_MIN, longest)

    @property
    def is_starting(self) -> bool:
        """Return whether a start still waits for it."""
        return not self.was_served and self.attempts < STARTING_ATTEMPTS

    def is_over(self, now: float) -> bool:
        """Return whether it has been served for long enough to have recovered."""
        return self.served_at is not None and now - self.served_at > STEADY_SECONDS

    def is_hopeless(self, now: float) -> bool:
        """Return whether it should be replaced. A new replica cures neither a lack of space nor the format of another version."""
        return self.reason is NotServedReason.FAILING and now - self.began_at >= GIVE_UP_SECONDS


def reason_of(error: Exception) -> NotServedReason:
    """Return the kind of trouble that an error is."""
    if isinstance(error, UnsupportedDataError):
        return NotServedReason.UNSUPPORTED_FORMAT
    is_room = isinstance(error, OSError) and error.errno in _NO_ROOM
    if is_room or isinstance(error, StorageFullError | StorageUnavailableError):
        return NotServedReason.UNAVAILABLE
    return NotServedReason.FAILING
