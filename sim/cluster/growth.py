"""A large cluster that grows and shrinks: brokers join, one is drained, one dies for good, and one loses its power, while clients work.

`python -m sim.cluster.growth --partitions 1000` prints how long each step took, in virtual and in real time.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import structlog
from raftmq.fsm.metadata_commands import SetBalancing, SetNodeState

from sim.cluster.cluster import LargeConfig
from sim.cluster.faults import Nemesis
from sim.cluster.options import FAULTS, Options, draw_options
from sim.cluster.run import LivenessFailure, Outcome, Simulation, run_seed

BROKERS = 10
NEW_BROKERS = 2
PARTITIONS = 1_000
MOVES_MAX_MIN = 20
PARTITIONS_PER_MOVE = 15
"""With more partitions more of them move simultaneously, so that a step takes about as long."""
STEP_SECONDS = 400.0
"""Virtual time within which one step must be complete. With 1,000 partitions a step moves up to 600 replicas."""
_ENTRIES_BEHIND_MAX = 10
"""Clients write all the time, so that among many partitions some replica always lacks the newest entries. At the end none may."""
_NOTICE_SECONDS = 2.0
"""Time after which the controller has noticed a step."""
_DONE = "done after"


def growth_options(seed: int, partitions: int) -> Options:
    """Return the options of a run in which nothing but the steps disturbs the brokers."""
    drawn = replace(draw_options(random.Random(seed)), **dict.fromkeys(FAULTS, 0))  # type: ignore[arg-type]  # by name
    return replace(
        drawn,
        machines=BROKERS,
        metadata_voters=5,
        topics=1,
        partitions=partitions,
        replication_factor=3,
        tick_seconds=0.25,
        election_ticks=5,
        uncommitted_bytes_max=1_000_000,
        recent_entries_bytes_max=1_000_000,
        inbound_append_bytes_max=1_000_000,
        is_tight=False,
        is_forgetful=False,
        reset_share=0.0,
        drop_share=0.0,
        disk_latency=0.0005,
        clock_rates=(0.95, 1.05),
        operate=1,  # the layout is checked, and the controller takes a broker for settled after 0.8 s
        admin_every=0.0,
        trim_every=1.0,
        members=2,
        namesakes=0,
        retention_ms=0,
    )


class Growth(Simulation):
    """A run whose second phase is a script. Every step ends when all replicas are where they belong."""

    forming_seconds = 120.0
    liveness_seconds = STEP_SECONDS
    look_seconds = 0.5
    check_seconds = 1.0
    """The state of a thousand groups is not looked at a hundred times a second."""
    config_class = LargeConfig

    entries_behind_max = _ENTRIES_BEHIND_MAX

    def _heal(self) -> None:
        self.entries_behind_max = 0
        super()._heal()

    def _disturb(self) -> None:
        self.nemesis = nemesis = Nemesis(self.cluster, replace(self.options, operate=0), self._child(), self.checker)
        self.workload.start()
        self._order(
            nemesis,
            SetBalancing(
                auto_balance=True, moves_max=max(MOVES_MAX_MIN, self.options.partitions // PARTITIONS_PER_MOVE)
            ),
        )
        self._step(f"{NEW_BROKERS} brokers join", self._join)
        drained = next(
            int(machine.node.view.node_id)
            for machine in self.cluster.machines.values()
            if machine.node is not None and machine is not nemesis._victim
        )
        self._step("a broker is drained", lambda: self._order(nemesis, SetNodeState(drained, "draining")))
        self._step("a broker dies and is removed", lambda: nemesis.strike("remove_node"))
        self._step("a broker loses its power", lambda: nemesis.strike("power_cut"))
        self._step("the drain ends", lambda: self._order(nemesis, SetNodeState(drained, "active")))

    def _order(self, nemesis: Nemesis, command: SetBalancing | SetNodeState) -> None:
        """Propose a command of an operator, once there is a leader that takes it."""

        def is_proposed() -> bool:
            leader = nemesis._metadata_leader()
            return leader is not None and nemesis._propose(leader, command)

        if not self._until(is_proposed, STEP_SECONDS):
            raise LivenessFailure(f"no leader takes {command}")

    def _join(self) -> None:
        for _ in range(NEW_BROKERS):
            self.cluster.start(self.cluster.add_machine())

    def _step(self, text: str, act: Callable[[], object]) -> None:
        self.trace(f"-- {text}")
        begun = self.loop.now
        act()
        self._until(None, _NOTICE_SECONDS)
        if not self._until(self._is_whole, STEP_SECONDS):
            raise LivenessFailure(f"{text}: {self._why_not_whole()}")
        self.trace(f"-- {text}: {_DONE} {self.loop.now - begun:.1f} s")


def grow(seed: int, partitions: int, say: Callable[[str], None]) -> Outcome:
    """Run the script on one seed. `say` gets a line for each step that is done."""

    def trace(line: str) -> None:
        if _DONE in line:
            say(line)

    return run_seed(seed, trace=trace, options=growth_options(seed, partitions), simulation_class=Growth)


def main() -> int:
    """Run the command. Returns its exit code, which is that of a run of a seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--partitions", type=int, default=PARTITIONS)
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    begun = time.monotonic()
    outcome = grow(
        arguments.seed,
        arguments.partitions,
        lambda line: print(f"{line} ({time.monotonic() - begun:.0f} s real)", flush=True),
    )
    print(
        f"{outcome.verdict.name}: {outcome.detail or 'nothing lost, every replica in its place'} "
        f"({outcome.virtual_seconds:.0f} s virtual, {outcome.real_seconds:.0f} s of a processor, {outcome.acknowledged} records acknowledged)"
    )
    return int(outcome.verdict)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # the run's tasks end with the process, as those of `child.py`
