"""Compare each byte table of docs/internals with bytes that the code encodes from distinct values.

A table of fields has the columns offset, size, type, field. Rows with a numeric offset are fixed. The others depend on lengths.
"""

import dataclasses
import enum
import importlib
import inspect
import json
import re
import struct
from pathlib import Path
from types import ModuleType

import lmdb
import msgspec
import pytest
from crc32c import crc32c
from raftmq import batch_header, columns, message_block, message_checks, message_headers, queue_batch
from raftmq.broker.base import peer_methods
from raftmq.broker.grpc_port.methods import ROWS
from raftmq.broker.partitions.queue.schedule_plan import ScheduleDefinition
from raftmq.broker.peers import codec as peer_codec
from raftmq.broker.peers import request_frames
from raftmq.broker.peers.codec import FrameType
from raftmq.broker.peers.protocol import Channel, Hello
from raftmq.client.codec import batch as batch_codec
from raftmq.client.codec import codecs
from raftmq.client.codec import queue_batch as queue_codec
from raftmq.fsm.consumer_groups import ConsumerGroupRow, GroupMemberRow
from raftmq.fsm.expiry_clock import ExpiryRow
from raftmq.fsm.group_offsets import GroupOffset
from raftmq.fsm.log_partition import LogPartition, LogScalars
from raftmq.fsm.metadata_tables import ClusterRow, MetadataTables, RetiredUuid
from raftmq.fsm.metadata_views import ConfigView, NodeView, PartitionView, RecoveryView, ReplicaView, TopicView
from raftmq.fsm.producer_names import NamedProducer
from raftmq.fsm.producer_table import CachedBatch, ProducerState
from raftmq.fsm.queue import enqueued
from raftmq.fsm.queue import rows as queue_rows
from raftmq.fsm.queue.commands import Chain
from raftmq.fsm.queue.ids import IdRow
from raftmq.fsm.queue.jobs import JobRow
from raftmq.fsm.queue.key_lines import KeyHead
from raftmq.fsm.queue.message import Message, encode_message
from raftmq.fsm.queue.partition import QueuePartition
from raftmq.fsm.queue.schedules import ScheduleRow
from raftmq.fsm.queue.sessions import Session
from raftmq.fsm.queue.settings import QueueSettings
from raftmq.fsm.queue.state import QueueScalars
from raftmq.fsm.queue.tenants import StoredTenant
from raftmq.fsm.tables import number_key, text_key
from raftmq.proto import queue_pb2 as pb
from raftmq.raft import membership as raft_membership
from raftmq.raft import messages
from raftmq.raft.entry import Entry, EntryKind, LogPosition
from raftmq.raft.hard_state import HardState
from raftmq.raft.membership import Membership, MembershipChange, MembershipOp
from raftmq.storage import entry_codec, registry, registry_codec, replica_codec, state_codec, state_store
from raftmq.storage.checksum import is_intact, seal
from raftmq.storage.lmdb_env import Databases, StateDatabases
from raftmq.storage.log_store import ReplicaKey
from raftmq.storage.replica_codec import CommitNote, Identity, ReplicaMeta
from raftmq.storage.state_codec import StateMeta

ROOT = Path(__file__).resolve().parents[2]
INTERNALS = ROOT / "docs/internals"
FIELDS = ("offset", "size", "type", "field")
SIZES = {"u8": 1, "u32": 4, "u64": 8}
WORDS = {"B": "u8", "H": "u16", "I": "u32", "Q": "u64", "i": "i32", "q": "i64"}


# ---------------------------------------------------------------------------------------------------- reading the pages


