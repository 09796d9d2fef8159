"""A message to enqueue: the program's arguments, and the checked form in which it waits for its batch. Pure.

A message is checked alone, before it joins a batch: later only the whole batch could be refused.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, cast
from zlib import crc32

import msgspec
from raftmq.client.base import settings
from raftmq.client.base.texts import check_text
from raftmq.client.codec.batch import Headers
from raftmq.client.codec.cells import Serializer, check_headers, headers_bytes, to_bytes
from raftmq.client.connection.resolver import TopicInfo
from raftmq.errors import InvalidArgumentError, RecordTooLargeError
from raftmq.message_checks import (
    DELAY_MAX_MS,
    HEADERS_BYTES_MAX,
    NAME_BYTES_MAX,
    PRIORITY_MAX,
    PRIORITY_MIN,
    TIME_MAX_MS,
    tenant_defect,
)
from raftmq.message_headers import encode_headers
from raftmq.types import ValueT_contra

if TYPE_CHECKING:
    from raftmq.client.base.spans import SendSpan

NO_HEADERS: Final[Headers] = ()
VERSION_MAX: Final = (1 << 32) - 1
"""The largest version that a request can name."""


class NewMessage(msgspec.Struct, Generic[ValueT_contra], frozen=True):
    """A message for `Queue.put_many`. Its fields are the arguments of `Queue.put`."""

    value: ValueT_contra
    key: str | bytes | None = None
    tenant: str | None = None
    priority: int = 0
    delay_ms: float = 0
    not_before: datetime | None = None
    id: str | None = None
    expires_ms: float | None = None
    headers: Iterable[tuple[str, bytes]] = ()
    replace: bool = False


class CheckedMessage(NamedTuple):
    """A message that a broker accepts, as far as the client can tell."""

    value: bytes
    key: bytes | None
    tenant: str
    priority: int
    delay_ms: int | None
    """None: due now, or at `not_before_ms`."""
    not_before_ms: int | None
    id: str | None
    expires_ms: int | None
    headers: Headers
    replaces: bool
    size: int
    """Bytes with overhead, as the client's buffer counts them."""


def check_message(
    message: NewMessage[Any],  # Any: the program's own type, which the serializer takes
    serializer: Serializer | None,
    message_bytes_max: int,
) -> CheckedMessage:
    """Return a message as a batch takes it.

    Raises:
        InvalidArgumentError: an argument is out of its range.
        RecordTooLargeError: the value, or the headers, are too large.
        TypeError: an argument has a wrong type, or the serializer returned something else than bytes.
    """
    value = to_bytes(message.value, serializer, "value")
    if value is None:
        raise TypeError("a message's value must be bytes, not None")
    key = None if message.key is None else check_key(message.key)
    headers, header_bytes = check_headers(message.headers) if message.headers else (NO_HEADERS, 0)
    stored_header_bytes = len(encode_headers(headers) or b"") if headers else 0
    if stored_header_bytes > HEADERS_BYTES_MAX:
        raise RecordTooLargeError(
            f"the headers of a message have {stored_header_bytes} bytes, but at most {HEADERS_BYTES_MAX} are allowed in messages of every "
            "topic: put them into the value"
        )
    size = len(value) + header_bytes
    if size > message_bytes_max:
        raise RecordTooLargeError(f"a message has {size} bytes, but at most {message_bytes_max} are allowed")
    if message.delay_ms and message.not_before is not None:
        raise InvalidArgumentError("a message has either a delay_ms or a not_before")
    if message.replace and message.id is None:
        raise InvalidArgumentError("replace=True needs the id of the message to replace")
    tenant = check_tenant(message.tenant) if message.tenant is not None else ""
    name = None if message.id is None else check_id(message.id)
    name_bytes = sum(len(one.encode()) for one in (tenant, name or ""))
    return CheckedMessage(
        value,
        key,
        tenant,
        check_priority(message.priority) if message.priority else 0,
        check_duration("delay_ms", message.delay_ms) if message.delay_ms else None,
        None if message.not_before is None else time_ms("not_before", message.not_before),
        name,
        None if message.expires_ms is None else check_duration("expires_ms", message.expires_ms),
        headers,
        message.replace,
        size + (len(key) if key is not None else 0) + name_bytes + settings.MESSAGE_OVERHEAD_BYTES,
    )


def with_trace(message: CheckedMessage, span: SendSpan, message_bytes_max: int) -> CheckedMessage:
    """Return a message with the context of a span in its headers instead of one that it may have.

    A message that would exceed a limit remains without a context.
    """
    own = span.own(message.headers)
    traced = (*own, *span.headers)
    is_traced = (
        len(message.value) + headers_bytes(traced) <= message_bytes_max
        and len(encode_headers(traced) or b"") <= HEADERS_BYTES_MAX
    )
    headers = traced if is_traced else own
    return message._replace(
        headers=headers, size=message.size - headers_bytes(message.headers) + headers_bytes(headers)
    )


def batch_room(info: TopicInfo, bytes_max: int) -> int:
    """Return how many bytes of messages a batch of a topic takes, at most `bytes_max`. A single message always fits."""
    allowed = max(info.batch_bytes_max, info.message_bytes_max + settings.TOPIC_BATCH_OVERHEAD_BYTES)
    return min(bytes_max, allowed - settings.BATCH_FRAME_BYTES)


