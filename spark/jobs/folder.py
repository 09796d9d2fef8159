"""List, read and write small files in a folder on any file system that Spark writes to, through Hadoop's own classes.

Must not be used for data, which Spark writes itself. Invariants: an existing file is complete, and a file that is replaced always exists. A
file is written under another name, which begins with a dot so that Spark's readers skip it, and then renamed over the existing one.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Folder:
    """Represent one folder. It is created at the first write."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        jvm: Any = spark._jvm
        if jvm is None:
            raise RuntimeError("jobs need a session with a JVM of its own, not Spark Connect")
        self._hadoop = jvm.org.apache.hadoop
        self._gateway: Any = spark.sparkContext._gateway
        self._path_of = self._hadoop.fs.Path
        self._io = jvm.org.apache.commons.io.IOUtils
        self._path = self._path_of(path)
        session: Any = spark._jsparkSession
        self._files = self._path.getFileSystem(session.sessionState().newHadoopConf())

        self._is_local = self._files.getScheme() == "file"

    def names(self) -> list[str]:
        """Return the sorted names of files and folders in the folder, without hidden ones. Empty if it does not exist."""
        if not self._files.exists(self._path):
            return []
        found = [status.getPath().getName() for status in self._files.listStatus(self._path)]
        return sorted(name for name in found if not name.startswith((".", "_")))

    def read(self, name: str) -> str | None:
        """Return a small file's text, or None if the file does not exist."""
        path = self._path_of(self._path, name)
        try:
            stream = self._files.open(path)
        except Exception:
            if not self._files.exists(path):
                return None
            raise
        try:
            return str(self._io.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write(self, name: str, text: str) -> None:
        """Write a small file whole, replacing an existing one."""
        hidden = self._path_of(self._path, f".{name}.{uuid4().hex}")
        stream = self._files.create(hidden)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()
        self._rename(hidden.getName(), name)

    def _rename(self, source_name: str, target_name: str) -> None:
        """Rename a file over another one, in one step on file systems that can."""
        source, target = self._path_of(self._path, source_name), self._path_of(self._path, target_name)
        if self._is_local:
            # Hadoop's class for local files deletes the target first, and keeps checksums in files beside them
            local = [Path(path.toUri().getPath()) for path in (source, target)]
            for path in local:
                path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
            local[0].replace(local[1])
            return
        rename: Any = getattr(self._hadoop.fs, "Options$Rename")
        options = self._gateway.new_array(rename, 1)
        options[0] = rename.OVERWRITE
        self._hadoop.fs.FileContext.getFileContext(self._files.getUri(), self._files.getConf()).rename(
            source, target, options
        )

    def delete(self, name: str) -> None:
        """Delete a file, or a folder with its contents. No effect if it does not exist."""
        self._files.delete(self._path_of(self._path, name), True)
