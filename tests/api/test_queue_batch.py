"""Message batches and firings: round trips against a twin without bytes, golden bytes, damage, limits, hostile claims."""

from __future__ import annotations

import struct
import tracemalloc

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from raftmq import batch_header, queue_batch
from raftmq.batch_header import (
    CODEC_LZ4,
    CODEC_NONE,
    FIRING_MAGIC,
    HEADER_BYTES,
    QUEUE_BATCH_MAGIC,
    BatchFormatError,
    BatchKindError,
    BatchTooLargeError,
    UnsupportedBatchVersionError,
    UnsupportedCodecError,
)
from raftmq.columns import PRELUDE
from raftmq.message_checks import (
    DELAY_MAX_MS,
    HEADERS_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    MESSAGE_COUNT_MAX,
    TIME_AFTER,
    TIME_AT,
    TIME_MAX_MS,
    TIME_NONE,
    BatchLimits,
    Times,
)
from raftmq.queue_batch import (
    NO_NEXT_DUE,
    Firing,
    MessageColumns,
    QueueBodies,
    QueueFields,
    encode,
    encode_firing,
    parse_fields,
    parse_firing,
    seal_queue_batch,
    validate_messages,
    validate_queue,
)

from tests.support.api.messages import filled, filled_times, message_columns

MIB = 1 << 20
LIMITS = BatchLimits()
RICH = MessageColumns(
    bodies=[b"abc", b"", bytes(4) + b"z"],
    codecs=[CODEC_NONE, CODEC_NONE, CODEC_LZ4],
    priorities=[-1, 0, 7],
    due=Times([TIME_NONE, TIME_AFTER, TIME_AT], [0, 5000, 6000]),
    expiry=Times([TIME_AFTER] * 3, [9000] * 3),
    replaces=[1, 0, 0],
    tenants=[b"acme", b"", b"acme"],
    ids=[b"id-1", None, "é".encode()],
    keys=[b"k"] * 3,
    headers=[None, b"hh", None],
)
"""A message of each kind."""


def sealed(messages: MessageColumns, **fields: int) -> bytes:
    return seal_queue_batch(encode(messages), message_count=len(messages.bodies), **fields)


def resealed(body: bytes, count: int) -> bytes:
    """Return a batch whose own CRC is right, whatever its body is."""
    return seal_queue_batch(body, message_count=count)


def assert_equal(fields: QueueFields, messages: MessageColumns) -> None:
    count = len(messages.bodies)
    assert fields.message_count == count
    assert list(fields.body_lengths) == [len(body) for body in messages.bodies]
    assert list(fields.body_checksums) == [
        crc32c(struct.pack("<I", position) + body) for position, body in enumerate(messages.bodies)
    ]
    assert filled(fields.codecs, CODEC_NONE, count) == filled(messages.codecs, CODEC_NONE, count)
    assert filled(fields.priorities, 0, count) == filled(messages.priorities, 0, count)
    assert filled(fields.replaces, 0, count) == filled(messages.replaces, 0, count)
    assert filled_times(fields.due, count) == filled_times(messages.due, count)
    assert filled_times(fields.expiry, count) == filled_times(messages.expiry, count)
    assert fields.tenants.to_list() == filled(messages.tenants, b"", count)
    assert filled(fields.ids, None, count) == filled(messages.ids, None, count)
    assert filled(fields.keys, None, count) == filled(messages.keys, None, count)
    assert filled(fields.headers, None, count) == filled(messages.headers, None, count)


# ---------------------------------------------------------------------------------------------------------- round trips


@given(messages=message_columns(), producer=st.tuples(*[st.integers(0, 2**63)] * 3))
@settings(max_examples=150, deadline=None)
def test_a_batch_unpacks_to_the_messages_that_were_encoded(
    messages: MessageColumns, producer: tuple[int, int, int]
) -> None:
    batch = sealed(messages, producer_id=producer[0], producer_epoch=producer[1], first_sequence=producer[2])

    header, fields = validate_queue(memoryview(batch), len(batch))

    assert header.magic == QUEUE_BATCH_MAGIC
    assert header.record_count == len(messages.bodies)
    assert (header.producer_id, header.producer_epoch, header.first_sequence) == producer
    assert_equal(fields, messages)
    assert parse_fields(batch) == fields
    assert batch[fields.body_start :] == b"".join(messages.bodies)


