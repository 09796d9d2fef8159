"""The rows of all state machines."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from raftmq.fsm.log_partition import LogPartition
from raftmq.fsm.metadata import Metadata
from raftmq.fsm.queue.message import Message, encode_message
from raftmq.fsm.queue.partition import QueuePartition
from raftmq.fsm.row_decoders import ROW_TYPES, row_decoder
from raftmq.fsm.tables import encode_value

from tests.formats.commands import TEXTS
from tests.support.formats import Struct, sample_of, structs_in

MACHINES = (Metadata(), LogPartition(), QueuePartition())
"""Their tables name the types of rows."""
ROWS: dict[str, type] = {row.__name__: row for row in ROW_TYPES if row.__module__.startswith("raftmq.")}


def encode(row: msgspec.Struct) -> bytes:
    """Return the value of a row as the state machines write it."""
    return encode_message(row) if isinstance(row, Message) else encode_value(row)


def _default(field: Any) -> Any:
    if field.default is not msgspec.NODEFAULT:
        return msgspec.to_builtins(field.default)
    return "required" if field.default_factory is msgspec.NODEFAULT else msgspec.to_builtins(field.default_factory())


def parts_of(row: type) -> list[Struct]:
    """Return a row's type and the structs within. A named tuple has no structs."""
    return list(structs_in(row)) if issubclass(row, msgspec.Struct) else []


def is_closed(part: Struct) -> bool:
    """Return whether all fields are always written as columns without names."""
    return part.__struct_config__.array_like


def recording_of(row: type) -> dict[str, Any]:
    """Return the fields of a row and of its nested structs with their defaults, and a row in which every field is written."""
    encoded = encode(sample_of(row, TEXTS))
    fields = {
        part.__name__: {field.name: _default(field) for field in msgspec.structs.fields(part)} for part in parts_of(row)
    }
    recording = {"fields": fields, "value": repr(row_decoder(row)(encoded)), "bytes": encoded.hex()}
    as_in_the_file: dict[str, Any] = json.loads(json.dumps(recording))
    return as_in_the_file
