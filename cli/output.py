"""How commands show results: tables for people, JSON for programs."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, TextIO

import typer


class Output(StrEnum):
    """The two forms of every answer."""

    TEXT = "text"
    JSON = "json"


OutputOption = Annotated[
    Output, typer.Option("--output", "-o", help="'text' for people, 'json' for programs.", show_default=True)
]
Json = None | bool | int | float | str | Sequence["Json"] | dict[str, "Json"]


def print_json(value: Json) -> None:
    """One JSON document, on one line where it goes to a program."""
    print(json.dumps(value, indent=2 if sys.stdout.isatty() else None, ensure_ascii=False))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], file: TextIO | None = None) -> None:
    """A table with a head, on standard output by default; plain columns when it does not go to a terminal, so that `cut` and `grep` work."""
    stream = sys.stdout if file is None else file
    texts = [["" if cell is None else printable(str(cell)) for cell in row] for row in rows]
    if not stream.isatty():
        widths = [max(len(row[i]) for row in [list(columns), *texts]) for i in range(len(columns))]
        for row in [list(columns), *texts]:
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip(), file=stream)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in texts:
        table.add_row(*map(Text, row))  # as they are: brackets in an error are no markup
    Console(soft_wrap=True, file=stream).print(table)


def printable(text: str) -> str:
    """Text from records for a terminal, which would obey control characters in it: each is shown as a question mark in a box."""
    return text if text.isprintable() else "".join(one if one.isprintable() else "\ufffd" for one in text)


def counted(count: int, noun: str) -> str:
    """A number with its noun: "1 topic", "2 topics"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def text_or_base64(data: bytes | None) -> Json:
    """Bytes as JSON: a string when they are UTF-8, ``{"base64": …}`` otherwise, null when absent."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}
