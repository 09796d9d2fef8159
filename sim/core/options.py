"""The options of one seed's run: each kind of fault is present or absent, with a random strength (swarm testing).

Source: Groce et al., "Swarm testing" (2012); TigerBeetle's VOPR.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from enum import Enum

from raftmq.raft.settings import RaftSettings

TICK = 100
"""Units of virtual time in one nominal tick of a replica's clock."""


@dataclass(frozen=True, slots=True)
class SwarmOptions:
    """The options of one run, drawn from its seed."""

    voter_count: int
    settings: RaftSettings
    fault_ticks: int
    """Length of the first phase, in nominal ticks."""
    # network
    delay_min: int
    delay_max: int
    is_ordered: bool
    """Whether messages of one link arrive in order, as in a stream. Otherwise each is delayed independently."""
    loss: float
    duplication: float
    late: float
    """Share of messages that arrive several election timeouts late."""
    snapshot_delay_max: int
    """Maximum additional delay of a snapshot, since it is streamed."""
    reports_unreachable: bool
    # disk
    append_delay_max: int
    told_delay_max: int
    """Maximum delay after which a core is told that a write is done. Its responses leave before that. 0: no delay."""
    appends_in_flight_max: int
    apply_delay_max: int
    """Maximum delay before entries are applied. 0: no delay."""
    cold_reads: float
    """Share of log reads whose entries must be fetched first."""
    # clocks
    clock_rates: tuple[float, float]
    """The length of a replica's tick is `TICK` times a factor drawn from this range."""
    uses_quiet_heartbeats: bool
    # load: average number of nominal ticks between two events, or 0 for never
    propose_every: float
    read_every: float
    fault_every: float
    compact_every: float
    membership_every: float
    transfer_every: float
    voters_min: int
    """Minimum number of voters that a change of membership leaves. A single voter elects itself, and learners follow it."""
    # weights of faults, or 0 for an absent fault
    crash: int
    crash_all: int
    isolate: int
    usurp: int
    """A leader is cut off while the others campaign immediately, so there are two leaders and log tails to overwrite."""
    interrupt: int
    """A leader disappears, and a follower that campaigns is killed before its disk has any trace of its campaign."""
    split: int
    one_way: int
    pause: int
    disk_stall: int
    forget_leader: int
    step_down: int
    wipe: int
    """At most one replica loses its disk permanently."""


class Profile(Enum):
    """The emphasis of a run."""

    ANY = "any"
    """No emphasis."""
    CHURN = "churn"
    """Leaders change all the time and disks are slow: many log tails are overwritten, some while they are being written."""
    CAMPAIGNS = "campaigns"
    """Candidates die before their candidacy is on disk, and campaign again, while answers arrive late and repeatedly."""
    SNAPSHOTS = "snapshots"
    """Leaders compact their logs up to the applied index, and snapshot streams are slow."""
    READS = "reads"
    """Leaders pause while others are elected, and clients read all the time."""
    MEMBERSHIP = "membership"
    """Changes of membership follow each other quickly."""


_PROFILES = (
    Profile.ANY,
    Profile.ANY,
    Profile.ANY,
    Profile.ANY,
    Profile.CHURN,
    Profile.CAMPAIGNS,
    Profile.SNAPSHOTS,
    Profile.READS,
    Profile.MEMBERSHIP,
)


def _some(random_: random.Random, share: float, low: float, high: float) -> float:
    return random_.uniform(low, high) if random_.random() < share else 0.0


def draw_options(random_: random.Random, profile: Profile | None = None) -> SwarmOptions:
    """Draw the options of a run with this profile, or with a drawn one."""
    options = _draw_any(random_)
    drawn = random_.choice(_PROFILES)
    return _dwell(random_, options, profile or drawn)


