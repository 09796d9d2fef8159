"""Writes the content of a new replica file. Its commits do not sync, since the file has no meaning until it is synced and renamed."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path

import lmdb
from raftmq.storage.checksum import seal
from raftmq.storage.lmdb_env import Databases, Undisturbed, open_databases, open_environment, put_rows
from raftmq.storage.log_store import ReplicaKey
from raftmq.storage.replica_codec import (
    FORMAT_VERSION,
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

_SLICE_ROWS = 4096
"""State rows per transaction: far below LMDB's limit of dirty pages."""


def build_replica(
    path: Path, map_bytes: int, key: ReplicaKey, meta: ReplicaMeta, rows: Iterable[Row], undisturbed: Undisturbed
) -> None:
    """Write a file with an empty log. The meta row is written last, since the file is invalid without it. The caller syncs the file."""
    environment = open_environment(path, map_bytes, is_new=True)
    try:
        databases = open_databases(environment, is_new=True)
        remaining = iter(rows)
        while batch := [(row, seal(row, value)) for row, value in itertools.islice(remaining, _SLICE_ROWS)]:
            with environment.begin(write=True) as transaction, transaction.cursor(databases.state) as cursor:
                put_rows(cursor, batch, undisturbed)
        with environment.begin(write=True) as transaction:
            identity = Identity(FORMAT_VERSION, key.group_id, key.replica_id)
            transaction.put(IDENTITY_KEY, encode_identity(identity), db=databases.meta)
        _write_both_commits(environment, databases, meta, meta.last_index)
        environment.sync(True)
    finally:
        environment.close()


def settle_copy(path: Path, map_bytes: int) -> None:
    """Write the transaction numbers of a compacted copy into its meta row: LMDB counts them from 1 again. The caller syncs the file."""
    environment = open_environment(path, map_bytes, is_new=True)
    try:
        databases = open_databases(environment)
        with environment.begin() as transaction:
            row = transaction.get(META_KEY, db=databases.meta) or b""
        _write_both_commits(environment, databases, decode_meta(row), decode_note(row).verified_index)
    finally:
        environment.close()


def _write_both_commits(
    environment: lmdb.Environment, databases: Databases, meta: ReplicaMeta, verified_index: int
) -> None:
    """Write the meta row in two transactions, so that each of the file's two meta pages points to a row of its own."""
    for _ in range(2):
        with environment.begin(write=True) as transaction:
            row = encode_meta(meta, CommitNote(transaction.id(), verified_index))
            transaction.put(META_KEY, row, db=databases.meta)
