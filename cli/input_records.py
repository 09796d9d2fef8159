"""The three input formats: each converts one line to a record, or says why the line is invalid. Pure."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
from raftmq.cli.input_lines import InputFormat
from raftmq.cli.json_cells import Binary, bytes_of, words_of
from raftmq.cli.options import OFFSET_MAX

Headers = tuple[tuple[str, bytes], ...]


class InputRecord(NamedTuple):
    """One record to write."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp_ms: int | None = None
    """Milliseconds since the epoch; None means now."""


class BadLineError(ValueError):
    """Raised when a line does not have the format. The message says why, without the line."""


LineParser = Callable[[bytes], InputRecord | None]
"""Converts one line to its record, or to None for a blank line between JSON documents. Raises `BadLineError`."""


def line_parser(
    input_format: InputFormat,
    *,
    key: bytes | None = None,
    key_separator: bytes | None = None,
    key_field: str | None = None,
    headers: Headers = (),
) -> LineParser:
    """Return the parser for one run. `key` is the key of every line. `headers` come before a line's own headers."""

    def parse_line(line: bytes) -> InputRecord | None:
        own_key, value = split_record(line, key_separator)
        return InputRecord(own_key if key is None else key, value, headers)

    def parse_json(line: bytes) -> InputRecord | None:
        if not line.strip():
            return None
        document = decode_document(line)  # the line must be JSON even without a field
        own_key = None if key_field is None else field_of(document, key_field, "--key-field")
        return InputRecord(own_key if key is None else key, line, headers)

    def parse_record(line: bytes) -> InputRecord | None:
        if not line.strip():
            return None
        record = record_of_line(line)
        return record._replace(headers=headers + record.headers)

    parsers = {InputFormat.LINES: parse_line, InputFormat.JSON: parse_json, InputFormat.RECORDS: parse_record}
    return parsers[input_format]


def split_record(line: bytes, key_separator: bytes | None) -> tuple[bytes | None, bytes]:
    """Return key and value of one line. Without a separator there is no key. Raises `BadLineError` for a line without
    the separator.
    """
    if key_separator is None:
        return None, line
    key, found, value = line.partition(key_separator)
    if not found:
        raise BadLineError(f"it has no {os.fsdecode(key_separator)!r} between key and value (--key-separator)")
    return key, value


def decode_document(line: bytes) -> object:
    """Return the JSON document of a line. Raises `BadLineError`."""
    try:
        return msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadLineError(f"it is not JSON: {words_of(error)}") from None
    except RecursionError:
        raise BadLineError("its JSON is nested too deeply") from None


def field_of(document: object, field: str, option: str) -> bytes | None:
    """Return a field of a JSON document. Dots lead into nested objects. Raises `BadLineError`.

    A string is used unchanged, and a number or another value as its JSON text. null or a missing field is None.
    """
    if not isinstance(document, dict):
        raise BadLineError(f"it is not a JSON object, which {option} {field} needs")
    found: object = document
    for name in field.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    if found is None:
        return None
    return found.encode() if isinstance(found, str) else msgspec.json.encode(found)


class _RecordLine(msgspec.Struct, forbid_unknown_fields=True):
    """A line of `consume --output json`. The record's old position does not decide its new one, so the parser ignores
    it.
    """

    value: str | Binary | None
    key: str | Binary | None = None
    headers: list[tuple[str, str | Binary]] = []
    timestamp: int | None = None
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None


_RECORD_DECODER = msgspec.json.Decoder(_RecordLine)


def record_of_line(line: bytes) -> InputRecord:
    """Return the record described by one line of `consume --output json`. Raises `BadLineError`."""
    try:
        found = _RECORD_DECODER.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadLineError(f"it does not describe a record: {words_of(error, _RecordLine)}") from None
    if found.timestamp is not None and found.timestamp < 0:
        raise BadLineError("its timestamp is negative")
    if found.timestamp is not None and found.timestamp > OFFSET_MAX:
        raise BadLineError(f"its timestamp is above {OFFSET_MAX}")
    headers = tuple((name, bytes_of(value) or b"") for name, value in found.headers)
    return InputRecord(bytes_of(found.key), bytes_of(found.value), headers, found.timestamp)


def parse_headers(pairs: Sequence[str] | None) -> Headers:
    """Parse ``NAME=VALUE`` options as headers. Raises `ValueError` naming an invalid option."""
    headers = []
    for pair in pairs or ():
        name, separator, value = pair.partition("=")
        if not separator or not name:
            raise ValueError(f"{pair!r} is not NAME=VALUE")
        try:
            name.encode()
        except UnicodeEncodeError:
            raise ValueError(f"the name in {pair!r} is not UTF-8") from None
        headers.append((name, os.fsencode(value)))
    return tuple(headers)
