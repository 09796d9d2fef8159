"""Check the columns of messages that are to be enqueued. The producer checks before it encodes, the broker before it proposes.

Imports nothing of RaftMQ except the errors of `batch_header`. Every refusal names the position of its message in the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import le
from typing import NamedTuple

from raftmq.batch_header import BatchFormatError, BatchTooLargeError

MESSAGE_COUNT_MAX = 1000
"""Maximum number of messages in one batch. It limits the work of applying one entry."""
MESSAGE_BYTES_MAX = 3 << 20
"""Maximum size of a message before and after compression, whatever a topic allows: an answer of 4 MiB holds it with its columns."""
HEADERS_BYTES_MAX = 16 << 10
"""Maximum size of a message's encoded headers. They are in memory with every message that is ready or leased."""
NAME_BYTES_MAX = 249
"""Maximum length of a tenant, an id, a key and a schedule's name in bytes. They are parts of rows' keys, which have at most 511 bytes."""
TENANT_DEPTH_MAX = 8
"""Maximum number of levels of a tenant. Choosing the next message costs one choice for each."""
DELAY_MAX_MS = 10 * 366 * 24 * 3600 * 1000
"""Maximum delay and maximum relative time of expiry: ten years. Longer ones are mistakes of the unit."""
TIME_MAX_MS = 253_402_300_799_999
"""The last millisecond of the year 9999. Later times have no representation in many languages."""
PRIORITY_MIN = -(1 << 31)
PRIORITY_MAX = (1 << 31) - 1

TIME_NONE = 0
"""No time: due now, or never expiring. Its value is 0."""
TIME_AFTER = 1
"""Milliseconds from the queue time at which the message is enqueued."""
TIME_AT = 2
"""An absolute queue time in milliseconds since 1970."""

_TIME_MAX_BY_KIND = (0, DELAY_MAX_MS, TIME_MAX_MS)


class BatchLimits(NamedTuple):
    """The limits of a topic that concern a single batch."""

    message_bytes_max: int = 1 << 20
    """Maximum size of a message: the stored body and the headers."""
    message_count_max: int = MESSAGE_COUNT_MAX


class Times(NamedTuple):
    """A time per message."""

    kinds: Sequence[int]
    """`TIME_NONE`, `TIME_AFTER` or `TIME_AT`."""
    values_ms: Sequence[int]


def check_count(count: int, limits: BatchLimits) -> None:
    """Check the number of messages of a batch."""
    if not 1 <= count <= min(limits.message_count_max, MESSAGE_COUNT_MAX):
        raise BatchTooLargeError(
            f"a batch has 1 to {limits.message_count_max} messages, but this one has {count}: send it in several batches"
        )


def check_sizes(sizes: Sequence[int], headers: Sequence[bytes | None] | None, limits: BatchLimits) -> None:
    """Check the stored bytes of each message: the body's `sizes` and the encoded headers."""
    if headers is not None:
        header_sizes = [len(cell) if cell else 0 for cell in headers]
        if max(header_sizes) > HEADERS_BYTES_MAX:
            at = _first_above(header_sizes, HEADERS_BYTES_MAX)
            raise BatchTooLargeError(
                f"the message at position {at} has {header_sizes[at]} bytes of headers, but at most {HEADERS_BYTES_MAX} are allowed"
            )
        sizes = [size + more for size, more in zip(sizes, header_sizes, strict=True)]
    bytes_max = min(limits.message_bytes_max, MESSAGE_BYTES_MAX)
    if max(sizes) > bytes_max:
        at = _first_above(sizes, bytes_max)
        raise BatchTooLargeError(
            f"the message at position {at} has {sizes[at]} bytes, but at most {bytes_max} are allowed"
        )


def check_names(cells: Sequence[bytes | None] | None, name: str) -> None:
    """Check the lengths of ids or keys. None is no id or key."""
    if cells is None:
        return
    lengths = [NAME_BYTES_MAX if cell is None else len(cell) for cell in cells]
    if max(lengths) > NAME_BYTES_MAX or not all(lengths):
        at = next(at for at, length in enumerate(lengths) if not 1 <= length <= NAME_BYTES_MAX)
        raise BatchFormatError(
            f"the message at position {at} has {name} of {lengths[at]} bytes, but 1 to {NAME_BYTES_MAX} are allowed"
        )


