"""Run `make bench ARGS=--quick` on a real cluster. No figure is judged."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from bench import partitions
from bench.__main__ import DEFAULT_OUTPUT, NAMES, ROUNDS, TOO_LONG_FOR_QUICK, parse
from bench.queue_loads import LOADS

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.long
@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_workload_reports_finite_figures_and_the_table_shows_them(tmp_path: Path) -> None:
    output = tmp_path / "bench.json"
    command = [sys.executable, "-m", "bench", "--quick", "--peers", "kafka,nats", "--output", str(output)]
    environment = {"PATH": "", "PYTHONPATH": ":".join(path for path in sys.path if path)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(output.read_text())
    found = {(row["workload"], row["figure"]): row for row in report["rows"]}
    expected = {(name, figure.name) for name, workload in ROUNDS.items() for figure in workload.figures}
    expected |= {("partitions_300", figure.name) for figure in partitions.figures(300)}
    expected |= {(name, figure.name) for name, load in LOADS.items() for figure in load.figures}
    assert set(found) == expected
    for row in found.values():
        assert all(math.isfinite(value) and value >= 0 for value in row["values"]), row
        assert row["minimum"] <= row["median"] <= row["maximum"]
    assert all(found[name, figure]["median"] > 0 for name, figure in expected if name in ROUNDS and figure != "early")
    assert {"cpus", "kernel", "python", "versions", "load_average", "disk"} <= set(report["machine"])
    assert [sample["round"] for sample in report["samples"]] == [1] * (len(ROUNDS) + len(LOADS) + 1)
    for workload, figure in expected:
        assert workload in done.stdout
        assert figure in done.stdout
    for note in ("figures mean nothing", "set KAFKA_HOME", "set NATS_SERVER"):
        assert note in done.stdout
    assert done.stdout.splitlines()[-1] == f"written: {output}"


def test_everything_is_measured_unless_chosen_otherwise() -> None:
    assert parse([]).only == NAMES
    assert parse(["--only", "senders, latency"]).only == ["latency", "senders"]
    assert parse(["--quick"]).only == [name for name in NAMES if name not in TOO_LONG_FOR_QUICK]
    assert (parse([]).rounds, parse(["--quick"]).rounds, parse(["--rounds", "5"]).rounds) == (3, 1, 5)
    assert parse([]).peers == []
    assert parse([]).output == DEFAULT_OUTPUT


@pytest.mark.parametrize("words", [["--only", "speed"], ["--peers", "rabbit"], ["--rounds", "-1"]])
def test_unknown_workloads_peers_and_rounds_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(words)
    assert "error:" in capsys.readouterr().err
