"""What one seed's run is made of: each kind of fault is present or absent, with a random strength (swarm testing).

Source: Groce et al., "Swarm testing" (2012); TigerBeetle's VOPR.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from raftmq.raft.settings import RaftSettings

TICK = 100
"""Units of virtual time in one nominal tick of a replica's clock."""


@dataclass(frozen=True, slots=True)
class SwarmOptions:
    """One run's circumstances, drawn from its seed."""

    voter_count: int
    settings: RaftSettings
    fault_ticks: int
    """Length of the first phase, in nominal ticks."""
    # network
    delay_min: int
    delay_max: int
    is_ordered: bool
    """Messages of one link never overtake each other (a stream); otherwise each is delayed on its own."""
    loss: float
    duplication: float
    late: float
    """Share of messages that arrive several election timeouts late."""
    snapshot_delay_max: int
    """A snapshot's stream takes up to this much longer than a message."""
    reports_unreachable: bool
    # disk
    append_delay_max: int
    appends_in_flight_max: int
    apply_delay_max: int
    """0: entries are applied at once."""
    cold_reads: float
    """Share of log reads that must be fetched first."""
    # clocks
    clock_rates: tuple[float, float]
    """Each replica's tick lasts `TICK` times a factor drawn from here."""
    uses_quiet_beats: bool
    # load: nominal ticks between two events on average; 0: never
    propose_every: float
    read_every: float
    fault_every: float
    compact_every: float
    membership_every: float
    transfer_every: float
    # faults, as weights; 0: absent
    crash: int
    crash_all: int
    isolate: int
    split: int
    one_way: int
    pause: int
    disk_stall: int
    forget_leader: int
    step_down: int
    wipe: int
    """At most one replica loses its disk for good."""


def _some(random_: random.Random, share: float, low: float, high: float) -> float:
    return random_.uniform(low, high) if random_.random() < share else 0.0


def draw_options(random_: random.Random) -> SwarmOptions:
    """Draw one run's circumstances."""
    chance = random_.random
    election_ticks = random_.choice((6, 8, 10))
    settings = RaftSettings(
        election_ticks=election_ticks,
        heartbeat_ticks=random_.choice((1, 2)),
        append_bytes_max=random_.choice((20, 60, 300, 100_000)),
        inflight_appends_max=random_.choice((1, 2, 4, 64)),
        inflight_bytes_max=random_.choice((40, 200, 100_000)),
        uncommitted_bytes_max=random_.choice((200, 1_000, 100_000)),
        apply_bytes_max=random_.choice((30, 100_000)),
        pending_reads_max=random_.choice((2, 64)),
    )
    delay_min = random_.choice((1, 5, 20))
    has_membership = chance() < 0.5

    def weight(share: float) -> int:
        return random_.randrange(1, 5) if chance() < share else 0

    return SwarmOptions(
        voter_count=random_.choice((3, 3, 5)),
        settings=settings,
        fault_ticks=random_.choice((60, 100, 160)),
        delay_min=delay_min,
        delay_max=delay_min + random_.choice((1, 30, 90, 250)),
        is_ordered=chance() < 0.4,
        loss=_some(random_, 0.6, 0.01, 0.25),
        duplication=_some(random_, 0.4, 0.01, 0.2),
        late=_some(random_, 0.4, 0.005, 0.05),
        snapshot_delay_max=random_.choice((50, 300, 2 * election_ticks * TICK)),
        reports_unreachable=chance() < 0.5,
        append_delay_max=random_.choice((0, 20, 100, 600)),
        appends_in_flight_max=random_.choice((1, 2, 4)),
        apply_delay_max=random_.choice((0, 0, 40)),
        cold_reads=_some(random_, 0.3, 0.05, 0.5),
        clock_rates=random_.choice(((1.0, 1.0), (0.9, 1.1), (0.5, 2.0))),
        uses_quiet_beats=chance() < 0.5,
        propose_every=random_.choice((0.6, 1.2, 3.0)),
        read_every=_some(random_, 0.6, 1.5, 5.0),
        fault_every=_some(random_, 0.9, 5.0, 25.0),
        compact_every=random_.choice((0.0, random_.uniform(0.5, 2.0), random_.uniform(2.0, 15.0))),
        membership_every=random_.uniform(4.0, 20.0) if has_membership else 0.0,
        transfer_every=_some(random_, 0.4, 8.0, 30.0),
        crash=weight(0.7),
        crash_all=weight(0.2),
        isolate=weight(0.5),
        split=weight(0.5),
        one_way=weight(0.4),
        pause=weight(0.3),
        disk_stall=weight(0.3),
        forget_leader=weight(0.2),
        step_down=weight(0.2),
        wipe=weight(0.3) if has_membership else 0,
    )
