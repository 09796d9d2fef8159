"""Keep the clock of one queue partition, on one replica.

Everything in a queue that depends on time follows the append times of its entries: due times, deadlines of leases, expiry. So the
clock that stamps them must run on while leaders, wall clocks and processes come and go, and it must not run away with any of them.

- A running clock advances with the time since the machine's start, which counts suspension and never jumps. It slews towards the
  median of the wall clocks by at most one twentieth while a majority of them agrees. Without one it does not slew.
- Each replica keeps its clock running. A follower raises it to each append time that it receives, so that after an election the
  clock continues where the last leader left it: late by the delay of the network.
- After a start of the process it steps to max(last append time, median). Until a quorum's clocks are known it stands still at the
  last append time, which is late and never early, and `is_running` is False.
- If those clocks differ, and nothing shows which is right, it starts with an early one, and steps again as soon as a majority agrees:
  otherwise one wrong clock would hold it back for days. Leases are spared then as after an election.
- It never goes back. A clock that is far behind is set forward by `step_to`, on an operator's order.

Must not read a clock: both sources are arguments. Invariants: no value is below an earlier one, nor below an append time of the log;
and between two readings of a running clock that was not stepped the time passes at 95 to 105 % of the real one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from raftmq.broker.base.request_error import RequestError
from raftmq.proto import queue_pb2 as pb

SLEW_DIVISOR: Final = 20
"""The clock gains or loses at most this part of the elapsed time: 5 %, so that a lease of 30 s varies by 1.5 s."""
COMPARE_NS: Final = 50_000_000
"""Interval of the comparisons with the median. It is short beside the drift of any machine, and spares a comparison per entry."""
GRACE_MS_MAX: Final = 10_000
"""The longest time for which leases that ended while nobody led stay valid. A consumer finds the new leader within it."""
UNKNOWN_TIME_MS: Final = 50
UNKNOWN_TIME_MS_MAX: Final = 1_000
"""The shortest and the longest pause of timers while too few clocks are known since the start of this broker: nobody tells when they are."""
_UNKNOWN_TIME_PART: Final = 1 / 200
"""The pause, as a part of the time since the start. There may be a thousand partitions, and the other brokers may be gone for good."""
_MS: Final = 1_000_000
"""Nanoseconds of a millisecond."""


class QueueClock:
    """The clock of one replica of a queue partition. Implements `EntryClock`.

    How it plugs in: the partition creates it with `Engine.clocks.median_ms`, the `boottime_ns` of the node's `Clock` and the append
    time of the log's last entry, and passes it to `Replica.use_clock`. From then on it stamps everything: proposals and changes of
    membership, which `Replica` stamps, and the no-op of an election and the end of a joint configuration, which the core stamps.
    `Replica` also reports append times that it receives, and doubts about its leadership. The partition proposes nothing while
    `is_running` is False, reads `read_ms` for its timers, and takes `expire_before` into each entry that expires leases.
    """

    def __init__(
        self,
        median_ms: Callable[[], int | None],
        is_agreed: Callable[[], bool],
        boottime_ns: Callable[[], int],
        last_append_time_ms: int,
    ) -> None:
        """Begin after a start of the process.

        Args:
            median_ms: returns the median of the wall clocks of a quorum, or None while too few are known.
            is_agreed: returns whether the clocks of a majority agree with the median.
            boottime_ns: returns a time that never jumps and counts suspension.
            last_append_time_ms: append time of the last entry in the log.
        """
        self._median_ms = median_ms
        self._is_agreed = is_agreed
        self._boottime_ns = boottime_ns
        self.is_provisional = True
        """Whether no majority of clocks agreed since the start, so that the clock may be far behind."""
        self.is_running = False
        """Whether the clock advances. False from the start of the process until a quorum's clocks are known."""
        self.stepped_ms = 0
        """By how much it was set forward in all, at the start and by operators. The first time of a new partition is no step."""
        self._began_ns = boottime_ns()
        """When this clock was created, which is at the start of the process at the earliest."""
        self._time_ns = last_append_time_ms * _MS
        """The clock at `_read_at_ns`, in nanoseconds since the epoch."""
        self._read_at_ns = self._began_ns
        self._correction_ns = 0
        """The difference to the median that is left to slew."""
        self._compare_at_ns = self._read_at_ns
        """When the clock is compared with the median again."""
        self._stamped_ms = last_append_time_ms
        """The last append time, received or given here."""
        self._gap_start_ms: int | None = last_append_time_ms
        """Leases that ended later were not known to have ended when nobody may have led. None while this replica leads without doubt and the
        grace is over."""
        self._gap_end_ms = last_append_time_ms
        """The last append time before this replica led without doubt."""
        self._grace_end_ms: int | None = None
        """The end of the grace for leases that ended in the gap. None before it began."""

    # ---------------------------------------------------------------------------------------------------- the time

    def now_ms(self) -> int:
        """Return the time to stamp an entry with."""
        self._stamped_ms = max(self._stamped_ms, self.read_ms())
        return self._stamped_ms

    def read_ms(self) -> int:
        """Return the time without stamping an entry, for timers and answers."""
        if self.is_running:
            self._advance()
        else:
            self._start()
        return self._time_ns // _MS

    def unreadiness(self) -> RequestError | None:
        """Return why nothing may be proposed yet, or None if the clock runs."""
        self.read_ms()
        if self.is_running:
            return None
        return RequestError(
            pb.NOT_READY, "too few brokers have reported their clocks since this broker started; try again",
            retry_after_ms=UNKNOWN_TIME_MS,
        )  # fmt: skip

    @property
    def unknown_pause_ms(self) -> int:
        """Return the time after which timers look again whether the clock runs."""
        waited_ms = (self._boottime_ns() - self._began_ns) // _MS
        return min(max(UNKNOWN_TIME_MS, int(waited_ms * _UNKNOWN_TIME_PART)), UNKNOWN_TIME_MS_MAX)

    def on_received(self, append_time_ms: int) -> None:
        """Continue from an append time that another leader gave."""
        self.read_ms()
        self._raise_to(append_time_ms)
        self._stamped_ms = max(self._stamped_ms, append_time_ms)
        self._gap_start_ms = self._gap_end_ms = self._stamped_ms
        self._grace_end_ms = None

    def step_to(self, target_ms: int) -> None:
        """Set the clock forward, on an operator's order. Messages that are due until then become due with the next entry.

        Raises:
            RequestError: INVALID_ARGUMENT unless the target is after the clock and not after the median of the brokers' clocks.
                NOT_READY while the median is unknown. Nothing has changed.
        """
        now_ms, median_ms = self.read_ms(), self._median_ms()
        if median_ms is None or not self.is_running:
            raise RequestError(pb.NOT_READY, "too few brokers have reported their clocks; try again", retry_after_ms=50)
        if not now_ms < target_ms <= median_ms:
            raise RequestError(
                pb.INVALID_ARGUMENT,
                f"the queue clock is at {now_ms} ms and the brokers' clocks are at {median_ms} ms: it can only be set to a time between",
            )
        self.stepped_ms += self._raise_to(target_ms)

    @property
    def difference_ms(self) -> int | None:
        """Return how far the queue clock is ahead of the median, or None while the median is unknown."""
        median_ms = self._median_ms()
        return None if median_ms is None else self.read_ms() - median_ms

    def _start(self) -> None:
        self._read_at_ns = self._boottime_ns()
        median_ms = self._median_ms()
        if median_ms is not None:
            self.is_running = True
            self.is_provisional = not self._is_agreed()
            is_new = self._time_ns == 0
            raised_ms = self._raise_to(median_ms)
            self.stepped_ms += 0 if is_new else raised_ms
            self._compare()

    def _raise_to(self, target_ms: int) -> int:
        """Set the clock forward to a time unless it is later already. Return by how many milliseconds."""
        raised_ns = max(0, target_ms * _MS - self._time_ns)
        self._time_ns += raised_ns
        self._correction_ns -= raised_ns
        return raised_ns // _MS

    def _advance(self) -> None:
        elapsed_ns = max(0, self._boottime_ns() - self._read_at_ns)
        self._read_at_ns += elapsed_ns
        self._time_ns += elapsed_ns
        if self._read_at_ns >= self._compare_at_ns:
            self._compare()  # before slewing: after an idle hour the median of an hour ago would count for all of it
        slew_max_ns = elapsed_ns // SLEW_DIVISOR
        slew_ns = min(max(self._correction_ns, -slew_max_ns), slew_max_ns)
        self._correction_ns -= slew_ns
        self._time_ns += slew_ns

    def _compare(self) -> None:
        """Take the present difference to the median as the correction that is left."""
        self._compare_at_ns = self._read_at_ns + COMPARE_NS
        self._correction_ns = 0
        median_ms = self._median_ms()
        if median_ms is None or not self._is_agreed():
            return  # of clocks that differ the median may be a wrong one, and after an idle day a twentieth is more than an hour
        if self.is_provisional:
            self.is_provisional = False
            if median_ms * _MS > self._time_ns:
                self.on_doubted()
                self.stepped_ms += self._raise_to(median_ms)
        self._correction_ns = median_ms * _MS - self._time_ns

    # ---------------------------------------------------------------------------------------------------- leases

    def on_doubted(self) -> None:
        """Begin a gap: this replica does not lead any more, or does not know whether it does."""
        if self._gap_start_ms is None:
            self._gap_start_ms = self._stamped_ms
        self._gap_end_ms = self._stamped_ms
        self._grace_end_ms = None

    @property
    def leases_end_from_ms(self) -> int:
        """Return the time before which no spared lease ends: the end of the grace, or 0 without one."""
        return self._grace_end_ms or 0

    @property
    def spared_through_ms(self) -> int:
        """Return the time up to which leases were granted or last renewed that are spared during the grace, or 0 without one.

        Those of later were granted by this replica while it led without doubt. They end on time.
        """
        return 0 if self._grace_end_ms is None else self._gap_end_ms

    def expire_before(self, lease_ms: int, ended_through_ms: int) -> int:
        """Return the time up to which an entry expires spared leases. Only a confirmed leader calls it, before it proposes.

        Leases that ended while nobody led could not be renewed or settled. They stay valid for min(`lease_ms`, `GRACE_MS_MAX`)
        after the first call, so that a change of the leader does not hand out every message a second time. That holds for those of an
        earlier gap, too, if the leader before this one fell within its own grace.

        Args:
            lease_ms: the usual length of a lease of the topic.
            ended_through_ms: the time up to which the applied entries expired leases.
        """
        now_ms = self.read_ms()
        if self._gap_start_ms is None:
            return now_ms
        if self._grace_end_ms is None:
            self._gap_start_ms = min(self._gap_start_ms, ended_through_ms)
            self._grace_end_ms = now_ms + min(lease_ms, GRACE_MS_MAX)
        if now_ms < self._grace_end_ms:
            return self._gap_start_ms
        self._gap_start_ms = self._grace_end_ms = None
        return now_ms
