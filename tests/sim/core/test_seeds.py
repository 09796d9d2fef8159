"""A thousand simulated clusters of three and five voters keep every invariant and make progress after healing."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from raftmq.raft.core import RaftCore

from sim.core.__main__ import failure_line
from sim.core.batch import run_batch
from sim.core.cluster import Build
from sim.core.mutants import MUTANTS
from sim.core.options import Profile
from sim.core.run import Outcome, Verdict, run_seed

ROOT = Path(__file__).parents[3]
SEED_COUNT = 1000
SHARD_COUNT = 8


def run_command(*arguments: str, hash_seed: str = "0") -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ, PYTHONHASHSEED=hash_seed)
    return subprocess.run(
        [sys.executable, "-m", "sim.core", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "shard", [pytest.param(shard, marks=pytest.mark.long) if shard else shard for shard in range(SHARD_COUNT)]
)
def test_a_thousand_seeds_are_safe_and_live(shard: int) -> None:
    """raft.md 1.12: cluster-wide invariants. A failure's line replays it."""
    size = SEED_COUNT // SHARD_COUNT

    outcomes = list(run_batch(shard * size, size, jobs=2))

    assert [failure_line(outcome) for outcome in outcomes if outcome.verdict is not Verdict.OK] == []
    assert len(outcomes) == size
    assert sum(outcome.committed_count for outcome in outcomes) > 20 * size
    assert sum(outcome.read_count for outcome in outcomes) > 2 * size


def test_fifty_seeds_meet_every_situation_that_matters() -> None:
    """Fifty seeds hold crashes, partitions, lost disks, snapshots with T < A, joint configurations, overwritten tails, interrupted campaigns."""
    seen: Counter[str] = Counter()
    sizes: Counter[str] = Counter()

    def trace(line: str) -> None:
        for fact in (
            "crashes",
            "split",
            "is cut off",
            "pauses",
            "loses its disk",
            " snapshot T=",
            "&&(",
            "transfers to",
            "be interrupted",
        ):
            if fact in line:
                seen[fact] += 1
        if "voter_count=" in line:
            sizes[line.split("voter_count=")[1][0]] += 1

    outcomes = [run_seed(seed, trace=trace) for seed in range(50)]

    assert all(outcome.verdict is Verdict.OK for outcome in outcomes), [o for o in outcomes if o.verdict]
    assert len(seen) == 9, seen
    assert set(sizes) == {"3", "5"}


@pytest.mark.parametrize("profile", list(Profile))
def test_a_seed_replays_the_same_history(profile: Profile) -> None:
    first: list[str] = []
    second: list[str] = []

    assert run_seed(3, trace=first.append, profile=profile) == run_seed(3, trace=second.append, profile=profile)

    assert first == second
    assert len(first) > 200


def test_the_trace_of_a_seed_is_equal_in_every_process() -> None:
    """No order of a set, hash or address may influence a run."""
    digests = set()
    for hash_seed in ("1", "4242"):
        result = run_command("--seed", "11", hash_seed=hash_seed)
        assert result.returncode == Verdict.OK, result.stdout[-2000:]
        digests.add(hashlib.sha256(result.stdout.encode()).hexdigest())

    assert len(digests) == 1


def test_tracing_does_not_change_the_history() -> None:
    assert run_seed(5) == run_seed(5, trace=lambda line: None)


def test_a_batch_has_the_same_outcomes_on_one_and_on_two_processes() -> None:
    assert list(run_batch(0, 24, jobs=1)) == list(run_batch(0, 24, jobs=2))


def test_the_command_runs_a_batch_and_prints_its_speed() -> None:
    result = run_command("--first", "30", "--seeds", "12", "--jobs", "1")

    assert result.returncode == 0
    assert result.stdout == ""
    assert "12/12 seeds, 0 failed" in result.stderr
    assert "seeds/s" in result.stderr


def test_a_broken_invariant_is_one_line_and_exit_code_1() -> None:
    result = run_command("--seed", "0", "--quiet", "--mutant", "vote-before-durable")

    assert result.returncode == Verdict.SAFETY
    assert result.stdout.count("\n") == 1
    assert result.stdout.startswith("make sim-core SEED=0  # safety: VoteDurable: ")


def test_no_progress_is_exit_code_2() -> None:
    stuck = next(seed for seed in range(MUTANTS["lost-window-stalls"].seeds_max) if stalls(seed))

    result = run_command("--seed", str(stuck), "--quiet", "--mutant", "lost-window-stalls")

    assert result.returncode == Verdict.LIVENESS
    assert "no progress in" in result.stdout


def stalls(seed: int) -> bool:
    return run_seed(seed, MUTANTS["lost-window-stalls"].build).verdict is Verdict.LIVENESS


class _Broken(RaftCore):
    """A core that divides by zero on its first campaign."""

    __slots__ = ()

    def campaign(self) -> None:
        raise ZeroDivisionError(self.replica_id)


def test_an_exception_of_the_code_is_its_own_verdict() -> None:
    outcome: Outcome = run_seed(0, Build(core=_Broken))

    assert outcome.verdict is Verdict.CRASH == 3
    assert failure_line(outcome).startswith("make sim-core SEED=0  # crash: ZeroDivisionError")
