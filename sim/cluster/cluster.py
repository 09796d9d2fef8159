"""The machines of a run, and the broker processes that run on them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from raftmq.batch_header import BatchHeader
from raftmq.broker.base import supervisor
from raftmq.broker.base.config import BrokerConfig
from raftmq.broker.base.limits import Limits, Timing
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.cluster import damage_reports, layout, unserved
from raftmq.broker.node import Node
from raftmq.broker.peers.codec import FrameType, Parts
from raftmq.broker.peers.protocol import Channel
from raftmq.broker.replica import log_marks, log_tail, log_trimmer
from raftmq.broker.replica.replica import Replica
from raftmq.broker.services.request_metrics import RequestMetrics
from raftmq.fsm import metadata_balancing
from raftmq.fsm.producer_ids import NAMED_PRODUCER_BIT
from raftmq.fsm.producer_table import CACHED_BATCHES, ProducerTable
from raftmq.fsm.state_machine import StateMachine
from raftmq.storage.errors import RegistryError, ReplicaStorageError
from raftmq.types import NodeId

from sim.cluster.environment import ProcessEnded, SimParts, WallTime
from sim.cluster.options import HARDLY_EVER
from sim.cluster.world.disk import Disk
from sim.cluster.world.host import Host
from sim.cluster.world.loop import VirtualLoop
from sim.cluster.world.network import UNACKED_SECONDS, Network
from sim.cluster.world.tcp import TcpConnector

EPOCH_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
STUCK_SECONDS = 3.0
"""Time after which a move without progress is given up."""
_RESTART_SECONDS = 0.3
_METRICS = RequestMetrics()
"""Shared by all nodes of all runs, since nobody reads these metrics and creating them is slow."""


class SimConfig(BrokerConfig):
    """A broker's configuration in which the times that cannot be configured are scaled as well."""

    def timing(self) -> Timing:
        """See `BrokerConfig`."""
        timing = BrokerConfig.timing(self)
        scale = timing.data_tick_seconds / Timing().data_tick_seconds
        return replace(
            timing,
            refused_campaign_min_seconds=timing.refused_campaign_min_seconds * scale,
            refused_campaign_max_seconds=timing.refused_campaign_max_seconds * scale,
            campaign_turn_seconds=timing.campaign_turn_seconds * scale,
            connect_timeout_seconds=0.3,
            reconnect_min_seconds=0.05,
            reconnect_max_seconds=0.8,
            handshake_timeout_seconds=0.6,
            unacked_data_timeout_seconds=UNACKED_SECONDS,
            rival_heard_seconds=1.5,
            rival_silent_seconds=3.0,
            read_index_seconds=0.6,
            stall_seconds=0.15,
            shutdown_seconds=3.0,
            catch_up_seconds=5.0,
            move_stuck_seconds=STUCK_SECONDS,
            group_tick_seconds=0.3,
            scrub_pass_seconds=1.5,
            clock_check_seconds=0.2,
            clock_difference_seconds=0.5,
            clock_wait_seconds=3.0,
            snapshot_read_seconds=4.0,
            snapshot_stalled_seconds=2.0,
            snapshot_resume_seconds=1.0,
            snapshot_idle_seconds=3.0,
        )


class TightConfig(SimConfig):
    """The same configuration with small bounds."""

    def limits(self) -> Limits:
        """See `BrokerConfig`."""
        return replace(
            BrokerConfig.limits(self),
            snapshot_chunk_bytes=200,
            snapshot_copy_bytes_min=0,
            snapshot_streams_max=1,
            campaigns_max=1,
            catching_up_max=1,
            poll_bytes_max=3_000,
            append_streams_max=6,
            peer_outbox_bytes_max=700_000,  # an append of 512 KiB must fit, or its follower makes no progress
        )


class LargeConfig(SimConfig):
    """The same configuration for many partitions: every file is looked at as rarely, in proportion to the work, as in production."""

    def timing(self) -> Timing:
        """See `BrokerConfig`."""
        return replace(SimConfig.timing(self), scrub_pass_seconds=60.0)


