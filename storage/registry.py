"""What a node must remember about itself: `node.mdb`, with its identity and every replica ever created here.

A replica speaks only after its file and then its row here are durable. A row without a file is a quarantine; a file
without a row never spoke. Every method that changes something is durable when it returns, and may be called from any
thread. Must not look at replica files: it holds facts, others draw conclusions.
"""

from __future__ import annotations

import fcntl
import json
import os
import struct
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

import lmdb
from raftmq.errors import invariant
from raftmq.storage.checksum import CHECKSUM_BYTES, is_sound, seal
from raftmq.storage.durable_files import make_directory, sync_directory
from raftmq.storage.log_store import ReplicaKey
from raftmq.types import GroupId, NodeId, ReplicaId

FORMAT_VERSION = 1
_MAP_BYTES = 256 * 1024 * 1024
"""A row of some 100 bytes for each replica that ever lived here: room for a million."""
ABNORMAL_EXITS_MAX = 2
"""A file that was open at so many abnormal exits in a row is verified in a child process before it is opened."""
LOST_NODE_ADVICE = (
    "keep the directory and put node.mdb back if there is a copy of it (never another node's); or, if other brokers have the data, start an "
    "empty directory with --join, this node's --node-id and --set replace_lost=true: the cluster rebuilds its replicas"
)
"""What an operator can do about a registry that is damaged or lost."""

_KEY = struct.Struct(">QQ")


class RegistryError(Exception):
    """The registry cannot be used: damaged, of another format, or already in use by another process.

    Without it a node does not know who it is: it must not start, or must end (a commit is never retried).
    """


class ReplicaState(Enum):
    """What became of a replica. Values are on disk."""

    CREATED = "created"
    QUARANTINED = "quarantined"
    """Damaged or missing: silent until metadata retires it."""
    RETIRED = "retired"
    """Gone for good; the row stays, so that the id is never used again here."""


@dataclass(frozen=True, slots=True)
class ReplicaRow:
    """One replica that was created here."""

    state: ReplicaState
    reason: str = ""
    """Why it is quarantined."""
    open_in_boot: int = 0
    """The boot that has its file open; 0 when it is closed."""
    abnormal_exits: int = 0
    """Exits in a row without a clean close while its file was open."""


@dataclass(frozen=True, slots=True)
class _Node:
    cluster_id: str = ""
    uuid: str = ""
    node_id: int = 0
    boot: int = 0
    is_running: bool = False
    """True from `Registry()` to a clean `close`: found True at start, the last exit was abnormal."""
    peers: tuple[tuple[int, str], ...] = ()
    seeds: tuple[str, ...] = ()
    format_version: int = FORMAT_VERSION


