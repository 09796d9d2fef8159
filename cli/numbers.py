"""Whole numbers on the command line. An error names the number and its limits."""

from __future__ import annotations

import re
from typing import Final

import typer

_NUMBER: Final = re.compile(r"-?[0-9]{1,20}\Z", re.ASCII)


class WholeNumber:
    """Parse an option or argument.

    Args:
        minimum: The lowest value.
        maximum: The highest value.
        advice: The alternative, for the error: ``to pause automatic balancing, give --no-auto``.
    """

    __name__ = "N"

    def __init__(self, minimum: int, maximum: int, *, advice: str = "") -> None:
        self.minimum = minimum
        self.maximum = maximum
        self.advice = advice

    @property
    def limits(self) -> str:
        """The limits as text for the reference page."""
        return f"{self.minimum} to {self.maximum}"

    def __call__(self, text: str | int) -> int:
        """Parse a number. Raises `typer.BadParameter`."""
        if not isinstance(text, str):  # the default
            return text
        if _NUMBER.match(text) is None or not self.minimum <= int(text) <= self.maximum:
            advice = f": {self.advice}" if self.advice else ""
            raise typer.BadParameter(f"{text!r} is not a whole number from {self.limits}{advice}")
        return int(text)
