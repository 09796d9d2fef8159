"""Read the plain subset of YAML in which the project writes its files: no dependency of it has a parser.

Mappings and lists by indentation, one scalar per line, lists of quoted texts in brackets, quotes around everything that is not a word.
Everything else is refused. Each scalar is a text.
"""

from __future__ import annotations

import re
from typing import Any, cast

Line = tuple[int, str]

WORD = re.compile(r"[A-Za-z0-9_./-]+")
QUOTED = re.compile(r"'(?:[^']|'')*'|\"[^\"\\]*\"")
INLINE_LIST = re.compile(r"\['[^']*'(?:, '[^']*')*\]")


def lines_of(text: str) -> list[Line]:
    """Return indentation and content of each line that is not empty or a comment."""
    lines: list[Line] = []
    for raw in text.splitlines():
        if raw.strip() and not raw.lstrip().startswith("#"):
            assert "\t" not in raw, raw
            lines.append((len(raw) - len(raw.lstrip()), raw.strip()))
    return lines


def scalar(text: str) -> str | list[str] | dict[str, Any]:
    if text == "{}":
        return {}
    if INLINE_LIST.fullmatch(text):
        return re.findall(r"'([^']*)'", text)
    if QUOTED.fullmatch(text):
        return text[1:-1].replace("''", "'") if text[0] == "'" else text[1:-1]
    assert WORD.fullmatch(text), f"quote it: {text}"
    return text


def read(lines: list[Line], indentation: int) -> Any:  # a tree of dict, list and str
    """Read the node at this indentation and remove its lines from the list."""
    if lines[0][1].startswith("- "):
        items = []
        while lines and lines[0][0] == indentation and lines[0][1].startswith("- "):
            lines[0] = (indentation + 2, lines[0][1][2:])
            items.append(read(lines, indentation + 2) if ":" in lines[0][1] else scalar(lines.pop(0)[1]))
        return items
    mapping: dict[str, Any] = {}
    while lines and lines[0][0] == indentation:
        key, separator, rest = lines.pop(0)[1].partition(":")
        assert separator, key
        assert WORD.fullmatch(key), key
        assert key not in mapping, key
        if rest:
            assert rest.startswith(" "), rest
            mapping[key] = scalar(rest.strip())
        else:
            assert lines, key
            assert lines[0][0] > indentation, key
            mapping[key] = read(lines, lines[0][0])
    return mapping


def parse(text: str) -> dict[str, Any]:
    """Return the tree of a file."""
    lines = lines_of(text)
    tree = read(lines, 0)
    assert lines == [], f"indentation: {lines[0]}"
    return cast("dict[str, Any]", tree)
