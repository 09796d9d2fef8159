"""What a producer and a consumer count, and the values that `Producer.metrics` and `Consumer.metrics` return.

Counting costs a few integer additions per batch or request, nothing per record. Totals only grow, from the client's start.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from raftmq.client.error_details import name_of


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

    def note_error(self, error: BaseException) -> None:
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
