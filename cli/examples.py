"""The examples at the end of a command's help."""

from __future__ import annotations


def examples(*lines: str) -> str:
    """Format the end of a help page: one command a line, unchanged."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
