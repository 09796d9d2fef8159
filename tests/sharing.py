"""Which tests stay together when several processes share a run (pytest-xdist), as a function of their node ids.

Not the mark `xdist_group`: with pytest 9.2 and pytest-xdist 3.8 it has no effect (pytest-xdist issue 1386).
"""

from pathlib import PurePosixPath

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

FOLDERS = ("tests/hostile",)
"""Kept whole: their tests share a broker and add up what they did."""
SPREAD = ("tests/e2e", "tests/sim/cluster", "tests/sim/core/test_seeds.py", "tests/api/test_testing.py")
"""Long tests that share nothing: each goes where there is room."""
TOGETHER = (
    "tests/e2e/test_cli.py",
    "tests/e2e/test_cli_dlq.py",
    "tests/e2e/test_cli_doctor.py",
    "tests/e2e/test_cli_errors.py",
    "tests/e2e/test_cli_group.py",
    "tests/e2e/test_cli_questions.py",
    "tests/e2e/test_client_only_install.py",
    "tests/e2e/test_examples.py",
    "tests/e2e/test_fork.py",
    "tests/e2e/test_group_consumers.py",
    "tests/sim/cluster/test_faults.py",
    "tests/e2e/test_transformer.py",
    "tests/e2e/test_user_errors.py",
    "tests/e2e/test_worker.py",
    "tests/e2e/test_worker_command.py",
)
"""Modules among them whose tests share a cluster."""


def unit_of(node_id: str) -> str:
    """The tests with the same answer run in one process, one after the other: mostly those of a module."""
    path = PurePosixPath(node_id.partition("::")[0])
    for folder in FOLDERS:
        if path.is_relative_to(folder):
            return folder
    is_spread = any(path.is_relative_to(place) for place in SPREAD) and str(path) not in TOGETHER
    return node_id if is_spread else str(path)


class UnitScheduling(LoadScopeScheduling):  # type: ignore[misc]  # pytest-xdist does not publish its types
    """Hands out one unit after the other, in the order of collection."""

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        config.option.loadscopereorder = False  # the long ones begin: see `conftest.py`
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)
