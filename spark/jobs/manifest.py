"""Keep the manifest of an archive, with an entry for each batch and for each compaction of batches.

An archive is a folder with `manifest/`, which has one small file for each entry, and `data/`, which has one folder of Parquet files for
each entry. Usually `checkpoint/` is beside them. Only the manifest's entries count: a data folder without an entry belongs to an
unfinished batch or to a compacted one, and reading all Parquet files below `data/` gives records twice. So read with `read_archive`.

Invariants: an entry is written when its data are complete, and never changes. Entries that another one replaces are deleted after that
one was written. Their data are deleted only by the next compaction, because readers may still use them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from raftmq.spark.errors import InvalidOptionError
from raftmq.spark.jobs.folder import Folder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MANIFEST: Final = "manifest"
DATA: Final = "data"
BATCHES: Final = "batches="
"""Prefix of an entry's name in the name of its folder. Spark takes it as a column, so all folders can be read as one table."""
FORMAT_VERSION: Final = 1
_NAME: Final = re.compile(r"(\d+)-(\d+)")


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

    @property
    def name(self) -> str:
        """Return the name of the manifest file (before .json) and, after `BATCHES`, of the data folder."""
        return f"{self.first:012d}-{self.last:012d}"

    def covers(self, other: Entry) -> bool:
        """Return whether this entry replaces the other."""
        return self != other and self.first <= other.first and other.last <= self.last


class Manifest:
    """Read and change the manifest of one archive."""

    def __init__(self, spark: SparkSession, archive: str) -> None:
        self._archive = archive.rstrip("/")
        self._folder = Folder(spark, f"{self._archive}/{MANIFEST}")
        self._data = Folder(spark, self.data_root)

    def entries(self) -> list[Entry]:
        """Return the archive's entries in the order of batches. Raises `InvalidOptionError` for an entry of another version."""
        while True:
            texts = {name: self._folder.read(name) for name in self._folder.names() if name.endswith(".json")}
            found = [_entry(name, text) for name, text in texts.items() if text is not None]
            if len(found) == len(texts):
                return current(found)  # otherwise a compaction replaced some entries during the reads

    def data_path(self, entry: Entry) -> str:
        """Return the path of the entry's data."""
        return f"{self.data_root}/{BATCHES}{entry.name}"

    @property
    def data_root(self) -> str:
        """Return the path of the folder that holds the data of all entries."""
        return f"{self._archive}/{DATA}"

    def add(self, entry: Entry) -> None:
        """Add an entry whose data are complete, and remove the entries that it replaces."""
        replaced = [known for known in self.entries() if entry.covers(known)] if entry.first < entry.last else []
        self._folder.write(f"{entry.name}.json", json.dumps(asdict(entry), sort_keys=True))
        for known in replaced:
            self._folder.delete(f"{known.name}.json")

    def delete_replaced(self) -> list[str]:
        """Delete the data of replaced entries, but not of a batch that is being written. Returns the names of the entries."""
        entries = self.entries()
        names = [name.removeprefix(BATCHES) for name in self._data.names() if name.startswith(BATCHES)]
        replaced = [name for name in names if any(is_part(name, entry) for entry in entries)]
        for name in replaced:
            self._data.delete(f"{BATCHES}{name}")
        return replaced


def is_part(name: str, entry: Entry) -> bool:
    """Return whether a data folder holds some of the entry's batches and is not the entry's own folder."""
    match = _NAME.fullmatch(name)
    return match is not None and name != entry.name and entry.first <= int(match[1]) and int(match[2]) <= entry.last


def _entry(name: str, text: str) -> Entry:
    fields = json.loads(text)
    if fields["version"] != FORMAT_VERSION:
        raise InvalidOptionError(
            f"{name}: the archive has version {fields['version']}; this release reads version {FORMAT_VERSION}"
        )
    return Entry(**fields)


def current(entries: Iterable[Entry]) -> list[Entry]:
    """Drop entries that another one covers. A compaction that crashed between its two steps leaves such entries."""
    found = list(entries)
    kept = [entry for entry in found if not any(other.covers(entry) for other in found)]
    return sorted(kept, key=lambda entry: entry.first)


def read_archive(spark: SparkSession, archive: str, entries: Sequence[Entry] | None = None) -> DataFrame:
    """Return the archive's records as a DataFrame, each once, with the source's columns and `date`.

    `entries` are the entries to read. None means all. Raises `InvalidOptionError` when there are no records.
    """
    from pyspark.sql.types import DateType, StructField, StructType
    from raftmq.spark.schema import source_schema

    manifest = Manifest(spark, archive)
    chosen = manifest.entries() if entries is None else entries
    paths = [manifest.data_path(entry) for entry in chosen if entry.records]
    if not paths:
        raise InvalidOptionError(f"there are no records in the archive {archive}")
    # with a schema, because Spark would otherwise read a topic whose name is a number as a number
    schema = StructType([*source_schema(None, include_headers=True), StructField("date", DateType())])
    rows = spark.read.schema(schema).option("basePath", manifest.data_root).parquet(*paths)
    return rows.select(*schema.names)
