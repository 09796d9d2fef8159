"""Whole nodes: one seed is one run, byte by byte. A batch of seeds has no findings. A finding has an exit code and a replay line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from sim.cluster.batch import run_batch, run_isolated
from sim.cluster.options import SECONDS_MIN
from sim.cluster.run import OPERATIONS_MIN, Verdict

SEEDS = 4


def run_command(*arguments: str, hash_seed: int = 0) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
    command = [sys.executable, "-m", "sim.cluster", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)


@pytest.mark.parametrize(
    ("seed", "hash_seeds"),
    [(1, (1, 3)), pytest.param(4, (1, 2), marks=pytest.mark.long), pytest.param(3, (1, 1), marks=pytest.mark.long)],
)
def test_a_seed_has_one_trace_under_every_hash_seed(seed: int, hash_seeds: tuple[int, int]) -> None:
    """A set of tasks is in the order of their addresses, which follow the hashes of strings: seed 1 had two traces by that."""
    first, second = (run_command("--seed", str(seed), hash_seed=hash_seed) for hash_seed in hash_seeds)

    assert first.returncode == Verdict.OK
    assert "digest" in first.stdout
    assert first.stdout == second.stdout


@pytest.mark.slow
def test_a_batch_of_seeds_has_no_findings() -> None:
    outcomes = list(run_batch(0, SEEDS, jobs=2))

    assert [(one.seed, one.verdict, one.detail) for one in outcomes if one.verdict is not Verdict.OK] == []
    assert all(one.operations >= OPERATIONS_MIN for one in outcomes)
    assert all(one.virtual_seconds >= SECONDS_MIN for one in outcomes)
    assert all(one.groups >= 3 for one in outcomes)
    assert all(one.acknowledged for one in outcomes)
    assert all(one.reads for one in outcomes)
    assert all(one.counts["states_compared"] for one in outcomes)
    assert all(sum(one.faults.values()) >= 3 for one in outcomes)
    last = outcomes[-1]
    assert f"digest {last.digest:08x}" in run_command("--seed", str(last.seed)).stdout, "alone it is the same run"


@pytest.mark.long
def test_topics_are_created_although_an_election_takes_longer_than_a_request() -> None:
    """The administrator of seed 910068 has a second, and the links are slow."""
    assert run_isolated(910068).verdict is Verdict.OK


@pytest.mark.long
def test_a_schedule_has_time_to_fire_a_thousand_times_before_everything_must_be_read() -> None:
    """In seed 984572 all machines sleep for days, so a schedule misses more firings than are made up for in the time of liveness."""
    assert run_isolated(984572).verdict is Verdict.OK


def test_a_change_of_metadata_whose_processing_failed_is_processed_again_without_another_change() -> None:
    assert run_isolated(812857).verdict is Verdict.OK


def test_a_finding_has_its_exit_code_and_ends_with_the_command_that_replays_it() -> None:
    result = run_command("--seed", "0", "--mutant", "reads_uncommitted")

    assert result.returncode == Verdict.SAFETY
    assert "safety: " in result.stdout
    assert result.stdout.splitlines()[-1] == "python -m sim.cluster --seed 0 --mutant reads_uncommitted"


def test_a_batch_ends_with_the_command_that_replays_its_first_finding() -> None:
    result = run_command("--first", "0", "--seeds", "1", "--jobs", "1", "--mutant", "reads_uncommitted")

    assert result.returncode == Verdict.SAFETY
    assert result.stdout.splitlines()[-1] == "python -m sim.cluster --seed 0 --mutant reads_uncommitted"
    assert "1/1 seeds, 1 found" in result.stderr


def test_an_exception_of_the_code_is_its_own_verdict() -> None:
    from sim.cluster.run import Build

    outcome = run_isolated(0, Build(patch=_broken))

    assert outcome.verdict is Verdict.CRASH
    assert "ZeroDivisionError" in outcome.detail


def test_a_run_whose_process_dies_is_a_finding_and_the_others_continue() -> None:
    """The batch once ended with the exit code of a broken safety property and did not name the seed."""
    from sim.cluster.run import Build

    outcomes = list(run_batch(0, 2, 2, Build(patch=_deadly)))

    assert [(one.seed, one.verdict) for one in outcomes] == [(0, Verdict.CRASH), (1, Verdict.CRASH)]
    assert "died without an answer" in outcomes[0].detail
    assert run_isolated(3, Build(patch=_deadly)).verdict is Verdict.CRASH


def _deadly():
    os.kill(os.getpid(), signal.SIGKILL)


def _broken():
    from raftmq.client.consumer.fetcher import Fetcher

    def poll(self: object) -> None:
        raise ZeroDivisionError

    Fetcher._fetchable = poll  # type: ignore[assignment,method-assign]
    return lambda: None


@pytest.mark.long
def test_a_broker_that_loses_its_power_during_an_installation_did_not_end_itself() -> None:
    """Seed 821728: the crash tears the exchange of two files, whose error came from a process that was gone."""
    assert run_isolated(821728).verdict is Verdict.OK
