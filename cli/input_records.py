"""What a line of input means: three formats, each turning one line into one record or saying what is wrong with it. Pure."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
from raftmq.cli.input_lines import InputFormat

Headers = tuple[tuple[str, bytes], ...]


class InputRecord(NamedTuple):
    """One record to write."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp_ms: int | None = None
    """Milliseconds since the epoch; None: now."""

    def size(self) -> int:
        """Bytes of key, value and headers."""
        cells = len(self.key or b"") + len(self.value or b"")
        return cells + sum(len(name.encode()) + len(value) for name, value in self.headers)


class BadLineError(ValueError):
    """A line is not of the format; the message says why, without the line."""


LineParser = Callable[[bytes], InputRecord | None]
"""One line → its record; None for a line that means nothing (blank, between JSON documents). Raises `BadLineError`."""


def line_parser(
    input_format: InputFormat,
    *,
    key_separator: bytes | None = None,
    key_field: str | None = None,
    headers: Headers = (),
) -> LineParser:
    """The parser for one run: `headers` are put before those that a line brings itself."""

    def parse_line(line: bytes) -> InputRecord | None:
        key, value = split_record(line, key_separator)
        return InputRecord(key, value, headers)

    def parse_json(line: bytes) -> InputRecord | None:
        if not line.strip():
            return None
        return InputRecord(key_of_document(line, key_field), line, headers)

    def parse_record(line: bytes) -> InputRecord | None:
        if not line.strip():
            return None
        record = record_of_line(line)
        return record._replace(headers=headers + record.headers)

    parsers = {InputFormat.LINES: parse_line, InputFormat.JSON: parse_json, InputFormat.RECORDS: parse_record}
    return parsers[input_format]


def split_record(line: bytes, key_separator: bytes | None) -> tuple[bytes | None, bytes]:
    """Key and value of one line; without a separator, or without one in the line, there is no key."""
    if key_separator is not None:
        key, found, value = line.partition(key_separator)
        if found:
            return key, value
    return None, line


def key_of_document(line: bytes, key_field: str | None) -> bytes | None:
    """The key that a JSON document carries in a field (dots lead into nested objects); the line must be JSON in any case.

    A string is taken as it is, a number or another value as its JSON text; null or no such field means no key.
    """
    try:
        found: object = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadLineError(f"it is not JSON ({error})") from None
    if key_field is None:
        return None
    if not isinstance(found, dict):
        raise BadLineError(f"it is not a JSON object, which --key-field {key_field} needs")
    for name in key_field.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    if found is None:
        return None
    return found.encode() if isinstance(found, str) else msgspec.json.encode(found)


class _Binary(msgspec.Struct, forbid_unknown_fields=True):
    """Bytes that are no UTF-8, as `consume` writes them."""

    base64: bytes


class _RecordLine(msgspec.Struct, forbid_unknown_fields=True):
    """What `consume --output json` writes. Where a record was read from does not say where it goes, so that is left aside."""

    value: str | _Binary | None
    key: str | _Binary | None = None
    headers: list[tuple[str, str | _Binary]] = []
    timestamp: int | None = None
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None


_RECORD_DECODER = msgspec.json.Decoder(_RecordLine)


def record_of_line(line: bytes) -> InputRecord:
    """The record that one line of `consume --output json` describes. Raises `BadLineError`."""
    try:
        found = _RECORD_DECODER.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadLineError(f"it does not describe a record ({error})") from None
    if found.timestamp is not None and found.timestamp < 0:
        raise BadLineError("its timestamp is negative")
    headers = tuple((name, _bytes_of(value) or b"") for name, value in found.headers)
    return InputRecord(_bytes_of(found.key), _bytes_of(found.value), headers, found.timestamp)


def _bytes_of(cell: str | _Binary | None) -> bytes | None:
    if isinstance(cell, str):
        return cell.encode()
    return cell.base64 if cell is not None else None


def parse_headers(pairs: Sequence[str] | None) -> Headers:
    """``NAME=VALUE`` options as headers. Raises `ValueError` naming the one that is none."""
    headers = []
    for pair in pairs or ():
        name, separator, value = pair.partition("=")
        if not separator or not name:
            raise ValueError(f"{pair!r} is not NAME=VALUE")
        headers.append((name, os.fsencode(value)))
    return tuple(headers)
