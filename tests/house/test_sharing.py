"""Check that tests with a shared cluster or broker stay in one process, and that the lists name existing files."""

from pathlib import Path

import pytest

from tests.sharing import FOLDERS, SPREAD, TOGETHER, unit_of

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("node_id", "unit"),
    [
        ("tests/hostile/test_totals.py::test_a", "tests/hostile"),
        ("tests/hostile/test_http_port.py::test_b[1]", "tests/hostile"),
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