def home_partition(info: TopicInfo, message: CheckedMessage) -> int | None:
    """Return the only partition that may hold a message, because of its key or its id. None: any may."""
    if info.partition_count == 1:
        return 0
    if info.is_ordered_by_key and message.key is not None:
        return crc32(message.key) % info.partition_count
    if message.id is not None:
        return crc32(message.id.encode()) % info.partition_count
    return None


def check_key(key: object) -> bytes:
    """Return a key as bytes. Raises `TypeError`, or `InvalidArgumentError` for a key that is empty or too long."""
    check_text(key, "key")
    encoded = key.encode() if isinstance(key, str) else key
    if not isinstance(encoded, bytes):
        raise TypeError(f"a key must be a str or bytes, not {type(key).__name__}")
    if not 1 <= len(encoded) <= NAME_BYTES_MAX:
        raise InvalidArgumentError(f"a key has 1 to {NAME_BYTES_MAX} bytes, not {len(encoded)}")
    return encoded


def check_id(name: object) -> str:
    """Return an id. Raises `TypeError`, or `InvalidArgumentError` for an id that is empty or too long."""
    return _check_name(name, "id")


def check_schedule_name(name: object) -> str:
    """Return the name of a schedule. Raises as `check_id`."""
    return _check_name(name, "name of a schedule")


def _check_name(name: object, field: str) -> str:
    if not isinstance(name, str):
        raise TypeError(f"the {field} must be a str, not {type(name).__name__}")
    check_text(name, field)
    if not 1 <= len(name.encode()) <= NAME_BYTES_MAX:
        raise InvalidArgumentError(f"the {field} must have 1 to {NAME_BYTES_MAX} bytes in UTF-8, unlike {name!r}")
    return name


def check_tenant(tenant: object) -> str:
    """Return a tenant. The empty text is the root. Raises `TypeError`, or `InvalidArgumentError` for a path that is not allowed."""
    if not isinstance(tenant, str):
        raise TypeError(f"a tenant must be a str, not {type(tenant).__name__}")
    check_text(tenant, "tenant")
    defect = tenant_defect(tenant.encode())
    if defect is not None:
        raise InvalidArgumentError(f"tenant {tenant!r} is a name {defect}")
    return tenant


def check_priority(priority: object) -> int:
    """Return a priority. Raises `TypeError` if it is not a whole number, `InvalidArgumentError` if it exceeds 32 bits."""
    try:
        number = operator.index(cast("int", priority))
    except TypeError:
        raise TypeError(f"priority must be a whole number, not {priority!r}") from None
    if not PRIORITY_MIN <= number <= PRIORITY_MAX:
        raise InvalidArgumentError(f"priority must be between {PRIORITY_MIN} and {PRIORITY_MAX}, not {number}")
    return number


def check_version(version: object) -> int:
    """Return a version of a message or a schedule. Raises `TypeError`, or `InvalidArgumentError` if it exceeds 32 bits."""
    try:
        number = operator.index(cast("int", version))
    except TypeError:
        raise TypeError(f"version must be a whole number, not {version!r}") from None
    if not 0 <= number <= VERSION_MAX:
        raise InvalidArgumentError(f"version must be between 0 and {VERSION_MAX}, not {number}")
    return number


def check_duration(name: str, milliseconds: object) -> int:
    """Return a delay or a time to live in whole milliseconds. Raises `TypeError` or `InvalidArgumentError`."""
    if isinstance(milliseconds, bool) or not isinstance(milliseconds, int | float):
        raise TypeError(f"{name} must be a number of milliseconds, not {milliseconds!r}")
    if not 0 <= milliseconds <= DELAY_MAX_MS:  # also false for NaN
        raise InvalidArgumentError(f"{name} must be between 0 and {DELAY_MAX_MS} (ten years), not {milliseconds!r}")
    return round(milliseconds)


def check_lease(lease_ms: object) -> int:
    """Return the length of a lease in whole milliseconds. Raises `TypeError` or `InvalidArgumentError`."""
    if isinstance(lease_ms, bool) or not isinstance(lease_ms, int | float):
        raise TypeError(f"lease_ms must be a number of milliseconds, not {lease_ms!r}")
    if not settings.LEASE_MS_MIN <= lease_ms <= settings.LEASE_MS_MAX:  # also false for NaN
        raise InvalidArgumentError(
            f"lease_ms must be between {settings.LEASE_MS_MIN} (1 s) and {settings.LEASE_MS_MAX} (12 h), not {lease_ms!r}: "
            "the client renews a lease for as long as the work takes"
        )
    return round(lease_ms)


def time_ms(name: str, moment: object) -> int:
    """Return a point in time in milliseconds since 1970. Raises `TypeError`, or `InvalidArgumentError` for a time without a time zone."""
    if not isinstance(moment, datetime):
        raise TypeError(f"{name} must be a datetime, not {moment!r}")
    if moment.tzinfo is None:
        raise InvalidArgumentError(f"{name} needs a time zone, such as datetime.now(timezone.utc): {moment!r} has none")
    milliseconds = round(moment.timestamp() * 1000)
    if not 0 <= milliseconds <= TIME_MAX_MS:
        raise InvalidArgumentError(f"{name} must be between the years 1970 and 9999, not {moment!r}")
    return milliseconds
