"""Choose the tests that stay together when several processes share a run (pytest-xdist), as a function of their node ids.

The mark `xdist_group` has no effect with pytest 9.2 and pytest-xdist 3.8 (pytest-xdist issue 1386).
"""

from pathlib import PurePosixPath

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

SPARK = "tests/spark"
"""Its tests share a Java machine, which takes a long time to start. They begin first."""
FOLDERS = ("tests/hostile", SPARK)
"""Folders whose tests share a process: each stays in one."""
SPREAD = ("tests/e2e", "tests/sim/cluster", "tests/sim/core/test_seeds.py", "tests/api/test_testing.py")
"""Files and folders with long tests that share nothing: each test goes to any free process."""
TOGETHER = (
    "tests/e2e/test_cli.py",
    "tests/e2e/test_cli_cluster.py",
    "tests/e2e/test_cli_dlq.py",
    "tests/e2e/test_cli_doctor.py",
    "tests/e2e/test_cli_errors.py",
    "tests/e2e/test_cli_group.py",
    "tests/e2e/test_cli_questions.py",
    "tests/e2e/test_cli_queue.py",
    "tests/e2e/test_client_only_install.py",
    "tests/e2e/test_examples.py",
    "tests/e2e/test_fork.py",
    "tests/e2e/test_group_consumers.py",
    "tests/e2e/test_tracing.py",
    "tests/e2e/test_transformer.py",
    "tests/e2e/test_user_errors.py",
    "tests/e2e/test_worker.py",
    "tests/e2e/test_worker_command.py",
    "tests/sim/cluster/test_faults.py",
)
"""Modules among `SPREAD` whose tests share a cluster."""


def unit_of(node_id: str) -> str:
    """Return the unit of a test, mostly its module. The tests of one unit run one after the other in one process."""
    path = PurePosixPath(node_id.partition("::")[0])
    for folder in FOLDERS:
        if path.is_relative_to(folder):
            return folder
    is_spread = any(path.is_relative_to(place) for place in SPREAD) and str(path) not in TOGETHER
    return node_id if is_spread else str(path)


class UnitScheduling(LoadScopeScheduling):  # type: ignore[misc]  # pytest-xdist does not publish its types
    """Assigns one unit after the other to the processes, in the order of collection."""

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        config.option.loadscopereorder = False  # `conftest.py` has put long tests first
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)
