"""Reads one file of a data directory completely and reports every problem in it. Changes nothing.

Run as a program it serves `doctor`: it reads one request per line from standard input and writes one answer per line to standard
output. It is a process of its own because a damaged page can raise SIGBUS, which kills the reader. The files must not be written
during the inspection.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import lmdb
from raftmq.raft.entry import Entry, EntryKind
from raftmq.storage.checksum import CHECKSUM_BYTES, Buffer, is_intact
from raftmq.storage.entry_codec import CodecError, RowFields, decode_key, decode_row, decode_row_fields
from raftmq.storage.file_check import find_problem, problem_of_reading
from raftmq.storage.meta_pages import Rows, check_commits, pages_bytes
from raftmq.storage.registry_codec import FORMAT_VERSION as REGISTRY_FORMAT_VERSION
from raftmq.storage.registry_codec import transaction_id_in
from raftmq.storage.replica_codec import (
    FORMAT_WITH_STATE_FILE,
    FORMATS,
    IDENTITY_KEY,
    META_KEY,
    ReplicaMeta,
    decode_identity,
    decode_meta,
    replica_transaction_id,
)
from raftmq.storage.state_codec import FORMAT_VERSION as STATE_FORMAT_VERSION
from raftmq.storage.state_codec import STATE_META_KEY, StateMeta, decode_state_meta, state_transaction_id
from raftmq.storage.state_store import is_body, sequence_of
from raftmq.types import Term

if TYPE_CHECKING:
    from lmdb import Transaction

PROBLEMS_MAX = 5
"""Maximum number of problems reported for one file, enough to show the kind of damage. The rest is counted."""

_DATA = int(EntryKind.DATA)


@dataclass
class FileReport:
    """The result of inspecting one file."""

    rows: int = 0
    """Number of rows read, in all databases of the file."""
    problems: list[str] = field(default_factory=list)
    problem_count: int = 0
    newer_format: int = 0
    """The file's format if it is newer than this version can read, otherwise 0. The rows of a newer format are not checked."""
    identity: tuple[int, int] | None = None
    """(group id, replica id) in the identity row of a replica's file."""
    has_state_file: bool = False
    """Whether the replica of this file has a state file, too."""
    start_index: int = 0
    """The index after which the log starts, or after which a state file needs it to start at least."""
    state_index: int = 0
    """The index that the rows of a state file include."""
    node: dict[str, object] | None = None
    """The node's own row in the registry."""
    replicas: list[tuple[int, int, str, str, int]] = field(default_factory=list)
    """The registry's replicas: group id, replica id, state, reason, abnormal exits."""

    def add(self, problem: str) -> None:
        """Add a problem."""
        self.problem_count += 1
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(problem)


def examine_replica(path: Path) -> FileReport:
    """Check every row of a replica's file, and that the log has no gap and ends at the entry that the meta row names."""
    report = FileReport()
    with _open(path, report, b"meta", replica_transaction_id, may_be_new=False) as file:
        if file is None:
            return report
        meta = _examine_meta(file, report)
        if not report.newer_format:
            _examine_log(file, meta, report)
            _examine_state_rows(file, "state", report)
    return report


def examine_state(path: Path) -> FileReport:
    """Check every row of a replica's state file."""
    report = FileReport()
    with _open(path, report, b"meta", state_transaction_id, may_be_new=False) as file:
        if file is None:
            return report
        rows = _meta_rows(file, report, STATE_FORMAT_VERSION)
        if report.newer_format:
            return report
        meta: StateMeta | None = None
        try:
            meta = decode_state_meta(rows.get(STATE_META_KEY, b""))
        except CodecError as error:
            report.add(str(error) if STATE_META_KEY in rows else "its meta row is missing")
        else:
            report.start_index, report.state_index = meta.position.index, meta.state_index
        last = _examine_state_rows(file, "rows", report)
        if meta is not None and is_body(last) and sequence_of(last) > meta.evacuated_through:
            report.add(
                f"it has the body of message {sequence_of(last)}, but should have none after {meta.evacuated_through}"
            )
    return report


class ReplicaContents(NamedTuple):
    """The content of a closed replica's file without a state file."""

    meta: ReplicaMeta
    state: list[tuple[bytes, bytes]]
    entries: list[Entry]
    """The entries after the state, committed or not."""
    last_term: Term
    """The term of the last entry, or of the entry before the first one if there is none."""


