"""Fetching one range: what is asked for, in which order, and what happens when it is gone."""

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
from raftmq.spark.errors import RaftMQSparkWarning, RecordsLostError
from raftmq.spark.leader_poll import Polled
from raftmq.spark.planning import OffsetRange
from raftmq.spark.range_fetch import FetchedBatch, fetch_range

BATCH = encode_body([b"v"] * 10, None, 5).seal()


class FakeCluster:
    """A partition of batches of ten records, two in each answer; `start` answers at once, so nothing waits."""

    def __init__(self, log_start: int = 0, end: int = 100) -> None:
        self.log_start, self.end = log_start, end
        self.asked: list[int] = []
        self.error: Exception | None = None
        self.script: list[Polled] = []
        """Answers instead of the partition's, for as long as there are any."""
        self.hangs_after: int | None = None
        """So many polls are answered."""
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

    async def poll(self, topic: str, topic_id: int, partition: int, offset: int, timeout_seconds: float) -> Polled:
        assert (topic, topic_id, partition, timeout_seconds) == ("t", 7, 3, 1.5)
        self.asked.append(offset)
        if self.error is not None:
            raise self.error
        if self.script:
            return self.script.pop(0)
        if offset < self.log_start:
            raise OffsetOutOfRangeError("gone", log_start_offset=self.log_start, high_watermark=self.end)
        bases = list(range(offset - offset % 10, self.end, 10))[:2]
        return Polled(tuple(bases), (BATCH,) * len(bases))


def fetch(cluster: FakeCluster, start: int, end: int, fail: bool = True) -> list[FetchedBatch]:
    range_ = OffsetRange("t", 7, 3, start, end)
    return list(fetch_range(cluster, range_, timeout_ms=1500, fail_on_data_loss=fail))


def offsets(batches: list[FetchedBatch]) -> list[int]:
    return [batch.base_offset + number for batch in batches for number in range(batch.first, batch.end)]


@pytest.mark.parametrize(("start", "end"), [(0, 100), (0, 1), (5, 6), (9, 11), (10, 20), (13, 57), (99, 100), (4, 4)])
def test_exactly_the_range_comes(start: int, end: int) -> None:
    assert offsets(fetch(FakeCluster(), start, end)) == list(range(start, end))


def test_the_next_answer_is_asked_for_before_this_one_is_handed_out() -> None:
    cluster = FakeCluster()
    batches = fetch_range(cluster, OffsetRange("t", 7, 3, 5, 50), timeout_ms=1500, fail_on_data_loss=True)
    assert cluster.asked == []
    next(batches)
    assert cluster.asked == [5, 20]
    assert offsets(list(batches)) == list(range(10, 50))
    assert cluster.asked == [5, 20, 40]


def test_a_task_that_is_given_up_leaves_no_poll_behind() -> None:
    cluster = FakeCluster()
    cluster.hangs_after = 1
    batches = fetch_range(cluster, OffsetRange("t", 7, 3, 0, 50), timeout_ms=1500, fail_on_data_loss=True)
    next(batches)
    batches.close()
    assert cluster.hanging.cancelled()


def test_trimmed_meanwhile() -> None:
    with pytest.raises(RecordsLostError, match="t/3: offsets 5 to 29 were deleted"):
        fetch(FakeCluster(log_start=30), 5, 50)
    with pytest.warns(RaftMQSparkWarning, match="offsets 5 to 29 were deleted"):
        assert offsets(fetch(FakeCluster(log_start=30), 5, 50, fail=False)) == list(range(30, 50))
    with pytest.warns(RaftMQSparkWarning, match="offsets 5 to 19 were deleted"):
        assert fetch(FakeCluster(log_start=30), 5, 20, fail=False) == []


def test_deleted_meanwhile() -> None:
    cluster = FakeCluster()
    cluster.error = UnknownTopicError("t")
    with pytest.raises(RecordsLostError, match="offsets 5 to 49 are gone with their topic"):
        fetch(cluster, 5, 50)
    with pytest.warns(RaftMQSparkWarning, match="offsets 5 to 49 are gone"):
        assert fetch(cluster, 5, 50, fail=False) == []


@pytest.mark.parametrize("error", [RequestTimedOutError("late"), OffsetOutOfRangeError("above", high_watermark=3)])
@pytest.mark.parametrize("fail", [True, False])
def test_what_is_no_loss_is_an_error_in_any_case(error: Exception, fail: bool) -> None:
    cluster = FakeCluster()
    cluster.error = error
    with pytest.raises(type(error)):
        fetch(cluster, 5, 50, fail)


def test_a_damaged_batch_is_named() -> None:
    cluster = FakeCluster()
    cluster.script = [Polled((10,), (BATCH[:-1] + b"?",))]
    with pytest.raises(CorruptBatchError, match=r"t/3.*CRC32C"):
        fetch(cluster, 10, 20)


def test_a_hole_is_asked_for_again() -> None:
    """An answer that begins behind the offset asked for must not make records vanish."""
    cluster = FakeCluster()
    two = (BATCH, BATCH)
    cluster.script = [Polled((20,), (BATCH,)), Polled((0,), (BATCH,)), Polled((10, 30), two), Polled((20,), (BATCH,))]
    assert offsets(fetch(cluster, 0, 30)) == list(range(30))
    assert cluster.asked == [0, 0, 10, 20]


def test_a_broker_that_never_continues_is_an_error() -> None:
    cluster = FakeCluster()
    cluster.script = [Polled((20,), (BATCH,))] * 100
    with pytest.raises(ProtocolError, match="does not continue at offset 10"):
        fetch(cluster, 10, 20)
