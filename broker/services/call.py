"""Describe a call to a service besides its request: the caller and the deadline."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Right(Enum):
    """A right that a method requires of its caller."""

    PRODUCE = "produce"
    CONSUME = "consume"
    ADMIN = "admin"
    DESCRIBE = "describe"


@dataclass(frozen=True, slots=True)
class Principal:
    """The identity of a caller, and its rights."""

    name: str
    rights: frozenset[Right]

    @property
    def name_for_peers(self) -> str:
        """Return the name that requests to other brokers carry. It is empty as long as clients have no names."""
        return "" if self is ANYONE else self.name


ANYONE = Principal("anyone", frozenset(Right))
"""The only principal as long as brokers have no credentials."""


def principal_of_peers(name: str) -> Principal:
    """Return the principal for whom another broker asks, by the name in its request.

    A name can only come from a newer version, in which clients have names. Its rights are not known here, so it has none.
    """
    return Principal(name, frozenset()) if name else ANYONE


DEFAULT_CALL_SECONDS = 30.0
"""Deadline of calls without one, so that nothing waits without end for a client that may be gone."""
CALL_SECONDS_MAX = 120.0
"""The latest deadline of a call: nothing that a broker does takes longer, and a waiting call holds memory."""


@dataclass(frozen=True, slots=True)
class Call:
    """The circumstances of one call."""

    deadline: float
    """Loop time. After it nothing more is started for the call."""
    principal: Principal = ANYONE
    is_forwarded: bool = False
    """Whether it came from another broker, which believed that this one can answer it. It must not be forwarded again."""

    def within(self, timeout_ms: int, now: float) -> float:
        """Return the earlier of the call's deadline and `timeout_ms` after `now` (loop time). 0 means that the request has no timeout."""
        return min(self.deadline, now + timeout_ms / 1000) if timeout_ms else self.deadline
