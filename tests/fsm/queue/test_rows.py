"""Keys of rows: their bytes can never change, and their order is the order of the numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raftmq.fsm.queue import rows as keys
from raftmq.fsm.queue.message import Message, State, decode_message, encode_message
from raftmq.fsm.queue.windows import BY_DUE, BY_NUMBER, BY_PRIORITY, BY_TIME, BY_TIME_AND_ID, KeyCodec

U64 = st.integers(0, 2**64 - 1)
PRIORITY = st.integers(-(2**31), 2**31 - 1)


def message(state: State) -> Message:
    return Message(
        0x0102030405060708, state, 7, -2, 0x1111, 5, 6, dead_number=9, line=b"0123456789abcdef", expires_at=0x22
    )


@pytest.mark.parametrize(
    ("state", "key"),
    [
        (State.READY, "10 00000003 00000007 7ffffffe 0000000000001111 0102030405060708"),
        (State.DELAYED, "11 00000003 000000000000 0004080c101418 001111 0708"),
        (State.LEASED, "12 00000003 0102030405060708"),
        (State.DEAD, "13 00000003 0000000000000009"),
        (State.LINED, "14 00000003 30313233343536373839616263646566 0102030405060708"),
    ],
)
def test_a_message_has_its_home_by_its_state(state: State, key: str) -> None:
    home = keys.home_key(3, message(state))
    assert home.hex() == key.replace(" ", "")
    assert keys.key_of_location(3, keys.location_value(home)) == home


@given(st.integers(0, 2**63 - 1), U64)
def test_the_key_of_a_delayed_message_names_its_place(due: int, sequence: int) -> None:
    assert BY_DUE.decode(BY_DUE.encode((due, sequence))) == (due, sequence)


def test_keys_of_delayed_messages_are_ordered_by_span_run_due_and_sequence() -> None:
    span, run = 1 << keys.SPAN_BITS, 1 << keys.RUN_BITS
    places = [(5, 1), (5, 2), (7, 0), (span - 1, run - 1), (3, run), (4, run), (3, 9 * run), (span, 0), (span, run)]
    assert sorted(places, key=BY_DUE.encode) == places


def test_keys_of_the_other_tables() -> None:
    assert keys.location_key(3, 5).hex() == "20000000030000000000000005"
    assert keys.expiry_key(3, 4, 5).hex() == "210000000300000000000000040000000000000005"
    assert keys.named_key(keys.IDS, 3, b"id").hex() == "22000000036964"
    assert keys.id_expiry_key(3, 4, b"id").hex() == "230000000300000000000000046964"
    assert keys.named_key(keys.KEY_HEADS, 3, b"0123456789abcdef").hex() == "1500000003" + b"0123456789abcdef".hex()
    assert keys.sequence_of_location(keys.location_key(3, 5)) == 5
    assert keys.id_of_expiry(keys.id_expiry_key(3, 4, b"id")) == (4, b"id")


def test_the_longest_key_stays_below_the_bound_of_lmdb() -> None:
    assert len(keys.id_expiry_key(2**32 - 1, 2**64 - 1, b"i" * 249)) < 511


@pytest.mark.parametrize(
    ("codec", "place"),
    [
        (BY_PRIORITY, st.tuples(PRIORITY, U64, U64)),
        (BY_TIME, st.tuples(U64, U64)),
        (BY_NUMBER, st.tuples(U64)),
        (BY_TIME_AND_ID, st.tuples(U64, st.binary(min_size=1, max_size=9))),
    ],
    ids=["priority", "time", "number", "id"],
)
def test_the_order_of_bytes_is_the_order_of_places(
    codec: KeyCodec, place: st.SearchStrategy[tuple[object, ...]]
) -> None:
    @given(st.lists(place, max_size=12))
    def check(places: list[tuple[object, ...]]) -> None:
        assert [codec.decode(suffix) for suffix in sorted(map(codec.encode, places))] == sorted(places)

    check()


@given(st.binary(min_size=1, max_size=6).filter(lambda prefix: prefix.rstrip(b"\xff")), st.binary(max_size=6))
def test_after_is_the_end_of_a_prefix(prefix: bytes, rest: bytes) -> None:
    assert prefix + rest < keys.after(prefix)
    assert prefix <= keys.after(prefix)[: len(prefix)] != prefix


def test_a_row_has_everything_but_the_bookkeeping_of_the_memory() -> None:
    m = message(State.READY)
    m.id, m.key, m.error, m.progress, m.version = b"i", b"k", "error", "half", 4
    found = decode_message(b"stored under", encode_message(m))
    assert (found.stored_key, found.stored_expiry) == (b"stored under", 0x22)
    found.stored_key, found.stored_expiry = m.stored_key, m.stored_expiry
    assert found == m
    m.stored_key = b"elsewhere"
    assert encode_message(m) == encode_message(found)