def forgetful(record: Callable[..., None]) -> Callable[..., None]:
    """Return a `record` that forgets some anonymous producers immediately, as determined by the log alone.

    It never forgets a producer whose first batch may still be under way: a retry would be taken for a new producer, which no broker
    could detect.
    """

    def record_and_forget(table: ProducerTable, header: BatchHeader, base_offset: int, now_ms: int) -> None:
        record(table, header, base_offset, now_ms)
        state = table.get(header.producer_id)
        is_long_at_work = state is not None and len(state.batches) == CACHED_BATCHES and state.batches[0].first_sequence
        if is_long_at_work and header.producer_id < NAMED_PRODUCER_BIT and base_offset % 3 == 0:
            table._forget(header.producer_id)

    return record_and_forget


def scale(*, is_tight: bool, is_forgetful: bool) -> Callable[[], None]:
    """Change times and bounds of the product that are not settings. Return a function that restores them."""
    modules: list[tuple[Any, str, Any]] = [
        (damage_reports, "REPORT_SECONDS", 1.5),
        (supervisor, "PAUSE_SECONDS_MAX", 1.0),
        (unserved, "RETRY_SECONDS_MIN", 0.3),
        (unserved, "RETRY_SECONDS_MAX", 1.5),
        (unserved, "ROOM_SECONDS_MAX", 1.0),
        (metadata_balancing, "BYTES_PER_SECOND_MIN", 1_000),
        (layout, "GIVEN_UP_SECONDS", 1),
        (layout, "GIVEN_UP_SECONDS_MAX", 4),
    ]
    if is_forgetful:
        modules.append((ProducerTable, "record", forgetful(ProducerTable.record)))
    if is_tight:
        modules += [
            (log_tail, "TAIL_ENTRIES", 4),
            (log_tail, "TAIL_BYTES", 600),
            (log_tail, "LAGGING_BYTES_MAX", 6_000),
            (log_tail, "WORTH_BYTES", 600),
            (log_marks, "MARK_BYTES", 150),
            (log_trimmer, "_ROWS_PER_SLICE", 3),
        ]
    kept = [getattr(module, name) for module, name, _ in modules]
    for module, name, value in modules:
        setattr(module, name, value)

    def put_back() -> None:
        for (module, name, _), value in zip(modules, kept, strict=True):
            setattr(module, name, value)

    return put_back


class SimNode(Node):
    """The production node, which also reports its failures to the simulation."""

    process: Process

    def on_fatal(self, error: BaseException) -> None:
        """See `Node`."""
        if not isinstance(error, ProcessEnded):
            self.process.on_fatal(error)
            super().on_fatal(error)

    def on_replica_broken(self, replica: Replica[StateMachine], error: Exception) -> None:
        """See `Node`."""
        self.process.on_broken(replica, error)
        super().on_replica_broken(replica, error)


@dataclass
class ClusterSettings:
    """The settings that all nodes of a run share."""

    timing: dict[str, float | int]
    limits: dict[str, int]
    disk_capacity: int
    disk_reserve_bytes: int
    disk_latency: float
    writer_threads: int
    metadata_voters: int
    config_class: type[SimConfig] = SimConfig


class Process:
    """One boot of a broker."""

    def __init__(self, machine: Machine, host: Host, parts: SimParts) -> None:
        self.machine = machine
        self.host = host
        self.parts = parts
        self.node: SimNode | None = None
        self.starting: asyncio.Task[None] | None = None
        self.stopping: asyncio.Task[None] | None = None
        self.is_ready = False
        self.is_stopping = False
        self.commit_failed_at: float | None = None
        """The time at which a commit of this process failed."""

    def on_failed_commit(self) -> None:
        """Note that a commit failed."""
        self.commit_failed_at = self.machine.cluster.loop.now

    def on_fatal(self, error: BaseException) -> None:
        """Report that the process ends itself."""
        self.machine.cluster.on_fatal(self, error)

    def on_broken(self, replica: Replica[StateMachine], error: Exception) -> None:
        """Report that a replica fell silent."""
        self.machine.cluster.on_broken(self, replica, error)


