"""Check the Spark rows: every way runs, and processor time is attributed to the process that spent it."""

import os
import subprocess
import sys

import pytest

from bench.report import RAFTMQ
from bench.spark import micro_batches
from bench.spark.processors import read_processors
from bench.spark.runs import figures, measure

BURN = "sum(range(30_000_000))"


def test_processor_time_is_attributed_to_the_process_that_spent_it() -> None:
    # the parent represents the JVM: it does nothing itself, and its child works and stays alive
    code = (
        "import subprocess, sys; worker = subprocess.Popen([sys.executable, '-c', sys.argv[1] +"
        " '; print(1, flush=True); input()'], stdin=subprocess.PIPE); input(); worker.communicate(b'')"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code, BURN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    before = read_processors([os.getpid()], parent.pid)
    assert parent.stdin is not None
    assert parent.stdout is not None
    assert parent.stdout.readline() == b"1\n"  # it has worked
    after = read_processors([os.getpid()], parent.pid)
    parent.communicate(b"\n")
    spent = after.per_record(before, 1_000_000)
    assert spent["python"][0] > 5 * spent["jvm"][0] >= 0
    assert spent["python"][0] > 0.05
    assert 0 <= spent["brokers"][0] < spent["python"][0]
    gone = read_processors([], parent.pid)
    assert gone.jvm == 0


@pytest.mark.long
@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_way_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KAFKA_HOME", raising=False)
    monkeypatch.setattr(micro_batches, "WARM_UP", 1)
    told: list[str] = []
    samples = measure(1, told.append, records=4000)
    found = {(figure, sample.system) for sample in samples for figure in sample.figures}
    for figure in figures():
        assert (figure.name, RAFTMQ) in found
    assert len(samples) == 19
    for sample in samples:
        assert set(sample.figures) >= {"brokers", "jvm", "python"}
        assert all(value >= 0 for values in sample.figures.values() for value in values)
    assert len(told) == 1 + 2 * 19
    assert "set KAFKA_HOME" in told[0]
