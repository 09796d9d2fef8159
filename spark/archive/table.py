"""Keep an archive: a Delta table of records, which any reader of Delta tables reads, and each record once.

An archive is a folder with the table's log, `_delta_log/`, and `data/`, which has a folder of Parquet files for each batch and for each
compaction. Only files that the log has added count. Files without a commit belong to an unfinished batch, or to one that crashed.

A batch and its number are one commit (``txn`` with the query's id), so a batch that runs again is not added twice. The same commit has the
position of the query after the batch: a ``txn`` for each partition, whose version is the next offset. Archives of earlier releases have
a manifest instead. They are read as they are, and converted by one commit before the first change.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote
from uuid import uuid4

from raftmq.spark.archive.delta_log import COMMITS_PER_CHECKPOINT, DeltaLog, now_ms
from raftmq.spark.archive.delta_table import Action, DataFile, Table, protocol, transaction
from raftmq.spark.archive.entries import DATA, Entry, new_folder, parse_folder
from raftmq.spark.archive.folder import Folder
from raftmq.spark.archive.manifest import Manifest
from raftmq.spark.base.offsets import Position
from raftmq.spark.errors import InvalidOptionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

FOLDERS: Final = ("topic", "date")
ORDER: Final = (*FOLDERS, "partition", "offset")
"""The order of rows. It begins with the folders: otherwise Spark sorts by them again on writing, which may disturb the rest."""
POSITION: Final = "raftmq"
"""First part of the name of a transaction that is the position in a partition: ``raftmq/TOPIC/TOPIC_ID/PARTITION``."""
TIMESTAMP_TYPE: Final = ("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
"""Spark's setting for the form of timestamps that other readers expect in a Delta table."""
_NULL_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"
FOLDERS_OF_PATH: Final = {
    "topic": "substring_index(substring_index(_metadata.file_path, '/topic=', -1), '/', 1)",
    "date": f"CAST(NULLIF(substring_index(substring_index(_metadata.file_path, '/date=', -1), '/', 1), '{_NULL_VALUE}') AS DATE)",
}
"""The columns that are in a file's path, as SQL. Spark skips files that a filter on them excludes."""
_DAY_MICROS: Final = 86_400_000_000
_DAY: Final = (  # rounded down without a number below the least timestamp, which does not fit
    f"CAST(unix_micros(timestamp) div {_DAY_MICROS} - CAST(unix_micros(timestamp) % {_DAY_MICROS} < 0 AS INT) AS INT)"
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DAYS: Final = tuple((bound - date(1970, 1, 1)).days for bound in (date.min, date.max))
DATE: Final = f"CASE WHEN {_DAY} BETWEEN {_DAYS[0]} AND {_DAYS[1]} THEN date_from_unix_date({_DAY}) END"
"""The day of the record's timestamp (UTC) as SQL. Null outside the years 1 to 9999, which other readers cannot parse."""


def archive_schema() -> StructType:
    """Return the columns of an archive: the source's with headers, and `date`."""
    from pyspark.sql.types import DateType, StructField, StructType
    from raftmq.spark.base.schema import source_schema

    return StructType([*source_schema(None, include_headers=True), StructField("date", DateType())])


class ArchiveTable:
    """Read and change one archive. It shows the archive as it was when the object was created, and its own changes."""

    def __init__(self, spark: SparkSession, archive: str) -> None:
        self._spark = spark
        self._archive = archive.rstrip("/")
        self._data_root = f"{self._archive}/{DATA}"
        self._log = DeltaLog(spark, self._archive)
        self._manifest = Manifest(spark, self._archive)
        self.table: Table = self._log.load()
        self._old_entries = [] if self.table.exists else self._manifest.entries()
        if not self.table.exists and not self._old_entries:
            self.table = self._log.load()  # another job may have converted it between the two

    # ------------------------------------------------------------------------------------------------------------ reading

    def entries(self) -> list[Entry]:
        """Return the entries that have files, in the order of batches. An archive of an earlier release also has empty ones.

        Raises:
            InvalidOptionError: a program other than the archive's jobs has written files to the table.
        """
        if not self.table.exists:
            return self._old_entries
        found = [_entry(folder, self.owner or "", files) for folder, files in self._folders().items()]
        return sorted(found, key=lambda entry: (entry.first, entry.last))

    @property
    def owner(self) -> str | None:
        """Return the id of the query that wrote the archive. Only its checkpoint continues the archive."""
        if not self.table.exists:
            return self._old_entries[0].query_id if self._old_entries else None
        owners = [name for name in self.table.transactions if not name.startswith(f"{POSITION}/")]
        return owners[0] if owners else None

    def check_owner(self, query: str) -> None:
        """Raise `InvalidOptionError` for an archive of another checkpoint, whose batch numbers mean other records."""
        if self.owner not in (None, query):
            raise InvalidOptionError(
                f"the archive was begun under another checkpoint (query {self.owner}): use that one, or another folder"
            )

    def position(self, topic: str) -> tuple[int, dict[int, int]] | None:
        """Return the topic's id and the next offset of each partition. None: an earlier release wrote all of the archive."""
        found: dict[int, dict[int, int]] = {}
        for name, offset in self.table.transactions.items():
            match name.split("/"):
                case [kind, known, topic_id, partition] if kind == POSITION and known == topic:
                    found.setdefault(int(topic_id), {})[int(partition)] = offset
        return max(found.items()) if found else None

    def rows(self) -> DataFrame | None:
        """Return the archive's records, or None if there are none."""
        if not self.table.exists:
            return self.rows_of(self._old_entries)
        return self._rows([self._location(path) for path in self.table.files])

    def rows_of(self, entries: Sequence[Entry]) -> DataFrame | None:
        """Return the records of some entries, even if a compaction has replaced them since. None if there are no records."""
        return self._rows([f"{self._data_root}/{entry.folder_name}" for entry in entries if entry.records])

    def _rows(self, paths: Sequence[str]) -> DataFrame | None:
        return self._read(paths).select(*archive_schema().names) if paths else None

    def _read(self, paths: Sequence[str]) -> DataFrame:
        """Read files, or all files in folders, with the columns that only the paths have.

        Spark's own search for such columns wants all data in one tree of folders, and reads a topic whose name is a number as a number.
        """
        from pyspark.sql import functions as f
        from pyspark.sql.types import StructType

        schema = archive_schema()
        stored = StructType([column for column in schema if column.name not in FOLDERS])
        rows = self._spark.read.schema(stored).option("recursiveFileLookup", "true").parquet(*paths)
        return rows.withColumns({name: f.expr(sql) for name, sql in FOLDERS_OF_PATH.items()})

    def _location(self, path: str) -> str:
        return path if ":/" in path else f"{self._archive}/{unquote(path)}"

    def _folders(self) -> dict[str, list[DataFile]]:
        folders: dict[str, list[DataFile]] = {}
        for path, file in self.table.files.items():
            folders.setdefault(_folder_of(path), []).append(file)
        return folders

    # ------------------------------------------------------------------------------------------------------------ writing

    def is_archived(self, query: str, batch: int, position: Position) -> bool:
        """Return whether a batch, with the position after it, is archived.

        Raises `InvalidOptionError` as `check_owner`, and for a checkpoint that is older or newer than the archive: its batches have other records
        under numbers that are taken, or the archive would lack those of the batches in between.
        """
        self.check_owner(query)
        self.convert()
        self._log.refresh(self.table)
        self.check_owner(query)
        done = self.table.transactions.get(query, -1)
        if done + 1 == batch:
            return False
        if done < batch:
            raise InvalidOptionError(
                f"the archive is older than the checkpoint: it lacks batch {done + 1}, and the next one is {batch}; restore the latest archive,"
                " or begin another one with another checkpoint"
            )
        has_positions = any(
            name.startswith(f"{POSITION}/") for name in self.table.transactions
        )  # earlier releases wrote none
        if done > batch or (has_positions and _moves(self.table, position)):
            raise InvalidOptionError(
                f"the checkpoint is older than the archive: its batch {batch} ends at other offsets than the one in the archive, which has"
                f" batches up to {done}; restore the latest checkpoint, or begin another archive"
            )
        return True

    def add_batch(self, rows: DataFrame, query: str, batch: int, position: Position) -> int:
        """Add the records of a batch, with the position after it, unless they are there. Return the number of added records.

        Raises `InvalidOptionError` if another job, with another checkpoint, has begun the archive.
        """
        files = self._write(rows.withColumns(_dated()), new_folder(batch, batch, now_ms()))

        def decide(table: Table) -> list[Action]:
            self.check_owner(query)
            if table.transactions.get(query, -1) >= batch:
                return []  # another process with the same checkpoint was faster
            begun = [] if table.exists else _first_actions()
            added = (file.add(is_change=True) for file in files)
            return [*begun, transaction(query, batch), *_moves(table, position), *added]

        if not self._log.commit(self.table, "STREAMING UPDATE", decide):
            return 0
        if self.table.version % COMMITS_PER_CHECKPOINT == 0:
            self._log.write_checkpoint(self.table)
        return sum(file.records for file in files)

    def merge(self, group: Sequence[Entry], tasks: int) -> Entry:
        """Replace some entries by one with the same records. A crash leaves the archive as it was, or the new entry."""
        rows, records = self.rows_of(group), sum(entry.records for entry in group)
        if rows is None:
            raise ValueError("entries without records have no files to merge")
        folder = new_folder(group[0].first, group[-1].last, now_ms())
        # divide by the topic's partitions, so that a file still has its records in order
        files = self._write(rows.repartition(tasks, "topic", "partition"), folder)
        merged = _entry(folder, self.owner or "", files)
        if merged.records != records:
            raise RuntimeError(f"{merged.name} has {merged.records} records, its parts {records}")
        parts = {entry.folder_name for entry in group}
        replaced = [path for path in self.table.files if _folder_of(path) in parts]

        def decide(table: Table) -> list[Action]:
            if {_folder_of(path) for path in replaced if path in table.files} != parts:
                raise InvalidOptionError("another compaction of the archive is running: wait for its end")
            removed = [table.files[path].remove(now_ms()) for path in replaced]
            return [*removed, *(file.add(is_change=False) for file in files)]

        self._log.commit(self.table, "OPTIMIZE", decide)
        return merged

    def _write(self, rows: DataFrame, folder: str) -> list[DataFile]:
        path = f"{self._data_root}/{folder}"
        rows.sparkSession.conf.set(*TIMESTAMP_TYPE)
        names = archive_schema().names
        # in one pass: rows are sorted within the reading tasks, so nothing is shuffled
        rows.select(*names).sortWithinPartitions(*ORDER).write.partitionBy(*FOLDERS).parquet(path)
        return self._files([path])

    def _files(self, folders: Sequence[str]) -> list[DataFile]:
        """Describe the files in some folders by reading them, because a reader will find these records."""
        from pyspark.sql import functions as f

        if not folders:
            return []
        milliseconds = f.unix_millis("timestamp")
        bounds = {"partition": f.col("partition"), "offset": f.col("offset"), "timestamp": milliseconds}
        found = (
            self._read(folders)
            .groupBy(
                f.col("_metadata.file_path").alias("path"),
                f.col("_metadata.file_size").alias("size"),
                f.unix_millis("_metadata.file_modification_time").alias("modified_ms"),
            )
            .agg(
                f.count("*").alias("numRecords"),
                *(f.min(column).alias(f"min_{name}") for name, column in bounds.items()),
                *(f.max(column).alias(f"max_{name}") for name, column in bounds.items()),
            )
        )
        return [_data_file(row.asDict()) for row in found.toLocalIterator()]

    def convert(self) -> None:
        """Make an archive of an earlier release a Delta table, in one commit. Nothing happens if it is one, or empty.

        Until the commit the manifest counts, and afterwards the log. A run after a crash deletes the manifest.
        """
        if self.table.exists:
            self._manifest.retire()
            return
        entries = self._old_entries
        if not entries:
            return
        files = self._files([f"{self._data_root}/{entry.folder_name}" for entry in entries if entry.records])
        records = sum(file.records for file in files)
        if records != sum(entry.records for entry in entries):
            raise RuntimeError(
                f"{self._data_root} has {records} records, and the manifest other ones: the archive is damaged"
            )

        def decide(table: Table) -> list[Action]:
            if table.exists:
                return []  # another job converted it
            last = transaction(entries[0].query_id, max(entry.last for entry in entries))
            return [*_first_actions(), last, *(file.add(is_change=True) for file in files)]

        self._log.commit(self.table, "CONVERT", decide)
        self._old_entries = []
        self._manifest.retire()

    # ----------------------------------------------------------------------------------------------------------- tidying

    def delete_replaced(self, before_ms: int) -> list[str]:
        """Delete data folders that nothing in the table uses since before a time. Return their names.

        These are the data of replaced entries and of attempts that crashed, but not of a batch that is being written.
        """
        used, removed = self._folders(), {_folder_of(path): file for path, file in self.table.removed.items()}
        owner = self.owner
        done = -1 if owner is None else self.table.transactions.get(owner, -1)
        data = Folder(self._spark, self._data_root)
        deleted = []
        for name in data.names():
            parts = parse_folder(name)
            if parts is None or name in used or parts.last > done:
                continue
            since_ms = removed[name].removed_ms if name in removed else parts.written_ms
            if since_ms < before_ms:
                data.delete(name)
                deleted.append(name)
        return deleted

    def shorten_log(self, removed_before_ms: int, log_before_ms: int) -> int:
        """Write a checkpoint without files that were removed before a time, and delete older commits. Return their number."""
        self._log.refresh(self.table)
        self.table.removed = {
            path: file for path, file in self.table.removed.items() if file.removed_ms >= removed_before_ms
        }
        self._log.write_checkpoint(self.table)
        return self._log.shorten(self.table, log_before_ms)


def _dated() -> dict[str, Any]:
    from pyspark.sql import functions as f

    return {"date": f.expr(DATE)}


def _moves(table: Table, position: Position) -> list[Action]:
    """Return the actions that give the table the position."""
    offsets = {
        f"{POSITION}/{partition.topic}/{position.topics[partition.topic].topic_id}/{partition.partition}": offset
        for partition, offset in position.partitions()
    }
    return [transaction(name, offset) for name, offset in offsets.items() if table.transactions.get(name) != offset]


def _folder_of(path: str) -> str:
    """Return the name of the folder that has a data file. Raises `InvalidOptionError` if no archive job wrote the file."""
    root, _, rest = path.partition("/")
    name = rest.partition("/")[0]
    if root != DATA or parse_folder(name) is None:
        raise InvalidOptionError(
            f"another program than the archive's jobs has written {path}: other programs may only read an archive"
        )
    return name


def _entry(folder: str, owner: str, files: Sequence[DataFile]) -> Entry:
    parts = parse_folder(folder)
    if parts is None:
        raise ValueError(f"{folder} is not the name of a data folder")
    return Entry(
        parts.first,
        parts.last,
        owner,
        records=sum(file.records for file in files),
        data_bytes=sum(file.data_bytes for file in files),
        folder=folder,
    )


def _first_actions() -> list[Action]:
    metadata = {
        "id": str(uuid4()),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": archive_schema().json(),
        "partitionColumns": list(FOLDERS),
        # writers of Delta tables refuse to delete or change records; a compaction is allowed
        "configuration": {"delta.appendOnly": "true"},
        "createdTime": now_ms(),
    }
    return [protocol(), {"metaData": metadata}]


def _data_file(row: Mapping[str, Any]) -> DataFile:
    """Describe a file by its row in `ArchiveTable._files`."""
    # the end of the path has only characters that Spark writes as they are: it is .../data/batches=.../topic=.../date=.../name
    parts = row["path"].split("/")[-5:]
    folders = [part.partition("=")[2] for part in parts[2:4]]
    stats = {
        "numRecords": row["numRecords"],
        **{f"{side}Values": _bounds(row, side) for side in ("min", "max")},
    }
    return DataFile(
        quote("/".join(parts), safe="/=-_."),
        {name: None if value == _NULL_VALUE else value for name, value in zip(FOLDERS, folders, strict=True)},
        row["size"],
        row["modified_ms"],
        json.dumps(stats, separators=(",", ":")),
    )


def _bounds(row: Mapping[str, Any], side: str) -> dict[str, int | str]:
    found = {"partition": row[f"{side}_partition"], "offset": row[f"{side}_offset"]}
    time = instant(row[f"{side}_timestamp"])
    return found if time is None else found | {"timestamp": time}


def instant(milliseconds: int | None) -> str | None:
    """Return a time as Delta's statistics have it, or None outside the years 1 to 9999."""
    if milliseconds is None:
        return None
    try:
        found = _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return None
    return found.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def read_archive(spark: SparkSession, archive: str) -> DataFrame:
    """Return the archive's records as a DataFrame, each once, with the source's columns and `date`.

    Raises `InvalidOptionError` when there are no records.
    """
    rows = ArchiveTable(spark, archive).rows()
    if rows is None:
        raise InvalidOptionError(f"there are no records in the archive {archive}")
    return rows
