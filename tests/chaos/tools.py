"""Running the system's tools."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

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
