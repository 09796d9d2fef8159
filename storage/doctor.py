"""Examines a stopped data directory: every checksum, every log's continuity, and that files and registry agree.

A pure reader: nothing is created, changed or locked against other readers, so it works on a read-only copy too. What it finds
comes back as values with what to do about them; deciding and repairing is a person's part, or the broker's when it starts.
A directory in use is refused: its files change under the reader.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from raftmq.storage.disk_space import default_reserve_bytes, megabytes, start_bytes
from raftmq.storage.file_inspection import FileReport
from raftmq.storage.lmdb_log_store import replica_files
from raftmq.storage.log_store import ReplicaKey
from raftmq.storage.registry import ABNORMAL_EXITS_MAX, LOST_NODE_ADVICE, STALE_DIRECTORY_ADVICE
from raftmq.storage.registry_codec import ReplicaState
from raftmq.types import GroupId, ReplicaId

REGISTRY_FILE = "node.mdb"
LOCK_FILES = ("lock", "node.mdb-owner")
"""Held by a running broker; the first has its process id."""

_METADATA_GROUP = 0

REBUILD_ADVICE = (
    "start the broker while the others run: it sets the replica aside and the cluster makes a new one from its peers, as long as a "
    "majority of them is whole. Never put an older copy of the file back: it lacks what was acknowledged later. If this was the only "
    "replica, its records are lost: delete the topic"
)
NEWER_ADVICE = "start it with the version of RaftMQ that wrote it, or a newer one; it is not damaged"


class Severity(StrEnum):
    """How much a finding matters."""

    DAMAGE = "damage"
    """Data is wrong or missing here."""
    WARNING = "warning"
    """Nothing is lost, and somebody should look."""
    NOTE = "note"
    """Worth knowing; nothing to do."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be, in words."""

    severity: Severity
    subject: str
    """The file, relative to the data directory."""
    problem: str
    advice: str = ""
    """What to do; empty for a note."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What a data directory is like."""

    data_dir: str
    cluster_id: str
    """Empty: it belongs to no cluster yet, or the registry cannot be read. The same for the next two."""
    broker_uuid: str
    broker_id: int
    replica_count: int
    """Files of replicas that were examined."""
    row_count: int
    byte_count: int
    findings: tuple[Finding, ...]

    @property
    def is_healthy(self) -> bool:
        """Whether there is nothing to do."""
        return all(finding.severity is Severity.NOTE for finding in self.findings)


class DirectoryInUseError(Exception):
    """A broker is running on the directory."""


class NoDataDirectoryError(Exception):
    """No broker ever kept its data in the directory."""


def volume_of(data_dir: Path) -> tuple[int, int]:
    """Free and all bytes of the volume."""
    usage = shutil.disk_usage(data_dir)
    return usage.free, usage.total


def examine(
    data_dir: Path,
    on_file: Callable[[Path, int, int], None] = lambda path, number, count: None,
    *,
    volume: Callable[[Path], tuple[int, int]] = volume_of,
) -> Diagnosis:
    """Read everything in a stopped broker's data directory.

    Args:
        data_dir: the directory.
        on_file: told each file before it is read, its number from 1, and how many there are.
        volume: says what is free on the directory's volume, and how large it is.

    Raises:
        DirectoryInUseError, NoDataDirectoryError: nothing was examined.
        OSError: the directory or a file in it cannot be read.
    """
    with _kept_from_brokers(data_dir):
        files = replica_files(data_dir / "groups")
        registry = data_dir / REGISTRY_FILE
        if not registry.exists() and not files:
            raise NoDataDirectoryError(
                f"{data_dir} is no data directory: there is no {REGISTRY_FILE} in it{_inner(data_dir)}"
            )
        count = len(files) + 1
        with Examiner() as examiner:
            on_file(registry, 1, count)
            node = _examine_registry(registry, examiner)
            reports: dict[ReplicaKey, FileReport] = {}
            for number, (key, path) in enumerate(sorted(files.items()), 2):
                on_file(path, number, count)
                reports[key] = examiner.examine("replica", path)
        findings = [
            *_registry_findings(registry, node, has_files=bool(files)),
            *(finding for key, report in reports.items() for finding in _replica_findings(key, report)),
            *_disagreements(node, set(reports)),
            *_leftovers(data_dir, set(files.values())),
            *_space(data_dir, *volume(data_dir)),
        ]
        known = node.node or {}
        return Diagnosis(
            data_dir=str(data_dir),
            cluster_id=str(known.get("cluster_id", "")),
            broker_uuid=str(known.get("uuid", "")),
            broker_id=int(str(known.get("node_id", 0))),
            replica_count=len(reports),
            row_count=node.rows + sum(report.rows for report in reports.values()),
            byte_count=sum(path.stat().st_size for path in (registry, *files.values()) if path.exists()),
            findings=tuple(findings),
        )


# ------------------------------------------------------------------------------------------------------- the directory


@contextmanager
def _kept_from_brokers(data_dir: Path) -> Iterator[None]:
    """Hold what a broker locks, shared, so that none starts meanwhile. Raises `DirectoryInUseError`."""
    if not data_dir.is_dir():
        raise NoDataDirectoryError(f"there is no directory {data_dir}")
    with ExitStack() as held:
        for name in LOCK_FILES:
            with suppress(FileNotFoundError):
                descriptor = os.open(data_dir / name, os.O_RDONLY)
                held.callback(os.close, descriptor)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    owner = (data_dir / LOCK_FILES[0]).read_text().strip()
                    raise DirectoryInUseError(
                        f"{data_dir} is in use by a running broker{f' (process {owner})' if owner else ''}: stop it first"
                    ) from None
        yield


