"""Encode the headers of one message of a queue topic, which brokers keep and send without looking into them.

Each header is a `u16` length of its name, an `i32` length of its value (-1: null), the name in UTF-8 and the value, little-endian. The
headers follow each other until the end (ADR 0013). A record batch of a log topic has columns instead, which no single record's headers can
be taken from.
"""

from __future__ import annotations

from struct import Struct

from raftmq.batch_header import BatchFormatError
from raftmq.errors import InvalidArgumentError

DEAD_LETTER_PREFIX = "raftmq.dead_letter."
"""The prefix of the names of headers that are added to a record or a message that was given up, when it goes to another topic."""

Headers = tuple[tuple[str, bytes | None], ...]
"""Pairs of a name and a value. Names may repeat, and None is a null value."""

NAME_BYTES_MAX = (1 << 16) - 1
"""Maximum length of a header's name, because of its type."""
_NULL = -1
_LENGTHS = Struct("<Hi")


def encode_headers(headers: Headers) -> bytes | None:
    """Return the headers of a message as bytes, or None if it has none. Raises `InvalidArgumentError` for a name that is too long."""
    parts: list[bytes] = []
    for text, value in headers:
        name = text.encode()
        if len(name) > NAME_BYTES_MAX:
            raise InvalidArgumentError(
                f"a header's name has {len(name)} bytes, but at most {NAME_BYTES_MAX} are allowed"
            )
        parts.append(_LENGTHS.pack(len(name), _NULL if value is None else len(value)))
        parts.append(name)
        if value is not None:
            parts.append(value)
    return b"".join(parts) or None


def decode_headers(data: bytes) -> Headers:
    """Return the headers of a message. Raises `BatchFormatError` for bytes that are not headers."""
    headers: list[tuple[str, bytes | None]] = []
    at = 0
    while at < len(data):
        if len(data) - at < _LENGTHS.size:
            raise BatchFormatError("a header is cut off")
        name_bytes, value_bytes = _LENGTHS.unpack_from(data, at)
        name_end = at + _LENGTHS.size + name_bytes
        end = name_end + max(value_bytes, 0)
        if value_bytes < _NULL or end > len(data):
            raise BatchFormatError(f"a header claims {name_bytes} and {value_bytes} bytes, which are not there")
        try:
            name = data[at + _LENGTHS.size : name_end].decode()
        except UnicodeDecodeError as error:
            raise BatchFormatError(f"a header's name is not UTF-8: {error}") from error
        headers.append((name, None if value_bytes == _NULL else data[name_end:end]))
        at = end
    return tuple(headers)
