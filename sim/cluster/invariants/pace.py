"""`MovesKeepTheirRate`: a node sends to new replicas of planned moves no more bytes than the cluster's rate permits, but for one message.

It does the arithmetic of the budget again, and so finds a sender that does not wait for it.
"""

from __future__ import annotations

from typing import Any

from sim.core.invariants.violation import demand


def watch_pace(pace: Any, burst_seconds: float, judge: Any) -> None:  # noqa: ANN401 -- it stands in for methods of the product
    """Wrap the budget of a new node in the check."""
    loop, spend, set_rate = pace._loop, pace.spend, pace.set_rate
    rate, balance, at = 0, 0.0, loop.time()

    def settle() -> None:
        nonlocal balance, at
        now = loop.time()
        balance = min(balance + (now - at) * rate, max(1.0, rate * burst_seconds))
        at = now

    def watched_set_rate(bytes_per_second: int) -> None:
        nonlocal rate, balance
        settle()
        if bytes_per_second != rate:
            rate, balance = bytes_per_second, min(balance, max(1.0, bytes_per_second * burst_seconds))
            balance = balance if rate else 0.0
        set_rate(bytes_per_second)

    def watched_spend(size: int) -> None:
        nonlocal balance
        settle()
        if rate:
            debt = -balance
            judge(
                demand,
                debt < 1.0,
                "MovesKeepTheirRate",
                f"{size} more bytes are sent with a debt of {debt:.0f} at {rate}/s",
            )
            balance -= size
        spend(size)

    pace.set_rate, pace.spend = watched_set_rate, watched_spend
