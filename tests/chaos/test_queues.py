"""Queue topics keep their promises while brokers, disks, links and clocks fail, and workers are killed and frozen."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.history.queues.operations import Verb
from tests.chaos.cluster import ChaosCluster
from tests.chaos.faults import families
from tests.chaos.machine import missing_for_families
from tests.chaos.queue_run import queue_run

SEED = 5
SHORT_SECONDS = 3.0
LONG_SECONDS = 60.0


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(
    ("family", "seconds"), [*((name, SHORT_SECONDS) for name in families()), (" ".join(families()), LONG_SECONDS)]
)
async def test_no_fault_breaks_a_promise_of_queues(
    cluster: ChaosCluster, family: str, seconds: float, tmp_path: Path
) -> None:
    missing = missing_for_families()
    possible = [name for name in family.split() if not missing.get(name)]
    if not possible:
        pytest.skip(f"{missing[family]}; tests/chaos/README.md names the substitute")
    report = await queue_run(cluster, SEED, possible, seconds, tmp_path)
    assert not report.findings, report.text()
    assert report.faults
    assert report.acknowledged
    assert report.repeats, "ids were put again"
    assert report.redriven, "messages were given up"
    assert report.copies, "dead messages were copied"
    assert report.firings
    assert report.purged
    assert report.killed_workers
    assert report.renewed_leases, "messages were leased again after their worker failed"
    assert all(report.verbs[verb] for verb in (Verb.ACCEPT, Verb.RELEASE, Verb.REJECT))
    assert all(report.changed[verb] for verb in (Verb.MOVE, Verb.CANCEL))