class Registry:
    """See the module. Counts a boot when it is made; only one process may hold it."""

    def __init__(self, path: Path | str) -> None:
        """Open or create the file. Raises `RegistryError`."""
        self._path = Path(path)
        make_directory(self._path.parent)
        self._changing = threading.RLock()
        self._is_closed = False
        self._owner_lock = _lock_for_this_process(self._path.with_name(self._path.name + "-owner"))
        try:
            self._open()
        except BaseException:
            os.close(self._owner_lock)
            raise

    def _open(self) -> None:
        is_new = not self._path.exists()
        try:
            self._environment = lmdb.open(str(self._path), map_size=_MAP_BYTES, subdir=False, max_dbs=2)
        except lmdb.Error as error:
            raise RegistryError(f"{self._path} cannot be opened: {error}") from error
        try:
            self._node_database = self._environment.open_db(b"node")
            self._replica_database = self._environment.open_db(b"replicas")
            if is_new:
                sync_directory(self._path.parent)
            self._load()
        except lmdb.Error as error:
            self._environment.close()
            raise RegistryError(f"{self._path} is damaged: {error}") from error
        except BaseException:
            self._environment.close()
            raise
        self.was_abnormal_exit = self._node.is_running
        """Whether the boot before this one ended without `close(is_clean=True)`."""
        self._begin_boot()

    def _load(self) -> None:
        self._node = _Node()
        self._replicas: dict[ReplicaKey, ReplicaRow] = {}
        with self._environment.begin() as transaction:
            value = transaction.get(_NODE_KEY, db=self._node_database)
            if value is not None:
                self._node = _decode_node(self._unsealed(_NODE_KEY, value))
            with transaction.cursor(self._replica_database) as cursor:
                for key, row in cursor:
                    body = self._unsealed(key, row)
                    if len(key) != _KEY.size:
                        raise RegistryError(f"{self._path} has a replica row under a key of {len(key)} bytes")
                    group_id, replica_id = _KEY.unpack(key)
                    self._replicas[ReplicaKey(GroupId(group_id), ReplicaId(replica_id))] = _decode_row(body)

    def _unsealed(self, key: bytes, value: bytes) -> bytes:
        if not is_sound(key, value):
            raise RegistryError(f"{self._path} is damaged: row {key!r} does not match its checksum")
        return value[:-CHECKSUM_BYTES]

    def _begin_boot(self) -> None:
        """Count the boot; what the one before left open was open at its abnormal exit."""
        changed = {
            key: replace(row, open_in_boot=0, abnormal_exits=row.abnormal_exits + 1)
            for key, row in self._replicas.items()
            if row.open_in_boot
        }
        self._write(replace(self._node, boot=self._node.boot + 1, is_running=True), changed)

    def close(self, *, is_clean: bool) -> None:
        """Close the file. `is_clean` when every replica was closed in order; otherwise the exit counts as abnormal.

        No-op when it is closed.
        """
        with self._changing:
            if self._is_closed:
                return
            self._is_closed = True
            if is_clean:
                closed = {
                    key: replace(row, open_in_boot=0, abnormal_exits=0)
                    for key, row in self._replicas.items()
                    if row.open_in_boot
                }
                self._write(replace(self._node, is_running=False), closed)
            self._environment.close()
            os.close(self._owner_lock)

    def _write(self, node: _Node | None, rows: Mapping[ReplicaKey, ReplicaRow]) -> None:
        """One transaction; the copies in memory follow when it is durable. `RegistryError`: the process must end."""
        try:
            with self._environment.begin(write=True) as transaction:
                if node is not None:
                    transaction.put(_NODE_KEY, seal(_NODE_KEY, _encode_node(node)), db=self._node_database)
                for key, row in rows.items():
                    packed = _KEY.pack(*key)
                    transaction.put(packed, seal(packed, _encode_row(row)), db=self._replica_database)
        except lmdb.Error as error:
            raise RegistryError(f"{self._path} cannot be written: {error}") from error
        if node is not None:
            self._node = node
        self._replicas.update(rows)

    # ------------------------------------------------------------------------------------------------------ identity

    @property
    def cluster_id(self) -> str:
        """The cluster this node belongs to; empty before it formed or joined one."""
        return self._node.cluster_id

    @property
    def uuid(self) -> str:
        """This node's own identity, lost with its disk; empty before `set_identity`."""
        return self._node.uuid

    @property
    def node_id(self) -> NodeId:
        """This node's id in the cluster; 0 when it has none yet."""
        return NodeId(self._node.node_id)

    @property
    def boot(self) -> int:
        """How often this registry was opened, from 1."""
        return self._node.boot

    def set_identity(self, *, uuid: str, node_id: int) -> None:
        """Remember who this node is. A uuid is never replaced, nor is an id by another (0 is none)."""
        with self._changing:
            node = self._node
            invariant(node.uuid in ("", uuid), "node_uuid_is_permanent", known=node.uuid, new=uuid)
            invariant(node.node_id in (0, node_id), "node_id_is_permanent", known=node.node_id, new=node_id)
            self._write(replace(node, uuid=uuid, node_id=node_id), {})

    def set_cluster(self, cluster_id: str) -> None:
        """Remember the cluster. A cluster forms once: another id is never taken."""
        with self._changing:
            known = self._node.cluster_id
            invariant(known in ("", cluster_id), "cluster_id_is_permanent", known=known, new=cluster_id)
            self._write(replace(self._node, cluster_id=cluster_id), {})

    def peer_addresses(self) -> dict[NodeId, str]:
        """Where the other nodes were last reached."""
        return {NodeId(node_id): address for node_id, address in self._node.peers}

    def set_peer_addresses(self, addresses: Mapping[NodeId, str]) -> None:
        """Remember where the other nodes are, for the next start. No write when nothing changed."""
        peers = tuple(sorted((int(node_id), address) for node_id, address in addresses.items()))
        with self._changing:
            if peers != self._node.peers:
                self._write(replace(self._node, peers=peers), {})

    @property
    def seeds(self) -> tuple[str, ...]:
        """Client addresses of the other nodes, as last known: where to ask when the metadata replica is of no use."""
        return self._node.seeds

    def set_seeds(self, addresses: Iterable[str]) -> None:
        """Remember client addresses of the other nodes. No write when nothing changed."""
        seeds = tuple(sorted(set(addresses)))
        with self._changing:
            if seeds != self._node.seeds:
                self._write(replace(self._node, seeds=seeds), {})

    # ------------------------------------------------------------------------------------------------------ replicas

    def replica(self, key: ReplicaKey) -> ReplicaRow | None:
        """What is known of a replica; None when it was never created here."""
        return self._replicas.get(key)

    def has_replica(self, key: ReplicaKey) -> bool:
        """Whether the replica was ever created here, whatever became of it."""
        return key in self._replicas

    def live_replicas(self) -> list[ReplicaKey]:
        """Every replica that is not retired, sorted; quarantined ones too (see `quarantined`)."""
        with self._changing:
            return sorted(key for key, row in self._replicas.items() if row.state is not ReplicaState.RETIRED)

    def quarantined(self) -> dict[ReplicaKey, str]:
        """The quarantined replicas with the reason: not to be opened."""
        with self._changing:
            rows = sorted(self._replicas.items())
            return {key: row.reason for key, row in rows if row.state is ReplicaState.QUARANTINED}

    def add_replica(self, key: ReplicaKey) -> None:
        """A replica was created: its file is durable, now it may speak. No-op when it is known and live."""
        with self._changing:
            row = self._replicas.get(key)
            if row is None:
                self._write(None, {key: ReplicaRow(ReplicaState.CREATED)})
            else:
                invariant(row.state is ReplicaState.CREATED, "replica_created_once", key=key, state=row.state)

    def quarantine(self, key: ReplicaKey, reason: str) -> None:
        """The replica is damaged or missing. Stays so until it is retired; the first reason is kept."""
        with self._changing:
            row = self._replicas.get(key, ReplicaRow(ReplicaState.CREATED))
            if row.state is ReplicaState.CREATED:
                self._write(None, {key: replace(row, state=ReplicaState.QUARANTINED, reason=reason, open_in_boot=0)})

    def retire_replica(self, key: ReplicaKey) -> None:
        """Metadata says the replica is gone, and its file was moved away."""
        with self._changing:
            row = self._replicas.get(key)
            if row is None or row.state is not ReplicaState.RETIRED:
                self._write(None, {key: ReplicaRow(ReplicaState.RETIRED)})

    # ------------------------------------------------------------------------------------------------------ exits

    def mark_open(self, keys: Iterable[ReplicaKey]) -> None:
        """These files are about to be opened in this boot. Takes many, for one commit at a node's start."""
        with self._changing:
            self._write(None, {key: replace(self._replicas[key], open_in_boot=self.boot) for key in keys})

    def needs_verification(self, key: ReplicaKey) -> bool:
        """Whether the file was open at two abnormal exits in a row: it may be what ended them."""
        row = self._replicas.get(key)
        return row is not None and row.abnormal_exits >= ABNORMAL_EXITS_MAX

    def mark_verified(self, key: ReplicaKey) -> None:
        """`verify_in_child` found the file sound: counting starts again."""
        with self._changing:
            self._write(None, {key: replace(self._replicas[key], abnormal_exits=0)})


