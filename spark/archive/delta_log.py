"""Read, extend and shorten the log of a Delta table on any file system of Spark.

A commit is one file with the next number, which must not exist. The first writer to create it has committed. The loser applies the other's
commit and decides again. A checkpoint is a Parquet file with the whole state, so that readers need not read the commits before it.
Invariants: a commit never changes. Commits are deleted only when a newer checkpoint exists and they are older than `LOG_KEPT_MS`.
Source: Delta Lake's PROTOCOL.md, "Delta Log Entries", "Checkpoints" and "Metadata Cleanup".
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from raftmq.spark.archive.delta_table import Action, Table
from raftmq.spark.archive.folder import Folder

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

LOG: Final = "_delta_log"
LAST_CHECKPOINT: Final = "_last_checkpoint"
COMMITS_PER_CHECKPOINT: Final = 100
"""A checkpoint is as large as the list of all files, so a job does not write one for each batch. Readers read at most so many commits."""
LOG_KEPT_MS: Final = 30 * 24 * 3_600_000
"""Age at which commits before a checkpoint are deleted: Delta's default (``delta.logRetentionDuration``)."""
COMMITS_MAX: Final = 100
"""Attempts to commit. Each failure means that another program has committed in the meantime."""
LOADS_MAX: Final = 10
"""Attempts to read a log that is being shortened."""
_COMMIT: Final = re.compile(r"(\d{20})\.json")
_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint\.parquet")


def now_ms() -> int:
    """Return the current time in milliseconds."""
    return time.time_ns() // 1_000_000


class DeltaLog:
    """Read and extend the log of one table."""

    def __init__(self, spark: SparkSession, table_folder: str) -> None:
        self._folder = Folder(spark, f"{table_folder}/{LOG}")
        self._place = f"{table_folder}/{LOG}"

    def load(self) -> Table:
        """Return the newest state of the table. Its version is -1 if there is no table."""
        for _ in range(LOADS_MAX):
            names = self._folder.names()
            checkpoints = _numbers(_CHECKPOINT, names)
            table = Table()
            if checkpoints:
                data = self._folder.read_bytes(_checkpoint_name(checkpoints[-1]))
                if data is None:
                    continue  # a compaction has shortened the log
                table.apply(checkpoints[-1], read_checkpoint(data))
            self._apply_next(table)
            commits = _numbers(_COMMIT, names)
            if not commits or table.version >= commits[-1]:
                return table
        raise RuntimeError(f"{self._place} has neither all commits nor a checkpoint that replaces the missing ones")

    def refresh(self, table: Table) -> None:
        """Apply the commits that were added since `table` was read.

        After a long time some of them may be deleted. Then the state comes from the checkpoint that replaces them.
        """
        for _ in range(LOADS_MAX):
            self._apply_next(table)
            names = self._folder.names()
            newest = max([*_numbers(_COMMIT, names), *_numbers(_CHECKPOINT, names)], default=-1)
            if newest <= table.version:
                return
            if _commit_name(table.version + 1) not in names:
                table.become(self.load())
        raise RuntimeError(f"{self._place} has commits faster than they can be read")

    def _apply_next(self, table: Table) -> None:
        while (text := self._folder.read(_commit_name(table.version + 1))) is not None:
            table.apply(table.version + 1, map(json.loads, text.splitlines()))

    def commit(self, table: Table, operation: str, decide: Callable[[Table], Sequence[Action]]) -> bool:
        """Commit the actions that `decide` returns for the newest state, and apply them to `table`.

        `decide` is called again after each commit of another program. It may raise. If it returns no actions, nothing is committed and
        the result is False. After an exception the commit may exist, so the caller must decide again.
        """
        for _ in range(COMMITS_MAX):
            self.refresh(table)
            actions = decide(table)
            if not actions:
                return False
            # the unique id tells this commit from an equal one of another program
            about = {
                "timestamp": now_ms(),
                "operation": operation,
                "operationParameters": {},
                "engineInfo": "RaftMQ",
                "txnId": str(uuid4()),
            }
            text = "".join(
                json.dumps(action, separators=(",", ":")) + "\n" for action in ({"commitInfo": about}, *actions)
            )
            if self._folder.create(_commit_name(table.version + 1), text):
                table.apply(table.version + 1, actions)
                return True
        raise RuntimeError(f"other programs committed to {self._place} {COMMITS_MAX} times in a row")

    def write_checkpoint(self, table: Table) -> None:
        """Write the state as a checkpoint. Readers use it instead of all commits up to its version."""
        actions = table.actions()
        self._folder.write_bytes(_checkpoint_name(table.version), checkpoint_bytes(actions))
        self._folder.write(LAST_CHECKPOINT, json.dumps({"version": table.version, "size": len(actions)}))

    def shorten(self, table: Table, before_ms: int) -> int:
        """Delete commits and checkpoints before the checkpoint of `table` that are older than a time. Return their number."""
        times = self._folder.modified_ms()
        old = [
            name
            for pattern in (_COMMIT, _CHECKPOINT)
            for name, modified_ms in times.items()
            if (match := pattern.fullmatch(name)) and int(match[1]) < table.version and modified_ms < before_ms
        ]
        for name in old:
            self._folder.delete(name)
        return len(old)


