"""Decode rows, and tell a row that a later version wrote from one that is damaged.

An older broker gets the rows of a newer one in a snapshot, and a newer one those of an older one in its own file. So a field that a version
adds to a row is not written while it has its default, and no command gives it another value before the cluster's feature level rises. Until
then the rows of both versions are equal, byte by byte. A broker that finds an unknown field stops the replica and keeps its file.

To add a field to a row, append it with a default and give it its level in `row_levels`. A row without names of fields (`array_like`) always
has all its columns, so nothing can be added to it: use a table of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec
from raftmq.errors import UnsupportedDataError

V = TypeVar("V")

ROW_TYPES: Final[list[type]] = []
"""Every type of row, in the order in which the modules were loaded."""
_TOO_LONG: Final = re.compile(r"of (?:at most )?length (?:\d+ to )?(\d+), got (\d+)")
"""msgspec's error for an array of another length than that of the type."""


class UnsupportedRowError(UnsupportedDataError):
    """Raised for a row that a later version wrote. It is not damaged: the replica must stop and keep its file."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"the state holds {what}, which this version cannot read: a newer version wrote it. The replica stays silent and its file is "
            "kept. Upgrade this broker: the replica then continues where it is"
        )


def row_decoder(row_type: type[V]) -> Callable[[bytes], V]:
    """Return a function that decodes the rows of a type.

    It raises `UnsupportedRowError` for a row with more fields than the type, and `msgspec.MsgspecError` for one that is no row of it.
    """
    if row_type not in ROW_TYPES:
        ROW_TYPES.append(row_type)
    decode = msgspec.msgpack.Decoder(row_type).decode

    def decode_row(value: bytes) -> V:
        try:
            return decode(value)
        except msgspec.ValidationError as error:
            if _has_more_than_known(str(error)):
                raise UnsupportedRowError(f"a {row_type.__name__} with more than it may have ({error})") from error
            raise

    return decode_row


def _has_more_than_known(error: str) -> bool:
    lengths = _TOO_LONG.search(error)
    return "unknown field" in error or (lengths is not None and int(lengths[2]) > int(lengths[1]))


def unknown_table(key: bytes) -> Exception:
    """Return the error for a row of a table that this version does not have. No version has a row without a key."""
    if not key:
        return ValueError("a row without a key belongs to no table")
    return UnsupportedRowError(f"a row of another table ({key[:16].hex()})")
