"""The commands of all machines, and how each is encoded, read and rated."""

from __future__ import annotations

import typing
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
from raftmq.fsm import feature_levels
from raftmq.fsm import log_commands as lc
from raftmq.fsm import metadata_commands as mc
from raftmq.fsm.field_levels import FieldLevels
from raftmq.fsm.queue import commands as qc
from raftmq.fsm.queue import levels as queue_levels

from tests.support.formats import Struct, sample_of

TEXTS = {"kind": "queue"}
"""Text fields that are not any text."""


@dataclass(frozen=True)
class Machine:
    """One kind of state machine."""

    commands: tuple[Struct, ...]
    field_levels: FieldLevels
    encode: Callable[[msgspec.Struct], bytes]
    decode: Callable[[bytes], msgspec.Struct | None]
    level_needed: Callable[[bytes], int | None]

    def samples(self, command: Struct) -> list[msgspec.Struct]:
        """Return a command with every field written, after one without each later field that it may have."""
        full = sample_of(command, TEXTS)
        later = self.field_levels.get(command, {})
        defaults = {field.name: field.default for field in msgspec.structs.fields(command) if field.name in later}
        return [msgspec.structs.replace(full, **defaults), full] if defaults else [full]


def _encode_item(item: msgspec.Struct) -> bytes:
    commands = item if isinstance(item, qc.Commands) else qc.Commands((item,))
    return qc.encode_commands(commands)


def _decode_item(payload: bytes) -> msgspec.Struct | None:
    commands = qc.decode_commands(payload)
    if commands is None or commands != qc.Commands(commands.items) or len(commands.items) != 1:
        return commands
    return commands.items[0]


MACHINES = {
    "metadata": Machine(
        typing.get_args(mc.MetadataCommand),
        feature_levels.FIELD_LEVELS,
        mc.encode_command,
        mc.decode_command,
        feature_levels.metadata_level,
    ),
    "log": Machine(
        typing.get_args(lc.LogPartitionCommand),
        feature_levels.FIELD_LEVELS,
        lc.encode_command,
        lc.decode_command,
        feature_levels.log_level,
    ),
    "queue": Machine(
        (*typing.get_args(qc.Item), qc.Commands),
        queue_levels.FIELD_LEVELS,
        _encode_item,
        _decode_item,
        queue_levels.queue_level,
    ),
}