class Machine:
    """A computer: a name, a disk, a wall clock, and at most one broker."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self.cluster = cluster
        self.number = number
        self.name = f"n{number}"
        self.disk = cluster.new_disk()
        self.wall = WallTime(cluster.loop, cluster.true_epoch_ms)
        self.rate = 1.0
        self.boot = 0
        self.process: Process | None = None
        self.keeps_down = False
        """Whether the broker is not restarted automatically."""
        self.is_given_up = False
        """Whether the operator has declared the data of its old disk lost."""
        self.wiped_node_id = 0
        """The node id that the broker requests after the disk was lost."""
        self.has_new_disk = False
        """Whether the disk was replaced. The broker then joins the cluster and never bootstraps one."""
        self.is_barred = False
        """Whether the broker must not start because its old node has not been removed yet."""
        self.is_next_version = cluster.is_next_version
        """Whether the next version of the program is installed, with which the broker starts next."""

    @property
    def address(self) -> str:
        """The broker's address for clients."""
        return f"{self.name}:9400"

    @property
    def node(self) -> SimNode | None:
        """The running broker, or None."""
        return self.process.node if self.process is not None else None


def leads(replica: Replica[StateMachine]) -> bool:
    """Return whether a replica leads. Unlike `is_leader`, this compares no clocks: only the replica's own host has them."""
    return replica.core.is_confirmed_leader and not replica.is_closed


