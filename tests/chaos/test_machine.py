"""Permissions are found by trying and not by the user id."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.machine import missing_tools

WITHOUT_MOUNTING = ("setpriv", "--bounding-set", "-sys_admin")
"""Runs a command as root without the right to mount, as in an unprivileged container."""


@pytest.fixture
def root_without_mounting() -> tuple[str, ...]:
    missing = missing_tools("setpriv", "mkfs.ext4", "mount", "umount")
    if missing or os.geteuid():
        pytest.skip(missing or "only root can be root with fewer rights")
    if subprocess.run([*WITHOUT_MOUNTING, "true"], capture_output=True, check=False).returncode:
        pytest.skip("a right cannot be given up here")
    return WITHOUT_MOUNTING


def test_root_without_the_right_to_mount_gets_a_reason_and_leaves_no_file(
    tmp_path: Path, root_without_mounting: tuple[str, ...]
) -> None:
    program = "from tests.chaos.machine import missing_for_volumes; print(missing_for_volumes())"
    done = subprocess.run(
        [*root_without_mounting, sys.executable, "-c", program],
        env=os.environ | {"TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    assert done.stdout.startswith("volumes are not permitted: mount ")
    assert len(done.stdout.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
