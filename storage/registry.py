"""The node's durable record of itself, `node.mdb`: its identity, and every replica ever created here.

A replica sends messages only after its file and then its row here are durable. So a row without a file means a lost replica,
which is quarantined, and a file without a row belongs to a replica that never sent anything. Every method that changes the
registry is durable when it returns, and any thread may call it. This module must not look at replica files: it stores facts,
and its callers draw the conclusions.
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import lmdb
from raftmq.errors import invariant
from raftmq.storage.checksum import CHECKSUM_BYTES, is_intact, seal
from raftmq.storage.directory_lock import DirectoryLock
from raftmq.storage.durable_files import make_directory, sync_directory
from raftmq.storage.entry_codec import CodecError
from raftmq.storage.errors import RegistryError, RegistryUnavailableError
from raftmq.storage.lmdb_env import is_out_of_resources, is_volume_full
from raftmq.storage.log_store import ReplicaKey
from raftmq.storage.meta_pages import check_pages
from raftmq.storage.registry_codec import (
    NODE_KEY,
    NodeRow,
    ReplicaRow,
    ReplicaState,
    decode_node,
    decode_row,
    encode_node,
    encode_row,
    transaction_id_in,
)
from raftmq.types import GroupId, NodeId, ReplicaId

_MAP_BYTES = 256 * 1024 * 1024
"""Room for a million replicas: each that ever lived here has a row of about 100 bytes."""
ABNORMAL_EXITS_MAX = 1
"""A file is verified in a child process before it is opened if this many processes died of a memory fault while they read it."""
MARK_BYTES = 4
"""Length of a boot's random mark."""
BOOT_MARKS_MAX = 256
"""Number of boots whose marks are kept. A peer that missed more boots can detect an older copy only by its lower boot number."""
LOST_NODE_ADVICE = (
    "keep the directory. If you have a copy of node.mdb from after the last start, restore it (never another broker's). Otherwise, if "
    "other brokers have the data, start on an empty directory with --join and this broker's --broker-id: the cluster rebuilds its replicas"
)
"""Advice to an operator whose registry is damaged or lost."""
STALE_DIRECTORY_ADVICE = (
    "the directory is an older copy of itself, or a second copy of it has run, and it lacks data that was acknowledged in the meantime. "
    "Stop this broker. Unless another process runs as this broker, treat the directory like a lost disk: start on an empty one with "
    "--join and this broker's --broker-id"
)
"""Advice to an operator whose cluster refuses a data directory."""

_KEY = struct.Struct(">QQ")


def _kind_of(error: Exception) -> type[RegistryError]:
    """Return the error to raise for one of LMDB or the operating system."""
    return RegistryUnavailableError if is_out_of_resources(error) or is_volume_full(error) else RegistryError