def tables(page: str, heading: str) -> list[list[dict[str, str]]]:
    """Return the tables between a heading and the next one, as rows by column name."""
    text = (INTERNALS / page).read_text()
    found = re.search(rf"^#+ {re.escape(heading)}$(.*?)(?=^#+ |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found is not None, f"{page} has no heading {heading!r}"
    blocks = re.findall(r"(?:^\|.*\n)+", found[1] + "\n", re.MULTILINE)
    return [_rows(block.splitlines()) for block in blocks]


def _rows(lines: list[str]) -> list[dict[str, str]]:
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    header, _, *rows = cells
    assert all(len(row) == len(header) for row in rows), header
    return [dict(zip(header, row, strict=True)) for row in rows]


def table(page: str, heading: str, *columns: str) -> list[dict[str, str]]:
    """Return the only table below a heading with exactly these columns."""
    fitting = [rows for rows in tables(page, heading) if tuple(rows[0]) == columns]
    assert len(fitting) == 1, f"{page}, {heading!r}: {len(fitting)} tables with the columns {columns}"
    return fitting[0]


def numbers(page: str, heading: str, columns: tuple[str, ...]) -> dict[str, int]:
    """Return a table of names and numbers."""
    rows = table(page, heading, *columns)
    by_name = {row[columns[0]]: int(row["number"]) for row in rows}
    assert len(by_name) == len(rows)
    return by_name


def layout_of(layout: struct.Struct) -> list[tuple[str, int]]:
    """Return type and size of each field of a struct in the words of the pages. Padding is one field of zeros."""
    order = "be" if layout.format[0] == ">" else ""
    found = []
    for count, code in re.findall(r"(\d*)([A-Za-z])", layout.format):
        if code == "x":
            found.append(("zero", int(count or 1)))
        else:
            found += [(WORDS[code] + order, struct.calcsize(f"<{code}"))] * int(count or 1)
    return found


def check_layout(page: str, heading: str, data: bytes, values: dict[str, int], layout: struct.Struct) -> None:
    """Check that the table's fixed fields are those of the struct, have no gaps, and have these values in `data`."""
    rows = [row for row in table(page, heading, *FIELDS) if row["offset"].isdigit() and row["size"].isdigit()]
    expected = layout_of(layout)
    if len(rows) == len(expected) + 1:
        assert rows[-1]["field"] == "checksum"
        expected.append(("u32", 4))
    at = 0
    fields = {}
    for row, (kind, size) in zip(rows, expected, strict=True):
        assert (int(row["offset"]), int(row["size"])) == (at, size), row["field"]
        assert row["type"] in (kind, "zero"), row["field"]
        raw = data[at : at + size]
        at += size
        if row["type"] == "zero":
            assert raw == bytes(size), row["field"]
        elif row["field"] not in ("checksum", "crc"):
            order = "big" if kind.endswith("be") else "little"
            fields[row["field"]] = int.from_bytes(raw, order, signed=kind.startswith("i"))
    assert fields == values


def distinct(*names: str) -> dict[str, int]:
    """Return a different value for each name, so that fields in the wrong order are noticed. Times are negative, as they may be."""
    return {name: -201 - number if name.endswith("_ms") else 201 + number for number, name in enumerate(names)}


# ------------------------------------------------------------------------------------------------------------ storage.md


def test_a_log_entry() -> None:
    values = distinct("index", "term", "base_offset", "append_time_ms", "record_count") | {
        "payload_bytes": 5,
        "kind": 2,
    }
    entry = Entry(
        values["index"],
        values["term"],
        EntryKind(values["kind"]),
        values["base_offset"],
        values["record_count"],
        values["append_time_ms"],
        b"hello",
    )
    data = entry_codec.encode_entry(entry)
    check_layout("storage.md", "Log entry", data, values, entry_codec.HEADER)
    assert data[entry_codec.HEADER_BYTES :][:5] == b"hello"
    assert len(data) == entry_codec.HEADER_BYTES + 5 + 4
    assert set(entry_codec.RowFields._fields) == {name.replace("index", "entry_index") for name in values}
    key = entry_codec.encode_key(7)
    assert key == (7).to_bytes(8, "big")
    assert is_intact(key[:0] + entry_codec.encode_key(entry.index), data)


def test_kinds_of_entries() -> None:
    rows = table("storage.md", "Log entry", "kind", "number", "payload")
    assert {row["kind"]: int(row["number"]) for row in rows} == {kind.name: kind.value for kind in EntryKind}


def test_a_membership_change() -> None:
    change = MembershipChange(((MembershipOp.REMOVE, 9),), revision=201, is_explicit=True)
    data = raft_membership.encode_change(change)
    values = {"format": 1, "is_explicit": 1, "revision": 201, "step_count": 1}
    check_layout("storage.md", "Membership change", data, values, raft_membership._CHANGE_HEADER)
    assert data[12:] == struct.pack("<BQ", 3, 9)
    assert numbers("storage.md", "Membership change", ("operation", "number")) == {
        op.name: op.value for op in MembershipOp
    }


def test_the_identity_row() -> None:
    data = replica_codec.encode_identity(Identity(1, 201, 202))
    values = {"format_version": 1, "group_id": 201, "replica_id": 202}
    check_layout("storage.md", "Meta row `identity`", data, values, replica_codec._IDENTITY)
    assert len(data) == replica_codec._IDENTITY.size + 4


def membership_of(voters: int, learners: int, outgoing: int, learners_next: int) -> Membership:
    """Return a membership with replica ids 1, 2, 3 … in the order of the four lists."""
    ids = iter(range(1, 100))
    lists = [tuple(next(ids) for _ in range(count)) for count in (voters, learners, outgoing, learners_next)]
    return Membership(lists[0], lists[1], lists[2], lists[3], auto_leave=True, revision=212)


def test_the_replica_row() -> None:
    values = distinct(
        "term",
        "vote",
        "commit_index",
        "position_index",
        "position_term",
        "position_next_offset",
        "position_append_time_ms",
        "last_index",
        "last_next_offset",
        "last_append_time_ms",
        "state_index",
    )
    note = CommitNote(301, 302)
    meta = ReplicaMeta(
        HardState(values["term"], values["vote"], values["commit_index"]),
        LogPosition(*(values[f"position_{name}"] for name in ("index", "term", "next_offset", "append_time_ms"))),
        values["last_index"],
        values["last_next_offset"],
        values["last_append_time_ms"],
        values["state_index"],
        membership_of(4, 3, 2, 1),
    )
    counts = {"voter_count": 4, "learner_count": 3, "outgoing_count": 2, "learners_next_count": 1}
    data = replica_codec.encode_meta(meta, note)
    everything = note._asdict() | values | {"membership_revision": 212, "auto_leave": 1} | counts
    check_layout("storage.md", "Meta row `replica`", data, everything, replica_codec._META)
    assert data[121:-4] == struct.pack("<10Q", *range(1, 11))


def test_databases_and_keys_of_a_replica_file() -> None:
    rows = table("storage.md", "A replica's file", "database", "key", "value")
    assert [row["database"].strip("`") for row in rows] == list(Databases._fields)
    assert re.findall(r"`(\w+)`", rows[1]["key"]) == [
        replica_codec.IDENTITY_KEY.decode(),
        replica_codec.META_KEY.decode(),
    ]


def test_the_state_row() -> None:
    values = distinct(
        *("transaction_id", "state_index", "evacuated_through"),
        *("position_index", "position_term", "position_next_offset", "position_append_time_ms"),
    )
    position = LogPosition(*(values[f"position_{name}"] for name in ("index", "term", "next_offset", "append_time_ms")))
    meta = StateMeta(values["state_index"], membership_of(4, 3, 2, 1), values["evacuated_through"], position)
    counts = {"voter_count": 4, "learner_count": 3, "outgoing_count": 2, "learners_next_count": 1}
    data = state_codec.encode_state_meta(meta, values["transaction_id"])
    everything = values | {"membership_revision": 212, "auto_leave": 1} | counts
    check_layout("storage.md", "Meta row `state`", data, everything, state_codec._META)
    assert data[73:-4] == struct.pack("<10Q", *range(1, 11))


def test_databases_and_keys_of_a_state_file() -> None:
    rows = table("storage.md", "A state file", "database", "key", "value")
    assert [row["database"].strip("`") for row in rows] == list(StateDatabases._fields)
    assert re.findall(r"`(\w+)`", rows[1]["key"]) == [
        replica_codec.IDENTITY_KEY.decode(),
        state_codec.STATE_META_KEY.decode(),
    ]
    tags = {
        row["row"]: int(row["tag"], 16)
        for row in table("storage.md", "A state file", "row", "tag", "key after the tag", "meaning")
    }
    assert tags == {"location": state_store.LOCATION_TAG, "body": state_store.BODY_TAG}
    assert state_store.location_key(1, 2) == bytes([0x20, 0, 0, 0, 1]) + (2).to_bytes(8, "big")
    assert state_store.body_key(2) == b"\x40" + (2).to_bytes(8, "big")


def state_tables() -> list[tuple[list[dict[str, str]], set[int], dict[int, type[msgspec.Struct]]]]:
    partition, metadata = tables("storage.md", "State rows")
    return [
        (
            partition,
            {source.tag for source in LogPartition()._sources},
            {1: LogScalars, 2: ProducerState, 3: GroupOffset, 4: ExpiryRow},
        ),
        (
            metadata,
            {source.tag for source in MetadataTables().sources},
            {1: ClusterRow, 2: NodeView, 3: RetiredUuid, 4: TopicView, 5: PartitionView, 6: NamedProducer}
            | {7: ConsumerGroupRow, 8: GroupMemberRow, 9: ExpiryRow, 10: RecoveryView, 11: ConfigView},
        ),
    ]


def test_tables_of_state_rows() -> None:
    for rows, tags, types in state_tables():
        assert {int(row["tag"]) for row in rows} == tags == set(types)
        for row in rows:
            row_type = types[int(row["tag"])]
            assert tuple(row["fields"].split(", ")) == row_type.__struct_fields__
            assert row["as"] == ("array" if row_type.__struct_config__.array_like else "map")
    text = (INTERNALS / "storage.md").read_text()
    for fields in (CachedBatch._fields, ReplicaView.__struct_fields__):
        assert ", ".join(fields) in text


def test_keys_of_state_rows() -> None:
    assert number_key(2, 513) == bytes([2, 0, 0, 0, 0, 0, 0, 2, 1])
    assert text_key(3, "é") == b"\x03\xc3\xa9"
    partition, metadata = (rows for rows, _, _ in state_tables())
    kinds = {"number": 1, "text": "a"}
    for rows, sources in ((partition, LogPartition()._sources), (metadata, MetadataTables().sources)):
        for row, source in zip(rows, sources, strict=True):
            encode = getattr(source, "_encode_key", None) or getattr(
                getattr(source, "_table", None), "_encode_key", None
            )
            if encode is not None:  # the producers' table contains no Table
                encode(source.tag, kinds[row["key"].split(",")[0]])


def test_the_checksum() -> None:
    assert seal(b"key", b"body")[-4:] == struct.pack("<I", crc32c(b"body", crc32c(b"key")))


def test_the_registry(tmp_path: Path) -> None:
    held = registry.Registry(tmp_path / "node.mdb")
    held.set_identity(uuid="u", node_id=1)
    held.add_replica(ReplicaKey(201, 202))
    held.quarantine(ReplicaKey(201, 202), "bad")
    held.close(is_clean=True)
    with lmdb.open(str(tmp_path / "node.mdb"), subdir=False, readonly=True, lock=False, max_dbs=2) as environment:
        with environment.begin() as transaction:
            names = {bytes(name).decode() for name in transaction.cursor().iternext(values=False)}
        rows = {}
        for name in names:
            database = environment.open_db(name.encode(), create=False)
            with environment.begin(db=database) as transaction:
                rows[name] = [(bytes(key), bytes(value)) for key, value in transaction.cursor()]
    said = table("storage.md", "node.mdb", "database", "key", "value")
    assert {row["database"].strip("`") for row in said} == names
    ((node_key, node_row),) = rows["node"]
    assert f"`{node_key.decode()}`" == said[0]["key"]
    fields = [row["field"].strip("`") for row in table("storage.md", "Fields of the node row", "field", "holds")]
    assert fields == list(json.loads(node_row[:-4]))
    ((replica_key, replica_row),) = rows["replicas"]
    check_layout("storage.md", "Key of a replica row", replica_key, {"group_id": 201, "replica_id": 202}, registry._KEY)
    items = table("storage.md", "Items of a replica row", "item", "field", "holds")
    names_of_items = [row["field"] for row in items]
    assert names_of_items == [field.name for field in dataclasses.fields(registry_codec.ReplicaRow)]
    assert [int(row["item"]) for row in items] == list(range(len(items)))
    assert dict(zip(names_of_items, json.loads(replica_row[:-4]), strict=True)) == {
        "state": "quarantined",
        "reason": "bad",
        "open_in_boot": 0,
        "abnormal_exits": 0,
    }
    assert re.findall(r"`(\w+)`", items[0]["holds"]) == [state.value for state in registry_codec.ReplicaState]


def test_the_batch_header() -> None:
    names = (
        *("flags", "record_count", "raw_body_bytes", "base_timestamp_ms", "max_timestamp_ms"),
        *("producer_id", "producer_epoch", "first_sequence"),
    )
    given = distinct(*names)
    data = batch_header.seal(b"body", codec=3, **given)
    values = given | {"magic": 0x4D52, "version": 1, "codec": 3, "body_bytes": 4}
    check_layout("storage.md", "Batch header", data, values, batch_header._HEADER)
    rows = [row["field"] for row in table("storage.md", "Batch header", *FIELDS)]
    assert tuple(rows) == (*batch_header.BatchHeader._fields, "body")
    assert data[60:64] == struct.pack("<I", crc32c(data[:60] + data[64:]))


def test_codecs() -> None:
    rows = table("storage.md", "Batch header", "codec", "number", "body")
    assert {row["codec"]: int(row["number"]) for row in rows} == {
        name: number for name, number in codecs.CODECS.items() if name is not None
    }


def test_the_batch_body() -> None:
    # two bodies, so that each pair of modes differs in one of them
    encoded = batch_codec.encode_body([b"a", None], [b"k", b"l"], 5, [(), (("h", b"v"),)])
    modes_of_first = {"values_mode": 2, "keys_mode": 1, "timestamps_mode": 0, "headers_mode": 1}
    check_layout("storage.md", "Batch body", encoded.body, modes_of_first, batch_codec._PRELUDE)
    encoded = batch_codec.encode_body([b"a", b"b"], [None, b"k"], [5, 5 + (1 << 32)])
    modes_of_second = {"values_mode": 1, "keys_mode": 2, "timestamps_mode": 2, "headers_mode": 0}
    check_layout("storage.md", "Batch body", encoded.body, modes_of_second, batch_codec._PRELUDE)
    modes = table("storage.md", "Batch body", "mode of", "number", "sections")
    assert [(row["mode of"], int(row["number"])) for row in modes] == [
        ("values, keys", batch_codec.MODE_ALL_NULL),
        ("values, keys", batch_codec.MODE_NONE_NULL),
        ("values, keys", batch_codec.MODE_SOME_NULL),
        ("timestamps", batch_codec.TIMESTAMPS_CONSTANT),
        ("timestamps", batch_codec.TIMESTAMPS_U32),
        ("timestamps", batch_codec.TIMESTAMPS_U64),
        ("headers", batch_codec.HEADERS_NONE),
        ("headers", batch_codec.HEADERS_SOME),
    ]
    # the order of the sections: timestamps, lengths and bytes of the values, then the keys' bitmap
    assert encoded.body[8:] == struct.pack("<QQIIQQIIQ", 0, 1 << 32, 1, 1, 0x6261, 0b10, 0, 1, ord("k"))


# ------------------------------------------------------------------------------------------------------------- queues.md


def check_columns(heading: str, module: ModuleType, known: columns.KnownColumns) -> None:
    """Check that a table lists exactly the columns of a format, in the words of the page."""
    rows = table("queues.md", heading, "number", "column", "cells", "constant", "holds", "default")
    assert [int(row["number"]) for row in rows] == [column.number for column in known.columns] == list(range(len(rows)))
    for row, column in zip(rows, known.columns, strict=True):
        name = row["column"]
        assert getattr(module, name.upper()) is column, name
        prefix = "" if column.cells is columns.Cells.NUMBERS else f"{column.cells.name.lower()}, "
        assert row["cells"] == prefix + WORDS[column.form], name
        assert row["constant"] == ("yes" if column.may_be_constant else "no"), name


def test_the_columns_of_a_message_batch() -> None:
    check_columns("Columns of a batch", queue_batch, queue_batch.COLUMNS)
    kinds = table("queues.md", "Columns of a batch", "kind of time", "number", "value")
    assert [getattr(message_checks, row["kind of time"]) for row in kinds] == [int(row["number"]) for row in kinds]
    body = queue_batch.encode(queue_batch.MessageColumns([b"", b""], priorities=[5, 5]))
    values = {"present": 0b1011, "constant": 0b1001, "columns_bytes": 4 + 8 + 4}
    check_layout("queues.md", "Prelude of columns", body, values, columns.PRELUDE)
    batch = queue_batch.seal_queue_batch(body, message_count=2)
    header = batch_header.parse_header(batch, batch_header.QUEUE_BATCH_MAGIC)
    assert (header.magic, header.codec) == (0x5152, 0)
    assert header.raw_body_bytes == header.body_bytes == len(body)


@pytest.mark.parametrize("is_block", [False, True])
def test_required_columns(is_block: bool) -> None:
    heading = "Columns of a block" if is_block else "Columns of a batch"
    rows = table("queues.md", heading, "number", "column", "cells", "constant", "holds", "default")
    required = [int(row["number"]) for row in rows if row["default"] == "required"]
    assert required == list(range(len(required)))
    read = message_block.unpack_block if is_block else queue_batch.parse_fields
    for number in required:
        with pytest.raises(batch_header.BatchFormatError, match=f"column {number} is left out"):
            read(without_column(number, is_block=is_block))


def without_column(number: int, *, is_block: bool) -> bytes:
    """Return a batch or a block that has only the columns before a required one."""
    known = message_block.COLUMNS if is_block else queue_batch.COLUMNS
    size = sum(struct.calcsize(f"<{column.form}") for column in known.columns[:number])
    section = columns.PRELUDE.pack((1 << number) - 1, 0, size) + bytes(size)
    if not is_block:
        return queue_batch.seal_queue_batch(section, message_count=1)
    head = struct.pack("<I", 1)
    return struct.pack("<I", crc32c(head + section)) + head + section


def test_a_firing() -> None:
    message = queue_batch.encode(queue_batch.MessageColumns([b"body"]))
    payload = queue_batch.encode_firing(b"daily", 201, 202, 203, message)
    values = {"revision": 201, "due_ms": 202, "next_due_ms": 203, "schedule_bytes": 5}
    check_layout("queues.md", "Firing", payload[64:], values, queue_batch._SCHEDULE)
    assert payload[64 + 25 :] == b"daily" + message
    assert batch_header.magic_of(payload) == 0x4652


def test_the_body_and_the_headers_of_a_message() -> None:
    raw = b"x" * 300
    body = queue_codec.compress_body(raw, 2)
    check_layout("queues.md", "Body of a message", body, {"raw_bytes": 300}, queue_batch.RAW_SIZE)
    headers = message_headers.encode_headers((("name", b"value"),))
    assert headers is not None
    values = {"name_bytes": 4, "value_bytes": 5}
    check_layout("queues.md", "Headers of a message", headers, values, message_headers._LENGTHS)
    assert headers[6:] == b"namevalue"


def test_a_message_block() -> None:
    check_columns("Columns of a block", message_block, message_block.COLUMNS)
    block = message_block.MessageBlock([1], [1], [1], [1], [b"body"], [1], [0])
    data = message_block.pack_block(block)
    check_layout("queues.md", "Bytes of a message block", data, {"message_count": 1}, message_block._HEAD)
    assert data[:4] == struct.pack("<I", crc32c(data[4:-4]))
    assert data.endswith(b"body")


def test_tables_of_queue_rows() -> None:
    rows = table("queues.md", "Tables of rows", "tag", "table", "key after the tag", "value")
    tags = {int(row["tag"]): row["table"] for row in rows}
    assert tags == {getattr(queue_rows, name.upper().replace(" ", "_")): name for name in tags.values()}
    sources = {source.tag for source in QueuePartition()._sources}
    others = {queue_rows.SCALARS, queue_rows.SETTINGS, queue_rows.BODIES}
    assert set(tags) == sources | others | set(queue_rows.GENERATION_TAGS)
    generations = {int(row["tag"]) for row in rows if row["key after the tag"].startswith("u32be generation")}
    assert generations == set(queue_rows.GENERATION_TAGS)


def test_fields_of_queue_rows() -> None:
    types: dict[str, type] = {
        "scalars": QueueScalars, "tenant": StoredTenant, "session": Session,
        "schedule definition": ScheduleDefinition, "schedule": ScheduleRow, "job": JobRow,
        "settings": QueueSettings, "message": Message, "key head": KeyHead, "id": IdRow,
    }  # fmt: skip
    for row in table("queues.md", "Fields of rows", "row", "fields", "as"):
        row_type = types.pop(row["row"])
        if issubclass(row_type, msgspec.Struct):
            fields, is_array = row_type.__struct_fields__, row_type.__struct_config__.array_like
        else:
            fields, is_array = row_type._fields, True  # type: ignore[attr-defined]
        assert row["fields"].split(", ") == [field for field in fields if not field.startswith("stored_")]
        assert row["as"] == ("array" if is_array else "map")
    assert not types
    message = Message(*range(1, 8))
    assert len(msgspec.msgpack.decode(encode_message(message))) == len(Message.__struct_fields__) - 2


def test_a_chain() -> None:
    chain = Chain(1, 2, (3,), (4,), (1,))
    batch = queue_batch.seal_queue_batch(queue_batch.encode(queue_batch.MessageColumns([b"body"])), message_count=1)
    command = msgspec.msgpack.encode(chain)
    values = {"magic": 0x4352, "version": 1, "zero": 0, "chain_bytes": len(command)}
    payload = enqueued.encode_chain(chain, batch)
    check_layout("queues.md", "Chain", payload, values, enqueued._CHAIN)
    assert payload[8:] == command + batch


# ----------------------------------------------------------------------------------------------------------- protocol.md


def test_every_rpc_is_in_the_table_and_nothing_else() -> None:
    rows = [rows for rows in tables("protocol.md", "The client protocol") if next(iter(rows[0])) == "RPC"]
    assert len(rows) == 1
    said = [row["RPC"].strip("`") for row in rows[0]]
    methods = [method for service in pb.DESCRIPTOR.services_by_name.values() for method in service.methods]
    assert sorted(said) == sorted(f"{method.containing_service.name}.{method.name}" for method in methods)
    by_name = {row["RPC"].strip("`"): (row["right"], row["answered by"].partition(";")[0]) for row in rows[0]}
    assert by_name == {
        f"{row.method.service.removeprefix('raftmq.v1.')}.{row.method.name}": (row.right.value, row.answered_by.value)
        for row in ROWS
    }
    codes = {code for row in rows[0] for code in re.findall(r"`([A-Z_]+)`", row["errors to expect"])}
    assert codes
    assert codes <= set(pb.ErrorCode.keys())


def test_channels() -> None:
    assert numbers("protocol.md", "The peer protocol", ("channel", "number", "carries")) == {
        channel.name: channel.value for channel in Channel
    }


def test_the_frame() -> None:
    whole = b"".join(map(bytes, peer_codec.frame(FrameType.MESSAGE, [b"bo", b"dy"])))
    values = {"body_length": 4, "frame_type": 12, "body_crc32c": crc32c(b"body")}
    check_layout("protocol.md", "Frame", whole, values, peer_codec.FRAME_HEADER)
    assert whole[peer_codec.FRAME_HEADER.size :] == b"body"


def test_frame_types() -> None:
    assert numbers("protocol.md", "Frame", ("frame", "number", "body")) == {kind.name: kind.value for kind in FrameType}


def test_requests_between_brokers() -> None:
    name, principal = "/raftmq.v1.Admin/CreateTopic", "alice"
    data = b"".join(map(bytes, request_frames.encode_request(301, 302, name, principal, b"message")))
    values = {
        "correlation_id": 301,
        "remaining_ms": 302,
        "method_bytes": len(name),
        "principal_bytes": len(principal),
    }
    check_layout("protocol.md", "Requests between brokers", data, values, request_frames.REQUEST_HEAD)
    assert data[request_frames.REQUEST_HEAD.size :] == f"{name}{principal}message".encode()
    data = b"".join(map(bytes, request_frames.encode_response(301, request_frames.ResponseStatus.ERROR, b"detail")))
    assert data == struct.pack("<QB", 301, 1) + b"detail"
    rows = table("protocol.md", "Requests between brokers", "status", "number", "the message is")
    assert {row["status"]: int(row["number"]) for row in rows} == {
        status.name: status.value for status in request_frames.ResponseStatus
    }


def test_every_request_between_brokers_has_a_row() -> None:
    rows = table("protocol.md", "Requests between brokers", "request", "asked by", "asked of", "effect", "repeated")
    assert {row["request"] for row in rows} == {f"`Peers.{method.name}`" for method in peer_methods.PEER_METHODS}


def test_the_handshake() -> None:
    rows = table("protocol.md", "Handshake", "field", "holds")
    assert tuple(row["field"].strip("`") for row in rows) == Hello.__struct_fields__
    assert not Hello.__struct_config__.array_like


def example_of(message_type: type, kind: int) -> tuple[messages.Message, dict[str, int]]:
    """Return a message with a different value in each field, and the values by field name."""
    values: dict[str, int] = {}
    arguments: dict[str, object] = {}
    for number, field in enumerate(dataclasses.fields(message_type)):
        if field.name == "entries":
            arguments[field.name] = (Entry(211, 212, EntryKind.DATA, 213, 214, -215, b"payload"),)
            values["entry_count"] = 1
        else:
            is_flag = field.name.startswith("is_")
            values[field.name] = arguments[field.name] = (number + kind) % 2 if is_flag else 201 + number
    return message_type(**arguments), values


MESSAGE_TYPES = {
    kind.name: next(
        value
        for name, value in inspect.getmembers(messages, inspect.isclass)
        if name.upper() == kind.name.replace("_", "") and value.__module__ == messages.__name__
    )
    for kind in peer_codec._Kind
}


def test_kinds_of_messages() -> None:
    said = numbers("protocol.md", "Raft message", ("kind", "number", "after the head"))
    assert said == {kind.name: kind.value for kind in peer_codec._Kind}


@pytest.mark.parametrize("variant", [0, 1])
@pytest.mark.parametrize("kind", [kind.name for kind in peer_codec._Kind])
def test_a_message(kind: str, variant: int) -> None:
    message, values = example_of(MESSAGE_TYPES[kind], variant)
    data = b"".join(map(bytes, peer_codec.encode_message(200, message)))
    head_names = ("source", "target", "term")
    head = {"group_id": 200, "kind": peer_codec._Kind[kind]} | {name: values.pop(name) for name in head_names}
    check_layout("protocol.md", "Raft message", data, head, peer_codec._COMMON)
    rows = table("protocol.md", "Raft message", "kind", "number", "after the head")
    (said,) = (row["after the head"] for row in rows if row["kind"] == kind)
    at = peer_codec._COMMON.size
    fields = {}
    for name, kind_of_number in re.findall(r"(\w+) (u\d+)", said):
        fields[name] = int.from_bytes(data[at : at + SIZES[kind_of_number]], "little")
        at += SIZES[kind_of_number]
    assert fields == values
    assert said.endswith("then entries") == (kind == "APPEND_REQUEST") == (at != len(data))
    if kind == "APPEND_REQUEST":
        entry = {
            "index": 211,
            "term": 212,
            "kind": 1,
            "base_offset": 213,
            "record_count": 214,
            "append_time_ms": -215,
            "payload_bytes": 7,
        }
        check_layout("protocol.md", "Entry in an append", data[at:], entry, peer_codec._ENTRY)
        assert data[at + peer_codec._ENTRY.size :] == b"payload"


def test_columns() -> None:
    heartbeats, leadership = table("protocol.md", "Columns", "frame", "columns")
    names = heartbeats["columns"].split(", ")
    columns = peer_codec.HeartbeatColumns()
    columns.add(**{name: 1 + at for at, name in enumerate(names)})
    columns.add(**{name: 101 + at for at, name in enumerate(names)})
    packed = b"".join(map(bytes, columns.encode()))
    expected = [value for at in range(len(names)) for value in (1 + at, 101 + at)]
    assert packed == struct.pack(f"<{len(expected)}Q", *expected)
    assert heartbeats["frame"] == f"{FrameType.HEARTBEATS.name}, {FrameType.HEARTBEAT_RESPONSES.name}"
    assert leadership["frame"] == FrameType.LEADERSHIP.name
    rows = [(1, 2, 3), (11, 12, 13)]  # (group id, term, node id), as `encode_leadership` is called
    assert leadership["columns"] == "group_id, term, node_id"
    assert b"".join(map(bytes, peer_codec.encode_leadership(rows))) == struct.pack("<6Q", 1, 11, 2, 12, 3, 13)


def test_a_snapshot_stream() -> None:
    position = LogPosition(201, 202, 203, -204)
    meta = messages.SnapshotMeta(position, 205, membership_of(1, 2, 1, 0))
    begin = peer_codec.encode_snapshot_begin(206, 207, messages.InstallSnapshot(208, 209, 210, meta), 213)
    data = b"".join(map(bytes, begin))
    values = {
        "stream_id": 206,
        "group_id": 207,
        "snapshot_id": 213,
        "source": 208,
        "target": 209,
        "term": 210,
        "position_index": 201,
        "position_term": 202,
        "position_next_offset": 203,
        "position_append_time_ms": -204,
        "state_index": 205,
        "membership_revision": 212,
        "auto_leave": 1,
    }
    check_layout("protocol.md", "Snapshot stream", data, values, peer_codec._SNAPSHOT_BEGIN)
    lists = struct.pack("<IQ", 1, 1) + struct.pack("<IQQ", 2, 2, 3) + struct.pack("<IQ", 1, 4) + struct.pack("<I", 0)
    assert data[peer_codec._SNAPSHOT_BEGIN.size :] == lists
    rows = b"".join(map(bytes, peer_codec.encode_snapshot_rows(206, [(b"k", b"value")])))
    assert rows == struct.pack("<QII", 206, 1, 5) + b"kvalue"
    assert b"".join(map(bytes, peer_codec.encode_snapshot_end(206, 1))) == struct.pack("<QQ", 206, 1)
    assert b"".join(map(bytes, peer_codec.encode_snapshot_resume(peer_codec.SnapshotResume(206, 213, 7, b"k")))) == (
        struct.pack("<QQQ", 206, 213, 7) + b"k"
    )


# ---------------------------------------------------------------------------------------------------------- every page

UNITS = {"": 1, "bytes": 1, "s": 1, "KiB": 1024, "MiB": 1024**2}
BOUNDS = [
    (page.name, row["value"], row["where"])
    for page in sorted(INTERNALS.glob("*.md"))
    if page.name not in ("simulation-findings.md", "earlier-queues.md")  # about seeds; about other systems
    for row in table(page.name, "Bounds", "value", "where")
]


@pytest.mark.parametrize(("page", "value", "where"), BOUNDS)
def test_a_bound(page: str, value: str, where: str) -> None:
    path, name = where.split()
    module = path.removesuffix(".py").replace("/", ".").removeprefix("api.")
    found: object = importlib.import_module(module if module.startswith("sim.") else f"raftmq.{module}")
    for part in name.split("."):
        found = getattr(found() if inspect.isclass(found) else found, part)
    assert not isinstance(found, enum.Enum)
    number, _, unit = value.partition(" ")
    assert found == pytest.approx(float(number.replace(",", "")) * UNITS[unit]), f"{page}: {where} is {found}"


def test_every_page_of_internals_is_listed() -> None:
    index = (ROOT / "docs/README.md").read_text()
    assert [page.name for page in INTERNALS.glob("*.md") if f"(internals/{page.name})" not in index] == []


def test_links_of_the_pages_lead_to_existing_files() -> None:
    for page in INTERNALS.glob("*.md"):
        for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
            assert (INTERNALS / target).exists(), f"{page.name}: {target}"
