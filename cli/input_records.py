"""The three input formats: each converts one line to a record, or says why the line is invalid. Pure."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from difflib import get_close_matches
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
        own_key = key_of_document(line, key_field)
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


def key_of_document(line: bytes, key_field: str | None) -> bytes | None:
    """Return the key in a field of a JSON document. Dots lead into nested objects. The line must be JSON even without a
    field.

    A string is used unchanged, and a number or another value as its JSON text. null or a missing field means no key.
    """
    try:
        found: object = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadLineError(f"it is not JSON: {_words_of(str(error))}") from None
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
    """Bytes that are not UTF-8, as `consume` writes them."""

    base64: bytes


class _RecordLine(msgspec.Struct, forbid_unknown_fields=True):
    """A line of `consume --output json`. The record's old position does not decide its new one, so the parser ignores
    it.
    """

    value: str | _Binary | None
    key: str | _Binary | None = None
    headers: list[tuple[str, str | _Binary]] = []
    timestamp: int | None = None
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None


_JSON_NAMES = {"str": "a string", "int": "a number", "float": "a number", "bool": "true or false"} | {
    name: f"an {name}" for name in ("object", "array")
}
_JSON_NAME = re.compile("|".join(rf"\b{name}\b" for name in _JSON_NAMES))
_RECORD_DECODER = msgspec.json.Decoder(_RecordLine)


def record_of_line(line: bytes) -> InputRecord:
    """Return the record described by one line of `consume --output json`. Raises `BadLineError`."""
    try:
        found = _RECORD_DECODER.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadLineError(f"it does not describe a record: {_words_of(str(error))}") from None
    if found.timestamp is not None and found.timestamp < 0:
        raise BadLineError("its timestamp is negative")
    headers = tuple((name, _bytes_of(value) or b"") for name, value in found.headers)
    return InputRecord(_bytes_of(found.key), _bytes_of(found.value), headers, found.timestamp)


def _words_of(error: str) -> str:
    """Translate an error of msgspec to terms of JSON. For an unknown field, suggest the most similar one."""
    if (unknown := re.search(r"unknown field `([^`]*)`", error)) is not None:
        close = get_close_matches(unknown[1], _RecordLine.__struct_fields__, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(_RecordLine.__struct_fields__)}"
        return f"there is no field {unknown[1]!r}; {hint}"
    if (missing := re.search(r"missing required field `([^`]*)`", error)) is not None:
        return f"the field {missing[1]!r} is missing"
    if (wrong := re.search(r"Expected `([^`]*)`, got `([^`]*)`(?: - at `\$\.?([^`]*)`)?", error)) is not None:
        expected, got = (_JSON_NAME.sub(lambda name: _JSON_NAMES[name[0]], text) for text in wrong.group(1, 2))
        return f"{wrong[3] or 'the line'} must be {expected.replace(' | ', ' or ')}, not {got}"
    return error.removeprefix("JSON is malformed: ")


def _bytes_of(cell: str | _Binary | None) -> bytes | None:
    if isinstance(cell, str):
        return cell.encode()
    return cell.base64 if cell is not None else None


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
