"""What an archive consists of: a manifest for each batch, and for each compaction of batches.

An archive is a folder with `manifest/`, one small file for each entry, and `data/`, one folder of Parquet files for each; usually
`checkpoint/` is there, too. What counts is what the manifest names: a folder of data without an entry is of a batch that was not finished
or of one that was compacted, and whoever reads all Parquet files below `data/` meets records twice. So read with `read_archive`.

Invariants: an entry is written when its data are complete, and never changed. Entries that another one replaces are deleted after it was
written, and their data only by the next compaction, for those who still read them.
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
"""Before an entry's name in the name of its folder: to Spark a column, so all folders can be read as one table."""
FORMAT_VERSION: Final = 1
_NAME: Final = re.compile(r"(\d+)-(\d+)")


@dataclass(frozen=True, slots=True)
class Entry:
    """Batches `first` to `last` (inclusive) of one archive job, whose data are in one folder."""

    first: int
    last: int
    query_id: str
    """Of the job's checkpoint: another checkpoint counts its batches anew."""
    records: int
    data_bytes: int
    version: int = FORMAT_VERSION

    @property
    def name(self) -> str:
        """Of its manifest file (with .json) and, behind `BATCHES`, of its data's folder."""
        return f"{self.first:012d}-{self.last:012d}"

    def covers(self, other: Entry) -> bool:
        """Whether this entry replaces the other."""
        return self != other and self.first <= other.first and other.last <= self.last


class Manifest:
    """The manifest of one archive."""

    def __init__(self, spark: SparkSession, archive: str) -> None:
        self._archive = archive.rstrip("/")
        self._folder = Folder(spark, f"{self._archive}/{MANIFEST}")
        self._data = Folder(spark, self.data_root)

    def entries(self) -> list[Entry]:
        """What the archive consists of, in the order of batches. Raises `InvalidOptionError` for one of a later version."""
        while True:
            texts = {name: self._folder.read(name) for name in self._folder.names() if name.endswith(".json")}
            found = [_entry(name, text) for name, text in texts.items() if text is not None]
            if len(found) == len(texts):
                return current(found)  # else a compaction replaced some while we looked

    def data_path(self, entry: Entry) -> str:
        """Where the entry's data are."""
        return f"{self.data_root}/{BATCHES}{entry.name}"

    @property
    def data_root(self) -> str:
        """Where all entries' data are."""
        return f"{self._archive}/{DATA}"

    def add(self, entry: Entry) -> None:
        """The entry's data are complete. Entries that it replaces go."""
        replaced = [known for known in self.entries() if entry.covers(known)] if entry.first < entry.last else []
        self._folder.write(f"{entry.name}.json", json.dumps(asdict(entry), sort_keys=True))
        for known in replaced:
            self._folder.delete(f"{known.name}.json")

    def delete_replaced(self) -> list[str]:
        """Delete data of entries that others have replaced; not those of a batch that is being written. Returns their names."""
        entries = self.entries()
        names = [name.removeprefix(BATCHES) for name in self._data.names() if name.startswith(BATCHES)]
        replaced = [name for name in names if any(is_part(name, entry) for entry in entries)]
        for name in replaced:
            self._data.delete(f"{BATCHES}{name}")
        return replaced


def is_part(name: str, entry: Entry) -> bool:
    """Whether a folder of data has batches that are among the entry's, and is not the entry's own."""
    match = _NAME.fullmatch(name)
    return match is not None and name != entry.name and entry.first <= int(match[1]) and int(match[2]) <= entry.last


def _entry(name: str, text: str) -> Entry:
    fields = json.loads(text)
    if fields["version"] != FORMAT_VERSION:
        raise InvalidOptionError(
            f"{name}: an archive of version {fields['version']}; this release reads {FORMAT_VERSION}"
        )
    return Entry(**fields)


def current(entries: Iterable[Entry]) -> list[Entry]:
    """Without entries that another one covers: a compaction that died between its two steps leaves some."""
    found = list(entries)
    kept = [entry for entry in found if not any(other.covers(entry) for other in found)]
    return sorted(kept, key=lambda entry: entry.first)


def read_archive(spark: SparkSession, archive: str, entries: Sequence[Entry] | None = None) -> DataFrame:
    """The archive's records as a DataFrame: each once, with the source's columns and `date`.

    `entries` are those to read; all, if none are given. Raises `InvalidOptionError` when there is nothing.
    """
    from pyspark.sql.types import DateType, StructField, StructType
    from raftmq.spark.schema import source_schema

    manifest = Manifest(spark, archive)
    chosen = manifest.entries() if entries is None else entries
    paths = [manifest.data_path(entry) for entry in chosen if entry.records]
    if not paths:
        raise InvalidOptionError(f"there are no records in the archive {archive}")
    # with a schema, or a topic whose name is a number would be one
    schema = StructType([*source_schema(None, include_headers=True), StructField("date", DateType())])
    rows = spark.read.schema(schema).option("basePath", manifest.data_root).parquet(*paths)
    return rows.select(*schema.names)
