"""Checks of single values and headers that programs send, and their conversion to bytes. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

from raftmq.client.base import settings
from raftmq.client.base.texts import check_text
from raftmq.client.codec.batch import Headers

Serializer = Callable[[Any], bytes | None]  # Any: the program's own type


def to_bytes(cell: object, serializer: Serializer | None, name: str) -> bytes | None:
    """Return a key or value as bytes. Raises `TypeError`."""
    if serializer is not None and cell is not None:
        cell = serializer(cell)
    if cell is None or isinstance(cell, bytes):
        return cell
    if isinstance(cell, bytearray | memoryview):
        return bytes(cell)
    raise TypeError(
        f"a {name} must be bytes or None, not {type(cell).__name__}: pass a {name}_serializer for other types"
    )


def check_headers(headers: Iterable[tuple[str, bytes]]) -> tuple[Headers, int]:
    """Return headers as a tuple, and their bytes with overhead.

    Raises `TypeError`, or `InvalidArgumentError` for a name that cannot be encoded in UTF-8.
    """
    pairs: tuple[object, ...] = tuple(headers)
    size = 0
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise TypeError("headers are pairs of a str and bytes, such as [('trace', b'1')]")
        name, value = pair
        if not isinstance(name, str) or not isinstance(value, bytes):
            raise TypeError("headers are pairs of a str and bytes")
        check_text(name, "a header's name")
        size += len(name.encode()) + len(value) + settings.RECORD_OVERHEAD_BYTES
    return tuple((name, value) for name, value in cast("Headers", pairs)), size


def headers_bytes(headers: Headers) -> int:
    """Return the bytes of headers with overhead, as `check_headers` counts them."""
    return sum(len(name.encode()) + len(value or b"") + settings.RECORD_OVERHEAD_BYTES for name, value in headers)
