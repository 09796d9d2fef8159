"""Take the right to write away from this process, for tests of the refusals."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = 0
NOBODY = 65534


@contextmanager
def read_only(directory: Path) -> Iterator[None]:
    """Have the operating system refuse new files in a directory that others may look into. It refuses root nothing, so root becomes nobody."""
    mode, user = directory.stat().st_mode, os.geteuid()
    directory.chmod(0o555)
    if user == ROOT:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(user)
        directory.chmod(mode)
