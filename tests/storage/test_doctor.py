"""The doctor reports an intact directory as intact, names each kind of damage with advice, and never changes anything."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import pytest
from raftmq.raft.entry import Entry
from raftmq.storage.checksum import seal
from raftmq.storage.doctor import (
    Diagnosis,
    Finding,
    NoDataDirectoryError,
    Severity,
    examine,
)
from raftmq.storage.entry_codec import encode_entry, encode_key
from raftmq.storage.errors import DirectoryInUseError
from raftmq.storage.file_inspection import examine_registry, examine_replica, examine_state
from raftmq.storage.log_store import ReplicaKey, Update
from raftmq.storage.registry import Registry
from raftmq.storage.replica_codec import FORMAT_WITH_STATE_FILE, IDENTITY_KEY, META_KEY, Identity, encode_identity
from raftmq.storage.state_store import StateWrite, body_key, location_key
from raftmq.types import GroupId, ReplicaId

from tests.support.storage.log_builder import (
    MAP_BYTES,
    LogBuilder,
    append,
    index,
    initial_state,
    lmdb_store,
    offset,
    position_after,
    renumber,
    truncate,
)

Database = Any  # LMDB gives its type no public name
Change = Callable[[lmdb.Transaction, dict[str, Database]], object]
METADATA = ReplicaKey(GroupId(0), ReplicaId(1))
PARTITION = ReplicaKey(GroupId(7), ReplicaId(3))
FILE = "groups/7-3.mdb"


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """Create a node's directory as after a clean stop, with the metadata replica and one replica of a partition."""
    directory = tmp_path / "data"
    registry = Registry(directory / "node.mdb")
    registry.set_identity(uuid="u1", node_id=4)
    registry.set_cluster("c1")
    log = LogBuilder()
    entries = (
        log.empty(term=6),
        log.data(3, b"first batch"),
        log.command(),
        log.data(2, os.urandom(6000)),
        log.data(1),
    )
    with lmdb_store(directory) as store:
        for key in (METADATA, PARTITION):
            store.create(key, initial_state(), [(b"birth", b"row")])
            registry.add_replica(key)
            registry.mark_open([key])
            store.open(key)
        append(store, *entries, key=PARTITION)
        truncate(store, entries[1], key=PARTITION)  # its rows still await deletion
        store.append_batch([(PARTITION, Update(state_rows=((b"state key", b"value"),), state_index=index(8)))])
    registry.close(is_clean=True)
    (directory / "lock").write_text("123")
    return directory


def rewrite(path: Path, change: Change, *names: str) -> None:
    """Change rows of a closed file, as a defect or an intruder would."""
    names = names or ("log", "meta", "state")
    with lmdb.open(str(path), subdir=False, max_dbs=3, map_size=MAP_BYTES) as environment:
        databases = {name: environment.open_db(name.encode(), create=False) for name in names}
        with environment.begin(write=True) as transaction:
            change(transaction, databases)
            if "meta" in databases:
                renumber(transaction, databases)
    path.with_name(path.name + "-lock").unlink()


def flip(path: Path, part: bytes) -> None:
    """Flip one bit in every copy of `part` in the file."""
    content = path.read_bytes()
    assert part in content
    path.write_bytes(content.replace(part, bytes([part[0] ^ 1]) + part[1:]))


def only_finding(diagnosis: Diagnosis) -> Finding:
    assert len(diagnosis.findings) == 1, diagnosis.findings
    return diagnosis.findings[0]


def everything_in(directory: Path) -> dict[str, tuple[bytes, int, int]]:
    return {
        str(path): (path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_mode)
        for path in directory.rglob("*")
        if path.is_file()
    } | {str(path): (b"", path.stat().st_mtime_ns, 0) for path in directory.rglob("*") if path.is_dir()}


