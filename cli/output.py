"""The output of commands: tables for people, JSON for programs."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, TextIO

import typer


class Output(StrEnum):
    """Choose the form of a result."""

    TEXT = "text"
    JSON = "json"


OutputOption = Annotated[
    Output, typer.Option("--output", "-o", help="'text' for people, 'json' for programs.", show_default=True)
]
_COLUMN_GAP = 2
_LAST_COLUMN_MIN = 24
"""Minimum width in characters to which a last column is folded."""
NAMED_MAX = 10
"""Maximum number of names in a sentence. JSON has all that the cluster named."""
Json = None | bool | int | float | str | Sequence["Json"] | dict[str, "Json"]


def print_json(value: Json) -> None:
    """Print one JSON document, on a single line unless standard output is a terminal."""
    print(json.dumps(value, indent=2 if sys.stdout.isatty() else None, ensure_ascii=False))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], file: TextIO | None = None) -> None:
    """Print a table with a header, on standard output by default.

    When the output is not a terminal, columns are plain so that `cut` and `grep` work. On a terminal only the last
    column is folded. No cell is ever cut: the terminal wraps a table that is still too wide.
    """
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

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns[:-1]:
        table.add_column(name, no_wrap=True)
    table.add_column(columns[-1], overflow="fold")
    for row in texts:
        table.add_row(*map(Text, row))  # unchanged: brackets in an error are not markup
    console = Console(soft_wrap=True, file=stream)
    console.width = max(console.width, _width_min([list(columns), *texts]))
    console.print(table)


def _width_min(rows: Sequence[Sequence[str]]) -> int:
    """Return the width at which no cell is cut: the last column may be folded, the others need all their characters."""
    from rich.cells import cell_len

    *widths, last = (max(map(cell_len, column)) for column in zip(*rows, strict=True))
    return sum(widths) + _COLUMN_GAP * len(widths) + min(last, _LAST_COLUMN_MIN)


def printable(text: str) -> str:
    """Replace each control character in a record's text by a question mark in a box, because a terminal would obey it."""
    return text if text.isprintable() else "".join(one if one.isprintable() else "\ufffd" for one in text)


def counted(count: int, noun: str) -> str:
    """Format a number with its noun: "1 topic", "2 topics"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def some_of(names: Sequence[str], count: int | None = None) -> str:
    """Join the first names for a sentence, and tell how many more there are: "a, b and 3 more".

    Args:
        names: The names, of which at most `NAMED_MAX` are shown.
        count: The number of all, if `names` has only the first of them.
    """
    shown = names[:NAMED_MAX]
    more = (len(names) if count is None else count) - len(shown)
    return f"{', '.join(shown)}{f' and {more} more' if more > 0 else ''}"


def text_or_base64(data: bytes | None) -> Json:
    """Convert bytes for JSON: a string if they are UTF-8, otherwise ``{"base64": …}``, and null if absent."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}
