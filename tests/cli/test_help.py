"""Help pages are complete at 80 columns, have correct examples, and load quickly."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from raftmq.cli import main

PATHS = ["", "topic", "group", "dlq", "queue", "schedule", "cluster", "partition", "broker", "config", "worker"]


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every command without subcommands, with the words that call it."""
    children = getattr(command, "commands", None)
    if children is None:
        yield path, command
    for name, child in (children or {}).items():
        yield from leaves(child, (*path, name))


COMMANDS = dict(leaves(typer.main.get_command(main.app)))


def help_of(*path: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.setenv("COLUMNS", "80")
    assert main.show_help([*path, "-h"])
    return capsys.readouterr().out


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_a_help_page_fits_80_columns_and_cuts_no_name(
    path: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = help_of(*path, monkeypatch=monkeypatch, capsys=capsys)
    assert max(map(len, text.splitlines())) <= 80
    for parameter in COMMANDS[path].params:
        for name in parameter.opts:
            word = name if name.startswith("-") else parameter.metavar or name.upper()
            assert re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", text), word
    assert not re.search(r"^  -.* <(str|list)", text, re.MULTILINE), "an option's value has a name, not a Python type"
    assert text.rstrip().splitlines()[-1].startswith("    "), "the examples are at the end"


@pytest.mark.parametrize("path", PATHS)
def test_the_summary_of_a_command_is_not_cut(
    path: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    summaries = help_of(*path.split(), monkeypatch=monkeypatch, capsys=capsys).split("Commands:")[1]
    assert "..." not in summaries
    assert "  Examples:\n    raftmq " in summaries


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_the_examples_of_a_command_call_it_with_options_that_it_has(path: tuple[str, ...]) -> None:
    command = COMMANDS[path]
    lines = [line.strip() for line in command.epilog.splitlines() if line.startswith("  ")]
    assert lines
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    for line in lines:
        (part,) = [part for part in re.split(r" \| ", line) if part.startswith("raftmq ")]
        words = shlex.split(part)[1:]
        assert tuple(words[: len(path)]) == path
        options = {word for word in words[len(path) :] if re.match(r"-[a-z-]", word)}
        assert options <= known, line


def test_help_is_the_same_with_and_without_parsing(capsys: pytest.CaptureFixture[str]) -> None:
    for path in ((), ("dlq",), ("dlq", "redrive"), ("produce",)):
        assert main.show_help([*path, "--help"])
        shown = capsys.readouterr().out
        with pytest.raises(SystemExit):
            main.app([*path, "--help"], prog_name="raftmq")
        assert capsys.readouterr().out == shown


@pytest.mark.parametrize("words", [[], ["topic"], ["topic", "list", "-b", "-h"], ["none", "-h"], ["--version", "-h"]])
def test_words_that_are_not_a_command_with_a_help_option_are_parsed(words: list[str]) -> None:
    assert not main.show_help(words)


@pytest.mark.parametrize(
    ("name", "left"),
    [("broker", {"broker"}), ("produce", {"produce"}), ("none", {path[0] for path in COMMANDS})],
)
def test_only_the_branch_that_is_called_is_built(name: str, left: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for attribute in ("registered_groups", "registered_commands"):
        monkeypatch.setattr(main.app, attribute, getattr(main.app, attribute))  # restored afterwards
    main.leave_only(name)
    assert set(getattr(typer.main.get_command(main.app), "commands", {})) == left


def modules_loaded_by(statement: str) -> set[str]:
    """Return the modules that a program of one statement about the command line has loaded at its end."""
    program = (
        "import json, sys\n"
        "from raftmq.cli import broker, main\n"
        f"assert {statement}\n"
        "print(json.dumps(sorted(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(json.loads(done.stderr))


def test_help_loads_no_slow_module() -> None:
    """The imports that take the most processor time are typer's pydantic, rich, asyncio, and the SDK."""
    loaded = modules_loaded_by("main.show_help(['consume', '-h'])")
    assert not loaded & {"pydantic", "rich", "asyncio", "msgspec", "grpc", "importlib.metadata"}


def test_a_broker_loads_no_colors() -> None:
    loaded = modules_loaded_by("callable(broker.broker_program())")
    assert "raftmq.broker.main" in loaded
    assert not loaded & {"rich", "rich.traceback", "pygments"}
