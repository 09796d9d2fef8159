"""Who calls, and until when an answer is of use: what a service knows of a call besides its request."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Right(Enum):
    """What a call needs to be allowed to do."""

    PRODUCE = "produce"
    CONSUME = "consume"
    ADMIN = "admin"
    DESCRIBE = "describe"


@dataclass(frozen=True, slots=True)
class Principal:
    """Who calls, and what for it may."""

    name: str
    rights: frozenset[Right]


ANYONE = Principal("anyone", frozenset(Right))
"""The one principal there is as long as brokers have no credentials."""

DEFAULT_CALL_SECONDS = 30.0
"""For calls without a deadline of their own: nothing waits for ever on behalf of a client that may be gone."""
CALL_SECONDS_MAX = 120.0
"""For calls with a deadline far away: nothing a broker does takes longer, and a call that waits holds memory."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call."""

    deadline: float
    """Loop time. After it nothing is started any more on behalf of the call."""
    principal: Principal = ANYONE
    is_forwarded: bool = False
    """It came from another broker, which took this one for the metadata leader: it must not be forwarded again."""

    def within(self, timeout_ms: int, now: float) -> float:
        """The call's deadline, or `timeout_ms` after `now` (loop time) if that is sooner; 0: the request has none."""
        return min(self.deadline, now + timeout_ms / 1000) if timeout_ms else self.deadline
