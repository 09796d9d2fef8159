"""The token of a leased message as text: a process that has it may settle the message, which another process got."""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple

from raftmq.client.base import settings
from raftmq.client.queue.lease import Lease, LeaseOffice
from raftmq.client.queue.topic import QueueTopic
from raftmq.errors import InvalidArgumentError

SettlementName = Literal["ack", "release", "reject", "renew"]
"""The methods of `Message` that settle or renew."""
SETTLEMENTS: Final[tuple[SettlementName, ...]] = ("ack", "release", "reject", "renew")
_TEXT: Final = re.compile(r"(\d{1,20})-(\d{1,10})-(\d{1,19})-(\d{1,10})", re.ASCII)
_BOUNDS: Final = (1 << 64, 1 << 32, 1 << 63, 1 << 32)
"""The protocol's fields hold smaller numbers than these."""


class LeaseToken(NamedTuple):
    """One lease of one message."""

    topic_id: int
    """Of the topic's incarnation: a token of a topic that was deleted settles no message of the next one."""
    partition: int
    sequence: int
    lease_number: int

    def __str__(self) -> str:
        return f"{self.topic_id}-{self.partition}-{self.sequence}-{self.lease_number}"


def token_of(lease: Lease) -> LeaseToken:
    """Return the token of a lease."""
    return LeaseToken(lease.partition.topic_id, lease.partition.partition, lease.sequence, lease.lease_number)


def parse_token(text: object) -> LeaseToken:
    """Return the token that a text names. Raises `TypeError` or `InvalidArgumentError`."""
    if not isinstance(text, str):
        raise TypeError(f"a token must be a str, not {type(text).__name__}")
    found = _TEXT.fullmatch(text)
    numbers = tuple(map(int, found.groups())) if found is not None else ()
    if not numbers or any(number >= bound for number, bound in zip(numbers, _BOUNDS, strict=True)):
        raise InvalidArgumentError(f"{text[:80]!r} is not the token of a leased message, such as '12-0-341-1'")
    return LeaseToken(*numbers)


async def find_lease(token: LeaseToken, topic: QueueTopic, office: LeaseOffice) -> Lease:
    """Return the lease of a token. It is not renewed.

    Raises:
        InvalidArgumentError: the token is of another topic.
        UnknownPartitionError: the topic has no such partition.
        RaftMQError: the errors of `QueueTopic.info`.
    """
    info = await topic.info()
    if info.topic_id != token.topic_id:
        raise InvalidArgumentError(
            f"the token {token} is of another topic than {topic.name}, or of an earlier one of this name, whose messages are deleted: "
            "settle a message with a Queue of its own topic"
        )
    partition = await topic.partition(token.partition)
    return Lease(office, partition, token.sequence, token.lease_number, settings.LEASE_ASSUMED_SECONDS, 0)


async def settle_lease(
    lease: Lease,
    settlement: SettlementName,
    *,
    delay_ms: float | None,
    priority: int | None,
    error: str | None,
    lease_ms: float | None,
    progress: str | None,
) -> bool:
    """Settle or renew. Return False if the message is dead afterwards."""
    if settlement not in SETTLEMENTS:
        raise InvalidArgumentError(f"settlement {settlement!r}: use one of {', '.join(SETTLEMENTS)}")
    if settlement == "release":
        return await lease.release(delay_ms, priority, error)
    if settlement == "reject":
        await lease.reject(error)
        return False
    if settlement == "renew":
        await lease.renew(lease_ms, progress)
    else:
        await lease.accept()
    return True