@given(messages=message_columns())
@settings(deadline=None)
def test_bodies_are_slices_of_the_payload(messages: MessageColumns) -> None:
    batch = sealed(messages)
    bodies = QueueBodies(batch)
    count = len(messages.bodies)
    assert bodies.count == count
    assert [bytes(bodies.body(position)) for position in range(count)] == messages.bodies
    assert filled(bodies.codecs, CODEC_NONE, count) == filled(messages.codecs, CODEC_NONE, count)
    for position in range(count):
        bodies.check_body(position)
        assert bodies.body(position).obj is batch
        assert bodies.checksum(position) == parse_fields(batch).body_checksums[position]


def test_columns_are_left_out_or_constant_where_possible() -> None:
    """A thousand equal messages take four bytes each: the checksum."""
    plain = encode(MessageColumns([b""] * 1000))
    assert len(plain) == PRELUDE.size + 4 + 4 * 1000
    defaults = MessageColumns(
        [b""] * 1000, [0] * 1000, [0] * 1000, Times([0] * 1000, [0] * 1000), Times([0] * 1000, [0] * 1000),
        [0] * 1000, [b""] * 1000, [None] * 1000, [None] * 1000, [None] * 1000,
    )  # fmt: skip
    assert encode(defaults) == plain
    times = Times([TIME_AFTER] * 1000, [5] * 1000)
    equal = encode(
        MessageColumns([b""] * 1000, None, [5] * 1000, times, None, None, [b"t"] * 1000, None, [b"k"] * 1000)
    )
    assert len(equal) == len(plain) + 4 + 1 + 8 + 4 + 2


def test_the_bytes_of_a_small_batch_never_change() -> None:
    """Batches that are on disk must remain readable."""
    columns = b"".join(
        (
            struct.pack("<3I", 3, 0, 5),
            struct.pack("<3I", *(crc32c(struct.pack("<I", n) + body) for n, body in enumerate(RICH.bodies))),
            bytes([0, 0, 1]),
            struct.pack("<3i", -1, 0, 7),
            bytes([0, 1, 2]),
            struct.pack("<3q", 0, 5000, 6000),
            bytes([1]),
            struct.pack("<q", 9000),
            bytes([1, 0, 0]),
            struct.pack("<3H", 0, 1, 0),
            bytes([4, 0, 2]),
            bytes([1]),
            struct.pack("<3I", 0, 2, 0),
            b"\x04\x00acme",
            b"id-1" + "é".encode(),
            b"k",
            b"hh",
        )
    )
    body = struct.pack("<III", 0b1111111111111, 0b0100011000000, len(columns)) + columns + b"abc" + bytes(4) + b"z"
    assert encode(RICH) == body
    header = struct.pack("<HBBIIIIqqQQQ", 0x5152, 1, 0, 0x100, 3, len(body), len(body), 0, 0, 5, 6, 7)
    batch = header + struct.pack("<I", crc32c(header + body)) + body
    assert sealed(RICH, flags=0x100, producer_id=5, producer_epoch=6, first_sequence=7) == batch


def test_a_batch_of_the_first_version_can_be_read() -> None:
    frozen = bytes.fromhex(
        "5251010000000000010000001600000016000000000000000000000000000000"
        "00000000000000000000000000000000000000000000000000000000fb4fc2ad"
        "030000000000000008000000020000009ad2d6536869"
    )
    header, fields = validate_queue(frozen, MIB)
    assert header.record_count == 1
    assert bytes(QueueBodies(frozen).body(0)) == b"hi"
    assert fields == parse_fields(sealed(MessageColumns([b"hi"])))


# --------------------------------------------------------------------------------------------------------------- damage


