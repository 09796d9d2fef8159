from __future__ import annotations

import random
import subprocess
import sys
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raftmq.spark.sink.rows.row_sorter import RowSorter

rows_lists = st.lists(st.tuples(st.binary(max_size=5), st.integers(-(2**63), 2**63), st.booleans()), max_size=60)


def sorted_by(rows: list[tuple[bytes, int, bool]], memory_bytes: int) -> tuple[list[object], bytes, int]:
    with closing(RowSorter[tuple[bytes, int, bool]](memory_bytes)) as sorter:
        for row in rows:
            sorter.add([row], 10)
        return list(sorter), sorter.digest(), sorter.spilled_runs


@given(rows=rows_lists, memory_bytes=st.sampled_from([1, 2000, 10**9]), seed=st.randoms())
def test_rows_are_sorted_and_their_digest_does_not_depend_on_order_or_memory(rows, memory_bytes, seed):
    shuffled = rows.copy()
    seed.shuffle(shuffled)
    found, digest, _ = sorted_by(rows, 10**9)
    assert found == sorted(rows)
    assert sorted_by(shuffled, memory_bytes)[:2] == (found, digest)


@given(rows=rows_lists, other=rows_lists)
def test_digests_are_equal_exactly_if_the_rows_are(rows, other):
    assert (sorted_by(rows, 10**9)[1] == sorted_by(other, 10**9)[1]) == (sorted(rows) == sorted(other))


def test_rows_beyond_the_memory_limit_are_spilled_to_disk():
    rows = [(random.randbytes(8), n, False) for n in range(5000)]
    found, _, runs = sorted_by(rows, 200_000)
    assert runs == 10  # 410 bytes a row
    assert found == sorted(rows)


def test_the_digest_is_the_same_in_another_process():
    program = (
        "from raftmq.spark.sink.rows.row_sorter import RowSorter\n"
        "s = RowSorter(10**6)\n"
        "for n in range(100): s.add([(b'x' * n, n, n % 2 == 0)], n)\n"
        "print(s.digest().hex())"
    )
    found = {
        subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
        for _ in range(2)
    }
    _, digest, _ = sorted_by([(b"x" * n, n, n % 2 == 0) for n in range(100)], 10**6)
    assert found == {digest.hex() + "\n"}


@pytest.mark.parametrize("memory_bytes", [1, 10**9])
def test_a_sorter_without_rows_is_empty_and_has_a_zero_digest(memory_bytes):
    found, digest, runs = sorted_by([], memory_bytes)
    assert (found, digest, runs) == ([], bytes(40), 0)
