"""The ledger of a redrive: it fits into a stamp, and determines which letters of its stretch wait."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raftmq.client.dead_letters.redrive_ledger import STRETCH_RECORDS, RedriveLedger, stretches
from raftmq.errors import ProtocolError
from raftmq.fsm.producer_names import STAMP_BYTES_MAX

FIRST = 3 * STRETCH_RECORDS
OFFSETS = st.sets(st.integers(FIRST, FIRST + STRETCH_RECORDS - 1), max_size=50)


@given(settled=OFFSETS, chunk=OFFSETS, number=st.integers(0, 2**40))
def test_a_ledger_round_trips(settled: set[int], chunk: set[int], number: int) -> None:
    ledger = RedriveLedger(FIRST, number).with_chunk(chunk).with_settled(settled)
    assert RedriveLedger.decode(ledger.encode(), FIRST) == ledger
    assert ledger.number == number + 1
    assert ledger.chunk_offsets() == sorted(chunk)


def test_the_largest_ledger_fits_a_stamp() -> None:
    everything = range(FIRST, FIRST + STRETCH_RECORDS)
    ledger = RedriveLedger(FIRST, 2**63, group_id=2**63).with_chunk(everything).with_settled(everything)
    assert len(ledger.encode()) <= STAMP_BYTES_MAX
    assert RedriveLedger.decode(ledger.encode(), FIRST) == ledger


@given(settled=OFFSETS, start=st.integers(0, 2 * FIRST), length=st.integers(0, FIRST))
def test_the_settled_count_and_first_waiting_offset_equal_those_of_a_full_search(
    settled: set[int], start: int, length: int
) -> None:
    ledger = RedriveLedger(FIRST).with_settled(settled)
    end = start + length
    assert ledger.settled_count(start, end) == len([offset for offset in settled if start <= offset < end])
    low, high = min(max(start, FIRST), FIRST + STRETCH_RECORDS), FIRST + STRETCH_RECORDS
    assert ledger.first_waiting(low, high) == next((o for o in range(low, high) if o not in settled), high)


def test_stretches_cover_offsets() -> None:
    assert list(stretches(5, 5)) == []
    assert list(stretches(STRETCH_RECORDS - 1, STRETCH_RECORDS + 1)) == [0, STRETCH_RECORDS]
    assert list(stretches(STRETCH_RECORDS, STRETCH_RECORDS + 1)) == [STRETCH_RECORDS]


def test_a_stamp_of_another_version_is_refused() -> None:
    with pytest.raises(ProtocolError, match="another version"):
        RedriveLedger.decode(b"\x07" + bytes(20), 0)
