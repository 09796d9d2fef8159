"""Define the entries of an archive: a range of batches, whose data are in one folder, and which of them are merged.

Must not import Spark. A folder is written once, by one batch or one compaction, and its name tells its batches and its age.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

DATA: Final = "data"
BATCHES: Final = "batches-"
"""Prefix of the name of an entry's folder. It has no ``=``, because polars takes ``batches=`` for a column and refuses the table."""
OLD_BATCHES: Final = "batches="
"""The prefix in archives of earlier releases."""
FORMAT_VERSION: Final = 1
_NAME: Final = re.compile(r"batches[-=](\d+)-(\d+)(?:-(\d+)-[0-9a-f]+)?")


@dataclass(frozen=True, slots=True)
class Entry:
    """Describe batches `first` to `last` (inclusive) of one archive job, whose data are in one folder."""

    first: int
    last: int
    query_id: str
    """Id of the query in the job's checkpoint. Another checkpoint numbers its own batches."""
    records: int
    data_bytes: int
    version: int = FORMAT_VERSION
    folder: str = ""
    """Name of the folder in `DATA`. Empty in entries of a manifest, whose folders have the entry's name."""

    @property
    def name(self) -> str:
        """Return the entry's name, which begins the name of its folder."""
        return f"{self.first:012d}-{self.last:012d}"

    @property
    def folder_name(self) -> str:
        """Return the name of the folder that has the entry's data."""
        return self.folder or f"{OLD_BATCHES}{self.name}"

    def covers(self, other: Entry) -> bool:
        """Return whether this entry replaces the other."""
        return self != other and self.first <= other.first and other.last <= self.last


@dataclass(frozen=True, slots=True)
class FolderName:
    """Hold the parts of a data folder's name."""

    first: int
    last: int
    written_ms: int
    """When the write began. 0 in archives of earlier releases."""


def new_folder(first: int, last: int, now_ms: int) -> str:
    """Return the name of a new data folder. Each attempt gets its own, so that none can change the data of another one."""
    return f"{BATCHES}{first:012d}-{last:012d}-{now_ms}-{uuid4().hex[:8]}"


def parse_folder(name: str) -> FolderName | None:
    """Return the parts of a data folder's name, or None if an archive job did not write it."""
    match = _NAME.fullmatch(name)
    return None if match is None else FolderName(int(match[1]), int(match[2]), int(match[3] or 0))


def groups(entries: Sequence[Entry], small_bytes: int) -> Iterator[list[Entry]]:
    """Yield groups of neighbours to merge. Each entry, and each group in all, is at most `small_bytes`."""
    group: list[Entry] = []
    for entry in entries:
        size = sum(known.data_bytes for known in group)
        if group and (entry.data_bytes >= small_bytes or size + entry.data_bytes > small_bytes):
            if len(group) > 1:
                yield group
            group = []
        if entry.data_bytes < small_bytes:
            group.append(entry)
    if len(group) > 1:
        yield group
