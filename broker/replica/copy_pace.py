"""Bound the bytes per second that this node sends to the new replicas of planned moves and of raised replication factors.

The rate is a setting of the cluster, and each node applies it to the bytes that it sends itself, as the leader of the groups that move. It never
concerns voters, metadata, or a replica in repair, which replaces a lost one.

The budget grows with time, up to a short burst. A sender may overdraw it by one message, and the next one waits until the debt is paid. Waiting
senders take turns in the order of their arrival, so no copy starves another.

Source: the token bucket; Kafka's `leader.replication.throttled.rate` for the meaning of a rate per broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable


class CopyPace:
    """The budget of one node."""

    def __init__(self, loop: asyncio.AbstractEventLoop, burst_seconds: float) -> None:
        self._loop = loop
        self._burst_seconds = burst_seconds
        self._rate = 0
        self._balance = 0.0
        """Bytes that may be sent, as of `_at`. Negative: a debt."""
        self._at = loop.time()
        self._waiting: dict[Hashable, Callable[[], None]] = {}
        """Senders that wait for their turn, oldest first. Bounded by the replicas and snapshot streams of the node."""
        self._timer: asyncio.TimerHandle | None = None
        self.sent_bytes = 0
        """Bytes sent since the start of the process to new replicas of planned moves, with or without a limit."""

    @property
    def bytes_per_second(self) -> int:
        """Return the rate. 0: unlimited."""
        return self._rate

    def set_rate(self, bytes_per_second: int) -> None:
        """Change the rate. It holds for running copies immediately. 0: unlimited."""
        if bytes_per_second == self._rate:
            return
        self._settle()
        self._rate = bytes_per_second
        self._balance = min(self._balance, self._burst) if bytes_per_second else 0.0
        self._arm()

    def may_send(self) -> bool:
        """Return whether bytes may be sent now."""
        self._settle()
        return not self._rate or self._balance > 0

    def spend(self, size: int) -> None:
        """Count bytes that were sent."""
        self.sent_bytes += size
        if self._rate:
            self._settle()
            self._balance -= size

    def wait(self, sender: Hashable, resume: Callable[[], None]) -> None:
        """Call `resume` once when it is the sender's turn. A sender that waits already keeps its place."""
        if sender not in self._waiting:
            self._waiting[sender] = resume
            self._arm()

    def is_waiting(self, sender: Hashable) -> bool:
        """Return whether a sender waits for its turn."""
        return sender in self._waiting

    def forget(self, sender: Hashable) -> None:
        """Remove a sender from those that wait."""
        self._waiting.pop(sender, None)

    def close(self) -> None:
        """Resume every sender, and never hold one back again."""
        self._rate = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, {}
        for resume in waiting.values():
            resume()

    @property
    def _burst(self) -> float:
        return max(1.0, self._rate * self._burst_seconds)

    def _settle(self) -> None:
        """Add the bytes of the time that has passed."""
        now = self._loop.time()
        self._balance = min(self._balance + (now - self._at) * self._rate, self._burst) if self._rate else 0.0
        self._at = now

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._waiting:
            return
        self._settle()
        # one byte more than the debt, so that rounding never wakes a sender too early
        delay = max(0.0, (1.0 - self._balance) / self._rate) if self._rate else 0.0
        self._timer = self._loop.call_later(delay, self._wake)

    def _wake(self) -> None:
        """Give the turn to the sender that has waited longest. It has sent, or waits again, before the next one has its turn."""
        self._timer = None
        if not self._waiting:
            return
        if self.may_send():
            sender = next(iter(self._waiting))
            self._waiting.pop(sender)()
        self._arm()


class GroupPace:
    """The budget as the core of one group uses it (`raft.log_view.CopyPace`)."""

    def __init__(self, pace: CopyPace, group_id: Hashable, resume: Callable[[], None]) -> None:
        self._pace = pace
        self._group_id = group_id
        self._resume = resume

    def may_send(self) -> bool:
        """Return whether entries may be sent. If not, the group is resumed when it is its turn."""
        if self._pace.may_send():
            return True
        self._pace.wait(self._group_id, self._resume)
        return False

    def spend(self, payload_bytes: int) -> None:
        """Count entries that were sent."""
        self._pace.spend(payload_bytes)
