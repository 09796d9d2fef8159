"""Options for tests: a short run without faults, to which a test adds the one it needs."""

from __future__ import annotations

import random
from dataclasses import replace

from sim.cluster.options import FAULTS, Options, draw_options


def calm_options(seconds: float = 3.0, **changes: object) -> Options:
    """Return options without faults, except the given ones."""
    nothing: dict[str, object] = dict.fromkeys(FAULTS, 0)
    calm: dict[str, object] = {
        "machines": 3,
        "metadata_voters": 3,
        "seconds": seconds,
        "tick_seconds": 0.06,
        "election_ticks": 5,
        "retention_seconds": 0.7,
        "uncommitted_bytes_max": 1_000_000,
        "recent_entries_bytes_max": 1_000_000,
        "inbound_append_bytes_max": 1_000_000,
        "is_tight": False,
        "delay_min": 0.0005,
        "delay_mean": 0.001,
        "slow_share": 0.0,
        "reset_share": 0.0,
        "drop_share": 0.0,
        "disk_latency": 0.001,
        "writer_threads": 2,
        "clock_rates": (1.0, 1.0),
        "topics": 1,
        "partitions": 3,
        "replication_factor": 3,
        "producers": 2,
        "consumers": 1,
        "send_every": 0.1,
        "value_bytes_max": 40,
        "delivery_seconds": 5.0,
        "request_seconds": 0.5,
        "plain_producers": 0,
        "admin_every": 0.0,
        "trim_every": 0.0,
        "members": 0,
        "namesakes": 0,
        "retention_ms": 0,
        "fault_every": 0.5,
        "is_forgetful": False,
    }
    return replace(draw_options(random.Random(0)), **{**nothing, **calm, **changes})
