"""Find the columns of the data by name, and check their types by Spark's names for them. Must not import Spark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from raftmq.spark.errors import InvalidSchemaError

WHOLE: Final = frozenset({"tinyint", "smallint", "int", "bigint"})
WITHOUT_ZONE: Final = "timestamp_ntz"
TIMES: Final = frozenset({"timestamp", WITHOUT_ZONE})
HEADERS_TYPE: Final = "array<struct<key:string,value:binary>>"

BYTES_IN_WORDS: Final = "string or binary"
WHOLE_IN_WORDS: Final = "a whole number"
TIME_IN_WORDS: Final = "a timestamp"
"""Names of types in errors."""


class Field(Protocol):
    """Describe the part of Spark's `StructField` that is used."""

    name: str

    @property
    def dataType(self) -> FieldType:  # noqa: N802 - Spark's name
        """Return the field's type."""
        ...


class FieldType(Protocol):
    """Describe the part of Spark's `DataType` that is used."""

    def simpleString(self) -> str:  # noqa: N802 - Spark's name
        """Return the type's name, as in DDL."""
        ...


class FieldFinder:
    """Find columns by their names in any case."""

    def __init__(self, fields: Sequence[Field]) -> None:
        """Take the columns of the data. Raises `InvalidSchemaError` when two have the same name."""
        self._fields = fields
        self._positions: dict[str, int] = {}
        for position, field in enumerate(fields):
            if field.name.lower() in self._positions:
                raise InvalidSchemaError(f"the column {field.name!r} is there twice")
            self._positions[field.name.lower()] = position

    def find(self, name: str | None, types: str, is_allowed: Callable[[str], bool]) -> int | None:
        """Return the position of a column, or None when there is none.

        Args:
            name: The column's name. None finds nothing.
            types: The allowed types in words, for the error.
            is_allowed: Returns whether a type is allowed, given Spark's name for it.

        Raises:
            InvalidSchemaError: the column has another type.
        """
        position = self._positions.get(name.lower()) if name is not None else None
        if position is None:
            return None
        actual = self._fields[position].dataType.simpleString()
        if not is_allowed(actual):
            raise InvalidSchemaError(f"the column {name!r} is {types}, not {actual}")
        return position

    def find_typed(self, name: str, is_allowed: Callable[[str], bool]) -> int | None:
        """Return the position of a column if it exists and has an allowed type."""
        position = self._positions.get(name)
        if position is None or not is_allowed(self._fields[position].dataType.simpleString()):
            return None
        return position

    def value(self) -> int:
        """Return the position of the column ``value``. Raises `InvalidSchemaError` when there is none."""
        position = self.find("value", BYTES_IN_WORDS, is_bytes)
        if position is None:
            names = ", ".join(field.name for field in self._fields)
            raise InvalidSchemaError(f"there is no column 'value' ({BYTES_IN_WORDS}); there are: {names}")
        return position

    def headers(self) -> int | None:
        """Return the position of the column ``headers``, or None when there is none."""
        return self.find("headers", HEADERS_TYPE, lambda found: found.replace(" ", "").lower() == HEADERS_TYPE)

    def order(self, name: str | None) -> int | None:
        """Return the position of the column that orders the rows. Raises `InvalidSchemaError` when there is no such column."""
        position = self.find(name, f"{WHOLE_IN_WORDS} or {TIME_IN_WORDS}", (WHOLE | TIMES).__contains__)
        if name is not None and position is None:
            raise InvalidSchemaError(f"orderColumn names {name!r}, and there is no such column")
        return position


def is_text(found: str) -> bool:
    """Return whether a type holds text."""
    return found.startswith(("string", "varchar", "char"))


def is_bytes(found: str) -> bool:
    """Return whether a type holds text or bytes."""
    return found == "binary" or is_text(found)
