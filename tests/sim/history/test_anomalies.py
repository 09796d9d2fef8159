"""Each anomaly has hand-made histories (`cases/`) that must be flagged. Each has a clean twin that differs only in the essential point."""

from pathlib import Path

import pytest

from sim.history.checker import ANOMALIES, judge_files

CASES = Path(__file__).parent / "cases"
FLAGGED = sorted(path.name.removesuffix(".flagged.jsonl") for path in CASES.glob("*.flagged.jsonl"))
CLEAN = sorted(path.name.removesuffix(".clean.jsonl") for path in CASES.glob("*.clean.jsonl"))


@pytest.mark.parametrize("case", FLAGGED)
def test_a_history_with_an_anomaly_is_flagged_with_the_events_that_prove_it(case: str) -> None:
    verdict = judge_files([CASES / f"{case}.flagged.jsonl"])
    anomaly = case.split("-")[0]
    found = [finding for finding in verdict.findings if finding.anomaly == anomaly]
    assert len(found) == verdict.counts[anomaly] >= 1
    for finding in found:
        assert finding.evidence
        assert set(finding.evidence) <= verdict.evidence.keys()
    assert found[0].text in verdict.report()
    with pytest.raises(AssertionError, match=anomaly):
        verdict.demand_clean()


@pytest.mark.parametrize("case", CLEAN)
def test_its_twin_is_clean(case: str) -> None:
    verdict = judge_files([CASES / f"{case}.clean.jsonl"])
    verdict.demand_clean()
    assert verdict.is_clean
    assert verdict.operation_count > 0


def test_every_anomaly_has_a_case_and_a_clean_twin() -> None:
    assert FLAGGED == CLEAN
    assert {case.split("-")[0] for case in FLAGGED} == set(ANOMALIES)


@pytest.mark.parametrize(
    ("case", "others"),
    [
        ("aborted_read", ()),
        ("unseen", ()),
        ("never_read", ()),
        ("reordered_sends", ()),
        ("nonmonotonic_send", ()),
        ("never_sent-nobody", ()),
        ("nonmonotonic_poll-between", ()),
        ("misplaced_poll-zero", ()),
        ("inconsistent_offset-readers", ()),
        ("nonlinearizable-stale", ()),
        ("duplicate-acknowledged_elsewhere", ("lost_write",)),
        ("skipped_poll-between", ("lost_write",)),
        ("lost_write-replaced", ("inconsistent_offset", "duplicate")),
    ],
)
def test_an_anomaly_is_not_mistaken_for_another(case: str, others: tuple[str, ...]) -> None:
    """`others` are anomalies that may or must accompany it."""
    verdict = judge_files([CASES / f"{case}.flagged.jsonl"])
    assert verdict.counts.keys() <= {case.split("-")[0], *others}
