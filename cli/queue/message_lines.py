"""Lines of input become messages to put. Pure."""

from __future__ import annotations

import os
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING

from raftmq.errors import RaftMQError

if TYPE_CHECKING:
    from raftmq.client.queue.new_message import NewMessage

MessageParser = Callable[[bytes], "NewMessage[bytes] | None"]
"""Converts one line to its message, or to None for a blank line between JSON documents. Raises `BadLineError`."""


class MessageFormat(StrEnum):
    """Choose how `put` interprets a line."""

    LINES = "lines"
    JSON = "json"
    MESSAGES = "messages"


def message_parser(
    message_format: MessageFormat,
    common: NewMessage[bytes],
    *,
    key_separator: str | None = None,
    key_field: str | None = None,
    tenant_field: str | None = None,
    id_field: str | None = None,
) -> MessageParser:
    """Return the parser for one run. Every message has the fields of `common` that its line does not give."""
    from msgspec.structs import replace
    from raftmq.cli.input_records import BadLineError, decode_document, field_of, split_record
    from raftmq.cli.queue.message_document import message_of_line
    from raftmq.client.queue.new_message import check_message
    from raftmq.message_checks import MESSAGE_BYTES_MAX

    separator = None if key_separator is None else os.fsencode(key_separator)

    def parse_line(line: bytes) -> NewMessage[bytes]:
        key, value = split_record(line, separator)
        return replace(common, value=value, key=common.key if key is None else key)

    def parse_json(line: bytes) -> NewMessage[bytes] | None:
        if not line.strip():
            return None
        document = decode_document(line)
        given: dict[str, bytes | str] = {}
        for name, field in (("key", key_field), ("tenant", tenant_field), ("id", id_field)):
            found = None if field is None else field_of(document, field, f"--{name}-field")
            if found is not None:
                given[name] = found if name == "key" else found.decode()
        return replace(common, value=line, **given)  # by name: key is bytes, the others are texts

    def parse_message(line: bytes) -> NewMessage[bytes] | None:
        return message_of_line(line, common) if line.strip() else None

    parse = {
        MessageFormat.LINES: parse_line,
        MessageFormat.JSON: parse_json,
        MessageFormat.MESSAGES: parse_message,
    }[message_format]

    def checked(line: bytes) -> NewMessage[bytes] | None:
        message = parse(line)
        if message is not None:
            try:
                check_message(message, None, MESSAGE_BYTES_MAX)
            except RaftMQError as error:
                raise BadLineError(str(error.args[0])) from None
        return message

    return checked
