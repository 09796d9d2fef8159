"""Fetching one range: the order of requests, gaps, and lost records."""

from collections.abc import Callable, Coroutine
from concurrent.futures import Future

import pytest
from raftmq.client.codec.batch import encode_body
from raftmq.errors import (
    CorruptBatchError,
    OffsetOutOfRangeError,
    ProtocolError,
    RequestTimedOutError,
    UnknownTopicError,
)
from raftmq.spark.cluster.leader_poll import Polled
from raftmq.spark.errors import RaftMQSparkWarning, RecordsLostError
from raftmq.spark.source.planning import OffsetRange
from raftmq.spark.source.range_fetch import FetchedBatch, fetch_range, fetch_ranges

BATCH = encode_body([b"v"] * 10, None, 5).seal()


class FakeCluster:
    """A partition with batches of ten records, two in each answer. `start` answers immediately, so nothing waits."""

    def __init__(self, log_start: int = 0, end: int = 100) -> None:
        self.log_start, self.end = log_start, end
        self.asked: list[int] = []
        self.groups: list[int] = []
        """The group that each poll named."""
        self.group_id = 5
        self.kept_end: int | None = None
        """Where the log was kept when the partition got its group."""
        self.error: Exception | None = None
        self.script: list[Polled] = []
        """Answers that are given instead of the partition's until the list is empty."""
        self.hangs_after: int | None = None
        """Number of polls that are answered, if later ones hang."""
        self.hanging: Future[Polled] = Future()

    def start(self, coroutine_of: Callable[[], Coroutine[object, object, Polled]]) -> Future[Polled]:
        if len(self.asked) == self.hangs_after:
            return self.hanging
        future: Future[Polled] = Future()
        coroutine = coroutine_of()
        try:
            coroutine.send(None)
        except StopIteration as done:
            future.set_result(done.value)
        except (UnknownTopicError, OffsetOutOfRangeError, RequestTimedOutError) as error:
            future.set_exception(error)
        return future

    async def poll(
        self, topic: str, topic_id: int, partition: int, offset: int, timeout_seconds: float, read_group_id: int
    ) -> Polled:
        assert (topic, topic_id, partition, timeout_seconds) == ("t", 7, 3, 1.5)
        self.asked.append(offset)
        self.groups.append(read_group_id)
        if self.kept_end is not None and read_group_id not in (0, self.group_id) and offset > self.kept_end:
            raise OffsetOutOfRangeError("lost", log_start_offset=0, kept_end_offset=self.kept_end)
        if self.error is not None:
            raise self.error
        if self.script:
            return self.script.pop(0)
        if offset < self.log_start:
            raise OffsetOutOfRangeError("gone", log_start_offset=self.log_start, high_watermark=self.end)
        bases = list(range(offset - offset % 10, self.end, 10))[:2]
        return Polled(tuple(bases), (BATCH,) * len(bases), (77,) * len(bases), self.group_id)


def polled(*base_offsets: int) -> Polled:
    return Polled(base_offsets, (BATCH,) * len(base_offsets), (77,) * len(base_offsets))


def fetch(cluster: FakeCluster, start: int, end: int, fail: bool = True) -> list[FetchedBatch]:
    range_ = OffsetRange("t", 7, 3, start, end)
    return list(fetch_range(cluster, range_, timeout_ms=1500, fail_on_data_loss=fail))


def offsets(batches: list[FetchedBatch]) -> list[int]:
    return [batch.base_offset + number for batch in batches for number in range(batch.first, batch.end)]


@pytest.mark.parametrize(("start", "end"), [(0, 100), (0, 1), (5, 6), (9, 11), (10, 20), (13, 57), (99, 100), (4, 4)])
def test_exactly_the_requested_range_is_fetched(start: int, end: int) -> None:
    assert offsets(fetch(FakeCluster(), start, end)) == list(range(start, end))


def test_the_next_answer_is_requested_before_the_current_one_is_returned() -> None:
    cluster = FakeCluster()
    batches = fetch_range(cluster, OffsetRange("t", 7, 3, 5, 50), timeout_ms=1500, fail_on_data_loss=True)
    assert cluster.asked == []
    next(batches)
    assert cluster.asked == [5, 20]
    assert offsets(list(batches)) == list(range(10, 50))
    assert cluster.asked == [5, 20, 40]


def test_the_first_polls_of_the_next_ranges_run_while_a_range_is_read() -> None:
    cluster = FakeCluster()
    ranges = [OffsetRange("t", 7, 3, start, start + 5) for start in range(0, 60, 10)]
    fetched = fetch_ranges(cluster, ranges, timeout_ms=1500, fail_on_data_loss=True)
    range_, batches = next(fetched)
    assert cluster.asked == [0, 10, 20, 30]
    assert (range_, offsets(list(batches))) == (ranges[0], list(range(5)))
    range_, batches = next(fetched)
    assert cluster.asked == [0, 10, 20, 30, 40]
    assert (range_, offsets(list(batches))) == (ranges[1], list(range(10, 15)))
    found = [(range_, offsets(list(batches))) for range_, batches in fetched]
    assert found == [(range_, list(range(range_.start, range_.end))) for range_ in ranges[2:]]
    assert cluster.asked == [0, 10, 20, 30, 40, 50]


