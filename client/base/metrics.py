"""What a producer and a consumer count, and the values that `Producer.metrics` and `Consumer.metrics` return.

Counting costs a few integer additions per batch or request, nothing per record. Totals only grow, from the client's start.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from raftmq.client.base.error_details import name_of


@dataclass(slots=True)
class RequestCounters:
    """Requests to brokers, as a client counts them."""

    requests_total: int = 0
    seconds_sum: float = 0.0
    seconds_max: float = 0.0
    errors: Counter[str] = field(default_factory=Counter)

    def observe(self, seconds: float) -> None:
        """A request was answered."""
        self.requests_total += 1
        self.seconds_sum += seconds
        self.seconds_max = max(self.seconds_max, seconds)

    def record_error(self, error: BaseException) -> None:
        """A request, or one partition of it, failed."""
        self.errors[name_of(error)] += 1


@dataclass(slots=True)
class ProducerCounters:
    """Written by the dispatcher, per batch."""

    requests: RequestCounters = field(default_factory=RequestCounters)
    records_total: int = 0
    bytes_total: int = 0
    batches_total: int = 0
    failed_records_total: int = 0
    failed_batches_total: int = 0
    retries_total: int = 0


@dataclass(slots=True)
class ConsumerCounters:
    """Written by the fetcher and its partitions, per batch."""

    requests: RequestCounters = field(default_factory=RequestCounters)
    records_total: int = 0
    bytes_total: int = 0
    batches_total: int = 0
    commits_total: int = 0
    commit_failures_total: int = 0
    assigned_total: int = 0
    revoked_total: int = 0
    lost_total: int = 0


@dataclass(frozen=True, slots=True)
class ProducerMetrics:
    """A producer at one moment. Times are seconds; ``_total`` counts from the start."""

    records_total: int
    """Records acknowledged."""
    batches_total: int
    """Batches acknowledged."""
    bytes_total: int
    """Their bytes as sent, compressed."""
    failed_records_total: int
    """Records given up; each was reported through its delivery, or through `flush`."""
    failed_batches_total: int
    retries_total: int
    """Batches that were sent again."""
    requests_total: int
    """Requests answered, by whatever answer."""
    request_seconds_sum: float
    request_seconds_max: float
    errors_total: dict[str, int]
    """Refusals and lost requests, by error code (`ErrorCode`) or, without one, by exception."""
    requests_in_flight: int
    bytes_in_flight: int
    """In requests that are not answered."""
    batches_waiting: int
    """Batches without an outcome, those in flight included."""
    buffer_bytes: int
    """Of `buffer_memory`, in use."""
    buffer_bytes_max: int


@dataclass(frozen=True, slots=True)
class ConsumerMetrics:
    """A consumer at one moment. Times are seconds; ``_total`` counts from the start."""

    records_total: int
    """Records decoded, for being handed out next."""
    batches_total: int
    """Batches decoded."""
    bytes_total: int
    """Bytes of batches fetched."""
    requests_total: int
    """Polls answered."""
    request_seconds_sum: float
    """Time of polls, the brokers' waiting for records included."""
    request_seconds_max: float
    errors_total: dict[str, int]
    """Refusals and lost polls, by error code (`ErrorCode`) or, without one, by exception."""
    requests_in_flight: int
    buffer_bytes: int
    """Fetched and not decoded."""
    partitions: int
    """Assigned."""
    partitions_paused: int
    commits_total: int = 0
    """Offsets of partitions committed."""
    commit_failures_total: int = 0
    assigned_total: int = 0
    """Partitions that the group's assignment brought."""
    revoked_total: int = 0
    """Partitions given up in peace."""
    lost_total: int = 0
    """Partitions lost: to a session that ended, or to a reset of offsets."""
    heartbeats_total: int = 0
    """Heartbeats answered."""

    @classmethod
    def of(
        cls,
        counters: ConsumerCounters,
        *,
        requests_in_flight: int,
        buffer_bytes: int,
        partitions: int,
        partitions_paused: int,
        heartbeats_total: int,
    ) -> ConsumerMetrics:
        """What was counted, with what is at this moment."""
        requests = counters.requests
        return cls(
            records_total=counters.records_total,
            batches_total=counters.batches_total,
            bytes_total=counters.bytes_total,
            requests_total=requests.requests_total,
            request_seconds_sum=requests.seconds_sum,
            request_seconds_max=requests.seconds_max,
            errors_total=dict(requests.errors),
            requests_in_flight=requests_in_flight,
            buffer_bytes=buffer_bytes,
            partitions=partitions,
            partitions_paused=partitions_paused,
            commits_total=counters.commits_total,
            commit_failures_total=counters.commit_failures_total,
            assigned_total=counters.assigned_total,
            revoked_total=counters.revoked_total,
            lost_total=counters.lost_total,
            heartbeats_total=heartbeats_total,
        )


