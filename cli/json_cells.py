"""Read the cells of JSON lines, and say in terms of JSON why a line is not as expected. Pure."""

from __future__ import annotations

import re
from difflib import get_close_matches

import msgspec

_JSON_NAMES = {"str": "a string", "int": "a number", "float": "a number", "bool": "true or false"} | {
    name: f"an {name}" for name in ("object", "array")
}
_JSON_NAME = re.compile("|".join(rf"\b{name}\b" for name in _JSON_NAMES))


class Binary(msgspec.Struct, forbid_unknown_fields=True):
    """Bytes that are not UTF-8, as the commands write them."""

    base64: bytes


def bytes_of(cell: str | Binary | None) -> bytes | None:
    """Return the bytes of a cell."""
    if isinstance(cell, str):
        return cell.encode()
    return cell.base64 if cell is not None else None


def words_of(error: Exception, line: type[msgspec.Struct] | None = None) -> str:
    """Translate an error of msgspec to terms of JSON. For an unknown field, suggest the most similar one of `line`."""
    said = str(error)
    fields = () if line is None else line.__struct_fields__
    if (unknown := re.search(r"unknown field `([^`]*)`", said)) is not None:
        close = get_close_matches(unknown[1], fields, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(fields)}"
        return f"there is no field {unknown[1]!r}; {hint}"
    if (missing := re.search(r"missing required field `([^`]*)`", said)) is not None:
        return f"the field {missing[1]!r} is missing"
    if (wrong := re.search(r"Expected `([^`]*)`, got `([^`]*)`(?: - at `\$\.?([^`]*)`)?", said)) is not None:
        expected, got = (_JSON_NAME.sub(lambda name: _JSON_NAMES[name[0]], text) for text in wrong.group(1, 2))
        return f"{wrong[3] or 'the line'} must be {expected.replace(' | ', ' or ')}, not {got}"
    return said.removeprefix("JSON is malformed: ")
