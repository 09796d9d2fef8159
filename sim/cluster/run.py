"""The run of one seed: a cluster forms, and then goes through a phase with faults, in which nothing unsafe may happen. Then it is healed
and must recover: every group has a leader, every partition can be written and read, and all replicas are equal.
"""

from __future__ import annotations

import gc
import importlib
import random
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any
from zlib import crc32

from raftmq.broker.replica.disk import Idle
from raftmq.fsm.feature_levels import NEWCOMER_LEVEL, UNITED_STAMPS_LEVEL
from raftmq.fsm.metadata import Metadata
from raftmq.types import METADATA_GROUP_ID, GroupId, NodeId

from sim.cluster.checker import LOOK_SECONDS, Checker
from sim.cluster.claimers import Claimers, has_claimers
from sim.cluster.cluster import EPOCH_MS, Cluster, ClusterSettings, SimConfig, SimNode, TightConfig, leads, scale
from sim.cluster.entrants import Entrants, has_entrants
from sim.cluster.environment import ProcessEnded, SimParts
from sim.cluster.faults import RATES, Nemesis
from sim.cluster.invariants.dead_letters import watch_deaths
from sim.cluster.invariants.failed_calls import watch_calls
from sim.cluster.invariants.queue_turns import watch_turns
from sim.cluster.invariants.queue_work import watch_work
from sim.cluster.invariants.settings import why_not_followed
from sim.cluster.invariants.space import FreedSpace
from sim.cluster.options import SECONDS_MIN, Options, draw_options
from sim.cluster.queues.options import QUEUE_LEVEL, QueueOptions, draw_queue_options, has_queues
from sim.cluster.queues.scaling import offer_queues
from sim.cluster.queues.workload import QueueWorkload
from sim.cluster.upgrades.next_version import NextVersion
from sim.cluster.upgrades.roller import Roller
from sim.cluster.workload import Workload
from sim.cluster.world.loop import SimulationEnd, SpinningError, VirtualLoop
from sim.cluster.world.network import Network, Weather
from sim.core.invariants.violation import InvariantViolation
from sim.history.checker import judge
from sim.history.events import Event
from sim.history.queues.checker import judge_queues

FORMING_SECONDS = 30.0
LIVENESS_SECONDS = 60.0
"""Virtual time within which a healed cluster must recover. Repair reports are repeated every 1.5 s, a learner has 5 s to catch
up, and clients back off for up to a second."""
CATCH_UP_SECONDS_MAX = 120.0
"""Additional time for overdue schedules. One that missed 1,000 firings, and fires all of them, makes as many commits, one after the other."""
OPERATIONS_MIN = 200
"""Minimum number of client operations in a run. The phase with faults is extended for them, up to a limit. The missing ones follow after healing."""
EXTRA_SECONDS_MAX = 20.0
DISK_BYTES = 50_000_000
QUIET_SECONDS = 20.0
"""Time for the last write-backs, while retention goes on."""
SPACE_SECONDS = 20.0
"""Time within which the space of deleted records must be free again: several rounds of the brokers' space return."""
_LOOK_SECONDS = 0.01
"""Virtual time between two checks of whether a phase is over."""


