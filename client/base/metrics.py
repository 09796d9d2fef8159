"""Counters of the clients, and the values that `Producer.metrics`, `Consumer.metrics` and `Worker.metrics` return.

Counting costs a few integer additions per batch or request, nothing per record. Totals only grow, from the client's start.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from raftmq.client.base.error_details import name_of


@dataclass(slots=True)
class RequestCounters:
    """Counters of requests to brokers."""

    requests_total: int = 0
    seconds_sum: float = 0.0
    seconds_max: float = 0.0
    errors: Counter[str] = field(default_factory=Counter)

    def observe(self, seconds: float) -> None:
        """Count an answered request."""
        self.requests_total += 1
        self.seconds_sum += seconds
        self.seconds_max = max(self.seconds_max, seconds)

    def record_error(self, error: BaseException) -> None:
        """Count a failed request, or a failed partition of one."""
        self.errors[name_of(error)] += 1


@dataclass(slots=True)
class ProducerCounters:
    """Counters of a producer. Written by the dispatcher, per batch."""

    requests: RequestCounters = field(default_factory=RequestCounters)
    records_total: int = 0
    bytes_total: int = 0
    batches_total: int = 0
    failed_records_total: int = 0
    failed_batches_total: int = 0
    retries_total: int = 0


@dataclass(slots=True)
class ConsumerCounters:
    """Counters of a consumer. Written by the fetcher and its partitions, per batch."""

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
    """A snapshot of a producer. Times are seconds, and ``_total`` values count from the start."""

    records_total: int
    """Records acknowledged."""
    batches_total: int
    """Batches acknowledged."""
    bytes_total: int
    """Bytes of acknowledged batches as sent, compressed."""
    failed_records_total: int
    """Records given up. Each was reported through its delivery, or through `flush`."""
    failed_batches_total: int
    retries_total: int
    """Batches that were sent again."""
    requests_total: int
    """Requests answered, successfully or not."""
    request_seconds_sum: float
    request_seconds_max: float
    errors_total: dict[str, int]
    """Refusals and lost requests, by error code (`ErrorCode`), or by exception if there is no code."""
    requests_in_flight: int
    bytes_in_flight: int
    """Bytes in unanswered requests."""
    batches_waiting: int
    """Batches without an outcome, including those in flight."""
    buffer_bytes: int
    """Used bytes of `buffer_memory`."""
    buffer_bytes_max: int


@dataclass(frozen=True, slots=True)
class ConsumerMetrics:
    """A snapshot of a consumer. Times are seconds, and ``_total`` values count from the start."""

    records_total: int
    """Records decoded."""
    batches_total: int
    """Batches decoded."""
    bytes_total: int
    """Bytes of batches fetched."""
    requests_total: int
    """Polls answered."""
    request_seconds_sum: float
    """Duration of polls, including the time that brokers wait for records."""
    request_seconds_max: float
    errors_total: dict[str, int]
    """Refusals and lost polls, by error code (`ErrorCode`), or by exception if there is no code."""
    requests_in_flight: int
    buffer_bytes: int
    """Bytes fetched and not decoded yet."""
    partitions: int
    """Partitions assigned."""
    partitions_paused: int
    commits_total: int = 0
    """Commits of a partition's offset."""
    commit_failures_total: int = 0
    assigned_total: int = 0
    """Partitions that the group assigned."""
    revoked_total: int = 0
    """Partitions released in order."""
    lost_total: int = 0
    """Partitions lost because a session ended or offsets were reset."""
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
        """Return a snapshot of counters, with the current state."""
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
    """Counters of a worker. Written by the work loop, per record."""

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
    """A snapshot of a worker. Times are seconds, and ``_total`` values count from the start."""

    records_total: int
    """Records that the handler processed successfully."""
    failures_total: int
    """Failed attempts, including those that exceeded their time limit."""
    timeouts_total: int
    """Attempts that exceeded their time limit."""
    retries_total: int
    """Failed attempts after which a retry was scheduled."""
    dead_letters_total: int
    """Records moved to the dead-letter topic."""
    dropped_total: int
    """Attempts whose outcome arrived after their partition was lost. The next owner processes the records again."""
    skipped_total: int
    """Records that an earlier owner of their partition had finished, after others that it had not."""
    handler_seconds_sum: float
    """Total duration of all handlers that ended."""
    handler_seconds_max: float
    commits_total: int
    commit_failures_total: int
    partitions_lost_total: int
    """Partitions that were lost before they could be released in order."""
    handlers_running: int
    """Handlers that run now, at most `concurrency`."""
    records_queued: int
    """Records taken and not started."""
    records_waiting: int
    """Records that wait for their next attempt."""
    records_in_work: int
    """Records taken and not below the committable progress. These would be repeated if the worker died now without a further commit."""
    records_in_work_max: int
    bytes_in_work: int
    """Bytes of keys, values and headers of records that are not done."""
    partitions: int
    """Partitions assigned."""
    partitions_paused: int
    """Partitions that are not read for now because too many records are in work."""

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
        """Return a snapshot of counters, with the current state."""
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
