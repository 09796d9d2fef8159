"""`RecordFormat`: print records with a template that has the tokens of kcat's ``-f``. Pure."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import typer

if TYPE_CHECKING:
    from raftmq.types import Record

TOKENS: Final[Mapping[str, Callable[[Record], bytes]]] = {
    "%t": lambda record: record.topic.encode(),
    "%p": lambda record: b"%d" % record.partition,
    "%o": lambda record: b"%d" % record.offset,
    "%k": lambda record: record.key or b"",
    "%s": lambda record: record.value or b"",
    "%h": lambda record: b",".join(name.encode() + b"=" + value for name, value in record.headers),
    "%T": lambda record: b"%d" % record.timestamp,
    "%K": lambda record: b"%d" % (-1 if record.key is None else len(record.key)),
    "%S": lambda record: b"%d" % (-1 if record.value is None else len(record.value)),
    "%%": lambda record: b"%",
}
ESCAPES: Final = {"\\n": b"\n", "\\t": b"\t", "\\r": b"\r", "\\0": b"\0", "\\\\": b"\\"}


class RecordFormat:
    """Convert a record to bytes.

    Args:
        template: Text with tokens and escapes. Nothing is added to it, not even the end of a line.

    Raises:
        typer.BadParameter: The template has an unknown token or escape.
    """

    def __init__(self, template: str) -> None:
        self._parts: list[bytes | Callable[[Record], bytes]] = []
        for piece in re.findall(r"[%\\].?|[^%\\]+", template, re.DOTALL):
            if piece in TOKENS:
                self._parts.append(TOKENS[piece])
            elif piece in ESCAPES:
                self._parts.append(ESCAPES[piece])
            elif piece[0] in "%\\":
                raise typer.BadParameter(
                    f"there is no {piece}; there are {' '.join((*TOKENS, *ESCAPES))}", param_hint="--format"
                )
            else:
                self._parts.append(os.fsencode(piece))

    def __call__(self, record: Record) -> bytes:
        """Return the formatted record."""
        return b"".join(part if isinstance(part, bytes) else part(record) for part in self._parts)
