"""Carry out one run: a cluster with clients and a nemesis is healed, checked for liveness, read back, and its history is judged."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from raftmq import Admin
from raftmq.methods import APPEND, APPEND_STREAM

from sim.history.checker import judge_files
from tests.chaos.cluster import ChaosCluster
from tests.chaos.condition import answered_calls, wait_until, what_is_not_whole
from tests.chaos.nemesis import Nemesis, schedule
from tests.chaos.workload import Workload

PARTITIONS = 3
STEPS_PER_SECOND = 1
"""More steps than fit, so that the time ends a run."""
FIRST_RECORDS = 100
HEALED_SECONDS = 120.0
"""The time after the last fault within which the cluster must be whole."""
PROGRESS_SECONDS = 60.0
FINISH_SECONDS = 150.0
"""The time for all answers, and again for reading everything twice. It is longer than the longest delivery timeout of a writer."""


@dataclass
class Report:
    """The result of a run."""

    seed: int
    families: Sequence[str]
    directory: Path
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)
    acknowledged: int = 0
    failed: dict[str, int] = field(default_factory=dict)
    read: int = 0
    data_appends: int = 0
    """Append requests that the brokers answered over data connections, each broker since its last start."""
    grpc_appends: int = 0
    """Append requests that they answered over gRPC instead."""
    findings: list[str] = field(default_factory=list)
    circumstances: str = ""
    """Additional arguments of the command that repeats the run."""

    def text(self) -> str:
        """Return the report for people."""
        head = (
            f"seed {self.seed}, {'+'.join(self.families)}: {len(self.faults)} faults in {self.seconds:.0f} s, "
            f"{self.acknowledged} acknowledged, {self.read} read, since the last starts {self.data_appends} appends over data "
            f"connections and {self.grpc_appends} over gRPC, failures {self.failed}"
        )
        if not self.findings:
            return f"{head}: clean"
        details = "\n".join(self.findings)
        return (
            f"{head}\n{details}\nthe schedule and the history: {self.directory}\n"
            f"again: make chaos SEED={self.seed} ARGS='--families {','.join(self.families)}{self.circumstances}'"
        )


class Trial:
    """An async context manager that runs clients on a new topic.

    After a block without an error it checks that the cluster serves again and judges the history. `findings` is complete then. The exit
    raises nothing for findings: `demand_clean` does.
    """

    def __init__(
        self,
        cluster: ChaosCluster,
        directory: Path,
        seed: int = 0,
        partitions: int = PARTITIONS,
        *,
        keeps_topic: bool = False,
    ) -> None:
        self._keeps_topic = keeps_topic
        self.cluster = cluster
        self.directory = directory
        self.partitions = partitions
        self.topic = f"chaos-{uuid.uuid4().hex[:8]}"
        self.findings: list[str] = []
        self.data_appends = self.grpc_appends = 0
        """Answered after healing: `Report` explains them."""
        self.history = directory / "history.jsonl"
        directory.mkdir(parents=True, exist_ok=True)
        self.workload = Workload(lambda: cluster.bootstrap_servers, self.topic, partitions, self.history, seed)

    async def __aenter__(self) -> Self:
        async with Admin(bootstrap_servers=self.cluster.bootstrap_servers) as admin:
            await admin.create_topic(self.topic, self.partitions, min(3, len(self.cluster.broker_ids)))
        await self.workload.__aenter__()
        try:
            is_going = await self.workload.wait_progress(FIRST_RECORDS, PROGRESS_SECONDS)
            assert is_going, "the clients do not get going on a cluster without faults"
        except BaseException:
            await self.workload.__aexit__()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                await self._finish()
        finally:
            await self.workload.__aexit__()
        if error is not None:
            return
        verdict = judge_files([self.history])
        if not verdict.is_clean:
            self.findings.append(verdict.report())
        elif not verdict.is_read_to_the_end:
            self.findings.append("the history has no complete reading back, so lost records could not be told")
        if not self.findings and not self._keeps_topic:
            async with Admin(bootstrap_servers=self.cluster.bootstrap_servers) as admin:
                await admin.delete_topic(self.topic)

    async def _finish(self) -> None:
        """Check liveness: without faults the cluster becomes whole by itself, clients make progress, and every call is answered."""
        cluster, topic = self.cluster, self.topic
        if not await asyncio.to_thread(wait_until, lambda: not what_is_not_whole(cluster, topic), HEALED_SECONDS):
            self.findings.append(f"{HEALED_SECONDS:.0f} s after healing: {what_is_not_whole(cluster, topic)}")
        if not await self.workload.wait_progress(FIRST_RECORDS, PROGRESS_SECONDS):
            self.findings.append(f"clients do not get on {PROGRESS_SECONDS:.0f} s after healing")
        self.data_appends = await asyncio.to_thread(answered_calls, cluster, APPEND.name)
        self.grpc_appends = await asyncio.to_thread(answered_calls, cluster, APPEND_STREAM.name)
        try:
            await self.workload.stop(FINISH_SECONDS)
            await self.workload.read_back(FINISH_SECONDS)
        except TimeoutError:
            self.findings.append(f"not every answer and record came within {FINISH_SECONDS:.0f} s after healing")

    def demand_clean(self) -> None:
        """Raise AssertionError with all findings."""
        assert not self.findings, "\n".join(self.findings)


async def chaos_run(
    cluster: ChaosCluster, seed: int, families: Sequence[str], seconds: float, directory: Path
) -> Report:
    """Carry out one run on a running cluster, which is whole afterwards unless something is found. Write history and schedule to `directory`."""
    report = Report(seed, families, directory)
    began_at = time.monotonic()
    steps = schedule(seed, families, max(1, int(seconds * STEPS_PER_SECOND)))
    async with Trial(cluster, directory, seed) as trial:
        nemesis = Nemesis(cluster, trial.topic, steps, seconds, directory / "schedule.jsonl")
        nemesis.note("run", seed=seed, families=list(families), steps=[step.name for step in steps])
        running = asyncio.create_task(asyncio.to_thread(nemesis.run))
        try:
            await asyncio.shield(running)
        finally:  # Ctrl-C: the thread must end before the cluster does
            nemesis.stop()
            await asyncio.wait([running])
    workload = trial.workload
    report.findings = nemesis.findings + trial.findings
    report.seconds = time.monotonic() - began_at
    report.faults, report.failed = nemesis.done, workload.failed
    report.acknowledged, report.read = workload.acknowledged, workload.read
    report.data_appends, report.grpc_appends = trial.data_appends, trial.grpc_appends
    return report
