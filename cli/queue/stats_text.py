"""The state of a queue topic as text and as JSON, with rates between two moments. Pure."""

from __future__ import annotations

import dataclasses
import io
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Final

from raftmq.cli.durations import format_duration, signed
from raftmq.cli.output import Json, print_table
from raftmq.cli.sizes import format_bytes

if TYPE_CHECKING:
    from raftmq.client.queue.views import MessageCounts, QueueStats

STATES: Final = ("ready", "delayed", "blocked", "leased", "dead")
TOTALS: Final = {
    "enqueued": "enqueued_total",
    "leased": "leased_total",
    "accepted": "accepted_total",
    "released": "released_total",
    "expired leases": "expired_leases_total",
    "died": "dead_total",
}
_TABLES_GAP: Final = 3


@dataclass(frozen=True)
class Sample:
    """The state at one moment."""

    stats: QueueStats
    at_seconds: float
    """Of a clock that never goes back."""


def rates(earlier: Sample | None, later: Sample) -> dict[str, float | None]:
    """Return how often per second each total rose. None: unknown, because there is no earlier state, or a leader has changed."""
    found: dict[str, float | None] = {}
    for name, field in TOTALS.items():
        found[name] = None
        if earlier is not None and later.at_seconds > earlier.at_seconds:
            rise = getattr(later.stats, field) - getattr(earlier.stats, field)
            if rise >= 0:  # totals begin at 0 with a new leader
                found[name] = rise / (later.at_seconds - earlier.at_seconds)
    return found


def text_of(topic: str, earlier: Sample | None, later: Sample, *, with_rates: bool, is_compact: bool = False) -> str:
    """Return the state as tables. A compact one has states and events side by side: with ten tenants it fits 24 lines of 80 columns."""
    stats, speeds = later.stats, rates(earlier, later)
    paused = f", paused {_left(stats.paused[''])}" if "" in stats.paused else ""
    oldest = format_duration(stats.oldest_ready_seconds) if stats.ready else "none"
    head = (
        f"topic {topic}{paused}: oldest ready {oldest}, waiting {format_bytes(stats.waiting_bytes)}, "
        f"consumers {stats.consumers}"
    )
    head += "\n" + _dwell_text(stats)
    states = _table(("state", "messages"), [(state, getattr(stats, state)) for state in STATES])
    if with_rates:
        totals = _table(
            ("event", "per second", "total"),
            [(name, format_rate(speeds[name]), getattr(stats, field)) for name, field in TOTALS.items()],
        )
    else:
        totals = _table(("event", "total"), [(name, getattr(stats, field)) for name, field in TOTALS.items()])
    parts = [head, _beside(states, totals)] if is_compact else [head, states, totals]
    if stats.tenants:
        rows = sorted(stats.tenants.items(), key=lambda item: (-_waiting(item[1]), item[0]))
        parts.append(
            _table(
                ("tenant", *STATES, ""),
                [
                    (tenant or "(none)", *(getattr(counts, state) for state in STATES), _paused(stats, tenant))
                    for tenant, counts in rows
                ],
            )
        )
    hidden = {tenant: left for tenant, left in stats.paused.items() if tenant and tenant not in stats.tenants}
    if hidden:
        parts.append(_table(("paused tenant", "time"), [(tenant, _left(left)) for tenant, left in hidden.items()]))
    return "\n".join(parts)


def json_of(topic: str, stats: QueueStats) -> dict[str, Json]:
    """Return the state for programs."""
    dwell = stats.dwell
    return {
        "topic": topic,
        **dataclasses.asdict(stats),
        "dwell": {
            "count": dwell.count,
            "mean_seconds": dwell.mean_seconds,
            "p50_seconds": dwell.quantile(0.5),
            "p99_seconds": dwell.quantile(0.99),
            "bounds_seconds": list(dwell.bounds_seconds),
            "counts": list(dwell.counts),
        },
    }


def _dwell_text(stats: QueueStats) -> str:
    """Return the time from ready to leased, and the difference of the clocks."""
    half, most = stats.dwell.quantile(0.5), stats.dwell.quantile(0.99)
    clock = f"clock difference {signed(stats.clock_difference_seconds)}"
    if half is None or most is None:
        return f"ready until leased: none yet, {clock}"
    return f"ready until leased: p50 {format_duration(half)}, p99 {format_duration(most)}, {clock}"


def format_rate(rate: float | None) -> str:
    """Format a number per second. An unknown one is a dash."""
    if rate is None:
        return "-"
    return f"{rate:.1f}" if rate < 100 else f"{rate:.0f}"


def _waiting(counts: MessageCounts) -> int:
    return counts.ready + counts.delayed + counts.blocked + counts.leased


def _paused(stats: QueueStats, tenant: str) -> str:
    return f"paused {_left(stats.paused[tenant])}" if tenant and tenant in stats.paused else ""


def _left(seconds: float | None) -> str:
    return "until resumed" if seconds is None else f"for {format_duration(seconds)}"


def _beside(left: str, right: str) -> str:
    """Return two tables side by side."""
    pairs = list(zip_longest(left.splitlines(), right.splitlines(), fillvalue=""))
    width = max(len(one) for one, _ in pairs) + _TABLES_GAP
    return "\n".join(f"{one:<{width}}{other}".rstrip() for one, other in pairs)


def _table(columns: tuple[str, ...], rows: list[tuple[object, ...]]) -> str:
    text = io.StringIO()  # is no terminal, so the columns are plain
    print_table(columns, rows, text)
    return "\n" + text.getvalue().rstrip("\n")
