"""Whole numbers on the command line: what is wrong with one is said with the number and its limits."""

from __future__ import annotations

import re
from typing import Final

import typer

_NUMBER: Final = re.compile(r"-?[0-9]{1,20}\Z", re.ASCII)


class WholeNumber:
    """The parser of an option or argument that takes from `minimum` to `maximum`, both inclusive."""

    __name__ = "N"

    def __init__(self, minimum: int, maximum: int) -> None:
        self.minimum = minimum
        self.maximum = maximum

    @property
    def limits(self) -> str:
        """For the reference."""
        return f"{self.minimum} to {self.maximum}"

    def __call__(self, text: str | int) -> int:
        """Read a number. Raises `typer.BadParameter`."""
        if not isinstance(text, str):  # the default
            return text
        if _NUMBER.match(text) is None or not self.minimum <= int(text) <= self.maximum:
            raise typer.BadParameter(f"{text!r} is not a whole number from {self.limits}")
        return int(text)
