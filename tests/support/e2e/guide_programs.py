"""The programs and commands of a page: extracted in their order, to be run as they stand there."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

BLOCK = re.compile(r"```(python|sh|text)\n(.*?)```", re.DOTALL)
FILE = re.compile(r"# file: (\S+)\n")


@dataclass(frozen=True, slots=True)
class Command:
    """A line of a shell block, and what the page says it prints; None when it says nothing."""

    line: str
    output: str | None


@dataclass(frozen=True, slots=True)
class Page:
    """What a page has to run."""

    files: dict[str, str]
    commands: list[Command]


def read_page(path: Path) -> Page:
    """Its files (blocks of Python that begin with ``# file: NAME``) and commands."""
    files: dict[str, str] = {}
    commands: list[Command] = []
    for kind, text in BLOCK.findall(path.read_text()):
        if kind == "python":
            named = FILE.match(text)
            assert named is not None, f"a block without a file name: {text[:60]!r}"
            assert named[1] not in files
            files[named[1]] = text
        elif kind == "sh":
            commands += [Command(line.split("  #")[0].strip(), None) for line in text.splitlines() if line.strip()]
        else:
            commands[-1] = Command(commands[-1].line, text)
    return Page(files, commands)
