"""Check the parts of the measurements of large queues that need no brokers, and that a failed measurement does not lose the others."""

import json
import os
from itertools import pairwise
from pathlib import Path

import pytest

import bench.__main__
from bench.__main__ import Run, parse
from bench.queue_commits import covered_seconds, split
from bench.queue_files import MIB, TAIL_BYTES, bound_bytes, queue_files
from bench.queue_load_parts import DAY_MS, FULL, QUICK, DelayedMessages, Found, LoadScale
from bench.queue_loads import LOADS, Load
from bench.queue_probe import ACK, PUT, Call, p99
from bench.timed_broker import TIMES, Span, read_spans

HOUR_MS = DAY_MS // 24


def test_a_failed_measurement_is_reported_and_the_other_figures_are_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run_load(load: Load, scale: LoadScale, found: Found) -> None:
        if load is LOADS["queue_due_together"]:
            found["due_p99"] = 9.0
            raise ExceptionGroup("tasks", [TimeoutError("enqueuing took 3 s longer")])
        found.update({figure.name: 1.0 for figure in load.figures})

    monkeypatch.setattr(bench.__main__, "run_load", run_load)
    output = tmp_path / "bench.json"
    words = ["--quick", "--only", "queue_tenants,queue_due_together,queue_idle", "--output", str(output)]
    assert Run(parse(words)).run() == 1
    report = json.loads(output.read_text())
    rows = {(row["workload"], row["figure"]): row["median"] for row in report["rows"]}
    assert {workload for workload, _ in rows} == {"queue_tenants", "queue_due_together", "queue_idle"}
    assert [rows[key] for key in rows if key[0] == "queue_due_together"] == [9.0]
    (failure,) = report["failures"]
    assert (failure["workload"], failure["error"]) == ("queue_due_together", "TimeoutError: enqueuing took 3 s longer")
    assert "FAILED: queue_due_together, RaftMQ: TimeoutError: enqueuing took 3 s longer" in capsys.readouterr().out


def test_the_sizes_of_loads_are_settable() -> None:
    assert parse([]).load == FULL
    assert parse(["--quick"]).load == QUICK
    chosen = parse(["--load", "ready=1_000, file_seconds=3600"]).load
    assert (chosen.ready, chosen.file_seconds, chosen.noisy) == (1000, 3600.0, FULL.noisy)


@pytest.mark.parametrize("text", ["depth=3", "ready=many", "ready=0", "ready"])
def test_unknown_and_impossible_sizes_are_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--load", text])
    assert "--load" in capsys.readouterr().err


def test_delayed_messages_are_spread_over_a_day_in_no_order() -> None:
    message_of, again = DelayedMessages(b"", 7), DelayedMessages(b"", 7)
    delays = [message_of(number).delay_ms for number in range(1000)]
    assert delays == [again(number).delay_ms for number in range(1000)]
    assert 0 <= min(delays) <= max(delays) < DAY_MS
    by_hour = [sum(hour <= delay / HOUR_MS < hour + 1 for delay in delays) for hour in range(24)]
    assert min(by_hour) > 0
    rises = sum(before < after for before, after in pairwise(delays))
    assert 400 < rises < 600


def test_calls_are_beside_a_write_back_when_they_overlap_one() -> None:
    spans = [Span(10.0, 11.0), Span(12.0, 13.0)]
    before, into, within, across, between = (
        Call(ACK, 9.0, 0.5),
        Call(ACK, 9.5, 1.0),
        Call(ACK, 10.2, 0.1),
        Call(ACK, 11.5, 3.0),
        Call(ACK, 11.2, 0.3),
    )
    assert split([before, into, within, across, between], spans) == ([into, within, across], [before, between])


def test_overlapping_write_backs_of_several_brokers_count_once() -> None:
    spans = [Span(3.0, 5.0), Span(0.0, 2.0), Span(4.0, 6.0), Span(9.0, 20.0)]
    assert covered_seconds(spans, 1.0, 10.0) == pytest.approx(1 + 3 + 1)
    assert covered_seconds([], 1.0, 10.0) == 0


def test_write_backs_are_read_from_the_directory_of_the_brokers(tmp_path: Path) -> None:
    assert read_spans(tmp_path) == []
    (tmp_path / TIMES).write_text("1.5 2.25\n3.0 4.0\n")
    assert read_spans(tmp_path) == [Span(1.5, 2.25), Span(3.0, 4.0)]


def test_a_percentile_is_of_one_kind_of_call_and_needs_two() -> None:
    calls = [Call(ACK, 0.0, 0.001), Call(ACK, 1.0, 0.001), Call(PUT, 0.0, 9.0)]
    assert p99(calls, ACK) == pytest.approx(1)
    with pytest.raises(RuntimeError, match="1 calls of 'put'"):
        p99(calls, PUT)


def test_the_files_of_a_queue_are_its_state_and_its_log(tmp_path: Path) -> None:
    groups = tmp_path / "groups"
    groups.mkdir()
    for name, size in (("1-1.mdb", 3), ("2-1.mdb", 1), ("2-1.state.mdb", 2), ("2-1.state.mdb-lock", 4)):
        (groups / name).write_bytes(os.urandom(size * MIB))
    (size,) = queue_files(tmp_path)
    assert 3 * MIB <= size < 3.1 * MIB


def test_the_bound_of_files_is_four_times_the_living_data_and_the_tail() -> None:
    assert bound_bytes(0) == TAIL_BYTES
    assert bound_bytes(10 * MIB) == TAIL_BYTES + 40 * MIB


def test_the_default_measurement_of_files_writes_more_than_its_bound() -> None:
    """A queue whose files are never cut must miss the target within the default duration."""
    written = FULL.file_seconds * FULL.file_rate * 100
    assert written > bound_bytes(FULL.kept * 1024)
