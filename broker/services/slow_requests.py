"""Log requests that took longer than a threshold, with the phases of an append, at a bounded rate.

A request that is fast costs one comparison. Its phases are computed only if it was slow, from times that each proposal has.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import structlog
from raftmq.broker.partitions.pending_append import Applied
from raftmq.broker.replica.pending_proposals import ProposalFuture
from raftmq.methods import ADD_PARTITIONS, APPEND, APPEND_STREAM, CREATE_TOPIC, METHODS, TRANSFER_LEADER
from raftmq.types import GroupId

log = structlog.get_logger(__name__)

LOGGED_MAX: Final = 10
"""Requests that are logged in each `WINDOW_SECONDS`. A broker in trouble has thousands of slow ones, which have the same cause."""
WINDOW_SECONDS: Final = 10.0
WAITING: Final = frozenset(
    {
        *(method.name for method in METHODS if "max_wait_ms" in method.request_type.DESCRIPTOR.fields_by_name),
        CREATE_TOPIC.name,
        ADD_PARTITIONS.name,
        TRANSFER_LEADER.name,
    }
)
"""Methods that wait on purpose: for as long as their callers want, or until partitions have leaders. They are never slow."""
WITH_PHASES: Final = frozenset({APPEND.name, APPEND_STREAM.name})
"""Methods whose slow requests their service reports, with the phases."""


class AppendPhases(NamedTuple):
    """The time of an append, in seconds: the phases follow each other and add up to it."""

    group_id: GroupId | None
    """The group whose proposal took longest. None if nothing was proposed."""
    queued: float
    """Until the proposal: waiting for metadata or for earlier requests, and validating."""
    disk: float
    """From there until the leader's disk, or a majority, had it."""
    replication: float
    """From there until it was committed."""
    apply: float
    """From there until the answer."""

    def attributes(self) -> dict[str, str | int | float]:
        """Return the phases as attributes of a span."""
        return {
            "raftmq.group_id": self.group_id or 0,
            "raftmq.queued_seconds": self.queued,
            "raftmq.disk_seconds": self.disk,
            "raftmq.replication_seconds": self.replication,
            "raftmq.apply_seconds": self.apply,
        }


def append_phases(began_at: float, ended_at: float, proposals: Iterable[Applied]) -> AppendPhases:
    """Return the phases of an append from the times (`time.perf_counter`) of its proposals, some of which may not be over."""
    found = [future for future in proposals if isinstance(future, ProposalFuture)]
    if not found:
        return AppendPhases(None, ended_at - began_at, 0.0, 0.0, 0.0)
    slowest = max(found, key=lambda future: future.committed_at or math.inf)
    # an earlier request may have proposed the batch
    proposed_at = max(began_at, slowest.proposed_at)
    committed_at = max(proposed_at, slowest.committed_at or ended_at)
    durable_at = max(proposed_at, min(slowest.durable_at or ended_at, committed_at))
    return AppendPhases(
        slowest.group_id,
        proposed_at - began_at,
        durable_at - proposed_at,
        committed_at - durable_at,
        ended_at - committed_at,
    )


class SlowRequests:
    """Counts and logs the slow requests of one broker."""

    def __init__(self, threshold_seconds: float = 0.0, clock: Callable[[], float] = time.monotonic) -> None:
        """Take the least time of a slow request. 0: no request is slow."""
        self.threshold_seconds = threshold_seconds or math.inf
        self.total: Counter[str] = Counter(dict.fromkeys(sorted(WITH_PHASES), 0))
        """Slow requests since the start, by method."""
        self._clock = clock
        self._window_ends_at = 0.0
        self._logged = 0
        """Requests that were logged in this window."""
        self._left_out = 0
        """Requests that were not logged since the last one that was."""

    def report(self, method: str, code: str, seconds: float) -> None:
        """Log a request that took at least the threshold, unless it waits on purpose or is reported with its phases."""
        if method in WAITING or method in WITH_PHASES or not self._is_logged(method):
            return
        log.warning(
            "slow_request",
            method=method,
            error_code=code,
            elapsed_seconds=round(seconds, 3),
            others=self._take_left_out(),
        )

    def report_append(
        self, method: str, code: str, began_at: float, seconds: float, proposals: Iterable[Applied]
    ) -> None:
        """Log an append that took at least the threshold, with the phases of its proposals."""
        if not self._is_logged(method):
            return
        phases = append_phases(began_at, began_at + seconds, proposals)
        log.warning(
            "slow_request",
            method=method,
            error_code=code,
            elapsed_seconds=round(seconds, 3),
            group_id=phases.group_id,
            queued_seconds=round(phases.queued, 3),
            disk_seconds=round(phases.disk, 3),
            replication_seconds=round(phases.replication, 3),
            apply_seconds=round(phases.apply, 3),
            others=self._take_left_out(),
        )

    def _is_logged(self, method: str) -> bool:
        """Count a slow request. Return whether it may be logged."""
        self.total[method] += 1
        now = self._clock()
        if now >= self._window_ends_at:
            self._window_ends_at = now + WINDOW_SECONDS
            self._logged = 0
        if self._logged == LOGGED_MAX:
            self._left_out += 1
            return False
        self._logged += 1
        return True

    def _take_left_out(self) -> int:
        left_out, self._left_out = self._left_out, 0
        return left_out