class Registry:
    """The open registry of a node. Opening it counts a boot. Only one process may hold it."""

    def __init__(
        self, path: Path | str, *, suspects: Collection[ReplicaKey] = (), lock: DirectoryLock | None = None
    ) -> None:
        """Open or create the file. Raises `RegistryError`.

        Args:
            path: The file.
            lock: The lock of the file's directory, if the caller holds it. Without it the registry locks the directory itself until
                it is closed.
            suspects: Replicas whose files the previous process was reading when a memory fault killed it.
        """
        self._path = Path(path)
        self._suspects = frozenset(suspects)
        make_directory(self._path.parent)
        self._changing = threading.RLock()
        self._is_closed = False
        self._own_lock = DirectoryLock(self._path.parent) if lock is None else None
        try:
            self._open()
        except BaseException:
            self._unlock()
            raise

    def _open(self) -> None:
        is_new = not self._path.exists()
        if not is_new:
            self._check_pages()
        try:
            self._environment = lmdb.open(str(self._path), map_size=_MAP_BYTES, subdir=False, max_dbs=2)
        except lmdb.Error as error:
            raise _kind_of(error)(f"{self._path} cannot be opened: {error}") from error
        try:
            with self._environment.begin(write=True) as transaction:
                self._node_database = self._environment.open_db(b"node", transaction)
                self._replica_database = self._environment.open_db(b"replicas", transaction)
                if transaction.get(NODE_KEY, db=self._node_database) is None:
                    # in the same transaction as the databases: if they were committed first, a crash would leave a registry that seems to have lost its row
                    new = seal(NODE_KEY, encode_node(NodeRow(transaction_id=transaction.id())))
                    transaction.put(NODE_KEY, new, db=self._node_database)
            if is_new:
                sync_directory(self._path.parent)
            self._load()
        except lmdb.Error as error:
            self._environment.close()
            problem = "is damaged" if _kind_of(error) is RegistryError else "cannot be opened"
            raise _kind_of(error)(f"{self._path} {problem}: {error}") from error
        except BaseException:
            self._environment.close()
            raise
        self.was_abnormal_exit = self._node.is_running
        """Whether the boot before this one ended without `close(is_clean=True)`."""
        self._begin_boot()

    def _check_pages(self) -> None:
        """Check the meta pages and that all pages exist, before anything of the file is mapped."""
        if self._path.stat().st_size == 0:
            return  # the process crashed before the first page was written
        try:
            check_pages(self._path, b"node", transaction_id_in, may_be_new=True)
        except CodecError as error:
            raise RegistryError(f"{self._path} is damaged: {error}") from error
        except OSError as error:
            raise _kind_of(error)(f"{self._path} cannot be read: {error.strerror}") from error

    def _load(self) -> None:
        self._node = NodeRow()
        self._replicas: dict[ReplicaKey, ReplicaRow] = {}
        """The replicas that are not retired."""
        self._retired: set[ReplicaKey] = set()
        self._live_in_group: dict[GroupId, tuple[ReplicaKey, ...]] = {}
        """The keys of `_replicas` by group. A tuple is replaced and never changed, so that it is read without the lock."""
        with self._environment.begin() as transaction:
            value = transaction.get(NODE_KEY, db=self._node_database)
            if value is not None:
                self._node = decode_node(self._unsealed(NODE_KEY, value))
            with transaction.cursor(self._replica_database) as cursor:
                for key, row in cursor:
                    body = self._unsealed(key, row)
                    if len(key) != _KEY.size:
                        raise RegistryError(f"{self._path} has a replica row under a key of {len(key)} bytes")
                    group_id, replica_id = _KEY.unpack(key)
                    self._remember(ReplicaKey(GroupId(group_id), ReplicaId(replica_id)), decode_row(body))

    def _remember(self, key: ReplicaKey, row: ReplicaRow) -> None:
        """Keep a row in memory. Every replica that ever lived here has one, so retired ones are kept apart to keep listing the others fast."""
        if row.state is ReplicaState.RETIRED:
            if self._replicas.pop(key, None) is not None:
                others = tuple(one for one in self._live_in_group[key.group_id] if one != key)
                if others:
                    self._live_in_group[key.group_id] = others
                else:
                    del self._live_in_group[key.group_id]
            self._retired.add(key)
        else:
            if key not in self._replicas:
                self._live_in_group[key.group_id] = (*self._live_in_group.get(key.group_id, ()), key)
            self._replicas[key] = row

    def _unsealed(self, key: bytes, value: bytes) -> bytes:
        if not is_intact(key, value):
            raise RegistryError(f"{self._path} is damaged: row {key!r} does not match its checksum")
        return value[:-CHECKSUM_BYTES]

    def _begin_boot(self) -> None:
        """Count the boot. A file that the previous process left open is suspected only if it died of a memory fault while it read the file."""
        changed = {
            key: replace(row, open_in_boot=0, abnormal_exits=row.abnormal_exits + (key in self._suspects))
            for key, row in self._replicas.items()
            if row.open_in_boot
        }
        self._process_mark = self._new_mark()
        self._write(self._in_next_boot(self._process_mark, is_running=True), changed)

    def _in_next_boot(self, mark: bytes, *, is_running: bool) -> NodeRow:
        marks = (self._node.marks + mark.hex())[-2 * MARK_BYTES * BOOT_MARKS_MAX :]
        return replace(self._node, boot=self._node.boot + 1, marks=marks, is_running=is_running)

    def _new_mark(self) -> bytes:
        """Draw the mark of a boot: two starts from one copy of the directory must differ."""
        return os.urandom(MARK_BYTES)

    def close(self, *, is_clean: bool) -> None:
        """Close the file. `is_clean` says that every replica was closed properly. Otherwise the exit counts as abnormal.

        Does nothing if the file is closed.
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
            self._unlock()

    def _unlock(self) -> None:
        if self._own_lock is not None:
            self._own_lock.close()

    def _write(self, node: NodeRow | None, rows: Mapping[ReplicaKey, ReplicaRow]) -> None:
        """Write the rows in one transaction, then update the copies in memory. After `RegistryError` the process must end."""
        node = node or self._node
        try:
            with self._environment.begin(write=True) as transaction:
                node = replace(node, transaction_id=transaction.id())
                transaction.put(NODE_KEY, seal(NODE_KEY, encode_node(node)), db=self._node_database)
                for key, row in rows.items():
                    packed = _KEY.pack(*key)
                    transaction.put(packed, seal(packed, encode_row(row)), db=self._replica_database)
        except lmdb.Error as error:
            why = "the volume is full" if is_volume_full(error) else str(error)
            raise _kind_of(error)(f"{self._path} cannot be written: {why}") from error
        self._node = node
        for key, row in rows.items():
            self._remember(key, row)

    # ------------------------------------------------------------------------------------------------------ identity

    @property
    def cluster_id(self) -> str:
        """The cluster to which this node belongs. Empty before it formed or joined one."""
        return self._node.cluster_id

    @property
    def uuid(self) -> str:
        """This node's permanent identity, which is lost with its disk. Empty before `set_identity`."""
        return self._node.uuid

    @property
    def node_id(self) -> NodeId:
        """This node's id in the cluster. 0 before it has one."""
        return NodeId(self._node.node_id)

    @property
    def boot(self) -> int:
        """Number of times that this registry was opened or its mark was renewed, starting at 1."""
        return self._node.boot

    @property
    def boot_marks(self) -> bytes:
        """Random marks of the latest boots, `MARK_BYTES` each, with the current boot's last. They distinguish copies of the directory."""
        return self.lineage[1]

    @property
    def lineage(self) -> tuple[int, bytes]:
        """The boot with the marks, both of one moment: another thread may renew the mark."""
        node = self._node
        return node.boot, bytes.fromhex(node.marks)

    @property
    def process_mark(self) -> bytes:
        """The mark of the boot that began when this process opened the file. It distinguishes the process from every other one."""
        return self._process_mark

    def renew_mark(self) -> None:
        """Begin another boot without a start. The copies of the directory that exist now lack its mark."""
        with self._changing:
            self._write(self._in_next_boot(self._new_mark(), is_running=True), {})

    def adopt_boot(self, boot: int, mark: bytes) -> None:
        """Continue after a boot that this file does not know, because it is an older copy of itself beside newer replicas."""
        with self._changing:
            kept = min(boot + 1, BOOT_MARKS_MAX)
            marks = bytes(MARK_BYTES * kept) + mark + self._new_mark()
            text = marks[-MARK_BYTES * kept :].hex()
            self._write(replace(self._node, boot=boot + 1, marks=text), {})

    def known_boots(self) -> dict[str, tuple[int, bytes]]:
        """Return the latest known boot of each other node, with its mark, by uuid."""
        return {uuid: (boot, bytes.fromhex(mark)) for uuid, boot, mark in self._node.known_boots}

    def remember_boot(self, uuid: str, boot: int, mark: bytes, forgotten: str = "") -> None:
        """Record another node's latest boot, and forget the node `forgotten`. A boot older than the recorded one is ignored."""
        with self._changing:
            known = {one: (number, text) for one, number, text in self._node.known_boots if one != forgotten}
            if boot >= known.get(uuid, (0, ""))[0]:  # several threads write, in any order
                known[uuid] = (boot, mark.hex())
            rows = tuple((one, number, text) for one, (number, text) in known.items())
            if rows != self._node.known_boots:
                self._write(replace(self._node, known_boots=rows), {})

    @property
    def refusal(self) -> str:
        """Why the cluster permanently refuses this directory. Empty if it does not."""
        return self._node.refusal

    def refuse(self, reason: str) -> None:
        """Record that the directory must not be used again: another start would count a boot and make it look newer than it is."""
        with self._changing:
            if not self._node.refusal:
                self._write(replace(self._node, refusal=reason), {})

    def set_identity(self, *, uuid: str, node_id: int) -> None:
        """Record this node's identity. A uuid is never replaced, and neither is an id, except 0, which means none."""
        with self._changing:
            node = self._node
            invariant(node.uuid in ("", uuid), "node_uuid_is_permanent", known=node.uuid, new=uuid)
            invariant(node.node_id in (0, node_id), "node_id_is_permanent", known=node.node_id, new=node_id)
            self._write(replace(node, uuid=uuid, node_id=node_id), {})

    def set_cluster(self, cluster_id: str) -> None:
        """Record the cluster. A cluster forms once, so another id is never accepted."""
        with self._changing:
            known = self._node.cluster_id
            invariant(known in ("", cluster_id), "cluster_id_is_permanent", known=known, new=cluster_id)
            self._write(replace(self._node, cluster_id=cluster_id), {})

    def enter_cluster(self, cluster_id: str, *, created: ReplicaKey | None, retired: ReplicaKey) -> None:
        """Replace the cluster, on an operator's order to recover its metadata. An empty id means that the node will join one.

        The metadata replica of the old cluster is retired in the same transaction. `created` is the one of the new cluster, whose
        file is durable.
        """
        with self._changing:
            rows = {retired: ReplicaRow(ReplicaState.RETIRED)}
            if created is not None:
                rows[created] = ReplicaRow(ReplicaState.CREATED)
            self._write(replace(self._node, cluster_id=cluster_id, seeds=()), rows)

    @property
    def has_left_cluster(self) -> bool:
        """Return whether the node belonged to a cluster that an operator told it to leave (`enter_cluster`), and has joined no other one.

        A crash before `set_cluster` leaves no retired replica.
        """
        with self._changing:
            return not self._node.cluster_id and bool(self._retired)

    def peer_addresses(self) -> dict[NodeId, str]:
        """Return the last known address of each other node."""
        return {NodeId(node_id): address for node_id, address in self._node.peers}

    def set_peer_addresses(self, addresses: Mapping[NodeId, str]) -> None:
        """Record the addresses of the other nodes for the next start. Does not write if nothing changed."""
        peers = tuple(sorted((int(node_id), address) for node_id, address in addresses.items()))
        with self._changing:
            if peers != self._node.peers:
                self._write(replace(self._node, peers=peers), {})

    @property
    def seeds(self) -> tuple[str, ...]:
        """Last known peer addresses of the other nodes, to ask when the metadata replica cannot help."""
        return self._node.seeds

    def set_seeds(self, addresses: Iterable[str]) -> None:
        """Record the peer addresses of the other nodes. Does not write if nothing changed."""
        seeds = tuple(sorted(set(addresses)))
        with self._changing:
            if seeds != self._node.seeds:
                self._write(replace(self._node, seeds=seeds), {})

    # ------------------------------------------------------------------------------------------------------ replicas

    def replica(self, key: ReplicaKey) -> ReplicaRow | None:
        """Return a replica's row, or None if it was never created here."""
        return ReplicaRow(ReplicaState.RETIRED) if key in self._retired else self._replicas.get(key)

    def has_replica(self, key: ReplicaKey) -> bool:
        """Return whether the replica was ever created here, even if it is retired."""
        return key in self._replicas or key in self._retired

    def live_replicas(self) -> list[ReplicaKey]:
        """Return every replica that is not retired, sorted. Quarantined ones are included (see `quarantined`).

        It never waits for a write that is under way.
        """
        return sorted(self._replicas.copy())  # in one step, while another thread may add rows

    def live_replicas_of(self, group_id: GroupId) -> tuple[ReplicaKey, ...]:
        """Return the replicas of one group that are not retired. It never waits for a write that is under way."""
        return self._live_in_group.get(group_id, ())

    def quarantined(self) -> dict[ReplicaKey, str]:
        """Return the quarantined replicas, which must not be opened, with their reasons. It never waits for a write that is under way."""
        rows = self._replicas.copy()  # as above
        return {key: rows[key].reason for key in sorted(rows) if rows[key].state is ReplicaState.QUARANTINED}

    def add_replica(self, key: ReplicaKey) -> None:
        """Record a replica whose file is durable. It may send messages afterwards. Does nothing if the replica is known and live."""
        with self._changing:
            row = self.replica(key)
            if row is None:
                self._write(None, {key: ReplicaRow(ReplicaState.CREATED)})
            else:
                invariant(row.state is ReplicaState.CREATED, "replica_created_once", key=key, state=row.state)

    def quarantine(self, key: ReplicaKey, reason: str) -> None:
        """Record that the replica is damaged or missing. It stays quarantined until it is retired, and the first reason is kept."""
        with self._changing:
            row = self.replica(key) or ReplicaRow(ReplicaState.CREATED)
            if row.state is ReplicaState.CREATED:
                self._write(None, {key: replace(row, state=ReplicaState.QUARANTINED, reason=reason, open_in_boot=0)})

    def retire_replica(self, key: ReplicaKey) -> None:
        """Record that metadata has removed the replica and that its file was moved to the trash."""
        with self._changing:
            if key not in self._retired:
                self._write(None, {key: ReplicaRow(ReplicaState.RETIRED)})

    # ------------------------------------------------------------------------------------------------------ exits

    def mark_open(self, keys: Iterable[ReplicaKey]) -> None:
        """Record that these files are about to be opened in this boot. It takes many, so that a node's start needs one commit."""
        with self._changing:
            self._write(None, {key: replace(self._replicas[key], open_in_boot=self.boot) for key in keys})

    def needs_verification(self, key: ReplicaKey) -> bool:
        """Return whether a process died of a memory fault while it read the file, which may be the cause."""
        row = self._replicas.get(key)
        return row is not None and row.abnormal_exits >= ABNORMAL_EXITS_MAX

    def mark_verified(self, key: ReplicaKey) -> None:
        """Reset the file's count of abnormal exits, since `verify_in_child` found the file intact."""
        with self._changing:
            self._write(None, {key: replace(self._replicas[key], abnormal_exits=0)})

    def forget_exits(self) -> None:
        """Suspect no file any more, since the node has run for a while without a fault. Does not write if none was suspected."""
        with self._changing:
            rows = {key: replace(row, abnormal_exits=0) for key, row in self._replicas.items() if row.abnormal_exits}
            if rows:
                self._write(None, rows)
