"""The examples at the end of a command's help."""

from __future__ import annotations


def examples(*lines: str) -> str:
    """The end of a help page: one command a line, as they are."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
