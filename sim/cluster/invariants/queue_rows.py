"""`RowsAgree`, `BodiesStay`: the durable rows of a queue partition describe the same messages, and the body of each message is found.

Each message has one home row and one location, counts of tenants equal a recount, ids and lines name messages that exist (promise: every slot is
freed by each end of a message). The body of each message is in the log above the truncation point, or in the state file, after truncation,
evacuation and snapshots.
"""

from __future__ import annotations

from collections import Counter

import msgspec
from crc32c import crc32c
from raftmq.broker.partitions.queue.bodies import read_bodies
from raftmq.fsm.queue import rows as keys
from raftmq.fsm.queue.ids import IdRow
from raftmq.fsm.queue.key_lines import KeyHead
from raftmq.fsm.queue.message import DEAD, DELAYED, LEASED, LINED, READY, Message, decode_message
from raftmq.fsm.queue.state import QueueScalars, decode_scalars
from raftmq.fsm.queue.tenants import StoredTenant
from raftmq.fsm.tables import number_key
from raftmq.storage.checksum import CHECKSUM_BYTES
from raftmq.storage.log_store import ReplicaKey
from raftmq.storage.state_store import StateStore, is_body

from sim.cluster.world.disk import Disk
from sim.core.invariants.violation import demand

HOMES = {
    keys.READY_ROWS: READY,
    keys.DELAYED_ROWS: DELAYED,
    keys.LEASED_ROWS: LEASED,
    keys.DEAD_ROWS: DEAD,
    keys.LINE_ROWS: LINED,
}
_STORED_COUNTS = ((READY, "ready"), (DELAYED, "delayed"), (LEASED, "leased"), (DEAD, "dead"), (LINED, "lined"))


def living_rows(disk: Disk, key: ReplicaKey) -> dict[bytes, bytes]:
    """Return the rows of a state file that exist for the machine: no bodies, and none of earlier generations."""
    file = disk.state_files[key]
    rows = {row: value[:-CHECKSUM_BYTES] for row, value in file.tables["rows"].rows.items()}
    scalars = rows.get(number_key(keys.SCALARS, 0))
    generation = (decode_scalars(scalars).generation if scalars else 0).to_bytes(4, "big")
    return {
        row: value
        for row, value in rows.items()
        if not is_body(row) and (row[0] not in keys.GENERATION_TAGS or row[1:5] == generation)
    }


class DurableQueue:
    """The rows of one state file, decoded."""

    def __init__(self, where: str, rows: dict[bytes, bytes]) -> None:
        self._where = where
        self._rows = rows
        scalars = rows.get(number_key(keys.SCALARS, 0))
        self.scalars = decode_scalars(scalars) if scalars else QueueScalars()
        self.messages: dict[int, Message] = {}
        for row, value in rows.items():
            if row[0] in HOMES:
                self._add(row, decode_message(row, value))

    def _demand(self, condition: object, detail: str) -> None:
        demand(condition, "RowsAgree", f"{self._where}: {detail}")

    def _add(self, row: bytes, m: Message) -> None:
        self._demand(m.sequence not in self.messages, f"{m.sequence} has two home rows")
        is_home = m.state == HOMES[row[0]] and keys.home_key(self.scalars.generation, m) == row
        self._demand(is_home, f"{m.sequence} lies under {row.hex()}")
        self.messages[m.sequence] = m

    def _table(self, tag: int) -> dict[bytes, bytes]:
        return {row: value for row, value in self._rows.items() if row[0] == tag}

    def check(self) -> None:
        """Compare all tables with the messages."""
        generation, messages = self.scalars.generation, self.messages.values()
        locations = {
            keys.location_key(generation, m.sequence): keys.location_value(keys.home_key(generation, m))
            for m in messages
        }
        self._demand(self._table(keys.LOCATIONS) == locations, "the locations are not those of the messages")
        expiring = {keys.expiry_key(generation, m.expires_at, m.sequence) for m in messages if m.expires_at}
        self._demand(
            self._table(keys.EXPIRY_ROWS).keys() == expiring, "the times of expiry are not those of the messages"
        )
        self._demand(self.scalars.expiring_count == len(expiring), f"{self.scalars.expiring_count} messages expire")
        self._check_tenants()
        self._check_ids()
        self._check_lines()

    def _check_tenants(self) -> None:
        counts = Counter((m.tenant, m.state) for m in self.messages.values())
        sizes: Counter[int] = Counter()
        for m in self.messages.values():
            sizes[m.tenant] += m.body_bytes
        found = {
            int.from_bytes(row[1:], "big"): msgspec.msgpack.decode(value, type=StoredTenant)
            for row, value in self._table(keys.TENANTS).items()
        }
        self._demand({m.tenant for m in self.messages.values()} <= found.keys(), "a message has no tenant")
        for number, tenant in found.items():
            for state, name in _STORED_COUNTS:
                stored, counted = getattr(tenant, name), counts[number, state]
                self._demand(stored == counted, f"tenant {tenant.path!r} has {stored} {name}, not {counted}")
            self._demand(tenant.bytes == sizes[number], f"tenant {tenant.path!r} has {tenant.bytes} bytes")

    def _check_ids(self) -> None:
        found = {row: msgspec.msgpack.decode(value, type=IdRow) for row, value in self._table(keys.IDS).items()}
        holders = {m.id: m.sequence for m in self.messages.values() if m.id}
        named = {row[5:]: known.sequence for row, known in found.items() if not known.is_finished}
        self._demand(named == holders, f"ids name {named}, and are held by {holders}")
        for row, known in found.items():
            m = self.messages.get(known.sequence)
            is_right = m is None if known.is_finished else m is not None and m.id == row[5:]
            self._demand(is_right, f"id {row[5:]!r} names {known.sequence}")

    def _check_lines(self) -> None:
        lined = Counter(m.line for m in self.messages.values() if m.state == LINED)
        heads = {
            row[5:]: msgspec.msgpack.decode(value, type=KeyHead) for row, value in self._table(keys.KEY_HEADS).items()
        }
        self._demand(lined.keys() <= heads.keys(), "a line has no head")
        for line, head in heads.items():
            m = self.messages.get(head.holder)
            self._demand(
                m is not None and m.line == line and m.state not in (LINED, DEAD), f"{head.holder} holds a line"
            )
            self._demand(head.waiting == lined[line], f"{head.waiting} wait behind {head.holder}, not {lined[line]}")


def check_bodies(where: str, store: StateStore, key: ReplicaKey, queue: DurableQueue) -> None:
    """Check that the body of each message is found, whole, and where the store looks for it."""
    found = read_bodies(store, key, queue.messages)
    for sequence, m in queue.messages.items():
        body = found.get(sequence)
        demand(body is not None, "BodiesStay", f"{where}: the body of {sequence} is gone")
        assert body is not None
        is_whole = crc32c(body.body, crc32c(body.position.to_bytes(4, "little"))) == body.checksum
        size = len(body.body) + len(body.headers or b"")
        demand(is_whole and size == m.body_bytes, "BodiesStay", f"{where}: {sequence} has another body")
