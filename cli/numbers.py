"""Whole numbers on the command line. An error names the number and its limits."""

from __future__ import annotations

import re
from typing import Final

import typer

_NUMBER: Final = re.compile(r"-?[0-9]{1,20}\Z", re.ASCII)


class WholeNumber:
    """Parse an option or argument from `minimum` to `maximum`, both inclusive."""

    __name__ = "N"

    def __init__(self, minimum: int, maximum: int) -> None:
        self.minimum = minimum
        self.maximum = maximum

    @property
    def limits(self) -> str:
        """The limits as text for the reference page."""
        return f"{self.minimum} to {self.maximum}"

    def __call__(self, text: str | int) -> int:
        """Parse a number. Raises `typer.BadParameter`."""
        if not isinstance(text, str):  # the default
            return text
        if _NUMBER.match(text) is None or not self.minimum <= int(text) <= self.maximum:
            raise typer.BadParameter(f"{text!r} is not a whole number from {self.limits}")
        return int(text)