class Cluster:
    """All machines of a run."""

    def __init__(
        self,
        loop: VirtualLoop,
        network: Network,
        rng: random.Random,
        settings: ClusterSettings,
        trace: Callable[[str], None],
        node_class: type[SimNode] = SimNode,
        parts_class: type[SimParts] = SimParts,
    ) -> None:
        self.loop = loop
        self.network = network
        self.rng = rng
        self.settings = settings
        self.trace = trace
        self.machines: dict[str, Machine] = {}
        self.true_epoch_ms = EPOCH_MS
        """The time of a correct wall clock at the beginning. It grows by the time for which all machines slept."""
        self.is_next_version = False
        """Whether a new machine gets the next version of the program."""
        self.clients: dict[str, Host] = {}
        """The hosts of the clients, by name."""
        self.node_class = node_class
        self.parts_class = parts_class
        self.installs = 0
        """Number of snapshots installed by processes that have ended."""
        self.tears_left = 0
        """Number of installed snapshots at which a machine will lose power between the two files."""
        self.resumes = 0
        """Number of snapshots that they resumed."""
        self.on_process: list[Callable[[Process], None]] = []
        """Called with each process whose node was created, before the node starts."""
        self.on_fatal_error: list[Callable[[Process, BaseException], None]] = []
        self.on_broken_replica: list[Callable[[Process, Replica[StateMachine], Exception], None]] = []
        self.on_failed_start: list[Callable[[Process, Exception], None]] = []
        """Called with each process that has not started, and the error."""
        self.on_gone: list[Callable[[Process], None]] = []
        """Called with each process that has ended."""
        loop.connector = TcpConnector(loop, network)

    def new_disk(self) -> Disk:
        """Create an empty disk."""
        disk = Disk(random.Random(self.rng.getrandbits(64)), self.settings.disk_capacity)
        disk.latency = self.settings.disk_latency
        return disk

    def add_machine(self) -> Machine:
        """Add a machine without a broker."""
        machine = Machine(self, len(self.machines) + 1)
        self.machines[machine.name] = machine
        return machine

    def running(self) -> list[Process]:
        """Return the processes with a node, in the order of the machines."""
        return [m.process for m in self.machines.values() if m.process is not None and m.process.node is not None]

    def addresses(self) -> str:
        """Return the bootstrap addresses for clients."""
        return ",".join(machine.address for machine in self.machines.values())

    @property
    def true_ms(self) -> int:
        """The time that wall clocks should show now."""
        return self.true_epoch_ms + int(self.loop.now * 1000)

    def sleep_all(self, hours: int) -> None:
        """Suspend all machines for some hours. Only their wall clocks continue."""
        self.true_epoch_ms += hours * HOUR_MS
        for machine in self.machines.values():
            machine.wall.sleep(hours * HOUR_MS)

    def pass_time(self, hours: int) -> None:
        """Let hours pass while no machine runs. A machine's time since its start begins again with its next start."""
        self.true_epoch_ms += hours * HOUR_MS
        for machine in self.machines.values():
            machine.wall.set(machine.wall.epoch_ms + hours * HOUR_MS)

    # ------------------------------------------------------------------------------------------------ life

    def start(self, machine: Machine) -> None:
        """Start the machine's broker. If its start fails, it is started again later."""
        if machine.is_barred:
            return
        machine.keeps_down = False
        if machine.process is not None:
            return
        machine.boot += 1
        self.network.dark.pop(machine.name, None)
        # the clock of every boot starts at another time, as a machine's monotonic clock does
        host = Host(machine.name, machine.boot, machine.rate, 1000.0 * machine.number + 100_000.0 * machine.boot)
        host.is_next_version = machine.is_next_version
        config = self._config(machine)
        rng = random.Random(self.rng.getrandbits(64))
        process: Process

        def end_process() -> None:
            self._remove(process, is_power_cut=False, why="ends itself")
            self._start_later(machine)

        parts = self.parts_class(
            config, self.loop, self.network, machine.disk, machine.wall, rng, end_process, _METRICS
        )
        process = machine.process = Process(machine, host, parts)
        machine.disk.on_first_file = partial(self.tear_install, machine)
        machine.disk.on_failed_commit = process.on_failed_commit
        self.trace(f"{machine.name} starts, boot {machine.boot}")
        self.loop.spawn(host, self._run(process, config))

    def _config(self, machine: Machine) -> BrokerConfig:
        settings = self.settings
        others = tuple(f"{m.name}:9401" for m in self.machines.values() if m is not machine)
        is_first = machine.number == 1 and not machine.has_new_disk
        return settings.config_class(
            data_dir=Path(machine.name),
            listen=machine.address,
            peer_listen=f"{machine.name}:9401",
            http_listen=f"{machine.name}:9402",
            allow_insecure_remote=True,
            host=machine.name,
            bootstrap=is_first,
            join=() if is_first else others,
            broker_id=machine.wiped_node_id,
            replace_lost=machine.is_given_up,
            disk_reserve_bytes=settings.disk_reserve_bytes,
            writer_threads=settings.writer_threads,
            metadata_voters=settings.metadata_voters,
            **settings.limits,  # type: ignore[arg-type]
            **settings.timing,  # type: ignore[arg-type]
        )

    async def _run(self, process: Process, config: BrokerConfig) -> None:
        """Run the node as `broker.main` does."""
        machine = process.machine
        try:
            node = self.node_class(config, "0.0", process.parts)
            node.process = process
            self._drop_frames(node)
            process.node = node
            for listener in self.on_process:
                listener(process)
            process.starting = self.loop.create_task(node.start())
            try:
                await process.starting
            except asyncio.CancelledError:
                pass  # the process was asked to stop
            else:
                process.is_ready = True
                self.trace(f"{machine.name} is ready as node {node.view.node_id}")
            await node.wait_stopped()
            if process.stopping is not None:
                await process.stopping
        except (RequestError, ReplicaStorageError, RegistryError, OSError) as error:
            self.trace(f"{machine.name} does not start: {error}")
            for on_failed_start in self.on_failed_start:
                on_failed_start(process, error)
        self._remove(process, is_power_cut=False, why="ends")
        self._start_later(machine)

    def _drop_frames(self, node: SimNode) -> None:
        """Drop some frames and report that, as the transport does when an outbox is full."""
        network, transport = self.network, node.transport
        send = transport.send

        def send_or_drop(node_id: NodeId, channel: Channel, frame_type: FrameType, body: Parts) -> bool:
            share = network.weather.drop_share
            if share and network.rng.random() < share:
                network.dropped += 1
                return False
            return send(node_id, channel, frame_type, body)

        transport.send = send_or_drop  # type: ignore[method-assign]

    def _start_later(self, machine: Machine) -> None:
        if not machine.keeps_down:
            self.loop.after(_RESTART_SECONDS, None, self._start_if_down, machine)

    def _start_if_down(self, machine: Machine) -> None:
        if machine.process is None and not machine.keeps_down:
            self.start(machine)

    def crash(self, machine: Machine, *, is_power_cut: bool = False) -> None:
        """Kill the process, by SIGKILL or a power cut. It stays down until `start`."""
        process = machine.process
        machine.keeps_down = True
        if process is not None:
            self._remove(process, is_power_cut=is_power_cut, why="loses power" if is_power_cut else "is killed")

    def tear_install(self, machine: Machine) -> bool:
        """Cut the power of a machine whose process has replaced the first of two files, if that is to happen. It starts again soon."""
        process = machine.process
        if not self.tears_left or process is None or process.is_stopping:
            return False
        self.tears_left -= 1
        self._remove(process, is_power_cut=True, why="loses power between two files")
        self._start_later(machine)
        return True

    def _remove(self, process: Process, *, is_power_cut: bool, why: str) -> None:
        machine = process.machine
        if machine.process is not process:
            return
        self.trace(f"{machine.name} {why}")
        machine.process = None
        if process.parts.sim_store is not None:
            self.installs += process.parts.sim_store.installs
        if process.node is not None:
            self.resumes += process.node.engine.receiver.resumed_total
        if is_power_cut:
            self.network.dark[machine.name] = None
        if process.parts.sim_writers is not None:
            process.parts.sim_writers.crash()
        if process.parts.sim_write_back is not None:
            process.parts.sim_write_back.crash()
        self.loop.kill(process.host)
        self.network.on_process_ended(process.host, is_power_cut=is_power_cut)
        for listener in self.on_gone:
            listener(process)

    def stop(self, machine: Machine) -> None:
        """Stop the process properly, as SIGTERM does. It stays down until `start`."""
        process = machine.process
        machine.keeps_down = True
        if process is not None and process.node is not None and not process.is_stopping:
            process.is_stopping = True
            self.trace(f"{machine.name} is asked to stop")
            if process.starting is not None:
                process.starting.cancel()
            process.stopping = self.loop.spawn(process.host, process.node.stop())

    def renew_hardly_ever(self) -> None:
        """Let brokers keep the marks of their directories, after one more renewal at most."""
        self.settings.timing["mark_renewal_seconds"] = HARDLY_EVER
        for machine in self.machines.values():
            if machine.node is not None:
                machine.node._bootstrap._mark_renewal_seconds = HARDLY_EVER

    def freeze(self, machine: Machine, *, is_suspended: bool = False) -> None:
        """Freeze the process, as SIGSTOP does, or suspend its whole machine. Only the clocks that count suspension continue then."""
        if machine.process is not None and not machine.process.host.is_frozen:
            self.trace(f"{machine.name} {'is suspended' if is_suspended else 'freezes'}")
            machine.process.host.is_frozen = True
            machine.process.host.suspended_at = self.loop.now if is_suspended else None

    def thaw(self, machine: Machine) -> None:
        """Resume the process, as SIGCONT does, or its machine."""
        if machine.process is not None and machine.process.host.is_frozen:
            self.trace(f"{machine.name} thaws")
            self.loop.thaw(machine.process.host)

    def wipe(self, machine: Machine) -> None:
        """Replace the machine's lost disk by an empty one. The broker will request its old node id."""
        node = machine.node
        node_id = int(node.view.node_id) if node is not None else machine.wiped_node_id
        self.replace_disk(machine)
        machine.wiped_node_id = node_id

    def restore(self, machine: Machine, disk: Disk) -> None:
        """Replace the machine's disk by a backup of it, and start the broker."""
        self.crash(machine, is_power_cut=False)
        machine.disk = disk
        self.trace(f"{machine.name} has its disk of boot {disk.node().boot} again")
        self.start(machine)

    def swap_disks(self, one: Machine, other: Machine) -> None:
        """Exchange the disks of two machines that are down, and what the operator configures for them."""
        for name in ("disk", "wiped_node_id", "has_new_disk", "is_given_up"):
            mine, its = getattr(one, name), getattr(other, name)
            setattr(one, name, its)
            setattr(other, name, mine)
        self.trace(f"{one.name} and {other.name} exchange their disks")

    def replace_disk(self, machine: Machine) -> None:
        """Replace the machine's disk by an empty one. Without `wiped_node_id` the broker will join as a new node."""
        self.crash(machine, is_power_cut=True)
        machine.disk = self.new_disk()
        machine.wiped_node_id = 0
        machine.has_new_disk = True
        self.trace(f"{machine.name} has a new disk")

    # ------------------------------------------------------------------------------------------------ reports of nodes

    def on_fatal(self, process: Process, error: BaseException) -> None:
        """Handle a process that ends itself. One that is gone already does not end itself: a crash has torn its last transaction."""
        if process.machine.process is not process:
            return
        self.trace(f"{process.machine.name} fatal: {type(error).__name__}: {error}")
        for listener in self.on_fatal_error:
            listener(process, error)

    def on_broken(self, process: Process, replica: Replica[StateMachine], error: Exception) -> None:
        """Handle a replica that fell silent."""
        self.trace(
            f"{process.machine.name} g{replica.group_id} r{replica.replica_id} broken: {type(error).__name__}: {error}"
        )
        for listener in self.on_broken_replica:
            listener(process, replica, error)
