"""The feature level that each item of a queue partition needs: every broker must be able to read an item before any broker may write it.

It has the same rules as `feature_levels`: an item of a later release gets a row with its level, and so does a field that is added to an
item of an earlier one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from raftmq.fsm.field_levels import FieldLevels, level_of_fields, level_of_own_fields
from raftmq.fsm.queue import commands as qc

ITEM_LEVELS: Final[Mapping[type[qc.Item], int]] = {
    qc.Lease: 2,
    qc.Settle: 2,
    qc.Change: 2,
    qc.StartJob: 2,
    qc.ContinueJob: 2,
    qc.CancelJob: 2,
    qc.PurgeAll: 2,
    qc.PutSchedule: 2,
    qc.ChangeSchedule: 2,
    qc.SkipFirings: 2,
    qc.DeleteSchedule: 2,
    qc.OpenSession: 2,
    qc.CloseSession: 2,
    qc.Configure: 2,
    qc.PauseTenant: 2,
    qc.ResumeTenant: 2,
    qc.AimCopies: 2,
    qc.CopyDead: 2,
    qc.Tick: 2,
}
"""Every item of a queue partition."""
COMMANDS_LEVEL: Final = 2
"""The level of an entry without items."""
DUE_LEVEL: Final = 7
"""From this level on an entry names how many due messages it promotes."""
LEASE_NUMBERS_LEVEL: Final = 10
"""From this level on the entries of a recovered partition name the number after which leases are numbered."""
FIELD_LEVELS: Final[FieldLevels] = {
    qc.Commands: {"due_max": DUE_LEVEL, "lease_numbers_after": LEASE_NUMBERS_LEVEL},
}
"""Fields that were added at a later level than their item, by item. A field at its default value is not written."""
_FIELDS_OF_ITEMS: Final[FieldLevels] = {
    kind: levels for kind, levels in FIELD_LEVELS.items() if kind is not qc.Commands
}
"""Those that a look at each item finds. There may be hundreds of items."""


def queue_level(payload: bytes) -> int | None:
    """Return the level that encoded commands need, or None when this version cannot read them."""
    commands = qc.decode_commands(payload)
    if commands is None:
        return None
    level = max((ITEM_LEVELS[type(item)] for item in commands.items), default=COMMANDS_LEVEL)
    level = max(level, level_of_own_fields(commands, FIELD_LEVELS))
    return max(level, level_of_fields(commands, _FIELDS_OF_ITEMS)) if _FIELDS_OF_ITEMS else level
