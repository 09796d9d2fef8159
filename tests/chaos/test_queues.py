"""Queue topics keep their promises while brokers and workers are killed and frozen."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.history.queues.operations import Verb
from tests.chaos.cluster import ChaosCluster
from tests.chaos.queue_run import queue_run

SEED = 5
SHORT_SECONDS = 3.0
LONG_SECONDS = 60.0


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "seconds"),
    [
        pytest.param("kill", SHORT_SECONDS, marks=pytest.mark.long),
        pytest.param("freeze", SHORT_SECONDS, marks=pytest.mark.long),
        pytest.param("kill freeze", LONG_SECONDS, marks=pytest.mark.long),
    ],
)
async def test_killed_and_frozen_brokers_and_workers_break_no_promise(
    cluster: ChaosCluster, family: str, seconds: float, tmp_path: Path
) -> None:
    report = await queue_run(cluster, SEED, family.split(), seconds, tmp_path)
    assert not report.findings, report.text()
    assert report.faults
    assert report.acknowledged
    assert report.repeats, "ids were put again"
    assert report.redriven, "messages were given up"
    assert report.killed_workers
    assert report.renewed_leases, "messages were leased again after their worker failed"
    assert all(report.verbs[verb] for verb in (Verb.ACCEPT, Verb.RELEASE, Verb.REJECT))