def test_an_intact_directory_is_reported_as_healthy_and_not_changed(data_dir: Path) -> None:
    before = everything_in(data_dir)
    seen: list[tuple[str, int, int]] = []
    diagnosis = examine(data_dir, lambda path, number, count: seen.append((path.name, number, count)))
    assert diagnosis.findings == ()
    assert diagnosis.is_healthy
    assert (diagnosis.cluster_id, diagnosis.broker_uuid, diagnosis.broker_id, diagnosis.replica_count) == (
        "c1",
        "u1",
        4,
        2,
    )
    assert diagnosis.row_count == (1 + 2) + (2 + 1) + (5 + 2 + 2)  # registry · metadata: meta, state · log, meta, state
    assert seen == [("node.mdb", 1, 3), ("0-1.mdb", 2, 3), ("7-3.mdb", 3, 3)]
    assert everything_in(data_dir) == before


def test_a_flipped_bit_in_any_row_is_found(data_dir: Path) -> None:
    """This covers the bytes that the opening of a replica checks, and those that it leaves to readers."""
    path = data_dir / FILE
    content = path.read_bytes()
    parts = [b"first batch", b"command", b"birth", b"state key", b"identity", b"batch"]
    with lmdb.open(str(path), subdir=False, max_dbs=3, readonly=True, lock=False) as environment:
        database = environment.open_db(b"log", create=False)
        with environment.begin() as transaction, transaction.cursor(database) as cursor:
            parts += [value[at:] for _, value in cursor for at in (0, 8, 16, 44, len(value) - 4)]
    for part in parts:
        flip(path, part)
        assert examine_replica(path).problems != [], part[:20]
        path.write_bytes(content)
    assert examine_replica(path).problems == []


def test_a_finding_names_the_file_the_place_and_the_advice(data_dir: Path) -> None:
    flip(data_dir / FILE, b"first batch")
    finding = only_finding(examine(data_dir))
    assert (finding.severity, finding.subject) == (Severity.DAMAGE, FILE)
    assert finding.problem.startswith("entry 7: ")
    assert "checksum" in finding.problem
    assert "majority" in finding.advice


def put(entry: Entry) -> Change:
    return lambda txn, dbs: txn.put(encode_key(entry.index), encode_entry(entry), db=dbs["log"])


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda txn, dbs: txn.delete(encode_key(9), db=dbs["log"]), "entries 9 to 9 are missing"),
        (lambda txn, dbs: txn.delete(encode_key(10), db=dbs["log"]), "ends with entry 9, but should end with entry 10"),
        (
            lambda txn, dbs: [txn.delete(encode_key(n), db=dbs["log"]) for n in range(6, 11)],
            "the log is empty, but should end with entry 10",
        ),
        (lambda txn, dbs: txn.delete(IDENTITY_KEY, db=dbs["meta"]), "identity row is missing"),
        (lambda txn, dbs: txn.delete(META_KEY, db=dbs["meta"]), "its meta row is missing"),
        (lambda txn, dbs: txn.put(META_KEY, seal(META_KEY, b"x" * 300), db=dbs["meta"]), "bytes of ids"),
        (lambda txn, dbs: txn.put(b"short", b"row", db=dbs["log"]), "log key of 5 bytes"),
        (lambda txn, dbs: txn.put(b"unsealed", b"row", db=dbs["state"]), "does not match its checksum"),
    ],
)
def test_a_log_that_contradicts_its_meta_row_is_found(change: Change, problem: str, data_dir: Path) -> None:
    rewrite(data_dir / FILE, change)
    assert any(problem in told for told in examine_replica(data_dir / FILE).problems)


def last_entry(base_offset: int = 5, term: int = 6, time_ms: int = 30, record_count: int = 1) -> Entry:
    """Return an intact row at the index of the partition's last entry. Without arguments it equals the existing one."""
    log = LogBuilder()
    log.index, log.next_offset, log.time = index(9), offset(base_offset), time_ms
    return log.data(record_count, term=term, later_ms=0)


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        (last_entry(base_offset=6), "begins at offset 6, but the previous entry ends before offset 5"),
        (last_entry(term=5), "of term 5, but the previous entry is of term 6"),
        (last_entry(time_ms=19), "older than the previous entry"),
        (last_entry(record_count=0), "has 0 records"),
        (last_entry(record_count=2), "the log ends before offset 7, but should end before offset 6"),
        (last_entry(term=99), "the log ends in term 99, but the stored term is only"),
    ],
)
def test_an_entry_that_does_not_continue_the_log_is_found(entry: Entry, problem: str, data_dir: Path) -> None:
    """All checksums are right here. Only the order is wrong."""
    path = data_dir / FILE
    rewrite(path, put(last_entry()))
    assert examine_replica(path).problems == []
    rewrite(path, put(entry))
    assert any(problem in told for told in examine_replica(path).problems)