def read_replica(path: Path) -> ReplicaContents | None:
    """Read the content of a small replica, such as that of the metadata. Return None if it is damaged, has a newer format or a state file.

    `examine_replica` reports its problems.
    """
    report = FileReport()
    entries: list[Entry] = []
    with _open(path, report, b"meta", replica_transaction_id, may_be_new=False) as file:
        meta = _examine_meta(file, report) if file is not None else None
        if file is None or meta is None or report.has_state_file:
            return None
        state, last_term = list(_sound_rows(file, "state", report)), meta.position.term
        try:
            for key, value in _rows(file, "log", report):
                index = decode_key(key)
                if meta.state_index < index <= meta.last_index:
                    entries.append(decode_row(index, value))
                if meta.position.index < index == meta.last_index:
                    last_term = decode_row(index, value).term
        except CodecError:
            return None
    is_complete = [entry.index for entry in entries] == list(range(meta.state_index + 1, meta.last_index + 1))
    return ReplicaContents(meta, state, entries, last_term) if is_complete and not report.problems else None


def examine_registry(path: Path) -> FileReport:
    """Check every row of `node.mdb` and return their content."""
    report = FileReport()
    with _open(path, report, b"node", transaction_id_in, may_be_new=True) as file:
        if file is None:
            return report
        for _, body in _sound_rows(file, "node", report):
            node = json.loads(body)
            report.node = node
            if node["format_version"] > REGISTRY_FORMAT_VERSION:
                report.newer_format = node["format_version"]
                return report
        for key, body in _sound_rows(file, "replicas", report):
            state, reason, _, abnormal_exits = json.loads(body)
            group_id, replica_id = int.from_bytes(key[:8], "big"), int.from_bytes(key[8:], "big")
            report.replicas.append((group_id, replica_id, state, reason, abnormal_exits))
    return report


# ------------------------------------------------------------------------------------------------------------- LMDB


class _OpenFile(NamedTuple):
    environment: lmdb.Environment
    transaction: Transaction[memoryview]


@contextmanager
def _open(
    path: Path, report: FileReport, database: bytes, id_in: Callable[[Rows], int | None], *, may_be_new: bool
) -> Iterator[_OpenFile | None]:
    """Open a closed file without its lock file and begin a read transaction. If its pages are damaged, report it and yield None."""
    problem = _find_problem_of_pages(path, database, id_in, may_be_new=may_be_new)
    if problem is not None:
        report.add(problem)
        yield None
        return
    try:
        environment = lmdb.open(
            str(path), subdir=False, readonly=True, lock=False, create=False, max_dbs=3, readahead=True
        )
    except lmdb.Error as error:
        report.add(f"it cannot be opened: {error}")
        yield None
        return
    try:
        with environment.begin(buffers=True) as transaction:
            yield _OpenFile(environment, transaction)
    except lmdb.Error as error:
        report.add(f"it cannot be read completely: {error}")
        problem = find_problem(path)
        if problem is not None:
            report.add(problem)
    finally:
        environment.close()


def _find_problem_of_pages(
    path: Path, database: bytes, id_in: Callable[[Rows], int | None], *, may_be_new: bool
) -> str | None:
    """Check a file's pages without mapping it, since reading a page past its end would raise SIGBUS. Return the problem, or None."""
    expected_bytes = 0
    try:
        expected_bytes = pages_bytes(path)
        check_commits(path, database, id_in, may_be_new=may_be_new)
    except CodecError as error:
        size = path.stat().st_size
        return f"it has {size} bytes of {expected_bytes}, and {error}" if size < expected_bytes else str(error)
    except OSError as error:
        return problem_of_reading(error)
    problem = find_problem(path)
    if problem is not None and path.stat().st_size < expected_bytes:
        return f"it has {path.stat().st_size} bytes of {expected_bytes}, and {problem}"
    return problem


def _rows(file: _OpenFile, name: str, report: FileReport) -> Iterator[tuple[memoryview, memoryview]]:
    """Yield and count every row of a database."""
    try:
        database = file.environment.open_db(name.encode(), file.transaction, create=False)
    except lmdb.NotFoundError:
        report.add(f"it has no database {name!r}")
        return
    with file.transaction.cursor(database) as cursor:
        for key, value in cursor:
            report.rows += 1
            yield key, value


def _sound_rows(file: _OpenFile, name: str, report: FileReport) -> Iterator[tuple[bytes, bytes]]:
    for key, value in _rows(file, name, report):
        if is_intact(key, value):
            yield bytes(key), bytes(value[:-CHECKSUM_BYTES])
        else:
            report.add(f"row {bytes(key)!r} of {name!r} does not match its checksum")


# ------------------------------------------------------------------------------------------------------ a replica's file


