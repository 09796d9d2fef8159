"""Examines the data directory of a stopped broker: every checksum, every log's continuity, and that files and registry agree.

It only reads: it creates and changes nothing and locks out no other reader, so it works on a read-only copy too. Each finding
comes with advice. Decisions and repairs are left to the operator, or to the broker when it starts. A directory in use is refused,
because its files change under the reader.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from raftmq.storage.directory_lock import LOCK_FILE, kept_from_brokers
from raftmq.storage.disk_space import TIMES_SUFFIX, default_reserve_bytes, megabytes, start_bytes
from raftmq.storage.file_check import SIGNALS_OF_DAMAGE
from raftmq.storage.file_inspection import FileReport
from raftmq.storage.lmdb_log_store import replica_files, state_files
from raftmq.storage.log_store import ReplicaKey
from raftmq.storage.registry import ABNORMAL_EXITS_MAX, LOST_NODE_ADVICE, STALE_DIRECTORY_ADVICE
from raftmq.storage.registry_codec import ReplicaState
from raftmq.types import GroupId, ReplicaId

REGISTRY_FILE = "node.mdb"

_METADATA_GROUP = 0

REBUILD_ADVICE = (
    "start the broker while the others run: it sets the replica aside, and the cluster rebuilds it from its peers as long as a "
    "majority of them is intact. Never restore an older copy of the file: it lacks data that was acknowledged later. If this was the "
    "only replica, its records are lost: delete the topic"
)
NEWER_ADVICE = "start it with the version of RaftMQ that wrote it, or a newer one; it is not damaged"


class Severity(StrEnum):
    """How much a finding matters."""

    DAMAGE = "damage"
    """Data in this directory is damaged or missing."""
    WARNING = "warning"
    """Nothing is lost, but somebody should look at it."""
    NOTE = "note"
    """Worth knowing, but nothing needs to be done."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One observation about the data directory, in words."""

    severity: Severity
    subject: str
    """The file, relative to the data directory."""
    problem: str
    advice: str = ""
    """The recommended action. Empty for a note."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The result of an examination."""

    data_dir: str
    cluster_id: str
    """Empty if the broker belongs to no cluster yet or the registry cannot be read. The next two are empty or 0 in the same cases."""
    broker_uuid: str
    broker_id: int
    replica_count: int
    """Number of replica files that were examined."""
    row_count: int
    byte_count: int
    findings: tuple[Finding, ...]

    @property
    def is_healthy(self) -> bool:
        """Whether nothing needs to be done."""
        return all(finding.severity is Severity.NOTE for finding in self.findings)


class NoDataDirectoryError(Exception):
    """The directory is not a broker's data directory."""

    def __init__(self, data_dir: Path) -> None:
        if data_dir.is_dir():
            super().__init__(f"{data_dir} is not a data directory: it contains no {REGISTRY_FILE}{_inner(data_dir)}")
        else:
            super().__init__(f"there is no directory {data_dir}")


def volume_of(data_dir: Path) -> tuple[int, int]:
    """Return the free bytes and all bytes of the volume."""
    usage = shutil.disk_usage(data_dir)
    return usage.free, usage.total


