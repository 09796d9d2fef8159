"""The options of one seed's run: each kind of fault is present or absent, with a random strength (swarm testing).

Source: Groce et al., "Swarm testing" (2012), and TigerBeetle's VOPR.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, fields

SECONDS_MIN = 10.0
"""Minimum length of the phase with faults, in virtual seconds."""
HARDLY_EVER = 600.0
"""An interval that is longer than a run."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of one run, drawn from its seed."""

    machines: int
    metadata_voters: int
    seconds: float
    """Length of the first phase."""
    # timing of the brokers
    tick_seconds: float
    election_ticks: int
    retention_seconds: float
    # limits, small enough to be met
    uncommitted_bytes_max: int
    recent_entries_bytes_max: int
    inbound_append_bytes_max: int
    is_tight: bool
    """Whether every other bound is small too: snapshots of many frames, few simultaneous campaigns, streams and repairs, short tails of metadata."""
    # network
    delay_min: float
    delay_mean: float
    slow_share: float
    reset_share: float
    drop_share: float
    # disk
    disk_latency: float
    writer_threads: int
    # clocks
    clock_rates: tuple[float, float]
    # load
    topics: int
    partitions: int
    replication_factor: int
    producers: int
    consumers: int
    send_every: float
    """Seconds between two sends of a producer, on average."""
    value_bytes_max: int
    delivery_seconds: float
    """Delivery timeout of the producers."""
    request_seconds: float
    plain_producers: int
    """Number of producers that are not idempotent."""
    admin_every: float
    """Seconds between two changes of topics, or 0 for none."""
    trim_every: float
    """Seconds between two deletions of records, or 0 for none."""
    members: int
    """Number of members of a consumer group."""
    namesakes: int
    """Number of additional producers with the same name. Each one that starts fences the previous one."""
    retention_ms: int
    """Retention time of the last topic, or 0 for no limit."""
    # faults: average number of seconds between two, and their weights, or 0 for an absent fault
    fault_every: float
    kill: int
    power_cut: int
    kill_all: int
    stop: int
    freeze: int
    """A process is frozen, or its machine is suspended."""
    isolate: int
    one_way: int
    split: int
    clog: int
    break_streams: int
    slow_disk: int
    stall_disk: int
    full_disk: int
    full_map: int
    clock_jump: int
    """The clock of any machine jumps, by less than brokers consider a difference."""
    wrong_clock: int
    """The clock of one machine jumps by seconds to months. Only one, since a majority must know the time."""
    sleep_all: int
    """All machines are suspended for hours. Only their wall clocks continue."""
    replace_replica: int
    move_replicas: int
    add_machine: int
    flip: int
    """A stored byte of one machine is damaged. Only one machine, since a majority must stay intact."""
    wipe: int
    remove_node: int
    freeze_client: int
    defect: int
    """The program has a defect for a while, on one machine, in one replica or in one loop."""
    is_forgetful: bool
    """Whether partitions forget active producers, as after years of wrong clocks."""
    stale_copy: int
    """The disk of the machine that may lose data is replaced by a copy from an earlier boot."""
    operate: int = 0
    """An operator drains a broker, ends that, asks for a rebalancing, pauses balancing or changes a replication factor."""
    all_down: int = 0
    """All machines are without power for hours. Only runs with queues draw it."""

    recover: int = 0
    """A partition loses its majority, and an operator revives it from one replica. The others return afterwards."""
    may_recover_less: bool = False
    """Whether the replica that is kept in a recovery may lack acknowledged records."""
    reshape: int = 0
    """An operator transfers a leadership, raises or lowers a replication factor, ends a pin, or removes outdated names of producers."""
    retire_node: int = 0
    """An operator drains a broker, removes it when it is empty, and starts a new one on its machine."""
    stuck_growth: int = 0
    """A replication factor is raised while the broker of a further replica is down. It stays down until another broker has the replica."""
    grow_every: float = 0.0
    """Seconds between two additions of partitions to the permanent topics, or 0 for none."""
    renewal_seconds: float = HARDLY_EVER
    """Interval at which brokers renew the marks of their directories."""
    configure: int = 0
    """An operator changes settings of one broker or of all while they run."""
    overtake: int = 0
    """A follower with a hanging disk gets a snapshot and entries after it. Their leader is deposed while the snapshot is being installed."""
    renewed_copy: int = 0
    """The disk of the machine that may lose data is replaced by a copy from before its running broker renewed its mark."""
    fail_commit: int = 0
    """The next commits of a machine fail, with or without effect. Its broker must end itself."""
    late_share: float = 0.0
    """Share of the pauses between two heartbeats of a member that take about as long as a session."""
    stalls_reads: bool = False
    """Whether the reads of a stalled disk, and the writes of its registry, often stall, too."""
    swap: int = 0
    """Two machines exchange their disks, so two brokers get each other's addresses and host labels."""
    move_rate: int = 0
    """Bytes per second that an operator allows for moves from the beginning, or 0 for no such order."""

    @property
    def has_orders(self) -> bool:
        """Whether an operator gives orders, so that replicas must be where the orders want them in the end."""
        return bool(self.operate or self.reshape or self.retire_node or self.stuck_growth)

    def weights(self) -> dict[str, int]:
        """Return the present faults with their weights."""
        return {name: int(getattr(self, name)) for name in FAULTS if getattr(self, name)}

    def __str__(self) -> str:
        parts = []
        for one in fields(self):
            value = getattr(self, one.name)
            if value or one.name not in FAULTS:
                parts.append(f"{one.name}={value:.4g}" if isinstance(value, float) else f"{one.name}={value}")
        return " ".join(parts)