def check_ids(ids: Sequence[bytes | None] | None) -> None:
    """Check that ids are UTF-8 of 1 to `NAME_BYTES_MAX` bytes."""
    if ids is None:
        return
    check_names(ids, "an id")
    if b"".join(filter(None, ids)).isascii():
        return
    for at, cell in enumerate(ids):
        if cell is not None and not _is_utf8(cell):
            raise BatchFormatError(f"the message at position {at} has an id that is not UTF-8")


def check_tenants(names: Sequence[bytes], choices: Sequence[int]) -> None:
    """Check the distinct tenants of a batch. `choices` has the place in `names` of each message's tenant."""
    for place, name in enumerate(names):
        defect = tenant_defect(name)
        if defect is not None:
            raise BatchFormatError(f"the message at position {choices.index(place)} has a tenant {defect}")


def tenant_defect(name: bytes) -> str | None:
    """Return the reason why a tenant is not allowed, as "that …", or None. The empty name is the root, which is allowed."""
    if not name:
        return None
    if len(name) > NAME_BYTES_MAX:
        return f"that has {len(name)} bytes, but at most {NAME_BYTES_MAX} are allowed"
    if not _is_utf8(name):
        return "that is not UTF-8"
    levels = name.split(b".")
    if len(levels) > TENANT_DEPTH_MAX:
        return f"that has {len(levels)} levels, but at most {TENANT_DEPTH_MAX} are allowed"
    if not all(levels):
        return f"that has an empty level: {name.decode()!r}"
    return None


def check_priorities(priorities: Sequence[int] | None) -> None:
    """Check that priorities fit into 32 bits with a sign."""
    if priorities is None or (min(priorities) >= PRIORITY_MIN and max(priorities) <= PRIORITY_MAX):
        return
    at = next(at for at, number in enumerate(priorities) if not PRIORITY_MIN <= number <= PRIORITY_MAX)
    raise BatchFormatError(
        f"the message at position {at} has the priority {priorities[at]}, but {PRIORITY_MIN} to {PRIORITY_MAX} are allowed"
    )


def check_times(times: Times | None, name: str) -> None:
    """Check kinds and ranges of due times or times of expiry."""
    if times is None:
        return
    kinds, values = times
    if min(kinds) < 0 or max(kinds) > TIME_AT:
        at = next(at for at, kind in enumerate(kinds) if not 0 <= kind <= TIME_AT)
        raise BatchFormatError(f"the message at position {at} has {name} of the unknown kind {kinds[at]}")
    bounds = list(map(_TIME_MAX_BY_KIND.__getitem__, kinds))
    if min(values) >= 0 and all(map(le, values, bounds)):
        return
    at = next(at for at, value in enumerate(values) if not 0 <= value <= bounds[at])
    raise BatchFormatError(
        f"the message at position {at} has {name} of {values[at]} ms, but 0 to {bounds[at]} are allowed for its kind"
    )


def check_replaces(replaces: Sequence[int] | None, ids: Sequence[bytes | None] | None) -> None:
    """Check that flags are 0 or 1, and that a message which replaces another has the id to find it by."""
    if replaces is None:
        return
    for at, flag in enumerate(replaces):
        if flag == 0:
            continue
        if flag != 1:
            raise BatchFormatError(
                f"the message at position {at} has the replace flag {flag}, which is neither 0 nor 1"
            )
        if ids is None or ids[at] is None:
            raise BatchFormatError(f"the message at position {at} is to replace another, but has no id")


def check_schedule(name: bytes) -> None:
    """Check a schedule's name: UTF-8 of 1 to `NAME_BYTES_MAX` bytes."""
    if not 1 <= len(name) <= NAME_BYTES_MAX:
        raise BatchFormatError(f"a schedule's name has 1 to {NAME_BYTES_MAX} bytes, but this one has {len(name)}")
    if not _is_utf8(name):
        raise BatchFormatError("the schedule's name is not UTF-8")


def _first_above(numbers: Sequence[int], limit: int) -> int:
    return next(at for at, number in enumerate(numbers) if number > limit)


def _is_utf8(text: bytes) -> bool:
    if text.isascii():
        return True
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
