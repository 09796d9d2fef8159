"""What this machine lets a test do, found out by trying, once; and running its tools.

Each `missing_for_…` answers None, or the sentence with which a test is skipped.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

TOOL_SECONDS = 30.0


class ToolError(RuntimeError):
    """A tool of the system failed; the message holds its command and what it said."""


def run_tool(arguments: Sequence[str], text: str = "") -> str:
    """Run a tool to its end and return what it printed.

    Raises:
        ToolError: It ended with a code other than 0.
    """
    done = subprocess.run(list(arguments), input=text.encode(), capture_output=True, check=False, timeout=TOOL_SECONDS)
    if done.returncode:
        raise ToolError(f"{' '.join(arguments)}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout.decode()


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
    """Why a file cannot be mounted as a volume of its own."""
    absent = missing_tools("mkfs.ext4", "mount", "umount")
    if absent:
        return absent
    if os.geteuid():
        return "mounting a volume needs root"
    if not Path("/dev/loop-control").exists():
        return "there are no loop devices"
    return None


@functools.cache
def missing_for_shim() -> str | None:
    """Why the C library's file functions cannot be replaced."""
    return missing_tools("cc")
