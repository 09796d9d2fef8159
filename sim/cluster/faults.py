"""The nemesis of a cluster: it injects one fault after the other. Most are undone after a while, and `heal` undoes the rest."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from raftmq.broker.base.request_error import RequestError
from raftmq.fsm.feature_levels import FIELD_LEVELS, METADATA_LEVELS, NEWCOMER_LEVEL, PIN_LEVEL
from raftmq.fsm.log_partition import LogPartition
from raftmq.fsm.metadata import Metadata
from raftmq.fsm.metadata_commands import (
    AlterConfig,
    ForgetProducerNames,
    MetadataCommand,
    RecoverPartition,
    RemoveNode,
    ReplaceReplica,
    RevertReplicas,
    SetBalancing,
    SetNodeState,
    SetReplicas,
    SetReplicationFactor,
    encode_command,
)
from raftmq.fsm.metadata_tables import EVERY_NODE
from raftmq.fsm.metadata_views import PartitionView
from raftmq.raft.entry import Entry, EntryKind, Proposal
from raftmq.types import METADATA_GROUP_ID, GroupId

from sim.cluster import overtaking
from sim.cluster.checker import Checker
from sim.cluster.cluster import HOUR_MS, Cluster, Machine, Process, SimNode, leads
from sim.cluster.invariants.removals import check_removable
from sim.cluster.invariants.served import PlantedDefect
from sim.cluster.majority import keeps_majority
from sim.cluster.options import FAULTS, Options
from sim.cluster.workload import NAME
from sim.cluster.world.disk import Disk
from sim.cluster.world.loop import VirtualLoop

MACHINES_MAX = 6
CLOCK_JUMP_MS = 150
"""Maximum error of any machine's clock. Two clocks with such errors differ by less than brokers consider a difference."""
WRONG_CLOCKS_MS = (0, 5_000, 25 * HOUR_MS, 200 * HOUR_MS, 40 * 24 * HOUR_MS)
"""Possible errors of the one wrong clock, ahead or behind."""
SLEEPS_MAX = 3
"""Maximum number of sleeps. Their sum stays below the time for which consumer groups are remembered."""
RECOVERY_LEVEL = METADATA_LEVELS[RecoverPartition]
RECOVERED_TERM = 10_000
_NO_END = 1 << 62
"""An offset that no reader reaches."""
"""A term above all of a run."""
RATES = (0, 20_000, 60_000)
"""Bytes per second of moves. 0: unlimited."""
UNUSED_MS = 300 * HOUR_MS
"""Age of the names of producers that an operator removes. No name is so old, however long the machines sleep, so none may disappear."""
SETTINGS: Final[Mapping[str, tuple[str | None, ...]]] = {
    "log_level": ("debug", "error", None),
    "scrub_bytes_per_second": ("1MiB", "16MiB", None),
}
"""Settings that an operator changes while brokers run, with their values. None removes one."""
_REPEAT_SECONDS = 0.4
"""Time after which an operator repeats a command."""
_SLOW = 5.0
"""Factor by which the time between two faults grows when the phase is extended."""


