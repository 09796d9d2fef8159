"""Check the rows of a queue partition against each other, and against the twin."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec
from raftmq.fsm.queue import rows as keys
from raftmq.fsm.queue.ids import IdRow
from raftmq.fsm.queue.jobs import JobRow
from raftmq.fsm.queue.key_lines import KeyHead, line_of
from raftmq.fsm.queue.message import DEAD, DELAYED, LEASED, LINED, READY, Message, decode_message
from raftmq.fsm.queue.schedules import ScheduleRow
from raftmq.fsm.queue.sessions import Session
from raftmq.fsm.queue.state import QueueScalars
from raftmq.fsm.queue.tenants import StoredTenant
from raftmq.fsm.queue.windows import Key, Window
from raftmq.fsm.tables import Row, number_of_key

from tests.support.fsm.queue.host import QueueHost
from tests.support.fsm.queue.twin import STATE_NUMBERS, Twin, as_fields

HOME_TAGS = {
    keys.READY_ROWS: READY,
    keys.DELAYED_ROWS: DELAYED,
    keys.LEASED_ROWS: LEASED,
    keys.DEAD_ROWS: DEAD,
    keys.LINE_ROWS: LINED,
}


class State:
    """All rows of a partition, decoded. Rows of older generations are left out: they do not exist."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.rows = dict(rows)
        scalars = self.rows.get(b"\x01" + bytes(8))
        self.scalars = QueueScalars() if scalars is None else msgspec.msgpack.decode(scalars, type=QueueScalars)
        generation = self.scalars.generation.to_bytes(4, "big")
        self.live = {
            key: value
            for key, value in self.rows.items()
            if key[0] not in keys.GENERATION_TAGS or key[1:5] == generation
        }
        self.messages: dict[int, Message] = {}
        for key, value in self.live.items():
            if key[0] in HOME_TAGS:
                message = decode_message(key, value)
                assert message.sequence not in self.messages, "a message has one home row"
                assert message.state == HOME_TAGS[key[0]]
                assert keys.home_key(self.scalars.generation, message) == key
                self.messages[message.sequence] = message

    def table(self, tag: int) -> dict[bytes, bytes]:
        return {key: value for key, value in self.live.items() if key[0] == tag}

    def named(self, tag: int) -> dict[bytes, bytes]:
        return {key[5:]: value for key, value in self.table(tag).items()}

    def tenants(self) -> dict[int, StoredTenant]:
        return {
            int.from_bytes(key[1:], "big"): msgspec.msgpack.decode(value, type=StoredTenant)
            for key, value in self.table(keys.TENANTS).items()
        }


def recount(state: State) -> None:
    """Compare every stored count and every index with the messages."""
    generation, messages = state.scalars.generation, state.messages.values()
    counts = Counter((m.tenant, m.state) for m in messages)
    sizes = Counter({0: 0})
    for m in messages:
        sizes[m.tenant] += m.body_bytes
    tenants = state.tenants()
    purge = state.scalars
    for number, tenant in tenants.items():
        if purge.purge_cursor <= number < purge.purge_end and tenant.purged_in != purge.generation:
            assert not any(counts[number, one] for one in (READY, DELAYED, LEASED, DEAD, LINED)), tenant
            continue  # a purge goes on, and has not visited it
        stored = [tenant.ready, tenant.delayed, tenant.leased, tenant.dead, tenant.lined, tenant.bytes]
        assert stored == [*(counts[number, one] for one in (READY, DELAYED, LEASED, DEAD, LINED)), sizes[number]], (
            tenant
        )
    assert {m.tenant for m in messages} <= tenants.keys()
    scalars = state.scalars
    assert scalars.delayed_count == sum(m.state == DELAYED for m in messages)
    assert scalars.dead_count == sum(m.state == DEAD for m in messages)
    assert scalars.dead_bytes == sum(m.body_bytes for m in messages if m.state == DEAD)
    assert scalars.expiring_count == sum(m.expires_at > 0 for m in messages)
    assert state.table(keys.LOCATIONS) == {
        keys.location_key(generation, m.sequence): keys.location_value(keys.home_key(generation, m)) for m in messages
    }
    assert state.table(keys.EXPIRY_ROWS).keys() == {
        keys.expiry_key(generation, m.expires_at, m.sequence) for m in messages if m.expires_at
    }
    ids = {name: msgspec.msgpack.decode(value, type=IdRow) for name, value in state.named(keys.IDS).items()}
    ends = {keys.id_expiry_key(generation, row.until, id_) for id_, row in ids.items() if row.is_finished}
    assert state.table(keys.ID_EXPIRY_ROWS).keys() == ends
    assert scalars.ending_ids == len(ends)
    heads = {name: msgspec.msgpack.decode(value, type=KeyHead) for name, value in state.named(keys.KEY_HEADS).items()}
    lined = Counter(m.line for m in messages if m.state == LINED)
    assert {line: head.waiting for line, head in heads.items() if head.waiting} == lined
    assert not state.table(keys.BODIES)


