"""LMDB's twin in memory, as far as the product's replica files use it: rows of bytes, transactions, cursors.

The production replica code runs on it unmodified, with its codecs, its checksums and its checks at opening. A transaction is
applied completely or not at all. There is one thread. A read transaction that stays open keeps seeing the old rows.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Self

import lmdb

PAGE_BYTES = 4096


class Table:
    """One database: rows in key order. Rows are changed only by its methods, since it counts their bytes."""

    __slots__ = ("_keys", "rows", "size")

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes] = {}
        self._keys: list[bytes] = []
        """All keys, sorted."""
        self.size = 0
        """Bytes of keys and values."""

    def keys(self) -> list[bytes]:
        """Return all keys, sorted. The caller must not change the list."""
        return self._keys

    def put(self, key: bytes, value: bytes) -> None:
        """Write a row."""
        held = self.rows.get(key)
        if held is not None:
            self.size += len(value) - len(held)
        else:
            self.size += len(key) + len(value)
            if not self._keys or self._keys[-1] < key:
                self._keys.append(key)
            else:
                insort(self._keys, key)
        self.rows[key] = value

    def delete(self, key: bytes) -> bytes | None:
        """Delete a row, and return its value or None."""
        value = self.rows.pop(key, None)
        if value is not None:
            self.size -= len(key) + len(value)
            del self._keys[bisect_left(self._keys, key)]
        return value

    def copy(self) -> Table:
        """Return a copy."""
        twin = Table()
        twin.rows = dict(self.rows)
        twin._keys = self._keys.copy()
        twin.size = self.size
        return twin


class RowFile:
    """The content of a replica's file on the simulated disk. It survives processes."""

    def __init__(self, *names: str) -> None:
        """Create an empty file with tables of these names."""
        self.tables = {name: Table() for name in names}
        self.allocated = 0
        """The bytes that it takes of the disk. Deleted rows leave room in the file, which returns to the disk only when it is released."""
        self.commits = 0
        """Number of write transactions."""

    def copy(self) -> RowFile:
        """Return a copy."""
        twin = RowFile()
        twin.tables = {name: table.copy() for name, table in self.tables.items()}
        twin.allocated, twin.commits = self.allocated, self.commits
        return twin

    @property
    def size(self) -> int:
        """Bytes of keys and values."""
        size = 0
        for table in self.tables.values():
            size += table.size
        return size

    def grow(self) -> None:
        """Take the space that the rows need after a commit."""
        size = self.size
        if size > self.allocated:
            self.allocated = size


class MemoryEnvironment:
    """An open file, in place of `lmdb.Environment`."""

    def __init__(self, file: RowFile, map_bytes: int, failing_commit: Callable[[], bool | None] = lambda: None) -> None:
        """Open the file. `failing_commit` is asked before each commit. If it fails, the answer is whether it takes effect."""
        self.file = file
        self.failing_commit = failing_commit
        self._map_bytes = map_bytes
        self._is_closed = False

    def begin(self, write: bool = False, buffers: bool = False) -> Transaction:
        """Begin a transaction."""
        if self._is_closed:
            raise lmdb.Error("the environment is closed")
        return Transaction(self, write, buffers)

    def info(self) -> dict[str, int]:
        """See `lmdb.Environment`."""
        pages = 2 + self.file.size // PAGE_BYTES
        return {"last_pgno": pages, "map_size": self._map_bytes, "last_txnid": self.file.commits}

    def stat(self) -> dict[str, int]:
        """See `lmdb.Environment`."""
        return {"psize": PAGE_BYTES, "branch_pages": 0, "leaf_pages": 1, "overflow_pages": 0}

    def set_mapsize(self, map_bytes: int) -> None:
        """Set the size of the map."""
        self._map_bytes = map_bytes

    def sync(self, force: bool) -> None:
        """Do nothing: a file counts when it has its name."""

    def close(self) -> None:
        """Close the file."""
        self._is_closed = True


