"""Run the measurement of cold starts on a real broker with small files. No figure is judged."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench import cold_starts


def test_files_leave_the_memory_and_stay_on_disk(tmp_path: Path) -> None:
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "file").write_bytes(b"x" * 100_000)
    cold_starts.drop_cached(tmp_path)
    assert (tmp_path / "part" / "file").read_bytes() == b"x" * 100_000


def test_the_bytes_that_a_process_has_read_are_counted() -> None:
    assert cold_starts.bytes_read(os.getpid()) >= 0


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.long
def test_a_broker_with_small_files_is_started_cold_and_with_its_files_in_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--partitions", "2", "--megabytes", "2", "--starts", "2", "--pause", "0.1", "--directory", str(tmp_path)]
    cold_starts.main(words)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines[:-1]] == ["cold", "cold", "cached", "cached"]
    assert lines[-1].startswith("2 partitions of 2 MB, medians: cold ")
    (log,) = tmp_path.rglob("groups")
    assert sum(path.stat().st_size for path in log.iterdir()) > 4_000_000, "every partition was filled"