FAULTS = (
    "kill", "power_cut", "kill_all", "stop", "freeze", "isolate", "one_way", "split", "clog", "break_streams", "slow_disk",
    "stall_disk", "full_disk", "full_map", "clock_jump", "wrong_clock", "sleep_all", "replace_replica", "move_replicas", "add_machine", "flip", "wipe",
    "remove_node", "freeze_client", "defect", "stale_copy", "operate", "all_down", "recover", "reshape",
    "retire_node", "renewed_copy", "stuck_growth", "configure", "overtake", "fail_commit", "swap",
)  # fmt: skip
"""The names of all faults, which are also the names of their weights."""


def _some(rng: random.Random, share: float, low: float, high: float) -> float:
    return rng.uniform(low, high) if rng.random() < share else 0.0


def draw_options(rng: random.Random) -> Options:
    """Draw the options of one run."""
    choice, chance, uniform = rng.choice, rng.random, rng.uniform

    def weight(share: float) -> int:
        return rng.randrange(1, 5) if chance() < share else 0

    machines = choice((3, 3, 3, 3, 4, 5))
    may_lose = chance() < 0.5
    tick_seconds = choice((0.15, 0.25))
    producers = choice((2, 3))
    return Options(
        machines=machines,
        metadata_voters=3 if machines < 5 else choice((3, 5)),
        seconds=SECONDS_MIN + uniform(0.0, 0.5),
        tick_seconds=tick_seconds,
        election_ticks=choice((3, 5)),
        retention_seconds=choice((1.0, 2.5)),
        uncommitted_bytes_max=choice((8_000, 1_000_000, 1_000_000)),
        recent_entries_bytes_max=choice((2_000, 20_000, 1_000_000)),
        inbound_append_bytes_max=choice((8_000, 1_000_000, 1_000_000)),
        is_tight=chance() < 0.5,
        delay_min=choice((0.0001, 0.001)),
        delay_mean=choice((0.0005, 0.002, 0.01)),
        slow_share=_some(rng, 0.3, 0.005, 0.05),
        reset_share=_some(rng, 0.3, 0.0005, 0.005),
        drop_share=_some(rng, 0.4, 0.005, 0.1),
        disk_latency=choice((0.0005, 0.003, 0.02)),
        writer_threads=choice((1, 2)),
        clock_rates=choice(((1.0, 1.0), (0.95, 1.05), (0.8, 1.25))),
        topics=choice((1, 1, 2)),
        partitions=choice((3, 4)),
        replication_factor=3 if may_lose or chance() < 0.7 else choice((1, 2)),
        producers=producers,
        consumers=choice((1, 1, 2)),
        send_every=choice((0.25, 0.4)),
        value_bytes_max=choice((40, 200, 2_000)),
        delivery_seconds=choice((1.5, 5.0, 15.0)),
        request_seconds=choice((0.5, 2.0)),
        plain_producers=1 if chance() < 0.3 else 0,
        admin_every=_some(rng, 0.6, 0.5, 2.0),
        trim_every=_some(rng, 0.5, 0.3, 1.5),
        fault_every=uniform(0.4, 1.5),
        kill=weight(0.6),
        power_cut=weight(0.4),
        kill_all=weight(0.15),
        stop=weight(0.3),
        freeze=weight(0.4),
        isolate=weight(0.5),
        one_way=weight(0.4),
        split=weight(0.3),
        clog=weight(0.3),
        break_streams=weight(0.3),
        slow_disk=weight(0.3),
        stall_disk=weight(0.3),
        full_disk=weight(0.2),
        full_map=weight(0.15),
        clock_jump=weight(0.3),
        replace_replica=weight(0.4) if may_lose else 0,
        move_replicas=weight(0.3),
        add_machine=weight(0.15) if machines < 5 else 0,
        flip=weight(0.5) if may_lose else 0,
        wipe=weight(0.5) if may_lose else 0,
        members=choice((0, 0, 0, 2, 3)),
        retention_ms=choice((0, 0, 3_500, 6_000)),
        remove_node=weight(0.4) if may_lose else 0,
        freeze_client=weight(0.3),
        namesakes=choice((0, 0, 2)),
        defect=weight(0.25),
        wrong_clock=weight(0.3),
        sleep_all=weight(0.15),
        is_forgetful=chance() < 0.2,
        stale_copy=weight(0.4) if may_lose else 0,
        operate=weight(0.35),
        renewal_seconds=(renewal := choice((HARDLY_EVER, HARDLY_EVER, 0.7, 2.0))),
        renewed_copy=weight(0.5) if may_lose and renewal < HARDLY_EVER else 0,
    )
