"""What this machine lets a test do, found out by trying, once.

Each `missing_for_…` answers None, or the sentence with which a test is skipped.
"""

from __future__ import annotations

import functools
import shutil
import tempfile
from pathlib import Path

from tests.chaos.leash import LeashError
from tests.chaos.tools import ToolError, run_tool
from tests.chaos.volume import Volume

TRIED_BYTES = 8 << 20
"""Of the volume that shows whether volumes are possible."""


def missing_tools(*names: str) -> str | None:
    absent = [name for name in names if shutil.which(name) is None]
    return f"not installed: {', '.join(absent)}" if absent else None


@functools.cache
def missing_for_namespaces() -> str | None:
    """Why brokers cannot have a network each."""
    absent = missing_tools("unshare", "nsenter", "ip", "tc")
    if absent:
        return absent
    try:
        run_tool(
            [
                *("unshare", "--net", "sh", "-ec"),
                "ip link add name b0 type bridge; ip link add a0 type veth peer name a1",
            ]
        )
    except ToolError as error:
        return f"network name spaces are not permitted: {error}"
    return None


@functools.cache
def missing_for_volumes() -> str | None:
    """Why a file cannot be mounted as a volume of its own, and lose power: root may do neither in many a container."""
    absent = missing_tools("mkfs.ext4", "mount", "umount")
    if absent:
        return absent
    try:
        with tempfile.TemporaryDirectory() as directory:
            volume = Volume(Path(directory), "tried", TRIED_BYTES)
            try:
                volume.lose_power()
                volume.come_back()
            finally:
                volume.close()
    except (ToolError, LeashError, OSError) as error:
        return f"volumes are not permitted: {str(error).splitlines()[0].rstrip('.')}"
    return None


@functools.cache
def missing_for_shim() -> str | None:
    """Why the C library's file functions cannot be replaced."""
    return missing_tools("cc")


def missing_for_families() -> dict[str, str | None]:
    """Why the faults of a family are not possible, of those that need something."""
    shim, volumes = missing_for_shim(), missing_for_volumes()
    return {"disk": shim, "clock": shim, "power": volumes, "full": volumes}