class WallTimeModule:
    """Replaces the module `time` where the SDK stamps records."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def time(self) -> float:
        """Return the seconds since the epoch."""
        return EPOCH_MS / 1000 + self._loop.now


class Verdict(IntEnum):
    """The result of a run, and the exit code of the command."""

    OK = 0
    SAFETY = 1
    LIVENESS = 2
    CRASH = 3


@dataclass(slots=True)
class Outcome:
    """The result of one run in detail."""

    seed: int
    verdict: Verdict
    detail: str
    digest: int = 0
    """Digest of the whole trace."""
    steps: int = 0
    virtual_seconds: float = 0.0
    real_seconds: float = 0.0
    operations: int = 0
    """Number of operations that clients began."""
    acknowledged: int = 0
    reads: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    groups: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    """Counts of effects that show that faults really happened."""
    healing_seconds: float = 0.0


class LivenessFailure(Exception):  # noqa: N818 - it is what it is called
    """The healed cluster did not recover in time."""


@dataclass(frozen=True, slots=True)
class Build:
    """The simulated code: the product, or a mutant of it."""

    node_class: type[SimNode] = SimNode
    parts_class: type[SimParts] = SimParts
    patch: Callable[[], Callable[[], None]] | None = None
    """Changes the product in place, and returns a function that undoes it."""
    option_overrides: Mapping[str, object] = field(default_factory=dict)
    """Options that replace the drawn ones of every seed."""
    has_queues: bool | None = None
    """Whether the run has queue topics. None: some seeds have."""
    queue_overrides: Mapping[str, object] = field(default_factory=dict)
    """Options of queue topics that replace the drawn ones of every seed."""
    is_upgraded: bool | None = None
    """Whether the brokers are upgraded to the next version during the run, and down and up again. None: some seeds draw it."""
    has_claimers: bool | None = None
    """Whether the run has clients that claim names of producers. None: some seeds have."""
    has_entrants: bool | None = None
    """Whether the run has clients that enter sets by adding bits to stamps. None: some seeds have."""


PRODUCT = Build()

_KEPT: list[Simulation] = []
"""The runs of this process. They are kept because collecting one would run the `finally` blocks of its tasks."""


FIRST_WITH_ORDERS = 16
"""Lower seeds have no orders of the two kinds below: the suite replays them."""
UPGRADED_EVERY = 7
"""One in so many of the seeds that may have orders is an upgrade."""
MORE_PARTITIONS_SHARE = 0.35
"""Share of the seeds in which permanent topics get more partitions."""
SETTINGS_SHARE = 0.25
"""Share of the seeds in which settings are changed while brokers run."""
STUCK_GROWTH_SHARE = 0.6
"""Share of the seeds in which a further replica does not arrive, of those with enough brokers."""
OVERTAKING_SHARE = 0.1
"""Share of the seeds in which leaders are overtaken while a follower installs their snapshot."""
RARITIES_SHARES = {"fail_commit": 0.25, "late_share": 0.5, "move_rate": 0.3}
"""Shares of the seeds in which commits fail, members are late, and an operator sets a rate of moves."""
SWAPS_SHARE = 0.15
"""Share of the seeds in which machines exchange their disks."""
RECOVERIES_SHARE = 0.15
"""Share of the seeds in which partitions lose their majority."""
RESHAPES_SHARE = 0.2
"""Share of the seeds in which an operator reshapes the cluster, and of those in which brokers are retired."""


def _with_orders(seed: int, options: Options) -> Options:
    """Add the options of recoveries and of further orders, drawn from a stream of their own, so that other runs do not depend on them."""
    if seed < FIRST_WITH_ORDERS:
        return options
    rng = random.Random(f"orders of {seed}")
    weights = {
        name: rng.randrange(3, 8) if rng.random() < share else 0
        for name, share in (("recover", RECOVERIES_SHARE), ("reshape", RESHAPES_SHARE), ("retire_node", RESHAPES_SHARE))
    }
    options = replace(options, may_recover_less=rng.random() < 0.7, **weights)  # type: ignore[arg-type]  # by name
    if options.recover:  # only so many brokers leave the metadata a majority without those that a partition has lost
        options = replace(options, machines=5, metadata_voters=5)
    if options.retire_node:  # a broker can be drained if as many others remain as a topic has replicas
        options = replace(options, machines=max(options.machines, 4))
    return options


def is_upgraded(seed: int) -> bool:
    """Return whether a run is an upgrade if nobody says otherwise."""
    return seed >= FIRST_WITH_ORDERS and seed % UPGRADED_EVERY == UPGRADED_EVERY - 1


def _with_growth(seed: int, options: Options) -> Options:
    """Add the options of more partitions and of replicas that do not arrive, drawn from a stream of their own."""
    if seed < FIRST_WITH_ORDERS:
        return options
    rng = random.Random(f"growth of {seed}")
    grow_every = rng.uniform(0.8, 3.0) if rng.random() < MORE_PARTITIONS_SHARE else 0.0
    is_possible = not options.recover and options.machines >= options.replication_factor + 2  # one is down, one is free
    is_stuck = rng.random() < STUCK_GROWTH_SHARE and is_possible
    return replace(options, grow_every=grow_every, stuck_growth=rng.randrange(1, 4) if is_stuck else 0)


def _with_settings(seed: int, options: Options) -> Options:
    """Add changes of run-time settings, drawn from a stream of their own."""
    rng = random.Random(f"settings of {seed}")
    is_drawn = seed >= FIRST_WITH_ORDERS and rng.random() < SETTINGS_SHARE
    return replace(options, configure=rng.randrange(1, 5)) if is_drawn else options


def _with_swaps(seed: int, options: Options) -> Options:
    """Add disks that are exchanged, drawn from a stream of their own."""
    rng = random.Random(f"swaps of {seed}")
    is_drawn = seed >= FIRST_WITH_ORDERS and rng.random() < SWAPS_SHARE
    return replace(options, swap=rng.randrange(2, 6)) if is_drawn else options


def _with_overtaking(seed: int, options: Options) -> Options:
    """Add leaders that are overtaken while a follower installs their snapshot, drawn from a stream of their own, and the settings that they need."""
    rng = random.Random(f"overtaking of {seed}")
    if seed < FIRST_WITH_ORDERS or rng.random() >= OVERTAKING_SHARE:
        return options
    return replace(
        options,
        overtake=rng.randrange(6, 12),
        machines=5,
        replication_factor=5,
        topics=1,
        partitions=2,
        producers=3,
        send_every=0.25,
        is_tight=True,  # a leader with large bounds keeps its log for a follower that hangs
        tick_seconds=0.15,
        election_ticks=5,
        retention_ms=1_200,
        retention_seconds=1.0,
    )


def _with_rarities(seed: int, options: Options) -> Options:
    """Add commits that fail, late members and a rate of moves, drawn from a stream of their own."""
    if seed < FIRST_WITH_ORDERS:
        return options
    rng = random.Random(f"rarities of {seed}")
    drawn = {name: rng.random() < share for name, share in RARITIES_SHARES.items()}
    return replace(
        options,
        fail_commit=rng.randrange(1, 5) if drawn["fail_commit"] else 0,
        late_share=rng.uniform(0.02, 0.1) if drawn["late_share"] else 0.0,
        move_rate=rng.choice(RATES[1:]) if drawn["move_rate"] else 0,
        stalls_reads=rng.random() < 0.5,
    )


class Simulation:
    """One run with all its parts."""

    forming_seconds = FORMING_SECONDS
    liveness_seconds = LIVENESS_SECONDS
    look_seconds = _LOOK_SECONDS
    config_class = SimConfig
    check_seconds = LOOK_SECONDS
    entries_behind_max = 0
    """The entries by which the replicas of a partition may differ while it counts as whole."""

    def __init__(
        self,
        seed: int,
        build: Build = PRODUCT,
        trace: Callable[[str], None] | None = None,
        options: Options | None = None,
    ) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        drawn = draw_options(random.Random(self.rng.getrandbits(64)))
        self.options = options or replace(drawn, **build.option_overrides)  # type: ignore[arg-type]  # by name
        self.queue_options = self._draw_queue_options(build)
        if self.queue_options is not None and options is None and "all_down" not in build.option_overrides:
            self.options = replace(self.options, all_down=self.queue_options.all_down)
        if options is None and not build.option_overrides:
            self.options = _with_settings(seed, _with_growth(seed, _with_orders(seed, self.options)))
            self.options = _with_overtaking(seed, _with_swaps(seed, _with_rarities(seed, self.options)))
        self.is_upgraded = is_upgraded(seed) if build.is_upgraded is None else build.is_upgraded
        if self.is_upgraded:  # the operator of an upgrade waits for every broker
            self.options = replace(self.options, stuck_growth=0)
        self._trace = trace
        self.digest = 0
        threads = self._child()
        self.loop = VirtualLoop(lambda: threads.expovariate(2000.0))  # type: ignore[abstract]  # the rest of a loop is not used
        options = self.options
        weather = Weather(options.delay_min, options.delay_mean, options.slow_share, 0.2, 0.0, 0.0)
        self.network = Network(self.loop, self._child(), weather)
        self.network.digest = self._on_bytes
        self.cluster = Cluster(
            self.loop, self.network, self._child(), self._settings(), self.trace, build.node_class, build.parts_class
        )
        self.checker = Checker(self.cluster, is_forgetful=options.is_forgetful, look_seconds=self.check_seconds)
        self.workload = Workload(self.cluster, self.checker, options, self._child())
        self.queues: QueueWorkload | None = None
        if self.queue_options is not None:
            self.cluster.tears_left = self.queue_options.torn_installs
            rng = random.Random(f"queues of {seed}")
            self.queues = QueueWorkload(
                self.cluster, options, self.queue_options, rng, self.workload.spawn, self.workload.count_error
            )
            self.queues.ledger.is_stopping = lambda: self.workload.is_stopping
        self.claimers: Claimers | None = None
        if has_claimers(seed) if build.has_claimers is None else build.has_claimers:
            self.claimers = Claimers(self.cluster, self.workload, options, random.Random(f"claims of {seed}"))
        self.entrants: Entrants | None = None
        if has_entrants(seed) if build.has_entrants is None else build.has_entrants:
            queue_options = self.queue_options
            is_united = queue_options is None or queue_options.starts_at_level >= UNITED_STAMPS_LEVEL
            rng = random.Random(f"entries of {seed}")
            self.entrants = Entrants(self.cluster, self.workload, options, rng, is_united=is_united)
        self.next_version = NextVersion() if self.is_upgraded else None
        self.roller: Roller | None = None
        self.nemesis: Nemesis | None = None
        self.healing_seconds = 0.0

    def _child(self) -> random.Random:
        return random.Random(self.rng.getrandbits(64))

    def _draw_queue_options(self, build: Build) -> QueueOptions | None:
        """Draw from a stream of its own, so that runs without queues do not depend on it."""
        if not (has_queues(self.seed) if build.has_queues is None else build.has_queues):
            return None
        drawn = draw_queue_options(random.Random(f"queue options of {self.seed}"))
        return replace(drawn, **build.queue_overrides)  # type: ignore[arg-type]  # by name

    def offer_queues(self) -> Callable[[], None]:
        """Change the product if the run has queue topics. Return a function that undoes it."""
        if self.queue_options is None:
            return lambda: None
        undos = [
            offer_queues(self.queue_options),
            watch_work(self.checker.judge),
            watch_deaths(),
            watch_turns(lambda *entry: self.checker.judge(self.checker.fair_turns.on_entry, *entry)),
        ]

        def undo() -> None:
            for undo_one in reversed(undos):
                undo_one()

        return undo

    def add_next_version(self) -> Callable[[], None]:
        """Add the next version of the product if the run is an upgrade. Return a function that undoes it."""
        return self.next_version.install() if self.next_version is not None else lambda: None

    def _settings(self) -> ClusterSettings:
        options = self.options
        return ClusterSettings(
            timing={
                "data_tick_seconds": options.tick_seconds,
                "metadata_tick_seconds": options.tick_seconds,
                "data_election_ticks": options.election_ticks,
                "metadata_election_ticks": options.election_ticks,
                "retention_check_seconds": options.retention_seconds,
                "leadership_publish_seconds": 1.0,
                "controller_seconds": 0.3,
                "stable_seconds": 0.8 if options.has_orders else 10.0,
                "shutdown_seconds": 3.0,
                "mark_renewal_seconds": options.renewal_seconds,
            },
            limits={
                "uncommitted_bytes_max": options.uncommitted_bytes_max,
                "recent_entries_bytes_max": options.recent_entries_bytes_max,
                "inbound_append_bytes_max": options.inbound_append_bytes_max,
            },
            disk_capacity=DISK_BYTES,
            disk_reserve_bytes=100_000,
            disk_latency=options.disk_latency,
            writer_threads=options.writer_threads,
            metadata_voters=options.metadata_voters,
            config_class=TightConfig if options.is_tight else self.config_class,
        )

    # ------------------------------------------------------------------------------------------------ trace

    def trace(self, text: str) -> None:
        """Add a line to the digest, and print it if a trace was requested."""
        line = f"{self.loop.now:9.4f} {text}"
        self.digest = crc32(line.encode(), self.digest)
        if self._trace is not None:
            self._trace(line)

    def _on_bytes(self, source: str, target: str, data: bytes) -> None:
        self.digest = crc32(data, self.digest)

    # ------------------------------------------------------------------------------------------------ phases

    def run(self) -> None:
        """Run all phases. Raises the error that ends the run."""
        self._form()
        self._disturb()
        self._heal()

    def _until(self, is_done: Callable[[], bool] | None, seconds: float) -> bool:
        """Run until `is_done` or for the given time. Return whether it is done. A broken invariant ends the run even if the product caught it."""
        checker, loop = self.checker, self.loop
        look_at = 0.0

        def is_over() -> bool:
            nonlocal look_at
            if checker.violation is not None:
                return True
            if is_done is None or loop.now < look_at:
                return False
            look_at = loop.now + self.look_seconds
            return is_done()

        is_reached = loop.run_until(is_over, loop.now + seconds)
        if checker.violation is not None:
            raise checker.violation
        self._check_failures()
        return is_reached

    def _check_failures(self) -> None:
        for what, error in self.loop.failures:
            if error is not None and not isinstance(error, ProcessEnded):
                raise error
            if error is None:
                raise RuntimeError(what)

    def _form(self) -> None:
        cluster, options = self.cluster, self.options
        rates = self._child()
        for _ in range(options.machines):
            machine = cluster.add_machine()
            machine.rate = rates.uniform(*options.clock_rates)
        for machine in cluster.machines.values():
            cluster.start(machine)

        def is_formed() -> bool:
            return all(m.process is not None and m.process.is_ready for m in cluster.machines.values())

        if not self._until(is_formed, self.forming_seconds):
            raise LivenessFailure(f"the cluster does not form: {self._describe()}")
        created = self.workload.create_topics()
        if not self._until(created.done, self.forming_seconds):
            raise LivenessFailure(f"topics are not created: {self._describe()}")
        created.result()
        if self.queues is not None and self.queues.options.starts_at_level >= QUEUE_LEVEL:
            created = self.queues.create_topics()
            if not self._until(created.done, self.forming_seconds):
                raise LivenessFailure(f"queue topics are not created: {self._describe()}")
            created.result()
        if not self._until(
            self._is_whole, self.forming_seconds
        ):  # before that, one machine may hold the only copy of metadata
            raise LivenessFailure(f"the cluster does not become whole: {self._why_not_whole()}; {self._describe()}")
        self.trace("formed")

    def _disturb(self) -> None:
        options = self.options
        self.network.weather.reset_share = options.reset_share
        self.network.weather.drop_share = options.drop_share
        self.nemesis = Nemesis(self.cluster, options, self._child(), self.checker)
        self.workload.start()
        if self.queues is not None:
            self.queues.start()
        if self.claimers is not None:
            self.claimers.start()
        if self.entrants is not None:
            self.entrants.start()
        if self.next_version is not None:
            self._begin_upgrade(self.next_version)
        self._until(None, options.seconds)
        if not self._has_enough_operations():
            self.nemesis.slow_down()
            self._until(self._has_enough_operations, EXTRA_SECONDS_MAX)

    def _begin_upgrade(self, version: NextVersion) -> None:
        rng, workload = random.Random(f"upgrade of {self.seed}"), self.workload
        roller = self.roller = Roller(self.cluster, self.checker, rng, version, workload.new_admin)
        self.checker.on_look.append(roller.look)
        workload.spawn("roller", roller.disturb())
        workload.spawn("user of the next version", roller.use())

    def _has_enough_operations(self) -> bool:
        """Return whether clients have done enough operations, or the run is meant to be short."""
        return self.options.seconds < SECONDS_MIN or self.workload.recorder._operation_count >= OPERATIONS_MIN

    def _heal(self) -> None:
        assert self.nemesis is not None
        self.trace("heals")
        begun = self.loop.now
        self.network.weather.reset_share = self.network.weather.drop_share = self.network.weather.slow_share = 0.0
        self.nemesis.heal()
        if self.roller is not None:
            self.roller.is_over = True
            self.workload.spawn("upgrade", self.roller.finish())
        if not self._until(self._has_enough_operations, self.liveness_seconds):
            raise LivenessFailure(f"clients do not get to {OPERATIONS_MIN} operations: {self._describe()}")
        deadline = self.loop.now + self.liveness_seconds
        self.workload.is_stopping = True
        if not self._until(self.workload.stopped, self.liveness_seconds):
            raise LivenessFailure(f"clients do not end: {self._describe()}")
        verified = [self.workload.verify()]
        if self.queues is not None:
            verified.append(self.workload.spawn("qv", self.queues.drain()))
        if self.claimers is not None:
            verified.append(self.claimers.verify())
        if self.entrants is not None:
            verified.append(self.entrants.verify())

        def is_verified() -> bool:
            return all(task.done() for task in verified)

        granted = 0.0
        while not self._until(lambda: is_verified() and self._is_whole(), deadline + granted - self.loop.now):
            caught_up = 0.0 if self.queues is None else min(self.queues.overdue_seconds, CATCH_UP_SECONDS_MAX)
            if caught_up <= granted:
                raise LivenessFailure(f"read and written: {is_verified()}; {self._why_not_whole()}; {self._describe()}")
            granted = caught_up
        for task in verified:
            task.result()
        space = FreedSpace()
        if not self._until(lambda: not space.why_kept(self._nodes()), SPACE_SECONDS):
            raise LivenessFailure(f"FreedSpaceReturns: {space.why_kept(self._nodes())}")
        self._until(None, 0.3)
        if not self._until(self.checker.is_quiet, QUIET_SECONDS):
            raise LivenessFailure(f"entries are not applied, or states are not written back: {self._describe()}")
        self.checker.at_end()
        failure = self.loop.unseen_failure()
        if failure is not None:
            raise failure
        self._judge_history()
        self.healing_seconds = self.loop.now - begun
        if self.checker.violation is not None:
            raise self.checker.violation

    def _nodes(self) -> Iterator[SimNode]:
        return (node for m in self.cluster.machines.values() if (node := m.node) is not None)

    def _judge_history(self) -> None:
        """Judge the histories of the clients by checkers that know nothing about brokers."""
        if self.queues is not None:
            ledger = self.queues.ledger
            single = ledger.groups if self.queues.options.is_single_active else ()
            for found in judge_queues(ledger.operations, ledger.ordered, ledger.backoffs_ms, single):
                raise InvariantViolation(f"Queue.{found.anomaly}", found.text)
        verdict = judge(self.workload.history)
        for found in verdict.findings:
            raise InvariantViolation(f"History.{found.anomaly}", found.text)
        for text in verdict.undecided:
            raise InvariantViolation("History.undecided", text)
        if not verdict.is_read_to_the_end:
            raise InvariantViolation("History.unread", "nobody read everything back, so lost records could not be told")

    def _is_whole(self) -> bool:
        return not self._why_not_whole()

    def _why_not_whole(self) -> str:
        """Return the first difference between a group and its description in metadata, or an empty string."""
        nodes: dict[NodeId, SimNode] = {}
        for machine in self.cluster.machines.values():
            node = machine.node
            if node is None or machine.process is None or not machine.process.is_ready:
                return f"{machine.name} is not ready"
            nodes[node.view.node_id] = node
        leading = [n for n in nodes.values() if (g := n.engine.replicas.get(METADATA_GROUP_ID)) and leads(g)]
        if len(leading) != 1:
            return f"metadata has {len(leading)} leaders"
        metadata = leading[0].view.metadata.state_machine
        membership = leading[0].view.metadata.core.membership
        active = sum(1 for node in metadata.nodes() if node.state == "active")
        voters = min(self.options.metadata_voters, (active + 1) // 2 * 2 - 1)
        if len(membership.voters) != voters or membership.outgoing:
            return f"metadata has members {membership}"
        groups = [node.engine.replicas[METADATA_GROUP_ID] for node in nodes.values()]
        if any(not isinstance(group.disk, Idle) or group.core.has_ready() for group in groups):
            return "metadata is being written"  # perhaps a change of its members
        for topic in metadata.topics():
            for group_id in topic.group_ids:
                problem = self._problem_of_group(GroupId(group_id), nodes, metadata)
                if problem:
                    return f"g{group_id} {problem}"
        problem = self._problem_of_layout(leading[0], metadata) if self.options.has_orders else ""
        if problem:
            return problem
        applied = {group.core.applied_index for group in groups}
        if len(applied) != 1:
            return f"metadata is applied up to {sorted(applied)}"
        if self.nemesis is None:  # nothing has happened yet
            return next(filter(None, (why_not_followed(node, metadata) for node in nodes.values())), "")
        why_not = (self._problem_of_replicas(metadata), *(self._problem_of_node(n, metadata) for n in nodes.values()))
        return next(filter(None, why_not), "")

    @staticmethod
    def _problem_of_node(node: SimNode, metadata: Metadata) -> str:
        """Return the first reason why a broker is not ready, file that it has kept, or setting that it ignores."""
        for reason in node.standing.not_ready_reasons():
            return f"node {node.view.node_id} is not ready: {reason.message}"
        for key in node.process.machine.disk.files:
            partition = metadata.partition(key.group_id)
            if key.group_id != METADATA_GROUP_ID and (
                partition is None or all(key.replica_id != one.replica_id for one in partition.replicas)
            ):
                return f"node {node.view.node_id} keeps r{key.replica_id} of g{key.group_id}"
        return why_not_followed(node, metadata)

    def _problem_of_replicas(self, metadata: Metadata) -> str:
        """Return which partition has fewer replicas than it should have, unless an operator moved some to fewer brokers."""
        is_meant = self.nemesis is None or self.nemesis.counts["move_replicas"]
        if is_meant or metadata.feature_level < NEWCOMER_LEVEL:
            return ""
        active = sum(1 for node in metadata.nodes() if node.state == "active")
        for topic in metadata.topics():
            for group_id in topic.group_ids:
                partition = metadata.partition(group_id)
                wanted = min(topic.replication_factor, active)
                if partition is not None and len(partition.replicas) < wanted:
                    return f"g{group_id} has {len(partition.replicas)} replicas, and its topic wants {wanted}"
        return ""

    @staticmethod
    def _problem_of_layout(leader: SimNode, metadata: Metadata) -> str:
        """Return why the replicas are not where the operator's wishes want them."""
        if metadata.feature_level < NEWCOMER_LEVEL:
            return ""
        if not leader.controller.is_at_rest(metadata):
            return "the controller still moves replicas"
        for node in metadata.nodes():
            if node.state == "draining":
                held = {partition.group_id for partition in metadata.partitions_of_node(node.node_id)}
                if held - set(leader.controller.without_place):
                    return f"node {node.node_id} is drained and holds replicas of {sorted(held)}"
        active = sum(1 for node in metadata.nodes() if node.state == "active")
        for topic in metadata.topics():
            for group_id in topic.group_ids:
                partition = metadata.partition(group_id)
                wanted = min(topic.replication_factor, active)
                if partition is not None and len(partition.replicas) != wanted:
                    return f"g{group_id} has {len(partition.replicas)} replicas, and its topic wants {wanted}"
        return ""

    def _problem_of_group(self, group_id: GroupId, nodes: dict[NodeId, SimNode], metadata: Metadata) -> str:
        partition = metadata.partition(group_id)
        if partition is None:
            return "is unknown"
        if partition.retiring:
            return f"has retiring replicas {partition.retiring}"
        wanted = {replica.replica_id for replica in partition.replicas}
        groups = []
        for replica in partition.replicas:
            node = nodes.get(NodeId(replica.node_id))
            group = node.engine.replicas.get(group_id) if node is not None else None
            if group is None or group.replica_id != replica.replica_id:
                return f"r{replica.replica_id} is not hosted on node {replica.node_id}"
            groups.append(group)
        leaders = [group for group in groups if leads(group)]
        if len(leaders) != 1:
            return f"has {len(leaders)} leaders"
        membership = leaders[0].core.membership
        if set(membership.voters) != wanted or membership.outgoing or membership.learners:
            return f"has members {membership}, wanted {sorted(wanted)}"
        applied = {group.core.applied_index for group in groups}
        return "" if max(applied) - min(applied) <= self.entries_behind_max else f"is applied up to {sorted(applied)}"

    def _describe(self) -> str:
        parts = []
        for machine in self.cluster.machines.values():
            node = machine.node
            if node is None:
                parts.append(f"{machine.name} is down")
                continue
            groups = [
                f"g{g.group_id}:r{g.replica_id} {g.core.role.value} t{g.term} a{g.state_machine.applied_index}"
                for g in node.engine.replicas.values()
            ]
            reasons = [reason.message for reason in node.standing.not_ready_reasons()]
            parts.append(
                f"{machine.name} node {node.view.node_id} {'; '.join(reasons) or 'ready'} [{', '.join(groups)}]"
            )
        return " | ".join(parts)

    def counts(self) -> dict[str, int]:
        """Return counts of effects that show that faults really happened."""
        network, machines = self.network, self.cluster.machines.values()
        return {
            "packets_held": network.held,
            "packets_clogged": network.clogged,
            "frames_dropped": network.dropped,
            "stalls": sum(self.checker.stalls.values()),
            "streams_reset": network.resets,
            "streams_given_up": network.lost_streams,
            "slow_commits": sum(m.disk.slow_commits for m in machines),
            "clock_jumps_read": sum(m.wall.jumps_read for m in machines),
            "torn_commits": sum(m.disk.torn_commits for m in machines),
            "writes_refused": sum(m.disk.refused_writes for m in machines),
            "commits_failed": sum(m.disk.failed_commits for m in machines),
            "moves_paced": self.checker.moves_paced,
            "snapshots_installed": self.cluster.installs
            + sum(p.parts.sim_store.installs for p in self.cluster.running() if p.parts.sim_store is not None),
            "snapshots_resumed": self.cluster.resumes
            + sum(p.node.engine.receiver.resumed_total for p in self.cluster.running() if p.node is not None),
            "boots": sum(m.boot for m in machines),
            "leaders": self.checker.leaders_elected,
            "replicas_quarantined": len(self.checker.quarantined),
            "defects_noted": self.checker.defects_noted,
            "broken_replicas": self.checker.broken_replicas,
            "lost_ends": self.checker.lost_ends,
            "stale_directories": self.checker.stale_directories,
            "states_compared": self.checker.replica_states.compared,
            "queue_states_compared": self.checker.queue_states.compared,
            "dead_letters": self.checker.dead_letters.copies,
            "dead_letter_restarts": self.checker.dead_letters.restarts,
            "firings": self.checker.firings.fired,
            "stale_firings": self.checker.firings.stale,
            "turns_checked": self.checker.fair_turns.checked,
            "duplicates": self.checker.exactly_once.duplicates,
            "group_commits": self.checker.groups.commits,
            "sessions_ended": self.checker.groups.ended_sessions,
            "clocks_found_wrong": self.checker.clocks_found_wrong,
            "retention_trims": self.checker.retention.trims,
            "write_backs_kept": sum(m.disk.kept_write_backs for m in machines),
            "snapshot_copies": sum(m.disk.copies_made for m in machines),
            "snapshot_copies_left": sum(m.disk.copies_left for m in machines),
            "installs_torn": sum(m.disk.torn_installs for m in machines),
            "installs_overtaken": sum(m.disk.overtaken_installs for m in machines),
            **self.workload.outcomes,
            **(self.queues.ledger.counts if self.queues is not None else {}),
            **(self.roller.counts if self.roller is not None else {}),
            **(self.next_version.counts if self.next_version is not None else {}),
        }


