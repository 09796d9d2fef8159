"""Find the latest field that a command holds: a field of a later feature level than its command counts when it is written.

`feature_levels` and `queue/levels` have the levels themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import msgspec
from msgspec.structs import FieldInfo

FieldLevels = Mapping[type, Mapping[str, int]]
"""Fields that were added at a later level than their struct, by struct. A field at its default value is not written."""


def level_of_own_fields(struct: msgspec.Struct, field_levels: FieldLevels) -> int:
    """Return the highest level among the fields that are written in a struct itself, or 0."""
    later, level = field_levels.get(type(struct)), 0
    for field in _fields(type(struct)) if later else ():
        if later and field.name in later and getattr(struct, field.name) != field.default:
            level = max(level, later[field.name])
    return level


def level_of_fields(struct: msgspec.Struct, field_levels: FieldLevels) -> int:
    """Return the highest level among the fields that are written in a struct or in its nested structs, or 0."""
    level = level_of_own_fields(struct, field_levels)
    for field in _fields(type(struct)):
        value = getattr(struct, field.name)
        for held in value if isinstance(value, tuple) else (value,):
            if isinstance(held, msgspec.Struct):
                level = max(level, level_of_fields(held, field_levels))
    return level


@cache
def _fields(kind: type[msgspec.Struct]) -> tuple[FieldInfo, ...]:
    """Return the fields of a type. To find them evaluates their annotations, which takes a tenth of a millisecond."""
    return msgspec.structs.fields(kind)
