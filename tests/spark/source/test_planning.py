"""Properties of the arithmetic of shares, caps and splits."""

from hypothesis import given
from hypothesis import strategies as st
from raftmq.spark.source.planning import OffsetRange, apportion, cap, gather, split

SIZES = st.lists(st.integers(0, 10_000), max_size=12)


def ranges_of(sizes: list[int]) -> list[OffsetRange]:
    return [OffsetRange("t", 1, number, 7 * number, 7 * number + size) for number, size in enumerate(sizes)]


@given(SIZES, st.integers(0, 50_000), st.integers(0, 1_000))
def test_shares_add_up_and_none_exceeds_its_size(sizes: list[int], total: int, turn: int) -> None:
    shares = apportion(sizes, total, turn)
    assert sum(shares) == min(total, sum(sizes))
    assert all(0 <= share <= size for share, size in zip(shares, sizes, strict=True))


@given(SIZES, st.integers(0, 50_000))
def test_every_partition_with_records_gets_a_share_if_there_are_enough(sizes: list[int], total: int) -> None:
    shares = apportion(sizes, total)
    if total >= sum(size > 0 for size in sizes):
        assert all(share > 0 for share, size in zip(shares, sizes, strict=True) if size > 0)


@given(SIZES, st.integers(1, 50_000))
def test_shares_are_in_proportion(sizes: list[int], total: int) -> None:
    """Each partition gets one record. The rest of a share differs from its exact proportion by less than one."""
    filled = [size for size in sizes if size > 0]
    if not len(filled) < total < sum(filled):
        return
    spare, left = total - len(filled), sum(filled) - len(filled)
    for size, share in zip(sizes, apportion(sizes, total), strict=True):
        if size > 0:
            assert abs((share - 1) * left - spare * (size - 1)) < left


@given(st.lists(st.integers(1, 50), min_size=1, max_size=12), st.integers(1, 12))
def test_every_record_is_read_in_as_few_triggers_as_the_cap_allows(sizes: list[int], rows: int) -> None:
    left = ranges_of(sizes)
    triggers = 0
    while any(range_.count for range_ in left):
        ends = [range_.end for range_ in cap(left, rows)]
        assert sum(ends) - sum(range_.start for range_ in left) == min(rows, sum(range_.count for range_ in left))
        left = [OffsetRange(r.topic, r.topic_id, r.partition, end, r.end) for r, end in zip(left, ends, strict=True)]
        triggers += 1
    assert triggers == -(-sum(sizes) // rows)


def test_a_small_partition_is_not_starved_by_large_ones() -> None:
    """One record is read per trigger, and three partitions grow as fast. The fourth partition is read within four triggers."""
    starts, ends = [0, 0, 0, 0], [100, 100, 100, 1]
    for _ in range(4):
        capped = cap([OffsetRange("t", 1, n, starts[n], ends[n]) for n in range(4)], 1)
        starts = [range_.end for range_ in capped]
        ends = [ends[0] + 1, ends[1] + 1, ends[2] + 1, ends[3]]
    assert starts[3] == 1


@given(SIZES, st.one_of(st.none(), st.integers(1, 200)))
def test_pieces_cover_the_ranges_exactly(sizes: list[int], minimum: int | None) -> None:
    pieces = split(ranges_of(sizes), minimum)
    assert all(piece.count > 0 for piece in pieces)
    for range_ in ranges_of(sizes):
        own = [piece for piece in pieces if piece.partition == range_.partition]
        assert [offset for piece in own for offset in range(piece.start, piece.end)] == list(
            range(range_.start, range_.end)
        )
    filled = sum(size > 0 for size in sizes)
    if minimum is not None:
        assert len(pieces) == max(filled, min(minimum, sum(sizes)))
    else:
        assert len(pieces) == filled


@given(SIZES, st.one_of(st.none(), st.integers(1, 200)), st.integers(1, 1_000))
def test_no_piece_exceeds_the_rows_of_a_task(sizes: list[int], minimum: int | None, rows_max: int) -> None:
    pieces = split(ranges_of(sizes), minimum, rows_max)
    needed = sum(-(-size // rows_max) for size in sizes)
    assert all(0 < piece.count <= rows_max for piece in pieces)
    assert len(pieces) == max(needed, min(minimum or 0, sum(sizes)))
    offsets = [(piece.partition, offset) for piece in pieces for offset in range(piece.start, piece.end)]
    assert offsets == [(r.partition, offset) for r in ranges_of(sizes) for offset in range(r.start, r.end)]


@given(SIZES, st.integers(1, 200), st.one_of(st.none(), st.integers(1, 200)))
def test_tasks_have_all_ranges_in_order_and_enough_rows(sizes: list[int], rows_min: int, rows_max: int | None) -> None:
    pieces = split(ranges_of(sizes), None, rows_max)
    tasks = gather(pieces, rows_min, rows_max)
    assert [range_ for task in tasks for range_ in task] == pieces
    counts = [sum(range_.count for range_ in task) for task in tasks]
    for number, task in enumerate(tasks):
        assert counts[number] - task[-1].count < rows_min, "it ends when it has enough"
        if rows_max is not None:
            assert counts[number] <= rows_max
        if number + 1 < len(tasks) and counts[number] < rows_min:
            assert rows_max is not None
            assert counts[number] + tasks[number + 1][0].count > rows_max


@given(SIZES)
def test_by_default_each_range_has_a_task(sizes: list[int]) -> None:
    pieces = split(ranges_of(sizes), None)
    assert gather(pieces, 1) == [(range_,) for range_ in pieces]


def test_a_large_range_is_cut_more_often() -> None:
    pieces = split([OffsetRange("t", 1, 0, 0, 9_000), OffsetRange("t", 1, 1, 0, 100)], 10)
    assert [piece.partition for piece in pieces].count(0) == 9
    assert {piece.count for piece in pieces} == {1_000, 100}