def examine(
    data_dir: Path,
    on_file: Callable[[Path, int, int], None] = lambda path, number, count: None,
    *,
    volume: Callable[[Path], tuple[int, int]] = volume_of,
) -> Diagnosis:
    """Read every file in the data directory of a stopped broker.

    Args:
        data_dir: The data directory.
        on_file: Called before each file with its path, its number from 1 and the number of files.
        volume: Returns the free bytes and the size of the directory's volume.

    Raises:
        DirectoryInUseError: A broker is running on the directory. Nothing was examined.
        NoDataDirectoryError: The directory is not a broker's data directory. Nothing was examined.
        OSError: The directory or a file in it cannot be read.
    """
    if not data_dir.is_dir():
        raise NoDataDirectoryError(data_dir)
    with kept_from_brokers(data_dir):
        files, states = _regular(replica_files(data_dir / "groups")), _regular(state_files(data_dir / "groups"))
        registry = data_dir / REGISTRY_FILE
        if not registry.exists() and not files and not states:
            raise NoDataDirectoryError(data_dir)
        count = 1 + len(files) + len(states)
        with Examiner() as examiner:
            on_file(registry, 1, count)
            node = _examine_registry(registry, examiner)
            reports: dict[ReplicaKey, FileReport] = {}
            state_reports: dict[ReplicaKey, FileReport] = {}
            for number, (key, path) in enumerate(sorted(files.items()), 2):
                on_file(path, number, count)
                reports[key] = examiner.examine("replica", path)
            for number, (key, path) in enumerate(sorted(states.items()), 2 + len(files)):
                on_file(path, number, count)
                state_reports[key] = examiner.examine("state", path)
        findings = [
            *_registry_findings(registry, node, has_files=bool(files)),
            *(finding for key, report in reports.items() for finding in _replica_findings(key, report)),
            *_state_findings(reports, state_reports),
            *_disagreements(node, set(reports)),
            *_leftovers(data_dir, {*files.values(), *states.values()}),
            *_space(data_dir, *volume(data_dir)),
        ]
        known = node.node or {}
        return Diagnosis(
            data_dir=str(data_dir),
            cluster_id=str(known.get("cluster_id", "")),
            broker_uuid=str(known.get("uuid", "")),
            broker_id=int(str(known.get("node_id", 0))),
            replica_count=len(reports),
            row_count=sum(report.rows for report in (node, *reports.values(), *state_reports.values())),
            byte_count=sum(
                path.stat().st_size for path in (registry, *files.values(), *states.values()) if path.is_file()
            ),
            findings=tuple(findings),
        )


# ------------------------------------------------------------------------------------------------------- the directory


def _regular(files: dict[ReplicaKey, Path]) -> dict[ReplicaKey, Path]:
    """Return the files among these. A named pipe would block its reader, and a broker does not take it for a replica's file either."""
    return {key: path for key, path in files.items() if path.is_file()}


def _inner(data_dir: Path) -> str:
    """Return a hint at data directories one level below: a local cluster keeps one for each broker there."""
    inner = sorted(str(path.parent) for path in data_dir.glob(f"*/{REGISTRY_FILE}"))
    return f"; there is one in {', '.join(inner)}" if inner else ""


def _space(data_dir: Path, free: int, total: int) -> Iterator[Finding]:
    """Check the space for a start and for records. The broker can release its ballast, so that counts as free for a start."""
    ballast = data_dir / "ballast"
    free_at_start = free + (ballast.stat().st_size if ballast.exists() else 0)
    needed, reserve = start_bytes(data_dir), default_reserve_bytes(total)
    if free_at_start < needed:
        yield Finding(
            Severity.WARNING,
            "volume",
            f"is full: {megabytes(free_at_start)} are free, and the broker needs {megabytes(needed)} to start",
            "free some space on the volume, not in the data directory, or make it larger",
        )
    elif free < reserve:
        yield Finding(
            Severity.NOTE,
            "volume",
            f"has {megabytes(free)} free, which is below the reserve ({megabytes(reserve)} unless disk_reserve_bytes is set): the broker "
            "accepts no records",
        )


def _leftovers(data_dir: Path, files: set[Path]) -> Iterator[Finding]:
    """Report unfinished and unknown files, and the trash."""
    lock = data_dir / LOCK_FILE
    if lock.exists() and not lock.is_file():
        yield Finding(Severity.WARNING, LOCK_FILE, "is no regular file: no broker can start here", "remove it")
    groups = data_dir / "groups"
    for path in sorted(groups.iterdir()) if groups.is_dir() else ():
        name = f"groups/{path.name}"
        if ".mdb.new" in path.name or path.name.endswith(".times.new"):
            yield Finding(Severity.NOTE, name, "is an unfinished file: the next start removes it")
        elif ".mdb.copy" in path.name:
            yield Finding(Severity.NOTE, name, "is a copy from which snapshots were sent: the next start removes it")
        elif path not in files and not path.name.endswith(("-lock", TIMES_SUFFIX)):
            problem = "does not belong to RaftMQ" if path.is_file() else "is no regular file"
            yield Finding(Severity.WARNING, name, problem, "move it out of the data directory")
    trash = [path for path in (data_dir / "trash").glob("*") if path.is_file()]
    if trash:
        megabytes = sum(path.stat().st_size for path in trash) / 1e6
        yield Finding(
            Severity.NOTE,
            "trash",
            f"holds {len(trash)} retired {'replica' if len(trash) == 1 else 'replicas'} ({megabytes:.0f} MB), deleted after a grace period",
        )


