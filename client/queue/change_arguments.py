"""Check the arguments of changes and of filters, and put them into requests. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from raftmq.client.queue.new_message import (
    check_duration,
    check_id,
    check_priority,
    check_tenant,
    check_version,
    time_ms,
)
from raftmq.client.queue.put_batch import PutResult
from raftmq.client.queue.views import BrowsedMessage
from raftmq.errors import InvalidArgumentError
from raftmq.proto import queue_pb2 as pb

TENANTS_MAX: Final = 16
"""Maximum number of subtrees in one filter, as on the brokers."""
MessageReference = str | BrowsedMessage | PutResult
"""A message to change: its id, or the value that described it."""


def change_of(
    operation: pb.ChangeOperation, message: MessageReference, version: int | None
) -> tuple[pb.MessageChange, int | None]:
    """Return a change and its partition. None: the partition of the id must be looked for."""
    change = pb.MessageChange(operation=operation, version=None if version is None else check_version(version))
    if isinstance(message, str):
        change.id = check_id(message)
        return change, None
    if message.sequence is None:
        raise InvalidArgumentError("the sequence of this message is unknown: use its id")
    change.sequence = message.sequence
    return change, message.partition


def set_move(
    change: pb.MessageChange, delay_ms: float | None, not_before: datetime | None, priority: int | None
) -> None:
    """Set the new due time and priority of a change. Raises `InvalidArgumentError` for none, or for both times."""
    if delay_ms is not None and not_before is not None:
        raise InvalidArgumentError("a move has either a delay_ms or a not_before")
    if delay_ms is None and not_before is None and priority is None:
        raise InvalidArgumentError("a move needs a delay_ms, a not_before or a priority")
    if delay_ms is not None:
        change.delay_ms = check_duration("delay_ms", delay_ms)
    if not_before is not None:
        change.not_before_ms = time_ms("not_before", not_before)
    if priority is not None:
        change.priority = check_priority(priority)


def moment_ms(name: str, moment: datetime | None) -> int:
    """Return a bound of a filter in milliseconds since 1970. 0: there is none."""
    return 0 if moment is None else time_ms(name, moment)


def check_tenants(tenants: Iterable[str]) -> tuple[str, ...]:
    """Return the subtrees of a filter. Raises `TypeError` or `InvalidArgumentError`."""
    if isinstance(tenants, str):
        raise TypeError(f"tenants takes several names, such as [{tenants!r}]")
    found = tuple(map(check_tenant, tenants))
    if len(found) > TENANTS_MAX:
        raise InvalidArgumentError(f"at most {TENANTS_MAX} tenants are allowed, not {len(found)}")
    return found


def check_key_tenant(tenants: tuple[str, ...]) -> tuple[str, ...]:
    """Return the only tenant to which a key belongs. Without a name it is the root. Raises `InvalidArgumentError` for several."""
    if len(tenants) > 1:
        raise InvalidArgumentError(f"a key belongs to one tenant: name one in tenants, not {len(tenants)}")
    return tenants or ("",)
