"""Build a value of any command with every field written, and list the fields that it may write."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
from msgspec import inspect
from raftmq.fsm.tables import DirtyRow, encode_value, number_key

Struct = type[msgspec.Struct]


def sample_of(struct: Struct, texts: dict[str, str] | None = None) -> msgspec.Struct:
    """Return a struct in which no field has its default value. `texts` has the values of text fields that cannot be any text."""
    sample: msgspec.Struct = _Sampler(texts or {})._value(inspect.type_info(struct), "")
    return sample


class _Sampler:
    def __init__(self, texts: dict[str, str]) -> None:
        self._texts = texts
        self._number = 0

    def struct(self, struct: Struct) -> Any:
        known = inspect.type_info(struct)
        assert isinstance(known, inspect.StructType)
        return struct(**{field.name: self._value(field.type, field.name) for field in known.fields})

    def _value(self, kind: inspect.Type, name: str) -> Any:
        match kind:
            case inspect.BoolType():
                return True
            case inspect.IntType() | inspect.FloatType():
                self._number += 1
                return self._number
            case inspect.StrType():
                return self._texts.get(name, name)
            case inspect.BytesType():
                return name.encode()
            case inspect.EnumType():
                return list(kind.cls)[-1]
            case inspect.VarTupleType():
                return (self._value(kind.item_type, name), self._value(kind.item_type, name))
            case inspect.ListType():
                return [self._value(kind.item_type, name), self._value(kind.item_type, name)]
            case inspect.NamedTupleType():
                return kind.cls(*(self._value(field.type, field.name) for field in kind.fields))
            case inspect.TupleType():
                return tuple(self._value(one, name) for one in kind.item_types)
            case inspect.DictType():
                return {self._value(kind.key_type, name): self._value(kind.value_type, name)}
            case inspect.StructType():
                return self.struct(kind.cls)
            case inspect.UnionType():
                return self._value(next(one for one in kind.types if not isinstance(one, inspect.NoneType)), name)
        raise AssertionError(f"{name}: no sample of {kind}")


def structs_in(struct: Struct) -> Iterator[Struct]:
    """Yield a struct and all structs that it may hold, each once."""
    seen: set[Struct] = set()
    waiting: list[inspect.Type] = [inspect.type_info(struct)]
    while waiting:
        kind = waiting.pop()
        if isinstance(kind, inspect.StructType) and kind.cls not in seen:
            seen.add(kind.cls)
            waiting += (field.type for field in kind.fields)
            yield kind.cls
        for name in ("item_type", "key_type", "value_type"):
            if hasattr(kind, name):
                waiting.append(getattr(kind, name))
        for name in ("item_types", "types"):
            waiting += getattr(kind, name, ())


def fields_of(struct: Struct) -> list[str]:
    """Return the fields that a command may write, nested ones included, as `Struct.field`."""
    return sorted(f"{one.__name__}.{name}" for one in structs_in(struct) for name in one.__struct_fields__)


FIRST_ROW = number_key(1, 0)
"""The row of the cluster in metadata, and of the scalars in a partition of a log."""


def with_a_later_field(take: Callable[[Any], Iterable[DirtyRow]]) -> Callable[[Any], tuple[DirtyRow, ...]]:
    """Return a `take_dirty_rows` of a version in which that row has one more field, which is used."""

    def add(key: bytes, value: bytes | None) -> DirtyRow:
        if key != FIRST_ROW or value is None:
            return key, value
        return key, encode_value(msgspec.msgpack.decode(value) | {"later": 1})

    return lambda machine: tuple(add(key, value) for key, value in take(machine))
