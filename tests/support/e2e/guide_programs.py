"""Extract the programs and commands of a page in their order, so that tests run them unchanged."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

BLOCK = re.compile(r"```(python|sh|text)\n(.*?)```", re.DOTALL)
FILE = re.compile(r"# file: (\S+)\n")


@dataclass(frozen=True, slots=True)
class Command:
    """A line of a shell block with the output that the page shows (None: the page shows none)."""

    line: str
    output: str | None


@dataclass(frozen=True, slots=True)
class Page:
    """The programs and commands of a page."""

    files: dict[str, str]
    commands: list[Command]


def read_page(path: Path) -> Page:
    """Return the files (Python blocks that begin with ``# file: NAME``) and the commands of a page."""
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