def check_windows(host: QueueHost) -> None:
    """Compare the windows of a machine with everything that exists: its disk under its memory."""
    store = host.machine.state.store
    gone = store.gone.keys() | store._frozen_gone
    stored = [decode_message(key, value) for key, value in host.disk.rows.items() if _is_home(key, store.generation)]
    exist = {m.sequence: m for m in stored if m.sequence not in gone} | store.messages
    places: dict[tuple[int, object], set[Key]] = {}
    for m in exist.values():
        name, key = _place(m)
        places.setdefault(name, set()).add(key)
    windows: dict[tuple[int, object], Window] = {(READY, tenant): window for tenant, window in store.ready.items()}
    windows |= {(LINED, line): window for line, window in store.lines.items()}
    windows[DELAYED, 0] = store.delayed
    for name, window in windows.items():
        inside = {key for key in window.heap if window.is_valid(key)}
        assert inside == {key for key in places.get(name, ()) if key <= window.fence}
    kept = {key[-1] for window in windows.values() for key in (*window.heap, *window.beyond)}
    waiting = {m.sequence for m in store.messages.values() if m.state in (READY, DELAYED, LINED)}
    assert waiting <= kept, "a message in memory that no window knows is lost"


def _place(m: Message) -> tuple[tuple[int, object], Key]:
    """Return the window to which a message belongs, and its key there. Leased and dead ones have windows of no use."""
    if m.state == READY:
        return (READY, m.tenant), (m.priority, m.due, m.sequence)
    if m.state == LINED:
        return (LINED, m.line), (m.sequence,)
    return (m.state, 0), (m.due, m.sequence)


def _is_home(key: bytes, generation: int) -> bool:
    return key[0] in HOME_TAGS and key[1:5] == generation.to_bytes(4, "big")


def compare(state: State, twin: Twin) -> None:
    """Compare all rows with the twin."""
    paths = {number: tenant.path for number, tenant in state.tenants().items()}
    found = {m.sequence: _fields(m, paths) for m in state.messages.values()}
    expected = {
        m.sequence: as_fields(m) | {"state": STATE_NUMBERS[m.state], "line": line_of(*m.line) if m.line else b""}
        for m in twin.messages.values()
    }
    assert found == expected
    scalars = state.scalars
    assert (scalars.copied_dead, scalars.copy_epoch, scalars.copy_first) == (
        twin.copied_dead, twin.copy_epoch, twin.copy_first,
    )  # fmt: skip
    assert (scalars.copy_topic, scalars.copy_partition) == twin.copy_target
    assert scalars.next_dead == twin.next_dead
    assert scalars.leases_ended_through == twin.leases_ended_through
    ids = {name: msgspec.msgpack.decode(value, type=IdRow) for name, value in state.named(keys.IDS).items()}
    assert {id_: (row.sequence, row.until, row.is_finished) for id_, row in ids.items()} == {
        id_: (one.sequence, one.until, one.is_finished) for id_, one in twin.ids.items()
    }
    heads = {name: msgspec.msgpack.decode(value, type=KeyHead) for name, value in state.named(keys.KEY_HEADS).items()}
    assert {line: head.holder for line, head in heads.items()} == {
        line_of(*line): holder for line, holder in twin.holders.items()
    }
    sessions = {
        number_of_key(key): msgspec.msgpack.decode(value, type=Session)
        for key, value in state.table(keys.SESSIONS).items()
    }
    assert {number: (one.active_at, dict(one.requests)) for number, one in sessions.items()} == {
        number: (one.active_at, one.requests) for number, one in twin.sessions.items()
    }
    jobs = [msgspec.msgpack.decode(value, type=JobRow) for value in state.table(keys.JOBS).values()]
    assert [(one.cursor, one.through, one.done_count) for one in jobs] == [
        (one.cursor, one.through, one.done) for _, one in sorted(twin.jobs.items())
    ]
    schedules = {
        key[1:].decode(): msgspec.structs.astuple(msgspec.msgpack.decode(value, type=ScheduleRow))
        for key, value in state.table(keys.SCHEDULES).items()
    }
    assert schedules == {name: tuple(vars(one).values()) for name, one in twin.schedules.items()}


def _fields(m: Message, paths: dict[int, str]) -> dict[str, object]:
    fields = msgspec.structs.asdict(m)
    del fields["stored_key"], fields["stored_expiry"]
    return fields | {"tenant": paths[m.tenant]}