# -------------------------------------------------------------------------------------------------------- conclusions


def _examine_registry(path: Path, examiner: Examiner) -> FileReport:
    if path.is_file():
        return examiner.examine("registry", path)
    missing = FileReport()
    if path.exists():
        missing.add("is no regular file: this broker's identity is lost")
    else:
        missing.add("is missing, and with it this broker's identity")
    return missing


def _registry_findings(path: Path, report: FileReport, *, has_files: bool) -> Iterator[Finding]:
    if report.newer_format:
        yield Finding(
            Severity.WARNING,
            path.name,
            f"has format {report.newer_format}, newer than this version reads",
            NEWER_ADVICE,
        )
        return
    for problem in _told(report):
        yield Finding(Severity.DAMAGE, path.name, problem, LOST_NODE_ADVICE)
    if report.problems:
        return
    node: dict[str, Any] = report.node or {}  # JSON, checked by its checksum
    live = [row for row in report.replicas if row[2] != ReplicaState.RETIRED.value]
    if not node.get("uuid") and (live or has_files):
        yield Finding(
            Severity.DAMAGE, path.name, "has no broker identity, although the broker has replicas", LOST_NODE_ADVICE
        )
    elif not node.get("cluster_id") and len(live) < len(report.replicas):  # as `Registry.has_left_cluster`
        yield Finding(
            Severity.NOTE,
            path.name,
            "the broker left its cluster (raftmq recover rejoin): start it with --join and the peer address of a broker of the "
            "recovered cluster",
        )
    elif not node.get("cluster_id"):
        yield Finding(
            Severity.NOTE, path.name, "the broker belongs to no cluster yet: start it with --bootstrap or --join"
        )
    elif all(row[0] != _METADATA_GROUP for row in live):
        yield Finding(Severity.DAMAGE, path.name, "contains no replica of the metadata group", LOST_NODE_ADVICE)
    if node.get("refusal"):
        problem = f"the cluster permanently refuses this directory: {node['refusal']}"
        yield Finding(Severity.DAMAGE, path.name, problem, STALE_DIRECTORY_ADVICE)
    if node.get("is_running"):
        yield Finding(Severity.NOTE, path.name, "the broker was killed or crashed. All acknowledged data is on disk")


def _replica_findings(key: ReplicaKey, report: FileReport) -> Iterator[Finding]:
    return _file_findings(_file_name(key), key, report)


def _state_findings(replicas: dict[ReplicaKey, FileReport], states: dict[ReplicaKey, FileReport]) -> Iterator[Finding]:
    """Report problems in state files, and contradictions between a replica's two files."""
    for key, replica in replicas.items():
        name = _state_file_name(key)
        if not replica.has_state_file:
            if key in states:
                yield Finding(
                    Severity.WARNING,
                    name,
                    "belongs to no replica: nothing uses it",
                    "move it out of the data directory",
                )
        elif key not in states:
            yield Finding(Severity.DAMAGE, name, "is missing: the replica keeps its state in this file", REBUILD_ADVICE)
        elif replica.start_index > states[key].state_index and not states[key].problems:
            problem = (
                f"includes only entry {states[key].state_index}, but its log starts after entry {replica.start_index}"
            )
            yield Finding(Severity.DAMAGE, name, problem, REBUILD_ADVICE)
    for key, report in states.items():
        name = _state_file_name(key)
        yield from _file_findings(name, key, report)
        if key not in replicas:
            problem = (
                "has no replica: the broker crashed while it created or removed the replica, or its file is missing"
            )
            yield Finding(Severity.NOTE, name, problem)


def _file_findings(name: str, key: ReplicaKey, report: FileReport) -> Iterator[Finding]:
    if report.identity is not None and report.identity != key:
        group_id, replica_id = report.identity
        yield Finding(
            Severity.DAMAGE,
            name,
            f"is the file of replica {replica_id} of group {group_id} under another name",
            "rename it back, or move it out of the data directory: a copied replica would vote twice",
        )
    if report.newer_format:
        yield Finding(
            Severity.WARNING, name, f"has format {report.newer_format}, newer than this version reads", NEWER_ADVICE
        )
    for problem in _told(report):
        yield Finding(Severity.DAMAGE, name, problem, REBUILD_ADVICE)


