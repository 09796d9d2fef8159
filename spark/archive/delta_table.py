"""Represent the state of a Delta table as its log defines it, and the actions that change it.

It has the actions of a table without further features: protocol, metadata, transactions, added and removed files. Must not import Spark
or read files.
Source: Delta Lake's PROTOCOL.md, "Actions" and "Action Reconciliation".
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from raftmq.spark.errors import InvalidOptionError

Action = dict[str, Any]  # JSON: the protocol defines the values of each name
READER_VERSION: Final = 1
WRITER_VERSION: Final = 2
"""The lowest versions, which every reader knows. Our tables need no feature of the later ones."""


@dataclass(frozen=True)
class DataFile:
    """Describe one data file of a table."""

    path: str
    """The path in the log: relative to the table's folder, with the escapes of a URI."""
    partition: Mapping[str, str | None]
    """The values of the partition columns."""
    data_bytes: int
    modified_ms: int
    stats: str
    """JSON: the number of records, and the least and greatest value of some columns."""

    @cached_property
    def records(self) -> int:
        """Return the number of records."""
        return int(json.loads(self.stats)["numRecords"])

    def add(self, *, is_change: bool) -> Action:
        """Return the action that adds the file. `is_change`: whether its records are new in the table."""
        return {
            "add": {
                "path": self.path,
                "partitionValues": dict(self.partition),
                "size": self.data_bytes,
                "modificationTime": self.modified_ms,
                "dataChange": is_change,
                "stats": self.stats,
            }
        }

    def remove(self, now_ms: int) -> Action:
        """Return the action that removes the file. Its records stay in the table, in another file."""
        return Removed(self.path, self.partition, self.data_bytes, now_ms).action()


@dataclass(frozen=True, slots=True)
class Removed:
    """Describe a data file that was removed from a table. Readers of an earlier version may still use it."""

    path: str
    partition: Mapping[str, str | None]
    data_bytes: int
    removed_ms: int

    def action(self) -> Action:
        """Return the action that removed the file."""
        return {
            "remove": {
                "path": self.path,
                "deletionTimestamp": self.removed_ms,
                "dataChange": False,
                "extendedFileMetadata": True,
                "partitionValues": dict(self.partition),
                "size": self.data_bytes,
            }
        }


@dataclass
class Table:
    """Hold the state of a table at one version of its log."""

    version: int = -1
    """The newest commit that is applied. -1: there is no table yet."""
    files: dict[str, DataFile] = field(default_factory=dict)
    """The files that make up the table, by path."""
    removed: dict[str, Removed] = field(default_factory=dict)
    """Removed files, by path. A compaction drops old ones."""
    transactions: dict[str, int] = field(default_factory=dict)
    """The newest version of each application that numbers its changes."""
    metadata: Action = field(default_factory=dict)

    @property
    def exists(self) -> bool:
        """Return whether there is a table."""
        return self.version >= 0

    def apply(self, version: int, actions: Iterable[Action]) -> None:
        """Apply the actions of a commit or of a checkpoint.

        Raises `InvalidOptionError` if another program has enabled a feature that this release does not know.
        """
        for action in actions:
            for name, value in action.items():
                self._apply(name, value)
        self.version = version

    def become(self, newer: Table) -> None:
        """Take the state of another table."""
        self.version, self.files, self.removed = newer.version, newer.files, newer.removed
        self.transactions, self.metadata = newer.transactions, newer.metadata

    def _apply(self, name: str, value: Action) -> None:
        match name:
            case "add":
                file = DataFile(
                    value["path"],
                    value["partitionValues"],
                    value["size"],
                    value["modificationTime"],
                    value.get("stats") or "{}",
                )
                self.removed.pop(file.path, None)
                self.files[file.path] = file
            case "remove":
                path = value["path"]
                self.files.pop(path, None)
                self.removed[path] = Removed(
                    path,
                    value.get("partitionValues") or {},
                    value.get("size") or 0,
                    value.get("deletionTimestamp") or 0,
                )
            case "txn":
                self.transactions[value["appId"]] = value["version"]
            case "metaData":
                self.metadata = value
            case "protocol":
                check_protocol(value)
            case _:
                pass  # the history (commitInfo), and actions of features that the protocol's version excludes

    def actions(self) -> list[Action]:
        """Return the actions that lead to this state, as a checkpoint has them."""
        return [
            protocol(),
            {"metaData": self.metadata},
            *(transaction(name, version) for name, version in self.transactions.items()),
            *(file.add(is_change=False) for file in self.files.values()),
            *(removed.action() for removed in self.removed.values()),
        ]


def protocol() -> Action:
    """Return the action with the versions that readers and writers must know."""
    return {"protocol": {"minReaderVersion": READER_VERSION, "minWriterVersion": WRITER_VERSION}}


def transaction(name: str, version: int) -> Action:
    """Return the action that records the version of an application's newest change."""
    return {"txn": {"appId": name, "version": version}}


def check_protocol(value: Mapping[str, Any]) -> None:
    """Raise `InvalidOptionError` for a table that needs more than this release knows."""
    reader, writer = value["minReaderVersion"], value["minWriterVersion"]
    if reader > READER_VERSION or writer > WRITER_VERSION:
        raise InvalidOptionError(
            f"the archive needs reader version {reader} and writer version {writer} of the Delta protocol; this release knows"
            f" {READER_VERSION} and {WRITER_VERSION}: another program has enabled a feature on it"
        )
