"""Count the messages and bytes that a consumer may still receive. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

LEASE_BYTES_MAX: Final = 1 << 20
"""Bodies of one lease, except that one message always fits. The answer with several leases stays below gRPC's limit of 4 MiB."""


UNSETTLED_MAX: Final = 10_000
"""Messages of one partition that a stream may have without settling them. Every replica keeps the rows of leased messages in memory, some 5 MB for
these. With more credit a stream gets the next ones as it settles."""


class Reserved(NamedTuple):
    """A part of the credit that belongs to a lease that is being proposed."""

    messages: int
    bytes: int


NOTHING: Final = Reserved(0, 0)


class Credit:
    """The credit of one consumer. Limits count from its beginning."""

    __slots__ = ("_bytes_limit", "_bytes_sent", "_messages_limit", "_messages_sent", "_reserved_bytes", "_reserved_messages")  # fmt: skip

    def __init__(self, messages_limit: int = 0, bytes_limit: int = 0) -> None:
        self._messages_limit = messages_limit
        self._bytes_limit = bytes_limit
        self._messages_sent = 0
        self._bytes_sent = 0
        self._reserved_messages = 0
        self._reserved_bytes = 0

    @property
    def is_reserved(self) -> bool:
        """Return whether a part of it is reserved."""
        return self._reserved_messages > 0

    def set_limits(self, messages_limit: int, bytes_limit: int) -> None:
        """Replace the limits. Lower ones take effect with the next lease."""
        self._messages_limit = messages_limit
        self._bytes_limit = bytes_limit

    def reserve(self, messages_max: int) -> Reserved:
        """Reserve at most so many messages, and at most `LEASE_BYTES_MAX` for them, or `NOTHING`."""
        messages = self._messages_limit - self._messages_sent - self._reserved_messages
        size = self._bytes_limit - self._bytes_sent - self._reserved_bytes
        if messages <= 0 or size <= 0:
            return NOTHING
        reserved = Reserved(min(messages, messages_max), min(size, LEASE_BYTES_MAX))
        self._reserved_messages += reserved.messages
        self._reserved_bytes += reserved.bytes
        return reserved

    def settle(self, reserved: Reserved, messages: int, size: int) -> None:
        """Use up messages in place of a reservation. The rest of the reservation becomes free."""
        self._reserved_messages -= reserved.messages
        self._reserved_bytes -= reserved.bytes
        self._messages_sent += messages
        self._bytes_sent += size
