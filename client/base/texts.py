"""Checks texts that are sent to the cluster as UTF-8. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from raftmq.errors import InvalidArgumentError


def check_text(text: object, name: str) -> None:
    """Raise `InvalidArgumentError` for a text that UTF-8 cannot encode. Values of other types are ignored.

    Args:
        text: The program's value.
        name: The argument, for the error.
    """
    if not isinstance(text, str) or text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(
            f"{name} {text!r} contains a lone surrogate at position {error.start}, which is not a character and cannot be encoded in UTF-8: "
            "remove it, or decode the text without errors='surrogateescape'"
        ) from None


def check_texts(texts: Iterable[object], name: str) -> None:
    """Check several texts of one argument."""
    for text in texts:
        check_text(text, name)
