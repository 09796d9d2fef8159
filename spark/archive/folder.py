"""List, read and write small files in a folder on any file system that Spark writes to, through Hadoop's own classes.

Must not be used for data, which Spark writes itself. Invariants: an existing file is complete, and a file that is replaced always exists. A
file is written under another name, which begins with a dot so that Spark's readers skip it, and then renamed over the existing one.
Object stores show an object when its upload ends, so there a file that must not exist yet is uploaded under its own name.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OBJECT_STORES: Final = frozenset({"s3", "s3a", "s3n", "gs", "oss", "cosn", "obs"})
"""Schemes of file systems without a rename in one step, on which a file appears when it is closed."""
IF_NONE_EXISTS: Final = "fs.option.create.conditional.overwrite"
"""Hadoop's option (3.4.2) with which the store itself refuses a second object. File systems that lack it look beforehand."""


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

        scheme = self._files.getScheme()
        self._is_local = scheme == "file"
        self._is_object_store = scheme in OBJECT_STORES

    def names(self) -> list[str]:
        """Return the sorted names of files and folders in the folder, without hidden ones. Empty if it does not exist."""
        if not self._files.exists(self._path):
            return []
        found = [status.getPath().getName() for status in self._files.listStatus(self._path)]
        return sorted(name for name in found if not name.startswith((".", "_")))

    def modified_ms(self) -> dict[str, int]:
        """Return the time of the last change of each file that `names` returns."""
        if not self._files.exists(self._path):
            return {}
        found = [(status.getPath().getName(), status) for status in self._files.listStatus(self._path)]
        return {name: int(status.getModificationTime()) for name, status in found if not name.startswith((".", "_"))}

    def read(self, name: str) -> str | None:
        """Return a small file's text, or None if the file does not exist."""
        data = self.read_bytes(name)
        return None if data is None else data.decode()

    def read_bytes(self, name: str) -> bytes | None:
        """Return a file's contents, or None if the file does not exist."""
        path = self._path_of(self._path, name)
        try:
            stream = self._files.open(path)
        except Exception:
            if not self._files.exists(path):
                return None
            raise
        try:
            return bytes(self._io.toByteArray(stream))
        finally:
            stream.close()

    def write(self, name: str, text: str) -> None:
        """Write a small file whole, replacing an existing one."""
        self.write_bytes(name, text.encode())

    def write_bytes(self, name: str, data: bytes) -> None:
        """Write a file whole, replacing an existing one."""
        self._rename(self._write_hidden(name, data), name)

    def create(self, name: str, text: str) -> bool:
        """Write a small file whole unless it exists. Return whether this call created it.

        `text` must be unique, because an answer may be lost: then the existing file shows whether this call wrote it. Of two
        simultaneous calls one succeeds on local disks, on HDFS, and on object stores that support `IF_NONE_EXISTS`.
        """
        if self._is_local:
            hidden = self._local(self._write_hidden(name, text.encode()))
            try:
                _flush(hidden)
                os.link(hidden, self._local(name))
            except FileExistsError:
                return False
            finally:
                hidden.unlink()
                _checksum(hidden).unlink(missing_ok=True)
            _flush(hidden.parent)
            return True
        target = self._path_of(self._path, name)
        hidden_name = None if self._is_object_store else self._write_hidden(name, text.encode())
        try:
            if hidden_name is None:
                builder = self._files.createFile(target).recursive().overwrite(False)
                _write(builder.opt(IF_NONE_EXISTS, "true").build(), text.encode())
            else:
                source = self._path_of(self._path, hidden_name)
                self._renaming().rename(source, target, self._gateway.new_array(self._rename_option, 0))
        except Exception:
            found = self.read(name)
            if found is None:
                raise
            if hidden_name is not None:
                self.delete(hidden_name)
            return found == text
        return True

    def _write_hidden(self, name: str, data: bytes) -> str:
        """Write a file under a name that readers skip, and return that name."""
        hidden = f".{name}.{uuid4().hex}"
        _write(self._files.create(self._path_of(self._path, hidden)), data)
        return hidden

    def _rename(self, source_name: str, target_name: str) -> None:
        """Rename a file over another one, in one step on file systems that can."""
        if self._is_local:
            # Hadoop's class for local files deletes the target first, and keeps checksums in files beside them
            source, target = self._local(source_name), self._local(target_name)
            for path in (source, target):
                _checksum(path).unlink(missing_ok=True)
            _flush(source)
            source.replace(target)
            _flush(target.parent)
            return
        options = self._gateway.new_array(self._rename_option, 1)
        options[0] = self._rename_option.OVERWRITE
        self._renaming().rename(self._path_of(self._path, source_name), self._path_of(self._path, target_name), options)

    @property
    def _rename_option(self) -> Any:  # noqa: ANN401 - a class of the JVM
        return getattr(self._hadoop.fs, "Options$Rename")

    def _renaming(self) -> Any:  # noqa: ANN401 - an object of the JVM
        """Return Hadoop's class that renames in one step where the file system can."""
        return self._hadoop.fs.FileContext.getFileContext(self._files.getUri(), self._files.getConf())

    def _local(self, name: str) -> Path:
        """Return the path of a file on a local disk."""
        return Path(self._path_of(self._path, name).toUri().getPath())

    def delete(self, name: str) -> None:
        """Delete a file, or a folder with its contents. No effect if it does not exist."""
        self._files.delete(self._path_of(self._path, name), True)


def _write(stream: Any, data: bytes) -> None:  # noqa: ANN401 - an object of the JVM
    """Write a file. After a failure it stays open, because object stores show the part of a file that is closed."""
    stream.write(bytearray(data))
    stream.close()


def _flush(path: Path) -> None:
    """Make a file, or the names in a folder, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _checksum(path: Path) -> Path:
    """Return the file in which Hadoop keeps the checksums of a local file."""
    return path.with_name(f".{path.name}.crc")
