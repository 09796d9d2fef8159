"""Describe columns of data as Spark does. Spark itself parses DDL only with a session."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa


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


def batch_of(*columns: Sequence[object]) -> pa.RecordBatch:
    """Return columns as Spark passes them. Bytes are binary."""
    arrays = [
        pa.array(column) if any(cell is not None for cell in column) else pa.array(column, pa.binary())
        for column in columns
    ]
    return pa.RecordBatch.from_arrays(arrays, names=[f"column {number}" for number in range(len(columns))])
