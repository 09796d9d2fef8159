"""Find out, once and by trying, which faults this machine permits.

Each `missing_for_…` returns None, or the reason with which a test is skipped.
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
"""Size of the volume that shows whether volumes are possible."""


def missing_tools(*names: str) -> str | None:
    absent = [name for name in names if shutil.which(name) is None]
    return f"not installed: {', '.join(absent)}" if absent else None


@functools.cache
def missing_for_namespaces() -> str | None:
    """Return why brokers cannot have separate networks."""
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
    """Return why a file cannot be mounted as a volume that loses power. In many containers even root may not do that."""
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
    """Return why functions of the C library cannot be replaced."""
    return missing_tools("cc")


def missing_for_families() -> dict[str, str | None]:
    """Return, for each family with requirements, why its faults are not possible (None if they are)."""
    shim, volumes = missing_for_shim(), missing_for_volumes()
    return {"disk": shim, "clock": shim, "power": volumes, "full": volumes}
