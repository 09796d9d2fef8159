"""Encodes and decodes the rows of the registry, `node.mdb`: one row for the node itself, and one for each replica created here."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from enum import Enum
from typing import Final

from raftmq.storage.checksum import CHECKSUM_BYTES, is_intact
from raftmq.storage.entry_codec import CodecError
from raftmq.storage.errors import RegistryError
from raftmq.storage.meta_pages import Rows

FORMAT_VERSION = 1
"""The format of a new file. A file keeps its format. A change that older programs would misread needs a new one."""
FORMATS = (FORMAT_VERSION,)
"""The formats that this version reads."""
NODE_KEY: Final = b"node"
"""The key of the node's own row."""


class ReplicaState(Enum):
    """The life of a replica. Its values are on disk."""

    CREATED = "created"
    QUARANTINED = "quarantined"
    """Damaged or missing. The replica is silent until metadata retires it."""
    RETIRED = "retired"
    """Removed for good. The row stays, so that the id is never used again here."""


@dataclass(frozen=True, slots=True)
class ReplicaRow:
    """One replica that was created here."""

    state: ReplicaState
    reason: str = ""
    """Why the replica is quarantined."""
    open_in_boot: int = 0
    """The boot that has the replica's file open, or 0 if the file is closed."""
    abnormal_exits: int = 0
    """Number of processes that a memory fault killed while a thread read the replica's file. Reset when the file is verified, or was read for a while without a fault."""


@dataclass(frozen=True, slots=True)
class NodeRow:
    """The node's durable knowledge about itself and its cluster."""

    cluster_id: str = ""
    uuid: str = ""
    node_id: int = 0
    boot: int = 0
    transaction_id: int = 0
    """LMDB's number of the transaction that wrote the row. Every transaction writes the row, see `meta_pages`."""
    is_running: bool = False
    """True from `Registry()` to a clean `close`. If it is True at a start, the last exit was abnormal."""
    peers: tuple[tuple[int, str], ...] = ()
    seeds: tuple[str, ...] = ()
    marks: str = ""
    """Marks of the latest boots, hexadecimal."""
    known_boots: tuple[tuple[str, int, str], ...] = ()
    """(uuid, boot, mark) of the other nodes' latest boots. The marks are hexadecimal."""
    refusal: str = ""
    """Why the cluster permanently refuses this directory."""
    format_version: int = FORMAT_VERSION


def encode_node(node: NodeRow) -> bytes:
    """Encode the row of the node itself, without its checksum."""
    return json.dumps(
        {
            "format_version": node.format_version,
            "cluster_id": node.cluster_id,
            "uuid": node.uuid,
            "node_id": node.node_id,
            "boot": node.boot,
            "transaction_id": node.transaction_id,
            "is_running": node.is_running,
            "peers": node.peers,
            "seeds": node.seeds,
            "marks": node.marks,
            "known_boots": node.known_boots,
            "refusal": node.refusal,
        }
    ).encode()


def decode_node(body: bytes) -> NodeRow:
    """Decode the row of the node. A field that a later version added to the same format is ignored.

    Raises:
        RegistryError: It has a format that this version does not read.
    """
    row = json.loads(body)
    if row["format_version"] not in FORMATS:
        raise RegistryError(
            f"the registry has format {row['format_version']}, but this version reads format {' and '.join(map(str, FORMATS))}: "
            "start the broker with the version of RaftMQ that wrote it, or a newer one"
        )
    row["peers"] = tuple((int(node_id), str(address)) for node_id, address in row["peers"])
    row["seeds"] = tuple(str(address) for address in row.get("seeds", ()))
    row["known_boots"] = tuple((str(uuid), int(boot), str(mark)) for uuid, boot, mark in row.get("known_boots", ()))
    return NodeRow(**{field.name: row[field.name] for field in fields(NodeRow) if field.name in row})


def transaction_id_in(rows: Rows) -> int | None:
    """Return the number of the transaction that wrote these rows of the database `node`. Raises `CodecError`."""
    row = rows.get(NODE_KEY)
    if row is None or not is_intact(NODE_KEY, row):
        raise CodecError(f"row {NODE_KEY!r} is missing or does not match its checksum")
    node = json.loads(row[:-CHECKSUM_BYTES])
    return int(node["transaction_id"]) if node["format_version"] in FORMATS else None


def encode_row(row: ReplicaRow) -> bytes:
    """Encode a replica's row, without its checksum."""
    return json.dumps([row.state.value, row.reason, row.open_in_boot, row.abnormal_exits]).encode()


def decode_row(body: bytes) -> ReplicaRow:
    """Decode a replica's row. Fields that a later version added to the same format are ignored."""
    state, reason, open_in_boot, abnormal_exits, *_ = json.loads(body)
    return ReplicaRow(ReplicaState(state), reason, open_in_boot, abnormal_exits)