def _meta_rows(file: _OpenFile, report: FileReport, newest_format: int) -> dict[bytes, bytes]:
    """Return the rows of a file's `meta` database, after checking the identity row, which every file has."""
    rows = {bytes(key): bytes(value) for key, value in _rows(file, "meta", report)}
    try:
        identity = decode_identity(rows.get(IDENTITY_KEY, b""))
    except CodecError as error:
        report.add(str(error) if IDENTITY_KEY in rows else "its identity row is missing")
    else:
        report.identity = (identity.group_id, identity.replica_id)
        if identity.format_version > newest_format:
            report.newer_format = identity.format_version
        report.has_state_file = identity.format_version == FORMAT_WITH_STATE_FILE
    return rows


def _examine_meta(file: _OpenFile, report: FileReport) -> ReplicaMeta | None:
    rows = _meta_rows(file, report, max(FORMATS))
    if report.newer_format:
        return None
    meta: ReplicaMeta | None = None
    try:
        meta = decode_meta(rows.get(META_KEY, b""))
    except CodecError as error:
        report.add(str(error) if META_KEY in rows else "its meta row is missing")
    else:
        report.start_index = meta.position.index
    return meta


def _examine_state_rows(file: _OpenFile, name: str, report: FileReport) -> bytes:
    """Check all rows of a derived state. Return the last key."""
    last = b""
    for key, value in _rows(file, name, report):
        last = bytes(key)
        if not is_intact(key, value):
            report.add(f"state row {last.hex()} does not match its checksum")
    return last


def _examine_log(file: _OpenFile, meta: ReplicaMeta | None, report: FileReport) -> None:
    before: RowFields | None = None
    next_index: int | None = None
    for key, value in _rows(file, "log", report):
        try:
            index = decode_key(key)
        except CodecError as error:
            report.add(str(error))
            continue
        if next_index is not None and index != next_index:
            report.add(f"entries {next_index} to {index - 1} are missing")
            before = None
        next_index = index + 1
        fields = _examine_row(index, value, report)
        if fields is not None:
            follows = _follows(before, fields, meta)
            if follows is not None:
                report.add(follows)
        before = fields
    if meta is not None:
        _examine_end(next_index, before, meta, report)


def _examine_row(index: int, value: Buffer, report: FileReport) -> RowFields | None:
    try:
        return decode_row_fields(index, value)
    except CodecError as error:
        # the index inside a damaged row cannot be trusted, so the problem names the row's key
        report.add(f"entry {index}: {error}")
        return None


def _follows(before: RowFields | None, fields: RowFields, meta: ReplicaMeta | None) -> str | None:
    """Check that an entry continues the one before it. Return the problem, or None. A first entry must continue the truncation point."""
    index = fields.entry_index
    if (fields.record_count > 0) != (fields.kind == _DATA):
        return f"entry {index} of kind {fields.kind} has {fields.record_count} records"
    if before is not None:
        next_offset, term, time_ms = before.next_offset, before.term, before.append_time_ms
    elif meta is not None and index == meta.position.index + 1:
        next_offset, term, time_ms = meta.position.next_offset, meta.position.term, 0
    else:
        return None
    if fields.base_offset != next_offset:
        return f"entry {index} begins at offset {fields.base_offset}, but the previous entry ends before offset {next_offset}"
    if fields.term < term:
        return f"entry {index} is of term {fields.term}, but the previous entry is of term {term}"
    if fields.append_time_ms < time_ms:
        return f"entry {index} is older than the previous entry"
    return None


def _examine_end(next_index: int | None, last: RowFields | None, meta: ReplicaMeta, report: FileReport) -> None:
    """Check that the log ends where the meta row says, and not in a later term. A log that lost its end looks intact otherwise."""
    last_term = meta.position.term if last is None else last.term
    if last_term > meta.hard_state.term:
        report.add(f"the log ends in term {last_term}, but the stored term is only {meta.hard_state.term}")
    if meta.last_index == meta.position.index and (next_index is None or next_index <= meta.last_index + 1):
        return  # there are no entries, except those that await deletion
    if next_index is None:
        report.add(f"the log is empty, but should end with entry {meta.last_index}")
    elif next_index != meta.last_index + 1:
        report.add(f"the log ends with entry {next_index - 1}, but should end with entry {meta.last_index}")
    elif last is not None and last.next_offset != meta.last_next_offset:
        report.add(
            f"the log ends before offset {last.next_offset}, but should end before offset {meta.last_next_offset}"
        )


# ---------------------------------------------------------------------------------------------------------- the process


def main() -> None:
    """Answer requests ``["registry" | "replica" | "state", path]`` until standard input ends."""
    examine = {"registry": examine_registry, "replica": examine_replica, "state": examine_state}
    for line in sys.stdin:
        kind, path = json.loads(line)
        try:
            report = examine[kind](Path(path))
        except (ValueError, TypeError, KeyError) as error:  # a row with a correct checksum and impossible content
            report = FileReport()
            report.add(f"a row has impossible content: {error!r}")
        sys.stdout.write(json.dumps(asdict(report)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
