"""A message as one JSON document: as `browse`, `peek` and `get` print it, and as `put` reads it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from raftmq.cli.input_records import BadLineError
from raftmq.cli.json_cells import Binary, bytes_of, words_of
from raftmq.cli.output import Json, text_or_base64
from raftmq.client.queue.new_message import NewMessage

if TYPE_CHECKING:
    from raftmq.client.codec.batch import Headers
    from raftmq.client.queue.message import Message
    from raftmq.client.queue.views import BrowsedMessage


class _MessageLine(msgspec.Struct, forbid_unknown_fields=True):
    """A line that describes a message. The fields of `browse` and `get` that belong to the old message are ignored."""

    value: str | Binary
    key: str | Binary | None = None
    tenant: str | None = None
    priority: int | None = None
    id: str | None = None
    delay_ms: int | None = None
    expires_ms: int | None = None
    headers: list[tuple[str, str | Binary]] = []
    replace: bool | None = None
    due_in_ms: int | None = None
    """As `browse` writes it: the rest of a delay. `delay_ms` comes first."""
    expires_in_ms: int | None = None
    """As `browse` writes it: the rest of the time to live. `expires_ms` comes first."""
    topic: str | None = None
    partition: int | None = None
    sequence: int | None = None
    state: str | None = None
    version: int | None = None
    attempt: int | None = None
    attempts: int | None = None
    token: str | None = None
    enqueued_ms: int | None = None
    lease_left_ms: int | None = None
    error: str | None = None
    progress: str | None = None
    dead_reason: str | None = None
    dead_since_ms: int | None = None


_DECODER = msgspec.json.Decoder(_MessageLine)


def message_of_line(line: bytes, common: NewMessage[bytes]) -> NewMessage[bytes]:
    """Return the message that a line describes, with the fields of `common` that the line does not give. Raises `BadLineError`."""
    try:
        found = _DECODER.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadLineError(f"it does not describe a message: {words_of(error, _MessageLine)}") from None
    given: dict[str, object] = {"value": bytes_of(found.value)}
    delay_ms = found.delay_ms if found.delay_ms is not None else max(0, found.due_in_ms or 0) or None
    if delay_ms is not None:
        given |= {"delay_ms": delay_ms, "not_before": None}
    expires_ms = found.expires_ms if found.expires_ms is not None else found.expires_in_ms
    own = {
        "key": bytes_of(found.key),
        "tenant": found.tenant,
        "priority": found.priority,
        "id": found.id,
        "expires_ms": None if expires_ms is None else max(1, expires_ms),
        "replace": found.replace,
    }
    given |= {name: cell for name, cell in own.items() if cell is not None}
    given["headers"] = (*common.headers, *((name, bytes_of(cell) or b"") for name, cell in found.headers))
    return msgspec.structs.replace(common, **given)


def browsed_json(topic: str, message: BrowsedMessage, *, with_value: bool) -> dict[str, Json]:
    """Convert a browsed message. The value is absent if it was not requested, and null if it is damaged."""
    value: dict[str, Json] = {"value": text_or_base64(message.value)} if with_value else {}
    return {
        "topic": topic,
        "partition": message.partition,
        "sequence": message.sequence,
        "id": message.id,
        "tenant": message.tenant,
        "key": text_or_base64(message.key),
        "priority": message.priority,
        "state": message.state,
        "version": message.version,
        "attempts": message.attempts,
        "enqueued_ms": message.enqueued_ms,
        "due_in_ms": message.due_in_ms,
        "lease_left_ms": message.lease_left_ms,
        "expires_in_ms": message.expires_in_ms,
        "error": message.error,
        "progress": message.progress,
        "dead_reason": message.dead_reason,
        "dead_since_ms": message.dead_since_ms,
        "headers": _headers_json(message.headers),
        **value,
    }


def leased_json(message: Message[bytes], *, is_accepted: bool) -> dict[str, Json]:
    """Convert a leased message. A message that is settled after printing has no token."""
    return {
        "topic": message.topic,
        "partition": message.partition,
        "sequence": message.sequence,
        "token": None if is_accepted else message.token,
        "id": message.id,
        "tenant": message.tenant,
        "key": text_or_base64(message.key),
        "priority": message.priority,
        "attempt": message.attempt,
        "enqueued_ms": message.enqueued_ms,
        "headers": _headers_json(message.headers),
        "value": text_or_base64(message.value),
    }


def _headers_json(headers: Headers) -> list[Json]:
    return [[name, text_or_base64(value)] for name, value in headers]