def run_seed(
    seed: int,
    build: Build = PRODUCT,
    trace: Callable[[str], None] | None = None,
    options: Options | None = None,
    history: Callable[[list[Event]], None] | None = None,
    simulation_class: type[Simulation] = Simulation,
) -> Outcome:
    """Run one seed and return its outcome. An exception of the simulated code becomes a verdict."""
    sdk_clock: Any = importlib.import_module("raftmq.client.producer.accumulator")
    begun = time.process_time()
    undo = build.patch() if build.patch is not None else None
    time_module = sdk_clock.time
    was_enabled = gc.isenabled()
    gc.disable()  # the time of a collection does not depend on the seed
    simulation = simulation_class(seed, build, trace, options)
    _KEPT.append(simulation)
    unscale = scale(is_tight=simulation.options.is_tight, is_forgetful=simulation.options.is_forgetful)
    unoffer = simulation.offer_queues()
    withdraw = simulation.add_next_version()
    unwatch = watch_calls(simulation.checker.judge)
    sdk_clock.time = WallTimeModule(simulation.loop)
    if trace is not None:
        trace(f"seed {seed}: {simulation.options}")
        if simulation.queue_options is not None:
            trace(f"queues: {simulation.queue_options}")
    verdict, detail = Verdict.OK, ""
    try:
        simulation.run()
    except InvariantViolation as violation:
        verdict, detail = Verdict.SAFETY, str(violation)
    except LivenessFailure as failure:
        verdict, detail = Verdict.LIVENESS, str(failure)
    except SimulationEnd:
        verdict, detail = Verdict.SAFETY, str(simulation.checker.violation)
    except SpinningError as error:
        verdict, detail = Verdict.CRASH, f"it spins: {error}"
    except Exception as error:  # noqa: BLE001 -- any exception of the simulated code is a finding
        if trace is not None:
            trace(traceback.format_exc())
        verdict, detail = Verdict.CRASH, f"{type(error).__name__}: {error}"
    finally:
        sdk_clock.time = time_module
        unwatch()
        withdraw()
        unoffer()
        unscale()
        if undo is not None:
            undo()
        if was_enabled:
            gc.enable()
    if history is not None:
        history(simulation.workload.history)
    return Outcome(
        seed,
        verdict,
        detail,
        simulation.digest,
        simulation.loop.steps,
        simulation.loop.now,
        time.process_time() - begun,
        sum(event.kind == "invoke" for event in simulation.workload.history),
        simulation.checker.acknowledged.count,
        simulation.checker.reads.count,
        dict(simulation.nemesis.counts) if simulation.nemesis is not None else {},
        len(simulation.workload.groups),
        simulation.counts(),
        simulation.healing_seconds,
    )
