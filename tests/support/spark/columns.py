"""Describe columns of data as Spark does. Spark itself parses DDL only with a session."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Column:
    """The parts of a field of Spark and of its type that the sink uses."""

    name: str
    type_name: str

    @property
    def dataType(self) -> Column:  # noqa: N802 - Spark's name
        return self

    def simpleString(self) -> str:  # noqa: N802 - Spark's name
        return self.type_name


def fields(ddl: str) -> list[Column]:
    """Return the columns of a text such as "value string, key binary"."""
    return [Column(*column.split(" ")) for column in ddl.split(", ")]
