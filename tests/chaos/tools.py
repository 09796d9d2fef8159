"""Run the system's tools."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

TOOL_SECONDS = 30.0


class ToolError(RuntimeError):
    """Raised when a tool failed. The message has its command and its error output."""


def run_tool(arguments: Sequence[str], text: str = "") -> str:
    """Run a tool to its end and return its output.

    Raises:
        ToolError: The exit code is not 0.
    """
    done = subprocess.run(list(arguments), input=text.encode(), capture_output=True, check=False, timeout=TOOL_SECONDS)
    if done.returncode:
        raise ToolError(f"{' '.join(arguments)}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout.decode()
