"""Names of producers: `Admin` offers this function as a method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from raftmq.client.base.arguments import check_flag
from raftmq.client.base.texts import check_text
from raftmq.client.connection.resolver import Resolver
from raftmq.errors import InvalidArgumentError
from raftmq.methods import FORGET_PRODUCER_NAMES
from raftmq.proto import queue_pb2 as pb

SHOWN_NAMES_MAX: Final = 1000
"""Names that brokers show in one answer."""


@dataclass(frozen=True, slots=True)
class ProducerNameDescription:
    """The name of a producer."""

    name: str
    epoch: int
    """The number of times that it was taken over, or the number that its user chose."""
    unused_seconds: float
    """Time since its last use. Up to two minutes too long, and a few minutes too short after a pause of the whole cluster."""


@dataclass(frozen=True, slots=True)
class ForgottenNames:
    """The names that were removed, or would be."""

    count: int
    """The number of removed names. With `dry_run`: of those that would be removed."""
    left_count: int
    """The number of names in the cluster."""
    limit: int
    """The maximum number of names in a cluster."""
    names: Sequence[ProducerNameDescription]
    """The first 1,000 of the removed names, those that were unused for longest first."""


async def forget_producer_names(
    resolver: Resolver, timeout_seconds: float, *, prefix: str, unused_seconds: float, dry_run: bool
) -> ForgottenNames:
    """Remove names that nobody has used for some time."""
    if not isinstance(prefix, str):
        raise TypeError(f"prefix must be a string, not {prefix!r}")
    check_text(prefix, "prefix")
    check_flag(dry_run=dry_run)
    if isinstance(unused_seconds, bool) or not isinstance(unused_seconds, int | float):
        raise TypeError(f"unused_seconds must be a number, not {unused_seconds!r}")
    if not 0 <= unused_seconds <= 1e9:
        raise InvalidArgumentError(f"unused_seconds must be 0 to 1e9, not {unused_seconds!r}")
    request = pb.ForgetProducerNamesRequest(
        prefix=prefix, unused_ms=int(unused_seconds * 1000), dry_run=dry_run, names_max=SHOWN_NAMES_MAX
    )
    response = await resolver.call_any(FORGET_PRODUCER_NAMES, request, timeout_seconds)
    resolver.record_revision(response.metadata_revision)
    return ForgottenNames(
        count=response.forgotten_count,
        left_count=response.left_count,
        limit=response.limit,
        names=[ProducerNameDescription(each.name, each.epoch, each.unused_ms / 1000) for each in response.names],
    )