def _inner(data_dir: Path) -> str:
    """Where data directories are instead: a local cluster keeps one for each broker."""
    inner = sorted(str(path.parent) for path in data_dir.glob(f"*/{REGISTRY_FILE}"))
    return f"; there is one in {', '.join(inner)}" if inner else ""


def _space(data_dir: Path, free: int, total: int) -> Iterator[Finding]:
    """Whether the broker can start, and then take records; a ballast is space that it gives back to itself."""
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
            f"has {megabytes(free)} free: below the reserve ({megabytes(reserve)} unless disk_reserve_bytes says otherwise) the broker takes no "
            "records",
        )


def _leftovers(data_dir: Path, files: set[Path]) -> Iterator[Finding]:
    """Files that are not replicas'."""
    groups = data_dir / "groups"
    for path in sorted(groups.iterdir()) if groups.is_dir() else ():
        name = f"groups/{path.name}"
        if ".mdb.new" in path.name:
            yield Finding(Severity.NOTE, name, "is a file that was not finished; the next start removes it")
        elif path not in files and not path.name.endswith("-lock"):
            yield Finding(Severity.WARNING, name, "is no file of RaftMQ's", "move it out of the data directory")
    trash = [path for path in (data_dir / "trash").glob("*") if path.is_file()]
    if trash:
        megabytes = sum(path.stat().st_size for path in trash) / 1e6
        yield Finding(
            Severity.NOTE,
            "trash",
            f"holds {len(trash)} retired replicas ({megabytes:.0f} MB), deleted after a time of grace",
        )


# -------------------------------------------------------------------------------------------------------- conclusions


def _examine_registry(path: Path, examiner: Examiner) -> FileReport:
    if path.exists():
        return examiner.examine("registry", path)
    missing = FileReport()
    missing.add("is missing, and with it who this broker is")
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
        yield Finding(Severity.DAMAGE, path.name, "has no identity of the broker, which has replicas", LOST_NODE_ADVICE)
    elif not node.get("cluster_id"):
        yield Finding(
            Severity.NOTE, path.name, "the broker belongs to no cluster yet: it starts with --bootstrap or --join"
        )
    elif all(row[0] != _METADATA_GROUP for row in live):
        yield Finding(Severity.DAMAGE, path.name, "names no replica of the metadata group", LOST_NODE_ADVICE)
    if node.get("refusal"):
        problem = f"the cluster refuses this directory for good: {node['refusal']}"
        yield Finding(Severity.DAMAGE, path.name, problem, STALE_DIRECTORY_ADVICE)
    if node.get("is_running"):
        yield Finding(Severity.NOTE, path.name, "the broker was killed or crashed; what it acknowledged is on disk")


def _replica_findings(key: ReplicaKey, report: FileReport) -> Iterator[Finding]:
    name = _file_name(key)
    if report.identity is not None and report.identity != key:
        group_id, replica_id = report.identity
        yield Finding(
            Severity.DAMAGE,
            name,
            f"is the file of replica {replica_id} of group {group_id} under another name",
            "give it back the name it had, or move it out; a copied replica would vote twice",
        )
    if report.newer_format:
        yield Finding(
            Severity.WARNING, name, f"has format {report.newer_format}, newer than this version reads", NEWER_ADVICE
        )
    for problem in _told(report):
        yield Finding(Severity.DAMAGE, name, problem, REBUILD_ADVICE)


def _disagreements(registry: FileReport, files: set[ReplicaKey]) -> Iterator[Finding]:
    """What the registry and the files say of each other, where the registry can be read and is not lost."""
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
                "belongs to a replica that is retired; nothing uses it",
                "move it out, or delete it",
            )
        if abnormal_exits >= ABNORMAL_EXITS_MAX:
            yield Finding(
                Severity.NOTE, name, f"was open when the broker ended {abnormal_exits} times without closing it"
            )
    for key in sorted(files - known):
        yield Finding(
            Severity.WARNING,
            _file_name(key),
            "is not in the registry: a crash came while it was created, the registry is an older copy, or somebody put it there",
            "nothing if the broker crashed while it created a topic or the registry is a copy: a file that was written to is quarantined "
            "and its replica rebuilt from its peers; otherwise move it out",
        )


def _told(report: FileReport) -> Iterator[str]:
    yield from report.problems
    if report.problem_count > len(report.problems):
        yield f"and {report.problem_count - len(report.problems)} more problems of this kind"


def _file_name(key: ReplicaKey) -> str:
    return f"groups/{key.group_id}-{key.replica_id}.mdb"


# ------------------------------------------------------------------------------------------------------------ the child


class Examiner:
    """Reads files in a child process, and survives the files that end it."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_child()

    def examine(self, kind: str, path: Path) -> FileReport:
        """The report of one file. Raises `OSError` when the child cannot work at all."""
        with path.open("rb"):
            pass  # no permission is this machine's matter; LMDB would tell it like damage
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
        if code >= 0:
            raise OSError(f"the check of {path} failed: {said.splitlines()[-1] if said else f'exit code {code}'}")
        report = FileReport()
        report.add(
            f"reading it ends a process with {signal.Signals(-code).name}: its pages are not where they should be"
        )
        return report

    def _running_child(self) -> subprocess.Popen[str]:
        if self._child is None:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "raftmq.storage.file_inspection"],
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
    """JSON has no tuples. The values are what `file_inspection` made of a `FileReport`."""
    if fields["identity"] is not None:
        fields["identity"] = tuple(fields["identity"])
    fields["replicas"] = [tuple(row) for row in fields["replicas"]]
    return fields
