"""Checks texts that go to the cluster as UTF-8. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from raftmq.errors import InvalidArgumentError


def check_text(text: object, name: str) -> None:
    """Raise `InvalidArgumentError` for a text that UTF-8 cannot hold. Values of other types are not looked at.

    Args:
        text: What the program gave.
        name: The argument, for the error.
    """
    if not isinstance(text, str) or text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(
            f"{name} {text!r} holds a lone surrogate at position {error.start}, which is no character and has no UTF-8 form: "
            "remove it, or decode the text without errors='surrogateescape'"
        ) from None


def check_texts(texts: Iterable[object], name: str) -> None:
    """Check several texts of one argument."""
    for text in texts:
        check_text(text, name)
