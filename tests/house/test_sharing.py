"""Check how tests are distributed over processes: who stays together, that the lists name existing files, and the end after a crash."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sharing import FOLDERS, SPREAD, TOGETHER, unit_of

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("node_id", "unit"),
    [
        ("tests/hostile/test_totals.py::test_a", "tests/hostile"),
        ("tests/hostile/test_http_port.py::test_b[1]", "tests/hostile"),
        ("tests/spark/sink/test_writes.py::test_b", "tests/spark"),
        ("tests/raft/test_log.py::test_a[x::y]", "tests/raft/test_log.py"),
        ("tests/sim/core/test_seeds.py::test_a[1]", "tests/sim/core/test_seeds.py::test_a[1]"),
        ("tests/e2e/test_cli.py::test_a", "tests/e2e/test_cli.py"),
        ("tests/e2e/test_faults.py::test_a", "tests/e2e/test_faults.py::test_a"),
    ],
)
def test_a_test_belongs_to_a_unit(node_id: str, unit: str) -> None:
    assert unit_of(node_id) == unit


def test_the_lists_name_existing_files_and_every_module_with_a_shared_fixture() -> None:
    assert all((ROOT / place).exists() for place in (*FOLDERS, *SPREAD))
    modules = [
        path
        for place in SPREAD
        for path in ([ROOT / place] if place.endswith(".py") else (ROOT / place).glob("test_*.py"))
    ]
    sharing = {str(path.relative_to(ROOT)) for path in modules if 'fixture(scope="module")' in path.read_text()}
    assert sharing == set(TOGETHER)


@pytest.mark.slow
@pytest.mark.long
def test_a_process_that_crashes_ends_the_run_with_the_name_of_its_test(tmp_path: Path) -> None:
    """Without a limit pytest-xdist ran the test again in new processes, and a run of CI hung."""
    (options,) = re.findall(r"^SHARED = (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_crash.py").write_text("import os, signal\ndef test_a(): os.kill(os.getpid(), signal.SIGSEGV)\n")
    for name in ("b", "c", "d"):
        (tmp_path / f"test_{name}.py").write_text("def test_b(): pass\ndef test_c(): pass\n")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options.replace("$(WORKERS)", "2").split()],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 1
    assert len(re.findall(r"^FAILED", run.stdout, re.MULTILINE)) == 1
    assert re.search(r"worker 'gw\d' crashed while running 'test_crash.py::test_a'", run.stdout)
    assert "Segmentation fault" in run.stderr
    assert "test_crash.py" in run.stderr, "the stacks of all threads"