def _commit_name(version: int) -> str:
    return f"{version:020d}.json"


def _checkpoint_name(version: int) -> str:
    return f"{version:020d}.checkpoint.parquet"


def _numbers(pattern: re.Pattern[str], names: Sequence[str]) -> list[int]:
    return sorted(int(match[1]) for name in names if (match := pattern.fullmatch(name)))


# ------------------------------------------------------------------------------------------------------- checkpoints


def _checkpoint_schema() -> pa.Schema:
    import pyarrow as pa

    values = pa.map_(pa.string(), pa.string())
    columns: dict[str, dict[str, pa.DataType]] = {
        "txn": {"appId": pa.string(), "version": pa.int64(), "lastUpdated": pa.int64()},
        "add": {
            "path": pa.string(),
            "partitionValues": values,
            "size": pa.int64(),
            "modificationTime": pa.int64(),
            "dataChange": pa.bool_(),
            "stats": pa.string(),
            "tags": values,
        },
        "remove": {
            "path": pa.string(),
            "deletionTimestamp": pa.int64(),
            "dataChange": pa.bool_(),
            "extendedFileMetadata": pa.bool_(),
            "partitionValues": values,
            "size": pa.int64(),
            "tags": values,
        },
        "metaData": {
            "id": pa.string(),
            "name": pa.string(),
            "description": pa.string(),
            "format": pa.struct({"provider": pa.string(), "options": values}),
            "schemaString": pa.string(),
            "partitionColumns": pa.list_(pa.field("element", pa.string())),
            "configuration": values,
            "createdTime": pa.int64(),
        },
        "protocol": {"minReaderVersion": pa.int32(), "minWriterVersion": pa.int32()},
    }
    return pa.schema({name: pa.struct(fields) for name, fields in columns.items()})


def checkpoint_bytes(actions: Sequence[Action]) -> bytes:
    """Return a Parquet file with a row for each action."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    written = BytesIO()
    pq.write_table(pa.Table.from_pylist(list(actions), schema=_checkpoint_schema()), written)
    return written.getvalue()


def read_checkpoint(data: bytes) -> list[Action]:
    """Return the actions in a checkpoint, of which each has the fields that are set."""
    import pyarrow.parquet as pq

    rows = pq.read_table(BytesIO(data), columns=["txn", "add", "remove", "metaData", "protocol"]).to_pylist()
    return [{name: _without_maps(value) for name, value in row.items() if value is not None} for row in rows]


def _without_maps(value: Any) -> Any:  # noqa: ANN401 - JSON
    """Turn Arrow's lists of pairs into dictionaries, and drop missing values of structures."""
    if isinstance(value, dict):
        return {name: _without_maps(inner) for name, inner in value.items() if inner is not None}
    if isinstance(value, list) and all(isinstance(pair, tuple) for pair in value):
        return dict(value)
    return value
