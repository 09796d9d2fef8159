"""Read the manifest of an archive that an earlier release wrote, and retire it when the archive became a Delta table.

Such an archive has a small file in `manifest/` for each batch and for each compaction of batches, and no `_delta_log/`. Only the entries
of the manifest count. An entry that another one covers was replaced by a compaction.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from raftmq.spark.archive.entries import FORMAT_VERSION, Entry
from raftmq.spark.archive.folder import Folder
from raftmq.spark.errors import InvalidOptionError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MANIFEST: Final = "manifest"
RETIRED: Final = "retired.json"
"""A file that earlier releases refuse to read. Otherwise they would continue the manifest beside the Delta log."""


class Manifest:
    """Read the manifest of one archive, and retire it."""

    def __init__(self, spark: SparkSession, archive: str) -> None:
        self._folder = Folder(spark, f"{archive}/{MANIFEST}")

    def entries(self) -> list[Entry]:
        """Return the entries in the order of batches. Raises `InvalidOptionError` for an entry of another version."""
        texts = {name: self._folder.read(name) for name in self._names()}
        return current(_entry(name, text) for name, text in texts.items() if text is not None)

    def retire(self) -> None:
        """Delete the manifest, and leave a mark that stops earlier releases. Call it when a Delta log has replaced the manifest."""
        names = self._names()
        if not names:
            return
        self._folder.write(RETIRED, json.dumps({"version": FORMAT_VERSION + 1}))
        for name in names:
            self._folder.delete(name)

    def _names(self) -> list[str]:
        return [name for name in self._folder.names() if name.endswith(".json") and name != RETIRED]


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