def _dwell(random_: random.Random, options: SwarmOptions, profile: Profile) -> SwarmOptions:
    """Adapt options to a profile."""
    uniform = random_.uniform
    match profile:
        case Profile.CHURN:
            return replace(
                options,
                settings=replace(options.settings, election_ticks=4, heartbeat_ticks=1, append_bytes_max=1),
                delay_max=options.delay_min + 30,
                append_delay_max=random_.choice((20, 1000)),
                told_delay_max=random_.choice((0, 400)),
                appends_in_flight_max=8,
                apply_delay_max=0,
                clock_rates=(0.9, 1.1),
                propose_every=0.5,
                read_every=random_.choice((0.0, 0.5)),
                fault_every=uniform(2.0, 4.0),
                usurp=8,
                crash=random_.choice((0, 2)),
                pause=random_.choice((0, 4)),
                disk_stall=random_.choice((0, 2)),
                membership_every=0.0,
                wipe=0,
                fault_ticks=100,
            )
        case Profile.CAMPAIGNS:
            return replace(
                options,
                voter_count=random_.choice((3, 3, 3, 5)),
                settings=replace(options.settings, election_ticks=6, heartbeat_ticks=1),
                is_ordered=False,
                delay_max=options.delay_min + random_.choice((30, 90, 150)),
                loss=random_.choice((0.0, uniform(0.01, 0.1))),
                late=uniform(0.02, 0.2),
                duplication=uniform(0.1, 0.5),
                append_delay_max=random_.choice((200, 1000)),
                told_delay_max=0,
                appends_in_flight_max=random_.choice((1, 2)),
                apply_delay_max=0,
                clock_rates=(0.9, 1.1),
                propose_every=0.5,
                read_every=0.0,
                fault_every=uniform(6.0, 15.0),
                interrupt=8,
                crash=random_.choice((0, 1)),
                compact_every=0.0,
                membership_every=0.0,
                wipe=0,
                fault_ticks=200,
            )
        case Profile.READS:
            return replace(
                options,
                settings=replace(options.settings, election_ticks=4, heartbeat_ticks=1),
                delay_max=options.delay_min + 90,
                append_delay_max=20,
                clock_rates=(0.9, 1.1),
                cold_reads=0.0,
                propose_every=0.5,
                read_every=0.25,
                fault_every=uniform(2.0, 4.0),
                usurp=8,
                pause=8,
                crash_all=0,
                membership_every=0.0,
                compact_every=0.0,
                wipe=0,
                fault_ticks=60,
            )
        case Profile.SNAPSHOTS:
            return replace(
                options,
                settings=replace(
                    options.settings, append_bytes_max=20, inflight_appends_max=8, inflight_bytes_max=100_000
                ),
                is_ordered=False,
                delay_max=options.delay_min + random_.choice((30, 250)),
                loss=uniform(0.02, 0.1),
                propose_every=0.5,
                compact_every=uniform(0.3, 1.0),
                snapshot_delay_max=random_.choice((300, 2 * options.settings.election_ticks * TICK)),
                late=uniform(0.02, 0.2),
                membership_every=0.0,
                fault_ticks=100,
                wipe=0,
                duplication=uniform(0.01, 0.2),
                usurp=4,
                fault_every=uniform(2.0, 6.0),
            )
        case Profile.MEMBERSHIP:
            return replace(
                options,
                membership_every=uniform(0.5, 3.0),
                fault_every=uniform(2.0, 8.0),
                usurp=4,
                split=4,
                wipe=0,
            )
        case Profile.ANY:
            return options


def _draw_any(random_: random.Random) -> SwarmOptions:
    chance = random_.random
    election_ticks = random_.choice((4, 6, 10))
    settings = RaftSettings(
        election_ticks=election_ticks,
        heartbeat_ticks=random_.choice((1, 2)),
        append_bytes_max=random_.choice((1, 20, 300, 100_000)),
        inflight_appends_max=random_.choice((1, 2, 4, 64)),
        inflight_bytes_max=random_.choice((40, 200, 100_000)),
        uncommitted_bytes_max=random_.choice((200, 1_000, 100_000)),
        apply_bytes_max=random_.choice((30, 100_000)),
        pending_reads_max=random_.choice((2, 64)),
        announce_commits=random_.choice((False, True)),
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
        append_delay_max=random_.choice((0, 20, 200, 1000)),
        told_delay_max=random_.choice((0, 0, 150)),
        appends_in_flight_max=random_.choice((1, 2, 8)),
        apply_delay_max=random_.choice((0, 0, 40)),
        cold_reads=_some(random_, 0.3, 0.05, 0.5),
        clock_rates=random_.choice(((1.0, 1.0), (0.9, 1.1), (0.5, 2.0))),
        uses_quiet_heartbeats=chance() < 0.5,
        propose_every=random_.choice((0.6, 1.2, 3.0)),
        read_every=random_.choice((0.0, random_.uniform(0.3, 1.0), random_.uniform(1.5, 5.0))),
        fault_every=random_.choice(
            (0.0, random_.uniform(1.5, 5.0), random_.uniform(1.5, 5.0), random_.uniform(5.0, 20.0))
        ),
        compact_every=random_.choice((0.0, 0.0, random_.uniform(0.5, 2.0), random_.uniform(2.0, 15.0))),
        membership_every=random_.uniform(4.0, 20.0) if has_membership else 0.0,
        transfer_every=_some(random_, 0.4, 8.0, 30.0),
        voters_min=random_.choice((1, 2, 2)),
        crash=weight(0.7),
        crash_all=weight(0.2),
        isolate=weight(0.5),
        usurp=2 * weight(0.6),
        interrupt=weight(0.3),
        split=weight(0.5),
        one_way=weight(0.4),
        pause=weight(0.3),
        disk_stall=weight(0.3),
        forget_leader=weight(0.2),
        step_down=weight(0.2),
        wipe=weight(0.3) if has_membership else 0,
    )