def _disagreements(registry: FileReport, files: set[ReplicaKey]) -> Iterator[Finding]:
    """Report contradictions between the registry and the files, if the registry can be read and has an identity."""
    if registry.problems or registry.newer_format or not (registry.node or {}).get("uuid"):
        return
    known: set[ReplicaKey] = set()
    for group_id, replica_id, state, reason, abnormal_exits in registry.replicas:
        key = ReplicaKey(GroupId(group_id), ReplicaId(replica_id))
        known.add(key)
        name = _file_name(key)
        if state == ReplicaState.QUARANTINED.value:
            yield Finding(Severity.WARNING, name, f"is quarantined: {reason}", REBUILD_ADVICE)
        elif state == ReplicaState.CREATED.value and key not in files:
            yield Finding(Severity.DAMAGE, name, "is missing: the registry knows the replica", REBUILD_ADVICE)
        elif state == ReplicaState.RETIRED.value and key in files:
            yield Finding(
                Severity.WARNING,
                name,
                "belongs to a retired replica: nothing uses it",
                "move it out of the data directory, or delete it",
            )
        if abnormal_exits >= ABNORMAL_EXITS_MAX:
            yield Finding(
                Severity.NOTE, name, f"was being read when a memory fault killed the broker ({abnormal_exits} times)"
            )
    for key in sorted(files - known):
        yield Finding(
            Severity.WARNING,
            _file_name(key),
            "is not in the registry: the broker crashed while it created the file, the registry is an older copy, or somebody put the file there",
            "do nothing if the broker crashed while it created a topic or if the registry is a copy: a file that was written to is quarantined, "
            "and its replica is rebuilt from its peers. Otherwise move the file out of the data directory",
        )


def _told(report: FileReport) -> Iterator[str]:
    yield from report.problems
    if report.problem_count > len(report.problems):
        yield f"and {report.problem_count - len(report.problems)} more problems of this kind"


def _file_name(key: ReplicaKey) -> str:
    return f"groups/{key.group_id}-{key.replica_id}.mdb"


def _state_file_name(key: ReplicaKey) -> str:
    return f"groups/{key.group_id}-{key.replica_id}.state.mdb"


# ------------------------------------------------------------------------------------------------------------ the child


class Examiner:
    """Reads files in a child process, and starts another one when a file kills it."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_child()

    def examine(self, kind: str, path: Path) -> FileReport:
        """Return the report of one file. Raises `OSError` if the child cannot work at all."""
        with path.open("rb"):
            pass  # a missing permission is not damage, but LMDB would report it like damage
        child = self._running_child()
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        with suppress(BrokenPipeError):  # it has ended already: there will be no answer
            child.stdin.write(json.dumps([kind, str(path)]) + "\n")
            child.stdin.flush()
        answer = child.stdout.readline()
        if answer:
            return FileReport(**_typed(json.loads(answer)))
        said = child.stderr.read().strip()
        code = child.wait()
        self._end_child()
        if -code not in SIGNALS_OF_DAMAGE:  # somebody killed it, or it had no memory: that says nothing about the file
            raise OSError(f"the check of {path} failed: {said.splitlines()[-1] if said else f'exit code {code}'}")
        report = FileReport()
        report.add(f"reading it kills a process with {signal.Signals(-code).name}: its pages are damaged or missing")
        return report

    def _running_child(self) -> subprocess.Popen[str]:
        if self._child is None:
            self._child = subprocess.Popen(
                [sys.executable, "-P", "-m", "raftmq.storage.file_inspection"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        return self._child

    def _end_child(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.communicate()


def _typed(fields: dict[str, Any]) -> dict[str, Any]:
    """Restore the tuples of a `FileReport`, which JSON turned into lists."""
    if fields["identity"] is not None:
        fields["identity"] = tuple(fields["identity"])
    fields["replicas"] = [tuple(row) for row in fields["replicas"]]
    return fields