class Transaction:
    """A transaction, which is a context manager like LMDB's."""

    def __init__(self, environment: MemoryEnvironment, write: bool, buffers: bool) -> None:
        self._environment = environment
        self._is_write = write
        self._buffers = buffers
        self._undo: list[tuple[Table, bytes, bytes | None]] = []
        self._tables = environment.file.tables

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            self.abort()
        elif self._is_write:
            takes_effect = self._environment.failing_commit()
            if takes_effect is False:
                self.abort()
            else:
                self._environment.file.grow()
                self._environment.file.commits += 1
            if takes_effect is not None:
                raise lmdb.Error("mdb_txn_commit: Input/output error")

    def id(self) -> int:
        """Return the transaction's number."""
        return self._environment.file.commits + self._is_write

    def abort(self) -> None:
        """Undo all changes."""
        for table, key, value in reversed(self._undo):
            if value is None:
                table.delete(key)
            else:
                table.put(key, value)
        self._undo.clear()

    def freeze(self) -> None:
        """Keep the current rows, except the log, since the transaction stays open while others write."""
        self._tables = {name: table.copy() for name, table in self._tables.items() if name != "log"}

    def get(self, key: bytes, default: Any = None, db: str = "") -> Any:  # noqa: ANN401 -- bytes or a view
        """Return a row's value, or the default."""
        value = self._tables[db].rows.get(bytes(key))
        if value is None:
            return default
        return memoryview(value) if self._buffers else value

    def put(self, key: bytes, value: bytes, db: str = "") -> bool:
        """Write a row."""
        table = self._tables[db]
        if self._is_write:
            self._undo.append((table, key, table.rows.get(key)))
        table.put(key, value)
        return True

    def delete(self, key: bytes, db: str = "") -> bool:
        """Delete a row. Return whether it existed."""
        table = self._tables[db]
        value = table.delete(key)
        if value is not None:
            self._undo.append((table, key, value))
        return value is not None

    def cursor(self, db: str) -> Cursor:
        """Return a cursor."""
        return Cursor(self, db, self._tables[db], self._buffers)

    def stat(self, db: str) -> dict[str, int]:
        """Return the number of rows, and page counts."""
        return {"entries": len(self._tables[db].rows), "branch_pages": 0, "leaf_pages": 1, "overflow_pages": 0}


class Cursor:
    """A cursor over one table. Only the cursor changes the table while it is in use."""

    def __init__(self, transaction: Transaction, db: str, table: Table, buffers: bool) -> None:
        self._transaction = transaction
        self._db = db
        self._table = table
        self._buffers = buffers
        self._at = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Do nothing."""

    def _value(self, key: bytes) -> Any:  # noqa: ANN401 -- bytes or a view
        value = self._table.rows[key]
        return memoryview(value) if self._buffers else value

    def first(self) -> bool:
        """Go to the first row."""
        self._at = 0
        return bool(self._table.rows)

    def last(self) -> bool:
        """Go to the last row."""
        self._at = len(self._table.keys()) - 1
        return self._at >= 0

    def next(self) -> bool:
        """Go to the next row."""
        self._at += 1
        return self._at < len(self._table.keys())

    def key(self) -> bytes:
        """Return the key of the current row."""
        return self._table.keys()[self._at]

    def item(self) -> tuple[Any, Any]:
        """Return key and value of the current row."""
        key = self.key()
        return key, self._value(key)

    def set_key(self, key: bytes) -> bool:
        """Go to a row. Return whether it exists."""
        keys = self._table.keys()
        self._at = bisect_left(keys, key)
        return self._at < len(keys) and keys[self._at] == key

    def set_range(self, key: bytes) -> bool:
        """Go to a row or the next one. Return whether there is one."""
        keys = self._table.keys()
        self._at = bisect_left(keys, key)
        return self._at < len(keys)

    def iternext(self, values: bool = True) -> Iterator[Any]:
        """Yield the rows from the current one on, or only their keys."""
        keys = self._table.keys()
        for at in range(max(0, self._at), len(keys)):
            yield (keys[at], self._value(keys[at])) if values else keys[at]

    __iter__ = iternext

    def iterprev(self, keys: bool = True) -> Iterator[Any]:
        """Yield the rows from the last one back."""
        for key in reversed(self._table.keys()):
            yield (key, self._value(key)) if keys else self._value(key)

    def put(self, key: bytes, value: bytes) -> bool:
        """Write a row."""
        return self._transaction.put(key, value, self._db)

    def putmulti(self, rows: Iterable[tuple[bytes, bytes]], append: bool = False) -> tuple[int, int]:
        """Write rows. With `append` they must follow all existing ones."""
        taken = added = 0
        for key, value in rows:
            taken += 1
            if append:
                keys = self._table.keys()
                if keys and keys[-1] >= key:
                    break
            self._transaction.put(key, value, self._db)
            added += 1
        return taken, added
