"""The operator of a run with two versions: he rolls the brokers up, some of them down again, and up for good, and raises the level.

A user tries the added command and field whenever a broker of the next version leads the metadata. Before the level is raised they must be refused.
After that a broker is sometimes started with the old program by mistake. It must fall silent, and continue with the new one.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from raftmq.broker.base.request_error import RequestError
from raftmq.client.admin.admin import Admin
from raftmq.errors import RaftMQError, UnsupportedVersionError
from raftmq.fsm.tables import encode_value
from raftmq.proto import queue_pb2 as pb
from raftmq.raft.entry import EntryKind, Proposal
from raftmq.types import METADATA_GROUP_ID

from sim.cluster.checker import Checker
from sim.cluster.cluster import Cluster, Machine, Process, leads
from sim.cluster.upgrades.next_version import NEXT_LEVEL, NextSetBalancing, NextVersion, SetNote
from sim.core.invariants.violation import demand

STEP_SECONDS = 0.7
"""Average time between two steps of the operator. A broker that crashed starts again with the program that is installed."""
_USE_SECONDS = 0.3
_LOOK_SECONDS = 0.1
_MISTAKE_SECONDS = 2.0
LAST_NOTE = 1_000_000
"""The note that is set at the end of a run."""


class Roller:
    """Upgrades the brokers of one run."""

    def __init__(
        self,
        cluster: Cluster,
        checker: Checker,
        rng: random.Random,
        version: NextVersion,
        new_admin: Callable[[], Admin],
    ) -> None:
        self._cluster = cluster
        self._checker = checker
        self._rng = rng
        self._version = version
        self._new_admin = new_admin
        self._steps = self._draw_steps()
        self._may_raise_early = rng.random() < 0.6
        self._mistakes = rng.choice((0, 1, 1, 2))
        self._mistaken: dict[str, None] = {}
        """Machines that run the old program by mistake."""
        self._never_up = dict.fromkeys(cluster.machines)
        """Machines that never had the next program."""
        self._is_raised = False
        self._disturbing: asyncio.Task[None] | None = None
        self._note = 0
        self._is_used_when_raised = rng.random() < 0.5
        """Whether the added parts are used once the level is raised. If they are, an old broker falls silent because it cannot read the state."""
        self.is_over = False
        """Whether the phase with faults is over."""
        self.counts: Counter[str] = Counter()
        version.on_refused_frame = lambda reason: checker.judge(demand, False, "FramesAreUnderstood", reason)

    def _draw_steps(self) -> list[tuple[str, bool]]:
        """Return which machine gets which program: first some go up, then some of these down again, then all up."""
        names = self._rng.sample(list(self._cluster.machines), len(self._cluster.machines))
        first = names[: self._rng.randint(1, len(names))]
        back = [name for name in first if self._rng.random() < 0.6]
        return [*((name, True) for name in first), *((name, False) for name in back), *((name, True) for name in names)]

    # ------------------------------------------------------------------------------------------------ the brokers

    def _install(self, machine: Machine, *, is_next: bool) -> None:
        machine.is_next_version = is_next
        self._cluster.trace(f"-- {machine.name} gets the {'next' if is_next else 'old'} program")
        if machine.process is not None:
            self._cluster.stop(machine)

    async def _roll(self, machine: Machine, *, is_next: bool) -> None:
        """Stop a broker, and start it with another program."""
        if machine.is_next_version != is_next:
            self._install(machine, is_next=is_next)
            self.counts["rolled up" if is_next else "rolled down"] += 1
        process = machine.process
        while process is not None and process.host.is_next_version != is_next and machine.process is process:
            if not process.is_stopping and not process.host.is_frozen:
                self._cluster.stop(machine)
            await asyncio.sleep(_LOOK_SECONDS)
        self._cluster.start(machine)

    async def disturb(self) -> None:
        """Roll brokers up and down while faults happen."""
        self._disturbing = asyncio.current_task()
        for name, is_next in self._steps:
            await asyncio.sleep(self._rng.expovariate(1 / STEP_SECONDS))
            if self.is_over:
                return
            if self._never_up and self._rng.random() < 0.4:
                await self._try_to_raise_level()  # too early, unless the others are no members now
            if is_next or not self._is_raised:
                self._never_up.pop(name, None)
                await self._roll(self._cluster.machines[name], is_next=is_next)
        if not self._may_raise_early or not await self._raise_level(lambda: self.is_over):
            return
        for _ in range(self._mistakes):
            await asyncio.sleep(self._rng.expovariate(1 / STEP_SECONDS))
            if self.is_over:
                return
            await self._mistake(self._rng.choice(list(self._cluster.machines.values())))

    async def _mistake(self, machine: Machine) -> None:
        """Start the old program for a while although the level was raised."""
        self.counts["mistakes"] += 1
        self._mistaken[machine.name] = None
        await self._roll(machine, is_next=False)
        await asyncio.sleep(_MISTAKE_SECONDS)
        await self._roll(machine, is_next=True)
        self._mistaken.pop(machine.name, None)

    async def finish(self) -> None:
        """Roll all brokers up, raise the level, and use the added command."""
        if self._disturbing is not None:
            await self._disturbing
        for machine in self._cluster.machines.values():
            await self._roll(machine, is_next=True)
        self._mistaken.clear()
        await self._raise_level(lambda: False)
        while not self._is_noted():
            self._use(SetNote(LAST_NOTE))
            await asyncio.sleep(_USE_SECONDS)
        for process in self._cluster.running():
            level = process.node.view.metadata.state_machine.feature_level if process.node is not None else 0
            self._cluster.trace(f"{process.machine.name} is at level {level}")

    async def _raise_level(self, is_over: Callable[[], bool]) -> bool:
        """Raise the level when all brokers can have it, as `raftmq cluster raise-level` does. Return whether it was raised."""
        while not is_over():
            if await self._try_to_raise_level():
                return True
            await asyncio.sleep(_USE_SECONDS)
        return False

    async def _try_to_raise_level(self) -> bool:
        try:
            async with self._new_admin() as admin:
                await admin.raise_feature_level(NEXT_LEVEL)
        except UnsupportedVersionError:
            self.counts["raised too early"] += 1
        except RaftMQError as error:
            self.counts[f"raise {type(error).__name__}"] += 1
        else:
            self.counts["levels raised"] += 1
            self._is_raised = self._cluster.is_next_version = True  # machines that are added now get the next program
        return self._is_raised

    # ------------------------------------------------------------------------------------------------ the added parts

    async def use(self) -> None:
        """Use the added command and field whenever a broker of the next version leads the metadata."""
        while not self.is_over:
            await asyncio.sleep(self._rng.expovariate(1 / _USE_SECONDS))
            if self._is_raised and not self._is_used_when_raised:
                continue
            self._note += 1
            is_field = self._rng.random() < 0.5
            self._use(NextSetBalancing(note=self._note) if is_field else SetNote(self._note))

    def _metadata_leader(self) -> Process | None:
        for process in self._cluster.running():
            group = process.node.engine.replicas.get(METADATA_GROUP_ID) if process.node is not None else None
            if group is not None and leads(group) and process.host.is_next_version and not process.host.is_frozen:
                return process
        return None

    def _use(self, command: SetNote | NextSetBalancing) -> None:
        process = self._metadata_leader()
        if process is None or process.node is None:
            return
        group: Any = process.node.engine.replicas[METADATA_GROUP_ID]
        proposal = Proposal(EntryKind.COMMAND, encode_value(command))
        try:
            process.host.context.run(group.propose, [proposal])
        except RequestError as error:
            self.counts["refused by level" if error.code == pb.UNSUPPORTED_VERSION else "refused"] += 1
        else:
            self.counts["used"] += 1

    def _is_noted(self) -> bool:
        """Return whether every broker has the last note."""
        processes = self._cluster.running()
        groups: list[Any] = [p.node.engine.replicas.get(METADATA_GROUP_ID) for p in processes if p.node is not None]
        return len(groups) == len(self._cluster.machines) and all(
            group is not None and getattr(group.state_machine._tables.cluster, "note", 0) == LAST_NOTE
            for group in groups
        )

    # ------------------------------------------------------------------------------------------------ the invariants

    def look(self) -> None:
        """Check that no broker serves above its level, and that none is above it but by mistake."""
        for process in self._cluster.running():
            self._checker.judge(self._check, process)

    def _check(self, process: Process) -> None:
        node: Any = process.node
        level, own = node._metadata.feature_level(), node._feature_level
        if level <= own:
            return
        name = process.machine.name
        demand(
            node.standing.silence is not None, "SilentAboveItsLevel", f"{name} knows level {own}, and serves at {level}"
        )
        self.counts["silenced"] += 1
        is_next = process.machine.is_next_version
        demand(
            name in self._mistaken or is_next,
            "LevelIsSupported",
            f"{name} knows level {own}, and the cluster is at {level}",
        )
