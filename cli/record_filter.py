"""Options that choose records by key and headers."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from raftmq.types import Record

KeyFilterOption = Annotated[
    list[str] | None,
    typer.Option("--key", metavar="KEY", help="Choose only records with this key. Repeat it for several keys."),
]
HeaderFilterOption = Annotated[
    list[str] | None,
    typer.Option(
        "--header",
        "-H",
        metavar="NAME[=VALUE]",
        help="Choose only records with this header and, if given, this value. Repeat it for several headers: a record must have all of them.",
    ),
]


def record_filter(keys: list[str] | None, headers: list[str] | None) -> Callable[[Record], bool] | None:
    """Return a function that tests for one of the keys and all of the headers, or None if every record matches."""
    if not keys and not headers:
        return None
    wanted_keys = {os.fsencode(key) for key in keys or ()}
    wanted_headers: list[tuple[str, bytes | None]] = []
    for text in headers or ():
        name, separator, value = text.partition("=")
        if not name:
            raise typer.BadParameter(f"{text!r} is not NAME or NAME=VALUE", param_hint="--header")
        wanted_headers.append((name, os.fsencode(value) if separator else None))

    def matches(record: Record) -> bool:
        if wanted_keys and record.key not in wanted_keys:
            return False
        return all(
            any(name == wanted and value in (None, found) for wanted, found in record.headers)
            for name, value in wanted_headers
        )

    return matches
