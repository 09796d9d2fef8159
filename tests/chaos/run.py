"""One run: a cluster, clients at work, a nemesis; then everything is healed, must be whole again and serve, is read back, and judged."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from raftmq import Admin
from sim.history.checker import judge_files

from tests.chaos.cluster import ChaosCluster
from tests.chaos.nemesis import Nemesis, schedule
from tests.chaos.condition import wait_until, what_is_not_whole
from tests.chaos.workload import Workload

PARTITIONS = 3
STEPS_PER_SECOND = 1
"""More than fit: the time ends a run."""
FIRST_RECORDS = 100
HEALED_SECONDS = 90.0
"""After the last fault was undone the cluster must be whole within it."""
PROGRESS_SECONDS = 30.0
FINISH_SECONDS = 240.0
"""For every answer, and to read everything twice; above the patience of the most patient writer."""


@dataclass
class Report:
    """What a run did and found."""

    seed: int
    families: Sequence[str]
    directory: Path
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)
    acknowledged: int = 0
    failed: dict[str, int] = field(default_factory=dict)
    read: int = 0
    findings: list[str] = field(default_factory=list)

    def text(self) -> str:
        """For people."""
        head = (
            f"seed {self.seed}, {'+'.join(self.families)}: {len(self.faults)} faults in {self.seconds:.0f} s, "
            f"{self.acknowledged} acknowledged, {self.read} read, failures {self.failed}"
        )
        if not self.findings:
            return f"{head}: clean"
        details = "\n".join(self.findings)
        return (
            f"{head}\n{details}\nthe schedule and the history: {self.directory}\n"
            f"again: make chaos SEED={self.seed} ARGS='--families {','.join(self.families)}'"
        )


async def chaos_run(
    cluster: ChaosCluster, seed: int, families: Sequence[str], seconds: float, directory: Path
) -> Report:
    """Do it on a cluster that runs; it is left whole when nothing was found. History and schedule go to the directory."""
    report = Report(seed, families, directory)
    directory.mkdir(parents=True, exist_ok=True)
    began_at = time.monotonic()
    topic = f"chaos-{uuid.uuid4().hex[:8]}"
    history = directory / "history.jsonl"
    async with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        await admin.create_topic(topic, partitions=PARTITIONS, replication_factor=min(3, len(cluster.node_ids)))
    steps = schedule(seed, families, max(1, int(seconds * STEPS_PER_SECOND)))
    nemesis = Nemesis(cluster, topic, steps, seconds, directory / "schedule.jsonl")
    nemesis.note("run", seed=seed, families=list(families), steps=[step.name for step in steps])
    async with Workload(cluster.bootstrap_servers, topic, PARTITIONS, history, seed) as workload:
        if not await workload.wait_progress(FIRST_RECORDS, PROGRESS_SECONDS):
            report.findings.append("the clients do not get going on a cluster without faults")
        running = asyncio.create_task(asyncio.to_thread(nemesis.run))
        try:
            await asyncio.shield(running)
        finally:  # Ctrl-C: the thread must end before the cluster does
            nemesis.stop()
            await asyncio.wait([running])
        report.findings += nemesis.findings
        report.findings += await _serves_again(cluster, topic, workload)
        try:
            await workload.finish(FINISH_SECONDS)
        except TimeoutError:
            report.findings.append(
                f"not every answer and every record came within {FINISH_SECONDS:.0f} s after healing"
            )
    verdict = judge_files([history])
    if not verdict.is_clean:
        report.findings.append(verdict.report())
    report.seconds = time.monotonic() - began_at
    report.faults, report.failed = nemesis.done, workload.failed
    report.acknowledged, report.read = workload.acknowledged, workload.read
    if not report.findings:
        async with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            await admin.delete_topic(topic)
    return report


async def _serves_again(cluster: ChaosCluster, topic: str, workload: Workload) -> list[str]:
    """Liveness: once nothing is broken any more, the cluster becomes whole by itself and clients get on."""
    is_whole = await asyncio.to_thread(wait_until, lambda: not what_is_not_whole(cluster, topic), HEALED_SECONDS)
    findings = []
    if not is_whole:
        findings.append(f"{HEALED_SECONDS:.0f} s after healing: {what_is_not_whole(cluster, topic)}")
    if not await workload.wait_progress(FIRST_RECORDS, PROGRESS_SECONDS):
        findings.append(
            f"no {FIRST_RECORDS} records more were acknowledged and read {PROGRESS_SECONDS:.0f} s after healing"
        )
    return findings