@dataclass(slots=True)
class WorkerCounters:
    """Written by the work loop, per record."""

    records_total: int = 0
    failures_total: int = 0
    timeouts_total: int = 0
    retries_total: int = 0
    dead_letters_total: int = 0
    dropped_total: int = 0
    skipped_total: int = 0
    handler_seconds_sum: float = 0.0
    handler_seconds_max: float = 0.0
    commits_total: int = 0
    commit_failures_total: int = 0
    partitions_lost_total: int = 0


@dataclass(frozen=True, slots=True)
class WorkerMetrics:
    """A worker at one moment. Times are seconds; ``_total`` counts from the start."""

    records_total: int
    """Records that the handler succeeded with."""
    failures_total: int
    """Tries that failed, those that took too long included."""
    timeouts_total: int
    """Tries that took too long."""
    retries_total: int
    """Tries that were put off to be made again."""
    dead_letters_total: int
    """Records moved to the dead-letter topic."""
    dropped_total: int
    """Tries whose outcome came after their partition had gone to somebody else, who works on the records again."""
    skipped_total: int
    """Records that an earlier owner of their partition had finished, beyond others that it had not."""
    handler_seconds_sum: float
    """Time in handlers, over all that ended."""
    handler_seconds_max: float
    commits_total: int
    commit_failures_total: int
    partitions_lost_total: int
    """Partitions that went to somebody else before they could be given up in order."""
    handlers_running: int
    """Of `concurrency`."""
    records_queued: int
    """Taken, and not begun."""
    records_waiting: int
    """Waiting for their next try."""
    records_in_work: int
    """Taken and not below what may be committed: what would come again if the worker died now and nothing of it were committed."""
    records_in_work_max: int
    bytes_in_work: int
    """Keys, values and headers of records that are not done."""
    partitions: int
    """Assigned."""
    partitions_paused: int
    """Not read for now, because too much is in work."""

    @classmethod
    def of(
        cls,
        counters: WorkerCounters,
        *,
        handlers_running: int,
        records_queued: int,
        records_waiting: int,
        records_in_work: int,
        records_in_work_max: int,
        bytes_in_work: int,
        partitions: int,
        partitions_paused: int,
    ) -> WorkerMetrics:
        """What was counted, with what is at this moment."""
        return cls(
            records_total=counters.records_total,
            failures_total=counters.failures_total,
            timeouts_total=counters.timeouts_total,
            retries_total=counters.retries_total,
            dead_letters_total=counters.dead_letters_total,
            dropped_total=counters.dropped_total,
            skipped_total=counters.skipped_total,
            handler_seconds_sum=counters.handler_seconds_sum,
            handler_seconds_max=counters.handler_seconds_max,
            commits_total=counters.commits_total,
            commit_failures_total=counters.commit_failures_total,
            partitions_lost_total=counters.partitions_lost_total,
            handlers_running=handlers_running,
            records_queued=records_queued,
            records_waiting=records_waiting,
            records_in_work=records_in_work,
            records_in_work_max=records_in_work_max,
            bytes_in_work=bytes_in_work,
            partitions=partitions,
            partitions_paused=partitions_paused,
        )