class Nemesis:
    """Injects one fault after the other until it is stopped."""

    def __init__(self, cluster: Cluster, options: Options, rng: random.Random, checker: Checker) -> None:
        self._cluster = cluster
        self._loop: VirtualLoop = cluster.loop
        self._options = options
        self._rng = rng
        self._checker = checker
        self._is_active = True
        self._pace = 1.0
        self._undo: dict[int, Callable[[], None]] = {}
        self._next_undo = 0
        self.counts: dict[str, int] = dict.fromkeys(FAULTS, 0)
        """Number of times that each fault was injected."""
        self._victim = rng.choice(list(cluster.machines.values()))
        """The only machine that may lose or damage data. All others keep a majority intact."""
        self._wrong_clock_at = rng.choice(list(cluster.machines.values()))
        """The only machine whose clock may be wrong. All others keep a majority that knows the time."""
        self._is_cutting_off = False
        """Whether a replica is cut off from the others of its partition, which will be lost."""
        self._is_growth_stuck = False
        """Whether a machine stays down until a partition does not wait for it."""
        self._is_overtaking = False
        """Whether a leader is being overtaken."""
        self._retiring: dict[str, int] = {}
        """Machine -> its node, which is being drained and removed."""
        self._backup: Disk | None = None
        """A copy of the victim's disk, until it is restored."""
        names = options.weights()
        self._names, self._weights = list(names), list(names.values())
        if options.overtake:  # its steps take most of a run
            self._loop.after(self._rng.uniform(0.5, 2.0), None, self._strike_first, "overtake")
        if options.move_rate:
            self._loop.after(self._rng.uniform(0.0, 0.5), None, self._pace_moves)
        if names:
            self._next()

    def slow_down(self) -> None:
        """Inject faults less often, so that clients can complete the required operations."""
        self._pace = _SLOW

    def _next(self) -> None:
        self._loop.after(self._rng.expovariate(1.0 / (self._options.fault_every * self._pace)), None, self._strike)

    def _strike(self) -> None:
        if not self._is_active:
            return
        (name,) = self._rng.choices(self._names, self._weights)
        if not self._is_overtaking:  # hardly a leader would be overtaken if other faults met its steps
            self.strike(name)
        self._next()

    def _strike_first(self, name: str) -> None:
        if self._is_active and not self.counts[name]:
            self.strike(name)

    def strike(self, name: str) -> None:
        """Inject a fault now."""
        before = self.counts[name]
        getattr(self, f"_{name}")()
        if self.counts[name] == before:
            self._trace(f"no {name} now")

    def heal(self) -> None:
        """Undo all faults, and start all brokers that are down."""
        self._is_active = False
        for number in list(self._undo):
            self._run_undo(number)
        cluster = self._cluster
        cluster.network.heal_all()
        cluster.renew_hardly_ever()  # otherwise metadata would never be at rest, and its file would never keep its size
        for machine in cluster.machines.values():
            machine.disk.is_full = False
            machine.disk.map_bytes_max = 0
            machine.disk.stalled_until = machine.disk.reads_stalled_until = 0.0
            machine.disk.slow_latency = 0.0
            machine.disk.failing_commits = 0
            machine.wall.set(cluster.true_epoch_ms)
            cluster.thaw(machine)
            cluster.start(machine)

    # ------------------------------------------------------------------------------------------------ helpers

    def _trace(self, text: str) -> None:
        self._cluster.trace(f"-- {text}")

    def _did(self, name: str, text: str) -> None:
        self.counts[name] += 1
        self._trace(f"{name} {text}")

    def _later(self, low: float, high: float, undo: Callable[[], None]) -> None:
        number = self._next_undo
        self._next_undo += 1
        self._undo[number] = undo
        self._loop.after(self._rng.uniform(low, high), None, self._run_undo, number)

    def _run_undo(self, number: int) -> None:
        undo = self._undo.pop(number, None)
        if undo is not None:
            undo()

    def _running(self) -> list[Machine]:
        return [m for m in self._cluster.machines.values() if m.process is not None]

    def _pick(self) -> Machine | None:
        running = self._running()
        return self._rng.choice(running) if running else None

    def _pick_leading(self) -> Machine | None:
        """Draw a running machine. In half of the cases it is one that leads a group."""
        leading = [
            p.machine
            for p in self._cluster.running()
            if p.node is not None and any(leads(g) for g in p.node.engine.replicas.values())
        ]
        if leading and self._rng.random() < 0.5:
            return self._rng.choice(leading)
        return self._pick()

    # ------------------------------------------------------------------------------------------------ processes

    def _end(self, name: str, machine: Machine, *, is_power_cut: bool) -> None:
        self._did(name, machine.name)
        self._cluster.crash(machine, is_power_cut=is_power_cut)
        self._later(0.05, 2.0, lambda: self._cluster.start(machine))

    def _kill(self) -> None:
        machine = self._pick_leading()
        if machine is not None:
            self._end("kill", machine, is_power_cut=False)

    def _power_cut(self) -> None:
        machine = self._pick_leading()
        if machine is not None:
            self._end("power_cut", machine, is_power_cut=True)

    def _kill_all(self) -> None:
        is_power_cut = self._rng.random() < 0.5
        for machine in self._running():
            self._end("kill_all", machine, is_power_cut=is_power_cut)

    def _stop(self) -> None:
        machine = self._pick_leading()
        if machine is not None:
            self._did("stop", machine.name)
            self._cluster.stop(machine)
            self._later(0.5, 2.0, lambda: self._start_again(machine))

    def _start_again(self, machine: Machine) -> None:
        if machine.process is None:
            self._cluster.start(machine)
        else:
            machine.keeps_down = False  # it is restarted when it has stopped

    def _freeze(self) -> None:
        machine = self._pick_leading()
        if machine is not None and machine.process is not None and not machine.process.host.is_frozen:
            self._did("freeze", machine.name)
            self._cluster.freeze(machine, is_suspended=self._rng.random() < 0.5)
            self._later(0.05, 2.5, lambda: self._cluster.thaw(machine))

    def _freeze_client(self) -> None:
        """Freeze a client, sometimes for longer than a session. It then continues although others own its partitions."""
        hosts = [host for host in self._cluster.clients.values() if not host.is_frozen]
        members = [host for host in hosts if host.name.startswith("m")]
        if hosts:
            host = self._rng.choice(members if members and self._rng.random() < 0.6 else hosts)
            self._did("freeze_client", repr(host))
            host.is_frozen = True
            self._later(0.5, 8.0, lambda: self._loop.thaw(host))

    # ------------------------------------------------------------------------------------------------ links

    def _cut(self, name: str, links: list[tuple[str, str]]) -> None:
        network = self._cluster.network
        fresh = [link for link in links if not network.is_cut(*link)]
        if not fresh:
            return
        self._did(name, " ".join(f"{a}>{b}" for a, b in fresh))
        for link in fresh:
            network.cut(*link)

        def undo() -> None:
            self._trace("heals " + " ".join(f"{a}>{b}" for a, b in fresh))
            for link in fresh:
                network.heal(*link)

        self._later(0.2, 3.0, undo)

    def _others(self) -> list[str]:
        """Return the names of machines and clients: a network partition may leave a client on either side."""
        return [*self._cluster.machines, *self._cluster.clients]

    def _isolate(self) -> None:
        machine = self._pick_leading()
        if machine is not None:
            is_from_clients = self._rng.random() < 0.5
            others = self._others() if is_from_clients else list(self._cluster.machines)
            links = [(machine.name, o) for o in others if o != machine.name]
            self._cut("isolate", links + [(b, a) for a, b in links])

    def _one_way(self) -> None:
        machine = self._pick_leading()
        if machine is not None:
            others = [o for o in self._others() if o != machine.name]
            picked = others if self._rng.random() < 0.5 else [self._rng.choice(others)]
            links = [(machine.name, o) for o in picked]
            self._cut("one_way", links if self._rng.random() < 0.5 else [(b, a) for a, b in links])

    def _split(self) -> None:
        names = self._others()
        left = [name for name in names if self._rng.random() < 0.5]
        links = [(a, b) for a in left for b in names if b not in left]
        self._cut("split", links + [(b, a) for a, b in links])

    def _clog(self) -> None:
        a, b = self._rng.sample(self._others(), 2)
        network = self._cluster.network
        network.clogs[a, b] = self._rng.uniform(0.05, 0.6)
        self._did("clog", f"{a}>{b} by {network.clogs[a, b]:.3f} s")

        def undo() -> None:
            network.clogs.pop((a, b), None)

        self._later(0.5, 3.0, undo)

    def _break_streams(self) -> None:
        weather = self._cluster.network.weather
        usual = self._options.reset_share
        weather.reset_share = max(usual, 0.05)
        self._did("break_streams", "at 5 % of packets")

        def undo() -> None:
            weather.reset_share = usual

        self._later(0.05, 0.5, undo)

    # ------------------------------------------------------------------------------------------------ disks

    def _slow_disk(self) -> None:
        machine = self._pick()
        if machine is not None:
            disk = machine.disk
            disk.slow_latency = self._rng.uniform(0.02, 0.2)
            self._did("slow_disk", f"{machine.name} {disk.slow_latency:.3f} s")

            def undo() -> None:
                disk.slow_latency = 0.0

            self._later(0.5, 3.0, undo)

    def _stall_disk(self) -> None:
        machine = self._pick_leading()
        if machine is not None:
            disk = machine.disk
            disk.stalled_until = self._loop.now + self._rng.uniform(0.2, 2.5)
            is_whole = self._options.stalls_reads and self._rng.random() < 0.7
            disk.reads_stalled_until = disk.stalled_until if is_whole else 0.0
            also = " with its reads" if disk.reads_stalled_until else ""
            self._did("stall_disk", f"{machine.name} until {disk.stalled_until:.3f}{also}")

    def _overtake(self) -> None:
        """Overtake a leader while one of its followers installs its snapshot. In half of the cases the follower's power is cut after that."""
        candidates = [
            (leading, following, leader.group_id)
            for leading in self._running()
            if leading.node is not None
            for leader in leading.node.engine.replicas.values()
            if leads(leader) and leader.group_id != METADATA_GROUP_ID
            if len(leader.core.membership.voters) >= overtaking.VOTERS_MIN
            for following in self._running()
            if following is not leading and following.node is not None
            if leader.group_id in following.node.engine.replicas
        ]
        if not candidates or self._is_overtaking:
            return
        leading, following, group_id = self._rng.choice(candidates)
        self._is_overtaking = True
        self._did("overtake", f"g{group_id}: {leading.name}, while {following.name} installs")
        steps = overtaking.steps(self._cluster, self._rng, leading, following, group_id)
        self._go_on_overtaking(steps, (leading, leading.process), (following, following.process), self._loop.now)

    def _go_on_overtaking(
        self,
        steps: Generator[float],
        leading: tuple[Machine, Process | None],
        following: tuple[Machine, Process | None],
        begun: float,
    ) -> None:
        """Take the next step, unless a process has ended or it takes too long."""
        is_lost = any(machine.process is not process for machine, process in (leading, following))
        if is_lost or not self._is_active or self._loop.now - begun > overtaking.SECONDS_MAX:
            steps.close()
        seconds = next(steps, None)
        if seconds is not None:
            self._loop.after(seconds, None, self._go_on_overtaking, steps, leading, following, begun)
            return
        self._is_overtaking = False
        if not is_lost and self._is_active and self._rng.random() < 0.5:
            self._end("power_cut", following[0], is_power_cut=True)

    def _fail_commit(self) -> None:
        """Let the next commits fail, of this start of the broker and perhaps of the one after it."""
        machine = self._pick_leading()
        if machine is not None:
            machine.disk.failing_commits = self._rng.choice((1, 1, 2, 3))
            self._did("fail_commit", f"{machine.name}, {machine.disk.failing_commits} times")

    def _full_disk(self) -> None:
        machine = self._pick()
        if machine is not None:
            disk = machine.disk
            disk.is_full = True
            self._did("full_disk", machine.name)

            def undo() -> None:
                disk.is_full = False

            self._later(1.5, 4.0, undo)

    def _full_map(self) -> None:
        machine = self._pick()
        if machine is not None:
            disk = machine.disk
            disk.map_bytes_max = 2048
            self._did("full_map", machine.name)

            def undo() -> None:
                disk.map_bytes_max = 0

            self._later(0.5, 2.0, undo)

    def _swap(self) -> None:
        """Exchange the disks of two machines. Each broker goes on at the other's addresses and under its host label.

        As the guide says, an operator waits before until every broker runs and knows where the others are.
        """
        if not self._all_know_the_addresses():
            return
        machines = [
            machine
            for machine in self._running()
            if machine.node is not None
            and machine.node.view.node_id
            and not machine.is_barred
            and machine.name not in self._retiring
            and not (machine is self._victim and self._may_lose())  # its damage is known by the name of the machine
        ]
        if len(machines) < 2:
            return
        pair = self._rng.sample(machines, 2)
        for machine in pair:
            self._cluster.crash(machine, is_power_cut=self._rng.random() < 0.3)
        self._cluster.swap_disks(*pair)
        self._did("swap", f"{pair[0].name} and {pair[1].name}")
        for machine in pair:
            self._later(0.05, 1.0, partial(self._cluster.start, machine))

    def _all_know_the_addresses(self) -> bool:
        """Return whether every broker is ready and knows the present addresses of all."""
        nodes = {
            machine.name: machine.node
            for machine in self._cluster.machines.values()
            if machine.process is not None and machine.process.is_ready and machine.node is not None
        }
        addresses = [(node.view.node_id, f"{name}:9401") for name, node in nodes.items()]
        return len(nodes) == len(self._cluster.machines) and all(_knows(node, addresses) for node in nodes.values())

    def _flip(self) -> None:
        flipped = self._victim.disk.flip_byte(self._rng)
        if flipped is not None:
            key, table, row = flipped
            self._checker.damaged[self._victim.name, key] = None
            self._did("flip", f"{self._victim.name} g{key.group_id} r{key.replica_id} {table} {row.hex()}")

    def _wipe(self) -> None:
        machine = self._victim
        if machine.node is None or not machine.node.view.node_id:
            return
        self._did("wipe", machine.name)
        must_give_up = bool(self._options.recover) and self._must_give_up(int(machine.node.view.node_id))
        self._cluster.wipe(machine)
        machine.is_given_up = self._rng.random() < 0.5 or must_give_up
        self._later(0.1, 1.0, lambda: self._cluster.start(machine))

    def _must_give_up(self, node_id: int) -> bool:
        """Return whether a node has, or may have, a replica of a partition that was revived from one replica and is not whole again.

        Metadata cannot tell which of its new replicas vote already. So none is given up unless an operator does it, who is told so.
        """
        process = self._metadata_leader()
        if process is None or process.node is None:
            return True
        metadata = process.node.view.metadata.state_machine
        return any(
            partition.is_unsettled and metadata.recovery(partition.group_id) is not None
            for partition in metadata.partitions_of_node(node_id)
        )

    def _give_up_lost_disks(self) -> None:
        """Restart machines with new disks that are not admitted yet, since a partition was revived, with the old ones given up.

        See `_must_give_up`: a disk may also be lost while a recovery is under way.
        """
        for machine in self._cluster.machines.values():
            is_admitted = machine.node is not None and bool(machine.node.view.node_id)
            if not machine.wiped_node_id or is_admitted or machine.is_given_up or machine.is_barred:
                continue
            self._trace(f"{machine.name} gives its lost disk up")
            machine.is_given_up = True
            if machine.process is not None:
                self._cluster.crash(machine)
                self._later(0.1, 1.0, partial(self._cluster.start, machine))

    def _remove_node(self) -> None:
        """Remove the victim's node permanently. Later a new node is started on the machine."""
        machine = self._victim
        if machine.node is None or not machine.node.view.node_id:
            return
        node_id = int(machine.node.view.node_id)
        self._did("remove_node", f"{machine.name}, which was node {node_id}")
        self._cluster.replace_disk(machine)
        machine.is_barred = True
        self._go_on_removing(machine, node_id)

    def _go_on_removing(self, machine: Machine, node_id: int) -> None:
        """Repeat the command, as an operator does, until metadata says that the node is removed."""
        process = self._metadata_leader()
        node = process.node if process is not None else None
        view = node.view.metadata.state_machine.node(node_id) if node is not None else None
        if view is not None and view.state == "removed":
            machine.is_barred = False
            self._trace(f"node {node_id} is removed")
            self._loop.after(self._rng.uniform(0.1, 1.5), None, self._cluster.start, machine)
            return
        if process is not None:
            self._propose(process, RemoveNode(node_id, is_forced=True))
        self._loop.after(_REPEAT_SECONDS, None, self._go_on_removing, machine, node_id)

    def _recover(self) -> None:
        """Let a partition lose its majority, and keep a replica. Either it has all that was ever applied, so that nothing acknowledged is lost, or
        it was cut off from the others before, as an operator's last choice.
        """
        process = self._metadata_leader()
        if process is None or process.node is None:
            return
        metadata = process.node.view.metadata.state_machine
        if metadata.feature_level < RECOVERY_LEVEL or self._is_cutting_off:
            return
        partitions = self._partitions(process)
        self._rng.shuffle(partitions)
        for partition in partitions:
            kept = self._keepable(partition)
            if kept is None:
                continue
            if self._options.may_recover_less and self._rng.random() < 0.7:
                self._cut_off(partition, kept[0])
            else:
                self._lose_majority(partition, *kept)
            return

    def _cut_off(self, partition: PartitionView, machine: Machine) -> None:
        """Separate a machine from the others of a partition. Then the others are lost."""
        others = [other.name for other in self._holders(partition) if other is not machine]
        links = [pair for other in others for pair in ((machine.name, other), (other, machine.name))]
        self._is_cutting_off = True
        self._trace(f"{machine.name} is cut off from the others of g{partition.group_id}")
        for link in links:
            self._cluster.network.cut(*link)

        def undo() -> None:
            for link in links:
                self._cluster.network.heal(*link)
            self._is_cutting_off = False
            self._lose_the_others(partition.group_id, machine)

        self._later(0.5, 2.5, undo)

    def _lose_the_others(self, group_id: int, machine: Machine) -> None:
        process = self._metadata_leader()
        if not self._is_active or process is None or process.node is None:
            return
        partition = process.node.view.metadata.state_machine.partition(group_id)
        kept = self._keepable(partition, machine) if partition is not None else None
        if partition is not None and kept is not None:
            self._lose_majority(partition, *kept)

    def _lose_majority(self, partition: PartitionView, kept: Machine, replica_id: int) -> None:
        others = [machine for machine in self._holders(partition) if machine is not kept]
        self._did("recover", f"g{partition.group_id} from r{replica_id} on {kept.name}")
        for machine in others:
            self._cluster.crash(machine, is_power_cut=self._rng.random() < 0.5)
            machine.is_barred = True
        self._go_on_recovering(partition.group_id, replica_id, others)

    def _holders(self, partition: PartitionView) -> list[Machine]:
        node_ids = {replica.node_id for replica in partition.replicas + partition.retiring}
        return [
            machine
            for machine in self._cluster.machines.values()
            if machine.node is not None and int(machine.node.view.node_id) in node_ids
        ]

    def _keepable(self, partition: PartitionView, wanted: Machine | None = None) -> tuple[Machine, int] | None:
        """Return a machine whose replica can be kept, and the replica, if the metadata keeps its majority until the others return.

        The replica has everything, unless it must be that of the `wanted` machine.
        """
        holders = self._holders(partition)
        is_whole = len(holders) == len(partition.replicas) and not partition.is_unsettled
        if not is_whole or len(holders) < 2 or any(machine.is_barred for machine in self._cluster.machines.values()):
            return None
        origin = self._checker.recoveries.origin(partition.group_id)
        for machine in holders if wanted is None else [one for one in holders if one is wanted]:
            node = machine.node
            replica = node.engine.replicas.get(GroupId(partition.group_id)) if node is not None else None
            if node is None or replica is None or not isinstance(replica.state_machine, LogPartition):
                continue
            others = [other for other in holders if other is not machine]
            is_victim = machine is self._victim and self._may_lose()
            has_all = wanted is not None or replica.core.applied_index >= self._checker.committed.last_index(origin)
            if has_all and not is_victim and not replica.is_closed and self._keeps_metadata(others):
                return machine, int(replica.replica_id)
        return None

    def _keeps_metadata(self, lost: Sequence[Machine]) -> bool:
        """Return whether the metadata keeps its majority without these machines, and without the victim if that may lose its disk."""
        known = {
            machine.name: machine.node._metadata.replica.core
            for machine in self._running()
            if machine.node is not None and machine.node._metadata.replica is not None
        }
        gone = {machine.name for machine in (*lost, *((self._victim,) if self._may_lose() else ()))}
        return keeps_majority(known.values(), {core.replica_id for name, core in known.items() if name not in gone})

    def _go_on_recovering(self, group_id: int, replica_id: int, others: list[Machine]) -> None:
        """Repeat the command until metadata has the recovery or can have it no more. Then let the others return."""
        process = self._metadata_leader()
        node = process.node if process is not None else None
        metadata = node.view.metadata.state_machine if node is not None else None
        partition = metadata.partition(group_id) if metadata is not None else None
        if process is not None and metadata is not None and partition is None:
            recovery = metadata.recovery_from(group_id, replica_id)
            if recovery is not None:
                self._checker.recoveries.on_recovered(group_id, recovery.group_id)
                self._trace(f"g{group_id} is replaced by g{recovery.group_id}")
            self._give_up_lost_disks()
            self._let_return(others)
            return
        if process is not None and metadata is not None and partition is not None:
            if not any(one.replica_id == replica_id and not one.is_lost for one in partition.replicas):
                self._let_return(others)  # the replica was replaced in the meantime
                return
            end = self._end_of(group_id, replica_id)
            self._propose(process, RecoverPartition(group_id, replica_id, RECOVERED_TERM, end, end, metadata.revision))
        self._loop.after(_REPEAT_SECONDS, None, self._go_on_recovering, group_id, replica_id, others)

    def _end_of(self, group_id: int, replica_id: int) -> int:
        """Return the end of a replica's log, as the broker asks for it before a recovery. Without an answer, no reader is told of a loss."""
        for machine in self._running():
            replica = machine.node.engine.replicas.get(GroupId(group_id)) if machine.node is not None else None
            if replica is not None and replica.replica_id == replica_id:
                return int(replica.core.log.next_offset)
        return _NO_END

    def _let_return(self, others: list[Machine]) -> None:
        for machine in others:
            machine.is_barred = False
            self._loop.after(self._rng.uniform(0.1, 2.0), None, self._cluster.start, machine)

    def _stale_copy(self) -> None:
        """Copy the victim's disk, restart its broker, and later restore the copy, which lacks data acknowledged since then."""
        machine, now = self._victim, self._victim.disk.node()
        if self._backup is None and now.cluster_id and machine.process is not None:
            self._backup = machine.disk.backup()
            self._trace(f"{machine.name} is copied in boot {now.boot}")
            self._cluster.crash(machine)
            self._later(0.05, 0.5, lambda: self._cluster.start(machine))
            self._go_on_restoring(machine, self._backup, "stale_copy")

    def _renewed_copy(self) -> None:
        """Copy the victim's disk while its broker runs, and later restore the copy. No fault of this kind restarts the broker in between."""
        machine, now = self._victim, self._victim.disk.node()
        if self._backup is None and now.cluster_id and machine.process is not None:
            self._backup = machine.disk.backup()
            self._trace(f"{machine.name} is copied in boot {now.boot}")
            self._go_on_restoring(machine, self._backup, "renewed_copy")

    def _go_on_restoring(self, machine: Machine, backup: Disk, fault: str) -> None:
        """Restore the copy as soon as the disk of every other machine knows a newer boot: only then can they refuse the older one."""
        now, then = machine.disk.node(), backup.node()
        if not self._is_active or now.uuid != then.uuid:
            self._backup = None
            return
        others = [other.disk.node() for other in self._cluster.machines.values() if other is not machine]
        has_met = all(
            any(uuid == now.uuid and boot > then.boot for uuid, boot, _ in node.known_boots) for node in others
        )
        if then.boot == now.boot or not has_met or machine.process is None:
            self._loop.after(_REPEAT_SECONDS, None, self._go_on_restoring, machine, backup, fault)
            return
        self._backup = None
        self._did(fault, f"{machine.name} in boot {now.boot} goes back to boot {then.boot}")
        self._cluster.restore(machine, backup)
        self._replace_refused(machine, backup)

    def _replace_refused(self, machine: Machine, disk: Disk) -> None:
        """Give the machine an empty disk and its node id when the directory is refused, as an operator does."""
        if machine.disk is not disk:
            return
        if not disk.node().refusal:
            self._loop.after(_REPEAT_SECONDS, None, self._replace_refused, machine, disk)
            return
        self._checker.stale_directories += 1
        node_id = disk.node().node_id
        self._cluster.replace_disk(machine)
        machine.wiped_node_id = node_id
        machine.is_given_up = True
        self._loop.after(self._rng.uniform(0.1, 1.0), None, self._cluster.start, machine)

    # ------------------------------------------------------------------------------------------------ clocks and metadata

    def _clock_jump(self) -> None:
        machine = self._pick()
        if machine is not None:
            wrong_ms = self._rng.randrange(-CLOCK_JUMP_MS, CLOCK_JUMP_MS)
            machine.wall.set(self._cluster.true_epoch_ms + wrong_ms)
            self._did("clock_jump", f"{machine.name} is {wrong_ms} ms ahead")

    def _wrong_clock(self) -> None:
        machine = self._wrong_clock_at
        wrong_ms = self._rng.choice(WRONG_CLOCKS_MS) * self._rng.choice((-1, 1, 1))
        if machine.process is not None and machine.wall.epoch_ms != self._cluster.true_epoch_ms + wrong_ms:
            machine.wall.set(self._cluster.true_epoch_ms + wrong_ms)
            self._did("wrong_clock", f"{machine.name} is {wrong_ms} ms ahead")

    def _sleep_all(self) -> None:
        if self.counts["sleep_all"] < SLEEPS_MAX:
            hours = self._rng.choice((1, 25, 47))
            self._cluster.sleep_all(hours)
            self._did("sleep_all", f"for {hours} h")

    def _all_down(self) -> None:
        """Cut the power of all machines for hours."""
        if not self.counts["all_down"]:  # its hours count for the same sum as those of sleeps
            for machine in self._running():
                self._end("all_down", machine, is_power_cut=True)
            hours = self._rng.choice((8, 24))
            self._cluster.pass_time(hours)
            self._trace(f"all are down for {hours} h")

    def _metadata_leader(self) -> Process | None:
        for process in self._cluster.running():
            group = process.node.engine.replicas.get(METADATA_GROUP_ID) if process.node is not None else None
            if group is not None and leads(group) and not process.host.is_frozen:
                return process
        return None

    def _propose(self, process: Process, command: MetadataCommand) -> bool:
        assert process.node is not None
        try:
            process.host.context.run(
                process.node.view.metadata.propose, [Proposal(EntryKind.COMMAND, encode_command(command))]
            )
        except RequestError as error:
            self._trace(f"refused: {error}")
            return False
        return True

    def _partitions(self, process: Process) -> list[PartitionView]:
        assert process.node is not None
        metadata = process.node.view.metadata.state_machine
        found = (metadata.partition(group_id) for topic in metadata.topics() for group_id in topic.group_ids)
        return [partition for partition in found if partition is not None]

    def _replace_replica(self) -> None:
        """Propose the replacement of a replica, as a node with a damaged replica does. Only the victim's: such a replica counts as lost."""
        process = self._metadata_leader()
        victim = self._victim.node
        if process is None or victim is None:
            return
        replicas = [
            (partition.group_id, replica.replica_id)
            for partition in self._partitions(process)
            if len(partition.replicas) >= 3
            for replica in partition.replicas
            if replica.node_id == victim.view.node_id
        ]
        if replicas:
            group_id, replica_id = self._rng.choice(replicas)
            if self._propose(process, ReplaceReplica(group_id, replica_id)):
                self._did("replace_replica", f"g{group_id} r{replica_id}")

    def _move_replicas(self) -> None:
        """Move a partition to other nodes, or to fewer nodes, as an operator does."""
        process = self._metadata_leader()
        if process is None or process.node is None:
            return
        metadata = process.node.view.metadata.state_machine
        partitions = self._partitions(process)
        nodes = [node.node_id for node in metadata.nodes() if node.state == "active"]
        count = 3 if self._may_lose() else self._rng.randint(1, 3)
        if partitions and len(nodes) >= count:
            partition = self._rng.choice(partitions)
            wanted = tuple(self._rng.sample(nodes, count))
            if self._propose(process, SetReplicas(partition.group_id, wanted, metadata.revision)):
                self._did("move_replicas", f"g{partition.group_id} to nodes {wanted}")

    def _operate(self) -> None:
        """Give an order as an operator does. Metadata refuses an impossible one when it is applied."""
        process = self._metadata_leader()
        if process is None or process.node is None:
            return
        metadata = process.node.view.metadata.state_machine
        if metadata.feature_level < NEWCOMER_LEVEL:
            return
        nodes, topics = metadata.nodes(), metadata.topics()
        order = self._rng.choice(("drain", "drain", "undrain", "rebalance", "settings", "factor", "pin", "revert"))
        command: MetadataCommand
        if order == "drain":
            command = SetNodeState(self._rng.choice(nodes).node_id, "draining")
        elif order == "undrain":
            command = SetNodeState(self._rng.choice(nodes).node_id, "active")
        elif order == "rebalance":
            command = SetBalancing(rebalance=self._rng.choice(("leaders", "replicas")))
        elif order == "settings":
            rate = (
                self._rng.choice(RATES)
                if metadata.feature_level >= FIELD_LEVELS[SetBalancing]["bytes_per_second"]
                else None
            )
            command = SetBalancing(
                auto_balance=self._rng.random() < 0.6, moves_max=self._rng.choice((1, 2, 8)), bytes_per_second=rate
            )
        elif order in ("pin", "revert"):
            self._place(process, metadata, order)
            return
        elif topics and not self._may_lose():
            command = SetReplicationFactor(self._rng.choice(topics).topic_id, self._rng.randint(1, 3))
        else:
            return
        if self._propose(process, command):
            self._did("operate", f"{order}: {command}")

    def _pace_moves(self) -> None:
        """Set the rate of moves, as soon as a leader of the metadata takes the order."""
        process = self._metadata_leader()
        if process is not None and process.node is not None:
            level = process.node.view.metadata.state_machine.feature_level
            if level < FIELD_LEVELS[SetBalancing]["bytes_per_second"]:
                return
            if self._propose(process, SetBalancing(bytes_per_second=self._options.move_rate)):
                return
        self._loop.after(_REPEAT_SECONDS, None, self._pace_moves)

    def _place(self, process: Process, metadata: Metadata, order: str) -> None:
        """Pin a partition where it is, or give up a move as if its new replica made no progress."""
        partitions = self._partitions(process) if order == "pin" else list(metadata.unsettled_partitions())
        if not partitions or metadata.feature_level < PIN_LEVEL:
            return
        partition = self._rng.choice(partitions)
        node_ids = tuple(replica.node_id for replica in partition.replicas)
        command: MetadataCommand = RevertReplicas(partition.group_id, metadata.revision, "no progress")
        if order == "pin":
            command = SetReplicas(partition.group_id, node_ids, metadata.revision, is_pinned=True)
        if self._propose(process, command):
            self._did("operate", f"{order}: {command}")

    def _reshape(self) -> None:
        """Give an order that the other faults of an operator do not give."""
        process = self._metadata_leader()
        if process is None or process.node is None:
            return
        metadata = process.node.view.metadata.state_machine
        order = self._rng.choice(("transfer", "transfer", "factor", "factor", "unpin", "forget_names"))
        if order == "transfer":
            self._transfer_leader()
            return
        command = self._reshaping(process, metadata, order)
        if command is None or metadata.feature_level < METADATA_LEVELS[type(command)]:
            return
        if self._propose(process, command):
            self._did("reshape", f"{order}: {command}")

    def _reshaping(self, process: Process, metadata: Metadata, order: str) -> MetadataCommand | None:
        topics = metadata.topics()
        if order == "factor":
            active = sum(1 for node in metadata.nodes() if node.state == "active")
            lowest = 3 if self._may_lose() else 1
            if not topics or active < lowest:
                return None
            return SetReplicationFactor(self._rng.choice(topics).topic_id, self._rng.randint(lowest, active))
        if order == "unpin":
            pinned = [partition for partition in self._partitions(process) if partition.is_pinned]
            if not pinned:
                return None
            partition = self._rng.choice(pinned)
            node_ids = tuple(replica.node_id for replica in partition.replicas)
            return SetReplicas(partition.group_id, node_ids, metadata.revision)
        return ForgetProducerNames((NAME,), metadata.expiry_now_ms - UNUSED_MS)

    def _configure(self) -> None:
        """Change a setting of one broker or of all, or remove it. The values affect no record."""
        process = self._metadata_leader()
        if process is None or process.node is None:
            return
        metadata = process.node.view.metadata.state_machine
        if metadata.feature_level < METADATA_LEVELS[AlterConfig]:
            return
        node_ids = [EVERY_NODE, EVERY_NODE, *(node.node_id for node in metadata.nodes())]
        name = self._rng.choice(list(SETTINGS))
        command = AlterConfig(self._rng.choice(node_ids), {name: self._rng.choice(SETTINGS[name])})
        if self._propose(process, command):
            self._did("configure", f"{command}")

    def _transfer_leader(self) -> None:
        """Transfer the leadership of a group to another voter, whether that is behind or not."""
        led = [
            (process, replica)
            for process in self._cluster.running()
            if process.node is not None and not process.host.is_frozen
            for replica in process.node.engine.replicas.values()
            if leads(replica) and len(replica.core.membership.voters) > 1
        ]
        if led:
            process, replica = self._rng.choice(led)
            assert process.node is not None
            voters = sorted(voter for voter in replica.core.membership.voters if voter != replica.replica_id)
            target = self._rng.choice(voters)
            process.host.context.run(process.node.view.transfer_leadership, replica, target)
            self._did("reshape", f"transfer: g{replica.group_id} from r{replica.replica_id} to r{target}")

    def _retire_node(self) -> None:
        """Drain a broker and remove it when it is empty. Its machine then gets a new broker."""
        process = self._metadata_leader()
        machine = self._pick()
        if process is None or process.node is None or machine is None or machine.node is None or self._retiring:
            return
        if machine is self._victim and self._may_lose():
            return  # its replacement may ask for the id of a broker that was removed
        metadata = process.node.view.metadata.state_machine
        node_id = int(machine.node.view.node_id)
        view = metadata.node(node_id)
        if metadata.feature_level < METADATA_LEVELS[SetNodeState] or view is None or view.state == "removed":
            return
        if self._propose(process, SetNodeState(node_id, "draining")):
            self._did("retire_node", f"{machine.name}, which is node {node_id}")
            self._retiring[machine.name] = node_id
            self._loop.after(_REPEAT_SECONDS, None, self._go_on_retiring, machine, node_id)

    def _go_on_retiring(self, machine: Machine, node_id: int) -> None:
        """Repeat the removal until the broker is empty. When faults end, the operator gives up, and the broker takes part again."""
        process = self._metadata_leader()
        node = process.node if process is not None else None
        metadata = node.view.metadata.state_machine if node is not None else None
        view = metadata.node(node_id) if metadata is not None else None
        if view is not None and view.state == "removed":
            del self._retiring[machine.name]
            self._trace(f"node {node_id} is retired")
            self._cluster.replace_disk(machine)
            self._loop.after(self._rng.uniform(0.1, 1.5), None, self._cluster.start, machine)
            return
        if process is not None and view is not None:
            is_wish_over = not self._is_active or view.state != "draining"
            if is_wish_over and view.state == "active":
                del self._retiring[machine.name]
                return
            if is_wish_over:
                self._propose(process, SetNodeState(node_id, "active"))
            elif self._may_remove(process, node_id):
                self._propose(process, RemoveNode(node_id))
        self._loop.after(_REPEAT_SECONDS, None, self._go_on_retiring, machine, node_id)

    def _may_remove(self, process: Process, node_id: int) -> bool:
        """Return whether the metadata leader's service would pass the removal of an empty broker on. Metadata itself refuses that of a full one."""
        node = process.node
        assert node is not None
        if node.view.metadata.state_machine.replica_count_of_node(node_id):
            return True
        try:
            removed = process.host.context.run(partial(node.grpc.removal._removable, node_id, is_forced=False))
        except RequestError as error:
            self._trace(f"refused: {error}")
            return False
        self._checker.judge(check_removable, node.view.metadata.core.membership, removed)
        return True

    def _stuck_growth(self) -> None:
        """Raise a replication factor while the broker of a further replica is down, which stays so until another broker has the replica."""
        process = self._metadata_leader()
        if process is None or process.node is None or self._is_growth_stuck:
            return
        metadata = process.node.view.metadata.state_machine
        machine = self._rng.choice([m for m in self._cluster.machines.values() if m is not process.machine])
        partitions = [one for one in self._partitions(process) if not one.is_unsettled]
        if machine is self._victim or machine.node is None or not partitions or metadata.feature_level < NEWCOMER_LEVEL:
            return
        node_id, partition = int(machine.node.view.node_id), self._rng.choice(partitions)
        node_ids = tuple(replica.node_id for replica in partition.replicas)
        topic = metadata.topic(partition.topic_id)
        if topic is None or node_id in node_ids or not _free_nodes(metadata, partition, node_id):
            return
        self._cluster.crash(machine, is_power_cut=False)
        machine.is_barred = self._is_growth_stuck = True
        factor = max(topic.replication_factor, len(node_ids) + 1)
        self._propose(process, SetReplicationFactor(topic.topic_id, factor))
        self._propose(process, SetReplicas(partition.group_id, (*node_ids, node_id), metadata.revision))
        self._did(
            "stuck_growth", f"g{partition.group_id} gets a replica on node {node_id} of {machine.name}, which is down"
        )
        self._loop.after(_REPEAT_SECONDS, None, self._go_on_growing, machine, node_id, partition.group_id)

    def _go_on_growing(self, machine: Machine, node_id: int, group_id: int) -> None:
        """Start the machine once the partition does not wait for it, or has no other place.

        At the end of the faults it is started anyway if the victim may have lost its disk: the two may be the majority of a group.
        """
        process = self._metadata_leader()
        if not self._is_active and self._may_lose():
            machine.is_barred = self._is_growth_stuck = False
            self._cluster.start(machine)
            return
        if process is not None and process.node is not None:
            metadata = process.node.view.metadata.state_machine
            partition = metadata.partition(group_id)
            is_waited_for = partition is not None and any(
                replica.node_id == node_id and replica.is_newcomer for replica in partition.replicas
            )
            if partition is None or not is_waited_for or not _free_nodes(metadata, partition, node_id):
                machine.is_barred = self._is_growth_stuck = False
                self._trace(f"g{group_id} {'still waits' if is_waited_for else 'does not wait'} for node {node_id}")
                self._cluster.start(machine)
                return
        self._loop.after(_REPEAT_SECONDS, None, self._go_on_growing, machine, node_id, group_id)

    def _may_lose(self) -> bool:
        """Return whether a machine of this run may lose data, so that each partition needs three replicas."""
        options = self._options
        return bool(
            options.flip
            or options.wipe
            or options.replace_replica
            or options.remove_node
            or options.stale_copy
            or options.renewed_copy
        )

    def _add_machine(self) -> None:
        if len(self._cluster.machines) < MACHINES_MAX:
            machine = self._cluster.add_machine()
            self._did("add_machine", machine.name)
            self._cluster.start(machine)

    # ------------------------------------------------------------------------------------------------ the program

    def _defect(self) -> None:
        """Plant a defect: in the next entries that one replica applies, or in one loop for a while."""
        machine = self._pick_leading()
        node = machine.node if machine is not None else None
        if machine is None or node is None or node._metadata.replica is None:
            return  # forming or joining a cluster is not a loop: its failure ends the process, and an operator restarts it
        partitions = node.view.partition_replicas()
        if partitions and self._rng.random() < 0.5:
            group: Any = self._rng.choice(partitions)
            where = f"g{group.group_id} applies"
            apply, count = group.apply, self._rng.randrange(2)

            def part(entries: Sequence[Entry]) -> None:
                if count:
                    apply(entries[:count])  # the state has changed, and must not be used any more
                raise PlantedDefect(machine.name, where)

            group.apply = part
            self._did("defect", f"{machine.name} {where}")
            return
        owner, name = self._rng.choice(_loops(node))
        where = f"{type(owner).__name__}.{name}"

        def fail(*arguments: object) -> None:
            raise PlantedDefect(machine.name, where)

        setattr(owner, name, fail)
        self._did("defect", f"{machine.name} {where}")
        self._later(0.2, 2.0, lambda: vars(owner).pop(name, None))