_NODE_KEY = b"node"


def _encode_node(node: _Node) -> bytes:
    return json.dumps(
        {
            "format_version": node.format_version,
            "cluster_id": node.cluster_id,
            "uuid": node.uuid,
            "node_id": node.node_id,
            "boot": node.boot,
            "is_running": node.is_running,
            "peers": node.peers,
            "seeds": node.seeds,
        }
    ).encode()


def _decode_node(body: bytes) -> _Node:
    fields = json.loads(body)
    if fields["format_version"] != FORMAT_VERSION:
        raise RegistryError(f"registry of format {fields['format_version']}, this version reads {FORMAT_VERSION}")
    fields["peers"] = tuple((int(node_id), str(address)) for node_id, address in fields["peers"])
    fields["seeds"] = tuple(str(address) for address in fields.get("seeds", ()))
    return _Node(**fields)


def _encode_row(row: ReplicaRow) -> bytes:
    return json.dumps([row.state.value, row.reason, row.open_in_boot, row.abnormal_exits]).encode()


def _decode_row(body: bytes) -> ReplicaRow:
    state, reason, open_in_boot, abnormal_exits = json.loads(body)
    return ReplicaRow(ReplicaState(state), reason, open_in_boot, abnormal_exits)


def _lock_for_this_process(path: Path) -> int:
    """Two brokers on one data directory would vote twice. The kernel drops the lock when the process ends."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        with suppress(OSError):
            os.close(descriptor)
        raise RegistryError(f"{path.parent} is in use by another process") from error
    return descriptor
