"""Draw a schedule of faults from a seed, and carry it out on a cluster in a separate thread (`Nemesis`).

The schedule (the faults, their durations and their random generators) depends on seed and families alone. The broker that a fault hits may
depend on who leads, and is logged. Count and time are bounded. Invariant: the cluster is healed in the end, in every case.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from raftmq.testing import LocalClusterError

from tests.chaos.cluster import ChaosCluster
from tests.chaos.condition import StoppedError, is_led, wait_until, what_is_not_whole
from tests.chaos.fault import Fault, FaultError, Target
from tests.chaos.faults import FAULTS
from tests.chaos.operator import Operator, OrderError

STEPS_MAX = 10_000
ORDERS = "orders"
"""The family of an operator's orders."""
BACKGROUND_CHANCE = 0.35
"""The probability that a light fault overlaps with another one."""
WAIT_CHANCE = 0.5
"""The probability that the next fault waits until every partition is led again. Otherwise it hits a recovering cluster."""
LED_SECONDS = 90.0
WHOLE_SECONDS = 120.0
GAP_SECONDS = (0.2, 1.5)


@dataclass(frozen=True)
class Step:
    """One line of the schedule."""

    name: str
    seed: int
    """Seed of the fault's random generator."""
    hold_seconds: float
    gap_seconds: float
    background: str = ""
    """Name of a light fault that overlaps (empty: none)."""
    waits: bool = False
    """Whether the next step waits until the cluster has recovered."""


def schedule(seed: int, families: Sequence[str], count: int) -> list[Step]:
    """Return the first `count` steps: every kind of fault once, in random order, then random ones."""
    chance = random.Random(f"{seed} {' '.join(families)}")
    kinds = [one for one in FAULTS.values() if one.family in families]
    light = [one.name for one in kinds if one.is_light]
    chosen = chance.sample(kinds, len(kinds)) + chance.choices(kinds, k=max(0, count - len(kinds)))
    # Each step has its own generator, so a longer schedule begins like a shorter one.
    return [_step(one, light, random.Random(f"{seed} {at}")) for at, one in enumerate(chosen[:count])]


def _step(one: Fault, light: Sequence[str], chance: random.Random) -> Step:
    # Orders may contradict each other. Two faults of another family would undo each other.
    others = [
        name for name in light if name != one.name and (FAULTS[name].family != one.family or one.family == ORDERS)
    ]
    has_background = chance.random() < BACKGROUND_CHANCE and not one.needs_whole and bool(others)
    return Step(
        name=one.name,
        seed=chance.randrange(1 << 32),
        hold_seconds=round(chance.uniform(*one.hold_seconds), 2),
        gap_seconds=round(chance.uniform(*GAP_SECONDS), 2),
        background=chance.choice(others) if has_background else "",
        waits=one.needs_whole or chance.random() < WAIT_CHANCE,
    )


@dataclass
class Nemesis:
    """Carries out a schedule. `findings` lists unexpected behaviour of brokers and is empty after a clean run."""

    cluster: ChaosCluster
    topic: str
    steps: Sequence[Step]
    seconds: float
    """No step starts after this time."""
    log_path: Path
    findings: list[str] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    """Names of the completed faults."""

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self.operator = Operator(self.cluster, self.topic, self._stop)
        self._began_at = time.monotonic()

    def stop(self) -> None:
        """Start no further step: `run` returns after the current one."""
        self._stop.set()

    def note(self, event: str, **more: object) -> None:
        """Write an event to the log, with the time since the beginning and on the monotonic clock."""
        now = time.monotonic()
        line = {"seconds": round(now - self._began_at, 2), "time": time.monotonic_ns(), "event": event, **more}
        with self.log_path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def run(self) -> None:
        """Carry out the schedule to its end, to the end of the time, or until `stop`. Blocks, and heals the cluster at the end."""
        self._began_at = time.monotonic()
        try:
            for step in self.steps[:STEPS_MAX]:
                if self._stop.is_set() or time.monotonic() - self._began_at > self.seconds:
                    break
                self._carry_out(step)
                self._supervise()
                self._stop.wait(step.gap_seconds)
        except StoppedError:
            pass
        except (FaultError, LocalClusterError, OrderError) as error:
            self._find(str(error))
        finally:
            self._heal()
        self._settle()

    def _settle(self) -> None:
        """Wait until all orders are carried out, unless something was found before."""
        if self.findings or self._stop.is_set() or not self.operator.has_ordered:
            return
        try:
            problem = self.operator.settle()
        except StoppedError:
            return
        self.note("settled", answers=dict(self.operator.answers))
        if problem:
            self._find(f"not every order is carried out after healing: {problem}")

    def _carry_out(self, step: Step) -> None:
        one = FAULTS[step.name]
        if one.needs_whole and not self._wait_whole():
            return
        with ExitStack() as background:
            if step.background:
                self._enter(background, step.background, step.seed + 1)
            with ExitStack() as main:
                self._enter(main, step.name, step.seed)
                self._stop.wait(step.hold_seconds)
            self.note("undone", fault=step.name)
        if step.background:
            self.note("undone", fault=step.background)
        self.done.append(step.name)
        if one.needs_whole:
            self._wait_whole()
        elif step.waits and not wait_until(lambda: is_led(self.cluster, self.topic), LED_SECONDS, self._stop):
            self._find(f"{LED_SECONDS:.0f} s after {step.name} was undone not every partition is led")

    def _enter(self, stack: ExitStack, name: str, seed: int) -> None:
        self.note("begins", fault=name)
        said = stack.enter_context(
            FAULTS[name].act(Target(self.cluster, self.topic, random.Random(seed), self._stop, self.operator))
        )
        self.note("holds", fault=name, what=said)

    def _wait_whole(self) -> bool:
        if wait_until(lambda: not self._what_is_not_whole(), WHOLE_SECONDS, self._stop):
            return True
        self._find(f"not whole within {WHOLE_SECONDS:.0f} s: {self._what_is_not_whole()}")
        return False

    def _what_is_not_whole(self) -> str:
        # A partition that still moves, or has fewer replicas for a while, may not lose one more.
        return what_is_not_whole(self.cluster, self.topic) or self.operator.what_is_not_settled()

    def _supervise(self) -> None:
        """Check that every broker runs between faults. Report and restart a broker that has ended by itself."""
        for broker_id in self.cluster.broker_ids:
            if not self.cluster.is_running(broker_id):
                tail = "\n".join(self.cluster.logs(broker_id).splitlines()[-5:])
                self._find(f"broker {broker_id} ended by itself:\n{tail}")
                self.cluster.restart(broker_id, wait=False)

    def _heal(self) -> None:
        self.cluster.links.heal()
        for broker_id in self.cluster.broker_ids:
            if self.cluster.has_disk_orders:
                self.cluster.disk(broker_id).work()
            if self.cluster.has_clock_orders:
                self.cluster.clock(broker_id).work()
        self._supervise()
        self.note("healed")

    def _find(self, text: str) -> None:
        self.note("finding", text=text)
        self.findings.append(text)