def test_every_truncation_is_refused() -> None:
    body = encode(RICH)
    batch = resealed(body, 3)
    for size in range(len(batch)):
        with pytest.raises(BatchFormatError):
            validate_queue(batch[:size], MIB)
    for size in range(len(body)):
        cut = resealed(body[:size], 3)
        with pytest.raises(BatchFormatError):
            parse_fields(cut)
        with pytest.raises(BatchFormatError):
            QueueBodies(cut)


def test_every_flipped_bit_is_refused() -> None:
    batch = bytearray(sealed(RICH))
    for bit in range(len(batch) * 8):
        batch[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BatchFormatError):
            validate_queue(batch, MIB)
        batch[bit // 8] ^= 1 << bit % 8


def test_a_flipped_bit_under_a_right_crc_changes_no_body_unnoticed() -> None:
    """Every bit of the columns and bodies is flipped by a producer that seals the result."""
    body = bytearray(encode(RICH))
    survivors = 0
    for bit in range(len(body) * 8):
        body[bit // 8] ^= 1 << bit % 8
        batch = resealed(bytes(body), 3)
        try:
            _, fields = validate_queue(batch, MIB)
        except BatchFormatError:
            pass
        else:
            survivors += 1
            bodies = QueueBodies(batch)
            assert [bytes(bodies.body(position)) for position in range(3)] == RICH.bodies
            assert parse_fields(batch) == fields
        body[bit // 8] ^= 1 << bit % 8
    assert survivors > 0, "flags, priorities or times have bits that mean something else"


@pytest.mark.parametrize("place", ["first", "last"])
def test_a_damaged_body_is_named(place: str) -> None:
    batch = bytearray(sealed(MessageColumns([b"abc", b"def"])))
    bodies = QueueBodies(bytes(batch))
    batch[-4 if place == "first" else -1] ^= 1
    damaged = QueueBodies(bytes(batch))
    position = 0 if place == "first" else 1
    bodies.check_body(position)
    damaged.check_body(1 - position)
    with pytest.raises(BatchFormatError, match=f"position {position} "):
        damaged.check_body(position)
    with pytest.raises(BatchFormatError, match=f"position {position} "):
        validate_queue(resealed(bytes(batch[HEADER_BYTES:]), 2), MIB)


def test_a_body_in_the_place_of_another_is_noticed() -> None:
    """Equal bodies have different checksums at different positions."""
    bodies = QueueBodies(sealed(MessageColumns([b"abc", b"abc"])))
    with pytest.raises(BatchFormatError):
        queue_batch.check_body(bodies.body(0), 1, bodies.checksum(0))


@pytest.mark.parametrize("position", [-1, MESSAGE_COUNT_MAX, 2**32 - 1])
def test_a_position_outside_of_any_batch_is_refused(position: int) -> None:
    with pytest.raises(BatchFormatError):
        queue_batch.check_body(b"", position, 0)


# --------------------------------------------------------------------------------------------------------------- limits


def changed(**columns: object) -> MessageColumns:
    return MessageColumns([b"a", b"b"])._replace(**columns)


REFUSED = {
    "tenant, empty level": (changed(tenants=[b"a", b"a..b"]), "position 1.*empty level"),
    "tenant, first level empty": (changed(tenants=[b".a", b""]), "position 0.*empty level"),
    "tenant, too deep": (changed(tenants=[b"", b".".join([b"a"] * 9)]), "position 1.*9 levels"),
    "tenant, too long": (changed(tenants=[b"t" * 250, b""]), "position 0.*250 bytes"),
    "tenant, not UTF-8": (changed(tenants=[b"a", b"\xff"]), "position 1.*UTF-8"),
    "id, too long": (changed(ids=[None, b"i" * 250]), "position 1.*250 bytes"),
    "id, not UTF-8": (changed(ids=[b"\xc3", b"\xa9"]), "position 0.*UTF-8"),
    "key, too long": (changed(keys=[b"k" * 250, None]), "position 0.*250 bytes"),
    "delay, negative": (changed(due=Times([0, 1], [0, -1])), "position 1.*-1 ms"),
    "delay, too long": (changed(due=Times([1, 1], [DELAY_MAX_MS + 1, 0])), f"position 0.*{DELAY_MAX_MS + 1} ms"),
    "time, too late": (changed(expiry=Times([0, 2], [0, TIME_MAX_MS + 1])), "position 1.*an expiry"),
    "time without kind": (changed(expiry=Times([1, 0], [1, 1])), "position 1.*an expiry"),
    "time, unknown kind": (changed(due=Times([0, 3], [0, 0])), "position 1.*kind 3"),
    "replace, not a flag": (changed(replaces=[0, 2], ids=[b"a", b"b"]), "position 1.*flag 2"),
    "replace without ids": (changed(replaces=[1, 0]), "position 0.*no id"),
    "replace without an id": (changed(replaces=[1, 1], ids=[b"a", None]), "position 1.*no id"),
    "headers, too large": (changed(headers=[None, bytes(HEADERS_BYTES_MAX + 1)]), "position 1.*headers"),
    "message, too large": (changed(bodies=[b"", bytes(MIB + 1)]), f"position 1.*{MIB + 1} bytes"),
    "message with headers, too large": (changed(bodies=[b"", bytes(MIB)], headers=[None, b"h"]), "position 1"),
    "codec, unknown": (changed(codecs=[0, 5]), "position 1.*codec 5"),
    "compressed without a size": (changed(codecs=[0, 1]), "position 1.*raw size"),
    "compressed from too much": (
        changed(bodies=[b"", struct.pack("<I", MESSAGE_BYTES_MAX + 1)], codecs=[0, 1]),
        f"position 1.*{MESSAGE_BYTES_MAX + 1} bytes",
    ),
}  # fmt: skip


def packed_without_checks(monkeypatch: pytest.MonkeyPatch, messages: MessageColumns) -> bytes:
    """Encode as a producer that checks nothing."""
    with monkeypatch.context() as patch:
        for name in ("check_count", "check_sizes", "_check_columns", "check_tenants", "_check_codecs"):
            patch.setattr(queue_batch, name, lambda *_: None)
        return encode(messages)


@pytest.mark.parametrize("defect", REFUSED)
def test_a_defect_is_refused_before_encoding_and_before_proposing(defect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    messages, reason = REFUSED[defect]
    with pytest.raises(BatchFormatError, match=reason):
        encode(messages)
    batch = resealed(packed_without_checks(monkeypatch, messages), 2)
    with pytest.raises(BatchFormatError, match=reason):
        validate_queue(batch, 2 * MIB + 1000)


@pytest.mark.parametrize(("column", "cell"), [("ids", b""), ("keys", b""), ("priorities", 2**31)])
def test_what_has_no_encoding_is_refused_before_encoding(column: str, cell: object) -> None:
    filler = 0 if column == "priorities" else b"x"
    with pytest.raises(BatchFormatError, match="position 1"):
        encode(changed(**{column: [filler, cell]}))


def test_the_largest_allowed_messages_pass() -> None:
    messages = MessageColumns(
        bodies=[bytes(MIB - HEADERS_BYTES_MAX), struct.pack("<I", MESSAGE_BYTES_MAX)],
        codecs=[0, 1],
        priorities=[2**31 - 1, -(2**31)],
        due=Times([1, 2], [DELAY_MAX_MS, TIME_MAX_MS]),
        expiry=Times([2, 1], [TIME_MAX_MS, DELAY_MAX_MS]),
        replaces=[1, 1],
        tenants=[b"t" * 249, b".".join([b"a"] * 8)],
        ids=[b"i" * 249, ("é" * 124).encode()],
        keys=[b"k" * 249, b"\xff"],
        headers=[bytes(HEADERS_BYTES_MAX), None],
    )
    _, fields = validate_queue(sealed(messages), 2 * MIB)
    assert_equal(fields, messages)


@pytest.mark.parametrize("count", [0, MESSAGE_COUNT_MAX + 1])
def test_a_count_outside_the_limit_is_refused(count: int) -> None:
    with pytest.raises(BatchTooLargeError):
        encode(MessageColumns([b""] * count))
    body = encode(MessageColumns([b""]))
    for read in (lambda batch: validate_queue(batch, MIB), parse_fields, QueueBodies):
        with pytest.raises(BatchFormatError):
            read(resealed(body, count))


def test_limits_of_a_topic_are_lower_or_ignored() -> None:
    messages = MessageColumns([b"abcd"] * 3)
    batch = sealed(messages)
    validate_queue(batch, MIB, BatchLimits(4, 3))
    with pytest.raises(BatchTooLargeError):
        validate_queue(batch, MIB, BatchLimits(3, 3))
    with pytest.raises(BatchTooLargeError):
        validate_queue(batch, MIB, BatchLimits(4, 2))
    with pytest.raises(BatchTooLargeError):
        encode(MessageColumns([bytes(MESSAGE_BYTES_MAX + 1)]), BatchLimits(1 << 30, 1 << 20))
    with pytest.raises(BatchTooLargeError):
        encode(MessageColumns([b""] * (MESSAGE_COUNT_MAX + 1)), BatchLimits(1 << 30, 1 << 20))


def test_a_batch_above_the_topics_bytes_is_refused() -> None:
    batch = sealed(RICH)
    validate_queue(batch, len(batch))
    with pytest.raises(BatchTooLargeError):
        validate_queue(batch, len(batch) - 1)


# ----------------------------------------------------------------------------------------------------- headers and kinds


def header_of(body: bytes, **fields: int) -> bytes:
    values = {"record_count": 1, "raw_body_bytes": len(body), "base_timestamp_ms": 0, "max_timestamp_ms": 0}
    return batch_header.seal(body, **(values | {"magic": QUEUE_BATCH_MAGIC} | fields))


@pytest.mark.parametrize(
    "field", [{"codec": 1}, {"raw_body_bytes": 1}, {"base_timestamp_ms": 1}, {"max_timestamp_ms": 1}]
)
def test_header_fields_without_a_meaning_are_refused(field: dict[str, int]) -> None:
    body = encode(MessageColumns([b"hi"]))
    validate_queue(header_of(body), MIB)
    with pytest.raises(BatchFormatError):
        validate_queue(header_of(body, **field), MIB)


def test_a_batch_of_the_wrong_kind_is_named() -> None:
    log = header_of(b"records", magic=batch_header.BATCH_MAGIC)
    queue = sealed(RICH)
    firing = encode_firing(b"s", 1, 2, 3, encode(MessageColumns([b"hi"])))
    with pytest.raises(BatchKindError, match="this is a message batch of a queue topic"):
        batch_header.validate(queue, MIB)
    with pytest.raises(BatchKindError, match="this is a record batch of a log topic"):
        validate_queue(log, MIB)
    for validate in (lambda batch: validate_queue(batch, MIB), lambda batch: batch_header.validate(batch, MIB)):
        with pytest.raises(BatchKindError, match="this is a schedule's firing"):
            validate(firing)
    with pytest.raises(BatchFormatError, match="but this begins with 0x0000"):
        parse_fields(bytes(100))
    with pytest.raises(BatchKindError, match="this is a message batch"):
        parse_firing(queue)
    with pytest.raises(BatchKindError, match="this is a record batch"):
        QueueBodies(log)


def test_a_newer_version_is_told_apart_from_damage() -> None:
    batch = sealed(RICH)
    newer = batch[:2] + b"\x02" + batch[3:]
    body = encode(MessageColumns([b"hi"]))
    unknown_column = resealed(struct.pack("<I", 3 | 1 << 13) + body[4:], 1)
    for data in (newer, unknown_column):
        for read in (lambda batch: validate_queue(batch, MIB), parse_fields):
            with pytest.raises(UnsupportedBatchVersionError):
                read(data)
    with pytest.raises(UnsupportedBatchVersionError):
        QueueBodies(newer)
    assert bytes(QueueBodies(unknown_column).body(0)) == b"hi", "bodies do not depend on other columns"


def test_an_unknown_codec_has_its_error() -> None:
    with pytest.raises(UnsupportedCodecError):
        encode(MessageColumns([bytes(4)], codecs=[5]))


# ------------------------------------------------------------------------------------------------------- hostile claims

PREFIX = struct.pack("<II", 1, crc32c(bytes(4) + b"x"))
HOSTILE = {
    "no prelude": b"",
    "columns beyond the end": struct.pack("<III", 3, 0, 2**32 - 1) + PREFIX + b"x",
    "no lengths": struct.pack("<III", 2, 0, 4) + PREFIX[4:] + b"x",
    "no checksums": struct.pack("<III", 1, 0, 4) + PREFIX[:4] + b"x",
    "constant checksums": struct.pack("<III", 3, 2, 8) + PREFIX + b"x",
    "constant and absent": struct.pack("<III", 3, 8, 8) + PREFIX + b"x",
    "a length beyond the end": struct.pack("<IIIII", 3, 0, 8, 2**32 - 1, 0) + b"x",
    "a length below the end": struct.pack("<IIIII", 3, 0, 8, 0, 0) + b"x",
    "bytes after the columns": struct.pack("<III", 3, 0, 9) + PREFIX + b"?x",
    "a column cut off": struct.pack("<III", 3 | 1 << 3, 0, 9) + PREFIX + b"?x",
    "due kinds without times": struct.pack("<III", 3 | 1 << 4, 0, 9) + PREFIX + b"\0x",
    "due times without kinds": struct.pack("<III", 3 | 1 << 5, 0, 16) + PREFIX + bytes(8) + b"x",
    "tenants without names": struct.pack("<III", 3 | 1 << 9, 0, 10) + PREFIX + bytes(2) + b"x",
    "65,536 tenants": struct.pack("<III", 3 | 1 << 9, 0, 10) + PREFIX + b"\xff\xff" + b"x",
    "a tenant of no message": struct.pack("<III", 3 | 1 << 9, 0, 14) + PREFIX + b"\1\0\1\1ab" + b"x",
    "a constant tenant of no message": struct.pack("<III", 3 | 1 << 9, 1 << 9, 14) + PREFIX + b"\1\0\1\1ab" + b"x",
    "a tenant beyond the end": struct.pack("<III", 3 | 1 << 9, 0, 12) + PREFIX + b"\0\0\2a" + b"x",
    "a key beyond the end": struct.pack("<III", 3 | 1 << 11, 0, 9) + PREFIX + b"\xffx",
    "a constant key beyond the end": struct.pack("<III", 3 | 1 << 11, 1 << 11, 9) + PREFIX + b"\xffx",
    "headers beyond the end": struct.pack("<III", 3 | 1 << 12, 0, 12) + PREFIX + b"\xff\xff\xff\xffx",
}


@pytest.mark.parametrize("claim", HOSTILE)
def test_a_hostile_claim_is_refused(claim: str) -> None:
    batch = resealed(HOSTILE[claim], 1)
    with pytest.raises(BatchFormatError):
        validate_queue(batch, MIB)
    with pytest.raises(BatchFormatError):
        parse_fields(batch)


def test_the_frame_of_the_hostile_claims_is_right() -> None:
    body = struct.pack("<III", 3, 0, 8) + PREFIX + b"x"
    assert body == encode(MessageColumns([b"x"]))


def test_equal_tenants_are_one_tenant() -> None:
    """Limits of distinct tenants count names, so no name may be there twice."""
    names = struct.pack("<2H2B2s", 0, 1, 1, 1, b"aa")
    columns = struct.pack("<4I", 0, 0, crc32c(bytes(4)), crc32c(b"\1\0\0\0")) + names
    with pytest.raises(BatchFormatError, match="distinct"):
        parse_fields(resealed(struct.pack("<III", 3 | 1 << 9, 0, len(columns)) + columns, 2))


@pytest.mark.parametrize("claim", HOSTILE)
def test_a_hostile_claim_takes_no_memory(claim: str) -> None:
    batch = resealed(HOSTILE[claim], MESSAGE_COUNT_MAX)

    def refuse() -> None:
        with pytest.raises(BatchFormatError):
            parse_fields(batch)

    refuse()
    tracemalloc.start()
    try:
        refuse()
        assert tracemalloc.get_traced_memory()[1] < 64 * 1024
    finally:
        tracemalloc.stop()


# --------------------------------------------------------------------------------------------------------------- firings


@given(
    messages=message_columns(count_max=1),
    schedule=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20),
    revision=st.integers(0, 2**64 - 1),
    due=st.integers(0, TIME_MAX_MS - 1),
    data=st.data(),
)
@settings(deadline=None)
def test_a_firing_unpacks_to_what_was_encoded(
    messages: MessageColumns, schedule: str, revision: int, due: int, data: st.DataObject
) -> None:
    next_due = data.draw(st.just(NO_NEXT_DUE) | st.integers(due + 1, TIME_MAX_MS))
    message = encode(messages)

    payload = encode_firing(schedule.encode(), revision, due, next_due, message)

    header = batch_header.validate(payload, MIB, FIRING_MAGIC)
    assert (header.record_count, header.producer_id) == (1, 0)
    firing = parse_firing(memoryview(payload))
    assert firing[:4] == (schedule.encode(), revision, due, next_due)
    assert_equal(firing.fields, messages)
    bodies = QueueBodies(payload)
    assert bytes(bodies.body(0)) == messages.bodies[0]
    bodies.check_body(0)


def test_the_bytes_of_a_firing_never_change() -> None:
    message = encode(MessageColumns([b"hi"]))
    body = struct.pack("<QqqB", 7, 1000, 2000, 3) + b"day" + message
    header = struct.pack("<HBBIIIIqqQQQ", 0x4652, 1, 0, 0, 1, len(body), len(body), 0, 0, 0, 0, 0)
    payload = header + struct.pack("<I", crc32c(header + body)) + body
    assert encode_firing(b"day", 7, 1000, 2000, message) == payload
    assert parse_firing(payload)[:4] == Firing(b"day", 7, 1000, 2000, parse_firing(payload).fields)[:4]


@pytest.mark.parametrize(
    ("schedule", "due", "next_due"),
    [
        (b"", 1, 2), (b"s" * 250, 1, 2), (b"\xff", 1, 2), (b"s", -1, 2), (b"s", TIME_MAX_MS + 1, -1),
        (b"s", 2, 2), (b"s", 2, 1), (b"s", 2, -2), (b"s", 2, TIME_MAX_MS + 1),
    ],
)  # fmt: skip
def test_a_firing_that_contradicts_itself_is_refused(schedule: bytes, due: int, next_due: int) -> None:
    message = encode(MessageColumns([b"hi"]))
    with pytest.raises(BatchFormatError):
        encode_firing(schedule, 1, due, next_due, message)
    body = struct.pack("<QqqB", 1, due, next_due, len(schedule)) + schedule + message
    with pytest.raises(BatchFormatError):
        parse_firing(header_of(body, magic=FIRING_MAGIC))


def test_every_truncation_of_a_firing_is_refused() -> None:
    body = encode_firing(b"day", 7, 1000, 2000, encode(MessageColumns([b"hi"])))[HEADER_BYTES:]
    for size in range(len(body)):
        payload = header_of(body[:size], magic=FIRING_MAGIC)
        for read in (parse_firing, QueueBodies):
            with pytest.raises(BatchFormatError):
                read(payload)


def test_a_firing_has_one_message() -> None:
    body = struct.pack("<QqqB", 1, 2, 3, 1) + b"s" + encode(MessageColumns([b"a", b"b"]))
    with pytest.raises(BatchFormatError, match="one message"):
        parse_firing(header_of(body, magic=FIRING_MAGIC, record_count=2))


def test_the_message_of_a_schedule_is_checked_alone() -> None:
    message = encode(MessageColumns([b"hi"], priorities=[3]))
    assert validate_messages(message, 0, 1, LIMITS).priorities == (3,)
    with pytest.raises(BatchTooLargeError):
        validate_messages(message, 0, 1, BatchLimits(1))
    with pytest.raises(BatchFormatError):
        validate_messages(message[:-1] + b"?", 0, 1, LIMITS)
    with pytest.raises(BatchFormatError):
        validate_messages(message, 0, 2, LIMITS)