def test_many_problems_are_counted_and_only_the_first_are_listed(data_dir: Path) -> None:
    rows = [(f"state {n}".encode(), b"unsealed") for n in range(12)]
    rewrite(data_dir / FILE, lambda txn, dbs: [txn.put(key, value, db=dbs["state"]) for key, value in rows])
    problems = [finding.problem for finding in examine(data_dir).findings]
    assert len(problems) == 6
    assert problems[-1] == "and 7 more problems of this kind"


@pytest.mark.parametrize("name", [FILE, "node.mdb"])
@pytest.mark.parametrize("content", [b"", b"something else " * 1000], ids=["empty", "foreign"])
def test_a_file_that_is_no_database_is_damage(name: str, content: bytes, data_dir: Path) -> None:
    (data_dir / name).write_bytes(content)
    finding = only_finding(examine(data_dir))
    assert (finding.severity, finding.subject) == (Severity.DAMAGE, name)


def test_a_cut_off_file_kills_no_process(data_dir: Path) -> None:
    size = (data_dir / FILE).stat().st_size
    os.truncate(data_dir / FILE, size // 2)
    finding = only_finding(examine(data_dir))
    assert finding.severity is Severity.DAMAGE
    assert finding.problem.startswith(f"it has {size // 2} bytes of {size}, and ")


def test_a_file_that_kills_its_reader_is_damaged_and_the_others_are_still_read(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that cannot be read raises SIGBUS. Here the reader sends the signal to itself when it reads one of the files."""
    reader = tmp_path / "reader"
    reader.write_text(
        f"#!{sys.executable}\n"
        "import os\n"
        "from raftmq.storage import file_inspection\n"
        "examine = file_inspection.examine_replica\n"
        "def deadly(path):\n"
        f"    return os.kill(os.getpid(), {int(signal.SIGBUS)}) if path.name == '0-1.mdb' else examine(path)\n"
        "file_inspection.examine_replica = deadly\n"
        "file_inspection.main()\n"
    )
    reader.chmod(0o755)
    monkeypatch.setattr("raftmq.storage.doctor.sys.executable", str(reader))
    flip(data_dir / FILE, b"first batch")
    findings = {finding.subject: finding.problem for finding in examine(data_dir).findings}
    assert findings["groups/0-1.mdb"].startswith("reading it kills a process with SIGBUS")
    assert findings[FILE].startswith("entry 7: ")


def test_a_place_that_the_disk_cannot_return_is_damage_and_the_others_are_still_read(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = tmp_path / "reader"
    reader.write_text(
        f"#!{sys.executable}\n"
        "import errno, lmdb.verify\n"
        "from raftmq.storage import file_inspection\n"
        "verify = lmdb.verify.verify\n"
        "def failing(path, subdir):\n"
        "    if path.endswith('0-1.mdb'):\n"
        "        raise OSError(errno.EIO, 'Input/output error')\n"
        "    return verify(path, subdir)\n"
        "lmdb.verify.verify = failing\n"
        "file_inspection.main()\n"
    )
    reader.chmod(0o755)
    monkeypatch.setattr("raftmq.storage.doctor.sys.executable", str(reader))
    flip(data_dir / FILE, b"first batch")
    findings = {finding.subject: finding for finding in examine(data_dir).findings}
    assert findings["groups/0-1.mdb"].problem == "unreadable: Input/output error"
    assert findings["groups/0-1.mdb"].severity is Severity.DAMAGE
    assert findings[FILE].problem.startswith("entry 7: ")


def test_a_reader_that_was_killed_is_not_a_finding(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lack of memory kills it, which says nothing about the file."""
    reader = tmp_path / "reader"
    reader.write_text("#!/bin/sh\nkill -KILL $$\n")
    reader.chmod(0o755)
    monkeypatch.setattr("raftmq.storage.doctor.sys.executable", str(reader))
    with pytest.raises(OSError, match=r"the check of .*node\.mdb failed"):
        examine(data_dir)


def test_modules_in_the_working_directory_are_not_used(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lmdb.py").write_text("raise SystemExit('another lmdb')")
    monkeypatch.chdir(tmp_path)
    assert examine(data_dir).is_healthy


def test_a_failed_check_is_not_a_finding(data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = tmp_path / "reader"
    reader.write_text("#!/bin/sh\necho no interpreter >&2\nexit 1\n")
    reader.chmod(0o755)
    monkeypatch.setattr("raftmq.storage.doctor.sys.executable", str(reader))
    with pytest.raises(OSError, match=r"the check of .*node\.mdb failed: no interpreter"):
        examine(data_dir)


def test_a_renamed_replica_is_a_mismatch_of_identity(data_dir: Path) -> None:
    (data_dir / FILE).rename(data_dir / "groups" / "7-9.mdb")
    problems = {(f.subject, f.problem) for f in examine(data_dir).findings}
    assert ("groups/7-9.mdb", "is the file of replica 3 of group 7 under another name") in problems
    assert (FILE, "is missing: the registry knows the replica") in problems
    assert any(subject == "groups/7-9.mdb" and "not in the registry" in problem for subject, problem in problems)


def test_a_newer_format_is_not_reported_as_damage(data_dir: Path) -> None:
    newer = encode_identity(Identity(FORMAT_WITH_STATE_FILE + 1, *PARTITION))
    rewrite(data_dir / FILE, lambda txn, dbs: txn.put(IDENTITY_KEY, newer, db=dbs["meta"]))
    finding = only_finding(examine(data_dir))
    assert f"format {FORMAT_WITH_STATE_FILE + 1}, newer" in finding.problem
    assert "version of RaftMQ that wrote it" in finding.advice


def rewrite_node(data_dir: Path, **changes: object) -> None:
    def change(transaction: lmdb.Transaction, databases: dict[str, Database]) -> None:
        fields = json.loads(bytes(transaction.get(b"node", db=databases["node"]))[:-4]) | changes
        fields["transaction_id"] = transaction.id()
        transaction.put(b"node", seal(b"node", json.dumps(fields).encode()), db=databases["node"])

    rewrite(data_dir / "node.mdb", change, "node")


def test_a_registry_of_a_newer_format_is_not_checked(data_dir: Path) -> None:
    rewrite_node(data_dir, format_version=99)
    finding = only_finding(examine(data_dir))
    assert (finding.subject, finding.severity) == ("node.mdb", Severity.WARNING)
    assert "format 99" in finding.problem


@pytest.mark.parametrize("part", [b'"uuid": "u1"', b'["created"'])
def test_a_flipped_bit_in_the_registry_is_found(part: bytes, data_dir: Path) -> None:
    flip(data_dir / "node.mdb", part)
    assert any("checksum" in problem for problem in examine_registry(data_dir / "node.mdb").problems)
    finding = examine(data_dir).findings[0]
    assert (finding.subject, finding.severity) == ("node.mdb", Severity.DAMAGE)
    assert "--join" in finding.advice


def test_a_missing_registry_is_a_lost_identity(data_dir: Path) -> None:
    (data_dir / "node.mdb").unlink()
    finding = only_finding(examine(data_dir))
    assert finding.subject == "node.mdb"
    assert "this broker's identity" in finding.problem


def with_registry(data_dir: Path, change: Callable[[Registry], object], *, is_clean: bool = True) -> None:
    registry = Registry(data_dir / "node.mdb")
    change(registry)
    registry.close(is_clean=is_clean)


def test_a_missing_file_is_damage_and_a_retired_one_is_not(data_dir: Path) -> None:
    (data_dir / FILE).unlink()
    finding = only_finding(examine(data_dir))
    assert (finding.severity, finding.subject) == (Severity.DAMAGE, FILE)
    assert "is missing" in finding.problem
    with_registry(data_dir, lambda registry: registry.retire_replica(PARTITION))
    assert examine(data_dir).findings == ()


def test_a_file_of_a_retired_replica_is_a_warning(data_dir: Path) -> None:
    with_registry(data_dir, lambda registry: registry.retire_replica(PARTITION))
    finding = only_finding(examine(data_dir))
    assert (finding.severity, finding.subject) == (Severity.WARNING, FILE)
    assert "retired" in finding.problem


def test_a_quarantine_is_reported_with_its_reason(data_dir: Path) -> None:
    with_registry(data_dir, lambda registry: registry.quarantine(PARTITION, "row 7 is bad"))
    diagnosis = examine(data_dir)
    assert not diagnosis.is_healthy
    finding = only_finding(diagnosis)
    assert (finding.severity, finding.problem) == (Severity.WARNING, "is quarantined: row 7 is bad")


def test_a_directory_that_its_cluster_refuses_is_reported_with_advice(data_dir: Path) -> None:
    with_registry(data_dir, lambda registry: registry.refuse("its boot 9 has been seen"))
    finding = only_finding(examine(data_dir))
    assert (finding.severity, finding.subject) == (Severity.DAMAGE, "node.mdb")
    assert "its boot 9 has been seen" in finding.problem
    assert "--broker-id" in finding.advice


def test_a_cluster_without_its_metadata_replica_is_a_lost_node(data_dir: Path) -> None:
    with_registry(data_dir, lambda registry: registry.retire_replica(METADATA))
    (data_dir / "groups" / "0-1.mdb").unlink()
    assert "no replica of the metadata group" in only_finding(examine(data_dir)).problem


def test_the_cache_of_times_is_no_finding(data_dir: Path) -> None:
    (data_dir / "groups" / "9-1.times").write_bytes(b"half")
    assert not examine(data_dir).findings


def test_crashes_and_unfinished_files_are_only_notes(data_dir: Path) -> None:
    for _ in range(3):
        with_registry(data_dir, lambda registry: registry.mark_open([PARTITION]), is_clean=False)
    Registry(data_dir / "node.mdb", suspects=[PARTITION]).close(is_clean=False)
    for name in ("9-1.mdb.new", "9-1.state.mdb.new.4", "9-1.state.mdb.copy.5", "9-1.times.new"):
        (data_dir / "groups" / name).write_bytes(b"half")
    (data_dir / "trash" / "5-2.mdb.0").write_bytes(b"old")
    diagnosis = examine(data_dir)
    assert {finding.severity for finding in diagnosis.findings} == {Severity.NOTE}
    assert len(diagnosis.findings) == 7
    assert diagnosis.is_healthy


def test_a_foreign_file_among_the_replicas_is_a_warning(data_dir: Path) -> None:
    (data_dir / "groups" / "holiday.mdb").write_bytes(b"x")
    finding = only_finding(examine(data_dir))
    assert (finding.severity, finding.subject) == (Severity.WARNING, "groups/holiday.mdb")


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_is_named_and_not_opened(data_dir: Path, make: Callable[[Path], None]) -> None:
    """The doctor waited without end for a writer of the named pipe. A directory ended it."""
    for name in ("groups/9-1.mdb", "groups/9-1.state.mdb"):
        make(data_dir / name)
    foreign = {finding.subject: finding for finding in examine(data_dir).findings}
    assert {(one.severity, one.problem) for one in foreign.values()} == {(Severity.WARNING, "is no regular file")}
    assert list(foreign) == ["groups/9-1.mdb", "groups/9-1.state.mdb"]
    for name in foreign:
        (data_dir / name).rename(data_dir / name.replace("/", "-"))
    (data_dir / FILE).unlink()
    make(data_dir / FILE)
    diagnosis = examine(data_dir)
    assert [(one.severity, one.subject, one.problem) for one in diagnosis.findings] == [
        (Severity.DAMAGE, FILE, "is missing: the registry knows the replica"),
        (Severity.WARNING, FILE, "is no regular file"),
    ]
    assert diagnosis.replica_count == 1


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_registry_or_a_lock_that_is_no_file_is_named_and_not_opened(
    data_dir: Path, make: Callable[[Path], None]
) -> None:
    (data_dir / "lock").unlink()
    make(data_dir / "lock")
    finding = only_finding(examine(data_dir))
    assert (finding.severity, finding.subject) == (Severity.WARNING, "lock")
    assert finding.problem == "is no regular file: no broker can start here"
    (data_dir / "lock").rename(data_dir / "old")
    (data_dir / "node.mdb").unlink()
    make(data_dir / "node.mdb")
    finding = only_finding(examine(data_dir))
    assert (finding.severity, finding.subject) == (Severity.DAMAGE, "node.mdb")
    assert finding.problem == "is no regular file: this broker's identity is lost"
    assert "keep the directory" in finding.advice


def test_a_node_of_no_cluster_is_a_note(tmp_path: Path) -> None:
    Registry(tmp_path / "node.mdb").close(is_clean=True)
    diagnosis = examine(tmp_path)
    assert diagnosis.is_healthy
    assert "no cluster yet" in only_finding(diagnosis).problem


def test_a_node_that_left_its_cluster_is_not_told_to_form_another_one(data_dir: Path) -> None:
    """Before, the note recommended --bootstrap, with which such a broker refuses to start."""
    with_registry(data_dir, lambda registry: registry.enter_cluster("", created=None, retired=METADATA))
    notes = [one for one in examine(data_dir).findings if one.subject == "node.mdb"]
    assert [one.severity for one in notes] == [Severity.NOTE]
    assert notes[0].problem == (
        "the broker left its cluster (raftmq recover rejoin): start it with --join and the peer address of a broker of the recovered cluster"
    )


@pytest.mark.parametrize(("count", "words"), [(1, "holds 1 retired replica ("), (2, "holds 2 retired replicas (")])
def test_retired_replicas_in_the_trash_are_counted(data_dir: Path, count: int, words: str) -> None:
    for number in range(count):
        (data_dir / "trash" / f"5-2.mdb.{number}").write_bytes(b"old")
    assert only_finding(examine(data_dir)).problem.startswith(words)


def test_a_directory_in_use_is_refused(data_dir: Path) -> None:
    with (data_dir / "lock").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(DirectoryInUseError, match=r"in use by a running broker \(process 123\): stop it first"):
            examine(data_dir)
    assert examine(data_dir).is_healthy


def test_no_broker_starts_while_the_doctor_reads(data_dir: Path) -> None:
    def try_to_start(path: Path, number: int, count: int) -> None:
        with (data_dir / "lock").open("a") as wanted, pytest.raises(BlockingIOError):
            fcntl.flock(wanted, fcntl.LOCK_EX | fcntl.LOCK_NB)

    examine(data_dir, try_to_start)


def test_a_directory_without_data_is_refused_with_a_hint_at_data_directories(tmp_path: Path, data_dir: Path) -> None:
    with pytest.raises(NoDataDirectoryError, match="no directory"):
        examine(tmp_path / "none")
    with pytest.raises(NoDataDirectoryError, match=f"there is one in {data_dir}"):
        examine(tmp_path)


def test_a_full_volume_is_reported_with_the_space_that_a_start_needs(data_dir: Path) -> None:
    finding = only_finding(examine(data_dir, volume=lambda _: (0, 10**12)))
    assert (finding.severity, finding.subject) == (Severity.WARNING, "volume")
    assert finding.problem == "is full: 0.0 MB are free, and the broker needs 2.1 MB to start"
    (data_dir / "ballast").write_bytes(bytes(4 << 20))
    note = only_finding(examine(data_dir, volume=lambda _: (0, 10**12)))
    assert note.severity is Severity.NOTE
    assert "accepts no records" in note.problem
    assert examine(data_dir, volume=lambda _: (10**11, 10**12)).findings == ()


# ------------------------------------------------------------------------------------------------------ state files

QUEUE = ReplicaKey(GroupId(9), ReplicaId(6))
QUEUE_FILE, STATE_FILE = "groups/9-6.mdb", "groups/9-6.state.mdb"


@pytest.fixture
def queue_dir(data_dir: Path) -> Path:
    """Add a replica with a state file to the directory."""
    registry = Registry(data_dir / "node.mdb")
    with lmdb_store(data_dir) as store:
        store.create_with_state_file(QUEUE, initial_state())
        registry.add_replica(QUEUE)
        store.open(QUEUE)
        append(store, *LogBuilder().many(4), key=QUEUE)
        rows = ((location_key(0, 0), b"home"), (location_key(0, 1), b"home"), (b"\x01", b"scalars"))
        store.write_state(QUEUE, StateWrite(index(8), rows))
        store.evacuate(QUEUE, [(location_key(0, 0), b"first body")], store.evacuated_through(QUEUE))
    registry.close(is_clean=True)
    return data_dir


def test_an_intact_state_file_is_reported_as_healthy_and_not_changed(queue_dir: Path) -> None:
    before = everything_in(queue_dir)
    diagnosis = examine(queue_dir)
    assert diagnosis.findings == ()
    assert diagnosis.replica_count == 3
    assert examine_state(queue_dir / STATE_FILE).rows == 2 + 4
    assert everything_in(queue_dir) == before


@pytest.mark.parametrize("part", [b"scalars", b"first body", b"identity", b"home"])
def test_a_flipped_bit_in_a_state_file_is_found(queue_dir: Path, part: bytes) -> None:
    flip(queue_dir / STATE_FILE, part)
    finding = examine(queue_dir).findings[0]
    assert (finding.severity, finding.subject) == (Severity.DAMAGE, STATE_FILE)


def test_a_missing_state_file_is_damage(queue_dir: Path) -> None:
    (queue_dir / STATE_FILE).unlink()
    finding = only_finding(examine(queue_dir))
    assert (finding.severity, finding.subject) == (Severity.DAMAGE, STATE_FILE)
    assert "is missing" in finding.problem


def test_a_state_file_that_is_behind_its_log_is_damage(queue_dir: Path) -> None:
    older = (queue_dir / STATE_FILE).read_bytes()
    with lmdb_store(queue_dir) as store:
        store.open(QUEUE)
        append(store, *LogBuilder().many(9)[4:], key=QUEUE)
        store.write_state(QUEUE, StateWrite(index(12), ((location_key(0, 1), None),)))
        last = store.entries(QUEUE, index(12), index(12), 1)[0]
        store.append_batch([(QUEUE, Update(truncation=position_after(last)))])
    (queue_dir / STATE_FILE).write_bytes(older)
    finding = only_finding(examine(queue_dir))
    assert finding.severity is Severity.DAMAGE
    assert "includes only entry 8, but its log starts after entry 12" in finding.problem


def test_a_state_file_without_its_replica_is_noted(queue_dir: Path) -> None:
    (queue_dir / QUEUE_FILE).unlink()
    findings = {finding.subject: finding.severity for finding in examine(queue_dir).findings}
    assert findings == {QUEUE_FILE: Severity.DAMAGE, STATE_FILE: Severity.NOTE}


def test_a_state_file_of_another_replica_is_found(queue_dir: Path) -> None:
    (queue_dir / STATE_FILE).rename(queue_dir / "groups/7-3.state.mdb")
    problems = [finding.problem for finding in examine(queue_dir).findings]
    assert any("belongs to no replica" in problem for problem in problems)
    assert any("is the file of replica 6 of group 9 under another name" in problem for problem in problems)


def test_a_body_after_the_evacuated_ones_is_found(queue_dir: Path) -> None:
    with lmdb_store(queue_dir) as store:
        store.open(QUEUE)
        state = store._state(QUEUE)
        with state.environment.begin(write=True) as transaction:
            transaction.put(body_key(7), seal(body_key(7), b"lost"), db=state._databases.rows)
            state._put_meta(transaction, state.meta)
    assert "the body of message 7" in only_finding(examine(queue_dir)).problem