def _free_nodes(metadata: Metadata, partition: PartitionView, but: int) -> list[int]:
    """Return the other active nodes that could take a replica of the partition."""
    holders = {replica.node_id for replica in (*partition.replicas, *partition.retiring)}
    return [
        node.node_id
        for node in metadata.nodes()
        if node.state == "active" and node.node_id not in holders and node.node_id != but
    ]


def _knows(node: SimNode, addresses: Sequence[tuple[int, str]]) -> bool:
    """Return whether a broker has the metadata of the cluster, and these peer addresses in it, by node."""
    try:
        metadata = node.view.metadata.state_machine
    except RequestError:
        return False  # a snapshot replaces it
    return all(
        (found := metadata.node(node_id)) is not None and found.peer_address == address
        for node_id, address in addresses
    )


def _loops(node: SimNode) -> list[tuple[Any, str]]:
    """Return the places where background work may fail, as (object, name of its method)."""
    coordinator: Any = node.grpc.coordinator
    return [
        (node.reconciler, "_maintain_partitions"),
        (node.reconciler, "_maintain_metadata"),
        (node.reconciler, "round"),
        (coordinator, "_end_sessions"),
        (coordinator, "tick"),
        (node.upkeep.housekeeping, "_maintain"),
        (node.upkeep.housekeeping, "round"),
        (node.upkeep.space_return, "round"),
        (node._peers, "refresh"),
        (node.replicas, "reconcile"),
        (node.replicas, "_open"),
        (node.disk_watch, "look"),
        (node.engine.publisher, "publish_changes"),
    ]
