"""Writes the content of a replica's new files. Their commits do not sync, since a file has no meaning until it is synced and renamed.

The meta row of a file is written last, since the file is invalid without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import lmdb
from raftmq.storage.checksum import seal
from raftmq.storage.lmdb_env import (
    Undisturbed,
    open_databases,
    open_environment,
    open_state_databases,
    put_rows,
)
from raftmq.storage.replica_codec import (
    IDENTITY_KEY,
    META_KEY,
    CommitNote,
    Identity,
    ReplicaMeta,
    decode_meta,
    decode_note,
    encode_identity,
    encode_meta,
)
from raftmq.storage.row_stream import Row
from raftmq.storage.state_codec import STATE_META_KEY, StateMeta, decode_state_meta, encode_state_meta

if TYPE_CHECKING:
    from lmdb import _Database

_SLICE_ROWS = 4096
_SLICE_BYTES = 8 * 1024 * 1024
"""State rows per transaction, which are in memory together: far below LMDB's limit of dirty pages."""


def build_replica(
    path: Path,
    map_bytes: int,
    identity: Identity,
    meta: ReplicaMeta,
    rows: Iterable[Row],
    undisturbed: Undisturbed,
) -> None:
    """Write a file with an empty log. The caller syncs the file."""
    with _new_file(path, map_bytes) as environment:
        databases = open_databases(environment, is_new=True)
        _put_all(environment, databases.state, rows, undisturbed)
        _put_identity(environment, databases.meta, identity)
        _write_both_commits(environment, databases.meta, META_KEY, _meta_row(meta, meta.last_index))


def build_state_file(
    path: Path, map_bytes: int, identity: Identity, meta: StateMeta, rows: Iterable[Row], undisturbed: Undisturbed
) -> None:
    """Write a state file. The caller syncs the file."""
    with _new_file(path, map_bytes) as environment:
        databases = open_state_databases(environment, is_new=True)
        _put_all(environment, databases.rows, rows, undisturbed)
        put_state_meta(environment, databases.meta, identity, meta)


def put_state_meta(environment: lmdb.Environment, database: _Database, identity: Identity, meta: StateMeta) -> None:
    """Write the meta rows of a state file whose other rows are complete."""
    _put_identity(environment, database, identity)
    _write_both_commits(environment, database, STATE_META_KEY, _state_meta_row(meta))


def settle_copy(path: Path, map_bytes: int) -> None:
    """Write the transaction numbers of a compacted copy into its meta row: LMDB counts them from 1 again. The caller syncs the file."""
    with _new_file(path, map_bytes) as environment:
        meta = open_databases(environment).meta
        row = _get(environment, meta, META_KEY)
        new_row = _meta_row(decode_meta(row), decode_note(row).verified_index)
        _write_both_commits(environment, meta, META_KEY, new_row)


def settle_state_copy(path: Path, map_bytes: int) -> None:
    """Do the same for a compacted copy of a state file."""
    with _new_file(path, map_bytes) as environment:
        meta = open_state_databases(environment).meta
        row = _get(environment, meta, STATE_META_KEY)
        _write_both_commits(environment, meta, STATE_META_KEY, _state_meta_row(decode_state_meta(row)))


@contextmanager
def _new_file(path: Path, map_bytes: int) -> Iterator[lmdb.Environment]:
    environment = open_environment(path, map_bytes, is_new=True)
    try:
        yield environment
        environment.sync(True)
    finally:
        environment.close()


def _put_all(environment: lmdb.Environment, database: _Database, rows: Iterable[Row], undisturbed: Undisturbed) -> None:
    for batch in _slices(rows):
        with environment.begin(write=True) as transaction, transaction.cursor(database) as cursor:
            put_rows(cursor, batch, undisturbed)


def _slices(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Yield the rows with their checksums, as many at a time as go into one transaction."""
    batch: list[Row] = []
    size = 0
    for key, value in rows:
        batch.append((key, seal(key, value)))
        size += len(value)
        if len(batch) == _SLICE_ROWS or size >= _SLICE_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _put_identity(environment: lmdb.Environment, database: _Database, identity: Identity) -> None:
    with environment.begin(write=True) as transaction:
        transaction.put(IDENTITY_KEY, encode_identity(identity), db=database)


def _get(environment: lmdb.Environment, database: _Database, key: bytes) -> bytes:
    with environment.begin() as transaction:
        return transaction.get(key, db=database) or b""


def _meta_row(meta: ReplicaMeta, verified_index: int) -> Callable[[int], bytes]:
    return lambda transaction_id: encode_meta(meta, CommitNote(transaction_id, verified_index))


def _state_meta_row(meta: StateMeta) -> Callable[[int], bytes]:
    return lambda transaction_id: encode_state_meta(meta, transaction_id)


def _write_both_commits(
    environment: lmdb.Environment, database: _Database, key: bytes, row: Callable[[int], bytes]
) -> None:
    """Write the meta row in two transactions, so that each of the file's two meta pages points to a row of its own."""
    for _ in range(2):
        with environment.begin(write=True) as transaction:
            transaction.put(key, row(transaction.id()), db=database)