def test_polls_of_ranges_that_are_not_read_are_cancelled() -> None:
    cluster = FakeCluster()
    cluster.hangs_after = 1
    ranges = [OffsetRange("t", 7, 3, start, start + 5) for start in (0, 10)]
    fetched = fetch_ranges(cluster, ranges, timeout_ms=1500, fail_on_data_loss=True)
    next(fetched)
    fetched.close()
    assert cluster.hanging.cancelled()


def test_closing_the_iterator_cancels_the_open_poll() -> None:
    cluster = FakeCluster()
    cluster.hangs_after = 1
    batches = fetch_range(cluster, OffsetRange("t", 7, 3, 0, 50), timeout_ms=1500, fail_on_data_loss=True)
    next(batches)
    batches.close()
    assert cluster.hanging.cancelled()


def test_records_trimmed_before_they_are_read_are_an_error_or_are_skipped() -> None:
    with pytest.raises(RecordsLostError, match="t/3: offsets 5 to 29 were deleted"):
        fetch(FakeCluster(log_start=30), 5, 50)
    with pytest.warns(RaftMQSparkWarning, match="offsets 5 to 29 were deleted"):
        assert offsets(fetch(FakeCluster(log_start=30), 5, 50, fail=False)) == list(range(30, 50))
    with pytest.warns(RaftMQSparkWarning, match="offsets 5 to 19 were deleted"):
        assert fetch(FakeCluster(log_start=30), 5, 20, fail=False) == []


def test_a_topic_deleted_before_it_is_read_is_an_error_or_is_skipped() -> None:
    cluster = FakeCluster()
    cluster.error = UnknownTopicError("t")
    with pytest.raises(RecordsLostError, match="offsets 5 to 49 are gone with their topic"):
        fetch(cluster, 5, 50)
    with pytest.warns(RaftMQSparkWarning, match="offsets 5 to 49 are gone"):
        assert fetch(cluster, 5, 50, fail=False) == []


@pytest.mark.parametrize("error", [RequestTimedOutError("late"), OffsetOutOfRangeError("above", high_watermark=3)])
@pytest.mark.parametrize("fail", [True, False])
def test_errors_other_than_losses_are_always_raised(error: Exception, fail: bool) -> None:
    cluster = FakeCluster()
    cluster.error = error
    with pytest.raises(type(error)):
        fetch(cluster, 5, 50, fail)


def test_a_damaged_batch_is_named() -> None:
    cluster = FakeCluster()
    cluster.script = [Polled((10,), (BATCH[:-1] + b"?",), (77,))]
    with pytest.raises(CorruptBatchError, match=r"t/3.*CRC32C"):
        fetch(cluster, 10, 20)


def test_a_gap_in_an_answer_is_requested_again() -> None:
    """An answer that begins after the requested offset must not skip records."""
    cluster = FakeCluster()
    cluster.script = [polled(20), polled(0), polled(10, 30), polled(20)]
    assert offsets(fetch(cluster, 0, 30)) == list(range(30))
    assert cluster.asked == [0, 0, 10, 20]


def test_a_broker_that_never_continues_is_an_error() -> None:
    cluster = FakeCluster()
    cluster.script = [polled(20)] * 100
    with pytest.raises(ProtocolError, match="does not continue at offset 10"):
        fetch(cluster, 10, 20)


def test_polls_name_the_group_of_the_answer_before() -> None:
    cluster = FakeCluster()
    range_ = OffsetRange("t", 7, 3, 0, 60, 4)
    assert len(list(fetch_range(cluster, range_, timeout_ms=1500, fail_on_data_loss=True))) == 6
    assert cluster.groups == [4, 5, 5]


def test_a_recovery_in_the_middle_of_a_range_is_an_error_or_is_reported() -> None:
    for fail in (True, False):
        cluster = FakeCluster()
        batches = fetch_range(cluster, OffsetRange("t", 7, 3, 0, 60), timeout_ms=1500, fail_on_data_loss=fail)
        next(batches)
        cluster.group_id, cluster.kept_end = 6, 15
        if fail:
            with pytest.raises(RecordsLostError, match="records from offset 15 on were lost"):
                list(batches)
        else:
            with pytest.warns(RaftMQSparkWarning, match="records from offset 15 on were lost"):
                assert offsets(list(batches)) == list(range(10, 60))
