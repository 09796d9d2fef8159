"""Every `raftmq` command in a block of a page exists, with its options and with values that they accept."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from raftmq.cli.main import app

from tests.support.cli.runner import command_tree
from tests.support.house.files import ROOT, tracked_files

BLOCK = re.compile(r"^ *```(?:sh|console|text)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"(?:^|[|;(]|\$ |until |-- |watch )\s*(raftmq [^|;()\n]*)", re.MULTILINE)
LEFT_OUT = {"docs/reference/cli.md"}
"""Written from the commands themselves."""


def commands_of(text: str) -> Iterator[list[str]]:
    """Yield the words of each command in the blocks of a page, without the shell syntax around them."""
    for block in BLOCK.findall(text):
        for line in COMMAND.findall(re.sub(r"\s+#.*|\\\n", " ", block)):
            words = shlex.split(re.split(r"\s2?[<>&]", line)[0])[1:]
            if "…" not in line and "..." not in line:
                yield words


def problem_of(words: list[str]) -> str:
    """Describe the problem of a command, or return an empty text. The command is not run."""
    command: Any = command_tree(app)
    rest = list(words)
    while rest and (found := getattr(command, "commands", {}).get(rest[0])) is not None:
        command = found
        rest.pop(0)
    if hasattr(command, "commands"):
        return "" if not rest or rest[0].startswith("-") else f"no command {rest[0]}"
    try:
        command.make_context(
            "raftmq", [os.devnull if before == "--file" else word for before, word in pairwise(["", *rest])]
        )
    except Exception as error:  # noqa: BLE001 - typer's copy of click has classes of its own
        return getattr(error, "message", "") or repr(error)
    return ""


def documented() -> Iterator[tuple[str, list[str]]]:
    for path in tracked_files():
        name = str(path.relative_to(ROOT))
        if path.suffix == ".md" and name not in LEFT_OUT:
            yield from ((name, words) for words in commands_of(path.read_text()))


def test_every_command_of_the_pages_is_accepted() -> None:
    commands = list(documented())
    assert len(commands) > 120
    found = [(name, " ".join(words), problem_of(words)) for name, words in commands]
    assert [row for row in found if row[2]] == []


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("topic create orders --partitions 6", ""),
        ("topic make orders", "no command"),
        ("topic create orders --shards 6", "--shards"),
        ("topic create orders --partitions many", "many"),
        ("topic create", "Missing"),
    ],
)
def test_a_wrong_command_is_reported(command: str, problem: str) -> None:
    assert problem in problem_of(command.split())
    assert bool(problem) == bool(problem_of(command.split()))


def test_commands_are_found_in_pipes_and_prompts() -> None:
    page = "```sh\nraftmq topic list  # all\necho x | raftmq produce a\nuntil raftmq cluster status; do sleep 5; done\n```\n"
    assert list(commands_of(page)) == [["topic", "list"], ["produce", "a"], ["cluster", "status"]]
